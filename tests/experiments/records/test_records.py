"""Records of published runs: what is read, what is refused, and how a record becomes a setup."""

from __future__ import annotations

import csv
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hdpsim.errors import CatalogError, InfeasibleError, UserInputError
from hdpsim.experiments.records.columns import (
    REQUIRED_COLUMNS,
    SHAPE_COLUMNS,
    Record,
    read_records,
    shipped_records,
)
from hdpsim.experiments.records.completion import completed
from hdpsim.experiments.records.prediction import convention_of, predict, predict_step
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.simulator.step import simulate_step

ROW = {
    "gpu": "H100-SXM-80G", "n_gpus": "16", "gpus_per_node": "8", "model_name": "small", "layers": "8", "hidden": "2048",
    "ffn_hidden": "8192", "heads": "16", "kv_heads": "16", "vocab": "32000", "seq_len": "2048", "micro_batch": "2",
    "tp": "2", "pp": "2", "dp": "4", "zero_stage": "zero1", "recompute": "none", "global_batch_seqs": "32",
    "gated_mlp": "1", "precision": "bf16", "head_dim": "128", "vpp": "1", "cp": "1", "sp": "1", "attention": "flash",
}  # fmt: skip


def write(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def one(tmp_path: Path, **changes: str) -> Record:
    return read_records(write(tmp_path / "runs.csv", {**ROW, **changes}))[0]


def config(tmp_path: Path, **changes: str) -> RunConfig:
    return one(tmp_path, **changes).config


def test_the_shipped_records_are_read() -> None:
    records = read_records(shipped_records())
    assert len(records) == 919
    # 611 rows are complete; of those the suspect ones and those that are not pretraining do not count.
    assert sum(record.complete for record in records) == 611
    assert all(record.measured.ran for record in records)


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("precision", "BFloat16", "bf16"),
        ("precision", "fp8-blockwise", "fp8"),
        ("precision", "FP8_MX", "mxfp8"),
        ("precision", "bf16-mixed", "bf16"),
        ("zero_stage", "HYBRID_SHARD", "hsdp"),
        ("sp", "True", True),
        ("gated_mlp", "false", False),
        ("recompute", "core_attn", "selective"),
        ("zero_stage", "ZeRO-1", "zero1"),
        ("zero_stage", "FSDP2", "fsdp"),
        ("zero_stage", "3", "zero3"),
        ("recompute", "block", "full"),
        ("task", "fine-tuning", "sft"),
    ],
)
def test_other_spellings_of_a_choice(tmp_path: Path, column: str, text: str, value: object) -> None:
    assert getattr(config(tmp_path, **{column: text}), column) == value


