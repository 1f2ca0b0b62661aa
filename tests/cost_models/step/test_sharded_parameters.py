"""ZeRO-3, FSDP and HSDP: what gathers and reductions of every layer add to compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import (
    FAST_MEMORY_GPU,
    GPU,
    HBM,
    IDEAL,
    MODEL,
    NIC,
    NVLINK,
    ideal_cluster,
    ideal_cost,
    micro_batches,
)

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.data_parallel import ComputeWindows
from hdpsim.cost_models.step.epilogue import epilogue
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.sharded_parameters import copy_in_bytes, given_back, overlapped_s
from hdpsim.cost_models.transformer.layers import layer_shards
from hdpsim.cost_models.transformer.parameters import layer_shard, parameters_per_gpu
from hdpsim.errors import InfeasibleError

RANKS = 128
GATHER, REDUCE, SMALL = (TERMS.index(term) for term in ("layer_gather", "layer_reduce", "small_kernels"))
LAYER, VOCABULARY = layer_shard(MODEL, Layout(), moe=False)[0], MODEL.vocab * MODEL.hidden


def terms(
    tokens: int, *, cal: Any = IDEAL, cluster: Any = None, model: Any = MODEL, **layout: Any
) -> tuple[Any, Any]:
    """Forward and backward terms of one stage and micro-batch."""
    cost = ideal_cost(model, layout=Layout(sharding="zero3", **layout), calibration=cal, cluster=cluster)
    forward, backward = cost.both_terms_s(micro_batches([[tokens]]))
    return forward[:, 0, 0], backward[:, 0, 0]


def wire_s(layers: float, vocabularies: int, element_bytes: int) -> float:
    """Gathers (2 B) or reductions (4 B) of so many units, each a collective of its own over all 128 GPUs."""
    collectives = ideal_cost().collectives
    group = collectives.group(RANKS)
    layer, vocabulary = (
        float(collectives.all_gather_s(element_bytes * count, group, in_place=True))
        for count in (LAYER, VOCABULARY)
    )
    return layers * layer + vocabularies * vocabulary


def test_exposed_when_compute_is_short() -> None:
    # 1 token: compute takes no time beside 5 ms of gather a layer; embedding and head are two units of the stage
    forward, backward = terms(1)
    assert forward[GATHER] == pytest.approx(wire_s(32, 2, 2), rel=0.02)
    assert forward[REDUCE] == 0.0
    # the first gather of the backward is hidden by the head's
    assert backward[GATHER] == pytest.approx(wire_s(31, 0, 2), rel=0.02)
    assert backward[REDUCE] == pytest.approx(wire_s(32, 2, 4), rel=0.02)


def test_a_table_of_positions_goes_with_the_embedding() -> None:
    # as many positions as words: the embedding's unit is two tables, the head's is one
    model = replace(MODEL, learned_positions=MODEL.vocab)
    cost = ideal_cost(model, layout=Layout(sharding="zero3"))
    forward, backward = (each[:, 0, 0] for each in cost.both_terms_s(micro_batches([[1]])))
    assert forward[GATHER] == pytest.approx(wire_s(32, 3, 2), rel=0.02)
    assert backward[REDUCE] == pytest.approx(wire_s(32, 3, 4), rel=0.02)


# as GPT-3 has them: 3 h^2, h^2, 4 h^2 and 4 h^2 weights
FOUR = replace(MODEL, gated_mlp=False, ffn_hidden=4 * MODEL.hidden, kv_heads=MODEL.heads)


@pytest.mark.parametrize(("reuse", "again"), [(0.5, 8 / 12), (7.5, 8 / 12), (8.5, 4 / 12), (23, 0.0)])
def test_matrices_far_from_their_backward_are_gathered_again(reuse: float, again: float) -> None:
    # behind QKV, output, up and down are 9, 8, 4 and 0 h^2, passed twice: 18, 16, 8 and 0
    size = FOUR.hidden**2
    assert given_back(layer_shards(FOUR, Layout(), moe=False), reuse * size) == pytest.approx(again)
    layout: dict[str, Any] = {"recompute": "full", "dp_overlap": False}
    stays, back = (terms(1, model=FOUR, reuse_parameters=limit, **layout) for limit in (None, reuse * size))
    assert back[1][GATHER] == pytest.approx((1 + again) * stays[1][GATHER])
    assert back[1][REDUCE] == stays[1][REDUCE]
    assert back[0][GATHER] == stays[0][GATHER]


@given(st.floats(1.0, 1e12))
def test_of_alike_tensors_a_whole_number_is_given_back(reuse: float) -> None:
    shards = layer_shards(MODEL, Layout(), moe=False)
    sizes = [shard.weights / shard.matrix.tensors for shard in shards for _ in range(shard.matrix.tensors)]
    behind = [sum(sizes[place + 1 :]) for place in range(len(sizes))]
    one_by_one = sum(size for size, rest in zip(sizes, behind, strict=True) if 2 * rest >= reuse)
    assert given_back(shards, reuse) == pytest.approx(one_by_one / sum(sizes))


def test_lists_of_every_ranks_piece_are_copied_one_by_one() -> None:
    # 32 layers of 5 matrices (QKV, output, gate, up, down), 128 ranks, 10 us each: 0.2048 s; embedding and head 2.56 ms
    cal = replace(IDEAL, launch_s=1e-5)
    layout: dict[str, Any] = {"dp_overlap": False, "cuda_graphs": True}
    flat, lists = (terms(1000, cal=cal, gather_lists=on, **layout) for on in (False, True))
    layers_s, vocabulary_s = 32 * 5 * RANKS * 1e-5, 2 * RANKS * 1e-5
    assert lists[0][GATHER] - flat[0][GATHER] == pytest.approx(layers_s + vocabulary_s)
    assert lists[1][GATHER] - flat[1][GATHER] == pytest.approx(layers_s)
    assert lists[1][REDUCE] - flat[1][REDUCE] == pytest.approx(layers_s + vocabulary_s)
    assert lists[0][REDUCE] == 0.0


def test_hidden_but_for_the_edges_when_compute_is_long() -> None:
    forward, backward = terms(200_000)
    assert forward[GATHER] == pytest.approx(wire_s(1, 2, 2), rel=0.02)
    assert backward[GATHER] == pytest.approx(0.0, abs=1e-7)
    assert backward[REDUCE] == pytest.approx(wire_s(1, 2, 4), rel=0.02)


def test_nothing_is_hidden_without_overlap() -> None:
    forward, backward = terms(200_000, dp_overlap=False)
    assert forward[GATHER] == pytest.approx(wire_s(32, 2, 2), rel=0.02)
    assert backward[GATHER] == pytest.approx(wire_s(32, 0, 2), rel=0.02)
    assert backward[REDUCE] == pytest.approx(wire_s(32, 2, 4), rel=0.02)


def test_gradients_of_16_bits_take_half() -> None:
    whole, half = (terms(1, gradient_bytes=size)[1] for size in (4, 2))
    assert whole[REDUCE] - half[REDUCE] == pytest.approx(wire_s(32, 2, 4) - wire_s(32, 2, 2), rel=0.02)
    assert half[GATHER] == pytest.approx(whole[GATHER], rel=0.02)


def test_recomputation_hides_more() -> None:
    tokens = 3_000
    bare, again = terms(tokens)[1], terms(tokens, recompute="full")[1]
    assert again[GATHER] + again[REDUCE] < bare[GATHER] + bare[REDUCE]


def test_collectives_slow_the_compute_beside_them() -> None:
    # 10 % of every hidden second: 31 gathers forward, 31 gathers and reductions backward
    cal = replace(IDEAL, overlap_slowdown=0.1)
    (forward, backward), (plain_forward, plain_backward) = terms(200_000, cal=cal), terms(200_000)
    assert forward[GATHER] - plain_forward[GATHER] == pytest.approx(0.1 * wire_s(31, 0, 2), rel=0.02)
    added = (backward - plain_backward)[[GATHER, REDUCE]].sum()
    assert added == pytest.approx(0.1 * (wire_s(31, 0, 2) + wire_s(31, 0, 4)), rel=0.02)


def test_shards_inside_a_node_use_nvlink_and_replicas_sum_once_a_step() -> None:
    # 8 ranks of a node share a copy: rings over NVLink; 16 replicas of every shard, one GPU per node
    forward, _ = terms(1, shard_ranks=8)
    assert forward[GATHER] == pytest.approx(7 / 8 * 2 * (32 * LAYER + 2 * VOCABULARY) / NVLINK, rel=0.02)
    layout = Layout(sharding="zero3", shard_ranks=8)
    count = parameters_per_gpu(MODEL, layout, 0).dense
    result = epilogue(ideal_cost(layout=layout), RANKS, data_s=0.0)
    assert result.parameter_gather_s.tolist() == [0.0]
    assert result.gradient_sync_s == pytest.approx([2 * 15 / 16 * 4 * count / 8 / NIC], rel=0.02)


@pytest.mark.parametrize("gradient_all_reduce", [False, True])
def test_zero2_may_sum_in_every_backward(gradient_all_reduce: bool) -> None:
    once = Layout(sharding="zero2", gradient_all_reduce=gradient_all_reduce, gradient_accumulation="cast")
    every = once.changed(sum_every_micro_batch=True)
    costs = [ideal_cost(layout=layout) for layout in (once, every)]
    (_, summed), (forward, backward) = (
        [side[:, 0, 0] for side in cost.both_terms_s(micro_batches([[1]]))] for cost in costs
    )
    # what a reduce-scatter of 4 B sends, or twice as much
    assert backward[REDUCE] == pytest.approx((1 + gradient_all_reduce) * wire_s(32, 2, 4), rel=0.05)
    assert forward[[GATHER, REDUCE]].sum() == backward[GATHER] == 0.0
    # neither a sum after the last one, nor kernels that add up, nor a buffer to zero and divide
    assert backward[SMALL] < summed[SMALL]
    before, after = (epilogue(cost, RANKS, data_s=0.0) for cost in costs)
    assert after.gradient_sync_s.tolist() == [0.0] != before.gradient_sync_s.tolist()
    assert after.parameter_gather_s == before.parameter_gather_s
    assert after.optimizer_s < before.optimizer_s


def test_sums_in_every_backward_hide_as_layers_compute_and_meet() -> None:
    layout = Layout(sharding="zero2", sum_every_micro_batch=True, gradient_bytes=2)
    shown = []
    for gpu in (FAST_MEMORY_GPU, GPU):
        for on in (True, False):
            cost = ideal_cost(layout=layout.changed(gradient_overlap=on), cluster=ideal_cluster(gpu=gpu))
            assert cost.meets_after == "loss"
            shown.append(cost.both_terms_s(micro_batches([[200_000]]))[1][REDUCE, 0, 0])
    # into a bucket 2 + 2, put in order and divided 2 + 2 each
    copies_s = 12 * (32 * LAYER + 2 * VOCABULARY) / HBM
    assert shown[:2] == pytest.approx([wire_s(1, 2, 2), wire_s(32, 2, 2)], rel=0.02)
    assert np.subtract(shown[2:], shown[:2]) == pytest.approx(copies_s, rel=1e-5)


def summed_at_once_s(layout: Layout) -> float:
    """One reduce-scatter of 4 B for each parameter over all 128 GPUs."""
    collectives = ideal_cost().collectives
    volume = 4 * parameters_per_gpu(MODEL, layout, 0).dense
    return float(collectives.reduce_scatter_s(volume, collectives.group(RANKS), in_place=True))


def test_whole_gradients_are_summed_once_a_step() -> None:
    usual = Layout(sharding="zero3")
    whole = usual.changed(whole_gradients=True, gradient_accumulation="separate")
    every, once = (ideal_cost(layout=layout, cluster=ideal_cluster(gpu=GPU)) for layout in (usual, whole))
    (gathered, summed), (forward, backward) = (
        [side[:, 0, 0] for side in cost.both_terms_s(micro_batches([[1]]))] for cost in (every, once)
    )
    assert forward[GATHER] == gathered[GATHER]
    assert 0.85 * summed[GATHER] < backward[GATHER] < summed[GATHER]  # all that compute hides is gathers
    assert backward[REDUCE] == 0.0 < summed[REDUCE]
    # a gradient of 2 B is read, its sum of 4 B read and written
    parameters = 32 * LAYER + 2 * VOCABULARY
    assert backward[SMALL] - summed[SMALL] == pytest.approx(10 * parameters / HBM, rel=1e-6)
    after, before = (epilogue(cost, RANKS, data_s=0.0) for cost in (once, every))
    assert after.gradient_sync_s == pytest.approx([summed_at_once_s(whole)])
    assert before.gradient_sync_s.tolist() == before.parameter_gather_s.tolist() == [0.0]
    assert after.parameter_gather_s.tolist() == [0.0]
    assert after.optimizer_s == before.optimizer_s


@given(backward_s=st.floats(0.0, 100.0))
def test_sums_of_whole_gradients_hide_where_gathers_leave_the_network(backward_s: float) -> None:
    cost = ideal_cost(layout=Layout(sharding="zero3", whole_gradients=True))
    windows = ComputeWindows(forward_s=np.array([0.0]), backward_s=np.array([backward_s]))
    shown = epilogue(cost, RANKS, data_s=0.0, windows=windows).gradient_sync_s
    gathers_s, sums_s = wire_s(32, 0, 2), summed_at_once_s(cost.layout)
    # all but the last layer's sum runs beside what the backward's gathers leave
    hidden_s = min(max(0.0, backward_s - gathers_s), sums_s * 31 / 32)
    assert shown == pytest.approx([sums_s - hidden_s])


def test_without_replicas_nothing_is_left_for_the_end_of_the_step() -> None:
    result = epilogue(ideal_cost(layout=Layout(sharding="zero3")), RANKS, data_s=0.0)
    assert result.gradient_sync_s.tolist() == result.parameter_gather_s.tolist() == [0.0]


def test_shards_must_divide_the_ranks() -> None:
    with pytest.raises(InfeasibleError, match=r"shard_ranks = 48 does not divide the 128 ranks"):
        ideal_cost(layout=Layout(sharding="zero3", shard_ranks=48))


def test_one_rank_gathers_nothing() -> None:
    forward, backward = terms(100, tp=8, cluster=ideal_cluster(nodes=1))
    assert forward[[GATHER, REDUCE]].sum() == backward[[GATHER, REDUCE]].sum() == 0.0


def test_other_shardings_have_no_layer_traffic() -> None:
    for sharding in ("none", "zero1", "zero2"):
        cost = ideal_cost(layout=Layout(sharding=sharding))
        both = cost.both_terms_s(micro_batches([[100]]))
        assert sum(side[[GATHER, REDUCE]].sum() for side in both) == 0.0


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("copies", "sums", "out", "into"),
    [
        # copied as it is summed: 2 + 4, 2 + 2
        ("both", 4, 4, 6),
        ("both", 2, 4, 4),
        # into a bucket 2 + 4, 2 + 2, put in order and divided 4 + 4, 2 + 2 each
        ("buckets", 4, 4, 22),
        ("buckets", 2, 4, 12),
        # joined 2 + 2, cast 2 + 4, divided 4 + 4; joined 2 + 2, divided 2 + 2
        ("gradients", 4, 0, 18),
        ("gradients", 2, 0, 8),
        ("none", 4, 0, 0),
    ],
)
def test_copies_around_the_collectives_hide_nowhere(
    copies: str, sums: int, out: int, into: int, hidden: bool
) -> None:
    # a layer of 100,000 tokens has room for every collective, but not for kernels
    fast, slow = (
        terms(
            100_000 if hidden else 1,
            shard_copies=copies,
            gradient_bytes=sums,
            dp_overlap=hidden,
            cluster=ideal_cluster(gpu=gpu),
        )
        for gpu in (FAST_MEMORY_GPU, GPU)
    )
    forward, backward = (after - before for before, after in zip(fast, slow, strict=True))
    layers = 32 * LAYER
    # memory a million times as fast takes a millionth of the time
    assert forward[GATHER] == pytest.approx(out * (layers + 2 * VOCABULARY) / HBM, rel=2e-6)
    assert backward[GATHER] == pytest.approx(out * layers / HBM, rel=2e-6)
    assert backward[REDUCE] == pytest.approx(into * (layers + 2 * VOCABULARY) / HBM, rel=3e-6)


def test_casts_take_longer_than_copies_of_as_many_bytes() -> None:
    one, more = (replace(IDEAL, cast_factor=factor) for factor in (1.0, 1.5))
    # (2 + 4) B half as much again; in 16 bits nothing changes its type
    assert copy_in_bytes("both", 4, more) - copy_in_bytes("both", 4, one) == 3.0
    assert copy_in_bytes("gradients", 4, more) - copy_in_bytes("gradients", 4, one) == 3.0
    for copies in ("both", "gradients"):
        assert copy_in_bytes(copies, 2, more) == copy_in_bytes(copies, 2, one)  # type: ignore[arg-type]


seconds = st.floats(0.0, 1e3)


@given(seconds, seconds, st.floats(0.0, 1.0))
def test_overlap_is_between_the_longer_and_the_sum(compute: float, transfer: float, slowdown: float) -> None:
    both = float(overlapped_s(np.array(compute), transfer, slowdown))
    assert max(compute, transfer) <= both * (1 + 1e-12)
    assert both <= (compute + transfer) * (1 + 1e-12)


@given(st.integers(1, 50_000), st.sampled_from([8, 16, 32, 128]))
def test_overlap_never_costs_more_than_none(tokens: int, shard_ranks: int) -> None:
    cal = replace(IDEAL, overlap_slowdown=0.2)
    bare, hidden = (
        sum(
            side[[GATHER, REDUCE]].sum()
            for side in terms(tokens, cal=cal, shard_ranks=shard_ranks, dp_overlap=on)
        )
        for on in (False, True)
    )
    assert hidden <= bare * (1 + 1e-12)
