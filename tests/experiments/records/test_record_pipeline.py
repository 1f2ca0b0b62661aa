"""What records say of their pipelines: schedule, chunks of layers, parameters that stay gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.records.setup import blocked, schedule_of, virtual_stages
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RunConfig


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("ZB-1p", "zb-h1"),
        ("ZB-2p", "zb-h2"),
        ("ZBV", "zb-v"),
        ("DualPipe", "dualpipe"),
        ("ZBVZeroBubble", "zb-v"),
        ("DualPipeV", "zb-v"),
        ("DualPipeX", "1f1b"),
    ],
)
def test_zero_bubble_schedules(name: str, schedule: str) -> None:
    record = RunConfig(gpu="h100", framework=f"fork ({name})")
    assert schedule_of(record, 1) == schedule
    assert bool(blocked(record)) == (schedule == "1f1b")


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "chunks"),
    [
        ("ZBV", 4, None, 2),
        ("DualPipeV", 4, 1, 2),
        ("ZB-V", 1, None, 1),
        ("ZB-2p", 4, 1, 1),
        ("DualPipe", 4, 1, 1),
    ],
)
def test_v_shaped_schedules_have_two_chunks(name: str, pp: int, vpp: int | None, chunks: int) -> None:
    record = RunConfig(gpu="h100", framework=f"fork ({name})", pp=pp, vpp=vpp)
    assert virtual_stages(Run(record), 32)[0] == chunks


@pytest.mark.parametrize(
    ("framework", "notes", "micro_batch", "calls"),
    [
        ("NeMo AutoModel (FSDP2)", "DeepEP; local batch 8", 2, 4),
        ("torchtitan (FSDP2)", "local batch size 16", None, 16),
        ("torchtitan (FSDP2)", "compiled", 1, None),
        ("Megatron-Core", "local batch 8", 1, None),
    ],
)
def test_the_local_batch_of_pytorchs_stacks_is_a_call_of_the_schedule(
    framework: str, notes: str, micro_batch: int | None, calls: int | None
) -> None:
    run = Run(RunConfig(gpu="h100", framework=framework, notes=notes, pp=4, micro_batch=micro_batch))
    setting = setting_of(run, "schedule_micro_batches")
    assert (setting and setting.value) == calls


@pytest.mark.parametrize(
    ("stated", "layout"),
    [
        ({"framework": "torchtitan", "zero_stage": "fsdp", "pp": 8}, True),
        ({"framework": "torchtitan", "zero_stage": "fsdp", "pp": 1}, False),
        ({"framework": "Megatron-Bridge", "zero_stage": "fsdp", "pp": 8}, False),
        ({"framework": "MaxText", "zero_stage": "fsdp", "pp": 8}, False),
        ({"framework": "torchtitan", "zero_stage": "zero1", "pp": 8}, False),
    ],
)
def test_pytorch_pipelines_keep_parameters_and_sum_gradients_at_the_end(
    stated: dict[str, Any], layout: bool
) -> None:
    run = Run(RunConfig(gpu="h100", **stated))
    for switch in ("stays_gathered", "gradient_overlap"):
        assert (setting_of(run, switch) is not None) is layout


@pytest.mark.parametrize(
    ("stated", "chunks"),
    [
        ({}, 8),  # 16 micro-batches for 16 stages
        ({"global_batch_seqs": 128 * 40}, 1),  # 40: enough
        ({"notes": "plain 1F1B"}, 1),
        ({"year": 2020}, 1),
        ({"vpp": 1}, 1),
        ({"global_batch_seqs": 128 * 40, "notes": "interleaved schedule"}, 8),
        ({"global_batch_seqs": 128 * 40, "notes": "not interleaved"}, 1),
    ],
)
def test_pipelines_too_short_to_fill_interleave(stated: dict[str, Any], chunks: int) -> None:
    known: dict[str, Any] = {
        "gpu": "h100", "year": 2024, "n_gpus": 16_384, "tp": 8, "pp": 16, "global_batch_seqs": 2048, **stated
    }  # fmt: skip
    assert virtual_stages(Run(RunConfig(**known)), 128)[0] == chunks


DEEPSEEK = RunConfig(
    gpu="GB200-NVL72", n_gpus=256, gpus_per_node=4, year=2026, framework="Megatron-Core v0.16",
    model_name="deepseek-v3", layers=61, hidden=7168, ffn_hidden=2048, heads=128, vocab=129280, gated_mlp=True,
    n_experts=256, topk=8, shared_expert_ffn=2048, seq_len=4096, global_batch_seqs=4096, micro_batch=1, tp=1, pp=8,
    vpp=4, cp=1, ep=32, dp=32, zero_stage="zero1", recompute="none", precision="bf16",
    notes="MLA; first 3 layers dense ffn 18432",
)  # fmt: skip


@pytest.mark.parametrize(
    "words",
    ["pipeline layout", "pp_layout =", "pipeline_model_parallel_layout:", "pipeline-model-parallel-layout"],
)
def test_a_cut_that_a_record_states_is_how_its_pipeline_is_cut(words: str) -> None:
    cut = "Et*3|(tt|)*29m|L"
    stated = replace(DEEPSEEK, notes=f"{DEEPSEEK.notes}; {words} {cut}")
    found = setting_of(Run(stated), "pipeline_layout")
    assert found is not None
    assert found.value == cut
    # The head alone on a chunk instead of beside a layer of multi-token prediction: less for a stage to wait for.
    by_hand, usual = predict(stated).step_s, predict(DEEPSEEK).step_s
    assert by_hand is not None
    assert usual is not None
    assert by_hand < usual


def test_a_cut_into_other_stages_than_the_record_has_is_a_reason() -> None:
    prediction = predict(replace(DEEPSEEK, notes=f"{DEEPSEEK.notes}; pp_layout Et*4|(t*4|)*14tmL"))
    assert prediction.step_s is None
    assert "has 16 stages, pp x vpp are 32" in prediction.reason


@given(st.text(alphabet="EtmL|()*0123456789", max_size=30))
def test_no_words_of_a_cut_stop_a_record_from_being_read(cut: str) -> None:
    record = RunConfig(gpu="h100", notes=f"pp_layout E{cut}tL")
    found = setting_of(Run(record), "pipeline_layout")
    assert found is None or isinstance(found.value, str)


@pytest.mark.parametrize(
    ("stated", "held"),
    [
        ({"framework": "torchtitan", "year": 2025}, True),
        ({"framework": "NeMo AutoModel", "year": 2025}, True),
        ({"framework": "torchtitan", "year": 2026}, False),  # asynchronous since
        ({"framework": "torchtitan", "year": 2025, "pp": 1}, False),
        ({"framework": "torchtitan (ZB-V)", "year": 2025}, False),
    ],
)
def test_transfers_of_pytorchs_schedules_hold_both_stages(stated: dict[str, Any], held: bool) -> None:
    found = setting_of(Run(RunConfig(gpu="h100", **{"pp": 4, **stated})), "pp_overlap")
    assert (found is not None and found.value is False) is held
