"""Add the first errors of records to those that bands of new sources rest on: python tools/first_errors.py RECORDS.csv

Run it once, on records of sources that nobody has looked at, before anything is mended for them: a source that has
first errors keeps them. Afterwards `hdpsim validate --write-residuals` makes the bands.
"""

from __future__ import annotations

import sys

from hdpsim.experiments.bands.residuals import add_first_errors
from hdpsim.experiments.records.columns import read_records
from hdpsim.experiments.validation.run import residuals_seen_as


def main(path: str) -> None:
    """Predict the records of a file as they are and plain, and add the errors of new sources."""
    records = read_records(path)
    found = [*residuals_seen_as("published", records), *residuals_seen_as("plain", records)]
    print(f"added: {', '.join(add_first_errors(found)) or 'no new source'}")


if __name__ == "__main__":
    main(sys.argv[1])
