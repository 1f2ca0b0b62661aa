"""Hosts that check before collectives, asynchronous calls, buckets of DistributedDataParallel, rings over EFA."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import HIDDEN, IDEAL, MODEL, NIC, NVLINK, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.host_launches import (
    HOOKS_BACKWARD,
    HostTime,
    behind_counts_s,
    check_s,
    hooked_matrices,
    ring_step_host_s,
    step_host_s,
)
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.algorithms import LL, SIMPLE, ring_half_s
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.step.data_parallel import filled_buckets, stage_buckets
from hdpsim.cost_models.step.epilogue import epilogue
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu
from hdpsim.errors import ScenarioError

RANKS = 128  # all GPUs of the ideal cluster
CHECKED = replace(IDEAL, network=replace(IDEAL.network, check_local_s=1.0, check_remote_s=10.0))
SLOW_STEPS = replace(ideal_cluster(), node=replace(ideal_cluster().node, ring_step_s=1e-3))


def groups(cluster: Cluster) -> Collectives:
    return Collectives(FabricModel(cluster, IDEAL.network))


class TestHooks:
    """Hooks of Python around modules that gather their parameters (DeepSpeed's ZeRO-3)."""

    HOOKED = Layout(sharding="zero3", module_hooks=True)

    def test_each_matrix_of_a_dense_layer_has_hooks(self) -> None:
        gated = replace(MODEL, gated_mlp=True)
        # queries, keys, values, output projection; gate, up and down projection
        assert hooked_matrices(gated, self.HOOKED, moe=False) == 7
        assert hooked_matrices(replace(gated, gated_mlp=False), self.HOOKED, moe=False) == 6
        assert hooked_matrices(gated, Layout(sharding="zero3"), moe=False) == 0
        assert hooked_matrices(gated, Layout(sharding="zero1", module_hooks=True), moe=False) == 0
        assert hooked_matrices(gated, self.HOOKED.changed(cuda_graphs=True), moe=False) == 0

    @given(experts=st.sampled_from([8, 64]), kernels=st.sampled_from(["indexed", "modules"]))
    def test_each_matrix_of_each_expert_has_hooks_where_experts_are_modules(
        self, experts: int, kernels: str
    ) -> None:
        model = replace(MODEL, gated_mlp=True, experts=experts, top_k=2)
        modules = self.HOOKED.changed(expert_kernels=kernels)
        # attention 4, router 1
        assert hooked_matrices(model, modules, moe=True) == 5 + 3 * experts
        assert hooked_matrices(model, modules, moe=True, of_experts=True) == 3 * experts
        assert hooked_matrices(model, self.HOOKED, moe=True) == 5 + 2  # one matrix of all experts each

    def test_they_are_host_time_and_that_of_experts_is_behind_their_counts(self) -> None:
        model = replace(MODEL, gated_mlp=True, experts=8, top_k=2)
        layout = self.HOOKED.changed(expert_kernels="indexed")
        group, cal = groups(ideal_cluster()).group(1), replace(IDEAL, module_hook_s=1.0)
        host = HostTime(model, layout, group, cal)
        assert host.layer_s(moe=True, backward=False) == 29
        assert host.layer_s(moe=True, backward=True) == pytest.approx(29 * HOOKS_BACKWARD)
        assert behind_counts_s(model, layout, cal) == 24

    def test_a_step_takes_them(self) -> None:
        model = replace(MODEL, gated_mlp=True, experts=8, top_k=2)
        layout, cal = self.HOOKED.changed(expert_kernels="indexed"), replace(IDEAL, module_hook_s=1.0)
        cost = ideal_cost(model, layout, calibration=cal)
        forward = cost.terms_s(micro_batches([[8192]]), backward=False)[TERMS.index("host"), 0, 0]
        assert forward == pytest.approx(29 * model.layers, rel=1e-3)


class TestChecks:
    def test_one_exchange_per_rank(self) -> None:
        # 16 neighbours on 2 nodes of 8: 8 at home, 8 away
        group = groups(ideal_cluster()).group(16)
        assert check_s(group, CHECKED.network) == 8 * 1.0 + 8 * 10.0
        assert check_s(groups(ideal_cluster()).group(1), CHECKED.network) == 0.0

    def test_a_layer_has_four_collectives_forward_and_six_backward(self) -> None:
        group = groups(ideal_cluster()).group(4)
        for sequence_parallel, counts in ((True, (4, 6)), (False, (2, 2))):
            layout = Layout(tp=4, checked_collectives=True, sequence_parallel=sequence_parallel)
            host = HostTime(MODEL, layout, group, CHECKED)
            found = tuple(host.layer_s(moe=False, backward=side) for side in (False, True))
            assert found == tuple(4.0 * count for count in counts)

    def test_they_hide_behind_kernels_that_take_longer(self) -> None:
        network = replace(IDEAL.network, check_local_s=1e-9)
        layout = Layout(tp=8, checked_collectives=True)
        cost = ideal_cost(layout=layout, calibration=replace(IDEAL, network=network))
        assert cost.terms_s(micro_batches([[8192]]), backward=False)[TERMS.index("host"), 0, 0] == 0.0

    def test_the_least_time_of_a_micro_batch_counts_them(self) -> None:
        cost = ideal_cost(layout=Layout(tp=8, checked_collectives=True), calibration=CHECKED)
        assert cost.floor_s == pytest.approx(MODEL.layers * 10 * 8.0)

    def test_every_bucket_of_an_all_reduce_is_checked_no_reduce_scatter_is(self) -> None:
        layout = Layout(checked_collectives=True, bucket_parameters=1e12, sharding="none")
        group_s = 8 * 1.0 + (RANKS - 8) * 10.0
        cost = ideal_cost(layout=layout, calibration=CHECKED)
        assert epilogue(cost, RANKS, data_s=0.0).gradient_sync_s == pytest.approx([group_s])
        scattered = ideal_cost(layout=layout.changed(sharding="zero1"), calibration=CHECKED)
        assert epilogue(scattered, RANKS, data_s=0.0).gradient_sync_s < group_s / 2
        # the mean loss and the norm of gradients
        plain = ideal_cost(layout=layout.changed(checked_collectives=False), calibration=CHECKED)
        both = [epilogue(this, RANKS, data_s=0.0).optimizer_s for this in (cost, plain)]
        assert both[0] - both[1] == pytest.approx([2 * group_s])


class TestBuckets:
    def test_whole_tensors_in_turn(self) -> None:
        # 3 + 4 reach 6; 6 does alone; the last 2 are what is left
        assert filled_buckets([3, 4, 6, 2], 6.0) == 3
        assert filled_buckets([], 6.0) == 0

    def test_llama_7b(self) -> None:
        # down 45.1 M, gate and up 90.2, out 16.8, QKV 25.2 (8 key/value heads), vocabulary 131: limit 40 M closes after
        # down, after gate and up, after out and QKV; head and embedding are buckets of their own
        assert stage_buckets(MODEL, Layout(), 0, 40e6) == 3 * 32 + 2
        assert stage_buckets(MODEL, Layout(pp=2), 1, 40e6) == 3 * 16 + 1
        assert stage_buckets(replace(MODEL, tied_embeddings=True), Layout(), 0, 40e6) == 3 * 32 + 1

    def test_a_stage_without_parameters_sums_nothing(self) -> None:
        # 4 layers of 177 M, an output projection of 2,130 M: all layers on the first stage, none on two others
        model = replace(MODEL, layers=4, vocab=520_000)
        layout = Layout(pp=4, stage_balance="flop", bucket_parameters=40e6, sharding="none")
        found = epilogue(ideal_cost(model=model, layout=layout), RANKS // 4, data_s=0.0)
        empty = [parameters_per_gpu(model, layout, stage).dense == 0 for stage in range(4)]
        assert empty == [False, True, True, False]
        assert [sync == 0.0 for sync in found.gradient_sync_s] == empty

    @given(st.lists(st.integers(1, 100), max_size=20), st.floats(1.0, 300.0))
    def test_no_bucket_is_empty_and_smaller_limits_make_more(self, sizes: list[int], limit: float) -> None:
        count = filled_buckets(sizes, limit)
        assert (count > 0) == bool(sizes)
        assert count <= len(sizes)
        assert filled_buckets(sizes, limit / 2) >= count

    def test_each_pays_the_latency_of_a_ring(self) -> None:
        # 98 rings of 127 steps of 1 ms beside what is on the wire
        layout = Layout(bucket_parameters=40e6)
        count = parameters_per_gpu(MODEL, layout, 0).dense
        slow, fast = (
            epilogue(ideal_cost(layout=layout, cluster=cluster), RANKS, data_s=0.0).gradient_sync_s[0]
            for cluster in (SLOW_STEPS, ideal_cluster())
        )
        assert slow - fast == pytest.approx(98 * 127e-3, rel=5e-3)
        wire_s = 127 / 128 * 4 * count / (8 * NIC)  # NCCL's own overhead of a step is a microsecond or three
        assert wire_s < fast < wire_s + 98 * 127 * 3e-6


class TestAsynchronous:
    def exposed(self, layout: Layout, tokens: float, *, backward: bool, nvlink: float = NVLINK) -> float:
        cluster = ideal_cluster(nvlink=nvlink)
        cost = LayerCost(MODEL, layout, cluster, IDEAL, groups(cluster), moe=False)
        return float(cost.tp_communication_s(np.array([tokens]))[backward][0])

    def test_on_slow_links_whole_products_hide_next_to_nothing(self) -> None:
        plain, asynchronous = (Layout(tp=8), Layout(tp=8, tp_asynchronous=True))
        for backward in (False, True):
            before = self.exposed(plain, 4096, backward=backward, nvlink=NVLINK / 100)
            after = self.exposed(asynchronous, 4096, backward=backward, nvlink=NVLINK / 100)
            assert 0.9 * before < after < before

    def test_the_forwards_reduce_scatter_is_alone(self) -> None:
        # fast links: gathers cost 16 of 64 SMs while they run, reduce-scatters their whole time; 2 pairs
        once = 2 * HIDDEN * 65536 * 7 / 8 / NVLINK / 1000
        layout = Layout(tp=8, tp_asynchronous=True)
        forward = self.exposed(layout, 65536, backward=False, nvlink=1000 * NVLINK)
        assert forward == pytest.approx(2 * (1 + 1 / 4) * once, rel=1e-6)
        # backward: all three of a pair run beside products
        backward = self.exposed(layout, 65536, backward=True, nvlink=1000 * NVLINK)
        assert backward == pytest.approx(2 * 3 / 4 * once, rel=1e-6)

    def test_all_reduces(self) -> None:
        layout = Layout(tp=8, sequence_parallel=False)
        plain, beside = (
            self.exposed(this, 65536, backward=side, nvlink=1000 * NVLINK)
            for this, side in ((layout, True), (layout.changed(tp_asynchronous=True), True))
        )
        assert beside == pytest.approx(plain / 4, rel=1e-6)


class TestCloudNode:
    node = catalog.node("p5.48xlarge")

    def test_rate_of_a_gpu(self) -> None:
        cluster = catalog.cluster_of(self.node, 64)
        rate = FabricModel(cluster, NetworkCalibration()).bytes_per_s(1)
        assert float(rate) == pytest.approx(0.785 * 50e9)

    @pytest.mark.parametrize(
        ("nodes", "bus_gb_per_s"), [(4, 229.0), (8, 176.0), (16, 123.0), (32, 73.0), (64, 44.0)]
    )
    def test_gathers_of_one_gib(self, nodes: int, bus_gb_per_s: float) -> None:
        cluster = catalog.cluster_of(self.node, 8 * nodes)
        group = groups(cluster).group(8 * nodes)
        seconds = float(Collectives(FabricModel(cluster, NetworkCalibration())).all_gather_s(2.0**30, group))
        bus = 2.0**30 * (1 - 1 / group.ranks) / seconds / 1e9
        assert bus == pytest.approx(bus_gb_per_s, rel=0.15)

    def test_a_step_of_the_ring_bounds_every_protocol_between_nodes(self) -> None:
        for protocol in (LL, SIMPLE):
            across = groups(SLOW_STEPS)
            assert float(ring_half_s(1.0, across.wires(across.group(16)), protocol)) == pytest.approx(
                15e-3, rel=1e-2
            )
            assert float(ring_half_s(1.0, across.wires(across.group(8)), protocol)) < 1e-3

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("nic_efficiency", 1.5),
            ("collective_share", 0),
            ("host_time", 0),
            ("host_time", -1),
            ("board_gpus", 4),
        ],
    )
    def test_shares_and_times_that_cannot_be_are_refused(
        self, tmp_path: Path, key: str, value: float
    ) -> None:
        bad = tmp_path / "cluster.yaml"
        bad.write_text(f"nodes: 1\nnode:\n  like: p5-h100-80gb\n  {key}: {value}\n")
        with pytest.raises(ScenarioError, match=key):
            catalog.load_cluster(bad)


