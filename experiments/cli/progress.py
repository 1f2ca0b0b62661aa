"""Progress of work that takes its time: a bar on a terminal, or a line now and then where there is none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hdpsim.experiments.cli.printing import say

FIRST_LINE_S = 10.0
NEXT_LINE_S = 30.0


@contextmanager
def progress(label: str, unit: str = "") -> Iterator[Callable[..., None]]:
    """Progress on stderr; yields `report(done, total, note="")`; *total* None means that nobody knows it.

    It is a bar on a terminal, which appears only once the work has taken two seconds. Work that has a *unit* may take
    hours: its bar has the time left, and elsewhere there is a line after ten seconds and then every thirty.
    """
    if sys.stderr.isatty():
        with _bar(label, 1.0 if unit else 2.0, time_left=bool(unit)) as report:
            yield report
    else:
        yield _Lines(label, unit).report if unit else lambda *_told, **_more: None


class _Lines:
    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._began = time.monotonic()
        self._at_start: int | None = None
        self._first: tuple[int, float] | None = None
        self._next_s = FIRST_LINE_S

    def report(self, done: int, total: int | None = None, note: str = "") -> None:
        """Print a line when it is time for one."""
        elapsed_s = time.monotonic() - self._began
        if self._at_start is None:
            self._at_start = done
        if self._first is None and done > self._at_start:
            self._first = done, elapsed_s  # the start of workers says nothing about the speed
        if elapsed_s < self._next_s:
            return
        self._next_s = elapsed_s + NEXT_LINE_S
        of = "" if total is None else f" of {total:,}"
        parts = [f"{self._label}: {done:,}{of} {self._unit}"]
        if total is not None and self._first is not None and total > done > self._first[0]:
            from hdpsim.experiments.output.amounts import span

            left_s = (elapsed_s - self._first[1]) * (total - done) / (done - self._first[0])
            parts.append(f"about {span(left_s)} left")
        say(", ".join(part for part in (*parts, note) if part), err=True)


@contextmanager
def _bar(label: str, after_s: float, *, time_left: bool) -> Iterator[Callable[..., None]]:
    from rich import progress as rich_progress
    from rich.console import Console

    columns: list[str | rich_progress.ProgressColumn] = [
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
    ]
    if time_left:
        columns += [
            rich_progress.TextColumn("left"),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[note]}"),
        ]
    bar = rich_progress.Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None, note="")
    timer = threading.Timer(after_s, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total=None, note="": bar.update(task, completed=done, total=total, note=note)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
