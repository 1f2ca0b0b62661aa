"""Files of others: regular ones only, never more of them in memory than a stated limit, and no surprise inside.

Every format that hdpsim reads comes through here: scenarios and catalogs (YAML), configurations of models (JSON),
tables of measurements (CSV, gzip), traces and recorded operations. A FIFO would wait for ever, a device never ends, a
few kilobytes of gzip unfold to gigabytes. Problems are `UnreadableError`s, which callers turn into their own.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from hdpsim.errors import UserInputError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import LIMITS

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 2**20
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class UnreadableError(UserInputError):
    """A file that cannot be read.

    Attributes:
        path: its name.
        reason: why not, for a sentence that starts with the name.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shortened(path, LONGEST_NAME)}: {reason}")
        self.path, self.reason = path, reason


def regular_file(path: str | Path) -> int:
    """The size of a file in bytes.

    Raises:
        UnreadableError: there is none, or it is a directory, a pipe, a device or a socket.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _system(path, error) from None
    _refuse_special(path, status.st_mode)
    return status.st_size


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, open for reading; raises UnreadableError as `regular_file`."""
    try:
        # Without waiting: to open a pipe would otherwise take until somebody writes into it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        if Path(path).is_dir():
            raise UnreadableError(str(path), "is a directory, not a file") from None
        raise _system(path, error) from None
    try:
        _refuse_special(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _refuse_special(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a special file")
        raise UnreadableError(str(path), f"is {kind}, not a file")


def _system(path: str | Path, error: OSError | ValueError) -> UnreadableError:
    if isinstance(error, FileNotFoundError):
        return UnreadableError(str(path), "no such file")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UnreadableError(str(path), f"cannot be read: {reason or error}")


def read_bytes(path: str | Path, limit: str = "configuration_bytes", *, unpack: bool = False) -> bytes:
    """The content of a file, unpacked where it is compressed with gzip and *unpack* is set.

    Raises:
        UnreadableError: no regular file, unreadable, damaged, or larger than the limit of that name (unpacked).
    """
    most, why = LIMITS[limit]
    with open_regular(path) as file:
        try:
            packed = unpack and file.peek(2)[:2] == _GZIP  # type: ignore[attr-defined]  # a buffered reader
            content = gzip.GzipFile(fileobj=file).read(most + 1) if packed else file.read(most + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnreadableError(str(path), f"the gzip compression is damaged ({error})") from None
        except OSError as error:
            raise _system(path, error) from None
    if len(content) > most:
        what = " when it is unpacked" if packed else ""
        raise UnreadableError(str(path), f"is larger than {_size(most)}{what}: {why}")
    return content


def read_text(path: str | Path) -> str:
    """The content of a configuration as text in UTF-8; raises UnreadableError as `read_bytes`, or when it is none."""
    try:
        return read_bytes(path, "configuration_bytes").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(str(path), f"is not UTF-8 text (byte {error.start})") from None


class _Limited(io.RawIOBase):
    """What a packed stream unpacks to, up to a limit."""

    def __init__(self, path: str | Path, inner: io.BufferedIOBase, limit: str) -> None:
        self._path, self._inner = path, inner
        self._most, self._why = LIMITS[limit]
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._inner.read(min(len(buffer), _BLOCK_BYTES))
        self._read += len(block)
        if self._read > self._most:
            raise UnreadableError(str(self._path), f"unpacks to more than {_size(self._most)}: {self._why}")
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_trace(path: str | Path, gzipped: bool, limit: str = "trace_bytes") -> BinaryIO:
    """A regular file, plain or packed with gzip, to be read in blocks; unpacked, it ends at the limit of that name.

    Errors of the compression come up while it is read.
    """
    file = open_regular(path)
    if not gzipped:
        return file
    return cast("BinaryIO", io.BufferedReader(_Limited(path, _Packed(file), limit), _BLOCK_BYTES))


class _Packed(gzip.GzipFile):
    """A packed stream that closes the file below it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()


def _size(count: int) -> str:
    unit, scale = next(pair for pair in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if count >= pair[1])
    return f"{count // scale} {unit}"


def loads_json(text: str | bytes, where: str) -> Any:
    """One JSON document, not too deep, without nan, infinity, endless numbers, half characters and keys given twice.

    Raises:
        UnreadableError: it is none; *where* is what the message calls it.
    """
    try:
        data = json.loads(text, parse_constant=_no_number, object_pairs_hook=unique_keys)
        if not isinstance(data, dict | list):
            return data
        depth = LIMITS["configuration_depth"][0]
        if too_deep(data, depth):
            raise UnreadableError(where, f"is nested more than {depth} levels deep")
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except RecursionError:
        raise UnreadableError(where, "not JSON: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise UnreadableError(where, "not JSON: a text holds half a character (a lone surrogate)") from None
    except ValueError as error:  # a number of thousands of digits, too
        raise UnreadableError(where, f"not JSON: {shortened(str(error), LONGEST_NAME)}") from None
    return data


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are given once; `object_pairs_hook` of json. Raises ValueError that names the key."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {quoted(twice)} is given twice")
    return result


def _no_number(word: str) -> float:
    raise ValueError(f"{quoted(word)} is no number")


def too_deep(data: object, levels: int) -> bool:
    """Whether lists and mappings are nested more than so many *levels* deep."""
    level: list[object] = [data]
    for _ in range(levels + 1):
        nested = [value for value in level if isinstance(value, dict | list)]
        if not nested:
            return False
        level = [
            below for value in nested for below in (value.values() if isinstance(value, dict) else value)
        ]
    return True
