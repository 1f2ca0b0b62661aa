"""What the command says of itself: help with examples that parse, completion, and the doctor."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.experiments.cli.app import VERBS, cli
from hdpsim.experiments.cli.examples import endings
from hdpsim.experiments.verbs import doctor as module

DOCS = Path(__file__).resolve().parents[3] / "docs"
ALL = [
    command for ending in endings().values() for command, _ in ending.examples if command.startswith("hdpsim")
]


def parts_of(verb: str) -> list[str]:
    command = cli.get_command(click.Context(cli), verb)
    return [f"{verb} {name}" for name in command.commands] if isinstance(command, click.Group) else []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_two_examples_and_a_page(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"]).stdout
    ending = endings()[verb]
    assert len(ending.examples) == 2
    for command, what in ending.examples:
        assert command in shown
        assert what in shown
    assert "Exit codes: 0 fine" in shown
    assert ending.page in shown
    assert (DOCS.parent / ending.page).is_file()


@pytest.mark.parametrize("words", [words for verb in VERBS for words in parts_of(verb) or [verb]])
def test_help_speaks_of_a_command_line_and_not_of_python(words: str) -> None:
    """Helps are docstrings of functions: nothing of their sections, values and parameters' names is left in them."""
    shown = CliRunner().invoke(cli, [*words.split(), "--help"], prog_name="hdpsim").stdout
    assert not re.search(r"Args:|Returns:|Raises:|\bNone\b|\*\w+\*|`[\"\[{]", shown)


def test_help_lists_every_verb_with_a_whole_sentence() -> None:
    shown = " ".join(CliRunner().invoke(cli, ["--help"]).stdout.split())
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert command.help is not None
        sentence = " ".join(command.help.split("\n\n")[0].split())
        assert f"{verb} {sentence.partition('. ')[0]}" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulat"], "'simulat' is no command of hdpsim (did you mean 'simulate'?)"),
        (["mine.yaml"], "'mine.yaml' is no command of hdpsim; `hdpsim --help` lists them"),
        (["trace", "mine.csv"], "'mine.csv' is no command of hdpsim trace; commands: check, stats, synth"),
        (["catalog", "gpu"], "'gpu' is no command of hdpsim catalog (did you mean 'gpus'?)"),
        (["reproduce", "llama"], "'llama' is no command of hdpsim reproduce; commands: bytescale, megascale"),
        (["\x1b[2Jx"], "is no command of hdpsim"),
    ],
)
def test_an_unknown_command_is_told_what_there_is(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, words, prog_name="hdpsim")
    assert done.exit_code == 2
    assert said in done.stderr
    assert "\x1b" not in done.stderr


def test_no_example_is_of_a_verb_that_is_gone() -> None:
    known = {*VERBS, *(part for verb in VERBS for part in parts_of(verb))}
    assert set(endings()) <= known
    assert {verb for verb, ending in endings().items() if ending.page} == set(VERBS)


@pytest.mark.parametrize("example", ALL)
def test_examples_parse(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    words = shlex.split(example.partition(" > ")[0])[1:]
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    with command.make_context("hdpsim", words):
        pass


def completed(*words: str) -> set[str]:
    """What bash is offered behind these words."""
    environment = {
        **os.environ, "_HDPSIM_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("hdpsim", *words)),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    command = [sys.executable, "-c", "from hdpsim.__main__ import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return {line.partition(",")[2] for line in done.stdout.splitlines()}


def test_a_shell_completes_verbs_scenarios_keys_and_strategies() -> None:
    assert {"simulate"} <= completed("simul")
    assert {"quickstart-8gpu", "quick"} == completed("simulate", "quick"), "the last one stands for files"
    assert {"layout.tp=", "layout.tp_sequence_parallel="} & completed("simulate", "x", "--set", "layout.tp")
    assert completed("compare", "x", "--strategies", "static,hdp-o") == {"static,hdp-opt"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_works_in_bash(tmp_path: Path) -> None:
    script = tmp_path / "complete.sh"
    script.write_text(CliRunner().invoke(cli, ["completion", "bash"]).stdout)
    hdpsim_command = tmp_path / "hdpsim"
    hdpsim_command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hdpsim "$@"\n')
    hdpsim_command.chmod(0o755)

    def offered(*words: str) -> list[str]:
        typed = (
            f"source {script}; COMP_WORDS=(hdpsim {shlex.join(words)}); COMP_CWORD={len(words)}; "
            f'_hdpsim_completion {hdpsim_command} 2>/dev/null; echo "${{COMPREPLY[@]}}"'
        )
        return subprocess.run(
            ["bash", "-c", typed], capture_output=True, text=True, check=False
        ).stdout.split()

    assert offered("simulate", "x", "--set", "data.con") == ["data.context="]
    assert offered("simulate", "quick") == ["quickstart-8gpu"]
    assert "nospace" in script.read_text()


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --no")]
)
def test_completion_prints_a_script(shell: str, words: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert words in done.stdout
    assert "_HDPSIM_COMPLETE" in done.stdout


def test_the_doctor_finds_this_installation_sound() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sound"]
    checks = {row["what"]: row["ok"] for row in found["checks"]}
    for name in ("numpy", "catalog", "executors agree", "above its lower bound", "accounts sum to the step"):
        assert checks[name], name
    assert "This installation is sound." in repr(hdpsim.doctor())


def test_the_doctor_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lower_bound_s", lambda setup, lengths: 1e6)
    monkeypatch.setattr(module, "_requirements", lambda: ["no-such-package>=1", "neither; extra == 'report'"])
    done = CliRunner().invoke(cli, ["doctor"])
    assert done.exit_code == 1
    assert "no-such-package: is missing; above its lower bound: -100.0%" in done.stderr
    assert "pip install 'hdpsim[report]' would" in done.stdout
    assert "WRONG" in done.stdout
