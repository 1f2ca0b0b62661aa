"""What names mean, in the words of tables and sentences: experiments/data/meanings.yaml."""

from __future__ import annotations

from functools import cache

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.yaml_loader import load_yaml


@cache
def meanings(of: str) -> dict[str, str]:
    """Name -> its meaning, of one of the lists."""
    found: dict[str, str] = load_yaml(shipped("experiments/data/meanings.yaml"))[of]
    return found
