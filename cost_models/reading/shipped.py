"""Files that come with hdpsim: where they are, and what they are called."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hdpsim.errors import CatalogError, UserInputError
from hdpsim.quoting import did_you_mean, quoted


def shipped(path: str) -> Path:
    """A file or folder of hdpsim by its path from the top, such as experiments/data/sweeps."""
    return Path(str(resources.files("hdpsim"))) / path


def names_in(folder: Path) -> tuple[str, ...]:
    """The names of a folder's YAML files."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def known_file(name: str, folder: Path, what: str, *others: str) -> Path:
    """The file of that *name* in *folder*; *others*: names besides that the caller knows.

    Raises:
        CatalogError: there is none; the message lists those there are.
    """
    names = names_in(folder)
    if name not in names:
        known = (*others, *names)
        raise CatalogError(
            f"there is no {what} {quoted(name)}{did_you_mean(name, known)}; known: {', '.join(known)}, or a .yaml file"
        )
    return folder / f"{name}.yaml"


def given_or_shipped(source: str | Path, folder: Path, what: str) -> Path:
    """The file that *source* is the path of, or the name of in *folder*.

    Raises:
        UserInputError: neither; the message lists the shipped names.
    """
    path, names = Path(source), names_in(folder)
    if not str(source).strip():
        raise UserInputError(f"the name of a {what} is empty; shipped: {', '.join(names)}")
    if path.is_file():
        return path
    if str(source) in names:
        return folder / f"{source}.yaml"
    fault = f"is a directory, not a {what} file" if path.is_dir() else f"no such file and no shipped {what}"
    raise UserInputError(f"{source}: {fault}{did_you_mean(str(source), names)}; shipped: {', '.join(names)}")
