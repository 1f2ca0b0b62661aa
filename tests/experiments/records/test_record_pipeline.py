"""What records say of their pipelines: schedule, chunks of layers, parameters that stay gathered."""

from __future__ import annotations

from typing import Any

import pytest

from hdpsim.experiments.records.pipeline import blocked, schedule_of, virtual_stages
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run import RunConfig


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
    ("stated", "layout"),
    [
        ({"framework": "torchtitan", "zero_stage": "fsdp", "pp": 8}, True),
        ({"framework": "torchtitan", "zero_stage": "fsdp", "pp": 1}, False),
        ({"framework": "Megatron-Bridge", "zero_stage": "fsdp", "pp": 8}, False),
        ({"framework": "torchtitan", "zero_stage": "zero1", "pp": 8}, False),
    ],
)
def test_parameters_stay_gathered_in_pytorch_pipelines(stated: dict[str, Any], layout: bool) -> None:
    found = setting_of(Run(RunConfig(gpu="h100", **stated)), "stays_gathered")
    assert (found is not None) is layout


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
