"""What a backward repeats of the forward."""

from __future__ import annotations

from hdpsim.cost_models.layout.layout import Layout

_ATTENTION = ("attention", "ring_merge", "ring_wait")


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
