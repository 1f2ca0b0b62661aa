"""Freeze the first errors of a round that nobody has looked at: python tools/first_errors.py RECORDS.csv ROUND

Bands of new sources rest on first errors. Run this once, with the code of that moment, before anything is mended for
the round. A round of which a source has first errors is refused, since today's errors are not the first. Afterwards
`hdpsim validate --write-residuals` makes the bands.
"""

from __future__ import annotations

import sys

from hdpsim.experiments.bands.residuals import add_first_errors, first_errors
from hdpsim.experiments.records.columns import read_records
from hdpsim.experiments.validation.run import residuals_seen_as


def main(path: str, name: str) -> None:
    """Predict the records of a round as they are and plain, and add the errors of its sources."""
    records = [record for record in read_records(path) if record.columns.get("round") == name]
    frozen = {record.config.family for record in records} & {row.source for row in first_errors()}
    if frozen or not records:
        sys.exit(
            f"round {name}: {f'has first errors of {min(frozen)}' if frozen else f'no record of {path} is of it'}"
        )
    found = [*residuals_seen_as("published", records), *residuals_seen_as("plain", records)]
    print(f"round {name}: {', '.join(add_first_errors(found)) or 'no new source'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
