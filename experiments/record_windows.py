"""Attention windows of a record's model: stated in its notes, or those of the catalog's model of that name."""

from __future__ import annotations

import re

from cost_models import catalog
from experiments.records import RunConfig
from hdpsim.errors import CatalogError

__all__ = ["window_rule"]


def window_rule(config: RunConfig, field: str) -> tuple[object, str] | None:
    """A window field of Model and the words of an assumption; None: no windows.

    A stated chunk counts as it is. Where a record only speaks of windows, the catalog's model of that name and width
    says how wide they are and which layers have them.
    """
    chunk = re.search(r"(?i)chunked attention (\d+)", config.notes)
    if chunk:
        stated: dict[str, object] = {"sliding_window": int(chunk[1]), "chunked_attention": True}
        return (stated[field], "") if field in stated else None
    if not re.search(r"sliding|window", f"{config.notes} {config.attention}"):
        return None
    try:
        known = catalog.model(config.model_name)
    except CatalogError:
        return None
    if known.sliding_window is None or known.hidden != config.hidden:
        return None
    words = f"attention windows of {known.name}" if field == "sliding_window" else ""
    return getattr(known, field), words
