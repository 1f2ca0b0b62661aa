"""Residuals of validated runs as a file: written by `hdpsim validate --write-residuals`, read for every prediction."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.band import Band, Residual, Residuals, Stretches, band_words
from hdpsim.experiments.bands.features import Features, configuration_key, features_of
from hdpsim.experiments.bands.guessed_software import GuessedResiduals
from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
from hdpsim.simulator.setup import Setup

_STRETCHES = "# stretches: "


def residuals_path() -> Path:
    """The residuals shipped with hdpsim."""
    return shipped("experiments/data/residuals.csv")


@cache
def shipped_residuals() -> Residuals:
    """The residuals of the published runs."""
    return read_residuals(residuals_path())


@cache
def guessed_residuals() -> GuessedResiduals:
    """The residuals of the published runs with their software guessed, and of papers, whose set-ups say it."""
    _, rows, needed = _read(residuals_path())
    places = [place for place, row in enumerate(rows) if row.guessed]
    alone, new = (np.array([needed[place][which] for place in places]) for which in (0, 1))
    return GuessedResiduals([rows[place] for place in places], alone, new)


@cache
def residuals_without(source: str) -> Residuals:
    """The residuals of all published runs but those of a source, with the stretches that they alone give."""
    known = _read(residuals_path())[1]
    return Residuals([row for row in known if row.source != source and not row.guessed])


def read_residuals(path: Path) -> Residuals:
    """Read a file of residuals."""
    stretches, rows, _ = _read(path)
    return Residuals([row for row in rows if not row.guessed], stretches)


def _read(path: Path) -> tuple[Stretches, list[Residual], list[tuple[float, float]]]:
    """The stretches that a file begins with, its rows, and what each guessed one needs, see GuessedResiduals."""
    with path.open(encoding="utf-8", newline="") as file:
        stretches = Stretches(**json.loads(file.readline().removeprefix(_STRETCHES)))
        cells = list(csv.DictReader(file))
    rows = [
        Residual(
            features=Features.read(row),
            key=row["key"],
            source=row["source"],
            complete=row["complete"] == "True",
            log_error=float(row["log_error"]),
            guessed=row.get("guessed") == "True",
        )
        for row in cells
    ]
    needed = [(float(row.get("needed") or "nan"), float(row.get("needed_new") or "nan")) for row in cells]
    return stretches, rows, needed


def write_residuals(path: str, rows: Sequence[Residual]) -> Residuals:
    """Write a file of residuals, sorted, with the stretches of its bands and what guessed rows need.

    The set-ups of papers say all their software does: their rows count among the guessed ones as they are.

    Raises:
        UserInputError: the file cannot be written.
    """
    stated = sorted((row for row in rows if not row.guessed), key=_order)
    of_papers = [replace(row, guessed=True) for row in stated if row.source in _papers()]
    guessed = sorted(
        [*of_papers, *(row for row in rows if row.guessed and row.source not in _papers())], key=_order
    )
    shown, judged = Residuals(stated), GuessedResiduals(guessed)
    text = io.StringIO()
    known = {name: round(amount, 5) for name, amount in shown.stretches.known.items()}
    text.write(f"{_STRETCHES}{json.dumps({'new': round(shown.stretches.new, 5), 'known': known})}\n")
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Features)]
    writer.writerow(["source", "key", "complete", "guessed", *names, "log_error", "needed", "needed_new"])
    needed = [("", "")] * len(stated)
    needed += [(f"{a:.4f}", f"{n:.4f}") for a, n in zip(judged.needed_alone, judged.needed_new, strict=True)]
    for row, of_row in zip((*stated, *guessed), needed, strict=True):
        features = asdict(row.features).values()
        writer.writerow(
            [row.source, row.key, row.complete, row.guessed, *features, f"{row.log_error:.5f}", *of_row]
        )
    write_whole(path, text.getvalue(), "residuals")
    return shown


def _order(row: Residual) -> tuple[str, str, float]:
    return (row.source, row.key, row.log_error)


@cache
def _papers() -> frozenset[str]:
    """Sources whose residuals `hdpsim reproduce` writes."""
    return frozenset(folder.name for folder in (residuals_path().parent / "papers").iterdir())


def check_residuals(path: str) -> None:
    """Raise UserInputError unless rewrite_residuals can use *path*: asked before the minutes of work that it ends."""
    check_out_file(path, "--write-residuals")
    _held(path)


def rewrite_residuals(path: str, rows: Sequence[Residual], sources: Sequence[str] = ()) -> Residuals:
    """Write *rows* and what the file already holds of others: of all but *sources*, by default of papers.

    Residuals of papers come from `hdpsim reproduce`, the rest from `hdpsim validate`: each keeps the other's.

    Raises:
        UserInputError: the file is there and holds no residuals, or cannot be written.
    """
    shipped = _held(path)
    kept = [row for row in shipped if (row.source not in sources if sources else row.source in _papers())]
    return write_residuals(path, [*kept, *rows])


def _held(path: str) -> list[Residual]:
    """The rows of a file of residuals; none where there is no file, or an empty one."""
    if not Path(path).exists() or not Path(path).stat().st_size:
        return []
    try:
        return _read(Path(path))[1]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserInputError(f"{path}: is there and is no file of residuals; give another name") from None


def setup_features(setup: Setup, lengths: NDArray[np.int64]) -> tuple[Features, str]:
    """Features and configuration key of a step of *setup* on a batch of sequence lengths.

    Equal sequences on a static mesh are what published runs mostly are; other batches are dynamic, and their typical
    sequence is that of the typical token. Their key knows neither lengths nor strategy: what one strategy's error was
    says much of another's on the same model and context.
    """
    uniform = setup.strategy.name == "static" and bool((lengths == lengths[0]).all())
    typical = float((lengths.astype(np.float64) ** 2).sum() / lengths.sum())
    sequences, tokens = (len(lengths), int(lengths[0])) if uniform else (0, 0)
    key = configuration_key(setup, sequences, tokens, setup.context_tokens)
    return features_of(setup, typical, dynamic=not uniform), key


def setup_band(setup: Setup, lengths: NDArray[np.int64]) -> Band:
    """The band of a step of *setup* on a batch of sequence lengths.

    On nodes of several kinds, which no validated run has: as wide as the bands of all kinds together.
    """
    residuals = shipped_residuals() if setup.software_stated else guessed_residuals()
    bands = [residuals.band(*setup_features(kind, lengths)) for kind in setup.kinds]
    if len(bands) == 1:
        return bands[0]
    low, high = min(band.low for band in bands), max(band.high for band in bands)
    note = f"{band_words(low, high)}: the bands of its kinds of nodes together; no validated run mixes nodes"
    return replace(bands[0], low=low, high=high, alike=0, sources=(), in_sample=0, note=note)


def residual_lines(written: Residuals, path: str) -> tuple[str, ...]:
    """What was written, and how many of the runs its bands hold."""
    if not written.features:
        return "no run has an error that bands could rest on", f"wrote {path}"
    line = (
        f"bands hold {written.coverage():.1%} of the runs with their configuration left out; those of new sources, "
        f"stretched by {written.stretches.new:.2f}, {written.coverage('source'):.1%} with their whole source left out"
    )
    return line, f"wrote {path}"
