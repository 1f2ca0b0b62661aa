"""A measurement in another unit than its column's is named with that unit; one in the right unit never is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hdpsim.experiments.validation.units import SHOWN, unit_lines

# 256 sequences of 8,192 tokens in 4 s on 64 GPUs: 8,192 tokens/s per GPU.
RIGHT: dict[str, Any] = {
    "record": "mine", "quantity": "step_s", "n_gpus": 64, "gpus_per_node": 8, "seq_len": 8192,
    "global_batch_seqs": 256, "measured_share_of_peak": 0.4, "predicted_step_s": 4.0,
    "predicted_tokens_per_s_per_gpu": 8192.0, "predicted_tflops_per_gpu": 400.0, "predicted_mfu_pct": 40.0,
    "predicted_peak_mem_gb": 50.0,
}  # fmt: skip
TRUE = {
    "measured_step_s": 4.0, "measured_tokens_per_s_per_gpu": 8192.0, "measured_tflops_per_gpu": 400.0,
    "measured_mfu_pct": 40.0, "peak_mem_gb": 50.0,
}  # fmt: skip
SLIPS = {
    ("measured_step_s", "milliseconds"): 1e3,
    ("measured_step_s", "minutes"): 1 / 60,
    ("measured_tokens_per_s_per_gpu", "all GPUs"): 64,
    ("measured_tokens_per_s_per_gpu", "sequences"): 1 / 8192,
    ("measured_tflops_per_gpu", "all GPUs"): 64,
    ("measured_tflops_per_gpu", "PFLOP/s"): 1e-3,
    ("measured_mfu_pct", "a share"): 1e-2,
    ("peak_mem_gb", "MB"): 1e3,
}


@given(st.sampled_from(sorted(SLIPS)), st.floats(0.75, 1.3))
def test_a_slip_of_the_unit_is_named_whatever_the_error_of_the_prediction(
    slip: tuple[str, str], error: float
) -> None:
    column, words = slip
    row = RIGHT | {column: TRUE[column] * error}
    assert unit_lines([row]) == []
    assert words in unit_lines([row | {column: row[column] * SLIPS[slip]}])[0]


def test_a_batch_in_tokens_is_named() -> None:
    in_tokens = RIGHT | {
        "global_batch_seqs": 256 * 8192,
        "predicted_step_s": 4.0 * 8192,
        "measured_step_s": 4.1,
    }
    assert "tokens, not sequences" in unit_lines([in_tokens])[0]


def test_a_rate_that_its_own_step_denies_is_named() -> None:
    agrees = RIGHT | {"measured_step_s": 4.1, "measured_tokens_per_s_per_gpu": 256 * 8192 / 64 / 4.1}
    assert unit_lines([agrees]) == []
    # Tokens of a step of a GPU: 4.1 times the rate, and no more than four times the prediction.
    (line,) = unit_lines([agrees | {"measured_tokens_per_s_per_gpu": 256 * 8192 / 64}])
    assert "4.1 times" in line
    assert "tokens of a step" in line


def test_a_whole_table_in_another_unit_is_named_in_few_lines() -> None:
    lines = unit_lines([RIGHT | {"record": f"run {n}", "measured_step_s": 4100.0} for n in range(500)])
    assert len(lines) == SHOWN + 1
    assert f"and {500 - SHOWN} more" in lines[-1]


def test_a_peak_beyond_the_memory_of_the_gpu_is_named() -> None:
    row = RIGHT | {"peak_mem_gb": 84.0, "gpu_memory_gb": 85.0}
    assert unit_lines([row]) == []
    assert "more than the 85 GB" in unit_lines([row | {"peak_mem_gb": 120.0}])[0]


def test_what_is_not_said_is_not_doubted() -> None:
    assert unit_lines([RIGHT, RIGHT | {"measured_share_of_peak": None} | dict.fromkeys(TRUE)]) == []
