"""How many GPUs a date needs: bisection against all numbers, probabilities by hand, goals as people write them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import TRAINING, band, training

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.bands.memory_fit import shipped_margin
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.campaigns.run import run_campaign
from hdpsim.experiments.campaigns.undisturbed_step import sampling_error
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.planning.recommending.document import recommend_document
from hdpsim.experiments.planning.recommending.goal import Goal, parse_goal, probability, slower_with
from hdpsim.experiments.planning.recommending.recommend import FEW_TOKENS, LEAST_STEPS, _OneType, recommend
from hdpsim.experiments.planning.recommending.sizing import Sizing, block_of
from hdpsim.experiments.planning.search.budget import NO_LIMIT, Budget
from hdpsim.experiments.planning.search.search import search
from hdpsim.experiments.planning.search.space import space_of
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")


@pytest.mark.parametrize(
    ("text", "tokens", "days"),
    [
        ("300B tokens in 30 days", 3e11, 30.0),
        ("1.5T in 2 weeks", 1.5e12, 14.0),
        ("2B tokens in 12h", 2e9, 0.5),
        ("300B tokens in 1 day", 3e11, 1.0),
    ],
)
def test_goals_are_read_as_people_write_them(text: str, tokens: float, days: float) -> None:
    goal = parse_goal(text)
    assert (goal.tokens, goal.days) == (tokens, days)


@pytest.mark.parametrize(
    "text",
    ["300B", "in 30 days", "300B tokens", "300B in 0 days", "lots in 3 days", "1B in 3", "1B by March 1"],
)
def test_other_goals_get_one_message_with_an_example(text: str) -> None:
    with pytest.raises(UserInputError, match=r"--target: .*300B"):
        parse_goal(text)
    result = CliRunner().invoke(cli, ["recommend", "quickstart-8gpu", "--target", text])
    assert result.exit_code == 2
    assert result.output.count("Error") == 1


def test_probability_is_that_of_a_log_normal_through_the_band() -> None:
    # mu = (ln 0.9 + ln 1.2) / 2, sigma = (ln 1.2 - ln 0.9) / 2.563; a run that takes 1 / 1.1 of the time.
    goal = Goal(tokens=1.0, seconds=110.0)
    expected = NormalDist().cdf((math.log(1.1) - 0.03848) / 0.11225)
    assert probability(goal, [100.0], band(0.9, 1.2)) == pytest.approx(expected, abs=1e-4)
    assert probability(goal, [100.0 / 1.2, 1e9], band(0.9, 1.1 * 1.2)) < 0.5
    # A run that takes P90 times as long as the goal allows is in time with 10 %.
    assert probability(goal, [110.0 / 0.9], band(0.9, 1.2)) == pytest.approx(0.1)
    assert slower_with(0.9, band(0.9, 1.2)) == pytest.approx(1.2)
    assert probability(goal, [100.0, 120.0], None) == 0.5


def test_few_batches_make_the_date_less_sure() -> None:
    goal = Goal(tokens=1.0, seconds=100.0)
    normal = NormalDist(math.log(0.9 * 1.2) / 2, math.hypot(math.log(1.2 / 0.9) / 2.5631, 0.3))
    expected = normal.cdf(math.log(100.0 / 90.0))
    assert probability(goal, (90.0,), band(0.9, 1.2), 0.3) == pytest.approx(expected, rel=1e-4)
    assert probability(goal, (90.0,), None, 0.1) == pytest.approx(NormalDist(0.0, 0.1).cdf(math.log(1 / 0.9)))
    assert slower_with(0.8, None, 0.1) == pytest.approx(math.exp(0.1 * NormalDist().inv_cdf(0.8)))


def test_the_sampling_error_is_that_of_seconds_per_token() -> None:
    def steps(*pairs: tuple[float, int]) -> list[Any]:
        return [SimpleNamespace(step_s=seconds, tokens=tokens) for seconds, tokens in pairs]

    assert sampling_error(steps((3.0, 10))) == 0.0
    # A batch of twice the tokens that takes twice as long says nothing new.
    assert sampling_error(steps((3.0, 10), (6.0, 20))) == pytest.approx(0.0, abs=1e-9)
    # Seconds 2 and 4 of equal tokens: s = sqrt(2), over sqrt(2), of a mean of 3.
    assert sampling_error(steps((2.0, 10), (4.0, 10))) == pytest.approx(1.0 / 3.0)


@pytest.mark.slow
def test_where_memory_is_tight_fewer_gpus_than_the_first_layout_fits_are_looked_at() -> None:
    """Fewer GPUs hold larger shares of the optimizer, so each number has a rank capacity of its own."""
    pinned = ("layout.tp=2", "layout.pp=1", "layout.sharding=zero1", "layout.recompute=none",
              "layout.optimizer_offload=false", "strategy.name=hdp-opt")  # fmt: skip
    lengths = [f"{thousands}K tokens" for thousands in (1, 2, 4, 16, 8, 8, 8, 32, 256)]
    data = {"lengths": lengths, "context": "256K tokens", "batch": "4M tokens"}
    document = {**TRAINING, "model": "llama-3-8b", "data": data}
    scenario = resolve_scenario(document, overrides=("cluster.gpus=64", *pinned))
    goal = parse_goal("100B tokens in 18 days")
    best = recommend(scenario, goal, pinned=pinned).best
    assert best.probability >= 0.8
    for gpus in range(8, best.gpus, 8):
        there = scenario.with_changes((f"gpus={gpus}",))
        space = space_of(there, pinned=[text.partition("=")[0] for text in pinned])
        found = search(there, space, batches=1, headroom=shipped_margin().headroom).best
        if found:
            layout = there.with_changes(found[0].candidate.overrides)
            study = run_campaign(layout, workers=1, tokens=goal.tokens)
            surely = probability(goal, study.reached_s, setup_band(layout.setup(), layout.batches(1)[0]))
            assert surely < 0.8


def test_a_block_is_what_the_degrees_divide_in_whole_servers() -> None:
    assert block_of(training("layout.tp=2", "layout.pp=1").layout, 8) == 8
    assert block_of(training("layout.tp=4", "layout.pp=4", "layout.cp=1").layout, 8) == 16
    assert block_of(training("layout.tp=2", "layout.cp=4").layout, 8) == 8


def every_number(scenario: Scenario, goal: Goal, most: int) -> dict[int, tuple[float, float]]:
    """Days on every number of servers, each a campaign of its own, and the probability of the goal."""
    found = {}
    for gpus in range(8, most + 1, 8):
        study = run_campaign(scenario.with_changes((f"gpus={gpus}",)), workers=1, tokens=goal.tokens)
        assert study.target is not None
        there = scenario.with_changes((f"gpus={gpus}",))
        surely = probability(goal, study.reached_s, setup_band(there.setup(), there.batches(1)[0]))
        found[gpus] = study.target.seconds.mean / 86_400.0, surely
    return found


@pytest.mark.parametrize(
    ("time", "confidence"), [("5 days", 0.8), ("2 days", 0.8), ("25 h", 0.5), ("30 h", 0.95)]
)
def test_the_fewest_are_those_of_a_sweep_over_all_numbers(time: str, confidence: float) -> None:
    goal = parse_goal(f"200B tokens in {time}")
    found = recommend(training(), goal, keep_layout=True, confidence=confidence).best
    known = every_number(training(), goal, 64)
    assert found.gpus == min(gpus for gpus, (_, surely) in known.items() if surely >= confidence)
    assert (found.days, found.probability) == pytest.approx(known[found.gpus])


def test_the_cheapest_is_never_dearer_than_the_fewest() -> None:
    goal = parse_goal("200B tokens in 3 days")
    fewest = recommend(training(), goal, keep_layout=True).best
    cheapest = recommend(training(), goal, keep_layout=True, aim="usd").best
    assert fewest.usd is not None
    assert cheapest.usd is not None
    assert cheapest.usd <= fewest.usd
    assert cheapest.days <= goal.days
    assert fewest.usd == pytest.approx(2.95 * fewest.gpus * fewest.days * 24)


def test_more_confidence_takes_more_gpus_and_gets_the_probability() -> None:
    goal = parse_goal("200B tokens in 2 days")
    even, sure = (
        recommend(training(), goal, keep_layout=True, confidence=confidence).best
        for confidence in (0.5, 0.95)
    )
    assert sure.gpus > even.gpus
    assert sure.probability >= 0.95
    assert recommend(training(), goal, keep_layout=True).best.probability >= 0.8


def test_failures_and_checkpoints_take_time() -> None:
    goal = parse_goal("200B tokens in 5 days")
    often = training("campaign.failure_scale=1000", "campaign.checkpoint_interval=30min")
    found = recommend(often, goal, keep_layout=True).best
    assert found.study.ettr.mean < 0.97
    assert found.days > recommend(training(f"gpus={found.gpus}"), goal, keep_layout=True).best.days * 0.9


def test_a_goal_out_of_reach_says_what_would_have_to_change() -> None:
    with pytest.raises(InfeasibleError, match="What would have to change: at least") as error:
        recommend(training("data.batch=16 sequences"), parse_goal("300T tokens in 1 day"), keep_layout=True)
    assert "a larger data.batch than 16 sequences" in str(error.value)


def test_a_goal_far_out_of_reach_begins_with_gpus_that_have_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(Sizing, "fewest", lambda self, guess: looked_at.append(guess))
    with pytest.raises(InfeasibleError, match="tokens in 1 h: no number"):
        recommend(training("data.batch=16 sequences"), parse_goal("300T tokens in 1 hour"), keep_layout=True)
    assert looked_at[0] <= 2 * 16 * 4096 / FEW_TOKENS


@dataclass(kw_only=True)
class Known(Sizing):
    """A sizing whose times are known: so many rounds of micro-batches, and traffic that grows with the GPUs."""

    rounds_s: float
    traffic_s: float
    least: int

    def about_s(self, gpus: int) -> float:
        time_s = math.ceil(512 / (gpus // 8)) * self.rounds_s + gpus * self.traffic_s
        return time_s if gpus >= self.least else math.inf

    def offer(self, gpus: int) -> Any:
        return SimpleNamespace(gpus=gpus, seconds=self.about_s(gpus))

    def meets(self, offer: Any) -> bool:
        return bool(offer.seconds <= self.goal.seconds)


def fewest(goal_s: float, guess: int, most: int = 2**18, **times: Any) -> int | None:
    sizing = Known(
        at=lambda gpus: training(),
        goal=Goal(tokens=1e9, seconds=goal_s),
        confidence=0.8,
        block=8,
        most=most,
        **times,
    )
    found = sizing.fewest(guess)
    return found and found.gpus


@settings(max_examples=30)
@given(
    goal_s=st.floats(2.0, 500.0), guess=st.integers(8, 8192), rounds_s=st.floats(0.1, 3.0),
    faster=st.floats(0.2, 1.0), least=st.sampled_from([8, 64, 1024]), more=st.sampled_from([1, 8, 1000]),
)  # fmt: skip
def test_faster_gpus_of_more_memory_never_are_more(
    goal_s: float, guess: int, rounds_s: float, faster: float, least: int, more: int
) -> None:
    now = fewest(goal_s, guess, rounds_s=rounds_s, traffic_s=0.0, least=least)
    assert now == next(
        (gpus for gpus in range(least, 4097, 8) if math.ceil(512 / (gpus // 8)) * rounds_s <= goal_s),
        None,
    )
    then = fewest(goal_s, guess, rounds_s=rounds_s * faster, traffic_s=0.0, least=least // more)
    assert now is None or (then is not None and then <= now)


def test_the_cheapest_are_looked_for_up_to_twice_the_fewest() -> None:
    """688 GPUs take 6 rounds, the last one for few: 4,128 GPU-rounds. 1,024 take 4 full ones: 4,096."""
    times = {"rounds_s": 1.0, "traffic_s": 0.0, "least": 8}
    goal = Goal(tokens=1e9, seconds=6.0)
    sizing = Known(at=lambda gpus: training(), goal=goal, confidence=0.8, block=8, most=2**18, **times)  # type: ignore[arg-type]
    assert sizing.cheapest(688)[0] == 1024
    assert set(sizing.cheapest(8)) == {16}


@given(st.floats(0.0, 5000.0))
def test_a_search_has_steps_enough_or_none(steps: float) -> None:
    one = _OneType(
        scenario=cast("Scenario", None), goal=Goal(tokens=1e9, seconds=6.0), aim="gpus", confidence=0.8,
        pinned=(), gpu="", site=(), max_gpus=2**18, budget=Budget(steps=steps),
    )  # fmt: skip
    assert sum(one._shares) == pytest.approx(1.0)
    assert all(share * steps >= LEAST_STEPS for share in one._shares[1:])


def test_fewer_gpus_are_found_where_the_first_number_is_too_many() -> None:
    """1,024 GPUs take 4 + 10.24 s and 2,048 no less; 512 take 8 + 5.12 s, 504 already 9 + 5.04 s."""
    assert fewest(13.5, 1024, rounds_s=1.0, traffic_s=0.01, least=8) == 512


@settings(max_examples=30)
@given(goal_s=st.floats(10.0, 500.0), guess=st.integers(8, 8192), most=st.integers(8, 2000))
def test_no_more_gpus_are_used_than_can_be_had(goal_s: float, guess: int, most: int) -> None:
    """A number that is no power of two blocks is reached, too."""
    expected = next(
        (n for n in range(8, most + 1, 8) if math.ceil(512 / (n // 8)) + n * 1e-3 <= goal_s), None
    )
    assert fewest(goal_s, guess, most, rounds_s=1.0, traffic_s=1e-3, least=8) == expected


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["recommend", str(path), *arguments])


@pytest.mark.slow
def test_types_are_compared_with_searched_layouts(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TRAINING))
    options = (
        "--gpu",
        "h100,h200",
        "--target",
        "200B tokens in 3 days",
        "--budget",
        "150 steps",
        "--batches",
        "1",
    )
    result = run(path, *options, "--json", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {"gpus", "days", "usd", "probability"} <= document.keys()
    assert {candidate["gpu"] for candidate in document["candidates"]} == {"h100-80gb", "h200-141gb"}
    kept = json.loads(run(path, *options[2:4], "--batches", "1", "--keep-layout", "--json").stdout)
    assert document["gpus"] <= kept["gpus"]
    written = yaml.safe_load((tmp_path / "out" / "recommended.yaml").read_text())
    assert run_campaign(resolve_scenario(written), workers=1, tokens=2e11).target is not None


def test_no_layout_is_searched_when_the_budget_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock passes an hour with every look at it: the first search has its answer, and there is no second one."""
    searches, hours = [], iter(range(10**6))

    def once(scenario: Scenario, *given: Any, **named: Any) -> Any:
        searches.append(scenario.cluster.gpus)
        return search(scenario, *given, **{**named, "budget": NO_LIMIT})

    def found(budget: Budget) -> tuple[int, bool]:
        searches.clear()
        pinned = ("strategy.name=static", "layout.tp=2", "layout.recompute=none", "layout.sharding=zero1")
        goal = parse_goal("500B tokens in 3 days")
        answer = recommend_document(
            recommend(training("layout.recompute=none"), goal, budget=budget, pinned=pinned)
        )
        said = "Not all layouts were looked at" in answer.text()
        assert said is not answer.payload["best"]["all_layouts"]
        return len(searches), said

    monkeypatch.setattr("hdpsim.experiments.planning.recommending.recommend.search", once)
    monkeypatch.setattr(
        "hdpsim.experiments.planning.recommending.recommend.time",
        SimpleNamespace(monotonic=lambda: 3600.0 * next(hours)),
    )
    assert found(Budget(seconds=60.0)) == (1, True)
    searched, said = found(NO_LIMIT)
    assert searched > 1
    assert not said


