"""A step's memory is that of its stack and its plan; where it does not suffice, the step is refused or marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_setups import MODEL, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.peak import refill_s
from hdpsim.errors import OutOfMemoryError
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import overheads_of
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, memory_of

GIB = 2.0**30
EAGER = overheads_of(Run(RunConfig(gpu="H100-SXM-80G", framework="nanotron")))
LENGTHS = np.full(64, 1024, dtype=np.int64)


def static(memory: MemoryOptions | None = None, **options: object) -> Setup:
    setup = small_setup(name="static", context=1024, **options)  # type: ignore[arg-type]
    return replace(setup, memory=memory or MemoryOptions())


def with_hbm(setup: Setup, hbm_bytes: float) -> Setup:
    node = setup.cluster.node
    gpu = replace(node.gpu, hbm_bytes=hbm_bytes)
    return replace(setup, cluster=replace(setup.cluster, node=replace(node, gpu=gpu)))


def test_a_stack_that_keeps_more_needs_more_and_leaves_less_room() -> None:
    fat = MemoryOptions(overheads=MemoryOverheads(nccl_bytes_per_group=2 * GIB, library_bytes=GIB))
    lean, rich = (simulate_step(static(memory), LENGTHS) for memory in (MemoryOptions(), fat))
    # one group, data parallel: 2 - 0.3 GiB; libraries: 1 - 0.25 GiB
    assert rich.memory.total_bytes - lean.memory.total_bytes == pytest.approx((1.7 + 0.75) * GIB)
    assert rich.step_s == lean.step_s
    free, less = (
        replace(small_setup(layout=Layout(), context=2**24), layout=Layout(), memory=memory)
        for memory in (MemoryOptions(), fat)
    )
    assert capacity_tokens(less) < capacity_tokens(free)


def test_a_step_that_does_not_fit_is_refused_or_marked() -> None:
    small = with_hbm(static(), 1 * GIB)
    with pytest.raises(OutOfMemoryError, match=r"which has 1\.0 GiB"):
        simulate_step(small, LENGTHS)
    marked = simulate_step(replace(small, memory=MemoryOptions(must_fit=False)), LENGTHS)
    assert not marked.memory.fits
    assert any("does not fit" in note and "of 1.0 GiB" in note for note in marked.notes)
    roomy = simulate_step(static(MemoryOptions(must_fit=False)), LENGTHS)
    assert roomy.step_s == marked.step_s
    assert not any("does not fit" in note for note in roomy.notes)


def test_memory_is_that_of_the_micro_batches_of_the_plan() -> None:
    """The first of eight stages holds eight micro-batches, but in a step of two it holds two."""
    piped = static(layout=Layout(pp=8, cp=1))
    few, many = (simulate_step(piped, LENGTHS[: 2 * count]) for count in (2, 16))
    assert few.memory == memory_of(piped, 1024, micro_batches=2)
    assert many.memory == memory_of(piped, 1024)
    first = (memory_of(piped, 1024, micro_batches=count, stage=0).activations for count in (2, 8))
    assert next(first) == pytest.approx(next(first) / 4)


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("capacity", [1024, 4096, None])
def test_a_mesh_needs_memory_for_its_share_of_the_context_however_much_a_rank_could_hold(
    capacity: int | None, stated: bool
) -> None:
    """Four ranks share packs of 4,096 tokens: each holds 1,024 of them, and no batch can give it more."""
    layout = Layout(cp=4 if stated else None)
    setup = small_setup(name="static", context=4096, layout=layout, nodes=1)
    setup = replace(setup, layout=layout.changed(rank_capacity_tokens=capacity))
    step = simulate_step(setup, LENGTHS, mesh_degree=4)
    assert step.memory == memory_of(replace(setup, layout=layout.changed(cp=4)), 1024, micro_batches=8)
    if capacity == 4096 and stated:
        # What such a mesh needs is there, though 4,096 tokens on a rank would not fit.
        tight = with_hbm(setup, step.memory.total_bytes)
        assert not memory_of(tight, 4096).fits
        assert simulate_step(tight, LENGTHS).step_s == step.step_s


def test_scores_are_those_of_the_longest_sequence_of_the_plan() -> None:
    layout = Layout(attention_kernel="unfused")
    short, long = (
        simulate_step(static(layout=layout), np.full(64, tokens, dtype=np.int64)) for tokens in (256, 1024)
    )
    assert short.memory.activations < long.memory.activations


@pytest.mark.parametrize(
    ("of_layout", "of_memory", "noted"),
    [
        ({"recompute_share": 0.5}, {}, False),
        ({"recompute_share": 0.5}, {"selective_share": 0.5}, False),
        ({"recompute_share": 0.5}, {"selective_share": 1.0}, True),
        ({}, {"selective_share": 0.5}, True),
        ({}, {"selective_keeps": ("attention_output",)}, True),
    ],
)
def test_memory_that_does_not_follow_what_time_repeats_says_so(
    of_layout: dict[str, float], of_memory: dict[str, object], noted: bool
) -> None:
    overheads = MemoryOverheads(**of_memory)  # type: ignore[arg-type]
    layout = Layout(recompute="selective", **of_layout)  # type: ignore[arg-type]
    result = simulate_step(static(MemoryOptions(overheads=overheads), layout=layout), LENGTHS)
    assert any("memory follows the first, time the second" in note for note in result.notes) == noted


def test_offloaded_activations_are_in_host_memory() -> None:
    kept, moved = (simulate_step(static(activation_offload=share), LENGTHS).memory for share in (0.0, 1.0))
    assert moved.host_bytes == pytest.approx(kept.activations * (MODEL.layers - 2) / MODEL.layers)
    assert moved.activations == pytest.approx(kept.activations * 2 / MODEL.layers)


def test_a_host_too_small_for_offloaded_activations_says_which_key_helps() -> None:
    setup = static(activation_offload=1.0)
    small = replace(setup.cluster.node, host_memory_bytes=1.0)
    with pytest.raises(OutOfMemoryError, match=r"lower strategy\.activation_offload"):
        simulate_step(replace(setup, cluster=replace(setup.cluster, node=small)), LENGTHS)


@pytest.mark.parametrize("executor", ["replay", "engine"])
@pytest.mark.parametrize("sequences", [64, 72])
def test_a_host_that_runs_into_a_full_memory_waits_in_every_micro_batch(
    executor: str, sequences: int
) -> None:
    """16 ranks, so that of 72 sequences half of the ranks have one more: they wait longest, the others for them."""
    lengths = np.full(sequences, 1024, dtype=np.int64)
    setup = static(
        MemoryOptions(overheads=EAGER),
        layout=Layout(tp=1),
        execution=ExecutionOptions(executor=executor),  # type: ignore[arg-type]
    )
    setup = replace(setup, calibration=replace(setup.calibration, micro_batch_fixed_s=0.0, launch_s=0.0))
    ahead = replace(setup, layout=setup.layout.changed(tp=2))
    free = simulate_step(ahead, lengths)
    assert free.memory.run_ahead > 0.0
    tight = with_hbm(ahead, free.memory.total_bytes + free.memory.run_ahead / 2)
    waiting = simulate_step(tight, lengths)
    once_s = refill_s(waiting.memory, ahead.calibration)
    assert once_s > 0.0
    most = -(-sequences // 8)
    assert waiting.step_s == pytest.approx(free.step_s + most * once_s)
    assert waiting.account_s.sum(axis=0) == pytest.approx(np.full((8, 1), waiting.step_s))
    host = waiting.accounts.index("host")
    added = (waiting.account_s - free.account_s)[host, :, 0]
    assert added.max() == pytest.approx(most * once_s)
    assert added.min() == pytest.approx((sequences // 8) * once_s)
    assert waiting.step_s - free.step_s == pytest.approx(most * once_s)
    assert any(f"{most * once_s:.3g} s of the host's time are waits for memory" in n for n in waiting.notes)
    assert not any("waits for memory" in note for note in free.notes)


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("gib", [4, 10, 40])
def test_a_capacity_that_memory_sets_leaves_room_for_queued_work(tp: int, pp: int, gib: int) -> None:
    setup = with_hbm(small_setup(nodes=4, layout=Layout(tp=tp, pp=pp), context=2**24), gib * GIB)
    layout = setup.layout.changed(rank_capacity_tokens=None)
    setup = replace(setup, layout=layout, memory=MemoryOptions(overheads=EAGER))
    capacity = capacity_tokens(setup)
    there, more = (
        [memory_of(setup, tokens, stage=stage) for stage in range(pp)]
        for tokens in (capacity, capacity + 128 * tp)
    )
    assert max(refill_s(report, setup.calibration) for report in there) < 1e-9
    assert max(report.total_bytes + report.run_ahead for report in more) > gib * GIB
