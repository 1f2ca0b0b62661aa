"""The cost of micro-batches of segments on every kind of pipeline stage, forward and backward, term by term."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.kernels.casts import maxima_s
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.gradient_accumulation import accumulation_s
from hdpsim.cost_models.layer.host_launches import pass_host_s
from hdpsim.cost_models.layer.micro_batches import Groups, MicroBatches
from hdpsim.cost_models.layer.output_head import loss_average_s
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layer.recomputation import repeated_share, repeats
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind
from hdpsim.cost_models.step.layer_prices import TERM_ROWS, TERMS, HeadTerms, LayerTerms, layer_prices
from hdpsim.cost_models.step.offloading import Offloading, alike_for_offload
from hdpsim.cost_models.step.sharded_parameters import ShardedParameters
from hdpsim.cost_models.step.stage_links import StageChain, stage_kinds, stage_links
from hdpsim.cost_models.step.step_costs import MeetsAfter, StepSums
from hdpsim.cost_models.step.step_traffic import HOST_KINDS, Traffic, TrafficKind
from hdpsim.cost_models.tracing import priced, remembered
from hdpsim.cost_models.transformer.layers import LayerKind
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.values_read import changed

# Not linear; recomputation repeats them
_REPEATED = frozenset({"attention", "ring_merge", "ring_wait", "host"})
_NOT_LINEAR = _REPEATED | {"layer_gather", "layer_reduce"}

_TRAFFIC_OF_CONTEXT: dict[ContextParallelKind, TrafficKind]
_TRAFFIC_OF_CONTEXT = {"ring": "ring", "ulysses": "spread", "disaggregated": "spread"}
# Of the host work of a micro-batch (forward and backward pass), the part before the first kernel of one pass: half of
# one of two. Assumed.
RESTART_SHARE = 0.25


class MicroBatchCost:
    """Costs of one model under one layout on one cluster: built once, asked for any micro-batches."""

    def __init__(self, model: Model, layout: Layout, cluster: Cluster, cal: Calibration) -> None:
        node = cluster.node
        untuned = cal.arm_untuned_factor if layout.host.untuned_for_arm else 1.0
        cal = _on_hosts(cal, node.host_time * (cal.arm_host_factor * untuned if node.arm_host else 1.0))
        self.model, self.layout, self.cluster, self.cal = model, layout, cluster, cal
        self._layers = layer_prices(model, layout.of_layers, cluster, cal)
        self.collectives, self.attention = self._layers.collectives, self._layers.attention
        self.fabric = self.collectives.fabric
        self.offloading = Offloading(model, layout, cluster, cal)
        shards = (model, layout, cluster, cal, self.collectives)
        self._sharded = ShardedParameters(*shards) if layout.sharding.by_layer else None
        self.kinds, self.kind = stage_kinds(model, layout.of_stages)
        self._counts = [dict(kind.with_prediction(model)) for kind in self.kinds]
        self._repeats = np.array([repeated_share(layout, name) for name in TERMS])  # [T]: of the forward
        self._repeating = bool(self._repeats.any())

        nothing = np.zeros(len(TERMS))
        self._repeats_of = {kind: self._repeats if repeats(layout, kind) else nothing for kind in LayerKind}
        attending = {kind for counts in self._counts for kind in counts if kind.attends}
        repeats_attention = layout.recompute.layers == "all" or any(kind.has_experts for kind in attending)
        self._attention_repeats = self._repeats if repeats_attention else nothing
        self._layer_columns = {
            kind: np.array([counts.get(kind, 0) for counts in self._counts], dtype=np.float64)[:, None]
            for kind in LayerKind
            if any(counts.get(kind, 0) for counts in self._counts)
        }  # [K, 1] by kind of layer
        self._heads = np.array([kind.head * (1.0 + model.mtp_layers) for kind in self.kinds])[:, None]
        self._of_passes: dict[bool, Floats] = {}
        self.step_sums: dict[int, StepSums] = {}  # by ranks, filled by step_costs

    def terms_s(self, batches: MicroBatches, *, backward: bool) -> Floats:
        """[T, K, n]: seconds of every term, kind of stage and micro-batch."""
        # The forward matters to a backward that repeats it.
        both = (backward and self._repeating) or self.layout.experts.overlap
        layers = self._layers.terms_s(batches, (False, True) if both else (backward,))
        heads = self._layers.heads_s(batches.tokens_per_rank, (backward,))
        return self._stage_terms(batches, layers, heads, backward=backward)

    def both_terms_s(
        self, batches: MicroBatches, priced: tuple[LayerTerms, HeadTerms] | None = None
    ) -> tuple[Floats, Floats]:
        """Price forward and backward at once, each as terms_s does.

        *priced*: what a layer and a head take, if that is known.
        """
        sides = (False, True)
        if priced is None:
            heads = self._layers.heads_s(batches.tokens_per_rank, sides)
            priced = self._layers.terms_s(batches, sides), heads
        forward, backward = (self._stage_terms(batches, *priced, backward=side) for side in sides)
        return forward, backward

    def weight_terms_s(self, batches: MicroBatches) -> Floats:
        """[T, K, n]: the part of the backward that is weight gradients of matrix products.

        Ignored: launches, which stay with the input gradient; what running the two apart costs.
        """
        tokens = batches.tokens_per_rank
        out = np.zeros((len(TERMS), len(self.kinds), batches.count))
        for layer_kind, counts in self._layer_columns.items():
            out[TERM_ROWS["gemm"]] += counts * self._layers.weight_gradient_s(tokens, layer_kind)
        out[TERM_ROWS["logits"]] += self._heads * self._layers.head.weight_gradient_s(tokens)
        for row, kind in enumerate(self.kinds):
            prediction = self._layers.prediction
            if kind.mtp_layers and prediction is not None:
                out[TERM_ROWS["gemm"], row] += kind.mtp_layers * prediction.weight_gradient_s(tokens)
        return out

    def _stage_terms(
        self, batches: MicroBatches, layers: LayerTerms, heads: HeadTerms, *, backward: bool
    ) -> Floats:
        """[T, K, n] from the terms of one layer of each kind and of a head."""
        tokens = batches.tokens_per_rank
        out = np.zeros((len(TERMS), len(self.kinds), batches.count))
        # A multi-token-prediction layer costs its layers (one of the usual kind), its input's projection and a head.
        for number, (layer_kind, counts) in enumerate(self._layer_columns.items()):
            if number:
                out += counts * layers[layer_kind, backward][:, None]
            else:  # of thousands of micro-batches a sum takes longer
                np.multiply(counts, layers[layer_kind, backward][:, None], out=out)
            if backward and self._repeating:
                out[TERM_ROWS["recompute"]] += counts * (
                    self._repeats_of[layer_kind] @ layers[layer_kind, False]
                )
        overlapped = None if self._sharded is None else self._beside_shards_s(batches, layers, backward)
        offloads, prediction = batches.offload_ratio.any(), self._layers.prediction
        for row, kind in enumerate(self.kinds):
            if offloads:
                out[TERM_ROWS["offload_wait"], row] += self.offloading.wait_s(batches, layers, kind, backward)
            if self._sharded is not None and overlapped is not None:
                exposed = self._sharded.exposed_s(kind, *overlapped, backward=backward)
                out[TERM_ROWS["layer_gather"], row], out[TERM_ROWS["layer_reduce"], row] = exposed
            if kind.mtp_layers and prediction is not None:
                out[TERM_ROWS["gemm"], row] += kind.mtp_layers * prediction.seconds(tokens, backward=backward)
            if kind.embedding and not (backward and self.model.frozen):
                out[TERM_ROWS["small_kernels"], row] += self._embedding_s(tokens, backward=backward)
        out[TERM_ROWS["logits"]] += self._heads * heads[backward]
        # What is nothing needs no explanation.
        if backward and self.layout.kernels.gradient_accumulation != "fused":
            out[TERM_ROWS["small_kernels"]] += remembered(self._of_passes, True, self._pass_times)
        if self.layout.precision.blocking_maxima:
            out[TERM_ROWS["tp_communication"]] += remembered(self._of_passes, False, self._pass_times)
        if not backward and self.layout.sharding.loss_average != "step":
            out[TERM_ROWS["logits"]] += (self._heads > 0) * self.loss_average_s
        out[TERM_ROWS["host"]] += self.pass_s
        return out

    @property
    def loss_average_s(self) -> float:
        """What averaging the loss over all ranks adds to every micro-batch."""
        return loss_average_s(self.layout, self.collectives)

    @property
    def meets_after(self) -> MeetsAfter:
        """When all ranks of a stage wait for each other; see StepCosts. Not played in DualPipe's pairs."""
        if self.layout.pipeline.schedule == "dualpipe":
            return "step"
        several = self.layout.parallel.ranks(self.collectives.fabric.cluster.gpus) > 1
        maxima = several and self.layout.precision.blocking_maxima  # what is nothing needs no explanation
        if maxima and any(maxima_s(self.layout, self.collectives, kind.layers) for kind in self.kinds):
            return "pass"
        sums = several and self.layout.sharding.sums_layers and self.layout.sharding.kind == "zero2"
        return "loss" if sums or self.loss_average_s > 0.0 else "step"

    def _pass_times(self, sums: bool) -> Floats:
        """[K, 1], whatever the tokens: a backward's *sums* of gradients, or agreement on maxima in a pass."""
        gpu, cal, layout = self.cluster.gpu, self.cal, self.layout
        times = [
            accumulation_s(self.model, layout, kind, gpu, cal)
            if sums
            else maxima_s(layout, self.collectives, kind.layers)
            for kind in self.kinds
        ]
        return np.array(times, dtype=np.float64)[:, None]

    def _compute_s(self, layers: LayerTerms, backward: bool) -> dict[LayerKind, Floats]:
        """[n] by kind of layer: everything a layer does on a micro-batch, recomputation included."""
        by_kind = {kind: rows.sum(axis=0) for (kind, side), rows in layers.items() if side == backward}
        if backward and self._repeating:
            by_kind = {one: s + self._repeats_of[one] @ layers[one, False] for one, s in by_kind.items()}
        return by_kind

    def _beside_shards_s(
        self, batches: MicroBatches, layers: LayerTerms, backward: bool
    ) -> tuple[dict[LayerKind, Floats], dict[LayerKind, Floats]]:
        """[n] by kind of layer, recomputation included: all it does, and what of that keeps the NICs busy itself."""
        far = np.zeros((len(TERMS), batches.count))
        if self._sharded is not None and self._sharded.shard.nodes > 1:
            far[TERM_ROWS["ring_wait"]] = batches.tier > 0
            parallel = self.layout.parallel
            experts = self.collectives.group(parallel.ep, stride=parallel.expert_cut)
            far[TERM_ROWS["expert_all_to_all"]] = experts.nodes > 1
        on_network = {key: rows * far for key, rows in layers.items()}
        return self._compute_s(layers, backward), self._compute_s(on_network, backward)

    @priced("small_kernels")
    def _embedding_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Rows of all tokens looked up in the embedding table, and their gradients added to it.

            elements x h of a token    forward  2 (read, write)    backward  2, with tensor parallelism 4

        A tensor-parallel rank looks up the tokens of other ranks, too, and sets what it found to zero: it reads 1 / tp
        of the rows, and writes all and those 1 - 1 / tp again. Backward it copies the gradients before it does so.
        Ignored: the lookup's indices, and that rows of zeros are all added to the first row of the table.
        Source: Megatron-Core, tensor_parallel/layers.py (VocabParallelEmbedding).
        """
        copied = 2.0 if backward and self.layout.parallel.tp > 1 else 0.0
        volume = (2.0 + copied) * BF16_BYTES * self.model.hidden * tokens
        return memory_bound_s(volume, self.cluster.gpu, self.cal)

    @priced("wait_pipeline")
    def transfer_s(self, batches: MicroBatches, ranks: int) -> Floats:
        """[n]: activations of a micro-batch from one stage to the next: 2 B x tokens x h / tp per GPU.

            t = latency + bytes / link, mean over the links of the rank whose stages are farthest apart

        Counted: all *ranks* send at the same time; of a block's flows those share its up-links that leave it.
        Blocking transfers (pp_overlap off) drain the GPU's queue: what the host does for the next pass until its first
        kernel starts shows as well. Interleaved stages exchange once after a forward and a backward, so two transfers
        share a restart. Ignored: one of its own in every pass while the pipeline fills and drains.
        Source: Megatron-LM of 2023, megatron/p2p_communication.py (torch.cuda.synchronize after every batch of
        transfers), schedules.py (send_forward_backward_recv_forward_backward).
        """
        if self.layout.parallel.pp == 1:
            return np.zeros(batches.count)
        restart_s = 0.0 if self.layout.pipeline.overlap else RESTART_SHARE * self.cal.micro_batch_fixed_s
        if self.layout.pipeline.schedule == "interleaved":
            restart_s /= 2.0
        latency_s, byte_s = stage_links(self.fabric, StageChain.of(self.layout, ranks))
        return np.asarray(latency_s + restart_s + self._transfer_bytes(batches) * byte_s)

    def _transfer_bytes(self, batches: MicroBatches) -> Floats:
        return np.asarray(BF16_BYTES * self.model.hidden / self.layout.parallel.tp * batches.tokens_per_rank)

    def traffic(self, batches: MicroBatches) -> tuple[Traffic, ...]:
        """What forwards and backwards of these micro-batches send to other nodes and hosts, recomputation included."""
        tokens = batches.tokens_per_rank
        layers = self._layers.terms_s(batches, (False, True))
        rows: list[Traffic] = []

        def add(
            kind: TrafficKind, backward: bool, term: str, counts: list[int], sent: SentTimes, repeats: Floats
        ) -> None:
            times = np.array(counts, dtype=np.float64)[:, None] * sent.times
            if not (times * sent.sent_bytes).any():
                return
            row = TERM_ROWS[term]
            rows.append(Traffic(kind=kind, backward=backward, term=row, times=times, sent=sent))
            repeated = 0.0 if backward or kind in HOST_KINDS else float(repeats[row])
            if repeated:
                recompute_row = TERM_ROWS["recompute"]
                rows.append(
                    Traffic(kind=kind, backward=True, term=recompute_row, times=repeated * times, sent=sent)
                )

        attending = [sum(count for kind, count in counts.items() if kind.attends) for counts in self._counts]
        scanning = [counts.get(LayerKind.MAMBA, 0) for counts in self._counts]
        for backward in (False, True) if (batches.group_size > 1).any() else ():
            if any(attending):
                sent = self._layers.attention_sent(batches, backward=backward)
                context = _TRAFFIC_OF_CONTEXT.get(self.layout.context.kind, "exchange")
                add(context, backward, "ring_wait", attending, sent, self._attention_repeats)
            exchanged = self._layers.mamba_sent(batches) if any(scanning) else None
            if exchanged is not None:
                repeats = self._repeats_of[LayerKind.MAMBA]
                add("spread", backward, "ring_wait", scanning, exchanged, repeats)
        terms = {"tensor": "tp_communication", "experts": "expert_all_to_all"}
        shown = "layer_gather" if self.layout.sharding.kind == "zero3" else "layer_reduce"
        for layer_kind in self._layer_columns:
            counts = [by_kind.get(layer_kind, 0) for by_kind in self._counts]
            for kind, backward, sent in self._layers.linear_sent(tokens, layers, layer_kind):
                add(kind, backward, terms[kind], counts, sent, self._repeats_of[layer_kind])
            for backward in (False, True):
                if self._sharded is not None:
                    compute_s = self._compute_s(layers, backward)[layer_kind]
                    shards = self._sharded.sent(layer_kind, compute_s, backward=backward)
                    if shards is not None:
                        add("shards", backward, shown, counts, shards, self._repeats_of[layer_kind])
        if batches.offload_ratio.any():
            for alike in alike_for_offload(self.kinds):
                moving = [kind.offloading_layers * (kind in alike) for kind in self.kinds]
                if any(moving):
                    both: tuple[tuple[TrafficKind, bool], ...] = (("offload", False), ("fetch", True))
                    for what, backward in both:
                        moved = self.offloading.sent(batches, alike[0], layers, backward=backward)
                        add(what, backward, "offload_wait", moving, moved, self._repeats)
        return tuple(rows)

    def transfer_traffic(self, batches: MicroBatches, ranks: int) -> tuple[Floats, Floats]:
        """[n] each: bytes that a GPU sends to the next stage, and what of transfer_s does not depend on the rate."""
        if self.layout.parallel.pp == 1:
            return np.zeros(batches.count), np.zeros(batches.count)
        _, byte_s = stage_links(self.fabric, StageChain.of(self.layout, ranks))
        volume = self._transfer_bytes(batches)
        return volume, np.asarray(self.transfer_s(batches, ranks) - volume * byte_s)

    @property
    def visited(self) -> Ints:
        """[S, V]: kinds of the chunks that a micro-batch passes: all, but one of DualPipe's two copies."""
        return self.kind[:, : self.layout.pipeline.vpp]

    def by_stage(self, per_kind: Floats) -> Floats:
        """[S, ...]: what a micro-batch adds to every stage, all its chunks together, from [K, ...].

        DualPipe's micro-batches come from both ends in turn, and each visits one of a stage's two copies: their mean.
        """
        turns = self.kind.shape[1] / self.layout.pipeline.vpp
        return np.asarray(per_kind[self.kind].sum(axis=1) / turns)

    @cached_property
    def busiest_layers(self) -> int:
        """Layers of the stage that holds most (all its chunks together)."""
        return int(self.layers_by_stage.max())

    @cached_property
    def busiest_attention_layers(self) -> int:
        """Layers with attention of the stage that holds most of them."""
        return int(self.attention_layers_by_stage.max())

    def busy_s(self, batches: MicroBatches) -> Floats:
        """[n]: forward + backward of each micro-batch on the stage it keeps busiest."""
        if batches.count > 1 and batches.alike:
            return np.repeat(self.busy_s(batches.first), batches.count)
        forward, backward = self.both_terms_s(batches)
        return np.asarray(self.by_stage(forward.sum(axis=0) + backward.sum(axis=0)).max(axis=0))

    def sequence_s(
        self,
        lengths: ArrayLike,
        group_size: ArrayLike,
        tier: ArrayLike,
        *,
        least: bool = False,
        waits: bool = True,
    ) -> Floats:
        """Attention of one sequence (forward + backward) on the busiest stage, per rank of its group.

        *least*: at the least, whatever is in its pack (SegmentAttention.least_step_s); sizes of groups ascend.
        Without *waits*: what hides transfers, in a pack those of other sequences, too.
        Ignored: what a group exchanges for Mamba-2 layers, which its micro-batch pays.
        Recomputation repeats each part as it does in a micro-batch: scores computed again need no second ring forward,
        since the ring of the backward brings keys and values anyway.
        """
        tokens = np.asarray(lengths, dtype=np.float64)
        sizes = np.asarray(group_size, dtype=np.float64)
        groups = Groups(tokens / sizes, sizes, np.asarray(tier, dtype=np.int64))
        total = np.zeros(np.broadcast(tokens, sizes).shape)
        rows = [TERM_ROWS[name] for name in ("attention", "ring_merge", "ring_wait")]
        repeats = self._attention_repeats[rows].tolist()
        in_rings, segments = sizes > 1.0, self.attention.segments
        for backward in (False, True):
            kernels, merges, waited = (1.0 if backward else 1.0 + repeat for repeat in repeats)
            ring_s: ArrayLike = 0.0
            alone_s: ArrayLike = 0.0
            if in_rings.any():  # most callers ask of groups, or of single ranks
                price = segments.least_step_s if least else segments.ring_step_s
                step_s = price(tokens, sizes, backward=backward)
                ring = self.attention.ring(step_s, groups, backward=backward)
                ring_s = kernels * ring.attention + merges * ring.merge + waits * waited * ring.wait
            if not in_rings.all():
                alone_s = kernels * segments.alone_s(tokens, backward=backward)
            total = total + np.where(in_rings, ring_s, alone_s)
        return total * self.busiest_attention_layers

    def least_attention_s(self, lengths: ArrayLike) -> Floats:
        """[n]: rank-seconds of one layer's attention of whole sequences on the group that takes fewest, both ways.

        Counted: the kernels. Ignored: transfers, exchanges and merging of partial outputs, which larger groups add; so
        do they add tiles that are partly empty. One rank or two: short blocks of a ring can have the shorter ramp.
        """
        tokens = np.asarray(lengths, dtype=np.float64)
        total = np.zeros(tokens.shape)
        forwards = 1.0 + float(self._attention_repeats[TERM_ROWS["attention"]])
        for backward, passes in ((False, forwards), (True, 1.0)):
            alone_s = self.attention.segments.alone_s(tokens, backward=backward)
            pair_s = 4.0 * self.attention.segments.ring_step_s(tokens, 2.0, backward=backward)
            total = total + passes * np.minimum(alone_s, pair_s)
        return total

    def linear_s(self, tokens_per_rank: ArrayLike) -> Floats:
        """[S, n]: everything linear in tokens on every stage, for micro-batches of one rank; see linear_by_kind_s."""
        return self.by_stage(self.linear_by_kind_s(tokens_per_rank))

    def linear_by_kind_s(
        self, tokens_per_rank: ArrayLike, *, without: Collection[str] = (), weight_gradients: bool = True
    ) -> Floats:
        """[K, n]: everything linear in tokens on a virtual stage of every kind, for micro-batches of one rank.

        Forward, backward and recomputation; no attention and no host time, recomputed or not; no terms *without*.
        """
        batches = MicroBatches.single(np.asarray(tokens_per_rank, dtype=np.int64))
        table = self._layers.table_s(batches.segment_tokens) if batches.count > 1 else None
        forward, backward = self.both_terms_s(batches, table)
        linear = [row for name, row in TERM_ROWS.items() if name not in _NOT_LINEAR and name not in without]
        total = forward[linear].sum(axis=0) + backward[linear].sum(axis=0)
        repeated = [TERM_ROWS[name] for name in _REPEATED]
        if self._repeating and self.layout.recompute.layers == "all":
            repeated_s = np.einsum("t,tkn->kn", self._repeats[repeated], forward[repeated])
            fixed_s = self.pass_s  # in "host", but not a layer's
            total -= repeated_s - self._repeats[TERM_ROWS["host"]] * fixed_s
        elif self._repeating:
            layers = self._layers.terms_s(batches, (False,))
            for layer_kind, counts in self._layer_columns.items():
                total -= counts * (
                    self._repeats_of[layer_kind][repeated] @ layers[layer_kind, False][repeated]
                )
        if not weight_gradients:
            total -= self.weight_terms_s(batches).sum(axis=0)
        return np.asarray(total)

    def token_s(self, tokens_per_rank: float) -> float:
        """Everything linear in tokens (forward + backward) on the busiest stage, per token of a rank; no host time."""
        return float(self.linear_s([int(tokens_per_rank)]).max() / tokens_per_rank)

    @property
    def backward_gathers_s(self) -> Floats:
        """[S]: how long gathers of sharded layers keep the network busy in a backward."""
        if self._sharded is None:
            return np.zeros(len(self.visited))
        of_kinds = [self._sharded.backward_gathers_s(counts) for counts in self._counts]
        return np.asarray(np.array(of_kinds)[self.visited].sum(axis=1))

    @cached_property
    def layers_by_stage(self) -> Ints:
        """[S]: transformer layers that a micro-batch passes on every stage (all its chunks together)."""
        return np.asarray(np.array([kind.layers for kind in self.kinds])[self.visited].sum(axis=1))

    @cached_property
    def attention_layers_by_stage(self) -> Ints:
        """[S]: those of them that have attention."""
        layers = np.array([kind.attention_layers for kind in self.kinds])
        return np.asarray(layers[self.visited].sum(axis=1))

    @property
    def floor_s(self) -> float:
        """Least time of a micro-batch (forward + backward) on the busiest stage: its layers cannot run faster."""
        return float(self.by_stage(self.floor_by_kind_s).max())

    @property
    def floor_by_kind_s(self) -> Floats:
        """[K]: the same on a virtual stage of every kind."""

        def layer_s(kind: LayerKind) -> float:
            forward_s, backward_s = (self._layers.host_s(kind, backward=side) for side in (False, True))
            forwards = 1.0 + self._repeats_of[kind][TERM_ROWS["host"]]
            return float(forwards * forward_s + backward_s)

        by_kind = [sum(count * layer_s(kind) for kind, count in counts.items()) for counts in self._counts]
        return np.array(by_kind, dtype=np.float64)

    @property
    def pass_s(self) -> float:
        """Host work around one pass, forward or backward, of a virtual stage."""
        return pass_host_s(self.layout, self.cal)


@lru_cache(maxsize=64)
def _on_hosts(cal: Calibration, host_time: float) -> Calibration:
    """The calibration with the launches of hosts that take so many times as long."""
    if host_time == 1.0:
        return cal
    names = ("launch_s", "expert_launch_s", "expert_loop_s", "module_hook_s")
    return changed(cal, **{name: getattr(cal, name) * host_time for name in names})