def test_cells_become_values(tmp_path: Path) -> None:
    record = one(
        tmp_path, n_gpus="16.0", nic_gbps_per_gpu="", zero_stage="1", measured_step_s="2.5", suspect="1"
    )
    assert record.config.n_gpus == 16
    assert record.config.nic_gbps_per_gpu is None
    assert record.config.zero_stage == "zero1"
    assert record.config.gated_mlp is True
    assert record.measured.measured_step_s == 2.5
    assert record.name == "row 2"
    assert not record.counts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"n_gpus": "many"},
            r"runs.csv, row 2: n_gpus: expected a whole number of at least 1, got 'many'; or an empty cell",
        ),
        ({"layers": "2.5"}, "row 2: layers: expected a whole number"),
        ({"tp": "0"}, "row 2: tp: expected a whole number"),
        ({"pp": "-1"}, "row 2: pp"),
        ({"seq_len": "nan"}, "row 2: seq_len"),
        (
            {"measured_step_s": "-3"},
            "row 2: measured_step_s: expected a number from 1e-09 to 1e.09 s, got -3",
        ),
        ({"measured_step_s": "inf"}, "row 2: measured_step_s"),
        ({"sp": "yes"}, "row 2: sp: expected 0 or 1, got 'yes'"),
        ({"recompute": "some"}, "row 2: recompute: 'some' is not one of none, selective, full"),
        ({"precision": "bf61"}, r"did you mean 'bf16'"),
        (
            {"recompute": "", "remat_policy": "save_it"},
            "row 2: remat_policy: 'save_it' is not one of save_out_proj",
        ),
        ({"remat_policy": "minimal"}, "row 2: remat_policy: goes with recompute selective, not none"),
        ({"gpu": ""}, "row 2: gpu: is empty"),
    ],
)
def test_a_bad_cell_is_named_with_file_and_row(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        one(tmp_path, **changes)


@pytest.mark.parametrize("column", REQUIRED_COLUMNS)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    row = {name: value for name, value in ROW.items() if name != column}
    with pytest.raises(UserInputError, match=rf"runs.csv: missing column {column}; needed"):
        read_records(write(tmp_path / "runs.csv", row))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing columns gpu"),
        (",".join(ROW) + "\n", "holds no records below its header"),
        (
            ",".join(ROW).replace("micro_batch", "microbatch"),
            "column micro_batch; 'microbatch' is not read .did you mean 'micro_batch'",
        ),
        (",".join(ROW) + "\n1,2\n", "row 2: 2 fields, but the header has"),
        (",".join([*ROW, "tp"]) + "\n", "column tp appears more than once"),
        (";".join(ROW) + "\n", "its columns are separated by semicolons; expected commas"),
        ("\t".join(ROW) + "\n", "its columns are separated by tabs; expected commas"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(UserInputError, match=message):
        read_records(path)


def test_a_file_may_be_packed(tmp_path: Path) -> None:
    plain = write(tmp_path / "runs.csv", ROW)
    packed = tmp_path / "runs.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_records(packed) == read_records(plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(UserInputError, match="the gzip compression is damaged"):
        read_records(packed)


@pytest.mark.parametrize("micro_batch", ["2", "100000000"])
def test_an_endless_batch_is_a_reason(tmp_path: Path, micro_batch: str) -> None:
    found = predict(config(tmp_path, global_batch_seqs="100000000", micro_batch=micro_batch))
    assert found.step_s is None
    assert "global_batch_seqs must be a whole number from 1 to 1,000,000 sequences" in found.reason


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="no such file"):
        read_records(tmp_path / "none.csv")


def test_a_record_becomes_a_setup(tmp_path: Path) -> None:
    prepared = prepare(config(tmp_path))
    setup = prepared.setup
    assert (setup.layout.parallel.tp, setup.layout.parallel.pp, setup.layout.parallel.cp, setup.ranks) == (
        2,
        2,
        1,
        4,
    )
    assert setup.context_tokens == setup.layout.context.rank_capacity_tokens == 2 * 2048
    assert prepared.micro_batches == 32 // (4 * 2)
    assert setup.cluster.nodes == 2
    assert setup.cluster.node.nic_bytes_per_s == 50e9
    assert prepared.assumptions == ("network of 400 Gbit/s per GPU", "non-blocking rail-optimised fabric")
    assert prepared.not_modelled == ()
    assert prepared.blocked == ""


def test_context_parallel_ranks_share_a_micro_batch(tmp_path: Path) -> None:
    setup = prepare(config(tmp_path, cp="2", dp="2")).setup
    assert setup.context_tokens == 4096
    assert setup.layout.context.rank_capacity_tokens == 2048


@pytest.mark.parametrize(
    ("changes", "gpus", "rate", "nodes"),
    [
        ({"gpu": "A100-80G-SXM"}, 8, 25e9, 2),
        ({"gpu": "A100-80G-SXM", "nic_gbps_per_gpu": "100"}, 8, 12.5e9, 2),
        ({"n_gpus": "4", "dp": "1"}, 4, 50e9, 1),
        ({"gpus_per_node": "4"}, 4, 50e9, 4),
        # 128 GPUs are no whole racks of 72: two domains of 64.
        (
            {
                "gpu": "GB200-NVL72",
                "gpus_per_node": "4",
                "n_gpus": "128",
                "dp": "32",
                "global_batch_seqs": "64",
            },
            64,
            50e9,
            2,
        ),
    ],
)
def test_the_cluster_is_what_the_run_used(
    tmp_path: Path, changes: dict[str, str], gpus: int, rate: float, nodes: int
) -> None:
    cluster = prepare(config(tmp_path, **changes)).setup.cluster
    assert (cluster.node.gpus, cluster.nodes) == (gpus, nodes)
    assert cluster.node.nic_bytes_per_s_per_gpu == rate
    assert cluster.node.board_gpus == (4 if gpus == 4 and nodes > 1 else None)


def test_two_of_four_gpus_have_a_third_of_their_links(tmp_path: Path) -> None:
    """Servers of four have no switch: each GPU's links run in equal parts to the three others."""
    pair = {"n_gpus": "2", "tp": "2", "dp": "1", "pp": "1", "ep": "1", "n_experts": "", "topk": ""}
    of_eight, of_four = (
        prepare(config(tmp_path, **pair, gpus_per_node=per_node)).setup.cluster.node
        for per_node in ("8", "4")
    )
    assert (of_eight.gpus, of_eight.board_gpus) == (2, None)
    assert (of_four.gpus, of_four.board_gpus) == (2, 4)


def test_what_the_source_does_not_say_is_assumed_and_said(tmp_path: Path) -> None:
    silent = ("micro_batch", "recompute", "vpp", "zero_stage", "sp", "precision", "gated_mlp", "vocab")
    prepared = prepare(config(tmp_path, **dict.fromkeys(silent, "")))
    for words in ("1 sequence", "no recomputation", "vpp 1", "not sharded", "sequence parallelism", "bf16", "gated MLP",
                  "vocabulary of 51,200"):  # fmt: skip
        assert any(words in assumption for assumption in prepared.assumptions), words
    assert prepared.setup.layout.tensor.sequence_parallel


@pytest.mark.parametrize(("notes", "etp"), [("", None), ("ETP 1; x", 1), ("ETP = TP (no folding); x", 2)])
def test_how_experts_are_cut_is_assumed_where_nothing_says_it(
    tmp_path: Path, notes: str, etp: int | None
) -> None:
    experts = {"n_experts": "8", "topk": "2", "ep": "2", "tp": "2", "dp": "4", "pp": "1", "n_gpus": "8"}
    prepared = prepare(config(tmp_path, **experts, gpus_per_node="8", vpp="1", notes=notes))
    assert prepared.setup.layout.parallel.etp == etp
    assert any("each expert whole" in words for words in prepared.assumptions) == (etp is None)


def test_models_without_a_gate_are_gpt_unless_the_catalog_knows_better(tmp_path: Path) -> None:
    gpt = prepare(config(tmp_path, gated_mlp="0")).setup.model
    assert (gpt.biases, gpt.tied_embeddings, gpt.learned_positions) == (True, True, 2048)
    shape = {"hidden": "6144", "heads": "48", "kv_heads": "8", "ffn_hidden": "24576", "vocab": "256000"}
    changes = {"model_name": "nemotron4-15b", "gated_mlp": "0", "framework": "Megatron-LM", **shape}
    prepared = prepare(config(tmp_path, **changes))
    plain = prepared.setup.model
    assert (plain.biases, plain.tied_embeddings, plain.learned_positions, plain.dropout) == (
        False,
        False,
        0,
        False,
    )
    assert plain.norm == "layer"
    assert any("as nemotron-4-15b" in words for words in prepared.assumptions)
    assert prepare(config(tmp_path, gated_mlp="0", framework="Megatron-LM")).setup.model.dropout
    own = prepare(config(tmp_path, gated_mlp="0", model_name="nanochat-d24")).setup.model
    assert (own.norm, own.qk_norm, own.biases, own.tied_embeddings, own.learned_positions) == (
        "rms", True, False, False, 0,
    )  # fmt: skip
    assert (own.sliding_window, own.full_attention_every) == (1024, 4)


def test_notes_tell_what_no_column_holds(tmp_path: Path) -> None:
    model = prepare(
        config(
            tmp_path,
            model_name="deepseek-v3",
            hidden="7168",
            heads="128",
            kv_heads="",
            head_dim="",
            n_experts="256",
            topk="8",
            ffn_hidden="2048",
            shared_expert_ffn="2048",
            notes="MLA; first 3 layers dense ffn 18432",
        )
    ).setup.model
    assert model.latent_attention is not None
    assert model.latent_attention.kv_lora_rank == 512
    assert (model.dense_layers, model.dense_ffn_hidden) == (3, 18432)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_gpus": ""}, "n_gpus is not stated"),
        ({"kv_heads": "3"}, "kv_heads = 3 does not divide the 16 heads"),
        ({"dp": "8"}, r"tp x pp x cp x dp = 2 x 2 x 1 x 8 is not 16 GPUs"),
        ({"tp": "3"}, "16 GPUs do not divide"),
        ({"n_gpus": "12", "dp": "3"}, "12 GPUs are not whole nodes of 8"),
        ({"n_experts": "8"}, "topk is not stated"),
    ],
)
def test_a_record_that_lacks_or_contradicts_something_has_a_reason(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    bad = config(tmp_path, **changes)
    with pytest.raises(InfeasibleError, match=message):
        prepare(bad)
    assert predict(bad).step_s is None
    assert predict(bad).reason


def test_an_unknown_gpu_is_a_reason_too(tmp_path: Path) -> None:
    bad = config(tmp_path, gpu="TPUv4")
    with pytest.raises(CatalogError):
        prepare(bad)
    assert "TPUv4" in predict(bad).reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"framework": "torchtitan", "notes": "schedule DualPipeX"}, "pipeline schedule DualPipeX"),
        ({"framework": "Megatron-LM fork (ZB-9p)"}, "pipeline schedule ZB-9p"),
    ],
)
def test_what_is_not_modelled_has_memory_but_no_time(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    prediction = predict(config(tmp_path, **changes))
    assert prediction.step_s is None
    assert message in prediction.reason
    assert prediction.peak_mem_gb is not None


def test_throughput_follows_from_the_step(tmp_path: Path) -> None:
    prediction = predict(config(tmp_path))
    assert prediction.step_s is not None
    assert prediction.tokens_per_s_per_gpu == pytest.approx(32 * 2048 / 16 / prediction.step_s)
    assert sum(seconds for _, seconds in prediction.account_s) == pytest.approx(prediction.step_s)


def test_attention_stays_inside_its_sequence(tmp_path: Path) -> None:
    # Twice as many sequences in half as many micro-batches: the same attention, not the square of a longer pack.
    small, large = (
        dict(predict(config(tmp_path, micro_batch=m, seq_len="8192")).account_s)["attention"]
        for m in ("1", "2")
    )
    assert 0.85 * small < large < small  # as much work; sequences of one kernel share its last wave


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cp": "2", "dp": "2"},
        {"pp": "1", "dp": "8"},
        {"vpp": "2"},
        {"vpp": "4", "n_gpus": "64", "dp": "16"},
    ],
)
def test_a_record_is_timed_as_simulate_times_its_batch(tmp_path: Path, changes: dict[str, str]) -> None:
    prepared = prepare(config(tmp_path, **changes))
    whole = simulate_step(prepared.setup, [prepared.seq_len] * prepared.sequences)
    step_s, accounts = predict_step(prepared)
    assert step_s == whole.step_s
    means = dict(zip(whole.accounts, whole.account_s.mean(axis=(1, 2)), strict=True))
    assert dict(accounts) == means


