"""`hdpsim completion`: a script by which a shell completes verbs, options, scenarios and keys."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.shown import say


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print a script that teaches SHELL to complete hdpsim's commands.

    Verbs, options, names of scenarios, strategies, and the keys of --set.
    """
    from click.shell_completion import get_completion_class

    from hdpsim.experiments.cli.app import cli

    found = get_completion_class(shell)
    assert found is not None
    completer = found(cli, {}, "hdpsim", "_HDPSIM_COMPLETE")
    script = completer.source_template % completer.source_vars()
    if shell == "bash":  # no blank between a key's = and its value
        script = script.replace(
            "    return 0\n", "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n    return 0\n"
        )
    say(script, nl=False)
