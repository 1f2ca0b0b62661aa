"""Everything of a layer that is neither a matrix product nor attention: norms, biases, activation, routing.

Such kernels do little work per byte: they take the time of their HBM traffic. How much that is depends on how many
operations one kernel does, so this module counts passes: one element read or written, in units of 16 bits.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.casts import scale_updates_s
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.kernels.number_formats import cast_bytes
from hdpsim.cost_models.layer.attention.ulysses_and_gather import AttentionHeads
from hdpsim.cost_models.layer.experts import parts_of_a_token
from hdpsim.cost_models.layer.host_launches import BACKWARD_LAUNCHES, small_kernels
from hdpsim.cost_models.layer.mamba import mamba_kernels
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Parallel
from hdpsim.cost_models.tracing import note, priced
from hdpsim.cost_models.transformer.layers import mlp_width, parts_of, routed_width
from hdpsim.cost_models.transformer.model import Model

MASK = 0.5  # a dropout mask is one byte per element
BACKWARD_TRAFFIC = 2  # the backward of a kernel reads its inputs again beside the gradients

# Passes per element of separate kernels, forward and backward.

# One norm. LlamaRMSNorm of Hugging Face transformers: to fp32 (1 + 2), square (2 + 2), mean (2), scale by it (2 + 2),
# to 16 bits (2 + 1), weight (1 + 1). Its gradient: weight (1 + 1), to fp32 (1 + 2), scale (2 + 2), of the scale (2 + 2
# + 2, summed 2), of the mean (2), of the square (copied 2 + 2, doubled 2 + 2, times gradient 2 + 2 + 2), both summed
# (2 + 2 + 2), to 16 bits (2 + 1), and RMS_WEIGHT. Source: transformers, models/llama/modeling_llama.py; PyTorch,
# autograd/FunctionsManual.cpp (mean_backward, pow_backward).
# LayerNorm under autocast: to fp32 (1 + 2), one kernel (2 + 2), back (2 + 1); its gradient is not counted one by one.
SEPARATE_NORM = {"rms": 18.0, "layer": 10.0}
RMS_GRADIENT = 42.0
RMS_WEIGHT = 4.0  # gradient of its weight: times what it scaled (1 + 1 + 1), summed (1)
# As one kernel; backward also a second one that sums the gradient of the weight (1 + 1).
ONE_NORM, ONE_NORM_GRADIENT, ONE_NORM_WEIGHT = 2.0, 3.0, 2.0
# Rotary embedding: half negated (1), halves put together (2), times cosine (2), times sine (2), sum (3). Backward:
# times cosine and sine (2 + 2), half negated (1), both halves written into zeros (2 x 2), all summed (2 x 3).
SEPARATE_ROTARY = (10.0, 15.0)
# With a gate: activation (2), product (3). Backward: two gradients of the product (3 + 3), activation (3).
SEPARATE_ACTIVATION = {True: (5.0, 9.0), False: (2.0, 3.0)}
# Gradients of one input that several matrices read, one by one: of queries, keys and values two sums, of gate and up
# one, each of whole rows whatever the tensor parallelism, for what is summed goes to a reduction afterwards.
# Source: transformers, models/llama/modeling_llama.py (q_proj, k_proj, v_proj, gate_proj, up_proj); PyTorch,
# autograd/input_buffer.cpp (accumulate).
SUMS_OF_ATTENTION, SUMS_OF_GATE = 6.0, 3.0
# Rows copied into a padded buffer before the experts and out of one behind them.
PADDING = 4.0
# Experts as modules, forward: the common output zeroed (1), each output copied into it (2). Backward: the gradient of a
# part taken out of a copy of the whole (2) that is zeroed there (3); of the part's input, put into zeros (3) and added.
MODULES = 3.0
MODULES_BACKWARD = (2.0, 8.0)
# Experts that take their tokens by index. Forward, of their own rows: outputs times scores (2), added to rows of the
# common output (2 + 1, of which a sum of all outputs is counted as 2); of all tokens: that output zeroed (1).
# Backward, of their own rows: gradients of scores, products and their sum (3 + 2 + 1), gradients through gate and up
# projection added (3), written into (3, of which 2 are counted); of all tokens and for each expert: zeros (1) and their
# sum with what other experts made (3).
INDEXED, INDEXED_BACKWARD = 3.0, 10.0
INDEXED_OF_ALL, INDEXED_OF_ALL_BACKWARD = 1.0, 4.0

# Operations that a stack leaves to PyTorch are kernels of their own. They load and store whole vectors where all
# operands are contiguous and of one type. Views of part of a tensor, operands that are broadcast, and operands of two
# types go element by element, with an index calculated for each (aten/src/ATen/native/cuda/CUDALoops.cuh:
# launch_vectorized_kernel against launch_unrolled_kernel and launch_legacy_kernel).

# Rate of such kernels over that of vectorised ones, H200, 16 bits, PyTorch 2.9: a broadcast bias 0.62 of 1.39 TB/s,
# a PReLU with a broadcast slope 1.18 against a leaky ReLU's 2.57 TB/s (tile-ai/TileOPs, pull requests 537 and 500).
STRIDED_RATE = 0.45


class Passes(NamedTuple):
    """Elements of 16 bits that an operation reads and writes, per element of its tensor."""

    vectorised: float
    strided: float

    @property
    def at_full_rate(self) -> float:
        """Passes of vectorised kernels that take as long."""
        return self.vectorised + self.strided / STRIDED_RATE


class EagerPasses(NamedTuple):
    """Passes of an operation and of its gradient."""

    forward: Passes
    backward: Passes


# Per element of an expert's width. Forward: two halves, views of one tensor, clamped (1 + 1 each), put together again
# (2 + 2). Backward: of the half with one limit a comparison (1 + 1/2), of the other two (3) and their conjunction (3 x
# 1/2), a choice by mask each (1/2 + 1 + 1); both halves put together (2 + 2).
# Source: Megatron-Core, fusions/fused_bias_geglu.py (weighted_bias_quick_geglu_impl); PyTorch, clamp_backward.
CLAMPS = EagerPasses(forward=Passes(4.0, 4.0), backward=Passes(5.5, 9.5))

# Per element of an expert's output, fp32 being two passes. Forward: bias times routing weights (write 2), sum with the
# output (1 + 2 + 2), outputs of all experts put together (2 + 2), to 16 bits (2 + 1). Backward: to fp32 (1 + 2), to 16
# bits for the output (2 + 1), times weights (2 + 2) and summed over rows (2), times bias (2 + 2) and summed over
# columns (2), outputs of all experts put together (1 + 1).
# Source: Megatron-Core, transformer/moe/experts.py (_apply_bias).
EXPERT_BIAS = EagerPasses(forward=Passes(7.0, 7.0), backward=Passes(9.0, 11.0))

# Per element of queries and keys. Forward: half of them negated (1), halves put together (2), times cosine (2), times
# sine (2), sum (3), what was not turned put behind (2). Backward: times cosine and sine (2 + 2), half negated (1),
# halves put together (2), both ways summed (3), slices written into zeros (1 + 2, 1) and summed (3).
# Source: Megatron-Core, models/common/embeddings/rope_utils.py (_apply_rotary_pos_emb_bshd).
SCALED_ROTARY = EagerPasses(forward=Passes(5.0, 7.0), backward=Passes(10.0, 7.0))

# The same of the part of latent queries that turns, whose even and odd elements are put apart before (2); backward
# each of the two is written into zeros (1 + 1) and both are summed (3).
LATENT_ROTARY = EagerPasses(
    forward=SCALED_ROTARY.forward._replace(strided=SCALED_ROTARY.forward.strided + 2.0),
    backward=Passes(SCALED_ROTARY.backward.vectorised + 5.0, SCALED_ROTARY.backward.strided + 2.0),
)

# Per element of latent queries, keys and values. Forward: what turns put behind what does not (2), values copied out of
# what they share with keys (2). Backward: gradients of the parts put together (2).
# Source: Megatron-Core, transformer/multi_latent_attention.py (qkv_up_proj_and_rope_apply).
LATENT_HEADS = EagerPasses(forward=Passes(0.0, 2.0), backward=Passes(0.0, 2.0))

# Per element that attention in MXFP8 reads: transposed to [batch, heads, tokens, width] (1 + 1), then cast along rows
# and columns. Source: NVIDIA/TransformerEngine, pull request 2719 (multi_tensor_transpose_to_bhsd,
# mxfp8_quantize_fast_path); kernels/number_formats.py.
NARROW_ATTENTION = Passes(2.0 + cast_bytes("mxfp8") / BF16_BYTES, 0.0)
NOTHING = Passes(0.0, 0.0)

# Per element of an expert's width where the router's scores weigh gated activations. A score's gradient sums gradient
# times activation over a row: gradient, gate and input are read again (3), for the activation's own gradient has twice
# as many elements, and a compiler joins a sum only with operations on as many. Without a gate it is one kernel.
# Source: Megatron-Core, fusions/fused_bias_swiglu.py and fused_bias_geglu.py (weighted_swiglu_back,
# weighted_quick_geglu_back, with torch.compile); PyTorch, _inductor/codegen/simd.py (can_fuse).
SCORES = EagerPasses(forward=NOTHING, backward=Passes(3.0, 0.0))


class SmallKernels:
    """Passes over memory of one layer kind ('dense' or 'moe') on one GPU of a layout.

    Per token of a rank, t = tp, S = t with sequence parallelism, else 1 (h hidden, f MLP width, w = heads x dim):
        fused     passes x [ norms 2 x 2 h / S + adds 2 x (3 + mask) h / S + rotary 2 (a + g) d / t
                             + activation 3 f / t (2 f without gate) + norms of queries and keys 2 (a + g) d / t ]
        separate  norms 2 x n h / S + outputs 2 x (3 + bias 2 + dropout 2 + mask) h / S + rotary 10 (a + g) d / t
                  + activation (5 with a gate, 2 without, + bias 2) f / t + norms of queries and keys n (a + g) d / t
                  n = 18 (RMSNorm), 10 (LayerNorm), 2 (fused_norms); gradients: see SEPARATE_NORM to
                  SEPARATE_ACTIVATION, outputs 2 x (3 + bias 1 + dropout 2 + mask); with LayerNorm twice the forward;
                  with matrices_apart 9 h more (_sums_of_gradients)
        Mamba-2   convolution, scan and gated norm: mamba.mamba_kernels
        experts   routing 4 k h / t + 4 etp k h / t with several experts on a GPU of an expert-parallel group (GPUs that
                  share experts hold all their tokens when they sort them); with ep = 1 4 etp k h / t (they gather
                  tokens before they copy them);
                  fused dispatch 2 (k + u) h / t, u the GPUs that a token visits
        PyTorch   clamps and gradients of scores of k f / t, biases of k h / t (none where expert_kernels are fused), a
                  scaled rotary embedding of (a + g) d / t, with latent attention of a r / t in queries of n + r, keys
                  of n + r and values of v put together, a (2 (n + r) + v) / t: passes of CLAMPS to SCORES, forward and
                  backward apart
        MXFP8     attention: casts of queries, keys and values, backward of their output's gradient (NARROW_ATTENTION)

    One norm in a parallel block, whose sum of three needs one kernel. With recompute_small_kernels the backward runs
    norms, activation and clamps of the forward again.
    expert_padding with narrow products 4 etp k h / t in both directions; experts as modules 3 etp k h / t, backward
    (2 + 8 experts of a GPU) etp k h / t; by index (3 k + 1) etp h / t, backward (10 k + 4 experts of a GPU) etp h / t.
    Every kernel starts up and drains on the device besides (kernel_tail_s; twice as many in the backward).
    Separate updates of delayed scales: so many kernels in each pass, whatever the tokens (scale_updates).
    Counted: every kernel reads and writes its tensors once, the mask of a dropout, twice as much in the backward
    (with lean_gradients what each gradient needs; as much for routing: the way back of a copy is a copy). Routing:
    tokens are gathered for their experts, sorted by expert where they arrive and back where they leave, outputs summed
    by weight; fused dispatch copies what arrives, once per GPU, for each expert and sums on the way back.
    Ignored: statistics of norms, tables of the rotary embedding, random numbers, scores of the router.
    Fused experts clamp, weigh and add biases in the epilogues of their products (cuDNN frontend, grouped_gemm_glu);
    activation and casts stay kernels here: what epilogues save of their traffic, the products lose to longer epilogues
    (64 experts in MXFP8 on a GB200, 262,144 rows, 2,560 x 1,280, forward and backward: 8.8 ms fused, marin-community,
    marin, issue 7282; here 9.5).
    Source: derivation; *passes* (casts, a separate rotary embedding) calibrated. SequentialMLP, fp8_padding and
    fp8_unpadding: Megatron-Core, transformer/moe/experts.py; by index: transformers 4, MixtralSparseMoeBlock.forward
    (models/mixtral). One layer on H100 (Megatron-LM, moe_perf/baseline.json): 32,768 rows of 7,168 take 0.6 ms forward
    and 0.7 backward longer with DeepEP, which leaves padding to copies, than with HybridEP, which pads as it sends:
    here 0.6.
    """

    def __init__(self, model: Model, layout: Layout, gpu: Gpu, cal: Calibration, *, moe: bool) -> None:
        self._gpu, self._cal = gpu, cal
        self._work_s = (0.0, 0.0)  # of the SMs per token, beside the traffic: forward, backward
        share = cal.small_kernel_passes if layout.kernels.fused else 1.0
        repeated, unrepeated = (_fused_passes if layout.kernels.fused else _separate_passes)(
            model, layout, moe
        )
        fused = share * (repeated + unrepeated)
        clamps, scores, biases = _expert_widths(model, layout) if moe else (0.0, 0.0, 0.0)
        eager = [(CLAMPS, clamps), (SCORES, scores), (EXPERT_BIAS, biases), *_eager_rotary(model, layout)]
        eager += _attention_casts(model, layout)
        self.passes = fused + sum(kind.forward.at_full_rate * width for kind, width in eager)
        lean = layout.kernels.fused and layout.kernels.lean_gradients
        if lean:
            gradients = share * _lean_gradients(model, layout, moe)
        elif layout.kernels.fused or model.norm == "layer":
            gradients = BACKWARD_TRAFFIC * fused
        else:
            gradients = _separate_gradients(model, layout, moe)
        if not layout.kernels.fused:
            gradients += _sums_of_gradients(model, layout, moe)
        self.passes_backward = gradients + sum(kind.backward.at_full_rate * width for kind, width in eager)
        if parts_of(model).mamba:
            both = [mamba_kernels(model, layout, backward=side) for side in (False, True)]
            self.passes += both[0].passes
            self.passes_backward += both[1].passes
            self._work_s = (both[0].work_s(gpu, cal), both[1].work_s(gpu, cal))
        self.routing_passes, self.routing_passes_backward = _routing(model, layout) if moe else (0.0, 0.0)
        repeats = layout.recompute.kind == "selective" and layout.recompute.small_kernels
        self.repeated_passes = share * repeated + CLAMPS.forward.at_full_rate * clamps if repeats else 0.0
        self.kernels = small_kernels(model, layout, moe=moe)
        self._scales_s = scale_updates_s(layout)

    @priced("small_kernels")
    def seconds(self, tokens: Floats, *, backward: bool) -> Floats:
        """Forward or backward of all of them, for a rank's *tokens*."""
        note(passes=self.passes, routing_passes=self.routing_passes, kernels=self.kernels)
        passes, kernels = self.passes + self.routing_passes, self.kernels
        if backward:
            kernels = BACKWARD_LAUNCHES * kernels
            passes = self.passes_backward + self.routing_passes_backward + self.repeated_passes
        tails_s = np.where(tokens > 0, kernels * self._cal.kernel_tail_s + self._scales_s, 0.0)
        traffic_s = memory_bound_s(BF16_BYTES * passes * tokens, self._gpu, self._cal)
        return traffic_s + self._work_s[backward] * tokens + tails_s


