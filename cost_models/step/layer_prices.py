"""What one layer of each kind, and the head, take on micro-batches, term by term.

A layer knows nothing of the pipeline it is in, of how optimizer states are sharded, nor of what a backward repeats: all
layouts that differ in these alone share one LayerPrices, with what it has worked out before. It is given the layout's
of_layers, so that nothing else can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster, Gpu
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost
from hdpsim.cost_models.layer.experts import beside_the_other_micro_batch_s
from hdpsim.cost_models.layer.gemms import LayerGemms
from hdpsim.cost_models.layer.host_launches import HostTime
from hdpsim.cost_models.layer.layer import LayerCost
from hdpsim.cost_models.layer.mamba import MambaExchange
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layer.output_head import OutputHead
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layer.recomputation import layout_of_kind
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Precision, parts_of_text
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.step.step_traffic import TrafficKind
from hdpsim.cost_models.tracing import Latest, remembered, shared
from hdpsim.cost_models.transformer.layers import (
    LayerKind,
    as_layer,
    kinds_of,
    layer_counts,
    prediction_counts,
    prediction_matrix,
)
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES

TERMS = (
    "gemm",
    "attention",
    "ring_merge",
    "ring_wait",  # ring transfers not hidden by attention
    "small_kernels",
    "tp_communication",
    "expert_all_to_all",
    "recompute",
    "offload_wait",  # activation traffic to and from the host that compute does not hide
    "logits",
    "host",  # kernel launches that outlast their kernels, and fixed host work
    "layer_gather",  # gathering sharded parameters layer by layer: what it adds to the compute beside it
    "layer_reduce",  # the same for reducing gradients layer by layer
)
TERM_ROWS = {name: row for row, name in enumerate(TERMS)}

_COMPUTE = ("gemm", "attention", "ring_merge", "small_kernels")
_OF_ATTENTION = ("attention", "ring_merge", "ring_wait")
SINGLES_KEPT = 512  # single micro-batches whose prices are kept: of uniform steps there are few
TABLES_KEPT = 24  # of planners, of some thousand numbers of tokens: about a megabyte each
TABLE_SIZE = 32768  # numbers of tokens
R = TypeVar("R")
V = TypeVar("V", float, Floats)

_Column = Ints | Floats | None
LayerTerms = dict[tuple[LayerKind, bool], Floats]
"""[T, n] of one layer by (kind, backward)."""

HeadTerms = dict[bool, Floats]
"""[n] of a head by side (backward)."""


class LayerPrices:
    """Costs of one layer of each kind, and of the head, of one model under the of_layers of a layout."""

    def __init__(self, model: Model, layout: Layout, cluster: Cluster, cal: Calibration) -> None:
        self._model, self._layout, self._gpu, self._cal = model, layout, cluster.gpu, cal
        self.collectives = _collectives(cluster, cal.network)
        self.attention = AttentionCost(model, layout, cluster.gpu, cal, self.collectives.fabric)
        alone = {kind: as_layer(model, kind) for kind in kinds_of(model)}
        self._costs = {
            kind: LayerCost(one, layout_of_kind(layout, kind), cluster, cal, self.collectives, moe=moe)
            for kind, (one, moe) in alone.items()
        }
        self._beside = next((kind for kind in alone if kind.attends), next(iter(alone)))
        of_gpu = (model, layout, cluster.gpu, cal)
        self._exchange = None if model.mamba is None else MambaExchange(*of_gpu, self.collectives)
        self.head = OutputHead(*of_gpu, self.collectives)
        self._wide_shares = wide_shares(model, layout.precision)
        self._wide = layer_prices(model, _all_wide(layout), cluster, cal) if self._wide_shares else None
        self.prediction = _prediction_gemms(*of_gpu) if model.mtp_layers else None
        group = self.collectives.group(layout.parallel.tp)
        self._hosts = {kind: HostTime(one, layout, group, cal) for kind, (one, _) in alone.items()}
        self._known: Latest[tuple[object, ...], object] = Latest(SINGLES_KEPT)

    def table_s(self, tokens: Ints) -> tuple[LayerTerms, HeadTerms]:
        """terms_s and heads_s, both ways, of micro-batches of one sequence on one rank each; not to be changed.

        Planners ask for thousands of them, and for mostly the same ones under other pipelines and capacities.
        """
        return remembered(_tables, self, _Table).of(tokens, self._of_one_rank)

    def _of_one_rank(self, tokens: Ints) -> tuple[LayerTerms, HeadTerms]:
        sides, held = (False, True), tokens.astype(np.float64)
        return self._terms_s(MicroBatches.single(tokens), sides), self.head.sides_s(held, sides)

    def terms_s(self, batches: MicroBatches, sides: tuple[bool, ...]) -> LayerTerms:
        """[T, n] per layer by (kind, backward), for the layers that the model has; not to be changed."""
        segments = (batches.segment_tokens, batches.segment_offsets)
        columns = [*segments, batches.crossing, batches.routed_tokens, batches.tier, batches.group_size]
        columns.append(batches.tokens_per_rank)
        return self._once("terms", columns, sides, lambda: self._terms_s(batches, sides))

    def attention_sent(self, batches: MicroBatches, *, backward: bool) -> SentTimes:
        """What context parallelism sends between nodes for the attention of one layer."""
        (linear,) = self._costs[self._beside].times(batches.tokens_per_rank, backward)
        return self.attention.sent(batches, backward=backward, linear_s=linear.total)

    def mamba_sent(self, batches: MicroBatches) -> SentTimes | None:
        """What context parallelism sends between nodes for one Mamba-2 layer either way; None: no such layer."""
        return None if self._exchange is None else self._exchange.sent(*batches.groups[:3])

    def host_s(self, kind: LayerKind, *, backward: bool) -> float:
        """Least time of one layer: what the host needs to launch it."""
        narrow_s = self._narrow_host_s(kind, backward)
        if self._wide is None:
            return narrow_s
        return self._mean(kind, narrow_s, self._wide.host_s(kind, backward=backward))

    def _mean(self, kind: LayerKind, narrow: V, wide: V) -> V:
        """The mean over a kind's layers: those in the layout's format, and those in 16 bits."""
        share = self._wide_shares[kind]
        return (1.0 - share) * narrow + share * wide

    def _narrow_host_s(self, kind: LayerKind, backward: bool) -> float:
        return self._hosts[kind].layer_s(moe=kind.has_experts, backward=backward)

    def linear_sent(
        self, tokens: Floats, terms: LayerTerms, kind: LayerKind
    ) -> Iterator[tuple[TrafficKind, bool, SentTimes]]:
        """What tensor and expert parallelism send between nodes for one layer: kind, backward, transfers."""
        parallel = self._costs[kind].tensor_parallel_sent(tokens)
        for backward in (False, True):
            if parallel is not None:
                yield "tensor", backward, parallel[backward]
            exposed_s = terms[kind, backward][TERM_ROWS["expert_all_to_all"]]
            experts = self._costs[kind].expert_sent(tokens, exposed_s)
            if experts is not None:
                yield "experts", backward, experts

    def heads_s(self, tokens: Floats, sides: tuple[bool, ...]) -> dict[bool, Floats]:
        """[n] by side (backward): projection and loss; not to be changed."""
        return self._once("heads", (tokens,), sides, lambda: self.head.sides_s(tokens, sides))

    def weight_gradient_s(self, tokens: Floats, kind: LayerKind) -> Floats:
        """[n]: the weight gradients of one layer's products; not to be changed."""
        what = f"weights of {kind.name}"
        return self._once(what, (tokens,), (True,), lambda: self._weight_gradient_s(tokens, kind))

    def _weight_gradient_s(self, tokens: Floats, kind: LayerKind) -> Floats:
        narrow_s = self._costs[kind].weight_gradient_s(tokens)
        if self._wide is None:
            return narrow_s
        return self._mean(kind, narrow_s, self._wide.weight_gradient_s(tokens, kind))

    def _once(
        self, what: str, columns: Sequence[_Column], sides: tuple[bool, ...], work: Callable[[], R]
    ) -> R:
        """What *work* made of a single micro-batch with the same *columns* before."""
        if columns[-1] is None or len(columns[-1]) > 1:
            return work()
        key = (what, sides, *(None if column is None else column.tobytes() for column in columns))
        return remembered(self._known, key, lambda _: work())  # type: ignore[return-value]

    def _terms_s(self, batches: MicroBatches, sides: tuple[bool, ...]) -> LayerTerms:
        narrow = self._terms_of_one_format_s(batches, sides)
        if self._wide is None:
            return narrow
        wide = self._wide.terms_s(batches, sides)
        return {key: self._mean(key[0], rows, wide[key]) for key, rows in narrow.items()}

    def _terms_of_one_format_s(self, batches: MicroBatches, sides: tuple[bool, ...]) -> LayerTerms:
        tokens = batches.tokens_per_rank
        linear = {kind: cost.times(tokens, *sides) for kind, cost in self._costs.items()}
        overlapped_s = [terms.total for terms in linear[self._beside]]
        rings = {}
        if self._beside.attends:
            shared = self.attention.shared(batches)
            rings = {
                side: self.attention.times(batches, backward=side, linear_s=beside_s, shared=shared)
                for side, beside_s in zip(sides, overlapped_s, strict=True)
            }
        exchange_s = None  # of a Mamba-2 layer's groups
        if self._exchange is not None and (batches.group_size > 1).any():
            exchange_s = self._exchange.seconds(*batches.groups[:3])
        result: LayerTerms = {}
        for kind, cost in self._costs.items():
            moe = kind.has_experts
            for side, terms in zip(sides, linear[kind], strict=True):
                rows = np.zeros((len(TERMS), len(tokens)))
                for name, seconds in zip(terms._fields, terms, strict=True):
                    rows[TERM_ROWS[name]] = seconds
                if kind.attends:
                    for name, seconds in zip(_OF_ATTENTION, rings[side], strict=True):
                        rows[TERM_ROWS[name]] = seconds
                elif kind is LayerKind.MAMBA and exchange_s is not None:
                    rows[TERM_ROWS["ring_wait"]] = exchange_s
                if moe and batches.routed_tokens is not None:
                    rows[TERM_ROWS["gemm"]] += cost.routed_s(batches.routed_tokens, tokens, backward=side)
                result[kind, side] = rows
            if moe and self._layout.experts.overlap:
                self._hide_all_to_all(result[kind, False], result[kind, True])
            for side in sides:
                least_s = self._narrow_host_s(kind, side)
                rows = result[kind, side]
                blocking = self._layout.host.launch_blocking
                hidden_s = 0.0 if blocking else self._behind_launches_s(cost, tokens, rows, side)
                wait_s = cost.counts_wait_s(tokens) if moe and not side else 0.0
                rows[TERM_ROWS["host"]] = np.maximum(wait_s, least_s - hidden_s)
        return result

    def _behind_launches_s(self, cost: LayerCost, tokens: Floats, rows: Floats, backward: bool) -> Floats:
        """[n]: work of a layer that its launches hide behind, from its terms.

        Not what runs at another time: weight gradients that a schedule runs apart, DualPipe's all-to-alls.
        """
        work_s = rows.sum(axis=0)
        if self._layout.pipeline.schedule == "dualpipe":
            work_s = work_s - rows[TERM_ROWS["expert_all_to_all"]]
        if backward and self._layout.pipeline.schedule in SPLIT_SCHEDULES:
            work_s = work_s - cost.weight_gradient_s(tokens)
        return np.asarray(work_s)

    def _hide_all_to_all(self, forward: Floats, backward: Floats) -> None:
        """The all-to-all of a layer runs beside the compute of another micro-batch in the other direction."""
        row = TERM_ROWS["expert_all_to_all"]
        compute = sum(side[TERM_ROWS[name]] for side in (forward, backward) for name in _COMPUTE)
        forward[row], backward[row] = beside_the_other_micro_batch_s(
            forward[row], backward[row], np.asarray(compute), self._gpu.sm_count
        )


