"""Exact parameter counts: of a model, of a layer, and of one GPU's shard of a pipeline stage."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.pipeline_cut import StageWords, stages_of
from hdpsim.cost_models.layout_checks import check_layout, layer_units
from hdpsim.cost_models.transformer.layers import (
    KindCounts,
    LayerKind,
    as_layer,
    counted,
    layer_counts,
    layer_matrices,
    layer_shards,
    layers_in_order,
    mamba_vectors,
    parts_of,
    prediction_counts,
    prediction_matrix,
    vocabulary_matrix,
)
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.stages import chunks_per_stage, virtual_stage_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters by what they do. `experts` are the routed ones, all of them; shared experts are in `mlp`.

    So are the projections around latent experts. `mamba` is all of Mamba-2 layers but the norm before each.
    """

    attention: int = 0
    mamba: int = 0
    mlp: int = 0
    experts: int = 0
    router: int = 0
    norms: int = 0
    embedding: int = 0
    positions: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """Parameters of all parts together."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: ParameterCount) -> ParameterCount:
        names = [field.name for field in fields(self)]
        return ParameterCount(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def __mul__(self, times: int) -> ParameterCount:
        return ParameterCount(**{f.name: getattr(self, f.name) * times for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContents:
    """What one virtual pipeline stage (a chunk of a stage) holds."""

    by_kind: KindCounts
    """How many layers of each kind that occurs."""
    embedding: bool
    head: bool
    mtp_layers: int

    @property
    def layers(self) -> int:
        """Layers, without multi-token prediction."""
        return sum(count for _, count in self.by_kind)

    @property
    def attention_layers(self) -> int:
        """Number of layers with attention."""
        return sum(count for kind, count in self.by_kind if kind.attends)

    @property
    def expert_layers(self) -> int:
        """Number of layers with routed experts."""
        return sum(count for kind, count in self.by_kind if kind.has_experts)

    @property
    def offloading_layers(self) -> int:
        """Count the layers whose activations may go to the host: all but first and last (ByteScale, equation 3)."""
        return max(0, self.layers - 2)

    @property
    def usual(self) -> KindCounts:
        """Layers that stand for all: one of the kind that most are, dense ones before others; of a hybrid all."""
        if any(kind > LayerKind.MOE for kind, _ in self.by_kind):
            return self.by_kind
        return tuple((kind, 1) for kind, _ in sorted(self.by_kind, key=lambda each: -each[1])[:1])

    def with_prediction(self, model: Model) -> KindCounts:
        """These contents with the layers of multi-token prediction that sit here."""
        if not self.mtp_layers:
            return self.by_kind
        counts = dict(self.by_kind)
        for kind, count in prediction_counts(model):
            counts[kind] = counts.get(kind, 0) + self.mtp_layers * count
        return tuple((kind, counts[kind]) for kind in sorted(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParameters:
    """Parameters on one GPU of a pipeline stage.

    Attributes:
        dense: everything replicated over all ranks.
        experts: routed experts, replicated over fewer GPUs when expert parallelism spans ranks.
        largest_unit: the biggest piece that sharded training (ZeRO-3) gathers at once, whole: a layer, or the
            embedding or head.
        matrices: the part of dense + experts that are weights of matrix products of layers.
    """

    dense: int
    experts: int
    largest_unit: int
    matrices: int

    @property
    def total(self) -> int:
        """All parameters on the GPU."""
        return self.dense + self.experts


class LayerShard(NamedTuple):
    """Parameters of one layer on one GPU: norms (and what else is no matrix) are part of *dense*."""

    dense: int
    experts: int
    norms: int

    @property
    def total(self) -> int:
        """All parameters of the layer on the GPU."""
        return self.dense + self.experts

    @property
    def matrices(self) -> int:
        """What is a weight of a matrix product, or its bias."""
        return self.total - self.norms


def layer_parameters(model: Model, *, moe: bool) -> ParameterCount:
    """One layer: its matrices (layers.layer_matrices) with their biases, and its norms.

    Ignored: the per-expert bias that DeepSeek-V3 balances its router with (256 per layer), QK-norms.
    """
    count = ParameterCount(norms=_layer_norms(model), mamba=mamba_vectors(model))
    for matrix in layer_matrices(model, moe=moe):
        field = "mlp" if matrix.block in ("shared", "latent") else matrix.block
        count += ParameterCount(**{field: matrix.parameters})
    return count


def parameters(model: Model) -> ParameterCount:
    """All parameters of a model without multi-token-prediction layers, as published totals are.

    layers + embedding V h (+ learned positions) + final norm + head V h unless tied
    """
    total = ParameterCount()
    for kind, count in layer_counts(model):
        of_kind, moe = as_layer(model, kind)
        total += layer_parameters(of_kind, moe=moe) * count
    vocabulary = vocabulary_matrix(model).weights
    return total + ParameterCount(
        norms=_norm(model),
        embedding=vocabulary,
        positions=model.learned_positions * model.hidden,
        head=0 if model.tied_embeddings else vocabulary,
    )


def active_parameters(model: Model) -> int:
    """Parameters one token passes: all, with top_k of the routed experts; embedding table included."""
    total = parameters(model)
    idle = total.experts * (model.experts - model.top_k) // model.experts if model.experts else 0
    return total.total - idle


def stage_layers(model: Model, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Layers of every (stage, chunk): as even as possible, the extra ones on the stages in the middle.

    The first stage also has the embedding and the last one the head, so those get an extra layer last (as Llama 3
    405B was cut: 126 layers on 16 stages are 14 x 8 and 2 x 7). In ZB-V stage 0 has both, so extra layers start at
    the other end. No layer is ever lost. With `embedding_layers` layers + 2 + prediction layers are dealt that way; the
    first virtual stage gets one layer less, the last as many less as it has of the others (Megatron-LM:
    account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split; pipeline layouts of DeepSeek-V3).
    Virtual stages are those of virtual_stage_table; DualPipe's two copies are cut alike. A cut by hand
    (`pipeline_layout`) comes before both.
    """
    check_layout(model, layout)
    pp, vpp = layout.parallel.pp, layout.pipeline.vpp
    by_hand = _cut_by_hand(layout)
    if by_hand is not None:
        table = virtual_stage_table(layout.pipeline.schedule, pp, vpp)
        return tuple(tuple(by_hand[virtual].layers for virtual in row[:vpp]) for row in table)
    if layout.pipeline.balance == "flop":
        return _layers_by_flop(model, layout)
    units = layer_units(model, layout)
    base, extra = divmod(units, pp * vpp)
    middle = (pp - 1) if layout.pipeline.schedule == "zb-v" else (pp - 1) / 2
    order = sorted(range(pp), key=lambda stage: (abs(stage - middle), stage))
    counts = [[base] * vpp for _ in range(pp)]
    for place in range(extra):
        chunk, position = divmod(place, pp)
        counts[order[position]][chunk] += 1
    if units > model.layers:
        counts[0][0] -= 1
        counts[0 if layout.pipeline.schedule == "zb-v" else pp - 1][vpp - 1] -= units - model.layers - 1
    return tuple(tuple(chunks) for chunks in counts)