def test_flop_conventions_by_hand(tmp_path: Path) -> None:
    # SC21: 96 B s l h^2 (1 + s / 6h + V / 16 l h) for full recomputation, GPT without a gate, 4h wide.
    run = config(tmp_path, gated_mlp="0", recompute="full", notes="HARDWARE FLOPs convention")
    layers, hidden, tokens, vocab, length = 8, 2048, 32 * 2048, 32000, 2048
    hardware = 96 * tokens * layers * hidden**2 * (1 + length / 6 / hidden + vocab / 16 / layers / hidden)
    prediction = predict(run)
    assert prediction.step_s is not None
    assert prediction.convention == "hardware, full attention"
    assert prediction.tflops_per_gpu == pytest.approx(hardware / 16 / prediction.step_s / 1e12)
    # Model FLOP: 72 B s l h^2 (1 + s / 6h + V / 12 l h); causal attention counts half of the s / 6h.
    full = 72 * tokens * layers * hidden**2 * (1 + length / 6 / hidden + vocab / 12 / layers / hidden)
    causal = 72 * tokens * layers * hidden**2 * (1 + length / 12 / hidden + vocab / 12 / layers / hidden)
    assert prediction.rates["model, full attention"] == pytest.approx(full / 16 / prediction.step_s / 1e12)
    assert prediction.rates["model, causal attention"] == pytest.approx(
        causal / 16 / prediction.step_s / 1e12
    )


