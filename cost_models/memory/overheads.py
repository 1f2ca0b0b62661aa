"""What a training stack keeps in GPU memory beside the tensors that training itself needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hdpsim.cost_models.reading.checked import Amount, Checked, Share

GIB = 2.0**30

RotaryTables = Literal["none", "shared", "layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverheads(Checked):
    """Buffers and copies of a training process. The defaults are a lean stack: fused kernels, contiguous buffers.

    Attributes:
        cuda_context_bytes: driver and kernels of the process.
        library_bytes: workspaces of matrix and attention libraries (32 MiB a stream), autograd.
        nccl_bytes_per_group: buffers of one communicator.
        fragmentation_share: share of activations and buffers that the allocator loses.
        activation_factor: kept activations over derived ones, for what no other entry names.
        logit_bytes: bytes per logit: output of the projection, softmax, gradient.
        selective_share: share of a layer's tensors that selective recomputation keeps; None = what the layout's shares
            of recomputation do not repeat, so that time and memory agree.
        selective_keeps: the tensors that selective recomputation keeps by name beside the layer's input; None = by
            share.
        unfused_copies: operations run one by one: each keeps its own input.
        norms_in_32_bits: norms by root mean squares are computed in 32 bits by kernels of their own, which keep their
            input in 32 bits and what they normalised in 16 (Hugging Face's layers).
        autocast: weights have 32 bits until a product casts them (PyTorch's autocast), and with the embedding table the
            residual stream has; so have gathered weights where shards of 32 bits are the only ones.
        keys_values_kept: keys and values of every layer stay until the backward ends, whatever is computed again
            (`use_cache` of transformers' models under a wrapper of checkpoints that is not their own).
        rotary_tables: sines and cosines of the whole sequence that stay, whatever part of it the GPU holds: none, those
            that all layers share, or those of every layer.
        ring_steps_kept: a ring (cp_kind: ring) keeps keys and values, output and log-sum-exp of every step until its
            forward ends (Transformer Engine).
        sixteen_bit_shards: weights cut over all ranks (zero3) are kept in 16 bits beside the optimizer's in 32; off
            where the 32-bit shards are the only ones and are cast whenever they are gathered (PyTorch's FSDP).
        gathered_parameters: so many parameters stay gathered where the backward begins, since it soon needs them again
            (zero3: DeepSpeed); at least two layers are there anyway.
        gradients_freed: no gradient is there between steps (PyTorch's zero_grad sets them to None). In a step of one
            micro-batch they then grow while its activations go.
        bucket_bytes: bytes per parameter of the buckets in which data-parallel ranks reduce gradients, beside the
            gradients.
        bucket_buffer_bytes: buffers in which several ranks reduce gradients or gather weights, as large for any model;
            a pipeline has them at the end of a step alone.
        loose_gradient_bytes: bytes per parameter of the layer (or head) at work, gradients not yet added up.
        gather_buffer_bytes: bytes per parameter for the staging of the new weights that ZeRO-1 gathers at the end of
            the step.
        second_gradient_bytes: bytes per parameter of gradients as a backward puts them out, kept beside those that they
            are added to (DeepSpeed's optimizer for bf16). Whole gradients only: none, zero1.
        update_copy_bytes: bytes per parameter whose optimizer states the GPU holds, of what the optimizer's step makes
            of them for a moment (PyTorch's Adam without `fused`, DeepSpeed's gradients in 32 bits).
        update_parameters: of so many parameters at a time; 0: of all of them.
        update_in_one_piece: these copies are single tensors. No block that activations left is large enough for one, so
            the allocator asks the driver for more, where there is more.
        cached_logit_bytes: bytes per logit that the loss has freed and that nothing later fits into: the allocator
            holds on to them, where there is room. What it loses of such logits is given back as well.
        eight_bit_copy_bytes: bytes per matrix weight of 8-bit copies beside the 16-bit weights: 2 where both layouts
            are kept, 0 where the 8-bit weights are the only ones (masters are with the optimizer).
        host_run_ahead: the host queues work faster than the GPU finishes it, and what a communication stream still
            reads cannot be reused: short-lived tensors pile up, and a full memory makes the host wait (PyTorch's
            `record_stream`).
    """

    cuda_context_bytes: Amount = 0.5 * GIB  # 0.47 GiB measured on A100 with lazy loading (0.92 eager)
    library_bytes: Amount = 0.25 * GIB  # estimate
    nccl_bytes_per_group: Amount = 0.3 * GIB  # 16 channels x 2 directions x 9.2 MiB (NCCL 2.30 buffer sizes)
    fragmentation_share: Share = 0.05  # 3-10 % reported with PyTorch
    activation_factor: Amount = 1.0
    logit_bytes: Amount = 6.0  # bf16 output of the projection 2, fp32 softmax and then its gradient 4
    selective_share: Share | None = None
    selective_keeps: tuple[str, ...] | None = None
    unfused_copies: bool = False
    norms_in_32_bits: bool = False
    autocast: bool = False
    keys_values_kept: bool = False
    rotary_tables: RotaryTables = "none"
    ring_steps_kept: bool = False
    sixteen_bit_shards: bool = True
    gathered_parameters: Amount = 0.0
    gradients_freed: bool = False
    bucket_bytes: Amount = 0.0
    bucket_buffer_bytes: Amount = 0.0
    loose_gradient_bytes: Amount = 0.0
    gather_buffer_bytes: Amount = 0.0
    second_gradient_bytes: Amount = 0.0
    update_copy_bytes: Amount = 0.0
    update_parameters: Amount = 0.0
    update_in_one_piece: bool = False
    cached_logit_bytes: Amount = 0.0
    eight_bit_copy_bytes: Amount = 2.0  # row- and column-wise copies: Transformer Engine on Hopper
    host_run_ahead: bool = False


LEAN = MemoryOverheads()
