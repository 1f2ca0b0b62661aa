"""Build the source distribution and from it the wheel, install the wheel in a clean environment, and try it there.

Clean: a new virtual environment with nothing but the wheel and what it needs (the versions of constraints.txt), in an
empty folder outside the checkout. What is there must be one import name, sound, and able to simulate; what belongs to
an extra must be missing, and say so kindly.

Usage: python tools/check_dist.py [FOLDER FOR THE DISTRIBUTIONS]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TRIES: tuple[tuple[str, int, str], ...] = (
    ("hdpsim --version", 0, "hdpsim "),
    ("hdpsim doctor", 0, "This installation is sound."),
    (
        "hdpsim compare quickstart-8gpu --batches 1 --set data.batch=256K --strategies static,hdp-opt --out run",
        0,
        "hdp-opt",
    ),
    ("hdpsim sweep weak-scaling --engine dask://nobody:1 --dry-run", 2, "hdpsim[dask]"),
    ("python -m hdpsim scenarios", 0, "quickstart-8gpu"),
)
"""A command in the clean environment, the exit code, and words of what it prints."""

PYTHON = """
import importlib.util, pathlib, sys
import hdpsim
frame = hdpsim.simulate("quickstart-8gpu", {"data.batch": "256K tokens"}, batches=1).to_frame()
assert frame["step_s"][0] > 0
here = pathlib.Path(hdpsim.__file__).parent
assert sys.prefix in str(here), here
for other in ("traces", "cost_models", "simulator", "experiments"):
    assert importlib.util.find_spec(other) is None, f"{other} is an import name of its own"
for extra in ("distributed", "plotly", "pytest", "mkdocs"):
    assert importlib.util.find_spec(extra) is None, f"{extra} came without being asked for"
"""


def run(*command: str | Path, cwd: Path, code: int = 0, words: str = "") -> None:
    """Run a command; it must end with *code* and print the *words*."""
    began = time.perf_counter()
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    fine = done.returncode == code and words in said
    shown = " ".join(Path(str(part)).name if "/" in str(part) else str(part) for part in command)
    print(
        f"{'ok' if fine else 'FAILED':6} {time.perf_counter() - began:5.1f} s  {shown[:100].splitlines()[0]}",
        flush=True,
    )
    if not fine:
        raise SystemExit(f"exit code {done.returncode}, expected {code} and {words!r}:\n{said}")


def main(arguments: list[str]) -> int:
    """Build, install and try; return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        out = Path(arguments[0]).resolve() if arguments else work / "dist"
        run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
        (sdist,) = out.glob("hdpsim-*.tar.gz")
        with tarfile.open(sdist) as packed:
            packed.extractall(work / "source", filter="data")
        (source,) = (work / "source").iterdir()
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
        (wheel,) = out.glob("hdpsim-*.whl")
        venv.create(work / "clean", with_pip=True)
        programs = work / "clean" / "bin"
        pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=work)
        empty = work / "empty"
        empty.mkdir()
        for command, code, words in TRIES:
            program, *rest = command.split()
            run(programs / program, *rest, cwd=empty, code=code, words=words)
        run(programs / "python", "-c", PYTHON, cwd=empty)
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {size:.1f} MB; sdist {sdist.stat().st_size / 1e6:.1f} MB")
        shutil.rmtree(work / "clean")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
