"""Run the shell commands of Markdown files and hold their output against what the page shows.

Every fenced block whose language is `console` is run, one command after the other, in the repository root with
the virtual environment's programs first on PATH:

    ```console
    $ hdpsim --version
    hdpsim 0.1.0
    ```

A command (a line that starts with "$ ", continued while lines end in a backslash) must exit with 0. The lines
below it must occur in its output in that order; "..." stands for anything, inside a line or as a line of its own.
Runs of blanks count as one. Commands in blocks of any other language (`sh`, `text`) are not run. Pages are run beside
each other, two at a time, so none may need what another one writes.

Usage: python tools/check_readme.py README.md [MORE.md ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600
PAGES_AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One command of a page and the output shown below it."""

    where: str
    command: str
    shown: tuple[str, ...]


def examples(path: Path) -> Iterator[Example]:
    """Yield every command of the `console` blocks of *path*."""
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = False
    where, command, shown = "", "", list[str]()
    for number, line in enumerate(lines, start=1):
        if line.startswith("```"):
            if command:
                yield Example(where=where, command=command, shown=tuple(shown))
            inside, command, shown = line.strip() == "```console", "", []
        elif inside and line.startswith("$ "):
            if command:
                yield Example(where=where, command=command, shown=tuple(shown))
            where, command, shown = f"{path.name}:{number}", line[2:], []
        elif inside and command.endswith("\\") and not shown:
            command = command[:-1] + line.strip()
        elif inside and command:
            shown.append(line)
    if inside:
        raise SystemExit(f"{path.name}: a console block is never closed")


def missing_line(shown: tuple[str, ...], output: str) -> str | None:
    """Return the first line of *shown* that *output* lacks at or after its place, or None."""
    produced = [" ".join(line.split()) for line in output.splitlines()]
    position = 0
    for line in shown:
        wanted = " ".join(line.split())
        if not wanted or wanted in ("...", "…"):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r"\.\.\.|…", wanted)))
        while position < len(produced) and not pattern.fullmatch(produced[position]):
            position += 1
        if position == len(produced):
            return line
        position += 1
    return None


def run(example: Example) -> str | None:
    """Run one example; return what is wrong with it, or None."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "MPLBACKEND": "Agg"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    try:
        done = subprocess.run(
            ["bash", "-c", example.command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"still running after {TIMEOUT_S} s"
    if done.returncode != 0:
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    line = missing_line(example.shown, done.stdout + done.stderr)
    if line is not None:
        return f"shows a line that was not printed (in this place):\n{line}\nprinted:\n{done.stdout}{done.stderr}"
    return None


def failures_of(page: Sequence[Example]) -> int:
    """Run the commands of one page in their order; print how each ended and return how many failed."""
    failures = 0
    for example in page:
        start_s = time.perf_counter()
        problem = run(example)
        failures += problem is not None
        verdict = "ok" if problem is None else "FAILED"
        print(
            f"{verdict:6} {time.perf_counter() - start_s:5.1f} s  {example.where}  {example.command}",
            flush=True,
        )
        if problem is not None:
            print(problem, file=sys.stderr)
    return failures


def main(arguments: list[str]) -> int:
    """Check the pages named in *arguments*; return the exit code."""
    pages = [list(examples(Path(name))) for name in arguments]
    count = sum(map(len, pages))
    if not count:
        print(f"no console blocks in {' '.join(arguments) or 'nothing'}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
        failures = sum(pool.map(failures_of, pages))
    print(f"{count} commands, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
