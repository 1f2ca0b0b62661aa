"""Repeated data have no interval, and what the context cuts is said: in every verb, in text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.data_use import data_use
from hdpsim.traces import Trace, global_batches

pytestmark = pytest.mark.usefixtures("each_plan_once", "one_process")

POLICIES = ("chunk", "truncate", "drop")


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(20, 50),
    st.sampled_from(POLICIES),
    st.integers(50, 400),
    st.integers(1, 6),
)
def test_data_are_repeated_as_soon_as_batches_need_more_than_there_is(
    lengths: list[int], context: int, policy: Any, budget: int, count: int
) -> None:
    trace = Trace(np.array(lengths), "t")
    kept = {
        "chunk": sum(lengths),
        "truncate": sum(min(n, context) for n in lengths),
        "drop": sum(n for n in lengths if n <= context),
    }[policy]
    if not kept:
        return
    cut = global_batches(trace, context_tokens=context, policy=policy, budget_tokens=budget)
    batches = tuple(next(cut) for _ in range(count))
    use = data_use("t", trace, batches, context, policy)
    assert use.round_tokens == kept
    assert use.rounds_per_batch == pytest.approx(budget / kept)
    assert use.repeated == (count * budget > kept)
    assert any("repeated" in line for line in use.lines) == use.repeated
    assert 0.0 <= use.long.share <= 1.0
    if max(lengths) <= context:
        assert use.long.share == 0.0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_share_of_long_sequences_is_that_of_the_trace(policy: Any) -> None:
    # 100 and 30 of 200 tokens are in sequences longer than 25.
    trace = Trace(np.array([100, 20, 30, 25, 25]), "t")
    budget = {"chunk": 200, "truncate": 25 + 20 + 25 + 25 + 25, "drop": 70}[policy]
    batch = next(
        global_batches(trace, context_tokens=25, policy=policy, budget_tokens=budget, wrap=policy == "drop")
    )
    use = data_use("t", trace, (batch,), 25, policy)
    assert use.long.share == pytest.approx(130 / 200)
    assert use.long.sequences == 2
    assert not use.repeated


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario whose trace is a third of a batch, with one sequence longer than the context."""
    folder = tmp_path_factory.mktemp("small")
    lengths = [20_000, *range(200, 8_000, 130)]
    (folder / "lengths.csv").write_text("tokens\n" + "\n".join(map(str, lengths)) + "\n")
    (folder / "small.yaml").write_text(
        "model: llama-3-8b\ncluster: {node: hgx-h100-80gb, gpus: 8}\n"
        "layout: {tp: 2, recompute: full, rank_capacity: 8K tokens}\n"
        "data: {trace: lengths.csv, batch: 800K tokens, context: 16K tokens}\nexecution: {batches: 3}\n"
    )
    return folder / "small.yaml"


def asked(*arguments: str) -> str:
    done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    "verb", [("simulate",), ("compare",), ("whatif", "--set", "layout.tp=4"), ("scale", "--gpus", "8,16")]
)
def test_every_verb_says_that_data_are_repeated_and_cut(small: Path, verb: tuple[str, ...]) -> None:
    command = (verb[0], str(small), *verb[1:])
    text = asked(*command)
    assert "times per batch" in text
    assert "longer than the context of 16,384 tokens" in text
    assert " ± 0" not in text
    assert "± = 95" not in text
    document = json.loads(asked(*command, "--json"))
    uses = [document["data"]] if "data" in document else [row["data"] for row in document["results"]]
    for use in uses:
        assert use["repeated"] is True
        assert use["rounds_per_batch"] > 2
        assert use["longer_than_context"]["share_of_tokens"] > 0.01
    results = document["results"]
    for row in results if isinstance(results, list) else [results]:
        assert row["tokens_per_s"]["ci95_half_width"] is None
        assert row["tokens_per_s"]["lowest"] <= row["tokens_per_s"]["mean"] <= row["tokens_per_s"]["highest"]


def test_a_sweep_says_it_too(small: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"base: {small}\ngrid: {{layout.tp: [2, 4]}}\n")
    command = ("sweep", str(sweep), "--store", str(tmp_path / "store"), "--workers", "1")
    text = asked(*command)
    assert "Data repeated in 2 cells" in text
    assert "longer than the context" in text
    rows = json.loads(asked(*command, "--json"))["results"]
    assert all(row["data"]["repeated"] and row["tokens_per_s"]["ci95_half_width"] is None for row in rows)


def test_replay_says_what_the_context_cuts(small: Path) -> None:
    command = (
        "replay", str(small), "--trace", str(small.parent / "lengths.csv"), "--workers", "1",
        "--set", "data.batch=60K tokens",
    )  # fmt: skip
    assert "longer than the context of 16,384 tokens" in asked(*command)
    document = json.loads(asked(*command, "--json"))["results"]
    assert document["longer_than_context"]["share_of_tokens"] > 0.01
