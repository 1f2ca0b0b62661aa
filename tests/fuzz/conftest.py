"""Makes the fuzzer's modules importable: --import-mode=importlib puts no test folder on sys.path."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_FILES = [("recorded_jobs", _HERE.parent / "recorded" / "jobs.py")]
for _file in (
    "mutate",
    "judge",
    "written",
    "scenarios",
    "tables",
    "entries",
    "options",
    "exchange",
    "formats",
):  # in order of imports
    _FILES.append((f"fuzz_{_file}", _HERE / f"{_file}.py"))
for _name, _path in _FILES:
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, _path)
        assert _spec is not None
        assert _spec.loader is not None
        _module: Any = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)