def _fused_passes(model: Model, layout: Layout, moe: bool) -> tuple[float, float]:
    """Passes of norms and activation, and of the rest."""
    blocks = 1 if model.parallel_block else parts_of(model).blocks
    mask = MASK if model.dropout else 0.0
    width = model.hidden / residual_shards(layout)
    activation = (3 if model.gated_mlp else 2) * _width(model, moe) / layout.parallel.tp
    rest = blocks * (3 + mask) * width + 2 * _rotated(model, layout)
    return blocks * 2 * width + activation + 2 * _normalised(model, layout), rest


def _lean_gradients(model: Model, layout: Layout, moe: bool) -> float:
    """Passes of the backward where a kernel reads only what it needs.

    Norm: gradient and input, and writes (3). Fork of the residual: two gradients summed (3). Dropout: gradient and
    mask, and writes (2 + mask). Activation: gradient, input and what it writes (1 + 2 + 2 with a gate, 1 + 1 + 1
    without). Rotary embedding: as forward (2).
    Ignored: partial sums of the norms' weights.
    Source: Transformer Engine, common/normalization/rmsnorm/rmsnorm_bwd_kernels.cuh, common/fused_rope, common/util/
    vectorized_pointwise.h (dgated_act_kernel); Megatron-Core, fusions/fused_bias_swiglu.py (swiglu_back).
    """
    forks = parts_of(model).blocks  # of a parallel block the residual and the output of its one norm
    norms = 1 if model.parallel_block else forks
    dropout = (2 + MASK) * model.dropout
    activation = (5 if model.gated_mlp else 3) * _width(model, moe) / layout.parallel.tp
    stream = (3 * forks + (3 + dropout) * norms) * model.hidden / residual_shards(layout)
    return stream + activation + 2 * _rotated(model, layout) + 3 * _normalised(model, layout)


