"""Empty cells of a record that follow from others: filled in, and said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.software.run_config import RunConfig

RUN = RunConfig(
    gpu="h100", n_gpus=16, gpus_per_node=8, model_name="small", layers=8, hidden=2048, ffn_hidden=8192, heads=16,
    kv_heads=16, head_dim=128, vocab=32000, gated_mlp=True, seq_len=2048, global_batch_seqs=32, micro_batch=2, tp=2,
    pp=2, cp=1, vpp=1, dp=4, zero_stage="zero1", recompute="none", precision="bf16", attention="flash",
)  # fmt: skip
NO_SHAPE: dict[str, Any] = dict.fromkeys(
    ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "gated_mlp")
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_heads": None}, "as many key and value heads as heads"),
        ({"global_batch_seqs": None}, "one micro-batch a step on every rank"),
        ({"global_batch_seqs": None, "notes": "batch size per DP 8"}, "8 sequences a step on every rank"),
        (
            {"micro_batch": 3},
            "32 sequences do not divide by dp x micro_batch = 4 x 3: the busiest rank has 8",
        ),
        ({"tp": None}, "tp = 2 (what the other degrees leave)"),
        ({"tp": None, "pp": None, "dp": None}, "tp 1, pp 1: the fewest GPUs that hold a replica"),
        ({"cp": None}, "cp = 1 (what the other degrees leave)"),
        ({"heads": None, "head_dim": None, "kv_heads": None}, "heads 16"),
        ({"hidden": None}, ""),
        ({"ffn_hidden": None}, "ffn_hidden 5632"),
        ({"model_name": "llama-2-7b", **NO_SHAPE}, "shape of llama-2-7b"),
        ({"model_name": "llama-2-70b", **NO_SHAPE, "hidden": 8192}, "shape of llama-2-70b"),
        ({"model_name": "kimi-k2", "ep": 8, **NO_SHAPE}, "latent attention of kimi-k2"),
    ],
)
def test_a_record_that_lacks_something_is_completed_and_says_so(changes: dict[str, Any], words: str) -> None:
    prediction = predict(replace(RUN, **changes))
    assert prediction.step_s is not None, prediction.reason
    assert not words or any(words in assumption for assumption in prediction.assumptions), prediction


def test_a_complete_record_is_left_alone() -> None:
    assert not any("rank" in words for words in predict(RUN).assumptions)


def test_a_model_that_needs_more_than_a_server_gets_stages() -> None:
    large = replace(
        RUN, model_name="llama-3-405b", **NO_SHAPE, n_gpus=1024, tp=None, pp=None, dp=None, micro_batch=1
    )
    prediction = predict(replace(large, global_batch_seqs=1024, layers=126))
    words = next(words for words in prediction.assumptions if "fewest GPUs" in words)
    assert words.startswith("tp 8, pp ")
    assert prediction.memory is not None
    assert prediction.memory.fits


def test_a_run_that_would_not_fit_otherwise_recomputes() -> None:
    tight = replace(RUN, recompute=None, micro_batch=1, seq_len=131072, tp=1, pp=1, dp=16)
    words = "full recomputation: without it the run would not fit"
    assert words in predict(tight).assumptions
    assert words not in predict(replace(tight, recompute="none")).assumptions
    assert "no recomputation" in predict(replace(RUN, recompute=None)).assumptions
    # What the source says itself is believed; how it counts FLOP is not that.
    assert words not in predict(replace(tight, notes="bf16; no activation checkpointing")).assumptions
    assert words in predict(replace(tight, notes="MFU convention: 6 N, no recompute")).assumptions
    # Megatron repeats single modules of mixtures; PyTorch's FSDP wraps whole layers.
    mixture = replace(tight, n_experts=8, topk=2, ep=1, seq_len=65536, zero_stage="fsdp")
    assert words not in predict(replace(mixture, framework="Megatron-LM")).assumptions
    assert words in predict(replace(mixture, framework="NeMo AutoModel (FSDP2)")).assumptions


def test_a_contradicted_name_gives_no_shape() -> None:
    prediction = predict(replace(RUN, layers=None, model_name="llama-2-7b"))
    assert prediction.reason.startswith("layers is not stated, and llama-2-7b has other ")


def test_stages_are_not_cut_into_chunks_that_do_not_fit() -> None:
    run = replace(
        RUN, framework="Megatron-Core", n_experts=8, topk=2, vpp=None, tp=1, pp=4, dp=4, ep=4, micro_batch=1
    )
    assert "vpp 2" in predict(run).assumptions
    tight = predict(replace(run, seq_len=32768, layers=16))
    assert "vpp 1: chunks would not fit into memory" in tight.assumptions
    assert tight.step_s == predict(replace(run, seq_len=32768, layers=16, vpp=1)).step_s


JAX = replace(
    RUN, framework="MaxText", model_name="llama-2-70b", **NO_SHAPE, seq_len=4096, n_gpus=256, tp=1, pp=1,
    dp=256, global_batch_seqs=512, zero_stage="fsdp", recompute="selective",
)  # fmt: skip
"""Without a policy, all products kept, 256 GPUs would need 200 GB each."""


def chosen(config: RunConfig) -> list[str]:
    """What was assumed of policies and of groups that share parameters."""
    return [words for words in predict(config).assumptions if "policy " in words or "over 8" in words]


def test_the_policy_that_keeps_most_and_fits_is_taken() -> None:
    most, least = "policy save_dot_except_mlpwi", "policy save_qkv_proj"
    assert any(words.startswith(most) for words in chosen(JAX))
    assert any(
        words.startswith(least) for words in chosen(replace(JAX, micro_batch=4, global_batch_seqs=1024))
    )
    # Where none fits the run has the one that keeps least: it exists.
    assert any(
        words.startswith(least) for words in chosen(replace(JAX, micro_batch=16, global_batch_seqs=4096))
    )


def test_a_policy_that_is_stated_or_belongs_to_another_stack_is_not_chosen() -> None:
    assert not chosen(replace(JAX, recompute="full"))
    assert not chosen(replace(JAX, framework="torchtitan"))
    stated = replace(JAX, notes="remat_policy: save_qkv_proj")
    assert all("of those that fit" not in words for words in chosen(stated))
    assert predict(stated).step_s != predict(JAX).step_s


def test_parameters_that_a_server_cannot_hold_are_shared_by_more() -> None:
    # 70e9 parameters x 16 bytes / 8 GPUs = 138 GB; / 16 = 69 GB and activations; / 32 = 35 GB.
    many = predict(replace(JAX, zero_stage="hsdp"))
    words = [words for words in many.assumptions if "fewer cannot hold them" in words]
    assert words == [next(iter(words))]
    assert words[0].startswith("parameters sharded over 32 GPUs")
    assert many.memory is not None
    assert many.memory.fits
    few = replace(JAX, zero_stage="hsdp", model_name="llama-2-7b", micro_batch=1)
    assert not any("fewer cannot" in words for words in predict(few).assumptions)
    assert not any("fewer cannot" in words for words in predict(replace(JAX, zero_stage="fsdp")).assumptions)