@pytest.mark.parametrize(
    ("changes", "convention"),
    [
        ({}, "model, full attention"),
        ({"notes": "model FLOPs with causal-half attention"}, "model, causal attention"),
        (
            {"notes": "model FLOPs with full (non-causal) attention", "family": "bloom"},
            "model, full attention",
        ),
        ({"family": "bloom"}, "hardware, full attention"),
        ({"framework": "Megatron-Bridge 26.02"}, "model, causal attention"),
    ],
)
def test_the_convention_is_the_source_s(changes: dict[str, str], convention: str) -> None:
    assert convention_of(replace(RunConfig(gpu="h100"), **changes)) == convention  # type: ignore[arg-type]


def test_published_tflops_and_tokens_agree_under_the_conventions() -> None:
    """Measured TFLOP/s over measured tokens/s is FLOP per token: ours must be the source's, to rounding."""
    wanted = ("megatron-lm-0001", "bloom-0001", "llm-foundry-0013", "moe-folding-0067")
    for record in (r for r in read_records(shipped_records()) if r.name in wanted):
        prediction, measured = predict(record.config), record.measured
        assert prediction.tflops_per_gpu is not None
        assert prediction.tokens_per_s_per_gpu is not None
        assert measured.measured_tflops_per_gpu is not None
        assert measured.measured_tokens_per_s_per_gpu is not None
        ours = prediction.tflops_per_gpu / prediction.tokens_per_s_per_gpu
        theirs = measured.measured_tflops_per_gpu / measured.measured_tokens_per_s_per_gpu
        assert ours == pytest.approx(theirs, rel=0.003), record.name


