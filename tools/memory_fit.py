"""How sure verdicts of memory are, from runs that ran and runs that did not: `python tools/memory_fit.py CSV ...`.

The records have the columns of `hdpsim validate --template`; one that ran out of memory says `OOM` in `outcome`.
Written into experiments/data/memory_margin.yaml by hand, with what the records were.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from hdpsim.arrays import Bools, Floats
from hdpsim.experiments.bands.memory_fit import MemoryFit, shipped_fit
from hdpsim.experiments.records.columns import read_records
from hdpsim.experiments.records.prediction import predict

EDGES = (0.0, 0.74, 0.86, 0.92, 0.96, 1.0, 1.02, 1.1, 1.3, np.inf)


def verdicts(files: Sequence[Path]) -> tuple[Floats, Bools]:
    """Predicted over capacity of every record whose outcome is known, and whether it ran."""
    shares, ran = [], []
    for file in files:
        for record in read_records(file):
            if record.measured.ran is None:
                continue
            found = predict(record.config, memory_only=True).memory
            if found is not None:
                shares.append(found.fullest.total_bytes / found.fullest.capacity_bytes)
                ran.append(record.measured.ran)
    return np.array(shares), np.array(ran, bool)


def fit(shares: Floats, ran: Bools) -> MemoryFit:
    """The most likely one, runs that ran weighing as much as those that did not."""
    from scipy.optimize import minimize

    weights = np.where(ran, 0.5 / ran.sum(), 0.5 / (~ran).sum())

    def found(numbers: Floats) -> MemoryFit:
        middle, spread, lapses = numbers
        return MemoryFit(
            middle=float(middle), spread=float(np.exp(spread)), lapses=float(1.0 / (1.0 + np.exp(-lapses))),
            ran=int(ran.sum()), out_of_memory=int((~ran).sum()),
        )  # fmt: skip

    def surprise(numbers: Floats) -> float:
        probability = np.array([found(numbers).probability(share) for share in shares])
        chance = np.clip(np.where(ran, probability, 1.0 - probability), 1e-9, 1.0)
        return float(-(weights * np.log(chance)).sum())

    best = minimize(
        surprise, np.array([0.0, np.log(0.1), -4.0]), method="Nelder-Mead", options={"maxiter": 800}
    )
    return found(best.x)


def main() -> None:
    """Fit, and show how often each stretch of predictions ran."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    shares, ran = verdicts(parser.parse_args().files)
    if ran.all() or not ran.any():
        sys.exit("nothing to fit: runs that ran are needed, and runs that ran out of memory")
    fitted = fit(shares, ran)
    for name in ("middle", "spread", "lapses", "ran", "out_of_memory"):
        print(f"{name}: {getattr(fitted, name):.4g}   (shipped: {getattr(shipped_fit(), name):.4g})")
    print("\npredicted / capacity   runs  fitted (ran and not weighing the same)  seen (the same)")
    for low, high in pairwise(EDGES):
        inside = (shares >= low) & (shares < high)
        if not inside.any():
            continue
        heavy = np.where(ran, 0.5 / ran.sum(), 0.5 / (~ran).sum())[inside]
        seen = heavy[ran[inside]].sum() / heavy.sum()
        expected = np.average([fitted.probability(share) for share in shares[inside]], weights=heavy)
        print(f"{low:8.2f} to {high:5.2f}  {inside.sum():10d}  {expected:10.1%}  {seen:38.1%}")


if __name__ == "__main__":
    main()
