"""Which kinds of layers a model has, and each kind as a model of its own.

A plain transformer has layers of attention and an MLP, or of attention and experts. A layer of a hybrid has one part
alone: Mamba-2, attention, an MLP or experts. Whatever counts, cuts or prices one layer is asked about one kind:
*as_layer* gives the model whose only layer is of that kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from hdpsim.cost_models.transformer.layer_pattern import written_out
from hdpsim.cost_models.transformer.model import Model, dense_layer_count
from hdpsim.errors import InfeasibleError


class LayerKind(IntEnum):
    """What a layer consists of. The first two, of plain transformers, are equal to whether the layer has experts."""

    DENSE = 0
    MOE = 1
    MAMBA = 2
    ATTENTION = 3
    MLP = 4
    EXPERTS = 5

    @property
    def attends(self) -> bool:
        """Whether the layer has attention."""
        return self in (LayerKind.DENSE, LayerKind.MOE, LayerKind.ATTENTION)

    @property
    def has_experts(self) -> bool:
        """Whether the layer has routed experts."""
        return self in (LayerKind.MOE, LayerKind.EXPERTS)


KIND_OF = {"M": LayerKind.MAMBA, "*": LayerKind.ATTENTION, "-": LayerKind.MLP, "E": LayerKind.EXPERTS}
LETTER_OF = {kind: letter for letter, kind in KIND_OF.items()}

KindCounts = tuple[tuple[LayerKind, int], ...]
"""How many layers of each kind that occurs."""


class LayerParts(NamedTuple):
    """What one layer has."""

    attention: bool
    mamba: bool
    mlp: bool
    """Or experts."""

    @property
    def blocks(self) -> int:
        """Parts that read a norm's output and add to the residual stream, each by itself."""
        return self.attention + self.mamba + self.mlp


def parts_of(model: Model) -> LayerParts:
    """What a layer of a model has whose layers are all alike, experts apart.

    Raises:
        InfeasibleError: they are not: whoever asks was not taught about hybrids.
    """
    if not model.layer_pattern:
        return LayerParts(attention=True, mamba=False, mlp=True)
    if len(model.layer_pattern) > 1:
        raise InfeasibleError(
            f"{model.name} is a hybrid (layer_pattern): what this needs of a layer is modelled for models whose "
            "layers are all alike"
        )
    letter = model.layer_pattern
    return LayerParts(attention=letter == "*", mamba=letter == "M", mlp=letter in "-E")


@lru_cache(maxsize=1024)
def layers_in_order(model: Model) -> tuple[LayerKind, ...]:
    """The kind of every layer of a model, multi-token prediction apart; of a plain one dense layers come first."""
    if model.layer_pattern:
        return tuple(KIND_OF[letter] for letter in written_out(model.layer_pattern))
    dense = dense_layer_count(model)
    return (LayerKind.DENSE,) * dense + (LayerKind.MOE,) * (model.layers - dense)


@lru_cache(maxsize=1024)
def layer_counts(model: Model) -> KindCounts:
    """The layers of a model by kind, multi-token prediction apart."""
    return counted(layers_in_order(model))


@lru_cache(maxsize=1024)
def prediction_counts(model: Model) -> KindCounts:
    """The layers of one multi-token-prediction layer by kind: one of the usual kind, or those of mtp_pattern."""
    if model.layer_pattern:
        return counted(KIND_OF[letter] for letter in written_out(model.mtp_pattern))
    return ((LayerKind(bool(model.experts)), 1),)


def counted(kinds: Iterable[LayerKind]) -> KindCounts:
    """How many layers there are of each kind."""
    return tuple(sorted(Counter(kinds).items()))


def attention_layers(model: Model) -> int:
    """Layers with attention, multi-token prediction apart."""
    return sum(count for kind, count in layer_counts(model) if kind.attends)


def kinds_of(model: Model) -> tuple[LayerKind, ...]:
    """The kinds that occur in the layers or in multi-token prediction."""
    predicted = prediction_counts(model) if model.mtp_layers else ()
    return tuple(sorted({kind for kind, _ in (*layer_counts(model), *predicted)}))


@lru_cache(maxsize=1024)
def as_layer(model: Model, kind: LayerKind) -> tuple[Model, bool]:
    """The model whose layers are all of that kind, and whether they have experts.

    Of a plain transformer the model itself. Of a hybrid what the other kinds are made of is left out, so that nothing
    can be read by mistake.
    """
    if not model.layer_pattern:
        return model, kind.has_experts
    kept: dict[str, object] = {
        "layer_pattern": LETTER_OF[kind],
        "layers": 1,
        "mtp_layers": 0,
        "mtp_pattern": "",
    }
    if kind is not LayerKind.EXPERTS:
        kept |= {"experts": 0, "top_k": 0, "shared_expert_ffn": 0, "expert_latent": 0}
    if kind is not LayerKind.MAMBA:
        kept["mamba"] = None
    one = replace(model, **kept)  # type: ignore[arg-type]
    return one, kind.has_experts
