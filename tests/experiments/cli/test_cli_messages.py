"""What a command says: printable whatever the input, not longer than can be read, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output.tables import TextTable, plain_text
from hdpsim.quoting import LONGEST_MESSAGE

TITLE = "\x1b]0;owned\x07"
LONG = "n" * 200_000


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


SAID: dict[str, tuple[str, ...]] = {
    "verb": ("{}",),
    "option": ("simulate", "quickstart-8gpu", "--{}"),
    "scenario": ("simulate", "{}"),
    "key": ("simulate", "quickstart-8gpu", "--set", "{}=1"),
    "key below a section": ("simulate", "quickstart-8gpu", "--set", "layout.{}=1"),
    "value": ("simulate", "quickstart-8gpu", "--set", 'layout.tp="{}"'),
    "model": ("simulate", "quickstart-8gpu", "--set", 'model="{}"'),
    "trace": ("trace", "stats", "{}"),
    "number": ("simulate", "quickstart-8gpu", "--batches", "{}"),
    "strategy": ("compare", "quickstart-8gpu", "--strategies", "{}"),
    "gpus": ("scale", "quickstart-8gpu", "--gpus", "{}"),
    "fabric": ("fabric", "{}"),
    "sweep": ("sweep", "{}"),
    "records": ("validate", "{}"),
    "meta": ("replay-ops", "x.csv", "--meta", "{}"),
    "steps": ("replay", "quickstart-8gpu", "--steps", "{}"),
    "until": ("replay", "quickstart-8gpu", "--until-ci", "{}"),
    "tokens": ("trace", "synth", "--distribution", "bytescale-github", "--tokens", "{}", "-o", "x.csv"),
    "duration": ("campaign", "campaign-llama3-16k", "--duration", "{}"),
    "column": ("trace", "stats", "wikipedia", "--column", "{}"),
    "engine": ("sweep", "quickstart", "--engine", "dask://{}:1"),
    "term": ("explain", "quickstart-8gpu", "--term", "{}"),
    "gpu": ("calibrate", "--gpu", "{}", "-o", "x.yaml"),
}


@pytest.mark.parametrize("what", [TITLE, LONG], ids=["escape sequence", "long"])
@pytest.mark.parametrize("case", SAID)
def test_arguments_are_said_again_without_control_characters_and_cut(case: str, what: str) -> None:
    result = run(*(part.format(what) for part in SAID[case]))
    assert result.exit_code == 2, result.exception
    assert len(result.stderr) < LONGEST_MESSAGE + 1000
    assert result.stderr.replace("\n", "").isprintable()
    assert result.stdout == ""


def test_names_in_files_are_said_without_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(json.dumps({"model": TITLE, TITLE: 1, "layout": {TITLE: {}}, "cluster": {"like": LONG}}))
    result = run("simulate", str(path))
    assert result.exit_code == 2, result.exception
    assert len(result.stderr) < LONGEST_MESSAGE + 100
    assert result.stderr.replace("\n", "").isprintable()


def test_cells_of_tables_are_printable() -> None:
    table = TextTable(title="", columns=("id", "s"), rows=((TITLE, "1\n2"),))
    assert plain_text(table).replace("\n", "").isprintable()
    assert len(plain_text(table).splitlines()) == 2


@pytest.mark.parametrize(("error", "code"), [(MemoryError, 3), (RecursionError, 2)])
def test_too_much_of_anything_is_a_message(
    error: type[Exception], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error("deep inside")

    monkeypatch.setattr("hdpsim.experiments.verbs.running.load_scenario", fails)
    result = run("simulate", "quickstart-8gpu")
    assert result.exit_code == code
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("Error: ")
