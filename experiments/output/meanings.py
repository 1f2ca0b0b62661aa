"""What names mean, in words for people: the lists of experiments/data/meanings.yaml, and files.yaml beside it."""

from __future__ import annotations

from functools import cache

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.yaml_loader import load_yaml


@cache
def meanings(of: str, file: str = "meanings") -> dict[str, str]:
    """Name -> its meaning, of one of the lists."""
    by_name: dict[str, str] = load_yaml(shipped(f"experiments/data/{file}.yaml"))[of]
    return by_name
