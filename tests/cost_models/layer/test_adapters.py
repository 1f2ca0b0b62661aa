"""Adapters beside frozen weights: what is left of backward, optimizer, traffic and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import FFN, GPU, HBM, HIDDEN, IDEAL, MODEL, PEAK, ideal_cluster, ideal_cost, micro_batches

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.adapters import (
    adapted_matrices,
    adapter_ops,
    adapter_s,
    kept_bytes,
    step_tensors,
    trained_per_gpu,
)
from hdpsim.cost_models.layer.host_launches import backward_launches, forward_launches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import AdapterKernels
from hdpsim.cost_models.memory.activations import layer_activations
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.reading.checked import ContradictionError
from hdpsim.cost_models.step.epilogue import epilogue, step_costs
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.transformer.flop import model_flop_per_token, sequence_model_flop
from hdpsim.cost_models.transformer.model import AdapterTargets, Model
from hdpsim.cost_models.transformer.parameters import parameters

RANK, TOKENS, LAYERS, VOCAB = 16, 4096, 32, 32000
QKV = 48 * 128  # columns of llama-7b's with 8 key/value heads
DEEPSEEK, MIXTRAL = catalog.model("deepseek-v3"), catalog.model("mixtral-8x7b")


def lora(targets: AdapterTargets = "qkv", model: Model = MODEL, rank: int = RANK) -> Model:
    return replace(model, adapter_rank=rank, adapter_targets=targets)


def term(
    model: Model, name: str, *, backward: bool, layout: Layout | None = None, slow: bool = False
) -> float:
    cost = ideal_cost(model, layout, cluster=ideal_cluster(gpu=GPU) if slow else None)
    return float(cost.terms_s(micro_batches([[TOKENS]]), backward=backward)[TERMS.index(name), 0, 0])


def test_which_matrices_have_adapters() -> None:
    names = {
        targets: [shard.matrix.name for shard in adapted_matrices(lora(targets), Layout(tp=2), moe=False)]
        for targets in ("qkv", "attention", "all")
    }
    assert names["qkv"] == ["qkv"]
    assert names["attention"] == ["qkv", "attention_out"]
    assert names["all"] == ["qkv", "attention_out", "mlp_up", "mlp_down"]
    assert adapted_matrices(MODEL, Layout(), moe=False) == ()
    assert len(adapted_matrices(lora("all", MIXTRAL), Layout(), moe=True)) == 2  # experts have none
    assert len(adapted_matrices(lora("qkv", DEEPSEEK), Layout(), moe=True)) == 4
    cut = {
        shard.matrix.name: (shard.inputs, shard.outputs)
        for shard in adapted_matrices(lora("all"), Layout(tp=2), moe=False)
    }
    assert cut == {
        "qkv": (HIDDEN, QKV // 2),
        "attention_out": (HIDDEN // 2, HIDDEN),
        "mlp_up": (HIDDEN, FFN),
        "mlp_down": (FFN // 2, HIDDEN),
    }


def test_trained_parameters_by_hand() -> None:
    assert trained_per_gpu(lora(), Layout(), 0).total == LAYERS * RANK * (HIDDEN + QKV)
    assert trained_per_gpu(lora(), Layout(pp=4), 3).total == LAYERS // 4 * RANK * (HIDDEN + QKV)
    assert trained_per_gpu(MODEL, Layout(), 0).total == parameters(MODEL).total
    assert step_tensors(MODEL, Layout()) == 1.0
    assert step_tensors(lora("all"), Layout()) == pytest.approx(0.8)


def test_frozen_products_have_one_gradient() -> None:
    forward, whole = (term(MODEL, "gemm", backward=side) for side in (False, True))
    assert whole == pytest.approx(2 * forward, rel=0.01)  # waves
    adapters = LAYERS * 2 * TOKENS * RANK * (HIDDEN + QKV) / PEAK
    grown = term(lora(), "gemm", backward=False) - forward
    assert adapters <= grown < 5 * adapters  # products of 16 columns leave tiles empty
    left = term(lora(), "gemm", backward=True) - forward
    assert 2 * adapters <= left < 20 * adapters
    head = 2 * TOKENS * HIDDEN * VOCAB / PEAK
    assert term(lora(), "logits", backward=True) == pytest.approx(head, rel=0.01)


def test_adapters_outputs_are_scaled_and_added() -> None:
    for backward, elements in ((False, 5 * QKV), (True, 2 * QKV + 3 * HIDDEN)):
        added = term(lora(), "small_kernels", backward=backward, slow=True)
        added -= term(MODEL, "small_kernels", backward=backward, slow=True)
        embedding = 2 * 2 * HIDDEN * TOKENS / HBM if backward else 0.0  # its scatter falls away
        assert added + embedding == pytest.approx(LAYERS * 2 * elements * TOKENS / HBM)


@pytest.mark.parametrize(
    ("kernels", "dropout", "forward", "backward"),
    [  # passes over (inputs, columns)
        ("separate", False, (0, 5), (3, 2)),
        ("separate", True, (2.5, 5), (5.5, 2)),
        ("autocast", False, (6, 5), (9, 2)),
        ("autocast", True, (10.5, 5), (13.5, 2)),
        ("wide", False, (4, 13), (8, 12)),
        ("wide", True, (8.5, 13), (12.5, 12)),
    ],
)
def test_passes_of_adapters_beside_each_matrix(
    kernels: AdapterKernels, dropout: bool, forward: tuple[float, float], backward: tuple[float, float]
) -> None:
    inputs, columns = 3 * HIDDEN + HIDDEN, QKV + HIDDEN  # queries, keys and values apart, and the output
    adapted = replace(lora("attention"), adapter_dropout=dropout)
    layout = Layout(adapter_kernels=kernels)
    for side, (reads, writes) in ((False, forward), (True, backward)):
        seconds = term(adapted, "small_kernels", backward=side, layout=layout, slow=True)
        seconds -= term(MODEL, "small_kernels", backward=side, slow=True)
        embedding = 2 * 2 * HIDDEN * TOKENS / HBM if side else 0.0  # its scatter falls away
        elements = reads * inputs + writes * columns
        assert seconds + embedding == pytest.approx(LAYERS * 2 * elements * TOKENS / HBM)


def test_adapters_of_each_matrix() -> None:
    layout = Layout(adapter_kernels="separate", tp=2)
    shards = adapted_matrices(lora("all"), layout, moe=False)
    assert [(shard.matrix.name, shard.inputs, shard.outputs) for shard in shards] == [
        ("qkv_1", HIDDEN, HIDDEN // 2),
        ("qkv_2", HIDDEN, 1024 // 2),
        ("qkv_3", HIDDEN, 1024 // 2),
        ("attention_out", HIDDEN // 2, HIDDEN),
        ("mlp_up_1", HIDDEN, FFN // 2),
        ("mlp_up_2", HIDDEN, FFN // 2),
        ("mlp_down", FFN // 2, HIDDEN),
    ]
    whole = Layout(adapter_kernels="separate")
    assert trained_per_gpu(lora(), whole, 0).total == LAYERS * RANK * (3 * HIDDEN + QKV)
    ops = adapter_ops(lora(), whole, moe=False)
    assert [(op.inner, op.columns) for op in ops[:2]] == [(HIDDEN, RANK), (RANK, HIDDEN)]


@pytest.mark.parametrize(
    ("kernels", "bytes_", "behind_dropout"),
    [("joined", 0, 3), ("separate", 0, 3), ("autocast", 2, 3), ("wide", 4, 5)],
)
def test_adapters_keep_copies_of_what_they_read(
    kernels: AdapterKernels, bytes_: int, behind_dropout: int
) -> None:
    layout = Layout(adapter_kernels=kernels)
    adapters = 1 if kernels == "joined" else 3
    assert kept_bytes(lora(), layout, moe=False) == adapters * bytes_ * HIDDEN
    dropped = replace(lora(), adapter_dropout=True)
    assert kept_bytes(dropped, layout, moe=False) == adapters * behind_dropout * HIDDEN
    more = layer_activations(dropped, layout, moe=False).linear_inputs
    assert more == 2 * HIDDEN + adapters * behind_dropout * HIDDEN
    assert kept_bytes(MODEL, layout, moe=False) == 0.0


@given(
    tokens=st.integers(1, 65536),
    dropout=st.booleans(),
    backward=st.booleans(),
    targets=st.sampled_from(["qkv", "attention", "all"]),
)
def test_wider_adapters_take_longer(
    tokens: int, dropout: bool, backward: bool, targets: AdapterTargets
) -> None:
    seconds = [
        float(
            adapter_s(
                adapted_matrices(lora(targets), Layout(adapter_kernels=kernels), moe=False),
                np.array([float(tokens)]),
                GPU,
                IDEAL,
                kernels=kernels,
                dropout=dropout,
                backward=backward,
            )[0]
        )
        for kernels in ("joined", "separate", "autocast", "wide")
    ]
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0] > 0.0


def test_casts_of_frozen_operands_are_written_once() -> None:
    cluster = ideal_cluster(gpu=replace(GPU, fp8_flop_per_s=2 * PEAK))
    narrow = Layout(precision="fp8")

    def casts(model: Model) -> float:
        found = [
            ideal_cost(model, layout, cluster=cluster).terms_s(micro_batches([[TOKENS]]), backward=False)
            for layout in (narrow, Layout())
        ]
        return float((found[0] - found[1])[TERMS.index("small_kernels"), 0, 0])

    assert casts(lora()) == pytest.approx(3 / 4 * casts(MODEL))


def test_only_adapters_are_summed_and_updated() -> None:
    ranks = 16
    layout = Layout(sharding="none")
    cal = replace(IDEAL, step_layer_s=1e-3)
    costs = {
        model.adapter_rank: epilogue(
            ideal_cost(model, layout, cluster=ideal_cluster(gpu=GPU), calibration=cal), ranks, data_s=0.0
        )
        for model in (MODEL, lora())
    }
    share = trained_per_gpu(lora(), layout, 0).total / parameters(MODEL).total
    assert costs[RANK].gradient_sync_s == pytest.approx(share * costs[0].gradient_sync_s, rel=0.2)
    host = LAYERS * 1e-3
    assert costs[RANK].optimizer_s - 0.2 * host == pytest.approx(share * (costs[0].optimizer_s - host))


def test_model_flop() -> None:
    full, frozen = (model_flop_per_token(model, TOKENS) for model in (MODEL, lora()))
    assert frozen.linear == pytest.approx(2 / 3 * full.linear)
    assert frozen.head == pytest.approx(2 / 3 * full.head)
    assert frozen.attention == full.attention
    assert sequence_model_flop(lora(), [TOKENS]) == pytest.approx(frozen.total * TOKENS)


def test_memory_of_states_and_activations() -> None:
    layout = Layout(precision="fp8")
    states = state_bytes(lora(), layout, 1, 0, MemoryOverheads(eight_bit_copy_bytes=0.0))
    trained = LAYERS * RANK * (HIDDEN + QKV)
    assert states.weights == pytest.approx(2 * (parameters(MODEL).total + trained))
    assert states.gradients == pytest.approx(4 * trained)
    assert states.optimizer == pytest.approx(12 * trained)
    full, one, every = (layer_activations(model, layout, moe=False) for model in (MODEL, lora(), lora("all")))
    assert one.linear_inputs == 2 * HIDDEN  # what QKV's adapter reads, in 16 bits
    assert every.linear_inputs == 2 * 2 * HIDDEN
    assert one.mlp == 2 * 2 * FFN
    assert every.mlp == 3 * 2 * FFN
    assert one.attention_output < full.attention_output
    assert one.queries_keys_values == full.queries_keys_values


def test_launches() -> None:
    for tp, collective in ((1, 0), (2, 3)):
        layout = Layout(tp=tp)
        forward = forward_launches(MODEL, layout, moe=False)
        assert forward_launches(lora(), layout, moe=False) == forward + 4 + collective
        twice = 2 * forward_launches(lora(), layout, moe=False)
        assert backward_launches(lora(), layout, moe=False) == twice - 4  # four products have one gradient
    assert backward_launches(lora(), Layout(cuda_graphs=True), moe=False) >= 0
    for kernels, copies in (("separate", 0), ("autocast", 4), ("wide", 2)):
        layout = Layout(adapter_kernels=kernels)
        for dropout in (False, True):
            model = replace(lora(), adapter_dropout=dropout)
            more = forward_launches(model, layout, moe=False) - forward_launches(MODEL, layout, moe=False)
            assert more == 3 * (4 + copies + dropout)


def test_frozen_reductions_have_nothing_beside_them_but_the_input_gradient() -> None:
    layout = Layout(tp=8)
    full, frozen = (
        term(model, "tp_communication", backward=True, layout=layout) for model in (MODEL, lora())
    )
    assert frozen == pytest.approx(2 / 3 * full)  # no second gather
    for changed in (layout.changed(tp_overlap=True), layout.changed(tp_asynchronous=True)):
        overlapped = term(lora(), "tp_communication", backward=True, layout=changed)
        assert 0.0 < overlapped <= frozen


def test_a_rank_wider_than_the_model_is_refused() -> None:
    with pytest.raises(ContradictionError) as caught:
        lora(rank=HIDDEN + 1)
    assert [key for key, _ in caught.value.problems] == ["adapter_rank"]


@given(
    rank=st.integers(1, 256),
    targets=st.sampled_from(["qkv", "attention"]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    precision=st.sampled_from(["bf16", "fp8"]),
)
def test_adapters_never_cost_more_than_training_everything(
    rank: int, targets: AdapterTargets, tp: int, pp: int, precision: str
) -> None:
    layout = Layout(tp=tp, pp=pp, precision=precision)  # type: ignore[arg-type]
    cluster = replace(ideal_cluster(), node=catalog.node("hgx-h100"), nodes=2)
    seconds = []
    for model in (lora(targets, rank=rank), MODEL):
        cost = ideal_cost(model, layout, cluster=cluster, calibration=calibration("hopper"))
        costs = step_costs(cost, micro_batches([[8192]]), 16 // tp // pp, data_s=0.0)
        seconds.append(float(costs.forward_s.sum() + costs.backward_s.sum()))
        assert np.isfinite(seconds[-1])
    assert seconds[0] < seconds[1]


def test_what_an_adapter_of_qkv_reads_is_gathered_alone() -> None:
    # endless compute hides all that is overlapped but a chunk in four: MLP 1/4 + 1/4, output 1/4, QKV's gather whole
    layout = Layout(tp=8, tp_overlap=True)
    alone, overlapped = (
        term(lora(), "tp_communication", backward=False, layout=changed) for changed in (Layout(tp=8), layout)
    )
    assert overlapped > (0.25 + 0.75 * 0.25) * alone
    plain = term(MODEL, "tp_communication", backward=False, layout=layout)
    assert overlapped > plain
