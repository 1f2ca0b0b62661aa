"""Adding up gradients of micro-batches: traffic by hand, and what it does to a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ideal_hardware import GPU, HBM, IDEAL, MODEL, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.layer.gradient_accumulation import accumulation_s, product_output_bytes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import GradientAccumulation
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu, stage_contents

TINY = replace(MODEL, layers=4, tied_embeddings=False)


def seconds(layout: Layout, stage: int = 0) -> float:
    held = stage_contents(TINY, layout)[stage][0]
    return accumulation_s(TINY, layout, held, GPU, IDEAL)


@pytest.mark.parametrize(
    ("kind", "gradient_bytes", "traffic"),
    [
        ("fused", 4, 0),
        ("separate", 2, 2 + 2 + 2),  # read the gradient and the sum, write the sum
        ("separate", 4, 2 + 4 + 4),
        ("cast", 4, 2 + 4 + 4 + 4 + 4),  # read and write the copy; read it and the sum, write the sum
    ],
)
def test_bytes_of_a_parameter(kind: GradientAccumulation, gradient_bytes: int, traffic: int) -> None:
    layout = Layout(gradient_accumulation=kind, gradient_bytes=gradient_bytes, tp=2)
    parameters = parameters_per_gpu(TINY, layout, 0).dense
    # all but the last norm
    assert seconds(layout) == pytest.approx(traffic * (parameters - TINY.hidden) / HBM)


def test_stages_add_what_they_hold() -> None:
    layout = Layout(pp=4, gradient_accumulation="separate", gradient_bytes=2)
    table = 6 * TINY.vocab * TINY.hidden / HBM
    layer = seconds(layout, 1)
    assert seconds(layout, 0) == pytest.approx(layer + table)
    assert seconds(layout, 3) == pytest.approx(layer + table)


def test_shards_are_not_worth_counting() -> None:
    assert seconds(Layout(gradient_accumulation="cast", sharding="zero3")) == 0.0


def test_products_write_a_fresh_gradient_unless_they_add() -> None:
    assert product_output_bytes(Layout()) == 8
    assert product_output_bytes(Layout(gradient_bytes=2)) == 4
    assert product_output_bytes(Layout(gradient_accumulation="separate")) == 2
    assert product_output_bytes(Layout(gradient_accumulation="separate", gradient_bytes=2)) == 2
    assert product_output_bytes(Layout(gradient_accumulation="fused", sharding="zero3")) == 2


def test_every_backward_pays_whatever_its_tokens() -> None:
    cluster = ideal_cluster(gpu=GPU)
    row = TERMS.index("small_kernels")
    fused, cast = (
        ideal_cost(model=TINY, cluster=cluster, layout=Layout(gradient_accumulation=kind))
        for kind in ("fused", "cast")
    )
    for tokens in (128, 4096):
        batch = micro_batches([[tokens]])
        forward, backward = (
            cast.terms_s(batch, backward=side)[row, 0, 0] - fused.terms_s(batch, backward=side)[row, 0, 0]
            for side in (False, True)
        )
        assert forward == 0.0
        assert backward == pytest.approx(seconds(Layout(gradient_accumulation="cast")))
