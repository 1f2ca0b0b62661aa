"""Put the accuracy of predictions, as the commands compute it, between the markers of README.md and docs.

    python tools/accuracy.py               # write README.md, docs/explanation/validation.md, docs/reference/accuracy.md
    python tools/accuracy.py --check       # exit 1 if they show other numbers (beyond the last digit)
    python tools/accuracy.py --bytescale   # the cells of ByteScale too (minutes)

A block begins with `<!-- accuracy:NAME -->` and ends with `<!-- accuracy end -->`;
NAME: short, views, validate, bytescale, scores. The last are those of benchmarks/accuracy, whose file of our own
predictions is written, too.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks" / "accuracy"))

from benchmark import read_predictions
from score import table as scores_table

from hdpsim.experiments.bands.band import VIEWS
from hdpsim.experiments.validation import report as accuracy
from hdpsim.experiments.validation.run import run

ROOT = Path(__file__).resolve().parent.parent
BENCHMARK = "benchmarks/accuracy"
PAGES = ("README.md", "docs/explanation/validation.md", f"{BENCHMARK}/README.md")
OWN_PREDICTIONS = f"{BENCHMARK}/predictions/hdpsim.csv"
YARDSTICK = f"{BENCHMARK}/predictions/gradient_boosting.csv"
VIEW_OF = {"known": "published", "family": "unseen", "generation": "unseen"}
"""Question of the benchmark -> view of the records with which hdpsim answers it."""
RECORDS_PAGE = "docs/reference/accuracy.md"
TOLERANCE = 0.15
"""Numbers are printed with one digit: the last may differ from machine to machine."""

_BLOCK = re.compile(r"(<!-- accuracy:(\w+) -->\n)(.*?)(<!-- accuracy end -->)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


def views() -> dict[str, Any]:
    """What `hdpsim validate --as` finds in every view of the shipped records."""
    return {view: run(view=view).data() for view in VIEWS}


def blocks(documents: dict[str, Any], with_bytescale: bool) -> tuple[dict[str, str], dict[str, str]]:
    """The text of every block by name, and the files that are made whole."""
    document = documents["published"]
    found = {
        "short": accuracy.short_markdown(document),
        "views": accuracy.views_markdown(documents),
        "validate": accuracy.markdown(document),
    }
    own = {
        question: {
            row["record"]: float(f"{row['predicted']:.5g}")
            for row in documents[view]["records"]
            if row["counts"] and row["predicted"] is not None
        }
        for question, view in VIEW_OF.items()
    }
    found["scores"] = scores_table({"hdpsim": own, "gradient boosting": read_predictions(ROOT / YARDSTICK)})
    rows = (f"{name},{question},{step_s:.5g}" for question, of in own.items() for name, step_s in of.items())
    predictions = "\n".join(["id,question,step_s", *rows, ""])
    if with_bytescale:
        from hdpsim.experiments.papers.paper import load_paper, reproduce

        found["bytescale"] = accuracy.bytescale_markdown(reproduce(load_paper("bytescale")).payload)
    page = (
        "# Every published run, predicted\n\n"
        "Made by `python tools/accuracy.py`. *Counts*: a complete pretraining run that nobody doubts. *Band*:\n"
        "whether the truth lies in the prediction's P10-P90 band, its own configuration left out. How to read it: "
        "[validation.md](../explanation/validation.md).\n\n"
        "## Three views of the same runs\n\n"
        "Errors of step times in %, complete pretraining runs that nobody doubts. *Plain* and *unseen*: "
        "[validation.md](../explanation/validation.md#three-views).\n\n"
        f"{accuracy.families_markdown(documents)}\n\n"
        "## Every record\n\n"
        f"{accuracy.records_markdown(document)}\n"
    )
    return found, {RECORDS_PAGE: page, OWN_PREDICTIONS: predictions}


def filled(text: str, found: dict[str, str]) -> str:
    """*text* with the blocks that were computed."""
    return _BLOCK.sub(
        lambda match: f"{match[1]}{found[match[2]]}\n{match[4]}" if match[2] in found else match[0], text
    )


def alike(shown: str, computed: str) -> bool:
    """Whether two texts differ in nothing but the last digit of numbers."""
    if _NUMBER.sub("#", shown) != _NUMBER.sub("#", computed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(computed), strict=True)
    return all(
        a == b or abs(a - b) <= max(TOLERANCE, 2e-3 * abs(b))  # equal: 6e957 of a commit's name is infinite
        for a, b in ((float(x.replace(",", "")), float(y.replace(",", ""))) for x, y in pairs)
    )


def main() -> int:
    """Write or check; 1 when a page shows something else."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--bytescale", action="store_true", help="the cells of ByteScale too (minutes)")
    options = parser.parse_args()
    found, whole = blocks(views(), options.bytescale)
    pages = {name: filled((ROOT / name).read_text(encoding="utf-8"), found) for name in PAGES}
    pages |= whole
    stale = []
    for name, text in pages.items():
        path = ROOT / name
        shown = path.read_text(encoding="utf-8") if path.exists() else ""
        if options.check and not alike(shown, text):
            stale.append(name)
        elif not options.check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{', '.join(stale)}: not what is computed now; run python tools/accuracy.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
