"""`hdpsim export`: a scenario as flags or configuration of another tool."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import file_option, json_option, scenario_argument, set_option
from hdpsim.experiments.cli.shown import Output


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
@file_option("-o", "--output", "out", help="Where to write.")
@set_option
@json_option
def command(
    scenario: str, target: str, spelling: str, out: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Write a scenario as flags of Megatron-Core, or as a configuration of Megatron-Bridge or torchtitan, to paste.

    What a run needs and a scenario does not know (data, tokenizer, learning rate, ...) is listed, and so is what the
    tool cannot say.
    """
    from hdpsim.experiments.exchange.exporter import export_document, export_scenario
    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
    from hdpsim.experiments.scenario.scenario import load_scenario

    if out is not None:
        check_out_file(out, "--output")
    checked = load_scenario(scenario, overrides)
    found = export_scenario(checked, target, spelling)
    if out is not None:
        write_whole(out, found.text, "options")
    Output(as_json=as_json).present(export_document(checked, found, out))
