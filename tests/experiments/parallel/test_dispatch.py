"""Tasks on processes that die. Tasks are texts for `eval`, which every process can load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hdpsim.experiments.parallel.dispatch import Finished, dispatch
from hdpsim.experiments.parallel.engines import LocalEngine

DIES = "__import__('os')._exit(3)"
IS_KILLED = f"__import__('os').kill(__import__('os').getpid(), {int(signal.SIGKILL)})"


def played(tasks: list[str], workers: int = 2) -> dict[int, Finished[str]]:
    with LocalEngine(workers) as engine:
        return {task.number: task for task in dispatch(engine, eval, tasks)}


def killed_first(times: int, marks: Path) -> str:
    """A task whose process is killed so many times before it ends with 7."""
    mark = f"__import__('tempfile').mkdtemp(dir={str(marks)!r})"
    return f"7 if len(__import__('os').listdir({str(marks)!r})) >= {times} else ({mark}, {IS_KILLED})"


@pytest.mark.slow
@pytest.mark.parametrize(("times", "beside"), [(1, 4), (3, 0)])
def test_kills_from_outside_cost_nothing_but_time(tmp_path: Path, times: int, beside: int) -> None:
    found = played(
        ["0", killed_first(times, tmp_path), *["2"] * beside] if beside else [killed_first(times, tmp_path)]
    )
    assert sorted(task.value for task in found.values()) == sorted([0, 7, *[2] * beside] if beside else [7])
    assert not any(task.killed for task in found.values())


@pytest.mark.slow
def test_the_task_that_kills_its_workers_is_given_up_and_no_other() -> None:
    found = played(["0", "1", DIES, "3", "4"])
    assert [found[i].value for i in range(5)] == [0, 1, None, 3, 4]
    assert "died 4 times" in found[2].killed


def test_an_error_of_a_task_is_raised_here(thread_engine: type) -> None:
    with pytest.raises(ZeroDivisionError):
        list(dispatch(thread_engine(), eval, ["1", "1 / 0"]))


def test_few_tasks_are_taken_ahead_and_none_beyond_the_window(thread_engine: type) -> None:
    taken = 0
    ended: set[int] = set()

    def tasks() -> Iterator[str]:
        nonlocal taken
        for number in range(40):
            oldest = min(set(range(number + 1)) - ended)
            assert number - oldest < 3
            taken += 1
            yield "0"

    for finished in dispatch(thread_engine(8), eval, tasks(), window=3):
        ended.add(finished.number)
        assert taken <= len(ended) + 16
    assert len(ended) == 40


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    import subprocess
    import sys
    import time

    script = tmp_path / "parent.py"
    script.write_text(
        "import os\n"
        "from hdpsim.experiments.parallel.pool import worker_pool\n"
        "if __name__ == '__main__':\n"
        "    with worker_pool(1) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        pool.submit(eval, \"__import__('time').sleep(600)\").result()\n"
    )
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(1000):
        if _gone(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" in status.read_text()
