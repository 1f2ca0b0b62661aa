"""data.lengths: batches of equal sequences, or of a few lengths in turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario
from hdpsim.experiments.studies.step_report import headline

DOCUMENT = {
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "gpus": 8},
    "layout": {"tp": 2, "recompute": "full"},
    "strategy": {"name": "static"},
}


def scenario(lengths: object, batch: str, context: int = 8192, **more: object) -> Scenario:
    data = {"lengths": lengths, "batch": batch, "context": context, **more}
    return resolve_scenario({**DOCUMENT, "data": data})


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 8192), min_size=1, max_size=40), sequences=st.integers(1, 100))
def test_lengths_come_in_turn_and_without_end(lengths: list[int], sequences: int) -> None:
    found = scenario(lengths, f"{sequences} sequences")
    taken = [int(tokens) for batch in found.batches(3) for tokens in batch]
    assert taken == [lengths[place % len(lengths)] for place in range(3 * sequences)]
    assert resolve_scenario(found.document) == found


def test_one_length_is_that_of_every_sequence() -> None:
    found = scenario("4K", "1M tokens")
    (batch,) = found.batches(1)
    assert batch.tolist() == [4096] * 256
    assert found.document["data"]["lengths"] == "4096 tokens"
    assert "sequences of 4,096 tokens" in headline(found)
    assert "2 lengths in turn" in headline(scenario([1, 2], "1M tokens"))


def test_a_whole_round_is_more_than_a_block() -> None:
    (batch,) = scenario([4, 5, 6], "100000 sequences").batches(1)
    assert batch[:6].tolist() == batch[32_766:32_772].tolist() == [4, 5, 6, 4, 5, 6]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "an empty list"),
        (0, "positive number of tokens"),
        ([4096, "x"], "positive number of tokens"),
        (8193, "longer than data.context"),
        ({"a": 1}, "positive number of tokens"),
    ],
)
def test_what_is_no_length_is_said(lengths: object, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(lengths, "64 sequences")


def test_lengths_replace_a_trace_and_do_not_stand_beside_it() -> None:
    with pytest.raises(ScenarioError, match=r"data\.trace and data\.lengths are given"):
        scenario(4096, "64 sequences", trace="debian-code")
    assert load_scenario("quickstart-8gpu", ("data.lengths=4K",)).data.trace is None


def test_learned_positions_are_those_of_a_sequence_not_of_a_pack() -> None:
    model = ("model=gpt3-175b", "model.layers=4", "strategy.name=static")
    shipped = load_scenario("quickstart-8gpu", (*model, "data.lengths=2K", "data.context=8K"))
    assert shipped.model.learned_positions == 2048
    with pytest.raises(InfeasibleError, match="learned positions"):
        load_scenario("quickstart-8gpu", (*model, "data.lengths=4K", "data.context=8K"))
