"""SIGINT, SIGTERM and SIGHUP, at any moment: a message, an exit code of their own, and nothing left behind."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows ends programs otherwise")

EVERY_MOMENT = """
import os, signal, sys
from pathlib import Path

import numpy as np

from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
from hdpsim.experiments.output.files.run_directory import RunDirectory
from hdpsim.experiments.sweeps.store import ResultStore
from hdpsim import files, interrupts
from hdpsim.traces import Trace, write_trace

folder, number = Path(sys.argv[1]), int(sys.argv[2])
events, strike = 0, -1

def hook(event, arguments):
    global events
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree") and any(
        str(folder) in str(argument) for argument in arguments
    ):
        events += 1
        if events == strike:
            os.kill(os.getpid(), number)

def run_directory():
    with RunDirectory(folder / "new" / "run") as run:
        run.write_csv("table.csv", [{"a": 1}], "A table.")
        run.write_json("plots/result.json", {"a": 1}, "Numbers.")

def again():
    with RunDirectory(folder / "old", title="new") as run:
        run.write_text("notes.txt", "new", "Words.")

def trace():
    write_trace(Trace(np.arange(1, 100), "t", ""), folder / "trace.csv.gz")

def whole_file():
    check_out_file(str(folder / "file.yaml"), "-o")
    write_whole(str(folder / "file.yaml"), "text")

def store():
    kept = ResultStore(folder / "store")
    kept.prepare()
    kept.put("ab" + 62 * "0", {"step_s": 1.0})

def state():
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b"folder"
        for path in folder.rglob("*")
        if "store" not in path.parts[: len(folder.parts) + 1] or path.suffix == ".part"
    }

with RunDirectory(folder / "old", title="old") as run:
    run.write_text("notes.txt", "old", "Words.")
