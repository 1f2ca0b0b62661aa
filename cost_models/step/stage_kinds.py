"""Distinct contents of virtual stages, which share one row of costs, and which of their layers' activations move."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.layer_prices import LayerTerms
from hdpsim.cost_models.transformer.layer_kinds import LayerKind
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents, stage_contents


def stage_kinds(model: Model, layout: Layout) -> tuple[tuple[StageContents, ...], Ints]:
    """The distinct contents of virtual stages, and the [S, V] table of which is where."""
    return _kinds_of_stages(model, layout.of_stages)


@lru_cache(maxsize=1024)
def _kinds_of_stages(model: Model, layout: Layout) -> tuple[tuple[StageContents, ...], Ints]:
    contents = stage_contents(model, layout)
    kinds = tuple(dict.fromkeys(chunk for stage in contents for chunk in stage))
    table = np.array([[kinds.index(chunk) for chunk in stage] for stage in contents], dtype=np.int64)
    return kinds, table


def offloading_layer_s(kind: StageContents, layers: LayerTerms, *, backward: bool) -> Floats:
    """[T, n] of the layers whose activations move: of the kind that most are; of a hybrid their mean."""
    rows = sum(count * layers[each, backward] for each, count in kind.usual)
    return np.asarray(rows / sum(count for _, count in kind.usual))


def alike_for_offload(kinds: tuple[StageContents, ...]) -> list[list[StageContents]]:
    """Stages whose layers move beside the same work, together."""
    found: dict[object, list[StageContents]] = {}
    for kind in sorted(kinds, key=lambda kind: LayerKind.MOE in dict(kind.usual)):
        found.setdefault(kind.usual, []).append(kind)
    return list(found.values())
