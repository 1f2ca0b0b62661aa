"""Every file format and option of hdpsim, with a small sound example of each that is spoiled."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from fuzz_entries import calibrations, catalogs, hugging_face
from fuzz_exchange import imports
from fuzz_options import options
from fuzz_scenarios import failures, override, scenario, sweeps
from fuzz_tables import cells, distribution, kernels, operations, records, trace
from fuzz_written import Arguments

FORMATS: dict[str, Callable[[random.Random, Path], Arguments]] = {
    "scenario": scenario,
    "set": override,
    "catalog": catalogs,
    "trace": trace,
    "distribution": distribution,
    "records": records,
    "kernels": kernels,
    "config.json": hugging_face,
    "calibration": calibrations,
    "operations": operations,
    "sweep": sweeps,
    "cells": cells,
    "campaign": failures,
    "imports": imports,
    "options": options,
}

SLOW = {"cells"}
"""Formats whose commands take a second and more."""
