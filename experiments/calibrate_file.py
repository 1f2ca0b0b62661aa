"""A fitted calibration as a file: the start's entries, with the fitted ones replaced and their fit described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cost_models.calibration import Calibration, CalibrationEntry
from cost_models.network_calibration import NetworkCalibration
from experiments.calibrate_constants import NETWORK
from hdpsim.errors import UserInputError

__all__ = ["write_calibration"]

_WIDTH = 110


def write_calibration(
    path: str, base: Calibration, generation: str, fitted: dict[str, CalibrationEntry], remark: str
) -> None:
    """Write *base* with the *fitted* entries (by name, network ones with their prefix).

    Raises:
        UserInputError: the file cannot be written.
    """
    import yaml

    constants = {name: entry for name, entry in base.entries if not name.startswith(NETWORK)}
    network = {name.removeprefix(NETWORK): entry for name, entry in base.entries if name.startswith(NETWORK)}
    for name, entry in fitted.items():
        if name.startswith(NETWORK):
            network[name.removeprefix(NETWORK)] = entry
        else:
            constants[name] = entry
    document: dict[str, Any] = {"name": Path(path).stem, "generation": generation}
    document["constants"] = {name: _plain(entry) for name, entry in constants.items()}
    if network:
        document["network"] = {name: _plain(entry) for name, entry in network.items()}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=_WIDTH)
    try:
        Path(path).write_text(f"# {remark}\n{text}", encoding="utf-8")
    except OSError as error:
        raise UserInputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _plain(entry: CalibrationEntry) -> dict[str, Any]:
    value: Any = entry.value
    if not isinstance(value, bool) and float(value) == int(value) and abs(value) < 1e15:
        value = int(value)
    plain = {"value": value, "meaning": entry.meaning, "source": entry.source}
    return {**plain, "fitted_on": entry.fitted_on} if entry.fitted_on else plain


def meaning_of(base: Calibration, name: str) -> str:
    """What the start says about a constant; network defaults are explained in docs/fabric.md."""
    known = dict(base.entries)
    if name in known:
        return known[name].meaning
    return f"{name.removeprefix(NETWORK)} of {NetworkCalibration.__name__}"
