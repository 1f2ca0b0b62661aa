"""Wrong input of every kind: one message, exit code 2, nothing written, no traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import cli

SMALL = ("quickstart-8gpu", "--batches", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


WRONG: dict[str, tuple[str, ...]] = {
    "no verb of this name": ("simulat", "x"),
    "no scenario": ("simulate",),
    "unknown scenario": ("simulate", "nowhere.yaml"),
    "scenario is a directory": ("simulate", "."),
    "unknown option": ("simulate", *SMALL, "--fast"),
    "unknown key": ("simulate", *SMALL, "--set", "layout.tpp=1"),
    "override without value": ("simulate", *SMALL, "--set", "layout.tp"),
    "no batches": ("simulate", "quickstart-8gpu", "--batches", "0"),
    "unknown strategy": ("compare", *SMALL, "--strategies", "static,dynamic"),
    "strategy twice": ("compare", *SMALL, "--strategies", "static,static"),
    "empty strategy": ("compare", *SMALL, "--strategies", "static,"),
    "no GPU counts": ("scale", *SMALL),
    "GPU count is a word": ("scale", *SMALL, "--gpus", "8,many"),
    "negative GPU count": ("scale", *SMALL, "--gpus", "-8"),
    "GPU count twice": ("scale", *SMALL, "--gpus", "8,8"),
    "too many GPUs": ("scale", *SMALL, "--gpus", "99999999999"),
    "timeline of another kind": ("simulate", *SMALL, "--timeline", "x.txt"),
    "timeline nowhere": ("simulate", *SMALL, "--timeline", "/nowhere/x.json"),
    "no GPUs": ("simulate", *SMALL, "--set", "cluster.gpus=0"),
    "column of a shipped trace": (
        "replay",
        "quickstart-8gpu",
        "--trace",
        "debian-code",
        "--column",
        "length",
    ),
    "calibration nowhere": ("calibrate", "--gpu", "h100-80gb", "-o", "/nowhere/x.yaml"),
    "residuals nowhere": ("validate", "--write-residuals", "/nowhere/x.csv"),
    "two kinds of output": ("validate", "--markdown", "--json"),
    "Markdown in a run directory": ("validate", "--markdown", "--out", "runs"),
    "nothing to change": ("whatif", *SMALL),
    "changed twice": ("whatif", *SMALL, "--set", "layout.tp=4", "--set", "layout.tp=4"),
    "malformed change": ("whatif", *SMALL, "--set", "gpus"),
    "out is a file": ("compare", *SMALL, "--out", __file__),
    "missing trace": ("trace", "stats", "nowhere.csv"),
    "unknown trace": ("trace", "stats", "debian"),
    "odd trace format": ("trace", "check", __file__),
    "count and tokens": ("trace", "synth", "--distribution", "bytescale-github", "-o", "x.csv"),
    "tokens without sense": (
        "trace",
        "synth",
        "--distribution",
        "bytescale-github",
        "--tokens",
        "9GB",
        "-o",
        "x.csv",
    ),
    "unwritable": (
        "trace",
        "synth",
        "--distribution",
        "bytescale-github",
        "--count",
        "1",
        "-o",
        "/nowhere/x.csv",
    ),
    "unknown distribution": ("trace", "synth", "--distribution", "github", "--count", "1", "-o", "x.csv"),
    "changes without scenario": ("scenarios", "--set", "layout.tp=1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_message_and_exit_code_2(case: str) -> None:
    result = run(*WRONG[case])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr


def test_no_gpus_is_one_problem() -> None:
    assert "1 problem\n" in run("simulate", *SMALL, "--set", "cluster.gpus=0").stderr


def test_what_cannot_be_written_is_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def worked(*_: object, **__: object) -> None:
        raise AssertionError("simulated first")

    monkeypatch.setattr("hdpsim.experiments.studies.comparing.compare.simulate_step", worked)
    for option in ("--out", "--timeline"):
        result = run("simulate", *SMALL, option, str(tmp_path / f"{'x' * 300}.json"))
        assert result.exit_code == 2, result.exception
        assert "cannot be written" in result.stderr or "File name too long" in result.stderr
    assert list(tmp_path.iterdir()) == []


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "not YAML": b"model: [",
    "tabs": b"model:\n\tname: x",
    "twice": b"model: a\nmodel: b\n",
    "binary": b"\x00\x01\x02",
    "not UTF-8": b"model: \xff\xfe",
    "a Python object": b"model: !!python/object/apply:os.system ['true']",
    "itself": b"model: &a [*a]",
    "deep": b"[" * 5000,
    "a list": b"- model",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_one_message_and_exit_code_2(case: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.yaml"
    path.write_bytes(DAMAGED[case])
    result = run("simulate", str(path))
    assert result.exit_code == 2, result.exception
    assert "damaged.yaml" in result.stderr
    assert result.stdout == ""


def test_an_unreadable_file_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused as the system would: permissions of a file do not stop the superuser."""
    path = tmp_path / "closed.yaml"
    path.write_text("model: x")

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("hdpsim.reading.os.open", refused)
    result = run("simulate", str(path))
    assert result.exit_code == 2
    assert "closed.yaml" in result.stderr
    assert "cannot be read" in result.stderr
