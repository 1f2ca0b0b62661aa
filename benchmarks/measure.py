"""Measuring: median of several runs after a warm-up, peak memory in a pass of its own, and the yardsticks.

A yardstick is something simple, measured in the same run, that a figure is divided by: the ratio moves less from
machine to machine than the seconds do.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import simpy

REPEATS = 5
SAMPLE_S = 0.05
LONG_S = 4.0

SORTED_NUMBERS = 1_000_000
SIMPY_PROCESSES, SIMPY_TIMEOUTS = 1_000, 100  # a heap of 1,000 events, as in a simulation of some size


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardsticks:
    """Seconds of what figures are compared with."""

    simpy_event_s: float
    """One `timeout` of bare SimPy, a thousand processes waiting."""
    numpy_sort_s: float
    """numpy sorts a million random doubles."""
    python_start_s: float
    """`python -c pass` as a new process."""

    def seconds(self, yardstick: str, events: int) -> float:
        """The yardstick of that name ('simpy': as many timeouts as the figure processed events)."""
        if yardstick == "simpy":
            return self.simpy_event_s * events
        return {"numpy": self.numpy_sort_s, "python": self.python_start_s}[yardstick]


def median_s(
    run: Callable[[], object], repeats: int = REPEATS, clock: Callable[[], float] | None = None
) -> float:
    """Median seconds of *repeats* samples, after a run that does not count.

    A sample is one run, or as many as take SAMPLE_S together: the clock and cold caches say little about a millisecond.
    A run longer than LONG_S warms itself up: it counts, and one more at most.
    *clock*: wall clock, or time.process_time for work in one thread that neighbours on the machine should not stretch.
    """
    now_s = clock or time.perf_counter
    begun = now_s()
    run()
    first_s = now_s() - begun
    number = max(1, round(SAMPLE_S / first_s))
    seconds = [first_s] if first_s > LONG_S else []
    for _ in range(min(repeats, 2) - 1 if seconds else repeats):
        gc.collect()
        begun = now_s()
        for _ in range(number):
            run()
        seconds.append((now_s() - begun) / number)
    return statistics.median(seconds)


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory that one run held beyond what was there before (tracemalloc: slow, so never timed)."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def command_peak_bytes(arguments: list[str]) -> int:
    """Largest resident size of `hdpsim ARGUMENTS`, interpreter and imports included (Linux).

    The process reads it about itself: what the kernel reports to the parent starts at the parent's own size.
    """
    command = [sys.executable, "-c", _PROBE, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return int(done.stderr.split()[-1]) * 1024


_PROBE = """
import re, runpy, sys
try:
    runpy.run_module("hdpsim", run_name="__main__", alter_sys=True)
finally:
    print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
"""


def fitted_exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of log seconds over log size: 1 = linear."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def yardsticks(repeats: int = REPEATS) -> Yardsticks:
    """Measure all yardsticks now, on this machine."""
    numbers = np.random.default_rng(0).random(SORTED_NUMBERS)
    return Yardsticks(
        simpy_event_s=median_s(_bare_simpy, repeats) / (SIMPY_PROCESSES * SIMPY_TIMEOUTS),
        numpy_sort_s=median_s(lambda: np.sort(numbers), repeats),
        python_start_s=median_s(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), repeats),
    )


def _bare_simpy() -> None:
    env = simpy.Environment()

    def waits(pause_s: float) -> Generator[simpy.Event, None, None]:
        for _ in range(SIMPY_TIMEOUTS):
            yield env.timeout(pause_s)

    for pause_s in np.random.default_rng(0).random(SIMPY_PROCESSES).tolist():
        env.process(waits(pause_s))
    env.run()
