"""What a backward repeats of the forward."""

from __future__ import annotations

from functools import lru_cache

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Recompute
from hdpsim.cost_models.transformer.layers import LayerKind

_ATTENTION = ("attention", "ring_merge", "ring_wait")


def repeats(layout: Layout, kind: LayerKind) -> bool:
    """Whether layers of that kind repeat anything."""
    return layout.recompute.layers == "all" or kind.has_experts


@lru_cache(maxsize=1024)
def layout_of_kind(layout: Layout, kind: LayerKind) -> Layout:
    """The layout as layers of one kind see it: without recomputation where they have none."""
    return layout if repeats(layout, kind) else layout.with_groups(recompute=Recompute())


def repeated_share(layout: Layout, term: str) -> float:
    """Share of a term of a layer's forward (micro_batch_cost.TERMS) that the backward repeats.

    full: all of it. selective: layout.recompute_share of it, and the attention whose scores an unfused kernel would
    have kept (flash kernels keep none, arXiv 2205.05198 section 5). Either way other shares where a policy names kinds
    of operations.
    """
    if layout.recompute.kind == "none":
        return 0.0
    selective = layout.recompute.kind == "selective"
    if selective and term == "attention" and layout.kernels.attention == "unfused":
        return 1.0
    special = layout.recompute.attention if term in _ATTENTION else None
    if term == "gemm":
        special = layout.recompute.products
    elif term == "tp_communication":
        special = layout.recompute.collectives
    if special is not None:
        return special
    return layout.recompute.share if selective else 1.0
