"""What constants are fitted on: records of runs and rows of kernel tables that count, with why the others do not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import CatalogError, HdpSimError, InfeasibleError
from hdpsim.experiments.calibration.constants import Constant, apply
from hdpsim.experiments.calibration.model import Sample
from hdpsim.experiments.records.columns import Record
from hdpsim.experiments.records.prediction import measured_step_s, predict_step
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.validation.kernel_prediction import predicted_s
from hdpsim.experiments.validation.kernel_sources import gpu_of, instrument_of
from hdpsim.experiments.validation.kernels import measured_s, rows_of
from hdpsim.simulator.planning import plan_batch

KINDS = ("gemm", "flash_fwd", "flash_bwd")
"""Grouped products would bend the rates of dense ones by what their operands cost; the network's constants are read
from single measurements of collectives."""
ROWS_OF_A_GROUP = 120
"""Of a longer sweep, every n-th row."""
SHORTEST_S = 1e-4
"""Kernels of a training step take a tenth of a millisecond and more."""


def runs_s(work: Sequence[Any], base: Calibration, values: Mapping[Constant, float]) -> list[float]:
    """Step seconds of some runs, each with its plan."""
    return [
        predict_step(prepared, apply(prepared.setup.calibration, base, values), plan)[0]
        for prepared, plan in work
    ]


def kernels_s(work: Sequence[Any], base: Calibration, values: Mapping[Constant, float]) -> list[float]:
    """Seconds of some kernels."""
    cal = apply(base, base, values)
    return [predicted_s(row, cal) for row in work]


def run_samples(
    records: Sequence[Record], base: Calibration, generation: str
) -> tuple[list[Sample], Counter[str]]:
    """Records that can be fitted on, and why the rest cannot.

    A run with a mechanism that is not modelled would bend a constant that is; suspect, incomplete and fine-tuning
    records would too.
    """
    samples: list[Sample] = []
    left_out: Counter[str] = Counter()
    for record in records:
        try:
            if catalog.gpu(record.config.gpu).calibration == generation:
                samples.append(_run(record, base))
        except CatalogError:
            left_out["a GPU that the catalog does not know"] += 1
        except HdpSimError as error:
            left_out[str(error)] += 1
    return samples, left_out


def _run(record: Record, base: Calibration) -> Sample:
    if not record.counts:
        raise InfeasibleError("not a complete, undoubted pretraining run")
    prepared = prepare(record.config, base)
    if prepared.blocked:
        raise InfeasibleError(prepared.blocked)
    if prepared.not_modelled:
        raise InfeasibleError(f"not modelled: {prepared.not_modelled[0]}")
    measured = measured_step_s(record.config, prepared, record.measured)
    if measured is None:
        raise InfeasibleError("no time measured")
    plan, _, _ = plan_batch(prepared.setup, prepared.lengths)
    predict_step(prepared, plan=plan)
    source = str(record.columns.get("family") or record.columns.get("source") or "-")
    return Sample(name=record.name, source=source, group=source, work=(prepared, plan), measured_s=measured)


def kernel_samples(paths: Sequence[str], generation: str) -> tuple[list[Sample], Counter[str]]:
    """Rows of kernel tables that can be fitted on, and why the rest cannot. Groups: source, GPU, kind, format.

    Raises:
        UserInputError: a table cannot be read or lacks columns that every kernel has.
    """
    groups: dict[tuple[str, ...], list[Sample]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for path in paths:
        for row in rows_of(path):
            try:
                if gpu_of(row["gpu"]).calibration == generation and row["kind"] in KINDS:
                    sample = _kernel(row)
                    groups[sample.source, sample.group].append(sample)
            except HdpSimError as error:
                left_out[str(error)] += 1
    kept = [group[:: -(-len(group) // ROWS_OF_A_GROUP)] for group in groups.values()]
    return [sample for group in kept for sample in group], left_out


def _kernel(row: Mapping[str, str]) -> Sample:
    dtype, source = (row.get(key) or "" for key in ("dtype", "source"))
    if row.get("suspect"):
        raise InfeasibleError("doubtful, says the table")
    if unfit := instrument_of(row).not_fitted:
        raise InfeasibleError(unfit)
    seconds = measured_s(row)
    if not seconds:
        raise InfeasibleError("no time measured")
    if seconds < SHORTEST_S:
        raise InfeasibleError(
            f"shorter than {SHORTEST_S * 1e6:.0f} us: starts and ends count more than rates"
        )
    predicted_s(row, None)
    site = source.partition(":")[0].partition(" (")[0].rpartition("/")[2].strip() or "-"
    return Sample(
        name=row.get("id") or "",
        source=site,
        group=" ".join((site, row["gpu"], row["kind"], dtype)),
        work=dict(row),
        measured_s=seconds,
    )
