"""A date and a sum of money: what is too dear, what the money buys, and who has no price."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import band, training

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output.amounts import parse_target, parse_usd
from hdpsim.experiments.planning.recommending.document import recommend_document
from hdpsim.experiments.planning.recommending.goal import Goal, parse_goal, probability, slower_with, surely_s
from hdpsim.experiments.planning.recommending.recommend import Aim, _OneType, recommend
from hdpsim.experiments.planning.recommending.sizing import Sizing
from hdpsim.experiments.planning.search.budget import NO_LIMIT
from hdpsim.experiments.scenario.scenario import Scenario

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")


def small(*overrides: str) -> Scenario:
    """The small training on servers that do not fail."""
    return training("campaign.seeds=2", "campaign.failure_scale=0", *overrides)


@pytest.mark.parametrize(
    ("text", "usd"),
    [
        ("300B tokens in 30 days for 20M USD", 20e6),
        ("300B tokens for 20M USD in 30 days", 20e6),
        ("300B in 30 days for 1,250,000USD", 1.25e6),
        ("300B tokens in 30 days for 500K USD", 5e5),
    ],
)
def test_money_stands_beside_the_date(text: str, usd: float) -> None:
    assert parse_goal(text) == Goal(tokens=3e11, seconds=30 * 86_400.0, usd=usd)


def test_a_goal_in_words_is_read_as_the_same_goal() -> None:
    goal = Goal(tokens=3e11, seconds=30 * 86_400.0, usd=20e6)
    assert goal.words == "300B tokens in 30 days for 20M USD"
    assert parse_goal(goal.words) == goal


@pytest.mark.parametrize("money", ["20 EUR", "0 USD", "20M", "much USD", "2000B USD"])
def test_other_money_gets_one_message_with_an_example(money: str) -> None:
    with pytest.raises(UserInputError, match="--target: expected an amount of money such as 20M USD"):
        parse_goal(f"300B tokens in 30 days for {money}")


@pytest.mark.parametrize(
    "text", ["20M USD for 20M USD", "1B in 2 days in 3 days", "1B in 2 days for 1M USD for 2M USD"]
)
def test_everything_is_said_once(text: str) -> None:
    with pytest.raises(UserInputError, match="--target: expected two or three of tokens, a time"):
        parse_goal(text)


def test_money_is_an_earlier_end() -> None:
    """At 2.95 USD an hour 16 GPUs spend 47.20 USD an hour: 4,720 USD last 100 hours."""

    def sizing(target: str) -> Sizing:
        known = Sizing(at=lambda gpus: small(), goal=parse_goal(target), confidence=0.8, block=8, most=2**18)
        assert known.rate(16) > 0.0
        return known

    assert sizing("1B tokens in 5 days for 4720 USD").lasts_s(16) == pytest.approx(100 * 3600)
    assert sizing("1B tokens in 4 days for 4720 USD").lasts_s(16) == 96 * 3600
    assert sizing("1B tokens in 4 days").lasts_s(16) == 96 * 3600
    assert sizing("1B tokens for 4720 USD").lasts_s(16) == pytest.approx(100 * 3600)


@given(
    st.lists(st.floats(1.0, 1e3), min_size=1, max_size=4), st.floats(0.05, 0.95), st.floats(0.5, 1.0),
    st.floats(1.01, 2.0),
)  # fmt: skip
def test_runs_end_in_the_time_that_is_said_with_just_that_confidence(
    runs_s: list[float], confidence: float, low: float, high: float
) -> None:
    seconds = surely_s(confidence, runs_s, band(low, high))
    assert probability(Goal(tokens=1.0, seconds=seconds), runs_s, band(low, high)) == pytest.approx(
        confidence
    )


def test_one_run_takes_its_time_times_that_of_the_band() -> None:
    # mu = (ln 0.9 + ln 1.2) / 2, sigma = (ln 1.2 - ln 0.9) / 2.563
    mu, sigma = math.log(0.9 * 1.2) / 2, math.log(1.2 / 0.9) / 2.5631
    expected = 100.0 * math.exp(mu + sigma * NormalDist().inv_cdf(0.8))
    assert surely_s(0.8, [100.0], band(0.9, 1.2)) == pytest.approx(expected, rel=1e-4)


def test_a_budget_holds_with_the_confidence_of_the_date() -> None:
    """2.95 USD an hour for each GPU, times what the band says of 80 %."""
    free = recommend(small(), parse_goal("200B tokens in 3 days"), keep_layout=True).best
    needed = (
        2.95 * free.gpus * free.days * 24 * slower_with(0.8, free.band, free.study.plan.undisturbed.sampling)
    )
    assert free.surely_usd == pytest.approx(needed)
    enough = parse_goal(f"200B tokens in 3 days for {needed + 1:.2f} USD")
    found = recommend(small(), enough, keep_layout=True)
    assert found.best.gpus == free.gpus
    assert found.best.probability == pytest.approx(0.8, abs=0.01)
    said = recommend_document(found)
    assert f"being done {enough.limits} is 80%" in said.text()
    assert said.payload["target"]["usd"] == enough.usd


def test_what_is_over_the_budget_says_what_it_costs_and_what_the_money_buys() -> None:
    """Half of the money buys half of the tokens on the same GPUs."""
    goal = parse_goal("200B tokens in 3 days")
    least = recommend(small(), goal, keep_layout=True, aim="usd").best.surely_usd
    assert least is not None
    half = parse_goal(f"200B tokens in 3 days for {least / 2:.6f} USD")
    with pytest.raises(InfeasibleError) as error:
        recommend(small(), half, keep_layout=True)
    assert "h100-80gb: over the budget: " in str(error.value)
    change = str(error.value).rpartition("\n")[2]
    advice = re.search(r"at least (\S+ USD) instead of \S+ USD, about (\S+) tokens", change)
    assert advice is not None
    assert parse_usd(advice[1], "") == pytest.approx(least, rel=0.01)
    assert parse_target(advice[2]) == pytest.approx(1e11, rel=0.01)
    followed = parse_goal(f"200B tokens in 3 days for {advice[1]}")
    assert recommend(small(), followed, keep_layout=True).best.surely_usd == pytest.approx(least)


def test_a_type_that_is_too_dear_keeps_its_row() -> None:
    """An H200 is no faster than an H100 in a model that small, and costs 4.54 USD an hour instead of 2.95."""
    goal, types = "200B tokens in 3 days", ("h200", "h100")
    free = recommend(small(), parse_goal(goal), gpu_types=types, keep_layout=True)
    usd = {one.gpu: one.offer.surely_usd for one in free.types if one.offer}
    between = round(sum(filter(None, usd.values())) / 2, 2)  # as the target says it
    assert usd["h100-80gb"] < between < usd["h200-141gb"]  # type: ignore[operator]
    found = recommend(small(), parse_goal(f"{goal} for {between:.2f} USD"), gpu_types=types, keep_layout=True)
    assert [(one.gpu, one.offer is None) for one in found.types] == [
        ("h100-80gb", False),
        ("h200-141gb", True),
    ]
    document = recommend_document(found)
    over = document.payload["candidates"][1]
    assert not over["feasible"]
    assert over["over_budget"]["tokens"] == pytest.approx(2e11 * between / over["over_budget"]["surely_usd"])
    assert "over the budget: " in document.text()


@dataclass(kw_only=True)
class Known(Sizing):
    """A sizing whose times are known: so many rounds of micro-batches of a second; a GPU costs 1 USD a second."""

    met: dict[int, Any] = field(default_factory=dict)

    def rate(self, gpus: int) -> float:
        return (self.goal.tokens or 0.0) / math.ceil(512 / (gpus // 8))

    def paid_s(self, gpus: int) -> float:
        return math.inf if self.goal.usd is None else self.goal.usd / gpus

    def offer(self, gpus: int) -> Any:
        seconds = self.about_s(gpus)
        self.met[gpus] = SimpleNamespace(
            gpus=gpus, paid_gpus=gpus, seconds=seconds, surely_s=seconds, usd=gpus * seconds,
            within=seconds <= self.lasts_s(gpus),
        )  # fmt: skip
        return self.met[gpus]

    def offers(self) -> Any:
        return (offer for offer in self.met.values() if self.meets(offer))


def answer(seconds: float, usd: float | None, aim: Aim) -> Any:
    goal = Goal(tokens=1e9, seconds=seconds, usd=usd)
    one = _OneType(
        scenario=cast("Scenario", None), goal=goal, aim=aim, confidence=0.8, pinned=(), gpu="", site=(),
        max_gpus=2**18, budget=NO_LIMIT,
    )  # fmt: skip
    return one._offer(Known(at=lambda gpus: small(), goal=goal, confidence=0.8, block=8, most=2**18), 64)


def test_more_gpus_are_taken_where_the_fewest_are_too_dear() -> None:
    """688 GPUs take 6 rounds, the last one for few: 4,128 USD. 1,024 take 4 full ones: 4,096 USD."""
    assert answer(6.0, None, "gpus").gpus == 688
    assert answer(6.0, 4128.0, "gpus").gpus == 688
    assert answer(6.0, 4127.0, "gpus").gpus == 1024
    none = answer(6.0, 4095.0, "gpus")
    assert (none.gpus, none.within) == (1024, False)


@settings(max_examples=50)
@given(
    seconds=st.floats(2.0, 200.0), usd=st.floats(3000.0, 6000.0), more=st.floats(0.0, 1000.0),
    aim=st.sampled_from(["gpus", "usd"]),
)  # fmt: skip
def test_more_money_is_never_for_more_gpus_or_dearer_ones(
    seconds: float, usd: float, more: float, aim: Aim
) -> None:
    now, then, free = (answer(seconds, money, aim) for money in (usd, usd + more, None))
    assert now.usd <= usd or not now.within
    assert then.within >= now.within
    if now.within:
        assert free.gpus <= then.gpus <= now.gpus or aim == "usd"
        assert (then.usd, then.gpus) == (now.usd, now.gpus) or aim == "gpus"
    else:
        assert now.usd <= free.usd


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "h20"), "--target: the price of h20-96gb is unknown; give one with --set costs.price"),
        (("--gpu", "h100,h20"), "--target: the price of h20-96gb is unknown; name a list that has it in costs.prices"),
        (("--gpu", "h100,h200", "--set", "costs.price=2USD/h"), "costs.price says one price for h100, h200"),
        (("--budget", "20M USD"), 'recommend takes money in --target: "300B tokens in 30 days for 20M USD"'),
    ],
)  # fmt: skip
def test_money_without_a_price_is_refused(arguments: tuple[str, ...], message: str) -> None:
    target = "1B tokens in 3 days for 1M USD"
    result = CliRunner().invoke(cli, ["recommend", "quickstart-8gpu", "--target", target, *arguments])
    assert result.exit_code == 2
    assert message in result.output
