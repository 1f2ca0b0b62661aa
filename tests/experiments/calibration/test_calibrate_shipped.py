"""The shipped calibrations are what hdpsim calibrate makes of the shipped runs, and rest on no single source."""

from __future__ import annotations

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.experiments.calibration.constants import RUN_CONSTANTS, prior_of, value_of
from hdpsim.experiments.calibration.fit import fit, refit
from hdpsim.experiments.calibration.model import Model, linearised
from hdpsim.experiments.calibration.samples import run_samples, runs_s
from hdpsim.experiments.records.columns import read_records, shipped_records

LARGEST_SHIFT = 0.03


def median(residuals: np.ndarray) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ampere", "hopper", "blackwell"])
def test_fitting_a_shipped_calibration_again_leaves_it(name: str) -> None:
    """Within the intervals, on every fourth run: code and calibration drift together or the file is made anew."""
    shipped = calibration(name)
    entries = dict(shipped.entries)
    constants = [
        constant
        for constant in RUN_CONSTANTS
        if constant.name in entries and "(95 %) by" in entries[constant.name].runs
    ]
    assert constants, "made with hdpsim calibrate"
    samples = run_samples(read_records(shipped_records()), shipped, name)[0][::4]
    model = Model(samples, shipped, runs_s)
    values = np.array([value_of(shipped, constant.name) for constant in constants])
    found = fit(model, constants, prior_of(shipped, constants), linearised(model, constants, values))
    for constant, value, again, half in zip(constants, values, found.values, found.half_width, strict=True):
        assert abs(again - value) <= half, constant.name
    sources = np.array([sample.source for sample in samples])
    for source in set(sources):
        moved = found.line.at(refit(found, sources != source))
        for other in set(sources) - {source}:
            shift = median(moved[sources == other]) - median(found.residuals[sources == other])
            assert abs(shift) <= LARGEST_SHIFT, (source, other)
