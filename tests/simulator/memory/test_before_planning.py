"""A batch that fills a pipeline whatever its plan is refused before it is planned, if memory has no room for that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_setups import small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import OutOfMemoryError
from hdpsim.simulator import planning
from hdpsim.simulator.planning import least_micro_batches, plan_batch, planning_problem
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import memory_of

LENGTHS = np.array([4096, 3000, 500, 100, 1024] * 10)


def least(setup: Setup) -> int:
    return least_micro_batches(setup, planning_problem(setup, LENGTHS))


def test_micro_batches_of_a_rank_by_hand() -> None:
    # 16 ranks of 1,024 tokens. The short ones have 10 x 1,624 tokens; the long ones 10 x 7,096, of which a rank holds
    # 8 / 2 x 1,024 (and one to be sure) with all of the 8 layers but two offloaded: (15.9 + 17.3) / 16 = 2.07.
    assert least(small_setup()) == 3
    assert least(small_setup(selective_offloading=False)) == 6  # 87,200 / 1,024 / 16 = 5.3
    assert least(small_setup(capacity=8192)) == 1
    free = small_setup()
    assert least(replace(free, layout=free.layout.changed(rank_capacity_tokens=None))) == 1
    assert least(small_setup(name="static")) == least(small_setup(communicators="per-group")) == 1


@pytest.mark.parametrize("name", ["hdp-naive", "hdp-balance", "hdp-opt", "wlb-llm"])
@pytest.mark.parametrize("offloading", [True, False])
def test_no_plan_has_fewer(name: str, offloading: bool) -> None:
    for pp in (1, 2):
        setup = small_setup(name=name, layout=Layout(pp=pp), selective_offloading=offloading)
        plan, _, _ = plan_batch(setup, LENGTHS)
        assert int(np.diff(plan.order_offsets).max()) >= least(setup) > 1


def test_a_pipeline_without_room_is_refused_before_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(layout=Layout(pp=4))
    one, full = (memory_of(setup, 1024, micro_batches=count, sequence_tokens=1) for count in (1, None))
    overheads = setup.memory.overheads
    between = full.capacity_bytes - (one.total_bytes + full.total_bytes) / 2.0
    kept = replace(overheads, cuda_context_bytes=overheads.cuda_context_bytes + between)
    tight = replace(setup, memory=replace(setup.memory, overheads=kept))
    assert memory_of(tight, 1024, micro_batches=1, sequence_tokens=1).fits

    def planned(_: object) -> None:
        raise AssertionError("it was planned")

    monkeypatch.setattr(planning, "make_plan", planned)
    with pytest.raises(OutOfMemoryError, match="1024 tokens per rank need"):
        plan_batch(tight, LENGTHS)
    for roomy in (setup, replace(tight, memory=replace(tight.memory, must_fit=False))):
        with pytest.raises(AssertionError, match="it was planned"):
            plan_batch(roomy, LENGTHS)
