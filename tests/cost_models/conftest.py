"""Makes ideal.py importable as ideal_hardware: --import-mode=importlib puts no test folder on sys.path."""

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("ideal_hardware", Path(__file__).with_name("ideal.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