class TestGraphsOfAnIteration:
    CAL = replace(IDEAL, step_fixed_s=1.0, step_layer_s=0.5, micro_batch_fixed_s=8.0)

    @pytest.mark.parametrize(
        ("layout", "pass_s", "step_s"),
        [
            (Layout(pp=2), 4.0, 1.0 + 16 * 0.5),
            (Layout(pp=2, cuda_graphs=True), 4.0, 1.0 + 16 * 0.5),
            (Layout(pp=2, cuda_graph_scope="iteration"), 4.0, 1.0 + 16 * 0.5),  # no graphs at all
            (Layout(pp=2, cuda_graphs=True, cuda_graph_scope="iteration"), 0.0, 1.0 + 16 * 0.25),
        ],
    )
    def test_one_launch_for_all_passes(self, layout: Layout, pass_s: float, step_s: float) -> None:
        cost = ideal_cost(layout=layout, calibration=self.CAL)
        host = cost.terms_s(micro_batches([[4096]]), backward=False)[TERMS.index("host")]
        assert host == pytest.approx(np.full_like(host, pass_s))
        assert step_host_s(MODEL, layout, cost.layers_by_stage, self.CAL) == pytest.approx([step_s, step_s])


def test_a_pair_of_a_board_without_a_switch_has_a_third_of_the_links() -> None:
    four = replace(ideal_cluster().node, gpus=4, nics=4)
    fabrics = [
        FabricModel(replace(ideal_cluster(), node=node), IDEAL.network)
        for node in (four, replace(four, board_gpus=4))
    ]
    switched, board = (Collectives(fabric) for fabric in fabrics)
    for gpus, slower in ((2, 3.0), (3, 1.5), (4, 1.0)):
        group = switched.group(gpus)
        for call in ("all_gather_s", "reduce_scatter_s", "all_to_all_s"):
            times = [float(getattr(this, call)(1e12, group)) for this in (switched, board)]
            assert times[1] / times[0] == pytest.approx(slower, rel=1e-3)
    rates = [float(fabric.bytes_per_s(0)) for fabric in fabrics]
    assert rates[0] / rates[1] == pytest.approx(3.0)