@pytest.mark.slow
def test_a_search_cut_short_is_never_worse_than_the_layout_that_one_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that had found nothing but the slowest of its layouts when its budget was over."""

    def cut_short(scenario: Scenario, *_: Any, **named: Any) -> Any:
        space = space_of(
            scenario, pinned=["strategy.name", "layout.recompute", "layout.tp", "layout.sharding"]
        )
        found = search(scenario, space, batches=1, headroom=named["headroom"])
        slowest = min(found.evaluated, key=lambda one: one.tokens_per_s)
        return replace(found, best=[slowest], complete=False)

    goal = parse_goal("2T tokens in 3 days")
    monkeypatch.setattr("hdpsim.experiments.planning.recommending.recommend.search", cut_short)
    answer = recommend(training("layout.recompute=none"), goal)
    assert answer.best.gpus <= recommend(training("layout.recompute=none"), goal, keep_layout=True).best.gpus
    assert not answer.types[0].complete
    assert answer.types[0].layout == "the scenario's own layout"


@pytest.mark.parametrize("keep_layout", [True, False])
def test_racks_of_72_gpus_stand_beside_servers_of_8(keep_layout: bool) -> None:
    """16 GPUs and powers of two of servers are no whole number of such racks."""
    goal = parse_goal("1T tokens in 5 days")
    pinned = ("strategy.name=static", "layout.recompute=none", "layout.sharding=zero1")
    found = recommend(
        training(*pinned), goal, gpu_types=("h100", "gb200"), keep_layout=keep_layout, pinned=pinned,
        budget=Budget(steps=20),
    )  # fmt: skip
    offers = {one.gpu: one.offer for one in found.types}
    assert all(offers.values())
    said = recommend_document(found).text()
    assert "USD an hour for each gb200-186gb" in said
    assert "USD an hour for each h100-80gb" in said
    assert offers["gb200-186gb"].paid_gpus % 72 == 0  # type: ignore[union-attr]
    assert offers["h100-80gb"].gpus % 8 == 0  # type: ignore[union-attr]
    usd = {gpu: offer.usd for gpu, offer in offers.items() if offer}
    assert ("cost less" in said) == (usd[found.best.scenario.cluster.gpu.name] > min(usd.values()))


def test_a_type_that_cannot_run_the_scenario_takes_no_answer_from_the_others() -> None:
    fp8 = training("cluster.node=hgx-b200-180gb", "layout.precision=mxfp8")
    goal = parse_goal("200B tokens in 5 days")
    found = recommend(fp8, goal, gpu_types=("a100-80gb", "b200"), keep_layout=True)
    assert [one.gpu for one in found.types] == ["b200-180gb", "a100-80gb"]
    assert "no tensor cores for mxfp8" in found.types[1].reason
    assert "no tensor cores" in recommend_document(found).text()
    with pytest.raises(InfeasibleError, match="no tensor cores"):
        recommend(fp8, goal, gpu_types=("a100-80gb",), keep_layout=True)
