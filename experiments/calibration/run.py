"""Constants of one GPU generation fitted on measured kernels and on records of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hdpsim.cost_models.calibration.calibration import SHIPPED, Calibration, calibration, load_calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.calibration.constants import KERNEL_CONSTANTS, RUN_CONSTANTS, check_names, chosen
from hdpsim.experiments.calibration.file import head_of, write_calibration
from hdpsim.experiments.calibration.report import calibration_document, refusal
from hdpsim.experiments.calibration.samples import kernel_samples, kernels_s, run_samples, runs_s
from hdpsim.experiments.calibration.stage import FEWEST, Stage, entries_of, run_stage, without_runs
from hdpsim.experiments.output.document import Document
from hdpsim.experiments.parallel.pool import worker_pool
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.studies.comparing.compare import silent

KERNELS_AT_ONCE, JOBS_AT_ONCE = 100, 8


def calibrate(
    path: str | None,
    gpu: str,
    out: str,
    *,
    kernels: Sequence[str] = (),
    runs: bool = True,
    start: str | None = None,
    constants: Sequence[str] | None = None,
    workers: int = 1,
    report: Callable[[int, int], None] = silent,
) -> Document:
    """Fit the constants of a GPU's generation on measured kernels, then on records of runs; write the calibration.

    Args:
        path: CSV of records; None: the runs shipped with hdpsim.
        gpu: a GPU of the catalog; measurements on all GPUs of its generation count.
        out: YAML file to write.
        kernels: CSV tables of measured kernels, fitted on first.
        runs: whether to fit on runs.
        start: calibration file to begin with; None: the generation's own.
        constants: names to fit; None: those that the measurements determine.
        workers: processes.
        report: told (predictions made, 0).

    Raises:
        InfeasibleError: the measurements do not determine the constants; the message says which ones would.
        UserInputError, CatalogError: unusable file, unknown GPU or constant.
    """
    check_names(constants)
    if not runs and not kernels:
        raise UserInputError("--no-runs leaves nothing to fit on without --kernels")
    device = catalog.gpu(gpu)
    cal, head = _start(device.calibration, start)
    if path is None:
        cal = without_runs(cal)  # the shipped calibrations know the shipped runs
    stages: list[Stage] = []
    name = Path(path).name if path is not None else "the runs shipped with hdpsim"
    with worker_pool(workers) if workers > 1 else nullcontext() as pool:
        options: dict[str, Any] = {"pool": pool, "report": lambda done: report(done, 0)}
        if kernels:
            table = chosen(constants, KERNEL_CONSTANTS)
            measured = kernel_samples(kernels, device.calibration)
            _enough(measured, "kernels", gpu)
            if table:
                stage = run_stage(
                    "kernels", measured, cal, table, kernels_s, chunk=KERNELS_AT_ONCE, **options
                )
                cal = entries_of(stage, "")
                stages.append(stage)
        if runs and (table := chosen(constants, RUN_CONSTANTS)):
            records = read_records(shipped_records() if path is None else path)
            measured = run_samples(records, cal, device.calibration)
            _enough(measured, "records", gpu)
            stage = run_stage("runs", measured, cal, table, runs_s, chunk=JOBS_AT_ONCE, **options)
            cal = entries_of(stage, "" if path is None else f" of {name}")
            stages.append(stage)
    message = refusal(stages, constants)
    if message:
        raise InfeasibleError(message)
    document = calibration_document(stages, file=name, gpu=device, written=out)
    document.data()  # refuses figures that are nan or infinite
    write_calibration(out, cal, device.calibration, head)
    return document


def _start(generation: str, start: str | None) -> tuple[Calibration, str]:
    """The calibration to begin with and the comment that heads its file."""
    if start is None:
        return calibration(generation), head_of(SHIPPED / f"{generation}.yaml")
    beginning = load_calibration(start)
    if beginning.generation not in ("", generation):
        raise UserInputError(
            f"--start: {start} is of generation {beginning.generation}, the GPU of {generation}"
        )
    return beginning, head_of(Path(start))


def _enough(measured: tuple[Sequence[Any], Mapping[str, int]], kind: str, gpu: str) -> None:
    samples, left_out = measured
    if len(samples) >= FEWEST:
        return
    most = sorted(left_out.items(), key=lambda pair: -pair[1])[:5]
    reasons = "".join(f"\n  {count} x {reason}" for reason, count in most)
    raise InfeasibleError(
        f"{len(samples)} {kind} of {gpu}'s generation can be fitted on, at least {FEWEST} are needed"
        + (f"; left out:{reasons}" if reasons else "")
    )
