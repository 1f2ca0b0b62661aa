"""Copies and buffers of an eager stack, stages balanced by FLOP, and what a framework reports as its peak."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import RecomputeKind
from hdpsim.cost_models.memory.activations import (
    LayerActivations,
    activation_bytes_per_token_layer,
    layer_activations,
    rotary_table_bytes,
    score_bytes_per_token,
    tensor_parallel_transients,
    unfused_copies,
)
from hdpsim.cost_models.memory.overheads import MemoryOverheads, RotaryTables
from hdpsim.cost_models.memory.peak import memory_report, rank_capacity_tokens
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import (
    parameters,
    parameters_per_gpu,
    stage_contents,
    stage_layers,
)
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import overheads_of
from hdpsim.experiments.software.run_config import RunConfig

LLAMA = Model(
    name="llama", layers=16, hidden=2048, heads=32, kv_heads=32, head_dim=64, ffn_hidden=8192, vocab=131072,
    tied_embeddings=True,
)  # fmt: skip
H100 = catalog.cluster("superpod-h100")
EAGER = overheads_of(Run(RunConfig(gpu="H100-SXM-80G", framework="nanotron")))


def test_an_eager_layer_keeps_20_h_plus_8_f() -> None:
    # norm inputs 4 h, linear inputs 4 h, q k v 6 h, output 2 h, k and v before rotation 4 h; gate, up, act, product
    kept = layer_activations(LLAMA, Layout(), moe=False).total - 4 * 32  # without the log-sum-exp
    assert kept + unfused_copies(LLAMA, Layout(), moe=False) == 20 * 2048 + 8 * 8192
    grouped = replace(LLAMA, kv_heads=8)  # queries have a buffer of their own: only the activated gate
    assert unfused_copies(grouped, Layout(tp=4), moe=False) == 2 * 8192 / 4
    assert unfused_copies(replace(grouped, gated_mlp=False), Layout(), moe=False) == 0.0


def test_norms_in_32_bits_keep_their_input_and_what_they_normalised() -> None:
    # 2 more bytes of each input and 2 of each normalised tensor; of queries and keys all 6, since no other kernel
    # keeps what they were
    lean, copies = MemoryOverheads(), MemoryOverheads(norms_in_32_bits=True)

    def more(model: Model, layout: Layout, recompute: RecomputeKind = "none") -> float:
        with_norms, without = (
            activation_bytes_per_token_layer(model, layout, recompute, overheads=stack)
            for stack in (copies, lean)
        )
        return with_norms - without

    assert more(LLAMA, Layout()) == 2 * 4 * 2048
    assert more(LLAMA, Layout(tp=4)) == 2 * 4 * 2048 / 4
    assert more(replace(LLAMA, qk_norm=True), Layout(tp=4)) == (2 * 4 * 2048 + 6 * 2 * 2048) / 4
    # what a frozen weight multiplies is read by no gradient
    frozen = replace(LLAMA, qk_norm=True, adapter_rank=8)
    assert more(frozen, Layout(tp=4)) == (2 * 2 * 2048 + 4 * 2 * 2048) / 4
    assert more(replace(LLAMA, norm="layer"), Layout()) == 0.0
    assert more(LLAMA, Layout(), "full") == 0.0


@pytest.mark.parametrize(
    ("sharding", "ranks", "per_parameter"), [("none", 32, 20.0), ("none", 1, 18.0), ("zero1", 32, 8.375)]
)
def test_eager_states_per_parameter(sharding: str, ranks: int, per_parameter: float) -> None:
    layout = Layout(sharding=sharding)  # type: ignore[arg-type]
    states = state_bytes(LLAMA, layout, ranks, 0, EAGER)
    count = parameters(LLAMA).total
    loose = 2 * 131072 * 2048  # the head's gradients, not yet added up
    assert states.total == pytest.approx(per_parameter * count + loose)
    assert states.update == (2.0 * count if sharding == "zero1" else 0.0)


def test_the_update_counts_only_beyond_what_the_layers_took() -> None:
    layout = Layout(sharding="zero1")
    small, large = (memory_report(LLAMA, layout, H100, 32, tokens, overheads=EAGER) for tokens in (128, 8192))
    assert small.update > 0.0 == large.update
    staging = state_bytes(LLAMA, layout, 32, 0, EAGER).update
    unit = parameters_per_gpu(LLAMA, layout, 0).largest_unit
    loose = EAGER.loose_gradient_bytes * unit  # all added up by then
    taken = small.activations + small.head + small.working_set + loose
    assert small.update + taken == pytest.approx(staging)
    assert sum(small.parts.values()) == pytest.approx(small.total_bytes)


def test_capacity_is_the_largest_that_fits_with_an_update() -> None:
    layout = Layout(sharding="zero1")
    capacity = rank_capacity_tokens(LLAMA, layout, H100, 32, overheads=EAGER)
    assert memory_report(LLAMA, layout, H100, 32, capacity, overheads=EAGER).fits
    assert not memory_report(LLAMA, layout, H100, 32, capacity + 256, overheads=EAGER).fits


def test_stages_balanced_by_flop() -> None:
    # head: 131072 x 2048 = 4 layers of 4 h^2 + 3 h f; 20 layers' worth: 10 and 10, 5 each, ceil(2.5) on the first
    table = {pp: stage_layers(LLAMA, Layout(pp=pp, stage_balance="flop")) for pp in (1, 2, 4, 8)}
    assert [sum(stage) for stage in table[2]] == [10, 6]
    assert [sum(stage) for stage in table[4]] == [5, 5, 5, 1]
    assert [sum(stage) for stage in table[8]] == [3, 2, 3, 2, 3, 2, 1, 0]
    assert [sum(stage) for stage in table[1]] == [16]


@given(
    layers=st.integers(8, 80),
    pp=st.sampled_from([1, 2, 4, 8]),
    vpp=st.sampled_from([1, 2]),
    vocab=st.integers(1, 10**6),
)
def test_no_layer_is_lost_and_only_the_last_stages_are_empty(
    layers: int, pp: int, vpp: int, vocab: int
) -> None:
    vpp = vpp if pp > 1 and layers >= pp * vpp else 1
    model = replace(LLAMA, layers=layers, vocab=vocab)
    layout = Layout(pp=pp, vpp=vpp, stage_balance="flop")
    table = stage_contents(model, layout)
    counts = [stage[chunk].layers for chunk in range(vpp) for stage in table]  # in the order of the forward
    assert sum(counts) == layers
    first_empty = counts.index(0) if 0 in counts else len(counts)
    assert sum(counts[:first_empty]) == layers


def test_what_frameworks_report() -> None:
    report = memory_report(LLAMA, Layout(tp=8), H100, 4, 4096, overheads=EAGER)
    outside = report.communication + report.context
    assert report.allocated_bytes == pytest.approx(report.total_bytes - outside - report.fragmentation)
    # no pipeline: two whole tensors of 2 h (1 - 1/8) a token and layer wait for the communication stream
    assert report.run_ahead == pytest.approx(16 * 4096 * 2 * 2 * 2048 * 7 / 8)
    assert report.reserved_bytes == pytest.approx(report.total_bytes - outside + report.run_ahead)
    assert report.run_ahead == 16 * 4096 * tensor_parallel_transients(LLAMA, Layout(tp=8))
    lean = memory_report(LLAMA, Layout(tp=8), H100, 4, 4096)
    assert lean.run_ahead == 0.0
    assert lean.total_bytes < report.total_bytes


@pytest.mark.parametrize(("pp", "layers"), [(2, 0), (4, 2 * 4), (8, 6 * 2)])
def test_a_pipeline_runs_ahead_by_its_warm_up_less_two(pp: int, layers: int) -> None:
    report = memory_report(LLAMA, Layout(tp=2, pp=pp), H100, 4, 1024, stage=0, overheads=EAGER)
    assert report.run_ahead == layers * 1024 * tensor_parallel_transients(LLAMA, Layout(tp=2))


def test_reserved_memory_never_exceeds_the_gpu() -> None:
    waits = replace(EAGER, host_run_ahead=False)
    tokens = rank_capacity_tokens(LLAMA, Layout(tp=8), H100, 4, overheads=waits)
    report = memory_report(LLAMA, Layout(tp=8), H100, 4, tokens, overheads=EAGER)
    assert report.fits
    assert report.run_ahead > report.capacity_bytes - report.total_bytes
    assert report.reserved_bytes == report.capacity_bytes - report.communication - report.context


def test_attention_that_keeps_its_scores() -> None:
    # Korthikanti et al.: 5 a s / h of s b h with dropout; 74 h in all for a s = 8 h (34 + 5 x 8)
    gpt = replace(LLAMA, gated_mlp=False, dropout=True, norm="layer", biases=True)
    layout = Layout(tp=4, attention_kernel="unfused")
    sequence = 8 * 2048 // 32
    scores = score_bytes_per_token(gpt, layout, sequence)
    assert scores == 40 * 2048 / 4
    assert score_bytes_per_token(replace(gpt, dropout=False), layout, sequence) == 16 * 2048 / 4
    assert score_bytes_per_token(gpt, Layout(tp=4), sequence) == 0.0
    kept = layer_activations(gpt, layout, moe=False, dropout=True).total - 4 * 32 / 4
    assert kept + scores == pytest.approx(74 * 2048 / 4)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_scores_are_kept_by_every_layer_or_by_one(recompute: str) -> None:
    flash = Layout(recompute=recompute)  # type: ignore[arg-type]
    kept = memory_report(
        LLAMA, replace(flash, attention_kernel="unfused"), H100, 8, 8192, sequence_tokens=1024
    )
    scores = 8192 * 2 * 32 * 1024
    without = memory_report(LLAMA, flash, H100, 8, 8192)
    layers = 16 if recompute == "none" else 0
    assert kept.activations - without.activations == pytest.approx(layers * scores)
    assert kept.total_bytes > without.total_bytes or layers == 0


def test_capacity_with_scores_is_the_largest_that_fits() -> None:
    layout = Layout(attention_kernel="unfused")
    capacity = rank_capacity_tokens(LLAMA, layout, H100, 8)
    assert memory_report(LLAMA, layout, H100, 8, capacity).fits
    assert not memory_report(LLAMA, layout, H100, 8, capacity + 128).fits
    assert capacity < rank_capacity_tokens(LLAMA, Layout(), H100, 8)


def test_what_selective_recomputation_keeps() -> None:
    layout = Layout(recompute="selective")
    whole, layer_input = activation_bytes_per_token_layer(LLAMA, layout), 2 * 2048
    half = activation_bytes_per_token_layer(LLAMA, layout, overheads=MemoryOverheads(selective_share=0.5))
    assert half == pytest.approx((whole + layer_input) / 2)
    lean = MemoryOverheads(selective_keeps=("queries_keys_values",))
    projections = activation_bytes_per_token_layer(LLAMA, layout, overheads=lean)
    assert projections == layer_input + 2 * 3 * 2048
    # The first norm reads the layer's input: it is there once.
    every = MemoryOverheads(selective_keeps=tuple(field.name for field in fields(LayerActivations)))
    assert activation_bytes_per_token_layer(LLAMA, layout, overheads=every) == pytest.approx(whole)
    piped = layout.changed(pp=2)
    small, large = (memory_report(LLAMA, piped, H100, 8, 8192, stage=0, overheads=o) for o in (lean, None))
    assert small.total_bytes < large.total_bytes
    # one layer's other tensors come back while it runs backward
    assert small.working_set - large.working_set == pytest.approx(8192 * (whole - projections))


def test_rotary_tables_of_the_whole_sequence() -> None:
    """Of 2M positions: 64 sines and 64 cosines of 2 B in each of 32 layers, 16 GiB; 128 of either shared, 1 GiB."""
    model = Model(
        name="7b", layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn_hidden=11008, vocab=32000
    )
    kinds: tuple[RotaryTables, ...] = ("none", "shared", "layers")
    assert [rotary_table_bytes(model, kind, 32, 2**21) / 2**30 for kind in kinds] == [0.0, 1.0, 16.0]
    assert rotary_table_bytes(replace(model, learned_positions=2**21), "layers", 32, 2**21) == 0.0


def test_a_layer_computed_again_has_the_copies_of_its_operations() -> None:
    full = Layout(recompute="full").changed(pp=2)
    eager, lean = (
        memory_report(LLAMA, full, H100, 8, 8192, stage=0, overheads=MemoryOverheads(unfused_copies=copies))
        for copies in (True, False)
    )
    assert eager.activations == lean.activations
    copies = unfused_copies(LLAMA, full, moe=False)
    assert eager.working_set - lean.working_set == pytest.approx(8192 * copies)
