"""Writes the files that are given to hdpsim, with bytes or cells spoiled; and the small sound scenario."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import yaml
from fuzz_mutate import other_value, spoiled_bytes

from hdpsim.cost_models.hardware import catalog

Arguments = list[str]

ROOT = Path(catalog.__file__).parents[1] / "data"

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "gpus": 8},
    "layout": {"tp": 2, "recompute": "full", "rank_capacity": "16K tokens"},
    "data": {"trace": "debian-code", "batch": "256K tokens", "context": "16K tokens", "seed": 0},
    "execution": {"batches": 1},
}


def write_document(folder: Path, name: str, document: Any, dice: random.Random) -> str:
    """*document* as YAML (JSON is some), sometimes with its bytes spoiled, too."""
    path = folder / name
    try:
        text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
    except (yaml.YAMLError, ValueError):
        text = json.dumps(document, default=str)
    content = text.encode("utf-8", "surrogatepass")
    path.write_bytes(spoiled_bytes(dice, content) if dice.random() < 0.1 else content)
    return str(path)


def write_table(dice: random.Random, rows: list[dict[str, Any]], columns: list[str], path: Path) -> str:
    """Rows as CSV with some cells spoiled, sometimes a column lost or packed."""
    rows = [dict(row) for row in rows]
    for _ in range(dice.choice((1, 1, 2, 4))):
        row = dice.choice(rows)
        column = dice.choice([name for name in columns if row.get(name) not in (None, "")] or columns)
        old: Any = row.get(column, "")
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            old = float(old)
        row[column] = other_value(dice, old)
    if dice.random() < 0.1:
        columns = [name for name in columns if name != dice.choice(columns)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode("utf-8", "surrogatepass")
    content = spoiled_bytes(dice, content) if dice.random() < 0.1 else content
    path.write_bytes(gzip.compress(content, mtime=0) if dice.random() < 0.1 else content)
    return str(path)


def typed(value: Any) -> str:
    """*value* as somebody types it: no zero bytes, which no command line holds."""
    text = value if isinstance(value, str) else yaml.safe_dump(value).removesuffix("\n...\n").strip()
    return text.replace("\0", "")[:100_000]
