"""Muon's update: products that make the momentum of a matrix orthogonal, on its owner or on every GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FFN, GPU, HBM, HIDDEN, MODEL, PEAK, ideal_cluster, ideal_cost

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Muon, ShardingKind
from hdpsim.cost_models.step.epilogue import epilogue
from hdpsim.cost_models.step.muon import ITERATIONS

LAYERS, KV = 32, 1024
MUON: tuple[Muon, ...] = ("none", "owners")
MATRICES = (
    (HIDDEN, HIDDEN), (KV, HIDDEN), (KV, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, FFN), (HIDDEN, FFN), (HIDDEN, FFN)
)  # fmt: skip
"""Queries, keys, values, output, gate, up, down; the shorter side first."""


def optimizer_s(muon: Muon, ranks: int = 16, slow: bool = False, **switches: object) -> float:
    """Every GPU has all sums of gradients unless said otherwise: nothing is sent for products."""
    switches = {"sharding": "zero1", "gradient_all_reduce": True, **switches}
    layout = Layout(muon=muon, **switches)  # type: ignore[arg-type]
    cluster = ideal_cluster(gpu=GPU) if slow else None
    return float(epilogue(ideal_cost(layout=layout, cluster=cluster), ranks, data_s=0.0).optimizer_s[0])


def flop(m: int, n: int) -> float:
    return ITERATIONS * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)


def test_products_of_every_matrix_by_hand() -> None:
    added = optimizer_s("all") - optimizer_s("none")
    assert added == pytest.approx(LAYERS * sum(flop(*sides) for sides in MATRICES) / PEAK, rel=0.05)


def test_passes_beside_the_products_by_hand() -> None:
    def passes_s(slow: bool) -> float:
        return optimizer_s("all", slow=slow) - optimizer_s("none", slow=slow)

    elements = ITERATIONS * sum(7 * m * m + 5 * m * n for m, n in MATRICES)
    assert passes_s(slow=True) - passes_s(slow=False) > 0.99 * LAYERS * 2 * elements / HBM


def test_owners_share_the_matrices() -> None:
    whole = optimizer_s("all") - optimizer_s("none")
    for ranks in (1, 2, 16):
        share = optimizer_s("owners", ranks) - optimizer_s("none", ranks)
        assert share == pytest.approx(whole / ranks)
    one_layer = [
        float(
            epilogue(ideal_cost(replace(MODEL, layers=1), Layout(muon=muon)), 16, data_s=0.0).optimizer_s[0]
        )
        for muon in MUON
    ]
    longest = one_layer[1] - one_layer[0]  # of seven matrices on 16 ranks: none is divided
    assert longest == pytest.approx(flop(HIDDEN, FFN) / PEAK, rel=0.05)


def test_tensor_parallel_parts_are_made_orthogonal_by_themselves() -> None:
    parts = [
        (HIDDEN, HIDDEN // 2), (KV // 2, HIDDEN), (KV // 2, HIDDEN), (HIDDEN // 2, HIDDEN),
        (HIDDEN, FFN // 2), (HIDDEN, FFN // 2), (FFN // 2, HIDDEN),
    ]  # fmt: skip
    added = optimizer_s("all", tp=2) - optimizer_s("none", tp=2)
    by_hand = LAYERS * sum(flop(*sorted(sides)) for sides in parts) / PEAK
    assert added == pytest.approx(by_hand, rel=0.05)


@given(
    ranks=st.sampled_from([1, 2, 8, 16]),
    sharding=st.sampled_from(["none", "zero1", "zero2", "zero3"]),
    name=st.sampled_from(["llama-7b", "mixtral-8x7b", "deepseek-v3"]),
)
def test_owners_never_compute_more_than_all(ranks: int, sharding: ShardingKind, name: str) -> None:
    def seconds(muon: Muon) -> float:
        layout = Layout(muon=muon, sharding=sharding)
        model = MODEL if name == "llama-7b" else replace(catalog.model(name), layers=4)
        return float(epilogue(ideal_cost(model, layout), ranks, data_s=0.0).optimizer_s[0])

    adam, owners, every = (seconds(muon) for muon in ("none", "owners", "all"))  # links take no time
    assert adam < owners <= every * (1 + 1e-9)


def test_shards_and_weights_are_sent_where_sharding_does_not() -> None:
    cluster = replace(ideal_cluster(), node=catalog.node("hgx-h100"), nodes=2)

    def added_s(muon: Muon, sharding: ShardingKind, **switches: bool) -> float:
        layouts = (Layout(muon=one, sharding=sharding, **switches) for one in (muon, "none"))  # type: ignore[arg-type]
        more, adam = (
            float(epilogue(ideal_cost(layout=layout, cluster=cluster), 16, data_s=0.0).optimizer_s[0])
            for layout in layouts
        )
        return more - adam

    assert added_s("owners", "zero1") == pytest.approx(added_s("owners", "zero2"))
    assert added_s("owners", "none") > added_s("owners", "zero1")
    assert added_s("owners", "zero3") > added_s("owners", "zero1")
    assert added_s("all", "zero3") > added_s("all", "none")
    assert added_s("all", "zero3") == pytest.approx(added_s("all", "zero1"))
    assert added_s("all", "none") == pytest.approx(added_s("all", "zero1", gradient_all_reduce=True))


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_ranks_that_have_one_copy_together_share_its_matrices(sharding: ShardingKind) -> None:
    """As many owners as shards, and nothing is sent beyond them: 8 of 16 ranks as 8 alone."""

    def added_s(muon: Muon, ranks: int, **more: object) -> float:
        of_muon, adam = (
            optimizer_s(one, ranks, sharding=sharding, gradient_all_reduce=False, **more)
            for one in (muon, "none")
        )  # type: ignore[arg-type]
        return of_muon - adam

    for muon in ("owners", "all"):
        assert added_s(muon, 16, shard_ranks=8) == pytest.approx(added_s(muon, 8))  # type: ignore[arg-type]
