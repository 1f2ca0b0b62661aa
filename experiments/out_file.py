"""A check of the file a command will write, before the work whose result goes there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hdpsim.errors import UserInputError

__all__ = ["check_out_file"]


def check_out_file(path: str, option: str, endings: tuple[str, ...] = ()) -> None:
    """Raise UserInputError unless a file can be written at *path*, whose name ends in one of *endings* (if any).

    The folder is tried out with a file that is gone at once.
    """
    if endings and not path.lower().endswith(endings):
        raise UserInputError(f"{option}: expected a file ending in {' or '.join(endings)}, got {path!r}")
    target = Path(path).absolute()
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise UserInputError(f"{option}: {path}: cannot be written: {error.strerror or error}") from error