def test_collectives_of_a_share_of_the_links_take_longer_sends_do_not() -> None:
    whole = ideal_cluster()
    quarter = replace(whole, node=replace(whole.node, collective_share=0.25))
    fabrics = [FabricModel(cluster, IDEAL.network) for cluster in (whole, quarter)]
    gathers = [Collectives(fabric) for fabric in fabrics]
    # one GPU of each of 16 nodes: a gather takes four times as long, and an all-to-all
    group = gathers[0].group(16, stride=8)
    for call in ("all_gather_s", "reduce_scatter_s", "all_to_all_s"):
        all_links, one = (float(getattr(collectives, call)(1e9, group)) for collectives in gathers)
        assert one == pytest.approx(4 * all_links, rel=1e-6)
    assert fabrics[0].bytes_per_s(1) == fabrics[1].bytes_per_s(1)


def test_launches_take_as_long_as_the_processor_needs() -> None:
    cal = replace(IDEAL, launch_s=1e-3, expert_launch_s=2e-3, expert_loop_s=5e-3)
    model, layout = catalog.model("mixtral-8x7b"), Layout(expert_kernels="separate")
    plain = ideal_cost(model, layout, calibration=cal)
    untuned = layout.changed(untuned_for_arm=True)
    for asked, arm, factor in (
        (layout, False, 1.2),
        (untuned, False, 1.2),
        (layout, True, 1.2 * 1.3),
        (untuned, True, 1.2 * 1.3 * 1.84),
    ):
        node = replace(plain.cluster.node, host_time=1.2, arm_host=arm)
        slow = MicroBatchCost(model, asked, replace(plain.cluster, node=node), cal)
        assert slow.floor_s == pytest.approx(factor * plain.floor_s)


