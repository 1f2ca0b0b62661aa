"""Check at start-up that the packages found are ours.

hdpsim's folders have everyday names, and the Python Package Index has unrelated distributions called `traces`,
`simulator` and `experiments`. Installed beside hdpsim, one of them could be imported instead of ours and fail in
ways nobody would understand.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hdpsim.errors import UserInputError

__all__ = ["PACKAGES", "check_distribution"]

PACKAGES = ("hdpsim", "traces", "cost_models", "simulator")


def check_distribution(packages: tuple[str, ...] = PACKAGES) -> None:
    """Raise UserInputError unless every one of *packages* sits in the folder that holds `experiments`.

    The packages are looked up, not imported, so the check costs well under a millisecond.
    """
    home = Path(__file__).resolve().parent.parent
    for name in packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise UserInputError(
                f"the package {name!r} of hdpsim cannot be found next to {home / 'experiments'}; reinstall hdpsim"
            )
        found = Path(spec.origin).resolve().parent.parent
        if found != home:
            raise UserInputError(
                f"the package {name!r} is imported from {found}, but hdpsim's own is in {home}: another "
                f"distribution (or a folder on PYTHONPATH) has the same name. "
                f"Run `pip uninstall {name}`, or use hdpsim in its own virtual environment"
            )
