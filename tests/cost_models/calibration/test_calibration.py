"""Calibration files: the shipped ones are complete and plausible, broken ones name the file and the key."""

import json
import re
from dataclasses import Field, fields
from fractions import Fraction
from pathlib import Path

import pytest

from hdpsim.cost_models.calibration.calibration import (
    Calibration,
    calibration,
    calibration_names,
    load_calibration,
)
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import CatalogError, UserInputError

CONSTANTS = [
    field.name
    for field in fields(Calibration)
    if field.name not in {"name", "generation", "gpus", "network", "entries", "slowest_gpu"}
]


def write(path: Path, *, without: str = "", change: str = "", network: str = "", extra: str = "") -> Path:
    """A complete calibration file with a shipped one's values; *change* replaces the entry of its key."""
    lines = ["name: mine", "constants:"]
    for key in CONSTANTS:
        if key == without:
            continue
        line = f"  {key}: {{value: {getattr(calibration('hopper'), key)!r}, meaning: m, source: s}}"
        lines.append(change if change.startswith(f"  {key}:") else line)
    path.write_text("\n".join([*lines, extra, network]), encoding="utf-8")
    return path


def test_every_gpu_of_the_catalog_has_its_calibration() -> None:
    assert {catalog.gpu(name).calibration for name in catalog.names("gpu")} <= set(calibration_names())


@pytest.mark.parametrize("name", calibration_names())
def test_shipped_calibrations_say_what_their_constants_mean_and_where_they_come_from(name: str) -> None:
    shipped = calibration(name)
    assert shipped.name == name
    assert {key for key, _ in shipped.entries if "." not in key} == set(CONSTANTS)
    for key, entry in shipped.entries:
        assert len(entry.meaning) > 10, key
        assert len(entry.source) > 3, key


@pytest.mark.parametrize("name", calibration_names())
def test_shipped_shares_are_shares(name: str) -> None:
    shipped = calibration(name)
    for key in CONSTANTS:
        if key.endswith(("_efficiency", "_overlap")):
            assert 0.0 <= getattr(shipped, key) <= 1.0, key
    assert 0.0 <= shipped.expert_load_spread < 1.0
    assert shipped.attention_block_half_tokens <= shipped.attention_half_tokens


def test_a_users_file(tmp_path: Path) -> None:
    mine = load_calibration(
        write(tmp_path / "mine.yaml", network="network:\n  nvls: {value: false, meaning: m, source: s}")
    )
    assert mine.name == "mine"
    assert mine.gemm_efficiency == calibration("hopper").gemm_efficiency
    assert mine.network.nvls is False
    assert dict(mine.entries)["gemm_efficiency"].source == "s"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"without": "launch_s"}, ["constants: missing launch_s", "/hopper.yaml", "hdpsim calibrate"]),
        (
            {"extra": "  gemm_speed: {value: 1, meaning: m, source: s}"},
            ["constants.gemm_speed: is not a known key"],
        ),
        (
            {"network": "network:\n  speed: {value: 1, meaning: m, source: s}"},
            ["network.speed: is not a known key"],
        ),
        ({"network": "hardware: h100"}, ["hardware: is not a known key", "constants"]),
        ({"network": "network: fast"}, ["network: must be a mapping"]),
        ({"change": "  launch_s: 5"}, ["constants.launch_s: must be a mapping"]),
        (
            {"change": "  launch_s: {value: 5, meaning: m}"},
            ["constants.launch_s.source: is required"],
        ),
        ({"change": "  launch_s: {value: -5, meaning: m, source: s}"}, ["constants.launch_s.value", "-5"]),
        ({"change": "  launch_s: {value: .nan, meaning: m, source: s}"}, ["constants.launch_s.value", "nan"]),
        ({"change": "  launch_s: {value: .inf, meaning: m, source: s}"}, ["constants.launch_s.value", "inf"]),
        (
            {"change": "  launch_s: {value: fast, meaning: m, source: s}"},
            ["constants.launch_s.value", "'fast'"],
        ),
        (
            {"change": "  launch_s: {value: true, meaning: m, source: s}"},
            ["constants.launch_s.value", "got true"],
        ),
        (
            {"change": "  gemm_efficiency: {value: 0, meaning: m, source: s}"},
            ["constants.gemm_efficiency", "from 0.001"],
        ),
        (
            {"network": "network:\n  nvls: {value: 1, meaning: m, source: s}"},
            ["network.nvls.value", "true or false"],
        ),
        (
            {"network": "network:\n  nic_efficiency: {value: 1.2, meaning: m, source: s}"},
            ["network.nic_efficiency: expected a number from 1e-06 to 1"],
        ),
    ],
)
def test_broken_files_name_the_file_and_the_key(
    tmp_path: Path, arguments: dict[str, str], expected: list[str]
) -> None:
    path = write(tmp_path / "broken.yaml", **arguments)
    with pytest.raises(UserInputError) as caught:
        load_calibration(path)
    message = str(caught.value)
    assert "broken.yaml" in message
    for part in expected:
        assert part in message


