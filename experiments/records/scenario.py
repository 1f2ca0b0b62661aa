"""The scenario of a record: what `hdpsim validate` predicts, as a file that `hdpsim simulate` times identically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hdpsim.cost_models.calibration.calibration import Calibration, load_calibration
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.records.columns import Record, read_records, shipped_records
from hdpsim.experiments.records.completion import completed
from hdpsim.experiments.records.setup import PreparedRun, prepare
from hdpsim.experiments.scenario.scenario import resolve_scenario
from hdpsim.experiments.scenario.setup_document import as_yaml, setup_document
from hdpsim.quoting import did_you_mean, printable


def record_scenario(
    name: str,
    path: str | None = None,
    calibration: str | None = None,
    without: frozenset[str] = frozenset(),
) -> str:
    """The scenario of the record of that name, with what had to be assumed as comments.

    Args:
        name: the record's id.
        path: CSV of records; None: the runs shipped with hdpsim.
        calibration: file of constants for the GPUs of its generation, instead of the shipped ones.
        without: classes of rules about software that are left out.

    Raises:
        UserInputError: an unusable file, or no record of that name.
        InfeasibleError: the record lacks something that cannot be assumed, or its time cannot be predicted.
    """
    record = _record_of(name, read_records(shipped_records() if path is None else path))
    own = None if calibration is None else load_calibration(calibration)
    config, filled = completed(record.config)
    prepared = prepare(config, own, without)
    if prepared.blocked:
        raise InfeasibleError(f"{record.name}: {prepared.blocked}")
    document = run_document(prepared, record.name, _description(record), calibration, own)
    resolve_scenario(document)  # what is written can be read
    words = [
        f"What `hdpsim validate` predicts for {record.name}; `hdpsim simulate` on this file gives the same times.",
        *(f"assumed: {text}" for text in (*filled, *prepared.assumptions)),
        *(f"not modelled: {text}" for text in prepared.not_modelled),
    ]
    head = "".join(f"# {printable(text, lines=False)}\n" for text in words)
    return f"{head}\n{as_yaml(document)}"


def run_document(
    prepared: PreparedRun,
    name: str,
    description: str = "a published run",
    path: str | None = None,
    own: Calibration | None = None,
) -> dict[str, Any]:
    """The scenario document of a run; *own* is the calibration of the file at *path*, where one was given."""
    sizes = set(prepared.round_tokens)
    lengths: object = list(prepared.round_tokens) if len(sizes) > 1 else f"{prepared.round_tokens[0]} tokens"
    count = prepared.sequences * len(prepared.round_tokens)
    used = path is not None and own is not None and prepared.setup.calibration == own
    return setup_document(
        prepared.setup,
        {"lengths": lengths, "batch": f"{count} sequences"},
        name=name,
        description=description,
        calibration=str(Path(path).absolute()) if used and path is not None else "default",
    )


def _description(record: Record) -> str:
    config = record.config
    software = f" with {config.framework}" if config.framework else ""
    return f"{config.model_name or 'a model'} on {config.n_gpus} x {config.gpu}{software}"


def _record_of(name: str, records: Sequence[Record]) -> Record:
    for record in records:
        if record.name == name:
            return record
    hint = did_you_mean(name, [record.name for record in records])
    raise UserInputError(f"--scenario-of: there is no record {name!r}{hint} among {len(records):,}")