def _separate_passes(model: Model, layout: Layout, moe: bool) -> tuple[float, float]:
    """Forward passes of norms and activation, and of the rest, where each operation is a kernel of its own."""
    parts = parts_of(model)
    blocks = 1 if model.parallel_block else parts.blocks
    output = 3 + (2 if model.biases else 0) + (2 + MASK if model.dropout else 0)
    width = model.hidden / residual_shards(layout)
    norm = ONE_NORM if layout.kernels.fused_norms else SEPARATE_NORM[model.norm]
    norms = blocks * norm * width + norm * _normalised(model, layout)
    activation_passes = SEPARATE_ACTIVATION[model.gated_mlp][0] + (2 if model.biases else 0)
    activation = activation_passes * _width(model, moe) / layout.parallel.tp
    # a parallel block adds attention, MLP and residual: two additions, each with its bias
    return norms + activation, parts.blocks * output * width + SEPARATE_ROTARY[0] * _rotated(model, layout)


def _separate_gradients(model: Model, layout: Layout, moe: bool) -> float:
    """Passes of the backward where each operation and each gradient is a kernel of its own.

    The sum of a residual has no kernel there, the fork before it has one (3).
    """
    parts = parts_of(model)
    blocks = 1 if model.parallel_block else parts.blocks
    output = 3 + (1 if model.biases else 0) + (2 + MASK if model.dropout else 0)
    width = model.hidden / residual_shards(layout)
    one = layout.kernels.fused_norms
    norm, of_weight = (ONE_NORM_GRADIENT, ONE_NORM_WEIGHT) if one else (RMS_GRADIENT, RMS_WEIGHT)
    norm += 0.0 if model.frozen else of_weight
    norms = blocks * norm * width + norm * _normalised(model, layout)
    activation_passes = SEPARATE_ACTIVATION[model.gated_mlp][1] + (1 if model.biases else 0)
    activation = activation_passes * _width(model, moe) / layout.parallel.tp
    return norms + activation + parts.blocks * output * width + SEPARATE_ROTARY[1] * _rotated(model, layout)


