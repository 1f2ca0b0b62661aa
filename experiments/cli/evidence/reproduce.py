"""`hdpsim reproduce`: predictions beside the measurements a paper published."""

from __future__ import annotations

from typing import Any

import click

from hdpsim.experiments.cli.groups import Commands
from hdpsim.experiments.cli.options import file_option, output_options, whole_number
from hdpsim.experiments.cli.progress import progress
from hdpsim.experiments.cli.shown import Output

RESIDUALS_HELP = (
    "Put features and log errors (no measurements) of the cells "
    "into the file that bands of predictions rest on."
)


class _Papers(Commands):
    """A command for every paper whose data are in experiments/data/papers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        from hdpsim.experiments.papers.folder import paper_names

        return list(paper_names())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command that reproduces a paper."""
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None


@click.group("reproduce", cls=_Papers)
def command() -> None:
    """How close are the predictions to published measurements?"""


def _command(name: str) -> click.Command:
    from hdpsim.experiments.papers.folder import paper_folder

    folder = paper_folder(name)
    setup = folder.setup

    @click.command(name, help=setup["about"])
    @click.option("--cells", metavar="FILE", type=click.Path(), help=folder.cells_help)
    @file_option("--write-residuals", "residuals", help=RESIDUALS_HELP)
    @output_options
    def run(output: Output, **options: Any) -> None:
        from hdpsim.experiments.verbs.evidence import reproduce

        output.show(reproduce(name, progress=progress, **options))

    if folder.figures:
        figure = click.option(
            "--figure",
            "figures",
            type=int,
            multiple=True,
            metavar="N",
            help=f"Only this figure ({', '.join(map(str, folder.figures))}); repeatable.",
        )
        run = figure(run)
    if "batches" in setup:
        batches = click.option(
            "--batches",
            type=whole_number("batches"),
            metavar="N",
            help=f"Global batches of each prediction; default: {setup['batches']}.",
        )
        run = batches(run)
    return run
