"""Results on disk under the hash of what they depend on: written once, checked when read, never trusted blindly.

An entry is one JSON file `ab/abcdef....json` with the result and its checksum. It appears whole or not at all (a
temporary file, renamed), so several sweeps may share a store. An entry that does not match its checksum counts as
absent and is written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hdpsim import files
from hdpsim.errors import UserInputError
from hdpsim.reading import open_regular

SCHEMA_VERSION = 1

_ABANDONED_S = 86400.0
_TEMPORARY = ".part"


def default_store() -> str:
    """Where results are kept unless somebody says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("HDPSIM_STORE") or os.path.join(base, "hdpsim", "results")


class StoreError(UserInputError):
    """The store cannot be written; what it holds already stays."""


class ResultStore:
    """JSON values by key; a key is a hexadecimal hash.

    Attributes:
        folder: where the entries are.
        damaged: how many entries were found unreadable since this object exists.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.damaged = 0

    def prepare(self) -> None:
        """Make sure that results can be written, before hours are spent on them.

        Raises:
            StoreError: the folder cannot be made or written to.
        """
        with self._writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            files.try_out(self.folder / "entry")
        self._remove_abandoned()

    def get(self, key: str) -> Any | None:
        """The value of *key*; None when there is none, or when its entry is damaged."""
        path = self._path(key)
        if not os.path.lexists(path):
            return None
        try:
            with open_regular(path) as file:
                text = file.read()
        except (OSError, UserInputError):
            self.damaged += 1
            return None
        try:
            entry = json.loads(text)
            value = entry["value"]
            sound = (
                entry["schema_version"] == SCHEMA_VERSION
                and entry["key"] == key
                and entry["sha256"] == _digest(value)
            )
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            self.damaged += 1
            return None
        return value

    def put(self, key: str, value: Any) -> None:
        """Write the value of *key*, which JSON must be able to hold.

        Raises:
            StoreError: the disk is full, or the folder is not writable.
        """
        entry = {"schema_version": SCHEMA_VERSION, "key": key, "sha256": _digest(value), "value": value}
        text = json.dumps(entry, allow_nan=False)
        path = self._path(key)
        with self._writing(path):
            _make_way(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(path, _TEMPORARY) as file:
                file.write(text.encode("utf-8"))

    def keys(self) -> Iterator[str]:
        """The keys of all entries, damaged ones included."""
        return (path.stem for path in sorted(self.folder.glob("??/*.json")))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _remove_abandoned(self) -> None:
        """Delete temporary files of processes that were killed long ago."""
        oldest = time.time() - _ABANDONED_S
        for path in (*self.folder.glob(f"*{_TEMPORARY}"), *self.folder.glob(f"??/*{_TEMPORARY}")):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{path}: the store cannot be written: {error.strerror or error}. Results that are in it stay; "
                "free some space or choose another place with --store DIR"
            ) from error


def _make_way(path: Path) -> None:
    """Rename what stands where an entry or its folder belongs and is neither: nothing of somebody else is deleted."""
    parent = path.parent
    for place, wrong in (
        (parent, os.path.lexists(parent) and not parent.is_dir()),
        (path, path.is_dir() and not path.is_symlink()),
    ):
        if wrong:
            place.rename(place.with_name(f"{place.name}.{os.urandom(8).hex()}.unusable"))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, allow_nan=False, sort_keys=True).encode()).hexdigest()
