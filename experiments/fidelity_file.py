"""Residuals of validated runs as a file: written by `hdpsim validate --write-residuals`, read for every prediction."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.fidelity import Band, Residual, Residuals
from experiments.fidelity_features import Features, configuration_key, features_of
from hdpsim.errors import UserInputError
from simulator.setup import Setup

__all__ = ["read_residuals", "residuals_path", "setup_band", "shipped_residuals", "write_residuals"]

_STRETCH = "# stretch="


def residuals_path() -> Path:
    """The residuals shipped with hdpsim."""
    return Path(str(resources.files("experiments") / "data" / "residuals.csv"))


@cache
def shipped_residuals() -> Residuals:
    """The residuals of the published runs."""
    return read_residuals(residuals_path())


def read_residuals(path: Path) -> Residuals:
    """Read a file of residuals."""
    with path.open(encoding="utf-8", newline="") as file:
        stretch = float(file.readline().removeprefix(_STRETCH))
        rows = [
            Residual(
                features=Features.read(row),
                key=row["key"],
                source=row["source"],
                complete=row["complete"] == "True",
                log_error=float(row["log_error"]),
            )
            for row in csv.DictReader(file)
        ]
    return Residuals(rows, stretch)


def write_residuals(path: str, rows: Sequence[Residual]) -> Residuals:
    """Write a file of residuals, sorted, with the stretch of its bands.

    Raises:
        UserInputError: the file cannot be written.
    """
    names = [field.name for field in fields(Features)]
    ordered = sorted(rows, key=lambda row: (row.source, row.key, row.log_error))
    shown = Residuals([*ordered])
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            file.write(f"{_STRETCH}{shown.stretch:.6g}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["source", "key", "complete", *names, "log_error"])
            for row in ordered:
                features = asdict(row.features)
                writer.writerow(
                    [
                        row.source,
                        row.key,
                        row.complete,
                        *(features[name] for name in names),
                        f"{row.log_error:.5f}",
                    ]
                )
    except OSError as error:
        raise UserInputError(f"{path}: cannot be written: {error.strerror or error}") from None
    return shown


def setup_band(setup: Setup, lengths: NDArray[np.int64]) -> Band:
    """The band of a step of *setup* on a batch of sequence lengths.

    Equal sequences on a static mesh are what published runs are; other batches are dynamic, and their typical
    sequence is that of the typical token.
    """
    uniform = setup.strategy.name == "static" and bool((lengths == lengths[0]).all())
    typical = float((lengths.astype(np.float64) ** 2).sum() / lengths.sum())
    key = ""
    if uniform:
        key = configuration_key(setup, len(lengths), int(lengths[0]), setup.context_tokens)
    return shipped_residuals().band(features_of(setup, typical, dynamic=not uniform), key)
