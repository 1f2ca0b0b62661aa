"""The `hdpsim` command: the list of verbs, and how errors leave the program.

These modules import only click and small things of ours; numpy, matplotlib and the rest are loaded when a verb runs,
so that `hdpsim --help` starts quickly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword

import click

from hdpsim import interrupts
from hdpsim.errors import HdpSimError, InfeasibleError, UserInputError
from hdpsim.experiments.cli.examples import epilog
from hdpsim.experiments.cli.groups import Commands
from hdpsim.quoting import message

VERBS = {
    "simulate": "running", "compare": "running", "plan": "planning", "recommend": "planning", "check": "planning",
    "check-strategy": "planning",
    "scale": "planning", "whatif": "planning", "explain": "running", "sweep": "planning", "replay": "running",
    "trace": "files", "replay-ops": "running", "campaign": "running", "reproduce": "measurements",
    "validate": "measurements", "calibrate": "measurements", "scenarios": "files", "schema": "files",
    "catalog": "files", "report": "files", "fabric": "files", "flows": "files", "import": "files", "export": "files",
    "new": "files", "doctor": "files", "completion": "files",
}  # fmt: skip
"""Every verb in the order of the help text, and the module here that has its click command."""

_HEADINGS = {
    "running": "How fast is it",
    "planning": "What to run",
    "measurements": "How far to believe it",
    "files": "Files, catalogs and the installation",
}
"""Module of verbs -> what they stand under in the help text."""

_OUT_OF_MEMORY = (
    "this needs more memory than there is; take fewer or smaller batches, a shorter trace, fewer GPUs"
)
_TOO_DEEP = "the input is nested more deeply than anything that can be read"
PIPE_CLOSED = 141  # 128 + SIGPIPE, what a shell reports for a program whose reader went away

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EBADF)
"""What writing to stdout may end in: a full disk, a closed terminal. Any other error without a file's name is a bug."""


class _Failure(click.ClickException):
    """A message on stderr and an exit code, without a traceback."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(message(text))
        # click declares exit_code as a class variable, and documents setting it on the exception.
        self.exit_code = exit_code  # type: ignore[misc]


class _Verbs(Commands):
    """Loads a verb's module when it is asked for, and turns expected errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs."""
        return list(VERBS)

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Verbs by what is asked."""
        return {
            heading: [verb for verb, module in VERBS.items() if module == of]
            for of, heading in _HEADINGS.items()
        }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The click command of a verb, or None."""
        if cmd_name not in VERBS:
            return None
        name = cmd_name.replace("-", "_") + ("_" if iskeyword(cmd_name) else "")
        command: click.Command = getattr(import_module(f"{__package__}.{VERBS[cmd_name]}"), name)
        command.epilog = epilog(cmd_name)
        for name, part in getattr(command, "commands", {}).items():
            part.epilog = epilog(f"{cmd_name} {name}")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb. Errors raised on purpose become one message; anything else keeps its traceback."""
        return _guarded(lambda: super(_Verbs, self).invoke(ctx))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Read the arguments before the verb; what click says of them is made printable, too."""
        with _printable_usage():
            return super().make_context(info_name, args, parent, **extra)


@contextmanager
def _printable_usage() -> Iterator[None]:
    """Messages of click quote what was typed: cut them, and take out what a terminal would obey."""
    try:
        yield
    except click.ClickException as error:
        error.message = message(error.message)  # type: ignore[misc]  # click has no other way in
        raise


def _guarded(run: Callable[[], object]) -> object:
    try:
        _check_current_directory()
        with _printable_usage():
            result = run()
        sys.stdout.flush()
    except HdpSimError as error:
        raise _Failure(str(error), error.exit_code) from None
    except MemoryError:
        # The frames that held the memory are gone by now, so there is some for the message.
        raise _Failure(_OUT_OF_MEMORY, InfeasibleError.exit_code) from None
    except RecursionError:
        raise _Failure(_TOO_DEEP, UserInputError.exit_code) from None
    except KeyboardInterrupt:
        raise _Failure(interrupts.message(), interrupts.exit_code()) from None
    except BrokenPipeError:
        _write_nowhere()
        raise click.exceptions.Exit(PIPE_CLOSED) from None
    except OSError as error:
        if error.filename is None:
            if error.errno not in _OUTPUT_ERRORS:
                raise
            _write_nowhere()
        raise _Failure(f"{error.filename or 'output'}: {error.strerror}", 2) from None
    return result


def _check_current_directory() -> None:
    """Refuse a directory that somebody has deleted: every relative path would fail, some after all the work."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserInputError("the current directory was deleted; change to another one") from None


def _write_nowhere() -> None:
    """Stop writing to stdout: the interpreter flushes it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from hdpsim import __version__

        click.echo(f"hdpsim {__version__}")
        ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def cli() -> None:
    """How fast would this model train, on this cluster, with this data, under this strategy, and why?

    SCENARIO is a YAML file or the name of a shipped scenario (see `hdpsim scenarios`). Exit codes: 0 fine,
    1 a bug of hdpsim, 2 wrong input, 3 the request is legal but cannot run.
    """


def main() -> None:
    """Entry point of the `hdpsim` command and of `python -m hdpsim`."""
    cli(prog_name="hdpsim")