def _sums_of_gradients(model: Model, layout: Layout, moe: bool) -> float:
    """Passes that sum gradients of one input, 9 h with a gate, of experts 6 h + 3 k h / t (SUMS_OF_ATTENTION)."""
    if not layout.kernels.matrices_apart:
        return 0.0
    copies = model.top_k / layout.parallel.tp if moe else 1.0
    sums = SUMS_OF_ATTENTION * parts_of(model).attention + SUMS_OF_GATE * copies * model.gated_mlp
    return sums * model.hidden


def _rotated(model: Model, layout: Layout) -> float:
    """Elements of queries and keys that the rotary embedding turns."""
    if model.learned_positions or model.scaled_rotary or not parts_of(model).attention:
        return 0.0
    return _queries_and_keys(model, layout.parallel)


def _eager_rotary(model: Model, layout: Layout) -> list[tuple[EagerPasses, float]]:
    """Operations of a rotary embedding that no fused kernel does, and the elements of each."""
    if not model.scaled_rotary or not parts_of(model).attention:
        return []
    latent, heads = model.latent_attention, model.heads / layout.parallel.tp
    if latent is None:
        return [(SCALED_ROTARY, _queries_and_keys(model, layout.parallel))]
    head_width = 2 * model.query_dim + model.value_dim
    return [(LATENT_ROTARY, heads * latent.qk_rope_head_dim), (LATENT_HEADS, heads * head_width)]


