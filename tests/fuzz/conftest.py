"""Makes the fuzzer's modules importable: --import-mode=importlib puts no test folder on sys.path."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
for _name, _path in (
    ("recorded_jobs", _HERE.parent / "recorded" / "jobs.py"),
    ("fuzz_mutate", _HERE / "mutate.py"),
    ("fuzz_judge", _HERE / "judge.py"),
    ("fuzz_formats", _HERE / "formats.py"),
):
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, _path)
        assert _spec is not None
        assert _spec.loader is not None
        _module: Any = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)
