"""Reading a recorded job: a table of operations (parquet or CSV) and a YAML file with the degrees."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.reading.fields import Fields, Problems
from hdpsim.errors import TraceError, UserInputError
from hdpsim.experiments.output.files.csv import as_number
from hdpsim.quoting import LONGEST_NAME, did_you_mean, quoted, shortened
from hdpsim.ranges import LIMITS, RANGES
from hdpsim.reading import UnreadableError, open_trace, regular_file
from hdpsim.simulator.recorded.operations import COMPUTE, KINDS, RecordedJob, is_kind
from hdpsim.yaml_loader import load_document

if TYPE_CHECKING:
    import pandas as pd


_INTEGERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
_SECONDS = ("start_ts", "duration")

COLUMNS = (*_INTEGERS, *_SECONDS, "optype")
"""The columns a trace needs; others are ignored."""

_LONGEST_S = 1e6  # an operation or a step of eleven days is milliseconds taken for seconds
# thousands of years after 1970, in seconds; later ones are no seconds, and lose the microseconds
_LATEST_S = 1e11


_OF_COLUMN = {
    "data_parallel_rank": "dp_rank", "stage": "stage", "rank": "rank", "sequence": "seq_id", "chunk": "mc",
}  # fmt: skip


def read_recorded_job(trace: str | Path, meta: str | Path) -> RecordedJob:
    """Return the job recorded in *trace* with the degrees of *meta*, checked against each other.

    Raises:
        UserInputError: a file, a column, a row or a degree that cannot be used.
    """
    path = Path(trace)
    name, degrees = _read_meta(Path(meta))
    table = _read_table(path)
    if not len(table):
        raise TraceError("holds no operations", str(path))
    integers = {column: _integers(table, column, path) for column in _INTEGERS}
    start_s, duration_s = (_numbers(table, column, path) for column in _SECONDS)
    kind = _kinds(table, path)
    too_long, too_late = (duration_s < 0) | (duration_s > _LONGEST_S), np.abs(start_s) > _LATEST_S
    _refuse(path, too_long, lambda row: f"duration is {duration_s[row]:g}; expected 0 to {_LONGEST_S:g} s")
    _refuse(
        path, too_late, lambda row: f"start_ts is {start_s[row]:g}; expected seconds, at most {_LATEST_S:g}"
    )
    steps, step = np.unique(integers["step"], return_inverse=True)
    first_s = np.full(len(steps), np.inf)
    np.minimum.at(first_s, step, start_s)
    after_s = start_s - first_s[step]
    starts_late = after_s > _LONGEST_S
    _refuse(
        path, starts_late, lambda row: f"starts {after_s[row]:g} s after its step; at most {_LONGEST_S:g} s"
    )
    job = RecordedJob(
        name=name,
        data_parallel=degrees["dp_size"],
        stages=degrees["pp_size"],
        chunks=degrees["vpp_size"],
        gpus=degrees["world_size"],
        steps=steps,
        step=step.astype(np.int64),
        kind=kind,
        **{field: integers[column] for field, column in _OF_COLUMN.items()},
        virtual_stage=np.where(is_kind(kind, *COMPUTE), integers["gmc"], -1),
        start_s=after_s,
        duration_s=duration_s,
    )
    _check_degrees(job, path, Path(meta))
    _check_complete(job, path)
    return job


def _refuse(path: Path, bad: Bools, words: Callable[[int], str]) -> None:
    """Raise TraceError with the words for the first row that is *bad*."""
    if bad.any():
        row = int(bad.argmax())
        raise TraceError(words(row), str(path), row + 1)


def _read_meta(path: Path) -> tuple[str, dict[str, int]]:
    document = load_document(path)
    problems = Problems(str(path), document.where)
    fields = Fields(document.data, problems)
    name = fields.text("trial_name", default=path.stem)
    fields.integer("run_id", minimum=0, default=0)
    degrees = {key: fields.integer(key, kind=kind) for key, kind in (("dp_size", "dp"), ("pp_size", "pp"))}
    degrees |= {
        key: fields.integer(key, default=1, kind=kind)
        for key, kind in (("tp_size", "tp"), ("dsp_size", "cp"), ("vpp_size", "vpp"))
    }
    product = degrees["dp_size"] * degrees["pp_size"] * degrees["tp_size"] * degrees["dsp_size"]
    degrees["world_size"] = fields.integer(
        "world_size", default=min(product, int(RANGES["gpus"].high)), kind="gpus"
    )
    fields.finish()
    if not problems.found and degrees["world_size"] != product:
        problems.add(
            "world_size",
            f"is {degrees['world_size']}, but dp_size x pp_size x tp_size x dsp_size is {product}",
        )
    problems.raise_if_any()
    return name, degrees


def _read_table(path: Path) -> pd.DataFrame:
    """The columns that count (in any order, others left out), and not more operations than fit into memory."""
    import pandas as pd
    import pyarrow as pa

    regular_file(path)
    name = path.name.lower()
    most, why = LIMITS["operations"]
    try:
        if name.endswith((".parquet", ".pq")):
            table = _parquet(path, most)
        elif name.endswith((".csv", ".csv.gz")):
            packed = name.endswith(".gz")
            with open_trace(path, packed, "operations_bytes") as file:
                wanted = _columns_to_read(path, list(pd.read_csv(file, nrows=0).columns))
            with open_trace(path, packed, "operations_bytes") as file:
                table = pd.read_csv(file, nrows=most + 1, usecols=wanted, low_memory=False)
        else:
            raise UserInputError(f"{path}: expected a name that ends in .parquet, .pq, .csv or .csv.gz")
    except UnreadableError as error:
        raise TraceError(error.reason, str(path)) from None
    except (pa.ArrowException, ValueError, OSError, EOFError, zlib.error) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TraceError(f"cannot be read ({shortened(reason, LONGEST_NAME)})", str(path)) from None
    if len(table) > most:
        raise TraceError(f"holds more than {most:,} operations: {why}", str(path))
    return table


def _parquet(path: Path, most: int) -> pd.DataFrame:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows > most:
            raise TraceError(
                f"holds {file.metadata.num_rows:,} operations; at most {most:,}: {LIMITS['operations'][1]}",
                str(path),
            )
        table: pd.DataFrame = file.read(columns=_columns_to_read(path, file.schema_arrow.names)).to_pandas()
        return table


def _columns_to_read(path: Path, columns: list[str]) -> list[str]:
    """The columns to read, which must all be there."""
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        present = shortened(", ".join(str(column) for column in columns[:20]), LONGEST_NAME)
        raise TraceError(f"no column {', '.join(missing)}; the columns are {present}", str(path))
    return list(COLUMNS)


def _numbers(table: pd.DataFrame, column: str, path: Path) -> Floats:
    import pandas as pd

    values = table[column]
    if pd.api.types.is_bool_dtype(values) or pd.api.types.is_datetime64_any_dtype(values):
        raise TraceError(f"column {column} holds {values.dtype}; expected numbers", str(path))
    try:
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    except (OverflowError, ValueError):  # a whole number of hundreds of digits
        numbers = np.array([as_number(str(value)) for value in values])
    wrong = ~np.isfinite(numbers)
    _refuse(path, wrong, lambda row: f"{column} is {quoted(values.iloc[row])}; expected a finite number")
    return numbers


def _integers(table: pd.DataFrame, column: str, path: Path) -> Ints:
    numbers = _numbers(table, column, path)
    bad = (numbers != np.rint(numbers)) | (np.abs(numbers) > 2**31)
    _refuse(path, bad, lambda row: f"{column} is {numbers[row]:g}; expected a whole number")
    return numbers.astype(np.int64)


def _kinds(table: pd.DataFrame, path: Path) -> Ints:
    texts = table["optype"].astype(str)
    numbers = texts.map({kind: i for i, kind in enumerate(KINDS)}).astype("float64").to_numpy()

    def words(row: int) -> str:
        name = str(texts.iloc[row])
        return f"optype {quoted(name)} is not known{did_you_mean(name, KINDS)}; known: {', '.join(KINDS)}"

    _refuse(path, np.isnan(numbers), words)
    return numbers.astype(np.int64)


def _check_degrees(job: RecordedJob, path: Path, meta: Path) -> None:
    """Every number of a row must fit the degrees, and every degree must be filled."""
    compute = is_kind(job.kind, *COMPUTE)
    needed = len(job.steps) * job.workers * len(COMPUTE)
    if needed > len(job):
        raise TraceError(
            f"{len(job.steps):,} steps of {job.data_parallel:,} x {job.stages:,} workers (dp_size x pp_size in {meta}) "
            f"have at least {needed:,} operations, but there are {len(job):,}",
            str(path),
        )
    every = np.ones(len(job), dtype=np.bool_)
    checks = (
        ("dp_rank", job.data_parallel_rank, every, job.data_parallel, "dp_size"),
        ("stage", job.stage, every, job.stages, "pp_size"),
        ("gmc", job.virtual_stage, compute, job.stages * job.chunks, "pp_size x vpp_size"),
        ("mc", job.chunk, compute, job.chunks, "vpp_size"),
    )
    for column, values, which, size, degree in checks:
        _check_column(path, column, values, which, size, f"{degree} is {size} in {meta}")

    def elsewhere(row: int) -> str:
        where = f"gmc {job.virtual_stage[row]} does not lie on stage {job.stage[row]} of {job.stages}"
        return f"{where}: gmc is mc x pp_size + stage"

    _refuse(path, compute & (job.virtual_stage % job.stages != job.stage), elsewhere)


def _check_column(path: Path, column: str, values: Ints, which: Bools, size: int, told: str) -> None:
    """Check that all numbers of *which* rows lie below *size*, and that every one appears."""
    outside = which & ((values < 0) | (values >= size))
    _refuse(path, outside, lambda row: f"{column} is {values[row]}, but {told}")
    absent = np.setdiff1d(np.arange(size), values[which])
    if len(absent):
        raise TraceError(f"no operation has {column} {absent[0]}, but {told}", str(path))


def _check_complete(job: RecordedJob, path: Path) -> None:
    """Every worker runs in every step, and no operation is there twice."""
    for kind in COMPUTE:
        ran = np.zeros(len(job.steps) * job.workers, dtype=np.bool_)
        ran[job.lane[is_kind(job.kind, kind)]] = True
        idle = np.flatnonzero(~ran)
        if len(idle):
            step, worker = divmod(int(idle[0]), job.workers)
            rank, stage = divmod(worker, job.stages)
            lacks = f"step {job.steps[step]} has no {kind} of dp_rank {rank} stage {stage}"
            raise TraceError(f"{lacks}; every worker of a step is needed", str(path))
    order = np.lexsort((job.sequence, job.kind, job.lane))
    same = np.ones(len(job) - 1, dtype=np.bool_)
    for values in (job.lane, job.kind, job.sequence):
        same &= values[order[1:]] == values[order[:-1]]
    if same.any():
        row = int(order[same.argmax() + 1])
        raise TraceError(f"a second {job.describe(row)}", str(path), row + 1)
