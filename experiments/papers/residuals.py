"""Residuals of the papers that `hdpsim reproduce` holds predictions against; bands of dynamic strategies need them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hdpsim.experiments.bands.band import Residual
from hdpsim.experiments.bands.residuals import setup_features

if TYPE_CHECKING:
    from hdpsim.experiments.papers.bytescale_data import Cell as ByteScaleCell
    from hdpsim.experiments.papers.bytescale_simulation import Job
    from hdpsim.experiments.papers.megascale_data import Cell as MegaScaleCell


Records = Sequence[Mapping[str, Any]]


def bytescale_residuals(
    cells: Sequence[ByteScaleCell], jobs: Sequence[Job], records: Records
) -> list[Residual]:
    """One residual for every cell with an error; layout and GPU are inferred, so none counts as complete.

    A cell's error is that of tokens/s: the step's is its inverse.
    """
    from hdpsim.experiments.papers.bytescale_simulation import batches_of, setup_of

    found = []
    for cell, job, record in zip(cells, jobs, records, strict=True):
        if record["error"] is None:
            continue
        lengths = batches_of(cell.dataset, cell.context_tokens, job.batches)[0]
        features, key = setup_features(setup_of(job), lengths)
        error = -math.log1p(record["error"])
        found.append(
            Residual(features=features, key=key, source="bytescale", complete=False, log_error=error)
        )
    return found


def megascale_residuals(cells: Sequence[MegaScaleCell], records: Records) -> list[Residual]:
    """One residual for every iteration time with an error; the micro-batch is chosen, so none counts as complete."""
    from hdpsim.experiments.papers.megascale_simulation import scenario_of

    found = []
    for cell, record in zip(cells, records, strict=True):
        if record["error"] is None or cell.metric != "step_s":
            continue
        scenario = scenario_of(cell)
        features, key = setup_features(scenario.setup(), scenario.batches(1)[0])
        error = math.log1p(record["error"])
        found.append(
            Residual(features=features, key=key, source="megascale", complete=False, log_error=error)
        )
    return found
