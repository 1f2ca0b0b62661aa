"""`hdpsim import`: another tool's configuration as a scenario."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import file_option, json_option, whole_number
from hdpsim.experiments.cli.shown import Output


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option(
    "--from",
    "form",
    type=click.Choice(("megatron", "nemo", "bridge", "torchtitan", "huggingface")),
    help="What the file is; default: by its name and sections.",
)
@click.option("--cluster", metavar="NAME", help="A shipped cluster, node or GPU: the file does not say.")
@click.option(
    "--gpus", type=whole_number("gpus"), metavar="N", help="GPUs; default: as the file starts processes."
)
@click.option(
    "--model", metavar="NAME", help="A shipped model, or a file of one, where the file is about a recipe."
)
@click.option(
    "--release", metavar="TEXT", help="Release of the tool (0.13), whose defaults fill what is not said."
)
@file_option("-o", "--output", "out", help="Where to write.")
@json_option
def command(
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
    from hdpsim.experiments.exchange.import_report import import_document, imported_text
    from hdpsim.experiments.exchange.importer import Asked, import_file
    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole

    if out is not None:
        check_out_file(out, "--output", (".yaml", ".yml"))
    found = import_file(file, form, Asked(cluster=cluster, gpus=gpus, model=model, release=release))
    if out is not None:
        write_whole(out, imported_text(found), "scenario")
    Output(as_json=as_json).present(import_document(found, out))
