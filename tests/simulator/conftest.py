"""Makes the helpers of these tests importable as simulator_*: --import-mode=importlib puts no folder on sys.path."""

import importlib.util
import sys
from pathlib import Path

for _name in ("plans", "setups", "runs"):
    _spec = importlib.util.spec_from_file_location(
        f"simulator_{_name}", Path(__file__).with_name(f"{_name}.py")
    )
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_spec.name] = _module
    _spec.loader.exec_module(_module)
