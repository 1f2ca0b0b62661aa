"""A calibration as a file: every constant's entry in the order of the start, below the comment that heads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hdpsim.cost_models.calibration.calibration import Calibration, CalibrationEntry, load_calibration
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.errors import HdpSimError, UserInputError
from hdpsim.experiments.calibration.constants import NETWORK
from hdpsim.experiments.output.files.out_file import check_out_file, write_whole


def check_calibration_file(path: str) -> None:
    """Raise UserInputError unless a calibration can be written at *path*; only another one may be replaced."""
    check_out_file(path, "--output", (".yaml", ".yml"))
    target = Path(path)
    if not target.exists() or (target.is_file() and not target.stat().st_size):
        return
    try:
        load_calibration(target)
    except HdpSimError:
        raise UserInputError(f"--output: {path}: is there and is no calibration; give another name") from None


def head_of(path: Path) -> str:
    """The comment at the top of a calibration file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    count = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(lines[:count])


def with_entries(base: Calibration, entries: Mapping[str, CalibrationEntry]) -> Calibration:
    """*base* with some entries replaced (by name, network ones with their prefix), values and all."""
    constants = {name: float(entry.value) for name, entry in entries.items() if not name.startswith(NETWORK)}
    network: dict[str, Any] = {
        name.removeprefix(NETWORK): float(entry.value)
        for name, entry in entries.items()
        if name.startswith(NETWORK)
    }
    changed = replace(base, **constants, entries=tuple({**dict(base.entries), **entries}.items()))  # type: ignore[arg-type]
    return replace(changed, network=replace(base.network, **network)) if network else changed


def write_calibration(path: str, cal: Calibration, generation: str, head: str) -> None:
    """Write *cal* below the comment *head*. A file with the name of its generation is that generation.

    Raises:
        UserInputError: the file cannot be written.
    """
    name = Path(path).stem
    lines = [*([head] if head else []), f"name: {_text(name)}"]
    lines += [] if name == generation else [f"generation: {generation}"]
    lines += [f"gpus: [{', '.join(map(_text, cal.gpus))}]"] if cal.gpus else []
    network = [(name, entry) for name, entry in cal.entries if name.startswith(NETWORK)]
    lines += ["constants:", *_section([pair for pair in cal.entries if pair not in network])]
    if network:
        lines += ["network:", *_section(network)]
    write_whole(path, "\n".join(lines) + "\n", "calibration")


def _section(entries: list[tuple[str, CalibrationEntry]]) -> Iterator[str]:
    for name, entry in entries:
        yield f"  {name.removeprefix(NETWORK)}:"
        for key in ("value", "prior", "doubt"):
            number = getattr(entry, key)
            if number is not None:
                yield f"    {key}: {_number(number)}"
        for key in ("meaning", "source", "fitted_on", "kernels", "runs"):
            words = getattr(entry, key)
            if words:
                yield f"    {key}: {json.dumps(words, ensure_ascii=False)}"


def _text(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name, ensure_ascii=False)


def _number(value: float | bool) -> str:
    """As YAML 1.1 reads it back: a float in scientific notation has a point or a sign."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if float(value) == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.6g}"


def meaning_of(base: Calibration, name: str) -> str:
    """What the start says about a constant; network defaults are explained in docs/explanation/fabric.md."""
    known = dict(base.entries)
    if name in known:
        return known[name].meaning
    return f"{name.removeprefix(NETWORK)} of {NetworkCalibration.__name__}"
