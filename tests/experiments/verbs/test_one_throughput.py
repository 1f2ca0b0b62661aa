"""Every verb means the same by throughput: all tokens over all seconds, though steps differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hdpsim
from hdpsim import Result

pytestmark = pytest.mark.usefixtures("lean_studies", "each_plan_once", "one_process")

TOKENS = 256 * 1024
UNEQUAL = {
    "name": "unequal",
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "nodes": 1},
    "layout": {"tp": 2, "cp": 4, "rank_capacity": "32K tokens", "recompute": "full"},
    "data": {"distribution": "bytescale-github", "batch": f"{TOKENS} tokens", "context": "128K tokens"},
    "execution": {"batches": 4},
    "strategy": {"name": "static"},
}
PINNED = {
    f"layout.{key}": value
    for key, value in {"tp": 2, "pp": 1, "sharding": "zero1", "recompute": "full"}.items()
}

VERBS: dict[str, Callable[[Path], Result]] = {
    "simulate": lambda _: hdpsim.simulate(UNEQUAL),
    "compare": lambda _: hdpsim.compare(UNEQUAL, strategies="static,hdp-opt"),
    "whatif": lambda _: hdpsim.whatif(UNEQUAL, ["layout.rank_capacity=64K tokens", "cluster.node.nic=100Gbps"]),
    "scale": lambda _: hdpsim.scale(UNEQUAL, gpus=[8, 16], strategies="static,hdp-opt"),
    "sweep": lambda folder: hdpsim.sweep(
        {"base": UNEQUAL, "grid": {"strategy.name": ["static", "hdp-opt"]}}, store=folder, workers=1
    ),
    "plan": lambda _: hdpsim.plan(UNEQUAL, PINNED, budget=None, workers=1),
}  # fmt: skip


def test_the_batches_are_unequal() -> None:
    steps = hdpsim.simulate(UNEQUAL).to_dict()["results"]["batches"]
    seconds = [step["step_s"] for step in steps]
    mean_of_rates = sum(TOKENS / one for one in seconds) / len(seconds)
    assert mean_of_rates > 1.001 * TOKENS * len(seconds) / sum(seconds), "or the test below could not fail"


@pytest.mark.parametrize("verb", VERBS)
def test_throughput_is_all_tokens_over_all_seconds(verb: str, tmp_path: Path) -> None:
    frame = VERBS[verb](tmp_path).to_frame()
    frame = frame[frame["tokens_per_s"].notna()]
    assert len(frame)
    for row in frame.to_dict("records"):
        assert row["tokens_per_s"] * row["step_s"] == pytest.approx(TOKENS, rel=1e-9), row
