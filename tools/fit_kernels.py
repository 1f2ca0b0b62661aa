"""Fit the kernel constants of one GPU generation on tables of measured kernels: how the shipped values were found.

    python tools/fit_kernels.py blackwell KERNELS.csv [MORE.csv.gz ...] [--constants gemm_efficiency,...]

Robust least squares (scipy, soft L1) on log(predicted / measured). Every group of rows with the same source, GPU,
kind and number format weighs alike, however many rows it has; of a long sweep every n-th row is taken.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

import numpy as np
from scipy.optimize import least_squares

from cost_models.calibration import Calibration, calibration
from experiments.kernel_check import _measured_s
from experiments.kernel_prediction import _gpu, predicted_s
from hdpsim.errors import HdpSimError

CONSTANTS = {
    "ampere": ("gemm_efficiency", "attention_forward_efficiency"),
    "hopper": ("gemm_efficiency", "fp8_gemm_efficiency", "fp8_joule_per_flop", "grouped_gemm_efficiency"),
    "blackwell": (
        "gemm_efficiency", "fp8_gemm_efficiency", "fp4_gemm_efficiency", "bf16_joule_per_flop",
        "fp8_joule_per_flop", "fp4_joule_per_flop", "attention_forward_efficiency",
        "attention_backward_efficiency", "attention_half_tokens", "grouped_gemm_efficiency",
        "weight_gradient_efficiency",
    ),
}  # fmt: skip
KINDS = ("gemm", "grouped_gemm", "flash_fwd", "flash_bwd")
ROWS_OF_A_GROUP = 200


def read(paths: Iterable[str], generation: str) -> dict[tuple[str, ...], list[Mapping[str, str]]]:
    """Rows of the generation by source, GPU, kind and format."""
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for path in paths:
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as lines:
            for row in csv.DictReader(lines):
                try:
                    if row["kind"] not in KINDS or row.get("suspect") or "BEST" in (row.get("notes") or ""):
                        continue
                    gpu = _gpu(row["gpu"])
                    if gpu.calibration != generation or not _measured_s(row):
                        continue
                    predicted_s(row, None)
                except HdpSimError:
                    continue
                groups[row["source"].partition(":")[0], row["gpu"], row["kind"], row["dtype"]].append(row)
    return {key: rows[:: max(1, len(rows) // ROWS_OF_A_GROUP)] for key, rows in groups.items()}


def fit(
    cal: Calibration, names: tuple[str, ...], groups: dict[tuple[str, ...], list[Mapping[str, str]]]
) -> None:
    """Print fitted constants with their standard errors and each group's error."""
    start = np.array([getattr(cal, name) for name in names])
    rows = [(row, 1.0 / math.sqrt(len(group))) for group in groups.values() for row in group]
    measured = np.array([_measured_s(row) for row, _ in rows])
    weight = np.array([w for _, w in rows])

    def logs(scale: np.ndarray) -> np.ndarray:
        changed = replace(cal, **dict(zip(names, (start * np.exp(scale)).tolist(), strict=True)))
        return np.log(np.array([predicted_s(row, changed) for row, _ in rows]) / measured)

    # soft L1 by iteratively reweighted residuals: weights of groups must not change where the loss bends
    def residuals(scale: np.ndarray) -> np.ndarray:
        errors = logs(scale)
        width = 0.1
        return weight * np.sign(errors) * width * np.sqrt(2 * (np.sqrt(1 + (errors / width) ** 2) - 1))

    result = least_squares(residuals, np.zeros(len(names)), diff_step=1e-3)
    values = start * np.exp(result.x)
    covariance = (
        np.linalg.pinv(result.jac.T @ result.jac) * 2 * result.cost / max(1, len(groups) - len(names))
    )
    for name, old, new, error in zip(names, start, values, np.sqrt(np.diag(covariance)), strict=True):
        print(f"{name:34s} {old:10.4g} -> {new:10.4g}  +- {100 * error:.1f} %")
    at, first = logs(result.x), 0
    for key, group in groups.items():
        part = np.expm1(at[first : first + len(group)])
        first += len(group)
        name = " ".join(key)[:80]
        print(
            f"{name:80s} {len(group):4d} median |error| {np.median(abs(part)):.3f} median {np.median(part):+.3f}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("generation")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--constants", default="")
    options = parser.parse_args()
    cal = calibration(options.generation)
    names = tuple(options.constants.split(",")) if options.constants else CONSTANTS[options.generation]
    unknown = set(names) - {field.name for field in fields(cal)}
    if unknown:
        parser.error(f"unknown constants: {', '.join(sorted(unknown))}")
    fit(cal, names, read(options.files, options.generation))


if __name__ == "__main__":
    main()