@pytest.mark.parametrize("text", ["", "- a\n- b", "constants: 5", "constants: [1]", "name: x"])
def test_files_without_constants(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserInputError, match=r"empty\.yaml"):
        load_calibration(path)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(CatalogError, match=r"'volta'.*ampere.*hopper"):
        calibration("volta")


def test_the_guide_shows_the_shipped_values() -> None:
    guide = Path(__file__).parents[3] / "docs" / "explanation" / "calibration.md"
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|", guide.read_text(encoding="utf-8"), re.MULTILINE
    )
    shown = {row[0]: row[1:] for row in rows if row[0] in CONSTANTS}
    assert set(shown) == set(CONSTANTS)
    units = {"us": 1e-6, "ms": 1e-3, "GB/s": 1e9, "M": 1e6, "T": 1e12, "": 1.0, "W": 1.0, "pJ": 1e-12}
    for key, cells in shown.items():
        for name, cell in zip(("ampere", "hopper", "blackwell"), cells, strict=True):
            if cell == "-":  # the generation has no such units: its value is never asked for
                continue
            number, _, unit = cell.partition(" ")
            value = float(Fraction(number)) * units[unit]
            assert value == pytest.approx(getattr(calibration(name), key), rel=1e-3), (key, name)


@pytest.mark.parametrize("name", calibration_names())
def test_a_calibration_objects_to_every_gpu_it_says_nothing_of(name: str) -> None:
    """Whoever takes one stack's or another generation's constants for a GPU is told so, whichever file it is."""
    cal = calibration(name)
    quiet = {gpu for gpu in catalog.names("gpu") if not cal.why_not_of(catalog.gpu(gpu))}
    if name in {catalog.gpu(gpu).calibration for gpu in catalog.names("gpu")}:
        assert quiet == {gpu for gpu in catalog.names("gpu") if catalog.gpu(gpu).calibration == name}
    else:  # of one stack: no GPU but those it was fitted on
        assert quiet == set(cal.gpus) != set()


@pytest.mark.parametrize("gpus", ["h20-96gb", [1], {"a": 1}])
def test_gpus_of_a_calibration_are_a_list_of_names(tmp_path: Path, gpus: object) -> None:
    path = write(tmp_path / "mine.yaml", extra=f"gpus: {json.dumps(gpus)}")
    with pytest.raises(UserInputError, match="gpus: expected a list of texts"):
        load_calibration(path)


@pytest.mark.parametrize("setting", fields(NetworkCalibration), ids=lambda setting: setting.name)
def test_every_setting_of_the_network_may_stand_in_a_file(setting: Field[float], tmp_path: Path) -> None:
    value = not setting.default if isinstance(setting.default, bool) else setting.default
    entry = json.dumps({"value": value, "meaning": "-", "source": "-"})
    path = write(tmp_path / "mine.yaml", extra=f"network: {{{setting.name}: {entry}}}")
    assert getattr(load_calibration(path).network, setting.name) == value
