"""`hdpsim new`: a first scenario from five answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.options import file_option
from hdpsim.experiments.cli.shown import say

if TYPE_CHECKING:
    from hdpsim.experiments.exchange.new import Question


@click.command("new")
@click.option("--model", metavar="NAME", help="A shipped model, or a file of one.")
@click.option("--gpu", metavar="NAME", help="A shipped GPU, node or cluster.")
@click.option("--gpus", metavar="N", help="How many.")
@click.option(
    "--lengths", metavar="WHAT", help="A file, a shipped trace or distribution, or a length for all (8K)."
)
@click.option("--context", metavar="TOKENS", help="The longest sequence.")
@click.option("--batch", metavar="N", help="Tokens (4M) or sequences (512 sequences) of a step.")
@click.option("--framework", metavar="NAME", help="Training stack and release (megatron-core 0.14), or none.")
@file_option("-o", "--output", "out", help="Where to write.")
def command(out: str | None, **given: str | None) -> None:
    """Write a first scenario: asks five questions, and finds a layout that fits into memory.

    What options answer is not asked.
    """
    from pathlib import Path

    from hdpsim.experiments.bands.memory_fit import fits_words
    from hdpsim.experiments.exchange.new import QUESTIONS, answered, new_scenario, says_it_all
    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
    from hdpsim.experiments.output.words import memory_of

    if out is not None:
        check_out_file(out, "--output", (".yaml", ".yml"))
    answers: dict[str, Any] = {}
    for number, question in enumerate(QUESTIONS, start=1):
        values = [given[option.removeprefix("--")] for option in question.options]
        if says_it_all(question, values):
            answers |= answered(question, " ".join(value for value in values if value))
        else:
            answers |= _asked(question, f"{number}/{len(QUESTIONS)}", values)
    text, scenario, memory = new_scenario(answers, "new" if out is None else Path(out).stem)
    if out is None:
        say(text, nl=False)
        return
    write_whole(out, text, "scenario")
    parallel, gpus = scenario.layout.parallel, scenario.cluster.gpus
    say(f"wrote {out}: {scenario.model.name} on {gpus:,} GPUs fits with TP {parallel.tp}, PP {parallel.pp}")
    say(f"memory: {memory_of(memory)}; it {fits_words(memory)} probability (hdpsim plan leaves some free)")
    say(f"next: hdpsim simulate {out}")


def _asked(question: Question, place: str, values: list[str | None]) -> Mapping[str, Any]:
    """The answer from the terminal (or a pipe), asked again until it is one; *values* are those that options gave."""
    pairs = list(zip(question.options, values, strict=True))
    missing = [option for option, value in pairs if value is None]
    known = [f"{option} {value}" for option, value in pairs if value is not None]
    only = f" ({', '.join(known)}; {' '.join(missing)} is open)" if known else ""
    while True:
        say(f"{place} {question.asks}{only} [{question.allowed}] ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            say(err=True)
            raise UserInputError(f"the input ended before question {place} was answered: {' '.join(missing)}")
        parts = [line.strip() if value is None else value for value in values] if known else [line.strip()]
        try:
            return question.read(" ".join(parts))
        except UserInputError as error:
            say(str(error), err=True)
