"""Verbs that list, read and write files, look at networks, and check the installation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.catalog import catalog as catalog
from hdpsim.experiments.cli.command_from_verb import verb
from hdpsim.experiments.cli.options import (
    SCENARIO_FILES,
    checked_with,
    file_option,
    json_option,
    number_option,
    scenario_argument,
    set_option,
    written_option,
)
from hdpsim.experiments.cli.printing import Output, emit_json, say
from hdpsim.experiments.cli.trace import trace as trace

if TYPE_CHECKING:
    from hdpsim.experiments.other_tools.new import Question

doctor = verb("doctor", "doctor", output=[json_option])

fabric = verb("network", "fabric", output=[json_option])

flows = verb("network", "flows", output=[json_option])


@click.command("scenarios")
@click.argument("scenario", required=False, metavar="[SCENARIO]")
@set_option
@json_option
def scenarios(scenario: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """List the shipped scenarios, or print one in full.

    With a SCENARIO: prints it with every default filled in; the output is a scenario file.
    """
    from hdpsim.experiments.output.document import Column, Document, Table
    from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, scenario_names

    if scenario is not None:
        checked = load_scenario(scenario, overrides)
        if as_json:
            emit_json(checked.document)
        else:
            say(checked.to_yaml(), nl=False)
        return
    if overrides:
        raise UserInputError("--set changes one scenario: name it")
    shipped = [load_scenario(name) for name in scenario_names()]
    columns: tuple[Column[Scenario], ...] = (
        Column("scenario", lambda shown: shown.name),
        Column("gpus", lambda shown: shown.cluster.gpus, heading="GPUs", format=","),
        Column("what", lambda shown: shown.description, left=True),
    )
    names = [{"name": shown.name, "description": shown.description} for shown in shipped]
    table = Table(columns=columns, rows=shipped)
    Output(as_json=as_json).present(Document(kind="", payload={"scenarios": names}, blocks=(table,)))


@click.command("report")
@click.argument("folder", metavar="RUN_DIR", type=click.Path())
@file_option(
    "-o",
    "--output",
    metavar="FILE.html",
    callback=checked_with("output.page.html:check_page"),
    help="Where to write; default: RUN_DIR.html beside the directory.",
)
def report(folder: str, output: str | None) -> None:
    """Make one page of a run directory, to forward: answer, charts, figures, assumptions.

    The page is a single file that needs no network. Verbs make the same at once with --report FILE.html.
    """
    from hdpsim.experiments.output.page.html import check_page, write_page
    from hdpsim.experiments.output.page.view import loaded

    target = output or f"{Path(folder).resolve()}.html"
    check_page(target)
    say(write_page(target, loaded(Path(folder))))


@click.command("schema")
@written_option("-o", "--output", "path", help="Write it there; default: print it.")
def schema(path: str | None) -> None:
    """Print the JSON Schema of scenario files, by which editors complete and check them.

    With it an editor with a YAML language server completes keys, shows what they mean and marks what is wrong.
    """
    import json

    from hdpsim.experiments.output.files.out_file import write_whole
    from hdpsim.experiments.scenario.json_schema import scenario_schema

    text = json.dumps(scenario_schema(), indent=2) + "\n"
    if path is None:
        say(text, nl=False)
        return
    write_whole(path, text)
    say(f"wrote {path}")


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a script that teaches SHELL to complete hdpsim's commands.

    Verbs, options, names of scenarios, strategies, and the keys of --set.
    """
    from click.shell_completion import get_completion_class

    from hdpsim.experiments.cli.app import cli

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    completer = completion_class(cli, {}, "hdpsim", "_HDPSIM_COMPLETE")
    script = completer.source_template % completer.source_vars()
    if shell == "bash":  # no blank between a key's = and its value
        script = script.replace(
            "    return 0\n", "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n    return 0\n"
        )
    say(script, nl=False)


