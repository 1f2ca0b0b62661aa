"""Score predictions of published training runs: `python benchmarks/accuracy/score.py PREDICTIONS.csv ...`

A file has the columns `id` and `step_s`, and `question` where its answers depend on what was seen (README.md).
Prints a table: for every question how many of its runs were predicted, and the errors over those. Without a file: the
predictions in this folder.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from benchmark import FOLDER, QUESTIONS, asked, read_predictions

from hdpsim.experiments.output.tables import TextTable, markdown

PREDICTIONS = FOLDER / "predictions"
HEADS = (
    "Predictions",
    "Question",
    "Runs",
    "Predicted",
    "Median",
    "Bias",
    "p90",
    "Largest",
    "Worst family, median",
)


def main() -> int:
    """Print the table; 2 when a file cannot be used."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="PREDICTIONS.csv")
    files = parser.parse_args().files or sorted(PREDICTIONS.glob("*.csv"))
    try:
        print(table({path.stem.replace("_", " "): read_predictions(path) for path in files}))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def table(predictions: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The scores of predictors (question -> run -> seconds) as Markdown, errors in % of the measured step time."""
    rows = tuple(
        (name, question, *scores(question, found[question]))
        for question in QUESTIONS
        for name, found in predictions.items()
    )
    return markdown(TextTable(title="", columns=HEADS, rows=rows, left=frozenset({0, 1, len(HEADS) - 1})))


def scores(question: str, predicted: Mapping[str, float]) -> list[str]:
    """Runs, predicted ones, median error, bias, p90, largest error, and the family with the largest median."""
    runs = list(asked(question))
    errors = {
        case.name: predicted[case.name] / case.measured_step_s - 1.0
        for case in runs
        if case.name in predicted
    }
    if not errors:
        return [str(len(runs)), "0", *["-"] * 5]
    sizes = np.abs([*errors.values()])
    families: dict[str, list[float]] = {}
    for case in runs:
        if case.name in errors:
            families.setdefault(case.family, []).append(abs(errors[case.name]))
    worst = max(sorted(families), key=lambda family: float(np.median(families[family])))
    return [
        str(len(runs)),
        str(len(errors)),
        f"{100 * np.median(sizes):.1f}",
        f"{100 * np.median([*errors.values()]):+.1f}",
        f"{100 * np.percentile(sizes, 90):.1f}",
        f"{100 * sizes.max():.1f}",
        f"{worst} {100 * np.median(families[worst]):.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
