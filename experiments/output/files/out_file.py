"""The files a command writes: asked for before the work, and there whole or not at all after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hdpsim import files
from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted


def check_out_file(path: str, option: str, endings: tuple[str, ...] = ()) -> None:
    """Raise UserInputError unless a file can be written at *path*, whose name ends in one of *endings* (if any).

    The folder is tried out with a file that is gone at once.
    """
    if endings and not path.lower().endswith(endings):
        raise UserInputError(
            f"{option}: expected a file ending in {' or '.join(endings)}, got {quoted(path)}"
        )
    try:
        files.try_out(Path(path).absolute())
    except OSError as error:
        raise UserInputError(f"{option}: {path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(target: Path, what: str = "file") -> Iterator[IO[bytes]]:
    """A new file beside *target*, which takes its name when the block ends well and is gone when it does not.

    Raises:
        UserInputError: *target* cannot be written, the disk is full.
    """
    try:
        with files.replacing(target) as file:
            yield file
    except OSError as error:
        raise UserInputError(f"{target}: cannot write the {what}: {error.strerror or error}") from error


def write_whole(path: str, text: str, what: str = "file") -> None:
    """Write *text* to *path*.

    Raises:
        UserInputError: it cannot be written; what was there stays.
    """
    with replacing(Path(path), what) as file:
        file.write(text.encode("utf-8"))
