"""Routed experts: cut over GPUs of their own, dispatched by fused kernels, hidden behind another micro-batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ideal_hardware import IDEAL, NIC, NVLINK, PEAK, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.experts import (
    ExpertParallel,
    beside_the_other_micro_batch_s,
    parts_of_a_token,
)
from hdpsim.cost_models.layer.host_launches import (
    HostTime,
    backward_launches,
    behind_counts_s,
    expert_loops,
    forward_launches,
    small_kernels,
    tensor_collectives,
)
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout_checks import check_layout
from hdpsim.cost_models.memory.activations import layer_activations
from hdpsim.cost_models.memory.peak import memory_report
from hdpsim.cost_models.network.collectives import Collectives, GroupShape
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.step.epilogue import step_costs
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu
from hdpsim.errors import InfeasibleError

MIXTRAL = catalog.model("mixtral-8x7b")  # hidden 4096, 8 experts of 14336, top 2, no shared expert
T = 8192.0


def layer(layout: Layout, model: Model = MIXTRAL) -> LayerCost:
    where = ideal_cluster()
    return LayerCost(model, layout, where, IDEAL, Collectives(FabricModel(where, IDEAL.network)), moe=True)


def one(values: np.ndarray) -> float:
    return float(values[0])


class TestImbalance:
    def test_the_busiest_gpu_has_more_rows_and_more_to_send(self) -> None:
        tokens = np.array([T])
        even, busy = (layer(Layout(ep=8, expert_imbalance=share)) for share in (1.0, 1.5))
        # two of eight experts a token, one expert a GPU: 1.5 x 2 x 8192 rows of three matrices
        more = 0.5 * 2 * T * 3 * 2 * 4096 * 14336 / PEAK
        assert one(
            busy.gemm_s(tokens, backward=False) - even.gemm_s(tokens, backward=False)
        ) == pytest.approx(more, rel=0.01)
        assert one(busy.expert_all_to_all_s(tokens)) == pytest.approx(
            1.5 * one(even.expert_all_to_all_s(tokens)), rel=0.01
        )

    def test_a_gpu_that_holds_all_experts_meets_all_tokens_however_they_are_routed(self) -> None:
        tokens = np.array([T])
        for layout in (Layout(), Layout(tp=4), Layout(tp=4, etp=4)):
            even, busy = (layer(layout.changed(expert_imbalance=share)) for share in (1.0, 3.0))
            assert one(busy.gemm_s(tokens, backward=True)) == one(even.gemm_s(tokens, backward=True))


class TestCutExperts:
    def test_the_flop_of_a_gpu_do_not_depend_on_the_cut(self) -> None:
        # 8192 / 4 tokens of a GPU, twice routed, three matrices: the same work however experts are cut
        experts = 2 * (T / 4 * 2) * 3 * 4096 * 14336 / PEAK
        for etp, ep in ((1, 8), (2, 8), (4, 4), (4, 8)):
            cost = layer(Layout(tp=4, ep=ep, etp=etp))
            attention = 2 * T * (48 * 128 + 4096) * 4096 / 4 / PEAK
            router = 2 * (T / 4) * 8 * 4096 / PEAK
            whole = one(cost.gemm_s(np.array([T]), backward=False))
            # tiles: the router's 8 columns fill 1/8 of the narrowest
            assert whole == pytest.approx(experts + attention + router, rel=0.02)

    def test_tokens_are_gathered_and_outputs_scattered_over_the_cut(self) -> None:
        tokens = np.array([T])
        whole, cut = (layer(Layout(tp=4, ep=4, etp=etp)) for etp in (1, 4))
        # each way 3/4 of 4 GPUs x 2048 tokens x 2 copies x 4096 x 2 B
        volume = 2 * 0.75 * 4 * (T / 4) * 2 * 4096 * 2
        for backward in (False, True):
            more = one(cut.tp_communication_s(tokens)[backward]) - one(
                whole.tp_communication_s(tokens)[backward]
            )
            assert more == pytest.approx(volume / NVLINK, rel=1e-9)

    def test_uncut_experts_are_todays_whole_ones(self) -> None:
        tokens = np.array([T])
        given_one, auto = layer(Layout(tp=4, ep=8, etp=1)), layer(Layout(tp=4, ep=8))
        for backward in (False, True):
            a, b = (cost.times(tokens, backward)[0] for cost in (given_one, auto))
            for name in ("gemm", "small_kernels", "tp_communication", "expert_all_to_all"):
                assert one(getattr(a, name)) == pytest.approx(one(getattr(b, name)), rel=1e-12)

    def test_an_expert_group_reaches_further_when_experts_are_cut(self) -> None:
        # 8 GPUs of one node, or every fourth GPU over four nodes
        near, far = (
            one(layer(Layout(tp=4, ep=8, etp=etp)).expert_all_to_all_s(np.array([T]))) for etp in (1, 4)
        )
        assert far > 5 * near

    def test_parameters_of_a_gpu(self) -> None:
        experts = 32 * 8 * 3 * 4096 * 14336
        for etp, ep in ((1, 8), (4, 8), (2, 1)):
            held = parameters_per_gpu(MIXTRAL, Layout(tp=4, ep=ep, etp=etp), 0)
            assert held.experts == experts // (etp * ep)

    def test_what_does_not_divide_is_infeasible(self) -> None:
        with pytest.raises(InfeasibleError, match="etp = 3"):
            check_layout(MIXTRAL, Layout(tp=4, etp=3))
        with pytest.raises(InfeasibleError, match="ep x etp"):
            check_layout(MIXTRAL, Layout(tp=4, ep=8, etp=4), ranks=6)
        with pytest.raises(InfeasibleError, match="has no experts"):
            check_layout(catalog.model("llama-7b"), Layout(etp=2))


def parts(experts: int, top_k: int, over: int, *, in_turn: bool = False) -> float:
    return parts_of_a_token(replace(MIXTRAL, experts=experts, top_k=top_k), over, in_turn=in_turn)


class TestFusedDispatch:
    def test_parts_of_a_token(self) -> None:
        # 8 experts on 2 nodes, 2 chosen: both on one node with 2 x C(4, 2) / C(8, 2) = 12/28
        assert parts(8, 2, 2) == pytest.approx(2 - 12 / 28)
        assert parts(8, 1, 4) == pytest.approx(1.0)
        assert parts(8, 8, 4) == pytest.approx(4.0)

    @pytest.mark.parametrize(
        ("experts", "top_k", "over", "expected"),
        [
            (256, 8, 64, 2),  # two GPUs of four experts
            (256, 8, 8, 1),
            (384, 8, 32, 4 / 3),  # GPUs of twelve: tokens begin at expert 0, 4 or 8 of one, the last on two
            (128, 8, 1, 1),
            (6, 4, 2, 2),  # three each, also where the last begins on the last part and goes round
        ],
    )
    def test_neighbours_sit_together(self, experts: int, top_k: int, over: int, expected: float) -> None:
        assert parts(experts, top_k, over, in_turn=True) == pytest.approx(expected)

    @given(st.integers(2, 12), st.integers(1, 16), st.data())
    def test_experts_in_turn_are_counted_as_they_are_dealt(
        self, over: int, each: int, data: st.DataObject
    ) -> None:
        experts = over * each
        top_k = data.draw(st.integers(1, experts))
        dealt = [{(i * top_k + j) % experts // each for j in range(top_k)} for i in range(experts)]
        assert parts(experts, top_k, over, in_turn=True) == pytest.approx(sum(map(len, dealt)) / experts)

    def test_a_token_crosses_the_network_once_to_each_node(self) -> None:
        model = replace(MIXTRAL, experts=64, top_k=8, ffn_hidden=2048)
        plain, fused = (
            one(layer(Layout(ep=64, expert_dispatch=how), model).expert_all_to_all_s(np.array([T])))
            for how in ("all-to-all", "fused")
        )
        share = parts(64, 8, 8) / 8
        assert share < 0.7
        assert fused == pytest.approx(2 * T * 8 * 4096 * 2 * 7 / 8 * share / NIC, rel=1e-9)
        assert fused == pytest.approx(plain * share, rel=1e-9)

    def test_over_nvlink_a_token_goes_once_to_each_gpu(self) -> None:
        model = replace(MIXTRAL, experts=64, top_k=8, ffn_hidden=2048)
        plain, fused = (
            one(layer(Layout(ep=8, expert_dispatch=how), model).expert_all_to_all_s(np.array([T])))
            for how in ("all-to-all", "fused")
        )
        # 8 GPUs of 8 experts: a token misses one of them with C(56, 8) / C(64, 8) = 0.321
        assert parts(64, 8, 8) == pytest.approx(8 * (1 - 0.32091), rel=1e-4)
        assert fused == pytest.approx(plain * parts(64, 8, 8) / 8, rel=1e-9)

    @pytest.mark.parametrize("imbalance", [None, 1.0])
    def test_what_a_token_sends_and_copies_by_the_gpus_of_its_experts(self, imbalance: float | None) -> None:
        # 8 GPUs of 8 experts: in turn all 8 of a token are on one; who states how busy they are names no router.
        model = replace(MIXTRAL, experts=64, top_k=8, ffn_hidden=2048)
        even, in_turn = (
            layer(
                Layout(ep=8, expert_dispatch="fused", expert_routing=how, expert_imbalance=imbalance), model
            )
            for how in ("even", "in-turn")
        )
        sent_s, copied_s = (
            [one(cost.expert_all_to_all_s(np.array([T]))) for cost in (even, in_turn)],
            [one(cost.small_kernels_s(np.array([T]), backward=False)) for cost in (even, in_turn)],
        )
        if imbalance is None:
            assert sent_s[1] == pytest.approx(sent_s[0] / parts(64, 8, 8), rel=1e-9)
            assert copied_s[0] > copied_s[1]
        else:
            assert (sent_s[0], copied_s[0]) == (sent_s[1], copied_s[1])

    @pytest.mark.parametrize("tp", [1, 2])
    def test_hybrid_ep_gathers_the_routing_maps_of_a_rack(self, tp: int) -> None:
        servers = ideal_cluster()
        rack = replace(servers, node=replace(servers.node, gpus=64, nics=64), nodes=1)
        layout = Layout(ep=64 // tp, tp=tp, expert_dispatch="fused")
        model = replace(MIXTRAL, experts=512, top_k=22)

        def all_to_all_s(experts: int) -> float:
            collectives = Collectives(FabricModel(rack, IDEAL.network))
            cost = LayerCost(replace(model, experts=experts), layout, rack, IDEAL, collectives, moe=True)
            return one(cost.expert_all_to_all_s(np.array([T])))

        ranks, rows = 64 // tp, T / tp
        sent = 2 * rows * 4096 * 2 * parts(512, 22, ranks) * (1 - 1 / ranks) / NVLINK
        map_s = ranks * rows * 512 * ((1 - 1 / ranks) / NVLINK + 1 / rack.gpu.hbm_bytes_per_s)
        assert all_to_all_s(512) == pytest.approx(sent + map_s / 2, rel=1e-9)

    def test_routing_maps_of_several_racks_are_gathered_over_the_network(self) -> None:
        servers = ideal_cluster()
        racks = replace(servers, node=replace(servers.node, gpus=32, nics=32), nodes=2)
        collectives = Collectives(FabricModel(racks, IDEAL.network))
        experts = ExpertParallel(MIXTRAL, Layout(ep=64, expert_dispatch="fused"), IDEAL, collectives)
        map_bytes = 64 * T * 8
        gathered_s = collectives.all_gather_s(map_bytes, collectives.group(64))
        read_s = map_bytes / racks.gpu.hbm_bytes_per_s
        assert experts._routing_maps_s(np.array([T])) == pytest.approx(gathered_s + read_s)
        assert gathered_s > map_bytes * 63 / 64 / NVLINK


class TestLaunchesOfExperts:
    def test_modules_have_a_product_and_a_cast_for_each(self) -> None:
        def launches(**switches: object) -> float:
            layout = Layout(ep=2, expert_kernels="modules", **switches)  # type: ignore[arg-type]
            return forward_launches(MIXTRAL, layout, moe=True)

        grouped = forward_launches(MIXTRAL, Layout(ep=2), moe=True)
        assert launches() == grouped + 2 * (4 - 1)
        assert launches(precision="fp8") == launches(precision="mxfp8") == grouped + 2 * (3 * 4 - 1)

    @pytest.mark.parametrize(("gated", "operations"), [(True, 10), (False, 8)])
    def test_experts_that_take_tokens_by_index_are_all_launches(self, gated: bool, operations: int) -> None:
        model, layout = replace(MIXTRAL, gated_mlp=gated), Layout(expert_kernels="indexed")
        grouped = forward_launches(model, Layout(), moe=True)
        # 8 experts; no permutation (8) and no sorting (4), and not the two products of all
        indexed = forward_launches(model, layout, moe=True)
        assert indexed == pytest.approx(grouped - 12 - 2 + 8 * operations)
        assert backward_launches(model, layout, moe=True) == 2 * indexed
        cal = replace(IDEAL, launch_s=1.0)
        assert behind_counts_s(model, layout, cal) == pytest.approx(8 * operations)
        kernels = (small_kernels(model, changed, moe=True) for changed in (layout, Layout()))
        assert next(kernels) - next(kernels) == pytest.approx(8 * (operations - 2) - 12)

    def test_loops_over_four_experts_for_two_matrices(self) -> None:
        layout = Layout(ep=2, expert_kernels="separate")
        for switches, casts in (
            ({}, 0),
            ({"precision": "mxfp8"}, 2),
            ({"precision": "fp8", "fp8_scaling": "tensor"}, 3),
        ):
            cast = layout.changed(**switches)  # type: ignore[arg-type]
            assert expert_loops(MIXTRAL, cast, backward=False) == (2, 2 * 4 * (1 + casts))
            assert expert_loops(MIXTRAL, cast, backward=True) == (4, 2 * 4 * (2 + casts))
        assert expert_loops(MIXTRAL, Layout(ep=2), backward=False) == (0, 0)
        kernels = [
            small_kernels(MIXTRAL, layout.changed(precision=bits), moe=True)  # type: ignore[arg-type]
            for bits in ("bf16", "mxfp8")
        ]
        assert kernels[1] - kernels[0] == 2 * 4 * 2

    def test_padding(self) -> None:
        plain = Layout(ep=2, expert_kernels="separate", precision="fp8")
        padded = forward_launches(MIXTRAL, plain.changed(expert_padding=True), moe=True)
        assert padded == forward_launches(MIXTRAL, plain, moe=True) + 2

    def test_a_gradient_is_cast_once_for_two_products(self) -> None:
        layout = Layout(ep=2, expert_kernels="modules", precision="mxfp8")
        forward = forward_launches(MIXTRAL, layout, moe=True)
        rest = forward - 2 * 4 * 3
        assert backward_launches(MIXTRAL, layout, moe=True) == 2 * rest + 2 * 4 * (2 + 2)
        plain = layout.changed(precision="bf16")
        assert backward_launches(MIXTRAL, plain, moe=True) == 2 * forward_launches(MIXTRAL, plain, moe=True)

    def test_behind_the_counts(self) -> None:
        cal = replace(IDEAL, launch_s=100.0, expert_launch_s=1.0, expert_loop_s=0.25)
        layout = Layout(ep=2, expert_kernels="separate", precision="nvfp4")
        graphs = layout.changed(cuda_graphs=True)
        for changed, seconds in (
            (layout, 2 * 4 * 3 + 2 * 0.25),
            (graphs, 0),
            (graphs.changed(cuda_graph_experts=False), 24.5),
            (layout.changed(expert_kernels="modules"), 2400),
            (layout.changed(ep_overlap=True), 0),
            (Layout(ep=2), 0),
        ):
            assert behind_counts_s(MIXTRAL, changed, cal) == seconds

    def test_loops_behind_counts_show_beyond_their_kernels(self) -> None:
        layout, row = Layout(ep=2, expert_kernels="separate"), TERMS.index("host")
        batches = micro_batches([[1048576]])  # attention alone outlasts all launches of a layer

        def host(launch_s: float) -> list[float]:
            cost = ideal_cost(MIXTRAL, layout, calibration=replace(IDEAL, expert_launch_s=launch_s))
            return [float(side[row, 0, 0]) for side in cost.both_terms_s(batches)]

        experts_s = (
            1048576 * 2 * 6 * 4096 * 14336 / PEAK
        )  # 2 of 8 experts, a GPU of 2 meets as many tokens as it sends
        layers = MIXTRAL.layers
        assert host(0.9 * experts_s / 8) == [0.0, 0.0]
        assert host(1.1 * experts_s / 8) == pytest.approx([0.1 * experts_s * layers, 0.0], rel=1e-6)

    @given(st.sampled_from([1, 2, 4, 8]), st.sampled_from(["bf16", "fp8", "mxfp8"]))
    def test_the_host_takes_a_loop_and_a_share_of_every_expert(self, ep: int, bits: str) -> None:
        cal = replace(IDEAL, expert_launch_s=1.0, expert_loop_s=50.0)
        layout = Layout(ep=ep, expert_kernels="separate", precision=bits)  # type: ignore[arg-type]
        host = ideal_cost(MIXTRAL, layout, calibration=cal).floor_s / MIXTRAL.layers
        per_expert = host - 6 * 50.0
        assert per_expert * ep == pytest.approx(8 * 2 * (3 if bits == "bf16" else 7))

    def test_graphs_may_end_at_the_router(self) -> None:
        whole, dense_only = (
            forward_launches(MIXTRAL, Layout(ep=2, cuda_graphs=True, cuda_graph_experts=inside), moe=True)
            for inside in (True, False)
        )
        # permutation and counting 12, two grouped products, two all-to-alls of 3
        assert (whole, dense_only) == (0, 12 + 2 + 6)
        assert forward_launches(MIXTRAL, Layout(cuda_graphs=True, cuda_graph_experts=False), moe=False) == 0

    def test_pieces_beside_another_micro_batch(self) -> None:
        cal, alone = (
            replace(IDEAL, launch_s=1.0, overlap_launches=40.0),
            GroupShape(ranks=1, ranks_per_node=1, nodes=1, tier=0),
        )

        def host_s(moe: bool, **switches: object) -> np.ndarray:
            time = HostTime(MIXTRAL, Layout(ep=2, **switches), alone, cal)  # type: ignore[arg-type]
            return np.array([time.layer_s(moe=moe, backward=side) for side in (False, True)])

        assert (host_s(True, ep_overlap=True) - host_s(True)).tolist() == [40.0, 80.0]
        assert (host_s(False, ep_overlap=True) - host_s(False)).tolist() == [0.0, 0.0]
        assert host_s(True, ep_overlap=True, cuda_graphs=True).tolist() == [0.0, 0.0]
        around = {"cuda_graphs": True, "cuda_graph_experts": False}
        assert (host_s(True, ep_overlap=True, **around) - host_s(True, **around)).tolist() == [40.0, 80.0]

    def test_without_all_to_alls_there_is_nothing_to_overlap(self) -> None:
        off, on = (
            forward_launches(MIXTRAL, Layout(ep_overlap=overlap), moe=True) for overlap in (False, True)
        )
        assert off == on

    def test_biases_and_clamps(self) -> None:
        model = replace(MIXTRAL, expert_biases=True, clamped_activation=True)
        layout = Layout(ep=2, expert_kernels="separate")
        more = forward_launches(model, layout, moe=True) - forward_launches(MIXTRAL, layout, moe=True)
        assert more == 2 * 4 + 3
        fused, grouped = (Layout(ep=2, expert_kernels=kind) for kind in ("fused", "grouped"))  # type: ignore[arg-type]
        assert forward_launches(model, fused, moe=True) == forward_launches(MIXTRAL, grouped, moe=True)


class TestOverlap:
    @given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 100))
    def test_exposed_is_at_most_everything(self, forward: float, backward: float, compute: float) -> None:
        f, b = beside_the_other_micro_batch_s(
            np.array([forward]), np.array([backward]), np.array([compute]), 132
        )
        assert 0 <= one(f) <= forward * (1 + 1e-12)
        assert 0 <= one(b) <= backward * (1 + 1e-12)
        assert one(f + b) >= forward + backward - compute - 1e-9

    def test_by_hand(self) -> None:
        f, b = beside_the_other_micro_batch_s(np.array([2.0]), np.array([2.0]), np.array([3.0]), 200)
        assert (one(f), one(b)) == pytest.approx((0.5, 0.5))  # 4 - 3, one half each
        f, b = beside_the_other_micro_batch_s(np.array([1.0]), np.array([3.0]), np.array([50.0]), 200)
        assert (one(f), one(b)) == pytest.approx((0.1, 0.3))  # 20 of 200 SMs for 4 s

    def test_in_a_micro_batch(self) -> None:
        batches, row = micro_batches([[8192]]), TERMS.index("expert_all_to_all")
        plain, beside = (
            ideal_cost(MIXTRAL, Layout(ep=8, ep_overlap=overlap)).both_terms_s(batches)
            for overlap in (False, True)
        )
        for side in (0, 1):
            assert beside[side][row, 0, 0] < 0.5 * plain[side][row, 0, 0]
            others = [index for index in range(len(TERMS)) if index != row]
            assert np.allclose(beside[side][others], plain[side][others], rtol=1e-12)
        alone = ideal_cost(MIXTRAL, Layout(ep=8, ep_overlap=True)).terms_s(batches, backward=True)
        assert np.array_equal(alone, beside[1])


class TestLaunches:
    def test_counts(self) -> None:
        gpt = replace(
            catalog.model("llama-7b"), gated_mlp=False, norm="layer", biases=True, learned_positions=2048
        )
        # 2 norms, 4 products, 2 copies, attention, 2 adds, activation; 4 collectives of 3
        assert forward_launches(gpt, Layout(), moe=False) == 12
        assert forward_launches(gpt, Layout(tp=8), moe=False) == 24
        assert forward_launches(gpt, Layout(tp=8, cuda_graphs=True), moe=False) == 0
        # 2 x 6, 4, 2, 1, rotary 8, 2, 2; 4 collectives of 3
        llama = catalog.model("llama-7b")
        assert forward_launches(llama, Layout(tp=8, fused_kernels=False), moe=False) == 43

    def test_experts_and_separate_kernels_launch_more(self) -> None:
        base = forward_launches(MIXTRAL, Layout(ep=8), moe=False)
        moe = forward_launches(MIXTRAL, Layout(ep=8), moe=True)
        fused = forward_launches(MIXTRAL, Layout(ep=8, expert_dispatch="fused"), moe=True)
        assert base < fused < moe
        assert forward_launches(MIXTRAL, Layout(fused_kernels=False), moe=False) > base

    def test_graphs_remove_the_launch_bound(self) -> None:
        cal, batches = replace(IDEAL, launch_s=1e-3), micro_batches([[128]])
        eager, graphs = (
            ideal_cost(layout=Layout(cuda_graphs=on), calibration=cal).both_terms_s(batches)
            for on in (False, True)
        )
        row = TERMS.index("host")
        for side, passes in ((0, 1), (1, 2)):
            assert eager[side][:, 0, 0].sum() >= 32 * passes * 13e-3
            assert graphs[side][row, 0, 0] == 0.0


SHARED = catalog.model("deepseek-v2-lite")
PARALLEL = replace(MIXTRAL, name="parallel", parallel_block=True)


@st.composite
def placements(draw: st.DrawFn) -> tuple[Model, Layout, Layout]:
    """A model with experts and one placement of them, without etp and with it written out."""
    model = draw(st.sampled_from([MIXTRAL, SHARED, PARALLEL]))
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    ep = draw(st.sampled_from([1, 2, 4, 8]))
    layout = Layout(
        tp=tp,
        ep=ep,
        sequence_parallel=draw(st.booleans()),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        recompute=draw(st.sampled_from(["none", "full"])),
        tp_overlap=draw(st.booleans()),
        cuda_graphs=draw(st.booleans()),
        expert_kernels=draw(st.sampled_from(["grouped", "separate", "modules", "indexed", "fused"])),
        expert_dispatch=draw(st.sampled_from(["all-to-all", "fused"])),
        expert_padding=draw(st.booleans()),
        expert_imbalance=draw(st.sampled_from([None, 1.0, 1.5])),
        ep_overlap=draw(st.booleans()),
    )
    return model, layout, layout.changed(etp=max(1, tp // ep))


class TestTwoWaysToWriteAPlacement:
    """ep alone, or ep with the etp that it means, is the same placement: nothing may tell them apart."""

    @settings(max_examples=60)
    @given(placements())
    def test_they_cost_the_same(self, case: tuple[Model, Layout, Layout]) -> None:
        model, meant, written = case
        where, cal = catalog.cluster_of("hgx-h100-80gb", gpus=64), calibration("hopper")
        batch = micro_batches([[1000, 3000], [4096]])
        costs = [MicroBatchCost(model, layout, where, cal) for layout in (meant, written)]
        for backward in (False, True):
            one, other = (cost.terms_s(batch, backward=backward) for cost in costs)
            for name, a, b in zip(TERMS, one, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=name)
        ranks = meant.parallel.ranks(where.gpus)
        one_step, other_step = (step_costs(cost, batch, ranks, data_s=0.0).epilogue for cost in costs)
        for part in ("gradient_sync_s", "parameter_gather_s", "optimizer_s"):
            np.testing.assert_allclose(getattr(one_step, part), getattr(other_step, part), rtol=1e-12)

    @settings(max_examples=60)
    @given(placements())
    def test_they_hold_and_launch_the_same(self, case: tuple[Model, Layout, Layout]) -> None:
        model, meant, written = case
        where = ideal_cluster()
        ranks = meant.parallel.ranks(where.gpus)
        assert parameters_per_gpu(model, meant, 0) == parameters_per_gpu(model, written, 0)
        memories = [memory_report(model, layout, where, ranks, 4096) for layout in (meant, written)]
        assert memories[0] == memories[1]
        one, other = (layer_activations(model, layout, moe=True) for layout in (meant, written))
        assert one == other
        one_count, other_count = (
            [
                count(model, layout, moe=True)
                for count in (forward_launches, backward_launches, small_kernels, tensor_collectives)
            ]
            for layout in (meant, written)
        )
        assert one_count == other_count

    @settings(max_examples=60)
    @given(placements(), st.booleans(), st.sampled_from([None, 1, 2, 4]))
    def test_every_collective_that_is_priced_is_launched(
        self, case: tuple[Model, Layout, Layout], moe: bool, etp: int | None
    ) -> None:
        model, layout = case[0], case[1].changed(etp=etp, tp_overlap=False)
        where = ideal_cluster()

        class OneSecondEach(Collectives):
            """Every collective takes a second, so that seconds count them."""

            def all_gather_s(self, bytes_total, group, in_place=False):  # type: ignore[no-untyped-def]
                return np.ones_like(bytes_total)

            reduce_scatter_s = all_reduce_s = all_gather_s

        seconds = OneSecondEach(FabricModel(where, IDEAL.network))
        cost = LayerCost(model, layout, where, IDEAL, seconds, moe=moe)
        of_a_cut = (
            2 if moe and layout.parallel.expert_cut > 1 and not layout.parallel.experts_cut_like_dense else 0
        )
        priced = one(cost.tp_communication_s(np.array([T]))[0])
        assert priced == tensor_collectives(model, layout, moe=moe) + of_a_cut


def test_shared_and_cut_experts_have_collectives_of_their_own() -> None:
    """Each takes as long as attention's pair: deepseek-v2-lite's shared expert, and a top-1 model cut over two GPUs."""
    tokens = np.array([T])

    def seconds(model: Model, layout: Layout) -> float:
        where = ideal_cluster()
        cost = LayerCost(
            model, layout, where, IDEAL, Collectives(FabricModel(where, IDEAL.network)), moe=True
        )
        return one(cost.tp_communication_s(tokens)[0])

    alone = seconds(MIXTRAL, Layout(tp=2, ep=2))  # attention's gather and reduce-scatter
    width = SHARED.hidden / MIXTRAL.hidden
    assert seconds(SHARED, Layout(tp=2, ep=2)) == pytest.approx(2 * width * alone)
    # of 8192 / 4 tokens a GPU, twice routed, two GPUs gather and scatter half each
    cut = seconds(MIXTRAL, Layout(tp=4, ep=2)) - seconds(MIXTRAL, Layout(tp=4, ep=4))
    assert cut == pytest.approx(2 * 0.5 * 2 * (T / 4) * 2 * 4096 * 2 / NVLINK)
    # no product of Transformer Engine pipelines what the dispatcher gathers: only attention's pair hides
    joined, apart = (Layout(tp=2, ep=ep, tp_overlap=True) for ep in (1, 2))
    assert seconds(MIXTRAL, joined) - seconds(MIXTRAL, apart) == pytest.approx(alone)
