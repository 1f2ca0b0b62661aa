"""Weight gradients of the output projection behind the last backward: by hand, and which layouts have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ideal_hardware import GPU, MODEL, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.deferred_head import deferred_head_s, drain_s
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost

TINY = replace(MODEL, layers=4, tied_embeddings=False)
LOGITS = TERMS.index("logits")
BATCH = micro_batches([[1024]])


def cost_of(
    *, deferred: bool = True, pp: int = 2, schedule: Schedule = "1f1b", mtp_layers: int = 0
) -> MicroBatchCost:
    layout = Layout(pp=pp, deferred_head_gradient=deferred, schedule=schedule)
    return ideal_cost(
        model=replace(TINY, mtp_layers=mtp_layers), cluster=ideal_cluster(gpu=GPU), layout=layout
    )


def logits_s(cost: MicroBatchCost) -> float:
    return float(cost.terms_s(BATCH, backward=True)[LOGITS].max())


def test_the_drain_is_a_backward_of_every_other_stage() -> None:
    assert drain_s(Layout(pp=4), np.full(4, 2.0)) == pytest.approx(6.0)
    assert drain_s(Layout(pp=4, vpp=3, schedule="interleaved"), np.full(4, 2.0)) == pytest.approx(2.0)


@pytest.mark.parametrize("mtp_layers", [0, 1])
def test_backwards_of_the_head_lose_what_waits(mtp_layers: int) -> None:
    deferred, plain = (cost_of(deferred=switch, mtp_layers=mtp_layers) for switch in (True, False))
    gradient_s = deferred_head_s(deferred, BATCH, 1.0, np.zeros(2))
    assert gradient_s > 0
    assert logits_s(plain) - logits_s(deferred) == pytest.approx(gradient_s)


def test_what_the_drain_does_not_hold_shows() -> None:
    once_s = deferred_head_s(cost_of(), BATCH, 1.0, np.zeros(2))
    assert deferred_head_s(cost_of(), BATCH, 8.0, np.full(2, 3 * once_s)) == pytest.approx(5 * once_s)
    assert deferred_head_s(cost_of(), BATCH, 8.0, np.full(2, 9 * once_s)) == 0.0


@pytest.mark.parametrize(("pp", "schedule"), [(1, "1f1b"), (2, "zb-h1")])
def test_only_pipelines_that_drain_empty_defer(pp: int, schedule: Schedule) -> None:
    deferred, plain = (cost_of(deferred=switch, pp=pp, schedule=schedule) for switch in (True, False))
    assert not deferred.layout.defers_head_gradient
    assert logits_s(deferred) == logits_s(plain)