def _attention_casts(model: Model, layout: Layout) -> list[tuple[EagerPasses, float]]:
    """Casts around attention of narrow operands, and the elements of each direction."""
    if layout.kernels.attention != "mxfp8" or not parts_of(model).attention:
        return []
    heads = AttentionHeads.of(model, layout)
    read = heads.heads * heads.query_dim + heads.kv_heads * (heads.query_dim + heads.value_dim)
    return [
        (EagerPasses(NARROW_ATTENTION, NOTHING), read),
        (EagerPasses(NOTHING, NARROW_ATTENTION), heads.heads * heads.value_dim),
    ]


def _normalised(model: Model, layout: Layout) -> float:
    """Elements of queries and keys that norms of their own scale."""
    return _queries_and_keys(model, layout.parallel) if model.qk_norm and parts_of(model).attention else 0.0


def _queries_and_keys(model: Model, parallel: Parallel) -> float:
    return (model.heads + model.kv_heads) * model.head_dim / parallel.tp


def _width(model: Model, moe: bool) -> int:
    """Inner elements of the MLP (or of the experts) that a token passes."""
    return mlp_width(model, moe=moe) + routed_width(model, moe=moe)


def _expert_widths(model: Model, layout: Layout) -> tuple[float, float, float]:
    """Elements of routed experts that are clamped, gated and weighed by scores, added to biases; none if fused."""
    if layout.experts.kernels == "fused":
        return 0.0, 0.0, 0.0
    copies = model.top_k / layout.parallel.tp
    weighed = model.gated_mlp and layout.experts.weights == "activations"
    return (
        copies * model.ffn_hidden * model.clamped_activation,
        copies * model.ffn_hidden * weighed,
        copies * model.routed_hidden * model.expert_biases,
    )