def test_published_mfu_is_of_the_peak_in_the_format_of_the_products() -> None:
    wanted = ("llm-foundry-0013", "llm-foundry-0071", "moe-folding-0067")  # the second one in 8 bits
    for record in (r for r in read_records(shipped_records()) if r.name in wanted):
        prediction, measured = predict(record.config), record.measured
        assert None not in (prediction.mfu_pct, prediction.tflops_per_gpu)
        assert None not in (measured.measured_mfu_pct, measured.measured_tflops_per_gpu)
        theirs = measured.measured_mfu_pct / measured.measured_tflops_per_gpu  # type: ignore[operator]
        ours = prediction.mfu_pct / prediction.tflops_per_gpu  # type: ignore[operator]
        assert ours == pytest.approx(theirs, rel=0.005), record.name


@pytest.mark.parametrize(
    ("stated", "convention"),
    [
        ({"framework": "NeMo AutoModel"}, "model, causal attention"),
        ({"framework": "Megatron-Core (MoE ModelZoo)"}, "model, causal attention"),
        ({"framework": "Megatron-DeepSpeed"}, "hardware, full attention"),
        ({"framework": "InternEvo", "recompute": "full"}, "hardware, full attention"),
        ({"framework": "InternEvo", "recompute": "none"}, "model, full attention"),
        (
            {"framework": "InternEvo", "recompute": "none", "notes": "hardware FLOPs"},
            "hardware, full attention",
        ),
        ({"framework": "Megatron-Bridge", "notes": "full (non-causal) attention"}, "model, full attention"),
        ({"framework": "PyTorch"}, "model, full attention"),
    ],
)
def test_flop_are_counted_as_the_framework_counts_them(
    tmp_path: Path, stated: dict[str, str], convention: str
) -> None:
    assert convention_of(config(tmp_path, **stated)) == convention


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "_name_or_path": "acme/own", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16,
    "head_dim": 128, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


def test_the_shape_may_come_from_the_catalog_or_from_a_file_beside_the_records(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text(json.dumps(CONFIG))
    bare = {
        name: value for name, value in ROW.items() if name not in (*SHAPE_COLUMNS, "head_dim", "gated_mlp")
    }
    for name, layers in (("llama-3-8b", 32), ("own/config.json", 8)):
        path = write(tmp_path / "runs.csv", {**bare, "model_name": name})
        prediction = predict(read_records(path)[0].config)
        assert prediction.step_s is not None
        assert prepare(completed(read_records(path)[0].config)[0]).setup.model.layers == layers
        assert any(words.startswith("shape of ") for words in prediction.assumptions)
    assert predict(config(tmp_path)).step_s == prediction.step_s  # the file's shape is that of the row
    with pytest.raises(UserInputError, match=r"row 2: model_name: .*config.json"):
        one(tmp_path, model_name="other/config.json")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-33-8b", r"hidden, heads.* are not stated, and the catalog has no model 'llama-33-8b'"),
        ("", r"are not stated, and no model is named"),
        ("llama-3-8b", r"is not stated, and llama-3-8b has other heads than the record"),
    ],
)
def test_a_shape_that_nothing_tells_says_where_it_was_looked_for(
    tmp_path: Path, name: str, words: str
) -> None:
    empty = dict.fromkeys(SHAPE_COLUMNS, "")
    if name == "llama-3-8b":
        empty |= {"heads": "16", "hidden": "4096", "ffn_hidden": "14336"}
    assert re.search(words, predict(config(tmp_path, model_name=name, **empty)).reason)
