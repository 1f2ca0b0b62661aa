"""Residuals of validated runs as a file: written by `hdpsim validate --write-residuals`, read for every prediction."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.band import VIEWS, Band, Residual, Residuals, View, band_words
from hdpsim.experiments.bands.features import Features, configuration_key, features_of
from hdpsim.experiments.bands.new_source import NewSource
from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
from hdpsim.simulator.setup import Setup

_STRETCHES = "# stretches: "
_FIRST = "experiments/data/first_errors.csv"
_GUESSED = "No release of the software is stated"
_NEW = "No validated run is of the same source, so the band is as wide as first predictions of new sources were off"


def residuals_path() -> Path:
    """The residuals shipped with hdpsim."""
    return shipped("experiments/data/residuals.csv")


@cache
def first_errors() -> tuple[Residual, ...]:
    """First errors of sources that were written down before anybody predicted them; nothing remakes them."""
    return tuple(_read(shipped(_FIRST))[1])


def add_first_errors(rows: Sequence[Residual]) -> list[str]:
    """Add the rows of sources that have no first errors yet; the names of these."""
    held = first_errors()
    known = {row.source for row in held} | set(_shipped("known", guessed=False).stretches)
    added = [row for row in rows if row.source not in known]
    write_whole(str(shipped(_FIRST)), _as_csv(sorted([*held, *added], key=_order), {}), "first errors")
    return sorted({row.source for row in added})


def bands_of(source: str, *, guessed: bool, unseen: bool = False) -> Residuals:
    """What the band of a run rests on.

    Args:
        source: whose run it is.
        guessed: whether the name of its software is all that is known of it, so that the rest was guessed.
        unseen: take it for a source that nobody knows.
    """
    known = source in _shipped_stretches()[_named("known", guessed)]
    return _shipped("known" if known and not unseen else "new", guessed)


@cache
def _shipped_stretches() -> dict[str, dict[str, float]]:
    """What the shipped file begins with; its rows take much longer to read."""
    with residuals_path().open(encoding="utf-8", newline="") as file:
        return _stretches(file)


def _stretches(file: TextIO) -> dict[str, dict[str, float]]:
    stretches: dict[str, dict[str, float]] = json.loads(file.readline().removeprefix(_STRETCHES))
    return stretches


@cache
def _shipped(kind: str, guessed: bool) -> Residuals:
    return read_residuals(residuals_path(), kind, guessed=guessed)


def read_residuals(path: Path, kind: str = "known", *, guessed: bool = False) -> Residuals:
    """What a file says of runs of *known* sources, or of *new* ones."""
    view: View = "plain" if guessed else "published" if kind == "known" else "unseen"
    stretches, rows = _read(path, view)
    return _residuals(rows, kind, guessed, stretches[_named(kind, guessed)])


def _named(kind: str, guessed: bool) -> str:
    return f"{kind} guessed" if guessed else kind


def _residuals(
    rows: Sequence[Residual], kind: str, guessed: bool, stretches: Mapping[str, float] | None
) -> Residuals:
    """The rows of one view as bands of *known* or *new* sources."""
    about = _GUESSED if guessed else ""
    if kind == "known":
        return Residuals(rows, stretches, about)
    first = [row for row in first_errors() if row.view == ("plain" if guessed else "published")]
    return NewSource(rows, first, stretches, f"{_NEW}. {about}" if about else _NEW)


def _read(path: Path, view: View | None = None) -> tuple[dict[str, dict[str, float]], list[Residual]]:
    """The stretches that a file begins with, and its rows of a view; those of papers, which say all, are of every."""
    with path.open(encoding="utf-8", newline="") as file:
        stretches = _stretches(file)
        rows = csv.reader(file)
        columns = next(rows, [])
        views, sources = columns.index("view"), columns.index("source")
        cells = [  # dictionaries of those alone that are wanted, a third of the file
            dict(zip(columns, row, strict=True))
            for row in rows
            if view is None or row[views] == view or row[sources] in _papers()
        ]
    residuals = [
        Residual(
            features=Features.read(row),
            key=row["key"],
            source=row["source"],
            complete=row["complete"] == "True",
            log_error=float(row["log_error"]),
            view=VIEWS[VIEWS.index(row["view"])],
        )
        for row in cells
    ]
    return stretches, residuals


def write_residuals(path: str, rows: Sequence[Residual]) -> Residuals:
    """Write a file of residuals, sorted, with the stretches of its bands.

    Raises:
        UserInputError: the file cannot be written.
    """
    rows = sorted(rows, key=_order)
    stretches: dict[str, Mapping[str, float]] = {}
    written = Residuals([], {})
    for kind, guessed in product(("known", "new"), (False, True)):
        view = "plain" if guessed else "published" if kind == "known" else "unseen"
        seen = [row for row in rows if row.view == view or row.source in _papers()]
        judged = _residuals(seen, kind, guessed, None)
        stretches[_named(kind, guessed)] = {
            name: round(amount, 5) for name, amount in judged.stretches.items()
        }
        if (kind, guessed) == ("known", False):
            written = judged
    write_whole(path, _as_csv(rows, stretches), "residuals")
    return written


def _as_csv(rows: Sequence[Residual], stretches: Mapping[str, Mapping[str, float]]) -> str:
    text = io.StringIO()
    text.write(f"{_STRETCHES}{json.dumps(stretches)}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", "key", "complete", "view", *(f.name for f in fields(Features)), "log_error"])
    for row in rows:
        features = asdict(row.features).values()
        writer.writerow([row.source, row.key, row.complete, row.view, *features, f"{row.log_error:.5f}"])
    return text.getvalue()


def _order(row: Residual) -> tuple[str, str, str, float]:
    return (row.view, row.source, row.key, row.log_error)


@cache
def _papers() -> frozenset[str]:
    """Sources whose residuals `hdpsim reproduce` writes."""
    return frozenset(folder.name for folder in (residuals_path().parent / "papers").iterdir())


def check_residuals(path: str) -> None:
    """Raise UserInputError unless rewrite_residuals can use *path*: asked before the minutes of work that it ends."""
    check_out_file(path, "--write-residuals")
    _stored_residuals(path)


def rewrite_residuals(path: str, rows: Sequence[Residual], sources: Sequence[str] = ()) -> Residuals:
    """Write *rows* and what the file already holds of others: of all but *sources*, by default of papers.

    Residuals of papers come from `hdpsim reproduce`, the rest from `hdpsim validate`: each keeps the other's.

    Raises:
        UserInputError: the file is there and holds no residuals, or cannot be written.
    """
    shipped = _stored_residuals(path)
    kept = [row for row in shipped if (row.source not in sources if sources else row.source in _papers())]
    return write_residuals(path, [*kept, *rows])


def _stored_residuals(path: str) -> list[Residual]:
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
    residuals = bands_of("", guessed=not setup.software_stated)
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
    return (
        f"bands hold {written.coverage():.1%} of the runs with their configuration left out",
        f"wrote {path}",
    )
