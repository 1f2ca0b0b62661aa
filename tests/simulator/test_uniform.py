"""Steps of equal sequences priced without plans are those of simulate_step: times, memory, reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import CALIBRATIONS, MODELS, SHAPES, small_cluster, small_setup

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError, OutOfMemoryError
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, Setup
from hdpsim.simulator.step import StepResult, simulate_step
from hdpsim.simulator.uniform import price_uniform

pytestmark = pytest.mark.usefixtures("each_plan_once")

LARGE = catalog.model("llama-70b")  # of which memory decides


def held_to_a_step(setup: Setup, layouts: list[Layout], sequences: int, tokens: int) -> int:
    """Compare every layout; return how many can run."""
    lengths = np.full(sequences, tokens, dtype=np.int64)
    runs = 0
    for found in price_uniform(setup, layouts, sequences=sequences, tokens=tokens):
        try:
            wanted: StepResult | None = simulate_step(replace(setup, layout=found.layout), lengths)
        except InfeasibleError as error:
            reason = error
            wanted = None
        if wanted is None:
            assert (type(found.refused), str(found.refused)) == (type(reason), str(reason))
            continue
        runs += 1
        assert found.refused is None
        assert found.memory == wanted.memory
        assert found.step_s == pytest.approx(wanted.step_s, rel=1e-12)
        assert found.tokens_per_s == pytest.approx(wanted.tokens_per_s, rel=1e-12)
    return runs


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pp, vpp = draw(st.sampled_from(SHAPES))
    single = ["1f1b", "zb-h1", "zb-h2", "dualpipe"]
    schedule = draw(st.sampled_from(["interleaved", "zb-v"] if vpp > 1 else single if pp > 1 else ["1f1b"]))
    return Layout(
        tp=draw(st.sampled_from([1, 2, 4, 8])),
        pp=pp,
        vpp=vpp,
        cp=draw(st.sampled_from([None, 1, 1, 2, 4])),
        ep=draw(st.sampled_from([1, 1, 2, 4])),
        schedule=schedule,
        sharding=draw(st.sampled_from(["none", "zero1", "zero2", "zero3"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        rank_capacity_tokens=draw(st.sampled_from([None, 512, 4096])),
        attention_kernel=draw(st.sampled_from(["flash", "flash", "unfused"])),
        order=draw(st.sampled_from(["tp-dp-pp", "tp-pp-dp"])),
        dp_overlap=draw(st.booleans()),
        loss_average=draw(st.sampled_from(["step", "micro-batch"])),
        schedule_micro_batches=None if schedule == "dualpipe" else draw(st.sampled_from([None, None, 3])),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        blocking_maxima=draw(st.booleans()),
    )


@settings(max_examples=60)
@given(st.data())
def test_equals_simulate_step(data: st.DataObject) -> None:
    draw = data.draw
    setup = small_setup(
        cluster=small_cluster(
            draw(st.sampled_from([1, 2, 4])), oversubscription=draw(st.sampled_from([1.0, 3.0]))
        ),
        model=draw(st.sampled_from((*MODELS, LARGE))),
        cal=draw(st.sampled_from(CALIBRATIONS)),
        context=1024,
        name="static",
        packing=draw(st.sampled_from(["in-order", "first-fit", "best-fit", "concatenate"])),
        padding=draw(st.booleans()),
        activation_offload=draw(st.sampled_from([0.0, 0.5])),
    )
    memory = MemoryOptions(must_fit=draw(st.booleans()))
    tokens = draw(st.sampled_from([1024, 1024, 512, 300]))
    several = draw(st.lists(layouts(), min_size=1, max_size=4))
    held_to_a_step(replace(setup, memory=memory), several, draw(st.integers(1, 40)), tokens)


@pytest.mark.parametrize(
    "execution",
    [
        ExecutionOptions(executor="engine"),
        ExecutionOptions(jitter=0.1),
        ExecutionOptions(gpu_spread=0.0),
        ExecutionOptions(gpu_spread=0.02),
    ],
)
def test_what_is_drawn_or_played_by_events_is_simulated(execution: ExecutionOptions) -> None:
    setup = replace(small_setup(context=1024, name="static"), execution=execution)
    assert held_to_a_step(setup, [Layout(tp=4, cp=1, rank_capacity_tokens=1024)], 8, 1024) == 1


def test_a_batch_that_does_not_fill_its_packs_is_simulated() -> None:
    setup = small_setup(context=1024, name="static")
    assert held_to_a_step(setup, [Layout(tp=4, cp=1, rank_capacity_tokens=1024)], 7, 512) == 1


def test_reasons_come_back_with_their_layout() -> None:
    setup = replace(small_setup(context=8192, name="static"), model=LARGE)
    wanted: list[dict[str, Any]] = [{"tp": 3}, {"tp": 1, "cp": 1}, {"tp": 8, "pp": 2, "cp": 1}]
    tried = [Layout(rank_capacity_tokens=8192, recompute="full", **switches) for switches in wanted]
    odd, full, fits = price_uniform(setup, tried, sequences=8, tokens=8192)
    assert [one.layout for one in (odd, full, fits)] == tried
    assert "do not divide" in str(odd.refused)
    assert (odd.memory, odd.step_s) == (None, 0.0)
    assert isinstance(full.refused, OutOfMemoryError)
    assert fits.refused is None or isinstance(fits.refused, OutOfMemoryError)
