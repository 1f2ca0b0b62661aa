"""Memory that a plan leaves free: where the number comes from, and what it does."""

from __future__ import annotations

import numpy as np
import pytest

from hdpsim.experiments.bands.memory_fit import shipped_margin
from hdpsim.experiments.planning.search.search import search
from hdpsim.experiments.planning.search.space import Space
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario

pytestmark = pytest.mark.usefixtures("each_step_once")


@pytest.mark.slow
def test_the_shipped_margin_is_that_of_peaks_that_count_tensors() -> None:
    margin, ratios, sources = shipped_margin(), [], set()
    for record in read_records(shipped_records()):
        peak = record.measured.peak_mem_gb
        found = predict(record.config, memory_only=True).memory if peak is not None else None
        if peak is not None and found is not None and found.gauge == "allocated":
            ratios.append(peak / found.peak_gb)
            sources.add(record.name.rpartition("-")[0])
    assert len(ratios) == margin.records
    assert sources == set(margin.sources)
    assert np.quantile(ratios, margin.quantile) == pytest.approx(margin.measured_over_predicted, abs=2e-3)


def scenario(lengths: list[str]) -> Scenario:
    return resolve_scenario({
        "name": "tight",
        "model": "llama-3-8b",
        "cluster": {"node": "hgx-h100-80gb", "gpus": 16},
        "layout": {"tp": 2, "recompute": "full"},
        "data": {"lengths": lengths, "batch": "32 sequences", "context": "16K tokens"},
        "execution": {"batches": 1},
    })  # fmt: skip


SPACE = Space(
    values={
        "layout.tp": (2,), "layout.pp": (1,), "layout.sharding": ("zero1",),
        "layout.recompute": ("none", "full"), "layout.optimizer_offload": (False,),
        "strategy.packing": ("in-order",), "strategy.name": ("static", "hdp-opt"),
    }
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headroom", "lengths"), [(0.1, ["16K tokens"]), (0.6, ["2K tokens", "16K tokens", "9K tokens"])]
)
def test_the_best_leave_the_headroom_and_what_does_not_is_listed(headroom: float, lengths: list[str]) -> None:
    free, kept = (search(scenario(lengths), SPACE, headroom=share) for share in (0.0, headroom))
    for one in kept.best:
        assert one.memory.total_bytes * (1.0 + headroom) <= one.memory.capacity_bytes
        assert not one.tight
    assert kept.complete
    assert free.best[0].tokens_per_s >= kept.best[0].tokens_per_s
    assert all(one.tight and one.memory.fits for one in kept.on_paper)
    assert not free.on_paper
