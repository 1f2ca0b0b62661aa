"""One input through the command line, in this process: what came out, and whether that is allowed."""

from __future__ import annotations

import json
import math
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner

from hdpsim.experiments.cli.app import cli

SECONDS = 20
SECONDS_OF_REPRODUCE = 120
"""Whatever the cells, it runs the ablation and the campaigns of the paper. Seconds of CPU: others may use it, too."""
TIMES_AS_LONG = 30
"""How much longer an input may take by the clock, with the machine busy; only what waits for ever takes that."""
MEMORY_BYTES = 3 * 2**30
"""On top of what the process has when an input starts."""
LONGEST_MESSAGE = 10_000
ALLOWED = (0, 2, 3)


class _TooLongError(BaseException):
    """Not an Exception: nothing in between may catch it."""


@contextmanager
def _guards(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooLongError

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, TIMES_AS_LONG * seconds),
    )
    handlers = [signal.signal(number, stop) for _, number, _ in timers]
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, before[1]))
    for timer, _, after in timers:
        signal.setitimer(timer, after)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, handlers, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def complaint(arguments: list[str]) -> str:
    """What is wrong with how the command took these arguments; empty: nothing."""
    seconds = SECONDS_OF_REPRODUCE if arguments[:1] == ["reproduce"] else SECONDS
    try:
        with _guards(seconds):
            result = CliRunner().invoke(cli, arguments)
    except _TooLongError as error:
        return f"no end after {seconds} s of CPU:\n{_where(error)}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"a traceback:\n{_where(result.exception)}"
    if result.exit_code not in ALLOWED:
        return f"exit code {result.exit_code}: {result.stderr[-500:]}"
    if len(result.stderr) > LONGEST_MESSAGE:
        return f"a message of {len(result.stderr):,} characters: {result.stderr[:300]}"
    for name, text in (("message", result.stderr), ("output", result.stdout)):
        odd = {c for c in text if not c.isprintable() and c not in "\n\t\xa0"}
        if odd:
            return f"control characters {sorted(odd)!r} in the {name}"
    if result.exit_code == 0 and "--json" in arguments:
        return _not_finite(result.stdout)
    if result.exit_code != 0 and "Error: " not in result.stderr:
        return f"exit code {result.exit_code} without a message: {result.stderr[-300:]}"
    return ""


def _where(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(line[:300] for line in lines[-12:])


def _not_finite(text: str) -> str:
    def refused(word: str) -> Any:
        raise ValueError(f"{word} in the JSON")

    try:
        document = json.loads(text, parse_constant=refused)
    except ValueError as error:
        return f"no JSON: {error}"
    todo = [document]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, float) and not math.isfinite(value):
            return f"a figure of {value} in the JSON"
    return ""