def _cut_by_hand(layout: Layout) -> tuple[StageWords, ...] | None:
    """The virtual stages that somebody wrote down; a model on one stage is not cut."""
    if layout.pipeline.cut is None or layout.parallel.pp == 1:
        return None
    return stages_of(layout.pipeline.cut)


def _layers_by_flop(model: Model, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Layers of every (stage, chunk) when a virtual stage is full as soon as it reaches its share of the FLOP.

    The output projection counts as V h / (active matrix weights of a layer) layers, the embedding as none; the last
    virtual stages may have no layer.  Ignored: attention scores; a loss on a stage behind the projection's.
    Source: huggingface/nanotron, models/base.py (build_model).
    """
    cuts = layout.parallel.pp * layout.pipeline.vpp
    table = model.vocab * model.hidden
    tables = 1 if model.tied_embeddings else 2
    a_layer = (active_parameters(model) - tables * table) / model.layers
    share = (model.layers + table / a_layer) / cuts
    ends = [0]
    for cut in range(1, cuts):
        ends.append(min(math.ceil(share * cut - 1e-9), model.layers))
    ends.append(model.layers)
    counts = [last - first for first, last in pairwise(ends)]
    return tuple(tuple(counts[stage :: layout.parallel.pp]) for stage in range(layout.parallel.pp))


def stage_contents(model: Model, layout: Layout) -> tuple[tuple[StageContents, ...], ...]:
    """What every (stage, chunk) holds; the dense layers of a mixture-of-experts model come first.

    A hybrid's stages hold what the letters of its pattern say, one after the other; in which order within a stage
    changes nothing.
    """
    return _stage_contents(model, layout.of_stages)


@lru_cache(maxsize=1024)
def _stage_contents(model: Model, layout: Layout) -> tuple[tuple[StageContents, ...], ...]:
    counts = stage_layers(model, layout)
    schedule, vpp = layout.pipeline.schedule, layout.pipeline.vpp
    table = virtual_stage_table(schedule, layout.parallel.pp, chunks_per_stage(schedule, vpp))
    layers_of = {table[stage][chunk]: n for stage, row in enumerate(counts) for chunk, n in enumerate(row)}
    by_hand = _cut_by_hand(layout) or ()
    placed = any(stage.mtp_layers for stage in by_hand)
    kinds, last = iter(layers_in_order(model)), len(layers_of) - 1
    contents = [
        StageContents(
            by_kind=counted(islice(kinds, layers_of[virtual])),
            embedding=virtual == 0,
            head=virtual == last,
            mtp_layers=by_hand[virtual].mtp_layers if placed else model.mtp_layers * (virtual == last),
        )
        for virtual in range(len(layers_of))
    ]
    return tuple(tuple(contents[virtual] for virtual in row) for row in table)


def parameters_per_gpu(model: Model, layout: Layout, stage: int) -> StageParameters:
    """Parameters on each GPU of a pipeline stage, before any sharding over ranks (ZeRO).

    Counted: tensor parallelism splits attention, MLP, embedding and head (vocabulary rounded up); KV heads fewer
    than tp are repeated; the low-rank input projections of latent attention, norms, router and learned positions
    are on every GPU; routed experts are spread over ep x etp GPUs. A tied head is a second copy of the
    embedding when it sits on another stage than the embedding. Multi-token prediction is on the last stage, unless a
    cut by hand says where.
    Source: arXiv 1909.08053 section 3; arXiv 2104.04473 (embedding copies); Megatron-Core (latent attention).
    """
    return _parameters_of(model, layout.of_stages, stage_contents(model, layout)[stage])


@lru_cache(maxsize=4096)
def _parameters_of(model: Model, layout: Layout, held: tuple[StageContents, ...]) -> StageParameters:
    """Count the parameters of a stage that holds these chunks, as parameters_per_gpu does."""
    dense = experts = matrices = largest = 0
    vocabulary = vocabulary_shard(model, layout)
    for part in held:
        for kind, count in part.with_prediction(model):
            layer = kind_shard(model, layout, kind)
            dense, experts = dense + count * layer.dense, experts + count * layer.experts
            matrices += count * layer.matrices
        largest = max([largest, *(kind_shard(model, layout, kind).total for kind, _ in part.by_kind)])
        if part.embedding:
            dense += vocabulary + model.learned_positions * model.hidden
        if part.head:
            dense += _norm(model) + (0 if model.tied_embeddings and layout.parallel.pp == 1 else vocabulary)
        if part.embedding or part.head:
            largest = max(largest, vocabulary)
        if part.mtp_layers:
            projection = math.prod(prediction_matrix(model).shard(layout.parallel.tp))
            dense += part.mtp_layers * (projection + 3 * _norm(model))
            matrices += part.mtp_layers * projection

            if layout.parallel.pp > 1:
                dense += vocabulary  # the embedding it shares sits on another stage: a copy
    return StageParameters(dense=dense, experts=experts, largest_unit=largest, matrices=matrices)


@lru_cache(maxsize=1024)
def layer_shard(model: Model, layout: Layout, *, moe: bool) -> LayerShard:
    """Parameters of one layer on one GPU."""
    norms = _layer_norms(model) + mamba_vectors(model) // layout.parallel.tp
    held = {True: 0, False: 0}
    for shard in layer_shards(model, layout, moe=moe):
        biases = shard.experts * shard.outputs if shard.matrix.biases else 0
        held[shard.matrix.block == "experts"] += shard.weights + biases
    return LayerShard(dense=held[False] + norms, experts=held[True], norms=norms)


def kind_shard(model: Model, layout: Layout, kind: LayerKind) -> LayerShard:
    """Parameters of one layer of a kind on one GPU."""
    of_kind, moe = as_layer(model, kind)
    return layer_shard(of_kind, layout, moe=moe)


def vocabulary_shard(model: Model, layout: Layout) -> int:
    """Weights of the embedding, or of the output projection, on one GPU."""
    return math.prod(vocabulary_matrix(model).shard(layout.parallel.tp))


def _layer_norms(model: Model) -> int:
    latent = model.latent_attention
    parts = parts_of(model)
    inside = latent.q_lora_rank + latent.kv_lora_rank if latent and parts.attention else 0
    return (1 if model.parallel_block else parts.blocks) * _norm(model) + inside


def _norm(model: Model) -> int:
    """Parameters of one norm: a scale, and an offset in LayerNorm."""
    return model.hidden * (2 if model.norm == "layer" else 1)