sys.addaudithook(hook)
interrupts.listen()
for action in (run_directory, again, trace, whole_file, store):
    import shutil

    before = state()
    strike = -1
    action()  # everything it needs is loaded
    after = state()
    for name in ("new", "store"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("trace.csv.gz", "file.yaml"):
        (folder / name).unlink(missing_ok=True)
    moment = struck = 0
    while True:
        if action is again:
            shutil.rmtree(folder / "old")
            strike = -1
            with RunDirectory(folder / "old", title="old") as run:
                run.write_text("notes.txt", "old", "Words.")
        moment += 1
        events, strike = 0, moment
        try:
            action()
            ended = True
        except KeyboardInterrupt:
            ended, struck = False, struck + 1
        finally:
            files.remove_leftovers()
        reached, strike = events, -1
        assert state() in (before, after), (action.__name__, moment, sorted(state()))
        for name in ("new", "store"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("trace.csv.gz", "file.yaml"):
            (folder / name).unlink(missing_ok=True)
        if reached < moment:
            break
    assert struck >= 2, (action.__name__, struck)
    print(action.__name__, moment)
"""


@pytest.mark.parametrize("name", SIGNALS)
def test_whatever_moment_of_writing_nothing_or_everything_is_there(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_MOMENT, str(tmp_path), str(int(getattr(signal, name)))],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hdpsim", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        start_new_session=True,
    )  # fmt: skip


COMMANDS = (
    ("simulate", "quickstart-8gpu", "--out", "out", "--timeline", "timeline.json.gz"),
    ("compare", "quickstart-8gpu", "--out", "out"),
    ("campaign", "campaign-llama3-16k", "--duration", "20d", "--out", "out"),
    ("trace", "synth", "--distribution", "bytescale-github", "--count", "3000000", "-o", "o.csv.gz"),
    ("replay", "quickstart-8gpu", "--trace", "lengths.npy", "--workers", "1", "--out", "out"),
)


@pytest.mark.slow
def test_commands_end_alike_at_random_moments(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 2000, 400_000)
    moments = random.Random(22)
    for number, arguments in enumerate(COMMANDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        np.save(folder / "lengths.npy", lengths)
        which = getattr(signal, SIGNALS[number % len(SIGNALS)])
        process = start(folder, *arguments)
        time.sleep(moments.uniform(0.3, 2.5))
        if number % 2:
            os.killpg(process.pid, which)  # as a terminal or a container does: every process of the command
        else:
            process.send_signal(which)
        stdout, stderr = process.communicate(timeout=120)
        left = {path.name for path in folder.iterdir()} - {"lengths.npy"}
        codes = {0, 128 + which} | ({-which} if stdout else set())  # all is done, and Python itself is ending
        assert process.returncode in codes, (arguments, process.returncode, stderr)
        assert "Traceback" not in stdout + stderr
        assert not [name for name in left if name.startswith(".")], (arguments, left)
        if process.returncode == 128 + which and arguments[0] != "replay":
            assert "interrupted" in stderr
            if "wrote" not in stdout:  # a moment between the file and the word: what is there is whole
                assert "out" not in left or (folder / "out" / "README.md").exists(), (arguments, left)
                if "o.csv.gz" in left:
                    assert gzip.decompress((folder / "o.csv.gz").read_bytes()).endswith(b"\n")


@pytest.mark.slow
def test_a_replay_keeps_what_was_played(tmp_path: Path) -> None:
    name = "SIGHUP"
    np.save(tmp_path / "lengths.npy", np.full(4_000_000, 1000))
    for wait_s in (4.0, 10.0, 25.0):  # until something has been played: other tests may keep the machine busy
        process = start(
            tmp_path, "replay", "quickstart-8gpu", "--trace", "lengths.npy", "--workers", "1", "--out", "out"
        )
        time.sleep(wait_s)
        os.killpg(process.pid, getattr(signal, name))
        stdout, stderr = process.communicate(timeout=120)
        if "partial" in stderr:
            break
    assert process.returncode == 128 + getattr(signal, name), stderr
    assert f"interrupted ({name}): the result is partial" in stderr
    assert "PARTIAL: interrupted" in stdout
    assert (tmp_path / "out" / "result.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"lengths.npy", "out"}


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # nohup
        "from hdpsim import interrupts\n"
        "interrupts.listen()\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert not interrupts.received()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_an_interrupt_that_cannot_be_raised_comes_again() -> None:
    code = (
        "import os, signal, time\n"
        "from hdpsim import interrupts\n"
        "interrupts.listen()\n"
        "class Late:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGTERM)\n"
        "late = Late()\n"
        "try:\n"
        "    del late\n"  # an exception in here is only printed by Python
        "    time.sleep(30)\n"
        "except KeyboardInterrupt:\n"
        "    print(interrupts.message(), interrupts.exit_code())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.stdout, done.stderr) == ("interrupted (SIGTERM) 143\n", "")


CLOSED = (
    "import os, sys\nos.close(1)\nos.execv(sys.executable, [sys.executable, '-m', 'hdpsim', *sys.argv[1:]])"
)


def test_a_closed_stdout_loses_no_work(tmp_path: Path) -> None:
    small = ("--set", "strategy.name=static", "--set", "data.batch=256K tokens")
    arguments = ("simulate", "quickstart-8gpu", "--batches", "1", "--out", "out", *small)
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stderr) == (
        0,
        "Note: stdout is closed; what would be printed there is lost\n",
    )
    assert (tmp_path / "out" / "result.json").exists()


def test_a_stdout_that_fails_is_a_message(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        return
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hdpsim", "catalog", "gpus"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    assert (done.returncode, done.stderr) == (2, "Error: output: No space left on device\n")


def test_a_deleted_working_directory_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = (
        "import os, sys\n"
        "os.chdir(sys.argv[1])\n"
        "os.rmdir(sys.argv[1])\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'hdpsim', 'simulate', 'quickstart-8gpu'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "gone")], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: the current directory was deleted; change to another one\n"
