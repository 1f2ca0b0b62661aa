"""Record what hdpsim answers to a fixed set of questions, and compare two such recordings.

    python tools/goldens.py record before.json            # everything (a few minutes)
    python tools/goldens.py record before.json --quick    # one step of every shipped scenario (seconds)
    python tools/goldens.py diff before.json after.json   # largest relative changes; exit code 1 if any

A refactoring must leave every figure as it was (to 1e-12); a change of the physics says in its commit
which figures moved, and by how much.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOLERANCE = 1e-12
"""Relative; sums in another order move the last digits."""

PASSING = ("version", "created", "seconds", "argv", "command", "elapsed")
"""Parts of a key that change from run to run, or with the release."""


def questions(quick: bool) -> dict[str, list[str]]:
    """The command line of every recorded answer, by its name."""
    from hdpsim.experiments.scenario.scenario import scenario_names

    asked = {f"simulate {name}": ["simulate", name, "--batches", "1", "--json"] for name in scenario_names()}
    if quick:
        return asked
    asked |= {f"compare {name}": ["compare", name, "--batches", "2", "--json"] for name in scenario_names()}
    asked |= {
        f"campaign {name}": ["campaign", name, "--duration", "30d", "--json"]
        for name in scenario_names()
        if name.startswith("campaign")
    }
    asked |= {
        "validate": ["validate", "--json"],
        "reproduce bytescale": ["reproduce", "bytescale", "--batches", "2", "--json"],
        "reproduce megascale": ["reproduce", "megascale", "--json"],
        "scale quickstart-8gpu": ["scale", "quickstart-8gpu", "--gpus", "8,16", "--json"],
        "whatif llama-3-70b-h100": [
            "whatif", "llama-3-70b-h100", "--batches", "1", "--set", "layout.tp=4", "--set", "gpus=2048", "--json",
        ],
        "explain llama-3-70b-h100": ["explain", "llama-3-70b-h100", "--json"],
        "trace stats debian-code": ["trace", "stats", "debian-code", "--json"],
    }  # fmt: skip
    return asked


def answer(arguments: list[str], folder: Path) -> object:
    """What the command prints as JSON, or its message and exit code."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "hdpsim", *arguments],
        capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        return {"exit_code": done.returncode, "message": done.stderr}
    return json.loads(done.stdout)


def flat(value: object, key: str = "") -> dict[str, object]:
    """Every leaf of a document by its dotted key."""
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in flat(item, f"{key}.{name}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{key}[{i}]").items()}
    return {key: value}


def change(before: object, after: object) -> float:
    """Relative change of a figure; infinite for texts and figures that are not the same kind of thing."""
    number = (int, float)
    if isinstance(before, number) and isinstance(after, number):
        return abs(after - before) / max(abs(before), abs(after), 1e-30)
    return 0.0 if before == after else float("inf")


def diff(before: Path, after: Path, shown: int) -> int:
    """Print the largest changes of every answer; return 1 if there are any."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    moved = 0
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            print(f"{name}: only in {'the second' if name in new else 'the first'}")
            moved = 1
            continue
        a, b = flat(old[name]), flat(new[name])
        keys = [k for k in a.keys() & b.keys() if not any(part in k for part in PASSING)]
        changes = sorted(((change(a[k], b[k]), k) for k in keys), key=lambda pair: (-pair[0], pair[1]))
        changes = [pair for pair in changes if pair[0] > TOLERANCE]
        gone, come = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        if not changes and not gone and not come:
            continue
        moved = 1
        print(f"{name}: {len(changes)} of {len(keys)} figures moved, {len(gone)} gone, {len(come)} new")
        for size, key in changes[:shown]:
            print(
                f"  {key}: {str(a[key])[:60]} -> {str(b[key])[:60]}"
                + (f" ({size:.2%})" if size < 1e9 else "")
            )
        for label, keys_there in (("gone", gone), ("new", come)):
            if keys_there:
                print(f"  {label}: {', '.join(keys_there[:shown])}")
    return moved


def main() -> int:
    """Read the command line and do it."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    record = verbs.add_parser("record", help="ask all questions and keep the answers")
    record.add_argument("file", type=Path)
    record.add_argument("--quick", action="store_true", help="one step of every shipped scenario only")
    record.add_argument("--workers", type=int, default=2)
    compare = verbs.add_parser("diff", help="what changed between two recordings")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    compare.add_argument("--shown", type=int, default=6, help="changes shown of every answer")
    options = parser.parse_args()
    if options.verb == "diff":
        return diff(options.before, options.after, options.shown)
    asked = questions(options.quick)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        answers = dict(
            zip(asked, pool.map(lambda words: answer(words, Path(folder)), asked.values()), strict=True)
        )
    options.file.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