def _routing(model: Model, layout: Layout) -> tuple[float, float]:
    """A token's way to its experts and back, forward and backward."""
    copies, held = float(model.top_k), float(model.top_k) * layout.parallel.expert_cut
    if layout.experts.dispatch == "fused" and layout.parallel.ep > 1:
        passes = 2.0 * (copies + parts_of_a_token(model, layout.parallel.ep, in_turn=layout.experts.in_turn))
    else:
        # Without an all-to-all the tokens of all that share experts
        copied = held if layout.parallel.ep == 1 else copies
        passes = 4.0 * copied + (4.0 * held if 1 < layout.parallel.ep < model.experts else 0.0)
    if layout.experts.padding and layout.precision.products != "bf16":
        passes += PADDING * held
    forward = backward = passes
    match layout.experts.kernels:
        case "modules":
            fixed_passes, passes_of_an_expert = MODULES_BACKWARD
            forward += MODULES * held
            of_all = passes_of_an_expert * max(1, model.experts // layout.parallel.ep)
            backward += (fixed_passes + of_all) * held
        case "indexed":
            everything = held / model.top_k
            forward += INDEXED * held + INDEXED_OF_ALL * everything
            of_all = INDEXED_OF_ALL_BACKWARD * max(1, model.experts // layout.parallel.ep)
            backward += INDEXED_BACKWARD * held + of_all * everything
        case "grouped" | "separate" | "fused":
            pass
        case _:
            assert_never(layout.experts.kernels)
    width = model.routed_hidden / layout.parallel.tp
    return forward * width, backward * width


def residual_shards(layout: Layout) -> int:
    """GPUs over which the residual stream of a rank is spread."""
    return layout.parallel.tp if layout.tensor.sequence_parallel else 1
