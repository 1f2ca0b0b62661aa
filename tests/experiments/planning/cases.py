"""Small scenarios and spaces that tests of planning share."""

from __future__ import annotations

from typing import Any

import numpy as np

from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.bands.band import Band
from hdpsim.experiments.planning.search.space import Candidate, Space
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario
from hdpsim.experiments.studies.comparing.compare import run_batches

FEW: dict[str, tuple[object, ...]] = {
    "layout.tp": (1, 2), "layout.pp": (1,), "layout.recompute": ("none", "full"), "layout.sharding": ("zero1",),
    "layout.optimizer_offload": (False,), "strategy.packing": ("in-order",),
}  # fmt: skip


_CHOICES: dict[str, tuple[tuple[object, ...], ...]] = {
    "layout.tp": ((1, 2), (2, 4), (1, 4)),
    "layout.pp": ((1,), (1, 2), (2,)),
    "layout.vpp": ((1,), (1, 2)),
    "layout.sharding": (("zero1",), ("zero1", "zero3")),
    "layout.recompute": (("none", "full"), ("none", "selective"), ("full",)),
    "layout.optimizer_offload": ((False,), (False, True)),
    "strategy.name": (("static", "hdp-opt"), ("static", "hdp-naive"), ("static",), ("hdp-opt",)),
    "strategy.packing": (("in-order", "best-fit"), ("in-order",)),
    "layout.cp": (("auto",), (1, 2)),
    "layout.rank_capacity": (("auto",), ("16K tokens",)),
}


def small(seed: int = 0, *, several: bool = False) -> Scenario:
    """A model of few layers on one or two servers, with a batch of unequal sequences, or *several* that differ."""
    random = np.random.default_rng(seed)
    lengths = [
        f"{length} tokens" for length in random.integers(256, 16_384, size=int(random.integers(6, 14)))
    ]
    return resolve_scenario({
        "name": f"small-{seed}",
        "model": {"name": "tiny", "layers": int(random.choice([4, 6, 8])), "hidden": 2048, "heads": 16,
                  "kv_heads": 8, "head_dim": 128, "ffn_hidden": 5632, "vocab": 32_000},
        "cluster": {"node": "hgx-h100-80gb", "gpus": int(random.choice([8, 16]))},
        "layout": {"tp": 2, "recompute": "full"},
        "data": {"trace": "debian-code", "batch": "48K tokens", "context": "16K tokens", "seed": seed}
        if several
        else {"lengths": lengths, "batch": f"{len(lengths)} sequences", "context": "16K tokens"},
        "execution": {"batches": 1},
    })  # fmt: skip


def small_space(seed: int) -> Space:
    random = np.random.default_rng(1000 + seed)
    values = {key: choices[int(random.integers(len(choices)))] for key, choices in _CHOICES.items()}
    return Space(values=values, pinned=frozenset({"data.context"}))


def every_candidate(scenario: Scenario, space: Space) -> list[Candidate]:
    found = []
    for layout in space.layouts(scenario, scenario.cluster):
        try:
            setup = scenario.with_changes(Candidate(changes=layout).overrides).setup()
        except (InfeasibleError, ScenarioError):
            continue
        variants = space.variants(scenario, setup, lambda: 2**14, equal=False)
        found += [Candidate(changes=(*layout, *variant)) for variant in variants]
    return found


def rates(scenario: Scenario, candidates: list[Candidate]) -> list[float]:
    """Throughput of those that can run, each read as a scenario of its own; the best first."""
    found = []
    for candidate in candidates:
        try:
            changed = scenario.with_changes(candidate.overrides)
        except (InfeasibleError, ScenarioError):
            continue
        outcome = run_batches(changed, scenario.batches())
        if outcome.results:
            found.append(outcome.tokens_per_s.mean)
    return sorted(found, reverse=True)


TRAINING: dict[str, Any] = {
    "name": "small",
    "model": {"name": "tiny", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128,
              "ffn_hidden": 5632, "vocab": 32_000},
    "cluster": {"node": "hgx-h100-80gb", "gpus": 16},
    "layout": {"tp": 2},
    "data": {"lengths": ["4K tokens"], "batch": "256 sequences", "context": "4K tokens"},
    "strategy": {"name": "static"},
    "execution": {"batches": 1},
    "campaign": {"seeds": 3},
}  # fmt: skip
"""A small model on two H100 servers, with equal sequences."""


def training(*overrides: str) -> Scenario:
    return resolve_scenario(TRAINING, overrides=overrides)


def band(low: float, high: float) -> Band:
    return Band(low=low, middle=1.0, high=high, alike=1, sources=(), in_sample=0, nearest=0.0,
                median_abs_error=0.0, note="")  # fmt: skip