class _Table:
    """Prices of micro-batches of one rank by their tokens; those that are not known yet are added."""

    def __init__(self, _: LayerPrices) -> None:
        self._tokens: Ints = np.zeros(0, dtype=np.int64)  # ascending
        self._terms: LayerTerms = {}
        self._heads: HeadTerms = {}

    def of(
        self, tokens: Ints, price: Callable[[Ints], tuple[LayerTerms, HeadTerms]]
    ) -> tuple[LayerTerms, HeadTerms]:
        """The prices of *tokens*, by what *price* makes of those that are new."""
        place = np.searchsorted(self._tokens, tokens)
        known = np.append(self._tokens, -1)[place] == tokens
        if not known.all():
            new = np.unique(tokens[~known])
            if len(self._tokens) + len(new) > TABLE_SIZE:
                new, self._tokens = np.unique(tokens), self._tokens[:0]
            self._add(new, *price(new))
            place = np.searchsorted(self._tokens, tokens)
        if len(place) == len(self._tokens) and (place == np.arange(len(place))).all():
            return self._terms, self._heads
        return (
            {key: rows[:, place] for key, rows in self._terms.items()},
            {key: row[place] for key, row in self._heads.items()},
        )

    def _add(self, tokens: Ints, terms: LayerTerms, heads: HeadTerms) -> None:
        if len(self._tokens):
            both = np.concatenate((self._tokens, tokens))
            order = np.argsort(both)
            tokens = both[order]
            terms = {key: _merged(self._terms[key], rows, order) for key, rows in terms.items()}
            heads = {key: _merged(self._heads[key], row, order) for key, row in heads.items()}
        self._tokens, self._terms, self._heads = tokens, terms, heads


