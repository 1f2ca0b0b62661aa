"""Made-up recorded jobs as files, and read back."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hdpsim.experiments.recorded_jobs.trace import read_recorded_job
from hdpsim.simulator.recorded.operations import RecordedJob

# jobs.py becomes importable as recorded_jobs: --import-mode=importlib puts no test folder on sys.path.
_spec = importlib.util.spec_from_file_location("recorded_jobs", Path(__file__).with_name("jobs.py"))
assert _spec is not None
assert _spec.loader is not None
_module: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[Any], tuple[Path, Path]]:
    """Writes the trace and the degrees of a job of a given shape; returns both paths."""

    def write(shape: Any) -> tuple[Path, Path]:
        trace, meta = tmp_path / "trace.parquet", tmp_path / "meta.yaml"
        _module.record(shape).to_parquet(trace)
        meta.write_text(yaml.safe_dump(shape.meta()))
        return trace, meta

    return write


@pytest.fixture
def job(files: Callable[[Any], tuple[Path, Path]]) -> Callable[[Any], RecordedJob]:
    """Reads back a job of a given shape."""
    return lambda shape: read_recorded_job(*files(shape))
