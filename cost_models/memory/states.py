"""Bytes of weights, gradients and optimizer states on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from hdpsim.cost_models.layer.adapters import trained_per_gpu
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout_checks import check_layout
from hdpsim.cost_models.memory.overheads import LEAN, MemoryOverheads
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu

WEIGHT_BYTES = 2.0  # bf16 weights: Megatron-Core distributed optimizer, 18 B per parameter in all
MOMENTS_ALONE = 4  # bytes per parameter of the optimizer's states: as many and fewer hold no 32-bit weights
_LEVEL = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Weights, gradients and optimizer states of one GPU."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Whole weights and gradients of the layers at work when they are sharded (ZeRO-2 and -3)."""
    on_host: float = 0.0
    """Optimizer states kept in host memory instead."""
    update: float = 0.0
    """Staging of the optimizer step, when no activations are there."""
    step_gradients: float = 0.0
    """Gradients that are there in the optimizer's step."""

    @property
    def total(self) -> float:
        """All states on the GPU while layers run."""
        return self.weights + self.gradients + self.optimizer + self.gathered


@lru_cache(maxsize=1024)
def state_bytes(
    model: Model, layout: Layout, ranks: int, stage: int, overheads: MemoryOverheads = LEAN
) -> StateBytes:
    """Weights, gradients and optimizer states on each GPU of a stage.

        bytes per parameter: weights 2, gradients 4 (or 2), optimizer optimizer_bytes (12); d = ranks that share a copy
        none 18 | zero1 2 + 4 + 12/d | zero2 2 + 16/d (+ one whole layer's gradients)
        zero3 18/d (+ two whole layers' weights, or gathered_parameters, and one's gradients while they are at work);
        16/d where shards have 32 bits alone (sixteen_bit_shards off: gathered weights are copies, whatever d), and so
        have their gradients, in whatever they are summed; with whole_gradients 4 + 18/d, or 4 + 14/d with
        gradients_freed: gradients of shards come when whole ones go

    d is at most shard_ranks. With optimizer_offload the optimizer's part is on the host.
    Expert parameters have fewer copies: d = ranks x tp / GPUs of one copy. fp8 may keep 8-bit copies of the matrices.
    Of a frozen model only adapters (beside its weights) have gradients and optimizer states.
    *overheads* add gradient buckets, gradients not yet added up, gradients beside those that they are added to, and the
    staging of the update.
    Source: arXiv 1910.02054; Megatron-Core's distributed optimizer (6 + 12/d); PyTorch FSDP prefetching one layer, and
    gradients of shards in the type of the parameters (distributed/fsdp/_runtime_utils.py, _cast_grad_to_param_dtype;
    _fully_shard/_fsdp_collectives.py, foreach_reduce).
    """
    check_layout(model, layout, ranks)
    shard = parameters_per_gpu(model, layout, stage)
    copies: float = ranks
    expert_copies = ranks * layout.parallel.tp / layout.parallel.expert_gpus
    if layout.sharding.ranks is not None:
        copies, expert_copies = min(copies, layout.sharding.ranks), min(expert_copies, layout.sharding.ranks)
    level = _LEVEL[layout.sharding.kind]

    def spread(needed: int) -> float:
        """Parameters whose state of that ZeRO level is on this GPU."""
        return shard.dense / copies + shard.experts / expert_copies if level >= needed else float(shard.total)

    reduced = ranks > 1
    trained = trained_per_gpu(model, layout, stage).total / shard.total if model.frozen else 1.0
    unit, pair = (min(units * shard.largest_unit, shard.total) for units in (1, 2))
    gathered_weights = max(float(pair), min(overheads.gathered_parameters, shard.total))
    unit_spread = unit * (1.0 - 1.0 / copies)
    weights_spread = gathered_weights * (1.0 - 1.0 / copies)
    gathered = layout.precision.gradient_bytes * trained * unit_spread if level >= 2 else 0.0
    if level >= 3:
        wide = overheads.autocast and not overheads.sixteen_bit_shards
        as_gathered = 2.0 * WEIGHT_BYTES if wide else WEIGHT_BYTES
        gathered += as_gathered * (weights_spread if overheads.sixteen_bit_shards else gathered_weights)
    eight_bit = 0.0
    if layout.precision.products != "bf16" and level < 3:
        eight_bit = overheads.eight_bit_copy_bytes * (1.0 - layout.precision.bf16_layers) * shard.matrices
    buckets = overheads.bucket_bytes * shard.total if reduced and level < 2 else 0.0
    loose = overheads.loose_gradient_bytes * unit
    second = overheads.second_gradient_bytes * shard.total if level < 2 else 0.0
    optimizer = trained * layout.precision.optimizer_bytes * spread(1)
    moments_alone = layout.precision.optimizer_bytes <= MOMENTS_ALONE
    own_type = level >= 3 and not overheads.sixteen_bit_shards  # shards, and so their gradients
    in_optimizer = own_type and not (moments_alone or model.frozen)
    of_shards = (2.0 if moments_alone else 4.0) if own_type else float(layout.precision.gradient_bytes)
    # of one rank the shards are the whole
    whole = float(shard.total) if layout.sharding.whole_gradients and level >= 3 and reduced else 0.0
    of_step = of_shards * spread(2)
    summed = 0.0 if whole and overheads.gradients_freed else of_step
    kept = 0.0 if in_optimizer else WEIGHT_BYTES
    if own_type and model.frozen and overheads.autocast:
        kept = 2.0 * WEIGHT_BYTES
    update = overheads.gather_buffer_bytes * shard.total if reduced and level == 1 else 0.0
    if not layout.sharding.optimizer_offload:
        update += overheads.update_copy_bytes * min(spread(1), overheads.update_parameters or math.inf)
    return StateBytes(
        weights=kept * spread(3) * (1.0 + trained * model.frozen) + eight_bit,
        gradients=trained * (summed + layout.precision.gradient_bytes * whole + buckets + loose + second),
        optimizer=0.0 if layout.sharding.optimizer_offload else optimizer,
        gathered=gathered,
        on_host=optimizer if layout.sharding.optimizer_offload else 0.0,
        update=trained * update,
        step_gradients=trained * (of_step + buckets + second),
    )
