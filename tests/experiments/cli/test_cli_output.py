"""What commands print and write for people to read obeys nobody else: no control character of a name gets through."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.cli.printing import say

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

ROOT = Path(__file__).resolve().parents[3]
TITLE = "\x1b]0;owned\x07\x9b31m"
SMALL = ("--set", "execution.batches=1", "--set", "data.batch=128K tokens", "--set", "data.context=16K")

OUTLETS = {
    "experiments/cli/printing.py": 2,  # say, and JSON, which escapes by itself
    "experiments/cli/app.py": 1,  # our own version
    "experiments/output/tables.py": 2,  # rich, of cells that Table has made printable
}


def test_everything_is_said_through_one_door() -> None:
    found: dict[str, int] = {}
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if name in ("echo", "secho", "print") or (
                name == "write" and owner in ("sys.stdout", "sys.stderr")
            ):
                place = path.relative_to(ROOT).as_posix()
                found[place] = found.get(place, 0) + 1
    assert found == OUTLETS


@settings(derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30), err=st.booleans())
def test_what_is_said_is_printable(capsys: pytest.CaptureFixture[str], text: str, err: bool) -> None:
    say(text, err=err)
    said = capsys.readouterr()
    assert all(c.isprintable() or c in "\n\t" for c in (said.err if err else said.out))


def printed(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 1, 2, 3), result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / TITLE
    folder.mkdir()
    return folder


def test_names_of_scenarios_and_folders(here: Path) -> None:
    scenario = here / "odd.yaml"
    scenario.write_text(
        json.dumps({"name": TITLE, "description": TITLE, "model": {"like": "llama-3-8b", "name": TITLE},
                    "cluster": {"node": "hgx-h100-80gb", "gpus": 8, "name": TITLE}, "layout": {"tp": 2},
                    "data": {"trace": "debian-code"}})
    )  # fmt: skip
    for verb in (("simulate",), ("compare",), ("whatif", "--set", "layout.tp=4"), ("explain",), ("fabric",)):
        changes = SMALL if verb[0] != "fabric" else ()
        text = printed(
            verb[0],
            scenario,
            *verb[1:],
            *changes,
            *(("--out", here / "run") if verb[0] == "simulate" else ()),
        )
        assert all(c.isprintable() or c in "\n\t" for c in text), (verb, text)
    readme = here / "run" / "README.md"
    if readme.exists():
        assert all(c.isprintable() or c in "\n\t" for c in readme.read_text())


def test_names_of_traces_and_columns(here: Path) -> None:
    np.savez(here / "t.npz", **{"a\x1b[2J": np.arange(1, 50)})
    (here / "t.csv").write_text(f"{TITLE}\n5\n6\n7\n")
    (here / "bad.csv").write_text(f"tokens\n5\n{TITLE}\n")
    for arguments in (
        ("trace", "stats", here / "t.npz"),
        ("trace", "check", here / "t.csv"),
        ("trace", "check", here / "bad.csv"),
        ("trace", "synth", "--distribution", "bytescale-github", "--count", "10", "-o", here / "new.csv"),
        ("replay", "quickstart-8gpu", "--trace", here / "t.csv"),
        ("trace", "stats", here / "t.csv", "--plot", here / "plot"),
    ):
        text = printed(*arguments)
        assert text
        assert all(c.isprintable() or c in "\n\t" for c in text), (arguments, text)


def test_titles_of_failure_profiles_and_causes(here: Path) -> None:
    (here / "mine.yaml").write_text(json.dumps({"title": TITLE, "causes": {TITLE: {"per_1000_days": 50}}}))
    text = printed(
        "campaign", "campaign-llama3-16k", "--duration", "2d", "--seeds", "1",
        "--set", "campaign.step=6s", "--set", f"campaign.failures={json.dumps(str(here / 'mine.yaml'))}",
        "--out", here / "run",
    )  # fmt: skip
    assert "owned" in text
    assert all(c.isprintable() or c in "\n\t" for c in text)
