"""The `hdpsim` command, also as `python -m hdpsim`.

Nothing is imported before Ctrl-C is looked after: loading the command line takes longer than a change of mind.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the command."""
    try:
        from experiments.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Error: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
