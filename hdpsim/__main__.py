"""`python -m hdpsim`: the same as the `hdpsim` command."""

from experiments.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
