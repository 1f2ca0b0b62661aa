"""Context parallelism by all-gather and by heads, attention windows of some layers: times and FLOP by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import GPU, HBM, HEADS, HIDDEN, IDEAL, KV_HEADS, MODEL, NIC, NVLINK, PEAK, ideal_cluster

from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost, RingTimes
from hdpsim.cost_models.layer.micro_batches import Groups, MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.flop import attention_pairs, layer_pairs, model_flop_per_token
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError

S, KV = 65536, 2 * KV_HEADS * 128  # tokens; width of keys and values


def attention(
    kind: ContextParallelKind = "ring",
    model: Model = MODEL,
    tp: int = 1,
    *,
    merge_bytes: float = 0.0,
    block_half_tokens: float = 0.0,
) -> AttentionCost:
    where = ideal_cluster(gpu=GPU) if merge_bytes else ideal_cluster()
    layout = Layout(cp_kind=kind, tp=tp)
    cal = replace(IDEAL, merge_bytes_per_element=merge_bytes, attention_block_half_tokens=block_half_tokens)
    return AttentionCost(model, layout, where.gpu, cal, FabricModel(where, IDEAL.network))


def group(cost: AttentionCost, ranks: int, tier: int = 0, *, backward: bool = False) -> RingTimes:
    return cost.times(MicroBatches.one([S], ranks, tier), backward=backward)


@pytest.mark.parametrize("kind", ["all-gather", "gathered-ring", "ulysses", "hybrid", "disaggregated"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_does_its_share_of_the_attention(kind: ContextParallelKind, backward: bool) -> None:
    alone = group(attention(kind), 1, backward=backward)
    shared = group(attention(kind), 8, backward=backward)
    assert alone.wait[0] == alone.merge[0] == 0.0
    assert (shared.merge[0] > 0.0) == (kind == "disaggregated")
    assert shared.attention[0] == pytest.approx(alone.attention[0] / 8, rel=1e-12)
    assert alone.attention[0] == pytest.approx(group(attention(), 1, backward=backward).attention[0])


@pytest.mark.parametrize("kind", ["all-gather", "disaggregated"])
def test_only_backwards_pay_for_keys_that_several_slices_meet(kind: ContextParallelKind) -> None:
    # 16 slices of a sixteenth each, two on a rank: 15 / 2 times all keys more than one slice, of S^2 / 2 pairs in all
    for backward in (False, True):
        free, paid = (
            group(attention(kind, block_half_tokens=half), 8, backward=backward).attention[0]
            for half in (0.0, 64.0)
        )
        assert paid / free == pytest.approx(1 + backward * 64.0 * 15 / S, rel=1e-3)


@pytest.mark.parametrize(
    "kind", ["ring", "all-gather", "gathered-ring", "double-ring", "ulysses", "hybrid", "disaggregated"]
)
def test_many_lengths_in_one_group_cost_what_each_costs(kind: ContextParallelKind) -> None:
    """As the lower bound of a plan asks: one size and tier, an array of tokens."""
    cost, step_s = attention(kind), np.array([1.0, 2.0])
    size, tier = np.array(8.0), np.array(0)
    both = cost.ring(step_s, Groups(np.array([1024.0, 4096.0]), size, tier), backward=False)
    for index, tokens in enumerate((1024.0, 4096.0)):
        one = cost.ring(step_s[index : index + 1], Groups(np.array([tokens]), size, tier), backward=False)
        assert both.wait[index] == pytest.approx(float(one.wait[0]))


@pytest.mark.parametrize(("backward", "copies"), [(False, 0), (True, 16)])
def test_what_disaggregated_ranks_send_is_copied(backward: bool, copies: int) -> None:
    # A document in 16 pieces, two on each of 8 ranks: r + 1 and 16 - r of them seen, 16 - r and r + 1 sent; its queries
    # and outputs go through two buffers. Read and written in 16 bits.
    times = group(attention("disaggregated", merge_bytes=1.0), 8, backward=backward)
    elements = 2 * 2 * S / 8 * HEADS * 128 + (2 * 17 * S / 16 + copies * S / 8) * KV
    assert times.merge[0] == pytest.approx(4 * elements / HBM)


def test_gathered_keys_and_values() -> None:
    gather = 2 * KV * S * 7 / 8 / NVLINK
    assert group(attention("all-gather"), 8).wait[0] == pytest.approx(gather, rel=1e-9)
    assert group(attention("all-gather"), 8, backward=True).wait[0] == pytest.approx(2 * gather, rel=1e-9)


def test_kept_keys_and_values_are_not_gathered_again() -> None:
    where, gather = ideal_cluster(), 2 * KV * S * 7 / 8 / NVLINK
    layout = Layout(cp_kind="all-gather", cp_keep_gathered=True)
    cost = AttentionCost(MODEL, layout, where.gpu, IDEAL, FabricModel(where, IDEAL.network))
    assert group(cost, 8).wait[0] == pytest.approx(gather, rel=1e-9)
    assert group(cost, 8, backward=True).wait[0] == pytest.approx(
        gather, rel=1e-9
    )  # the reduce-scatter alone
    # Between nodes half as much leaves them, too.
    pack = MicroBatches.one([S], 16, 1)
    twice = attention("all-gather").sent(pack, backward=True).sent_bytes[0]
    assert 0.0 < cost.sent(pack, backward=True).sent_bytes[0] == pytest.approx(twice / 2)


@pytest.mark.parametrize("backward", [False, True])
def test_a_gathered_ring_merges_and_hides_its_gather_behind_the_first_step(backward: bool) -> None:
    # keys and values of all 32 heads; the first of 8 steps takes 2 h (S / 8)^2 / PEAK forward, 2.5 times that backward
    gather = 2 * (2 * HIDDEN) * S * 7 / 8 / NVLINK
    step = (2.5 if backward else 1.0) * 2 * HIDDEN * (S / 8) ** 2 / PEAK
    ring = group(attention("gathered-ring", merge_bytes=34.0), 8, backward=backward)
    assert ring.wait[0] == pytest.approx(gather - step, rel=1e-9)
    assert ring.merge[0] == pytest.approx(7 * 34 * HIDDEN * S / 8 / HBM)


def test_heads_for_tokens() -> None:
    # 8 key-value heads go once each to 8 ranks; queries and outputs are 32 x 128 wide
    sent = 2 * (S / 8) * (KV + 2 * HEADS * 128) * 7 / 8
    assert group(attention("ulysses"), 8).wait[0] == pytest.approx(sent / NVLINK, rel=1e-9)
    # to 32 ranks on 4 nodes every key-value head goes four times; 24 of 32 ranks are on other nodes
    sent = 2 * (S / 32) * (4 * KV + 2 * HEADS * 128) * 24 / 32
    assert group(attention("ulysses"), 32, tier=1).wait[0] == pytest.approx(sent / NIC, rel=1e-9)


@pytest.mark.parametrize("backward", [False, True])
def test_disaggregated_halves_hide_what_they_exchange_behind_each_other(backward: bool) -> None:
    # two documents, a half each: all of a document's keys but those that a rank holds come from the other 31 ranks,
    # 24 of them on other nodes; no query moves
    attends = (2.5 if backward else 1.0) * 2 * HIDDEN * S**2 / PEAK / 32
    sent = 2 * KV * (S - S / 32) * 24 / 31 / NIC

    def waits(documents: int, linear_s: float) -> float:
        pack, linear = MicroBatches.one([S] * documents, 32, 1), np.array([linear_s])
        times = attention("disaggregated").times(pack, backward=backward, linear_s=linear)
        assert times.attention[0] == pytest.approx(documents * attends, rel=1e-9)
        return float(times.wait[0])

    behind_attention = max(0.0, sent - attends)
    assert behind_attention < sent
    assert waits(2, 0.0) == pytest.approx(sent + behind_attention, rel=1e-9)
    assert waits(2, sent) == pytest.approx(sent / 2 + behind_attention, rel=1e-9)
    assert waits(2, 2 * sent) == pytest.approx(behind_attention, rel=1e-9)
    assert waits(1, 2 * sent) == pytest.approx(sent, rel=1e-9)  # there is no other half


def test_more_ranks_than_heads_cannot_share_them() -> None:
    with pytest.raises(InfeasibleError, match="16 ranks are more than the 8 heads"):
        group(attention("ulysses", tp=4), 16, tier=1)


class TestWindows:
    alternating = replace(MODEL, sliding_window=1024, full_attention_every=4)

    def test_pairs_by_hand(self) -> None:
        near, everything = 4096 * 1024 - 1024**2 / 2, 4096**2 / 2
        assert float(layer_pairs(self.alternating, 4096)) == 0.75 * near + 0.25 * everything
        assert float(layer_pairs(self.alternating, 512)) == 512**2 / 2
        # chunks of 1024: four triangles; 4096 + 100 tokens: one of 100 more
        assert float(attention_pairs(4096, window=1024, chunked=True)) == 4 * 1024**2 / 2
        assert float(attention_pairs(4196, window=1024, chunked=True)) == 4 * 1024**2 / 2 + 100**2 / 2
        assert float(attention_pairs(2048, window=1024, chunked=True, causal=False)) == 2 * 1024**2

    def test_time_and_flop_shrink_alike(self) -> None:
        for model in (self.alternating, replace(self.alternating, chunked_attention=True)):
            share = float(layer_pairs(model, S) / layer_pairs(MODEL, S))
            assert share < 0.3
            for ranks in (1, 8):
                times = [group(attention(model=m), ranks).attention[0] for m in (model, MODEL)]
                assert times[0] / times[1] == pytest.approx(share, rel=1e-9)
            flop = [model_flop_per_token(m, S).attention for m in (model, MODEL)]
            assert flop[0] / flop[1] == pytest.approx(share, rel=1e-12)

    @given(st.integers(1, 100_000), st.integers(1, 20_000), st.integers(0, 8), st.booleans())
    def test_a_window_never_adds(self, tokens: int, window: int, every: int, chunked: bool) -> None:
        model = replace(MODEL, sliding_window=window, full_attention_every=every, chunked_attention=chunked)
        assert 0 < float(layer_pairs(model, tokens)) <= float(layer_pairs(MODEL, tokens)) * (1 + 1e-12)
        if chunked:
            sliding = replace(model, chunked_attention=False)
            assert float(layer_pairs(model, tokens)) <= float(layer_pairs(sliding, tokens)) * (1 + 1e-12)


def test_hidden_is_what_the_numbers_above_assume() -> None:
    assert HIDDEN == HEADS * 128


@pytest.mark.parametrize("backward", [False, True])
def test_no_rank_attends_with_a_part_of_a_head(backward: bool) -> None:
    """28 heads are 4 for some of 8 ranks, as 32 are: these decide when attention and its all-to-alls end."""
    some, all_heads = (
        group(attention("ulysses", replace(MODEL, heads=heads, kv_heads=heads)), 8, backward=backward)
        for heads in (28, 32)
    )
    assert some.attention[0] == pytest.approx(all_heads.attention[0], rel=1e-12)
    assert some.wait[0] == pytest.approx(all_heads.wait[0], rel=1e-12)


@given(heads=st.integers(1, 64), ranks=st.integers(1, 64))
def test_more_ranks_never_attend_longer_to_whole_heads(heads: int, ranks: int) -> None:
    exchange = attention("ulysses", replace(MODEL, heads=heads, kv_heads=heads))._exchange
    assert exchange is not None
    held = exchange.unevenness([1, ranks, ranks + 1]) * heads / [1, ranks, ranks + 1]
    assert held[0] == heads
    assert held == pytest.approx(-(-heads // np.array([1, ranks, ranks + 1])))
    assert held[1] >= held[2] - 1e-9