@click.command("export")
@scenario_argument
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Choice(("megatron-core", "megatron-bridge", "torchtitan")),
    help="The tool.",
)
@click.option("--megatron", "spelling", metavar="RELEASE", default="", help="Older spelling: main-2026-08.")
@written_option("-o", "--output", "out", help="Where to write.")
@set_option
@json_option
def export(
    scenario: str, target: str, spelling: str, out: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Write a scenario as flags of Megatron-Core, or as a configuration of Megatron-Bridge or torchtitan, to paste.

    What a run needs and a scenario does not know (data, tokenizer, learning rate, ...) is listed, and so is what the
    tool cannot say.
    """
    from hdpsim.experiments.other_tools.exporter import export_document, export_scenario
    from hdpsim.experiments.output.files.out_file import write_whole
    from hdpsim.experiments.scenario.scenario import load_scenario

    checked = load_scenario(scenario, overrides)
    exported = export_scenario(checked, target, spelling)
    if out is not None:
        write_whole(out, exported.text, "options")
    Output(as_json=as_json).present(export_document(checked, exported, out))


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option(
    "--from",
    "form",
    type=click.Choice(("megatron", "nemo", "bridge", "torchtitan", "huggingface")),
    help="What the file is; default: by its name and sections.",
)
@click.option("--cluster", metavar="NAME", help="A shipped cluster, node or GPU: the file does not say.")
@number_option("gpus", "--gpus", help="GPUs; default: as the file starts processes.")
@click.option(
    "--model", metavar="NAME", help="A shipped model, or a file of one, where the file is about a recipe."
)
@click.option(
    "--release", metavar="TEXT", help="Release of the tool (0.13), whose defaults fill what is not said."
)
@written_option("-o", "--output", "out", endings=SCENARIO_FILES, help="Where to write.")
@json_option
def import_(
    file: str,
    form: str | None,
    cluster: str | None,
    gpus: int | None,
    model: str | None,
    release: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Turn another tool's configuration into a scenario.

    FILE holds arguments of Megatron-LM (a shell script, or flags alone), a recipe of NeMo or Megatron-Bridge (YAML), a
    configuration of torchtitan (TOML) or a config.json. Every key says which option it comes from; options that are not
    understood are listed, and nothing is guessed.
    """
    from hdpsim.experiments.other_tools.import_report import import_document, imported_text
    from hdpsim.experiments.other_tools.importer import UserAnswers, import_file
    from hdpsim.experiments.output.files.out_file import write_whole

    imported = import_file(file, form, UserAnswers(cluster=cluster, gpus=gpus, model=model, release=release))
    if out is not None:
        write_whole(out, imported_text(imported), "scenario")
    Output(as_json=as_json).present(import_document(imported, out))


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
@written_option("-o", "--output", "out", endings=SCENARIO_FILES, help="Where to write.")
def new(out: str | None, **given: str | None) -> None:
    """Write a first scenario: asks five questions, and finds a layout that fits into memory.

    What options answer is not asked.
    """
    from hdpsim.experiments.bands.memory_fit import fits_words, shipped_margin
    from hdpsim.experiments.other_tools.new import QUESTIONS, answered, new_scenario, says_it_all
    from hdpsim.experiments.output.amounts import memory_of
    from hdpsim.experiments.output.files.out_file import write_whole

    answers: dict[str, Any] = {}
    for number, question in enumerate(QUESTIONS, start=1):
        values = [given[option.removeprefix("--")] for option in question.options]
        if says_it_all(question, values):
            answers |= answered(question, " ".join(value for value in values if value))
        else:
            answers |= _answer_to(question, f"{number}/{len(QUESTIONS)}", values)
    name = "new" if out is None else Path(out).stem
    text, scenario, memory = new_scenario(answers, name, shipped_margin().headroom)
    if out is None:
        say(text, nl=False)
        return
    write_whole(out, text, "scenario")
    parallel, gpus = scenario.layout.parallel, scenario.cluster.gpus
    say(f"wrote {out}: {scenario.model.name} on {gpus:,} GPUs fits with TP {parallel.tp}, PP {parallel.pp}")
    say(f"memory: {memory_of(memory)}; it {fits_words(memory)} probability (the headroom of hdpsim plan)")
    say(f"next: hdpsim simulate {out}")


def _answer_to(question: Question, place: str, values: list[str | None]) -> Mapping[str, Any]:
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
