"""Records of kinds that no shipped one has: each is predicted, or has a reason; a spelling changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import HdpSimError
from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.software.choice import software_names
from hdpsim.experiments.software.run_config import SHAPE, Precision, Recompute, RunConfig, Sharding, Task

RUN = RunConfig(
    gpu="h100", n_gpus=16, gpus_per_node=8, year=2024, framework="NeMo", model_name="llama-3-8b", layers=8,
    hidden=2048, ffn_hidden=8192, heads=16, kv_heads=4, vocab=32000, gated_mlp=True, seq_len=4096, micro_batch=1,
    tp=2, pp=2, cp=1, global_batch_seqs=32, zero_stage="zero1", recompute="none", precision="bf16",
)  # fmt: skip
MAY_BE_EMPTY = (
    "n_gpus", "gpus_per_node", "year", "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab",
    "gated_mlp", "seq_len", "micro_batch", "tp", "pp", "cp", "global_batch_seqs", "zero_stage", "recompute",
    "precision",
)  # fmt: skip
GPUS = (*catalog.names("gpu"), "V100", "MI300X", "TPU v5p", "Gaudi 3")
FRAMEWORKS = ("", "OLMo-core", "Colossal-AI", "in-house", *software_names())


@given(
    changes=st.fixed_dictionaries(
        {
            "gpu": st.sampled_from(GPUS),
            "framework": st.sampled_from(FRAMEWORKS),
            "precision": st.sampled_from(get_args(Precision)),
            "zero_stage": st.sampled_from(get_args(Sharding)),
            "recompute": st.sampled_from(get_args(Recompute)),
            "task": st.sampled_from(get_args(Task)),
            "year": st.integers(2019, 2028),
            "seq_len": st.sampled_from((128, 8192, 1 << 20)),
            "ep": st.sampled_from((None, 1, 2)),
            "cp": st.sampled_from((None, 1, 2, 3)),
        }
    ),
    empty=st.sets(st.sampled_from(MAY_BE_EMPTY), max_size=3),
    memory_only=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_every_record_has_a_time_or_a_reason(
    changes: dict[str, object], empty: set[str], memory_only: bool
) -> None:
    config = replace(RUN, **{**changes, **dict.fromkeys(empty)})
    prediction = predict(config, memory_only=memory_only)
    if prediction.step_s is None:
        assert prediction.reason or (memory_only and prediction.memory is not None)
    else:
        assert 0.0 < prediction.step_s < math.inf
        assert not prediction.reason


@given(
    name=st.sampled_from(catalog.names("model")),
    empty=st.sets(st.sampled_from((*SHAPE, "kv_heads")), min_size=1),
)
@settings(deadline=None, max_examples=40)
def test_what_the_name_tells_need_not_be_written(name: str, empty: set[str]) -> None:
    """A mixture whose experts are left out is none the less one, and so are vocabularies and widths of heads."""
    model = catalog.model(name)
    stated = {column: getattr(model, field) for column, field in SHAPE.items()}
    latent = model.latent_attention is not None
    stated |= {"kv_heads": None if latent else model.kv_heads, "head_dim": None if latent else model.head_dim}
    config = replace(
        RUN,
        model_name=name,
        tp=1,
        pp=1,
        n_gpus=8,
        gpu="gb300",
        gpus_per_node=4,
        global_batch_seqs=16,
        **stated,
    )
    partly = replace(config, **dict.fromkeys(empty))
    assert predict(partly).step_s == predict(config).step_s is not None


@pytest.mark.parametrize(
    ("gpu", "precision", "reason"),
    [
        ("a100", "fp8", "a100-80gb has no such tensor cores"),
        ("h200", "nvfp4", "h200-141gb has no such tensor cores"),
        ("h100", "tf32", "matrix products in tf32 are not modelled"),
    ],
)
@pytest.mark.parametrize("memory_only", [False, True])
def test_a_format_that_cannot_be_is_a_reason(
    gpu: str, precision: Precision, reason: str, memory_only: bool
) -> None:
    prediction = predict(replace(RUN, gpu=gpu, precision=precision), memory_only=memory_only)
    assert reason in prediction.reason
    assert prediction.step_s is prediction.memory is None


def test_what_was_looked_for_and_not_found_is_said() -> None:
    prediction = predict(replace(RUN, tp=None, pp=None, n_gpus=1, hidden=16384, layers=126, heads=128))
    assert prediction.reason == (
        "tp is not stated, and on 1 GPUs none was found with which a replica fits into memory"
    )


@pytest.mark.parametrize("field", ["framework", "model_name", "gpu"])
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_a_spelling_changes_nothing(field: str, data: st.DataObject) -> None:
    """Case, and what stands between the words of a name, are the writer's."""
    written = data.draw(
        {
            "framework": st.sampled_from(
                (
                    "Megatron-Core 0.13",
                    "Megatron-LM",
                    "NeMo 24.03",
                    "torchtitan 2.8",
                    "GPT-NeoX",
                    "LLM-Foundry",
                )
            ),
            "model_name": st.sampled_from(("llama-3-8b", "gpt3-175b", "nemotron-4-15b", "deepseek-v3")),
            "gpu": st.sampled_from(("h100-sxm-80g", "a100-40gb", "b200-180gb")),
        }[field]
    )
    other = written.replace("-", data.draw(st.sampled_from("- _")))
    other = data.draw(st.sampled_from((str.lower, str.upper, str.title)))(other)
    one, two = (predict(replace(RUN, **{field: name})) for name in (written, other))
    assert one.step_s == two.step_s is not None


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 PCIe", "h100-80gb-pcie"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("B200 192GB", "b200-180gb"),
    ],
)
def test_gpus_are_known_as_their_drivers_name_them(spelled: str, name: str) -> None:
    assert catalog.gpu(spelled).name == name


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
    ],
)
def test_models_are_known_as_hubs_name_them(spelled: str, name: str) -> None:
    assert catalog.model(spelled).name == name


@pytest.mark.parametrize("path", ["./llama-3-8b", "../llama-3-8b", "/models/llama-3-8b", "my/own/llama-3-8b"])
def test_a_path_to_nothing_is_no_model_of_the_catalog(path: str) -> None:
    with pytest.raises(HdpSimError, match="there is no model"):
        catalog.model(path)
