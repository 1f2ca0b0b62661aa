"""The files a command writes: asked for before the work, and there whole or not at all after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted

__all__ = ["check_out_file", "replacing", "write_whole"]


def check_out_file(path: str, option: str, endings: tuple[str, ...] = ()) -> None:
    """Raise UserInputError unless a file can be written at *path*, whose name ends in one of *endings* (if any).

    The folder is tried out with a file that is gone at once.
    """
    if endings and not path.lower().endswith(endings):
        raise UserInputError(
            f"{option}: expected a file ending in {' or '.join(endings)}, got {quoted(path)}"
        )
    target = Path(path).absolute()
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise UserInputError(f"{option}: {path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(target: Path, what: str = "file") -> Iterator[IO[bytes]]:
    """A new file beside *target*, which takes its name when the block ends well and is gone when it does not.

    Raises:
        UserInputError: *target* cannot be written, the disk is full.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as raw:
                yield raw
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserInputError(f"{target}: cannot write the {what}: {error.strerror or error}") from error


def write_whole(path: str, text: str, what: str = "file") -> None:
    """Write *text* to *path*.

    Raises:
        UserInputError: it cannot be written; what was there stays.
    """
    with replacing(Path(path), what) as file:
        file.write(text.encode("utf-8"))
