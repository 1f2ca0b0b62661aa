"""Files that are there whole or not at all: written under a random name beside their place, renamed when complete.

A temporary file is made with O_EXCL and O_NOFOLLOW under a name that nobody can know before, so that a link prepared by
somebody else is never written through. Its name is noted before it exists: whatever ends the command, at whatever
moment, `remove_leftovers` finds it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hdpsim.interrupts import held

# Flags that only some systems have add nothing elsewhere.
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_NEW_FILE |= sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
_LONGEST_NAME = 40  # characters of the final name that are kept in a temporary one: 255 bytes are the limit

_made: dict[Path, bool] = {}
"""What goes when the command ends: temporary files and folders (True: with all in them), and new parents of results
(False: only if they are empty)."""


@contextmanager
def replacing(target: Path, suffix: str = "") -> Iterator[BinaryIO]:
    """A new file beside *target*, which takes its name when the block ends well and is gone when it does not.

    A link called *target* is replaced, not followed. OSErrors are for the caller to explain.
    """
    path = _temporary(target, suffix)
    try:
        with open(path, "w+b", opener=_open_new) as file:
            yield file
        with held():
            os.replace(path, target)
            del _made[path]
    finally:
        _remove(path)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside *target* that only its owner can enter; gone after the block unless it was renamed."""
    path = _temporary(target)
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        _remove(path)


def try_out(target: Path) -> None:
    """Make a file beside *target* and remove it: an OSError now is better than one after hours of work."""
    with contextlib.suppress(FileNotFoundError):
        target.lstat()  # a name that is too long is: the temporary one is cut
    path = _temporary(target)
    try:
        open(path, "w+b", opener=_open_new).close()
    finally:
        _remove(path)


@contextmanager
def made_parents(target: Path) -> Iterator[None]:
    """The folders above *target*, those that are missing made; these are gone again if the block does not end well."""
    missing = []
    for folder in target.parents:
        if folder.exists():
            break
        missing.append(folder)
    for folder in missing:
        _made[folder] = False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
        for folder in missing:
            _made.pop(folder, None)
    finally:
        for folder in missing:
            _remove(folder)


def remove_leftovers() -> None:
    """Remove what an interrupt left at a moment when nobody could."""
    with held():
        for path in reversed(_made.copy()):
            _remove(path)


def umask() -> int:
    """The permissions that new files do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _temporary(target: Path, suffix: str = "") -> Path:
    path = target.with_name(f".{target.name[:_LONGEST_NAME]}.{os.urandom(8).hex()}{suffix}")
    _made[path] = True
    return path


def _open_new(path: str, _flags: int) -> int:
    return os.open(path, _NEW_FILE, 0o666)


def _remove(path: Path) -> None:
    """Remove what is in `_made`, and forget it."""
    with held(), contextlib.suppress(OSError):
        with_all = _made.pop(path, None)
        if with_all is None:
            return
        if not path.is_dir():
            path.unlink(missing_ok=True)
        elif with_all:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rmdir()
