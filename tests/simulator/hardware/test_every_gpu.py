"""A plain run on one node of every GPU of the catalog: near its roofline, whatever constants its calibration has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.setup import Setup, StrategyOptions
from hdpsim.simulator.step import StepResult, simulate_step

TIMES_S = ("launch_s", "ring_delay_s", "step_fixed_s", "step_layer_s", "micro_batch_fixed_s",
           "kernel_tail_s")  # fmt: skip
"""Constants that a run takes whatever it computes."""
WORST_SLOWDOWN = 3.0


def nodes(gpu: str) -> list[str]:
    return [name for name in catalog.names("node") if catalog.node(name).gpu.name == gpu]


def step(node: str, tp: int, tokens: int, cal: Calibration | None = None) -> StepResult | None:
    """Eight micro-batches of Llama-3-8B on every rank of a node; None where it does not fit."""
    cluster = catalog.cluster_of(node, gpus=catalog.node(node).gpus)
    for recompute in ("none", "full"):
        setup = Setup(
            model=catalog.model("llama-3-8b"),
            cluster=cluster,
            layout=Layout(tp=tp, sharding="zero1", rank_capacity_tokens=tokens, recompute=recompute),
            calibration=cal or calibration(cluster.gpu.calibration),
            context_tokens=tokens,
            strategy=StrategyOptions(name="static"),
        )
        try:
            return simulate_step(setup, np.full(8 * setup.ranks, tokens))
        except InfeasibleError:
            continue
    return None


@pytest.mark.parametrize("gpu", catalog.names("gpu"))
def test_a_plain_run_of_one_node_is_between_25_and_90_percent_mfu(gpu: str) -> None:
    assert nodes(gpu)
    for node in nodes(gpu):
        whole_board = catalog.node(node).board_gpus is None and "pcie" not in gpu
        results = [step(node, tp, 8192) for tp in ((1, 2, 4) if whole_board else (1, 2))]
        fitting = [result.mfu for result in results if result is not None]
        assert fitting
        assert all(0.25 <= mfu <= 0.9 for mfu in fitting), (node, fitting)


@pytest.mark.parametrize("gpu", catalog.names("gpu"))
@pytest.mark.parametrize("tokens", [4096, 8192])
def test_no_fixed_time_makes_a_plain_run_three_times_slower(gpu: str, tokens: int) -> None:
    cal = calibration(catalog.gpu(gpu).calibration)
    free = replace(cal, **dict.fromkeys(TIMES_S, 0.0))
    for tp in (1, 2, 4, 8):
        node = nodes(gpu)[0]
        if catalog.node(node).gpus % tp == 0 and (real := step(node, tp, tokens)) is not None:
            bare = step(node, tp, tokens, free)
            assert bare is not None
            assert real.step_s <= WORST_SLOWDOWN * bare.step_s, tp
