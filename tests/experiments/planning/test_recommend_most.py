"""What a sum of money makes most of: the most tokens by a date, the earliest date of some tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import training

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.planning.recommending.document import recommend_document
from hdpsim.experiments.planning.recommending.goal import Goal, parse_goal
from hdpsim.experiments.planning.recommending.most_for_money import ALIKE, makes_most
from hdpsim.experiments.planning.recommending.recommend import _OneType, recommend
from hdpsim.experiments.planning.recommending.sizing import Sizing, rounded_down
from hdpsim.experiments.planning.search.budget import NO_LIMIT
from hdpsim.experiments.scenario.scenario import Scenario

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

DAY_S = 86_400.0


def small(*overrides: str) -> Scenario:
    """The small training on servers that do not fail."""
    return training("campaign.seeds=2", "campaign.failure_scale=0", *overrides)


@pytest.mark.parametrize(
    ("text", "goal", "wanted"),
    [
        ("20M USD in 60 days", Goal(seconds=60 * DAY_S, usd=20e6), "tokens"),
        ("60 days for 20M USD", Goal(seconds=60 * DAY_S, usd=20e6), "tokens"),
        ("300B tokens for 20M USD", Goal(tokens=3e11, usd=20e6), "days"),
        ("for 20M USD in 60 days 300B", None, ""),
        ("in 2 weeks 300B tokens", None, ""),
        ("300B tokens in 2 weeks", Goal(tokens=3e11, seconds=14 * DAY_S), "gpus"),
    ],
)
def test_any_two_of_tokens_time_and_money_are_a_target(text: str, goal: Goal | None, wanted: str) -> None:
    if goal is None:
        result = CliRunner().invoke(cli, ["recommend", "quickstart-8gpu", "--target", text])
        assert result.exit_code == 2
        assert "Error: --target: expected" in result.output
        return
    assert parse_goal(text) == goal
    assert goal.wanted == wanted
    assert parse_goal(goal.words) == goal


def test_an_objective_is_for_tokens_and_a_date() -> None:
    arguments = ["recommend", "quickstart-8gpu", "--target", "20M USD in 60 days", "--objective", "usd"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "--objective: 20M USD in 60 days looks for the most tokens" in result.output


def test_the_most_tokens_are_those_that_the_same_gpus_train_in_time_and_for_the_money() -> None:
    """At 2.95 USD an hour 5,200 USD pay 24 GPUs for three days, or 32 for 55.1 hours.

    Of 256 sequences the 12 ranks of 24 GPUs need 22 rounds, the last one for few of them; the 16 of 32 fill 16.
    """
    found = recommend(small(), parse_goal("5200 USD in 3 days"), keep_layout=True)
    best = found.best
    assert best.gpus == 32
    assert best.tokens == rounded_down(best.tokens)
    assert best.surely_days <= 55.1 / 24
    assert best.surely_usd == pytest.approx(2.95 * 32 * 24 * best.surely_days)
    assert 0.8 <= best.probability < 0.81
    # The tokens that are said need just these GPUs by that date and for that money.
    again = parse_goal(f"{best.tokens:.0f} tokens in 3 days for 5200 USD")
    assert recommend(small(), again, keep_layout=True).best.gpus == best.gpus
    said = recommend_document(found)
    assert "The most tokens: 32 x h100-80gb" in said.text()
    assert said.payload["candidates"][0]["tokens"] == best.tokens  # type: ignore[index]
    assert said.payload["target"] == {"tokens": None, "seconds": 3 * DAY_S, "days": 3.0, "usd": 5200.0}


def test_a_small_sum_is_spent_although_a_job_takes_a_minute_to_begin() -> None:
    """0.60 USD pay eight GPUs for 92 s, of which a start and the band leave few; 0.20 USD pay no step."""
    best = recommend(small(), parse_goal("0.6 USD in 3 days"), keep_layout=True).best
    assert best.surely_usd is not None
    assert 0.97 * 0.6 < best.surely_usd <= 0.6
    with pytest.raises(
        InfeasibleError, match=r"money end before a step does.*\n.*a larger sum, a later date"
    ):
        recommend(small(), parse_goal("0.2 USD in 3 days"), keep_layout=True)


def test_the_earliest_date_is_within_the_money_and_earlier_with_more() -> None:
    """A batch of 32 sequences has work for 32 ranks of two GPUs."""
    little, much = (
        recommend(
            small("data.batch=32 sequences"), parse_goal(f"200B tokens for {usd} USD"), keep_layout=True
        )
        for usd in (5000, 50_000)
    )
    for found, usd in ((little, 5000), (much, 50_000)):
        assert found.best.surely_usd is not None
        assert found.best.surely_usd <= usd
    assert much.best.gpus == 64
    assert much.best.surely_days < little.best.surely_days
    said = recommend_document(little)
    assert "The earliest: " in said.text()
    assert "being done for 5K USD" in said.text()
    assert said.payload["objective"] == "days"


def test_layouts_are_searched_on_as_many_gpus_as_the_money_pays_until_the_date() -> None:
    """5,200 USD pay 24.5 GPUs at 2.95 USD an hour for 72 hours: three servers."""
    one = _OneType(
        scenario=small(), goal=parse_goal("5200 USD in 3 days"), aim="tokens", confidence=0.8, pinned=(), gpu="",
        site=(), max_gpus=2**18, budget=NO_LIMIT,
    )  # fmt: skip
    offer = SimpleNamespace(gpus=64, within=True, usd=1.0, tokens=1e9, scenario=small("gpus=64"))
    tried: Any = (SimpleNamespace(offer=offer),)
    assert one._next({8}, tried, fewer=True) == 64
    assert one._next({64}, tried, fewer=True) == 24
    assert one._next({24, 64}, tried, fewer=True) is None
    assert one._next({64}, tried, fewer=False) is None


def test_too_little_money_says_what_the_cheapest_gpus_cost() -> None:
    with pytest.raises(InfeasibleError, match="200B tokens for 100 USD: no number of GPUs") as error:
        recommend(small(), parse_goal("200B tokens for 100 USD"), keep_layout=True)
    assert "over the budget: " in str(error.value)
    assert "instead of 100 USD" in str(error.value)


def test_the_type_with_the_most_tokens_is_the_best() -> None:
    """An H200 is no faster than an H100 in a model that small, and costs more."""
    goal = parse_goal("5200 USD in 3 days")
    found = recommend(small(), goal, gpu_types=("h200", "h100"), keep_layout=True)
    assert [one.gpu for one in found.types] == ["h100-80gb", "h200-141gb"]
    tokens = [one.offer.tokens for one in found.types if one.offer]
    assert tokens[0] > tokens[1]


@dataclass(kw_only=True)
class Known(Sizing):
    """A sizing whose rates are known: rounds of micro-batches of a second and traffic; 1 USD for a GPU second."""

    traffic_s: float
    least: int

    def rate(self, gpus: int) -> float:
        step_s = math.ceil(512 / (gpus // 8)) + gpus * self.traffic_s
        return 512.0 / step_s if gpus >= self.least else 0.0

    def paid_s(self, gpus: int) -> float:
        assert self.goal.usd is not None
        return self.goal.usd / gpus

    def offer(self, gpus: int) -> Any:
        lasts_s, rate = self.lasts_s(gpus), self.rate(gpus)
        tokens = self.goal.tokens or rate * lasts_s
        needed_s = tokens / rate
        return SimpleNamespace(
            gpus=gpus,
            tokens=tokens,
            surely_s=needed_s,
            usd=gpus * needed_s,
            within=needed_s <= lasts_s * (1 + 1e-9),
        )


@settings(max_examples=60)
@given(
    guess=st.integers(8, 8192), usd=st.floats(1e4, 1e7), seconds=st.floats(10.0, 1e4),
    traffic_s=st.sampled_from([0.0, 1e-4, 1e-2]), least=st.sampled_from([8, 64, 1024]), tokens=st.booleans(),
)  # fmt: skip
def test_no_number_of_gpus_makes_much_more_of_the_money(
    guess: int, usd: float, seconds: float, traffic_s: float, least: int, tokens: bool
) -> None:
    """Against all numbers up to 8,192."""
    goal = Goal(tokens=usd / 32.0, usd=usd) if tokens else Goal(seconds=seconds, usd=usd)
    sizing = Known(
        at=lambda gpus: small(),
        goal=goal,
        confidence=0.8,
        block=8,
        most=2**18,
        traffic_s=traffic_s,
        least=least,
    )
    offers = [sizing.offer(gpus) for gpus in range(least, 8193, 8)]
    best = makes_most(sizing, guess)
    assert best is not None
    kept = [one for one in offers if one.within]
    if not best.within:
        assert not kept or min(one.surely_s for one in kept) == 0.0
        return
    if tokens:
        assert best.surely_s <= min(one.surely_s for one in kept) * ALIKE * 1.1
    else:
        assert best.tokens >= max(one.tokens for one in kept) / ALIKE / 1.1


def test_more_gpus_are_not_paid_for_what_is_alike() -> None:
    """Past 4,096 GPUs every rank has a single round: twice as many take as long, and cost twice as much."""
    sizing = Known(
        at=lambda gpus: small(),
        goal=Goal(tokens=512.0, usd=1e6),
        confidence=0.8,
        block=8,
        most=2**18,
        traffic_s=0.0,
        least=8,
    )
    best = makes_most(sizing, 8192)
    assert best is not None
    assert best.gpus == 4096


def test_an_earlier_date_has_a_price_and_an_end() -> None:
    """Of 45 GPUs five servers can be used; each row costs what it is dearer over the days that it is earlier."""
    goal = parse_goal("200B tokens for 50K USD")
    found = recommend(small(), goal, keep_layout=True, max_gpus=45)
    assert found.best.gpus == 40
    assert [one.offer.gpus for one in found.dates] == [8, 16, 40]
    later, earlier = (one.offer for one in found.dates[-2:])
    assert later.usd is not None
    assert earlier.usd is not None
    price = (earlier.usd - later.usd) / (later.days - earlier.days)
    assert found.dates[-1].usd_per_day == pytest.approx(price)
    said = recommend_document(found)
    assert "What an earlier date costs" in said.text()
    assert "40 x h100-80gb: 256 micro-batches do not divide among 20 data-parallel groups" in said.text()
    assert "No more than 45 GPUs were tried (--max-gpus)" in said.text()
    with pytest.raises(
        InfeasibleError, match=r"(?s)No more than 8 GPUs were tried \(--max-gpus\).*more GPUs \(--max-gpus\)"
    ):
        recommend(small(), parse_goal("200B tokens in 1 day"), keep_layout=True, max_gpus=8)
    with pytest.raises(InfeasibleError, match="takes 8 GPUs at least, more than --max-gpus 4"):
        recommend(small(), goal, keep_layout=True, max_gpus=4)


def test_idle_gpus_of_racks_count_as_gpus_that_one_has() -> None:
    one = _OneType(
        scenario=small(), goal=parse_goal("5200 USD in 3 days"), aim="tokens", confidence=0.8, pinned=(), gpu="",
        site=(("cluster.node.gpus", 64), ("cluster.node.idle_gpus", 8)), max_gpus=200, budget=NO_LIMIT,
    )  # fmt: skip
    assert one._most == 128
