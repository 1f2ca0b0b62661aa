"""The `hdpsim` command, also as `python -m hdpsim`.

Nothing is imported before Ctrl-C is looked after: loading the command line takes longer than a change of mind.
"""

import os
import sys


def main() -> None:
    """Entry point of the command."""
    try:
        from . import interrupts

        interrupts.listen()
        try:
            _open_streams()
            from hdpsim.experiments.cli.app import main as run

            run()
        finally:
            _tidy()
            interrupts.stop()
    except KeyboardInterrupt:
        _end()
    except SystemExit as end:
        if end.code == 1 and _interrupted():  # click, before it has found the verb
            _end()
        raise
    except Exception:
        if not _interrupted():  # else a library made an error of its own out of the interrupt
            raise
        _end()


def _open_streams() -> None:
    """Give a closed stdin, stdout or stderr (`hdpsim ... >&-`) nowhere to read or write, instead of a later error.

    Left closed, its number would go to the next file that is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open as long as the program
            if name == "stdout" and sys.stderr is not None:
                sys.stderr.write("Note: stdout is closed; what would be printed there is lost\n")


def _tidy() -> None:
    """Remove temporary files that are still there."""
    files = sys.modules.get("hdpsim.files")
    if files is not None:
        files.remove_leftovers()


def _interrupted() -> bool:
    from . import interrupts

    return interrupts.received()


def _end() -> None:
    from . import interrupts

    sys.stderr.write(f"Error: {interrupts.message()}\n")
    sys.exit(interrupts.exit_code())


if __name__ == "__main__":
    main()
