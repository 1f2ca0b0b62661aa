"""Parameters sharded over ranks (ZeRO-3, FSDP, HSDP): what their traffic, layer by layer, adds to compute.

Of ZeRO-2 that sums gradients in every backward (DeepSpeed, runtime/zero/stage_1_and_2.py,
reduce_ready_partitions_and_remove_grads: where gradients are partitioned, at every micro-batch) the reductions alone.
Of ZeRO-3 whose gradients add up whole (PyTorch's FSDP under no_sync) the gathers alone.

A *unit* is what is gathered and reduced at once: a layer, or the embedding and output projection. While a unit
computes, the next one is gathered and the one before is reduced (prefetch of one unit).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layer.recomputation import repeats
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ShardCopies
from hdpsim.cost_models.network.collectives import Collectives, GroupShape
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import (
    LayerKind,
    MatrixShard,
    as_layer,
    kinds_of,
    layer_shards,
    layer_tensors,
)
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents, kind_shard, vocabulary_shard
from hdpsim.errors import InfeasibleError

# read and write; PyTorch fully_shard, split_with_sizes_copy of foreach_all_gather_copy_out
COPY_OUT_BYTES = 2 * BF16_BYTES

ByKind = dict[LayerKind, Floats]
"""[n] by kind of layer."""


def copy_in_bytes(copies: ShardCopies, gradient_bytes: int, cal: Calibration) -> float:
    """Traffic for each gradient between the kernel that computed it and the collective that sums it.

        both:       copied (read 2 B, write it as it is summed)
        buckets:    copied into a bucket (read 2 B, write it as it is summed), put into the order of ranks, and divided
                    (each reads and writes it)
        gradients:  joined into the flat gradient (read 2 B, write 2 B), cast where it is not summed in 16 bits (as
                    above), divided before the sum (read and write it)

    Counted: what changes the type as cast_factor times its bytes.
    Source: PyTorch, fully_shard/_fsdp_collectives.py (foreach_reduce_scatter_copy_in, on the stream of the compute or
    waited for by it); fsdp/_flat_param.py (parameters are a split of the flat one, whose backward is a cat),
    fsdp/_runtime_utils.py (_post_backward_hook: cast; _reduce_grad: _div_if_needed by the predivide factor, above 1 for
    any group). DeepSpeed, runtime/zero/stage3.py (__add_grad_to_ipg_bucket), runtime/comm/coalesced_collectives.py
    (reduce_scatter_coalesced).
    """
    if copies == "none":
        return 0.0
    summed_in_16_bits = gradient_bytes == BF16_BYTES
    copied = 2.0 * BF16_BYTES if summed_in_16_bits else (BF16_BYTES + gradient_bytes) * cal.cast_factor
    if copies == "gradients":
        return 2 * BF16_BYTES + copied * (not summed_in_16_bits) + 2 * gradient_bytes
    return copied + 4 * gradient_bytes * (copies == "buckets")


def overlapped_s(compute_s: Floats, transfer_s: Floats | float, slowdown: float) -> Floats:
    """Time of compute and a collective started together, on the same GPU.

        t = max(transfer, compute + slowdown x transfer)

    While the collective runs, its thread blocks and memory traffic leave compute 1 - slowdown of its rate; the
    collective itself is not slowed (its blocks are scheduled first).
    Limits: nothing to transfer, the compute alone; slowdown 0, the longer of the two; slowdown 1, their sum.
    Source: derivation; the slowdown is measured, see overlap_slowdown in the calibration.
    """
    return np.maximum(transfer_s, compute_s + slowdown * np.asarray(transfer_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroups:
    """Who shares the shards of a GPU's parameters, and who holds copies of the same shard."""

    shard: GroupShape
    replicas: GroupShape | None

    @classmethod
    def of(cls, layout: Layout, collectives: Collectives, members: int, stride: int) -> ShardGroups:
        """Groups of *members* GPUs that lie *stride* apart and hold the same parameters.

        layout.shard_ranks of them, neighbours, share one copy (HSDP); None = all.
        """
        within = layout.sharding.ranks
        if within is None or within >= members:
            return cls(shard=collectives.group(members, stride=stride), replicas=None)
        if members % within:
            raise InfeasibleError(
                f"layout.shard_ranks = {within} does not divide the {members} ranks that hold the same parameters"
            )
        return cls(
            shard=collectives.group(within, stride=stride),
            replicas=collectives.group(members // within, stride=stride * within),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTraffic:
    """Collectives of one unit, seconds, with the copies around them."""

    gather_s: float = 0.0
    copy_out_s: float = 0.0
    """From the buffer of the gather to the parameters, before the unit's first kernel, and what the host needs for
    lists: nothing runs beside it."""
    reduce_s: float = 0.0
    copy_in_s: float = 0.0
    """From the gradients to the buffer of the reduction: kernels that take the whole GPU, on whatever stream; and
    lists."""
    gathered_bytes: float = 0.0
    """What a GPU sends to other nodes in the gather."""
    reduced_bytes: float = 0.0

    def gathered(self, times: float) -> UnitTraffic:
        """Return the traffic of a unit that gathers its parameters so many times."""
        return replace(
            self,
            gather_s=self.gather_s * times,
            copy_out_s=self.copy_out_s * times,
            gathered_bytes=self.gathered_bytes * times,
        )


def given_back(shards: Sequence[MatrixShard], reuse_parameters: float) -> float:
    """Share of the weights of a repeated layer's matrices, in order of its forward, that its backward gathers again.

    A tensor is given back where those used before its own backward, the ones behind it twice, have reuse_parameters.
    Source: DeepSpeed 0.3, runtime/zero/stage3.py (get_reuse_distance_in_numel, _keep_for_later); later
    partitioned_param_coordinator.py (__params_to_release). Ignored: of later releases, that what is prefetched for the
    backward while it is still there stays, so they give back less of a layer of less than 1e9.
    """
    behind = back = 0
    for shard in reversed(shards):
        tensors = shard.experts * shard.matrix.tensors
        size = shard.weights // tensors
        # of alike tensors the last ones are those that stay
        near = math.ceil((reuse_parameters / 2 - behind) / size)
        back += size * (tensors - min(tensors, max(0, near)))
        behind += shard.weights
    return back / max(1, behind)


class ShardedParameters:
    """Exposed parameter gathers and gradient reductions of a stage's forward and backward on a micro-batch."""

    def __init__(
        self, model: Model, layout: Layout, cluster: Cluster, cal: Calibration, collectives: Collectives
    ) -> None:
        self._model, self._layout, self._cal, self._gpu = model, layout, cal, cluster.gpu
        self._collectives = collectives
        self._reduces = layout.sharding.sums_layers and not model.frozen
        ranks = layout.parallel.ranks(cluster.gpus)
        spread = layout.parallel.expert_gpus
        copies = max(1, ranks * layout.parallel.tp // spread)
        self._gathers = layout.sharding.kind == "zero3"
        self._hides = layout.sharding.overlap and (self._gathers or layout.sharding.gradient_overlap)
        shards = layout.changed(shard_ranks=None) if layout.sharding.all_reduces else layout
        self._dense = ShardGroups.of(shards, collectives, ranks, layout.parallel.rank_stride)
        self._experts = ShardGroups.of(shards, collectives, copies, spread)
        self._forward, self._backward = {}, {}
        for kind in kinds_of(model):
            of_kind, moe = as_layer(model, kind)
            tensors = layer_tensors(of_kind, layout, moe=moe)
            unit = self._traffic(*kind_shard(model, layout, kind)[:2], tensors=tensors)
            self._forward[kind] = self._backward[kind] = unit
            reuse = layout.sharding.reuse_parameters
            if reuse is not None and layout.recompute.kind == "full" and repeats(layout, kind):
                gathered_again = given_back(layer_shards(of_kind, layout, moe=moe), reuse)
                self._backward[kind] = unit.gathered(1.0 + gathered_again)
        vocabulary, positions = vocabulary_shard(model, layout), model.learned_positions * model.hidden
        self._vocabulary = self._traffic(vocabulary, 0, tensors=1)
        self._embedding = self._traffic(vocabulary + positions, 0, tensors=2 if positions else 1)

    def _traffic(self, dense: int, experts: int, *, tensors: int) -> UnitTraffic:
        """The traffic of a unit with so many parameters on a GPU, in so many *tensors*."""
        gather = reduce = moved = gathered_bytes = reduced_bytes = 0.0
        for parameters, groups in ((dense, self._dense), (experts, self._experts)):
            if not parameters or groups.shard.ranks == 1:
                continue
            if self._reduces:  # of adapters next to nothing
                volume = self._layout.precision.gradient_bytes * parameters
                if self._layout.sharding.all_reduces:
                    reduce += float(self._collectives.all_reduce_s(volume, groups.shard))
                    volume *= 2
                else:
                    reduce += float(self._collectives.reduce_scatter_s(volume, groups.shard, in_place=True))
                reduced_bytes += groups.shard.sent_to_other_nodes(volume)
            moved += parameters
            if self._gathers:
                volume = BF16_BYTES * parameters
                gather += float(self._collectives.all_gather_s(volume, groups.shard, in_place=True))
                gathered_bytes += groups.shard.sent_to_other_nodes(volume)
        copies = self._layout.sharding.copies if self._gathers else "buckets"
        gradient_bytes = self._layout.precision.gradient_bytes
        copied_in = copy_in_bytes(copies, gradient_bytes, self._cal) * moved * self._reduces
        copied_out = COPY_OUT_BYTES * moved if self._gathers and copies in ("both", "buckets") else 0.0
        lists_s = self._lists_s(tensors) * self._gathers
        return UnitTraffic(
            gather_s=gather,
            copy_out_s=float(memory_bound_s(copied_out, self._gpu, self._cal)) + lists_s,
            reduce_s=reduce,
            copy_in_s=float(memory_bound_s(copied_in, self._gpu, self._cal)) + lists_s * self._reduces,
            gathered_bytes=gathered_bytes,
            reduced_bytes=reduced_bytes,
        )

    def sent(self, kind: LayerKind, layer_s: Floats, *, backward: bool) -> SentTimes | None:
        """What a GPU sends to other nodes for one layer, beside *layer_s* of compute; None: nothing."""
        unit = (self._backward if backward else self._forward)[kind]
        volume = unit.gathered_bytes + unit.reduced_bytes * backward
        if not volume:
            return None
        seconds = np.full_like(layer_s, unit.gather_s + unit.reduce_s * backward)
        rate = self._collectives.wires(self._dense.shard).nic_bytes_per_s
        beside_s = layer_s + self._cal.overlap_slowdown * seconds
        hidden_s = beside_s if self._hides else None
        return SentTimes.of_collective(seconds, np.full_like(layer_s, volume), rate, hidden_s=hidden_s)

    def backward_gathers_s(self, counts: dict[LayerKind, int]) -> float:
        """Seconds of the network for so many layers of each kind."""
        return sum(count * self._backward[kind].gather_s for kind, count in counts.items())

    @property
    def shard(self) -> GroupShape:
        """The GPUs that share one copy of a layer."""
        return self._dense.shard

    def _lists_s(self, tensors: int) -> float:
        """Host time of collectives that take a list with a tensor for every rank, one collective for each tensor.

            t = tensors x ranks x launch_s

        Counted: a view and a copy of every rank's piece, launched one by one after the GPU's queue has been drained.
        Ignored: biases and norms, which such stacks keep whole (param_persistence_threshold).
        Source: DeepSpeed before 0.6, runtime/zero/partition_parameters.py (_allgather_param: synchronize, narrow for
        every rank, all_gather of the list), stage3.py (reduce_scatter of lists); PyTorch, ProcessGroupNCCL.cpp
        (allgather, reduce_scatter: recordStream and copy_ for every tensor of the list).
        """
        ranks = self._dense.shard.ranks
        return tensors * ranks * self._cal.launch_s * (self._layout.sharding.gather_lists and ranks > 1)

    @priced("layer_gather", "layer_reduce")
    def exposed_s(
        self, kind: StageContents, layer_s: ByKind, network_s: ByKind, *, backward: bool
    ) -> tuple[Floats, Floats]:
        """[n] each: what gathers and reductions add to the forward or backward of a stage.

        *layer_s*: seconds of one layer by kind, recomputation included; *network_s*: the
        part in which it waits for NICs that gathers and reductions need, too: nothing of them hides there.

            forward:  gather of the first layer and of embedding and head
                      + all layers but one x (overlapped(compute, gather of the next) - compute)
            backward: all layers but one x (overlapped(compute, gather of the next + reduction of the last) - compute)
                      + reduction of the last layer and of embedding and head
                      + gather of the first layer, unless the head's backward hides it

        Each gather is followed by its copy-out, and each reduction preceded by its copy-in (layout.shard_copies):
        neither hides, for a product leaves no registers to other kernels on its SMs.
        Counted: one prefetched unit; gathers and reductions share the network and follow each other; embedding and
        head are not gathered again. Without overlap: every gather and every reduction.
        Ignored: traffic that another stage's waiting hides; the forward's last layer, which could stay gathered.
        Source: PyTorch FSDP notes (prefetch); FSDP, arXiv 2304.11277, section 3.3; ZeRO, arXiv 1910.02054.
        """
        counts = dict(kind.with_prediction(self._model))
        occurring = list(counts)
        sample = next(iter(layer_s.values()))
        gather, reduce = np.zeros_like(sample), np.zeros_like(sample)
        for layer_kind in occurring:
            unit, inner = (self._backward if backward else self._forward)[layer_kind], counts[layer_kind]
            # the edge layer computes before there is anything to run beside it, or transfers after the last compute
            if layer_kind == occurring[0]:
                inner -= 1
                gather += unit.gather_s * (not (backward and kind.head and self._layout.sharding.overlap))
                reduce += unit.reduce_s * backward
            gather_s, reduce_s = self._layer_exposed_s(
                unit, layer_s[layer_kind] - network_s[layer_kind], backward
            )
            gather += counts[layer_kind] * unit.copy_out_s + inner * gather_s
            reduce += counts[layer_kind] * unit.copy_in_s * backward + inner * reduce_s
        # embedding and output projection are one unit where they are tied
        tied = kind.embedding and kind.head and self._model.tied_embeddings
        units = [self._embedding] * kind.embedding + [self._vocabulary] * (kind.head and not tied)
        for unit in units:
            gather += (unit.gather_s + unit.copy_out_s) * (not backward)
            reduce += (unit.reduce_s + unit.copy_in_s) * backward
        return gather, reduce

    def _layer_exposed_s(self, unit: UnitTraffic, compute_s: Floats, backward: bool) -> tuple[Floats, Floats]:
        """[n] each: gather and reduction of one layer beyond the compute that runs beside them."""
        reduce_s = unit.reduce_s if backward else 0.0
        transfer_s = unit.gather_s + reduce_s
        if not transfer_s:
            return np.zeros_like(compute_s), np.zeros_like(compute_s)
        if not self._hides:
            return np.full_like(compute_s, unit.gather_s), np.full_like(compute_s, reduce_s)
        added_s = overlapped_s(compute_s, transfer_s, self._cal.overlap_slowdown) - compute_s
        return added_s * unit.gather_s / transfer_s, added_s * reduce_s / transfer_s
