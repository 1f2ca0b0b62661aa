"""The output projection and its loss."""

from __future__ import annotations

import pytest
from ideal_hardware import GPU, HBM, MODEL, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.activations import head_activation_bytes_per_token
from hdpsim.cost_models.step.layer_prices import TERMS

LOGITS, TOKENS = TERMS.index("logits"), 4096


def test_gathered_logits_travel_once_and_every_gpu_computes_the_whole_loss() -> None:
    cut, gathered = (
        ideal_cost(layout=Layout(tp=8, gathered_logits=on), cluster=ideal_cluster(gpu=GPU))
        for on in (False, True)
    )
    (before, backward), (after, same) = (
        [side[LOGITS, 0, 0] for side in cost.both_terms_s(micro_batches([[TOKENS]]))]
        for cost in (cut, gathered)
    )
    volume = 2 * MODEL.vocab * TOKENS
    wire_s = float(gathered.collectives.all_gather_s(volume, gathered.collectives.group(8)))
    # read and written once more by the copy; 12 B of a fused loss for the seven parts of the others
    assert after - before == pytest.approx(wire_s + (2 * volume + 12 * 7 / 8 * MODEL.vocab * TOKENS) / HBM)
    assert same == backward


def test_one_gpu_has_nothing_to_gather() -> None:
    alone, gathered = (ideal_cost(layout=Layout(gathered_logits=on)) for on in (False, True))
    batches = micro_batches([[TOKENS]])
    assert (alone.both_terms_s(batches)[0] == gathered.both_terms_s(batches)[0]).all()


def test_gathered_logits_are_kept_whole() -> None:
    cut, gathered = (
        head_activation_bytes_per_token(MODEL, Layout(tp=8, gathered_logits=on), 6.0) for on in (False, True)
    )
    assert gathered - cut == pytest.approx(6 * MODEL.vocab * 7 / 8)
