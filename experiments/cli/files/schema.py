"""`hdpsim schema`: the keys of scenario files as JSON Schema, for editors."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import file_option
from hdpsim.experiments.cli.shown import say


@click.command("schema")
@file_option("-o", "--output", "path", help="Write it there; default: print it.")
def command(path: str | None) -> None:
    """Print the JSON Schema of scenario files, by which editors complete and check them.

    With it an editor with a YAML language server completes keys, shows what they mean and marks what is wrong.
    """
    import json

    from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
    from hdpsim.experiments.scenario.json_schema import scenario_schema

    text = json.dumps(scenario_schema(), indent=2) + "\n"
    if path is None:
        say(text, nl=False)
        return
    check_out_file(path, "--output")
    write_whole(path, text)
    say(f"wrote {path}")