def _merged(old: Floats, new: Floats, order: Ints) -> Floats:
    return np.asarray(np.concatenate((old, new), axis=-1)[..., order])


_tables: Latest[LayerPrices, _Table] = Latest(TABLES_KEPT)
"""By the layers that they price."""


@shared(most=512)
def layer_prices(model: Model, layout: Layout, cluster: Cluster, cal: Calibration) -> LayerPrices:
    """The prices of layers, the same object for all pipelines; *layout*: the of_layers of one."""
    return LayerPrices(model, layout, cluster, cal)


def wide_shares(model: Model, precision: Precision) -> dict[LayerKind, float]:
    """Of each kind of layer the share whose products stay in 16 bits whatever the layout's format; empty: none.

        share = (x layers + prediction layers, if they do) / (layers + prediction layers), of that kind

    Counted: x = bf16_layers of every kind alike.
    Ignored: that first and last layers are on the first and last stage of a pipeline.
    Source: Megatron-Core, fp8_utils.py (is_first_last_bf16_layer); models/mamba, keep_mtp_spec_in_bf16.
    """
    predicts = "prediction" in parts_of_text(precision.bf16_parts) and model.mtp_layers > 0
    if precision.products == "bf16" or not (precision.bf16_layers or predicts):
        return {}
    counts, more = dict(layer_counts(model)), dict(prediction_counts(model) if model.mtp_layers else ())
    shares = {}
    for kind in kinds_of(model):
        layers, predicted = counts.get(kind, 0), model.mtp_layers * more.get(kind, 0)
        wide = precision.bf16_layers * layers + (predicted if predicts else precision.bf16_layers * predicted)
        shares[kind] = wide / (layers + predicted)
    return shares


def _all_wide(layout: Layout) -> Layout:
    wide = replace(layout.precision, products="bf16", bf16_layers=0.0, bf16_parts=None)
    return layout.with_groups(precision=wide)


@shared(most=32)
def _collectives(cluster: Cluster, calibration: NetworkCalibration) -> Collectives:
    return Collectives(FabricModel(cluster, calibration))


def _prediction_gemms(model: Model, layout: Layout, gpu: Gpu, cal: Calibration) -> LayerGemms:
    inner, columns = prediction_matrix(model).shard(layout.parallel.tp)
    op = LinearOp(name="prediction_in", columns=columns, inner=inner)
    wide = "prediction" in parts_of_text(layout.precision.bf16_parts)
    precision = "bf16" if wide else layout.precision.products
    return LayerGemms([op], layout, gpu, cal, precision=precision, frozen=model.frozen)
