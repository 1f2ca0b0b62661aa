"""What surrounds the micro-batches of a step: planning, loading, gather, synchronisation, optimizer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import (
    GPU,
    HBM,
    HOST,
    IDEAL,
    MODEL,
    NIC,
    ideal_cluster,
    ideal_cost,
    micro_batches,
    shipped_calibrations,
)

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.data_parallel import ComputeWindows
from hdpsim.cost_models.step.epilogue import epilogue, loading_s, planning_s, step_costs
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.step_costs import _repeated
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu

ENDLESS = ComputeWindows(forward_s=np.array([1e6]), backward_s=np.array([1e6]))
RANKS = 128  # all GPUs of 16 nodes of 8
SLOW_MEMORY = ideal_cluster(gpu=GPU)


def test_planning() -> None:
    # 10,000 sequences: 5 us each, 16 B there and back at 1 MB/s; no latency on the ideal fabric
    cal = replace(IDEAL, planner_s_per_sequence=5e-6, metadata_bytes_per_s=1e6)
    assert planning_s(ideal_cost(calibration=cal), 10_000) == pytest.approx(0.05 + 0.32)


def test_planning_crosses_a_tree_of_nodes() -> None:
    # 16 nodes: 4 levels there, 4 back, each at the latency of the widest tier
    cal = replace(IDEAL, network=replace(IDEAL.network, p2p_inter_latency_s=1e-3))
    assert planning_s(ideal_cost(calibration=cal), 0) == pytest.approx(8e-3)
    assert planning_s(ideal_cost(calibration=cal, cluster=ideal_cluster(nodes=1)), 0) == 0.0


def test_loading_everything_everywhere() -> None:
    assert loading_s(ideal_cost(), 32_000_000) == pytest.approx(32.0)  # at 1e6 tokens/s


class TestEpilogue:
    def test_zero1(self) -> None:
        # rings through all 8 NICs of a node: 127/128 of 2 B per parameter gathered, 4 B reduced, at 80 GB/s
        cost = ideal_cost(layout=Layout(sharding="zero1"))
        count = parameters_per_gpu(cost.model, cost.layout, 0).dense
        result = epilogue(cost, RANKS, data_s=3.0)
        assert result.data_s == 3.0
        assert result.parameter_gather_s == pytest.approx([127 / 128 * 2 * count / (8 * NIC)], rel=0.01)
        assert result.gradient_sync_s == pytest.approx([127 / 128 * 4 * count / (8 * NIC)], rel=0.01)

    def test_without_sharding_gradients_are_reduced_everywhere(self) -> None:
        sharded = epilogue(ideal_cost(layout=Layout(sharding="zero1")), RANKS, data_s=0.0)
        whole = epilogue(ideal_cost(layout=Layout(sharding="none")), RANKS, data_s=0.0)
        assert whole.parameter_gather_s.tolist() == [0.0]
        assert whole.gradient_sync_s > sharded.gradient_sync_s

    def test_optimizer_moves_34_bytes_per_parameter_of_the_shard(self) -> None:
        cal = replace(IDEAL, step_fixed_s=0.25, step_layer_s=0.125)
        for sharding, share in (("zero1", 1 / RANKS), ("none", 1.0)):
            cost = ideal_cost(layout=Layout(sharding=sharding), cluster=SLOW_MEMORY, calibration=cal)
            count = parameters_per_gpu(cost.model, cost.layout, 0).dense
            # the shard's update, and 3 passes over all 4 B gradients: zeroed, divided by the number of copies
            expected = 0.25 + 0.125 * cost.model.layers + (34 * share + 12) * count / HBM
            assert epilogue(cost, RANKS, data_s=0.0).optimizer_s == pytest.approx([expected])

    def test_optimizer_on_the_host(self) -> None:
        # 4 B of gradient down and 2 B of weight up at 20 GB/s, 30 B at an eighth of the host's 1 TB/s; norm on the GPU,
        # where all gradients are zeroed and divided
        layout = Layout(optimizer_offload=True)
        count = parameters_per_gpu(ideal_cost().model, layout, 0).dense / RANKS
        expected = count * (4 / HBM + 6 / (2 * HOST) + 30 / (1e12 / 8)) + 12 * count * RANKS / HBM
        cost = ideal_cost(layout=layout, cluster=SLOW_MEMORY)
        assert epilogue(cost, RANKS, data_s=0.0).optimizer_s == pytest.approx([expected])

    def test_tied_embeddings_are_summed_between_first_and_last_stage(self) -> None:
        # two copies, 4 B x 32,000 x 4,096 each, over one NIC: 2 (n - 1) / n = 1 time the volume
        layout = Layout(pp=4)
        tied = replace(MODEL, tied_embeddings=True)
        plain, summed = (
            epilogue(ideal_cost(model=model, layout=layout), RANKS // 4, data_s=0.0, windows=None)
            for model in (MODEL, tied)
        )
        extra = summed.gradient_sync_s - plain.gradient_sync_s
        expected = 4 * MODEL.vocab * MODEL.hidden / NIC
        assert extra == pytest.approx([expected, 0.0, 0.0, expected], rel=0.01)
        alone, same = (epilogue(ideal_cost(model=m), RANKS, data_s=0.0) for m in (MODEL, tied))
        assert same.gradient_sync_s <= alone.gradient_sync_s  # one stage: one table, nothing to sum

    def test_gradients_of_16_bits(self) -> None:
        whole, half = (
            epilogue(ideal_cost(layout=Layout(gradient_bytes=size)), RANKS, data_s=0.0) for size in (4, 2)
        )
        assert half.gradient_sync_s == pytest.approx(whole.gradient_sync_s / 2, rel=0.01)
        assert half.parameter_gather_s == pytest.approx(whole.parameter_gather_s)

    @pytest.mark.parametrize(("kept", "moved"), [(12, 26), (8, 18), (4, 12), (0, 4)])
    def test_the_update_moves_the_states_that_there_are(self, kept: float, moved: float) -> None:
        # Every byte read and written, the new 16-bit weight, and the old one where no 32-bit weights are kept; sums of
        # gradients are read twice, zeroed and scaled (5 x 4 B).
        count = parameters_per_gpu(MODEL, Layout(), 0).dense
        cost = ideal_cost(layout=Layout(optimizer_bytes=kept), cluster=SLOW_MEMORY)
        expected = count / RANKS * (moved + 8) / HBM + 12 * count / HBM
        assert epilogue(cost, RANKS, data_s=0.0).optimizer_s == pytest.approx([expected])

    def test_overlap_hides_all_but_the_last_bucket_of_gradients(self) -> None:
        # 6.7e9 parameters in buckets of 1e6 x 128 ranks: the last of 53 is exposed, and nothing of the gather
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        hidden = epilogue(ideal_cost(), RANKS, data_s=1.0, windows=ENDLESS)
        count = parameters_per_gpu(MODEL, Layout(), 0).dense
        assert hidden.gradient_sync_s == pytest.approx(bare.gradient_sync_s / math.ceil(count / 128e6))
        assert hidden.parameter_gather_s.tolist() == [0.0]

    def test_without_prefetch_the_first_bucket_of_parameters_shows(self) -> None:
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        cost = ideal_cost(layout=Layout(prefetch_gather=False))
        count = parameters_per_gpu(MODEL, Layout(), 0).dense
        shown = epilogue(cost, RANKS, data_s=0.0, windows=ENDLESS).parameter_gather_s
        assert shown == pytest.approx(bare.parameter_gather_s / math.ceil(count / 128e6))

    def test_loading_hides_as_much_of_the_first_gather_as_it_takes(self) -> None:
        first_s = epilogue(
            ideal_cost(layout=Layout(prefetch_gather=False)), RANKS, data_s=0.0, windows=ENDLESS
        ).parameter_gather_s
        for data_s in (0.0, 0.25 * float(first_s[0]), 2.0 * float(first_s[0])):
            shown = epilogue(ideal_cost(), RANKS, data_s=data_s, windows=ENDLESS).parameter_gather_s
            assert shown == pytest.approx(np.maximum(0.0, first_s - data_s))

    def test_without_overlap_all_of_it_shows(self) -> None:
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        off = epilogue(ideal_cost(layout=Layout(dp_overlap=False)), RANKS, data_s=0.0, windows=ENDLESS)
        assert off.gradient_sync_s.tolist() == bare.gradient_sync_s.tolist()
        assert off.parameter_gather_s.tolist() == bare.parameter_gather_s.tolist()

    def test_states_shared_by_a_node_are_gathered_there_and_summed_over_nodes(self) -> None:
        # Reduce-scatter and gather on NVLink, an all-reduce of an eighth over the NIC of every GPU.
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        near = epilogue(ideal_cost(layout=Layout(shard_ranks=8)), RANKS, data_s=0.0)
        count = parameters_per_gpu(MODEL, Layout(), 0).dense
        nodes, nvlink = RANKS // 8, ideal_cluster().gpu.nvlink_bytes_per_s
        across = 2 * 4 * count / 8 * (nodes - 1) / nodes / NIC
        within = 4 * count * 7 / 8 / nvlink
        assert near.gradient_sync_s == pytest.approx([across + within], rel=0.02)
        assert near.parameter_gather_s == pytest.approx([2 * count * 7 / 8 / nvlink], rel=0.02)
        assert near.parameter_gather_s < bare.parameter_gather_s
        assert near.optimizer_s > bare.optimizer_s  # 16 times the states on every GPU
        whole = epilogue(ideal_cost(layout=Layout(shard_ranks=RANKS)), RANKS, data_s=0.0)
        assert whole.gradient_sync_s.tolist() == bare.gradient_sync_s.tolist()

    def test_gradients_summed_on_all_ranks_move_twice(self) -> None:
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        everywhere = epilogue(ideal_cost(layout=Layout(gradient_all_reduce=True)), RANKS, data_s=0.0)
        plain = epilogue(ideal_cost(layout=Layout(sharding="none")), RANKS, data_s=0.0)
        assert everywhere.gradient_sync_s.tolist() == plain.gradient_sync_s.tolist()
        assert everywhere.gradient_sync_s == pytest.approx(2 * bare.gradient_sync_s, rel=0.05)
        assert everywhere.optimizer_s.tolist() == bare.optimizer_s.tolist()

    def test_owners_broadcast_one_after_the_other(self) -> None:
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        owned = epilogue(ideal_cost(layout=Layout(owner_broadcasts=True)), RANKS, data_s=0.0)
        # All of them move what a gather moves, and each starts anew.
        assert 1.0 <= owned.parameter_gather_s[0] / bare.parameter_gather_s[0] <= 1.25
        # With latency every broadcast pays the whole chain: 128 of them, one a rank (160 + 2 matrices).
        cost, one = (
            ideal_cost(layout=Layout(owner_broadcasts=on), calibration=calibration("hopper"))
            for on in (True, False)
        )
        slow = epilogue(cost, RANKS, data_s=0.0).parameter_gather_s
        gathered = epilogue(one, RANKS, data_s=0.0).parameter_gather_s
        group = cost.collectives.group(RANKS, stride=1)
        count = parameters_per_gpu(MODEL, Layout(), 0).dense
        share = float(cost.collectives.broadcast_s(2 * count / RANKS, group))
        assert slow == pytest.approx([RANKS * share])
        assert slow[0] > 1.2 * gathered[0]

    def test_parameters_gathered_after_the_update_all_show(self) -> None:
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        shown = epilogue(ideal_cost(layout=Layout(gather_overlap=False)), RANKS, data_s=0.0, windows=ENDLESS)
        assert shown.parameter_gather_s.tolist() == bare.parameter_gather_s.tolist()
        assert shown.gradient_sync_s[0] < bare.gradient_sync_s[0]

    def test_gradients_summed_after_the_backward_all_show(self) -> None:
        bare = epilogue(ideal_cost(), RANKS, data_s=0.0)
        shown = epilogue(
            ideal_cost(layout=Layout(gradient_overlap=False)), RANKS, data_s=0.0, windows=ENDLESS
        )
        assert shown.gradient_sync_s.tolist() == bare.gradient_sync_s.tolist()
        assert shown.parameter_gather_s[0] < bare.parameter_gather_s[0]

    def test_experts_have_fewer_copies_on_other_nodes(self) -> None:
        # ep = 8 over the 8 GPUs of a node: 16 copies, one per node, each with one NIC
        layout = Layout(ep=8)
        cost = ideal_cost(catalog.model("mixtral-8x7b"), layout)
        held = parameters_per_gpu(cost.model, layout, 0)
        expected = 127 / 128 * 4 * held.dense / (8 * NIC) + 15 / 16 * 4 * held.experts / NIC
        assert epilogue(cost, RANKS, data_s=0.0).gradient_sync_s == pytest.approx([expected], rel=0.01)

    def test_one_rank_synchronises_nothing(self) -> None:
        result = epilogue(ideal_cost(cluster=ideal_cluster(nodes=1)), 1, data_s=0.0)
        assert result.gradient_sync_s.tolist() == [0.0]
        assert result.parameter_gather_s.tolist() == [0.0]

    @given(shipped_calibrations, st.sampled_from(["none", "zero1", "zero2"]), st.sampled_from([1, 2, 4]))
    def test_faster_networks_never_slow(self, name: str, sharding: str, pp: int) -> None:
        layout = Layout(tp=2, pp=pp, sharding=sharding)  # type: ignore[arg-type]
        ranks = RANKS // (2 * pp)
        base, fast = (
            epilogue(
                ideal_cost(layout=layout, cluster=ideal_cluster(nic=k * NIC), calibration=calibration(name)),
                ranks,
                data_s=0.0,
            )
            for k in (1, 2)
        )
        assert np.all(fast.gradient_sync_s <= base.gradient_sync_s)
        assert np.all(fast.parameter_gather_s <= base.parameter_gather_s)


@given(
    shipped_calibrations, st.lists(st.integers(1, 100_000), min_size=1, max_size=4), st.sampled_from([1, 2])
)
def test_terms_add_up_to_the_totals(name: str, lengths: list[int], vpp: int) -> None:
    layout = Layout(tp=2, pp=2, vpp=vpp)
    cost = ideal_cost(layout=layout, calibration=calibration(name))
    costs = step_costs(cost, micro_batches([[length] for length in lengths]), RANKS // 4, data_s=0.0)
    assert (costs.stages, costs.chunks, costs.terms) == (2, vpp, TERMS)
    assert costs.kind.shape == (2, vpp)
    assert costs.forward_s.shape == (len(cost.kinds), len(lengths))
    assert costs.forward_s == pytest.approx(sum(costs.forward_terms_s[row] for row in range(len(TERMS))))
    assert costs.backward_s == pytest.approx(sum(costs.backward_terms_s[row] for row in range(len(TERMS))))
    assert (costs.transfer_s > 0).all()


def test_equal_micro_batches_are_views_of_one_that_nobody_can_write():
    once = np.arange(12.0).reshape(4, 3).T[:, :, None]  # not contiguous
    every = _repeated(once, 5)
    np.testing.assert_array_equal(every, np.broadcast_to(once, (3, 4, 5)))
    assert every.strides[-1] == 0
    with pytest.raises(ValueError, match="read-only"):
        every[0, 0, 0] = 1.0
    assert _repeated(once, 1).shape == once.shape
