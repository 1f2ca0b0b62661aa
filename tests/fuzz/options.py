"""Arguments as somebody types them, and files that are none."""

from __future__ import annotations

import gzip
import os
import random
from functools import cache
from pathlib import Path

from fuzz_mutate import other_value
from fuzz_scenarios import value_of_key
from fuzz_written import SMALL, Arguments, typed, write_document

from hdpsim.experiments.cli.app import VERBS


def options(dice: random.Random, folder: Path) -> Arguments:
    """Arguments as somebody types them."""
    small = write_document(folder, "scenario.yaml", SMALL, random.Random(3))
    special = _special_file(dice, folder)
    value = typed(other_value(dice, dice.choice((1, "8", "30d", 0.01))))
    trace_file = folder / "t.csv"
    trace_file.write_text("tokens\n5000\n70000\n")
    chosen = dice.choice(
        (
            ["simulate", small, "--batches", str(value_of_key(dice, "execution.batches"))],
            ["simulate", small, "--set", value],
            ["simulate", special],
            ["simulate", value],
            ["compare", small, "--batches", "1", "--strategies", value],
            ["scale", small, "--batches", "1", "--gpus", value],
            ["whatif", small, "--batches", "1", "--set", value],
            ["explain", small, "--term", value],
            ["sweep", special],
            ["sweep", value, "--dry-run"],
            ["sweep", "weak-scaling", "--dry-run", "--store", str(folder / "store"), "--engine", value],
            ["replay", small, "--trace", str(trace_file), "--workers", "1", "--steps", value],
            ["replay", small, "--trace", special, "--workers", "1", "--steps", "1"],
            ["replay", small, "--trace", str(trace_file), "--workers", "1", "--until-ci", value],
            ["replay", small, "--trace", str(trace_file), "--workers", "1", "--column", value],
            ["trace", "stats", special],
            ["trace", "check", value],
            ["trace", "stats", str(trace_file), "--column", value],
            ["trace", "synth", "--distribution", "bytescale-github", "-o", str(folder / "o.csv"), "--seed", value,
             "--count", "10"],
            ["trace", "synth", "--distribution", "bytescale-github", "-o", str(folder / "o.csv"), "--tokens", value],
            ["trace", "synth", "--distribution", special, "-o", str(folder / "o.csv"), "--count", "10"],
            ["replay-ops", special, "--meta", special],
            ["campaign", small, "--workers", "1", "--seeds", "1", "--duration", value],
            ["reproduce", "bytescale", "--cells", special, "--batches", "1"],
            ["reproduce", "megascale", "--cells", special],
            ["validate", special],
            ["validate", "--kernels", special],
            ["validate", "--calibration", special],
            ["calibrate", special, "--gpu", "h100", "-o", str(folder / "c.yaml")],
            ["calibrate", "--gpu", value, "--no-runs", "-o", str(folder / "c.yaml")],
            ["calibrate", "--gpu", "h100", "--start", special, "--no-runs", "-o", str(folder / "c.yaml")],
            ["scenarios", value],
            ["catalog", value],
            ["fabric", value],
            ["fabric", special],
            ["fabric", "superpod-h100", "--gpus", value],
            ["fabric", "superpod-h100", "--gpus", str(dice.choice((8, 64, 4096, 65_536, 10_000_000)))],
            [dice.choice(sorted(VERBS)), value],
            [value],
        )
    )  # fmt: skip
    asks = chosen[0] in VERBS and "--json" not in chosen and not value.startswith("-")
    return [*chosen, "--json"] if asks else chosen


def _special_file(dice: random.Random, folder: Path) -> str:
    """What is called like a file and is none, or unfolds to much more than it is."""
    name = str(
        folder
        / dice.choice(("x.yaml", "x.csv", "x.parquet", "x.csv.gz", "x.json", "x.npz", "x.npy", "x.txt"))
    )
    kind = dice.choice(("fifo", "folder", "device", "bomb", "empty", "deep", "wide", "link"))
    if kind == "fifo":
        os.mkfifo(name)
    elif kind == "folder":
        os.mkdir(name)
    elif kind == "device":
        os.symlink("/dev/zero", name)
    elif kind == "link":
        os.symlink(name, name)
    else:
        content = {"bomb": _bomb(), "empty": b"", "deep": b"[" * 100_000, "wide": b"9" * 3_000_000}[kind]
        Path(name).write_bytes(content)
    return name


@cache
def _bomb() -> bytes:
    """256 MiB of zeros in a few hundred kilobytes."""
    return gzip.compress(b"\0" * 2**28, compresslevel=1, mtime=0)