class TestRingSteps:
    def test_launches_by_hand(self) -> None:
        # eager: attention, 10 of merging, 3 of halves, 4 messages of 3; back: 3 + 3 + 4 and 8 messages.
        # fused: 3 and 2; 6 and 2. packed: 4 and 3 more.
        cal = replace(IDEAL, launch_s=1.0)
        for kernels, forward, backward in (
            ("eager", 26.0, 34.0),
            ("fused", 9.0, 12.0),
            ("packed", 13.0, 15.0),
        ):
            layout = Layout(cp_ring_kernels=kernels)
            assert ring_step_host_s(layout, cal, backward=False) == forward
            assert ring_step_host_s(layout, cal, backward=True) == backward

    def test_a_graph_has_no_launches(self) -> None:
        cal = replace(IDEAL, launch_s=1.0)
        assert ring_step_host_s(Layout(cuda_graphs=True), cal, backward=True) == 0.0

    def test_a_step_takes_its_launches_where_blocks_are_small_and_nothing_more_where_they_are_long(
        self,
    ) -> None:
        free, bound = (
            ideal_cost(calibration=replace(IDEAL, launch_s=launch_s)).attention for launch_s in (0.0, 1e-3)
        )
        for tokens, hidden in ((64, False), (4_000_000, True)):
            batch = micro_batches([[tokens]], group_size=[8])
            quick, slow = (cost.times(batch, backward=False) for cost in (free, bound))
            assert (slow.wait[0] == quick.wait[0]) == hidden
            if not hidden:
                assert slow.total[0] - slow.attention[0] / 8 == pytest.approx(7 * 9e-3, rel=1e-3)
