"""Pools of processes that end when the work is given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hdpsim.experiments.parallel.pool import worker_pool


def test_results_come_back() -> None:
    with worker_pool(1) as pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]


def test_an_error_stops_what_still_runs() -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="enough"), worker_pool(1) as pool:
        assert pool.submit(abs, -1).result() == 1  # the worker is up
        pool.submit(time.sleep, 600)
        raise ValueError("enough")
    assert time.monotonic() - began < 300  # not the ten minutes of its sleep


@pytest.mark.skipif(os.name != "posix", reason="signals to process groups")
def test_an_interrupt_of_the_whole_group_ends_it(tmp_path: Path) -> None:
    script = tmp_path / "long_work.py"
    script.write_text(
        "import time\n"
        "from hdpsim.experiments.parallel.pool import worker_pool\n"
        "if __name__ == '__main__':\n"
        "    with worker_pool(1) as pool:\n"
        "        pool.submit(abs, -1).result()\n"
        "        waits = [pool.submit(time.sleep, 600) for _ in range(5)]\n"
        "        print('up', flush=True)\n"
        "        waits[-1].result()\n"
    )
    work = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True)
    assert work.stdout is not None
    assert work.stdout.readline() == b"up\n"
    os.killpg(work.pid, signal.SIGINT)
    try:
        assert work.wait(timeout=300) != 0
    finally:
        work.stdout.close()
        if work.poll() is None:
            os.killpg(work.pid, signal.SIGKILL)


@pytest.mark.skipif(os.name != "posix", reason="signals to process groups")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("moment", ["starting", "up"])
def test_a_signal_to_the_whole_group_is_answered_by_its_first_process_alone(
    tmp_path: Path, name: str, moment: str
) -> None:
    script = tmp_path / "long_work.py"
    script.write_text(
        "import time\n"
        "from hdpsim.experiments.parallel.pool import worker_pool\n"
        "from hdpsim import interrupts\n"
        "if __name__ == '__main__':\n"
        "    interrupts.listen()\n"
        "    try:\n"
        "        with worker_pool(2) as pool:\n"
        "            waits = [pool.submit(time.sleep, 600) for _ in range(5)]\n"
        f"            {'pass' if moment == 'starting' else 'time.sleep(0.7)'}\n"
        "            print('ready', flush=True)\n"
        "            waits[-1].result()\n"
        "    except KeyboardInterrupt:\n"
        "        print(interrupts.message())\n"
    )
    work = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )  # fmt: skip
    assert work.stdout is not None
    assert work.stdout.readline() == "ready\n"
    os.killpg(work.pid, getattr(signal, name))
    try:
        stdout, stderr = work.communicate(timeout=60)
    finally:
        if work.poll() is None:
            os.killpg(work.pid, signal.SIGKILL)
    assert stdout == ("interrupted\n" if name == "SIGINT" else f"interrupted ({name})\n")
    assert stderr == ""
