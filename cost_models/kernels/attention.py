"""How long attention kernels take: flash attention of all ages, the scores of before it, and what GPUs idle in them.

A rate is datasheet peak x calibrated efficiency x shape factors. Around it stand the last, partly filled wave of a
kernel, and thread blocks that find nothing to do.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.gemm import gemm_s, memory_bound_s
from hdpsim.cost_models.kernels.number_formats import power_slowdown
from hdpsim.cost_models.layout.switches import AttentionKernel
from hdpsim.cost_models.tracing import priced

# 5 matmuls against 2: Dao, FlashAttention-2, arXiv 2307.08691, section 4.1
ATTENTION_BACKWARD_FLOP_RATIO = 2.5
REFERENCE_HEAD_DIM = 128.0  # attention efficiencies are stated for this head dimension
# Share of what an attention kernel does beside matrix work that is exponentials: what the doubled ones of Blackwell
# Ultra gain. cuDNN 9.18, dimension 128, 4,096 to 32,768 causal tokens: GB300 over GB200 1.20 to 1.30 times the
# forward's rate, 1.08 to 1.09 the backward's (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results,
# *_918_only_cudnn); forwards of three engines on B300 over B200: 1.17 to 1.27 (ai-dynamo/aiconfigurator).
FORWARD_EXPONENTIALS, BACKWARD_EXPONENTIALS = 0.53, 0.32

FLASH1_HEAD_DIMS = (32, 64, 128)
"""FlashAttention 1.0.9, fmha_api.cpp: run_fmha_fwd and run_fmha_bwd choose among kernels of these."""
FLASH1_NARROW = 1.33
"""Its rate over FlashAttention-2's with heads of up to 64, over the same with wider ones.

It takes 256 keys at a time, not 128 (fmha_fwd_hdim64.cu, fmha_fwd_hdim128.cu).
Source: figures of FlashAttention-2 (forward and backward, 1,024 tokens and more): 0.54 to 0.66 with heads of 64, 0.41
to 0.47 with heads of 128, on A100 and on H100, causal or not (Dao-AILab/flash-attention, assets)."""


TRITON_HEAD_DIMS = (16, 32, 64, 128)
"""Dao-AILab/flash-attention, flash_attn_triton.py (BLOCK_HEADDIM: the next power of two)."""
TRITON_SLOWDOWN = (1.4, 2.0)
"""Of FlashAttention in Triton beside FlashAttention-2, forward and backward: "around 1.3-1.5x" and "around 2x" on A100,
arXiv 2307.08691, section 4.1."""


class KernelRate(NamedTuple):
    """An older attention kernel, or one in 8 bits, beside the generation's best.

    FlashAttention-2 does matrix work more slowly; what a row of tiles costs besides, and an exponential, is the same,
    so that in units of its matrix work both half values shrink by the rate. FlashAttention of 2022 lets the warps of a
    tile exchange results in every part of its work (arXiv 2307.08691, section 3.3), so its ramp is FlashAttention-2's.
    cuDNN's of 2025 loses in the backward of heads of 192 and 128 alone, whose five accumulators tensor memory cannot
    hold: 768 columns for tiles of 128 x 128, of 512 (640 with heads of 128, two of which take turns).
    In MXFP8 matrix work is faster and the rest as slow, so both half values grow. cuDNN's backward in 8 bits visits
    all keys before a query, whatever the window: 2.07 ms with 4,096 tokens, 107 with 32,768, where 16 bits take 0.46
    and 3.6 (GB200, window 128; NVIDIA/cudnn-frontend, sdpa_benchmark_training/results/gpt_oss, May 2026).
    """

    forward: float = 1.0
    """Rate of long sequences."""
    backward: float = 1.0
    ramp: float = 1.0
    """Half lengths over the best kernel's."""
    head_dims: tuple[int, ...] = ()
    """Head dimensions that it was compiled for; others are filled up to the next. None: any is as good."""
    descending: bool = True
    """A causal backward deals out blocks of keys, longest first (see with_last_wave): not whole heads, or either."""
    windowed_backward: bool = True
    """A backward skips keys beyond a sliding window."""

    @classmethod
    def of(
        cls, kernel: AttentionKernel, cal: Calibration, head_dim: float = REFERENCE_HEAD_DIM
    ) -> KernelRate:
        """The kernel of that name in a layout; unfused attention has none, and asks for no rate."""
        flash2 = cal.flash2_rate
        match kernel:
            case "flash1":
                first = cal.flash1_rate * (FLASH1_NARROW if head_dim <= 64 else 1.0)
                return cls(first, first, flash2, FLASH1_HEAD_DIMS, descending=False)
            case "flash2":
                return cls(flash2, flash2, flash2)
            case "triton":
                forward, backward = (flash2 / slowdown for slowdown in TRITON_SLOWDOWN)
                return cls(forward, backward, flash2, TRITON_HEAD_DIMS, descending=False)
            case "mxfp8":
                forward, backward = cal.mxfp8_attention_rate, cal.mxfp8_attention_backward_rate
                return cls(forward, backward, forward, windowed_backward=False)
            case "cudnn2025":
                return cls(backward=cal.cudnn2025_rate if head_dim > REFERENCE_HEAD_DIM else 1.0)
            case "flash" | "unfused":
                return BEST_KERNEL
            case _:
                assert_never(kernel)

    def rate_of(self, *, backward: bool) -> float:
        """Rate of long sequences in a direction."""
        return self.backward if backward else self.forward

    def filled(self, head_dim: float) -> float:
        """The head dimension that the kernel works with."""
        return next((float(dim) for dim in self.head_dims if dim >= head_dim), head_dim)


BEST_KERNEL = KernelRate()


@priced()
def attention_rate_flop_per_s(
    tokens: ArrayLike,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    head_dim: float = REFERENCE_HEAD_DIM,
    causal: bool = True,
    kernel: KernelRate = BEST_KERNEL,
) -> Floats:
    """Rate of flash attention at full clock on sequences of *tokens* tokens (infinity: the long-sequence rate).

        rate = peak * e * q * s / (s + p s_half) * g(d) / g(128),   g(d) = d / (d + q d_half [/ 2.5 backward])
        x times the exponentials: d_half in g(d), not in g(128), shrinks to 1 - share (1 - 1 / x)

    Counted: the ramp with sequence length (few tiles, masked half-tiles on the diagonal), longer in the backward;
    exponentials, whose number does not depend on the head dimension d while the matrix work does, and as many in
    the backward, which has 2.5 times the matrix work; a slower *kernel* of rate q and ramp p, see KernelRate; work on
    what fills a head up to a dimension that the kernel knows (rate x d / filled d, g of the filled d); GPUs with faster
    exponentials than the calibrated ones (not older kernels).
    Ignored: number of heads (see attention_s), the power limit (see power_slowdown).
    Source: shape of the published FlashAttention-2/3 curves (Dao-AILab/flash-attention); constants calibrated; NVIDIA,
    "Making Softmax More Efficient with NVIDIA Blackwell Ultra".
    """
    length = np.asarray(tokens, dtype=np.float64)
    efficiency = cal.attention_backward_efficiency if backward else cal.attention_forward_efficiency
    half = cal.attention_half_tokens if causal else cal.attention_block_half_tokens
    if backward:
        half *= cal.attention_backward_ramp
    half *= kernel.ramp
    slower = kernel.rate_of(backward=backward)
    dim_half = cal.attention_half_head_dim * slower
    if backward:
        dim_half /= ATTENTION_BACKWARD_FLOP_RATIO
    share = BACKWARD_EXPONENTIALS if backward else FORWARD_EXPONENTIALS
    faster = 1.0 - share * (1.0 - 1.0 / gpu.exponentials) if slower >= 1.0 else 1.0
    filled = kernel.filled(head_dim)
    dims = head_dim / (filled + dim_half * faster) * (REFERENCE_HEAD_DIM + dim_half) / REFERENCE_HEAD_DIM
    with np.errstate(divide="ignore"):
        return np.asarray(gpu.bf16_flop_per_s * efficiency * slower * dims / (1.0 + half / length))


def attention_s(
    sequences: ArrayLike,
    tokens: ArrayLike,
    heads: ArrayLike,
    head_dim: float,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool = False,
    causal: bool = True,
    kernel: KernelRate = BEST_KERNEL,
    surrounding_bytes: ArrayLike = 0.0,
    burst: bool = False,
) -> Floats:
    """One flash-attention kernel on *sequences* equal sequences: what kernel benchmarks measure.

        t = tail + with_last_wave(w) / rate(s) + bytes / (hbm * e_hbm)
        w = 4 b h s^2 d [/ 2 causal] [x 2.5 backward]

    Counted: the ramp with length; the last, partly filled wave; clocks under the power limit (of a *burst* in part).
    *surrounding_bytes*: HBM traffic of what a benchmark times along, such as writing a key-value cache.
    Ignored: grouped keys and values (they change memory traffic, which is not the limit).
    Source: attention_rate_flop_per_s; arXiv 2307.08691, section 3.2 (work partitioning).
    """
    length = np.asarray(tokens, dtype=np.float64)
    rate = attention_rate_flop_per_s(
        length, gpu, cal, backward=backward, head_dim=head_dim, causal=causal, kernel=kernel
    )
    share = (0.5 if causal else 1.0) * (ATTENTION_BACKWARD_FLOP_RATIO if backward else 1.0)
    pairs = np.asarray(sequences) * np.asarray(heads) * length**2 * share
    row = (ATTENTION_BACKWARD_FLOP_RATIO if backward else 1.0) * length
    keys = kernel.descending * length
    waves = with_last_wave(pairs, row, keys, gpu, cal, backward=backward, causal=causal)
    busy_s = 4.0 * head_dim * waves / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = 4.0 * head_dim * pairs / busy_s
    slowdown = power_slowdown(rate, cal.bf16_joule_per_flop, gpu, cal)
    busy_s = busy_s * (slowdown**cal.burst_power_share if burst else slowdown)
    return np.asarray(busy_s + cal.kernel_tail_s + memory_bound_s(surrounding_bytes, gpu, cal))


BACKWARD_TILE_TOKENS = 128.0  # blocks of keys of the FlashAttention-2 and -3 backwards


def with_last_wave(
    work: ArrayLike,
    longest_row: ArrayLike,
    keys: ArrayLike,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    causal: ArrayLike,
) -> Floats:
    """*work* of a kernel with what SMs idle at its end, in its own unit (seconds, or pairs of queries and keys).

        longest = SMs x rows of a tile x longest row                    every SM works on a longest tile
        t       = max( work + idle x longest, longest )
        idle    = a share of the calibration's
                  causal backward: x min( 1, factor (1 - tiles of a head / (2 SMs)) ), 0 at least

    *longest_row*: the query of one head that meets most keys, with all of them; *keys* of its sequence, 0 where tiles
    are no blocks of keys.
    Counted: tiles that go out head by head leave each SM idle for half of a longest tile (0.5 to 0.6 when such a list
    is played on 108 and 148 SMs), with the longest tiles first for a tenth; no kernel ends before a longest tile. Tiles
    of a causal backward are blocks of keys: the first meets all queries, so every head ends with its shortest
    (attention_backward_tail_factor).
    Limits: many heads or sequences, work; one head of one sequence on more SMs than it has tiles, a longest tile.
    Ignored: two blocks that share an SM (they end later: 0.7 to 1.1 when played), kernels on other streams that run in
    the gap.
    Source: arXiv 2307.08691, section 3.2 (work partitioning: blocks of heads x sequences x rows of tiles);
    Dao-AILab/flash-attention, csrc/flash_attn/src/flash_bwd_kernel.h (n_block, m_block_min).
    """
    tile_tokens = cal.attention_tile_tokens
    if backward:
        tile_tokens = min(tile_tokens, BACKWARD_TILE_TOKENS)
    longest = gpu.sm_count * tile_tokens * np.asarray(longest_row, dtype=np.float64)
    of_causal = np.asarray(cal.attention_backward_tail if backward else cal.attention_forward_tail)
    if backward:
        tiles = np.asarray(keys, dtype=np.float64) / tile_tokens
        of_causal = of_causal * np.clip(
            cal.attention_backward_tail_factor * (1.0 - tiles / (2.0 * gpu.sm_count)), 0.0, 1.0
        )
    idle = np.where(causal, of_causal, cal.attention_forward_tail)
    return np.asarray(np.maximum(np.asarray(work) + idle * longest, longest))


# Bytes per score outside the matrix products (those read or write 2 B each), forward and backward.
# One kernel for scale, mask and softmax in 16 bits: read 2, write 2; backward reads two tensors, writes one.
# Separate kernels (Megatron-LM, fused_softmax.py, forward_torch_softmax): to fp32 (2 + 4), scale, mask, softmax (4 + 4
# each), to 16 bits (4 + 2); backward: as many, and the softmax reads its output too.
SCORE_BYTES = {True: (4.0, 6.0), False: (36.0, 40.0)}
# Dropout: read 2, write 2 and a mask of 1; backward: read 2 and 1, write 2.
DROPOUT_BYTES = 5.0


def unfused_attention_s(
    queries: ArrayLike,
    keys: ArrayLike,
    heads: float,
    query_dim: float,
    value_dim: float,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    fused_softmax: bool = True,
    dropout: bool = False,
) -> Floats:
    """Scores of *queries* x *keys* tokens for all *heads* of a GPU, softmax, product with the values.

        forward  = Q K' + P V                 as batched GEMMs (a, s, s, d), their HBM traffic of 2 B per score included
                   + a s^2 x (softmax 4 B [+ dropout 5 B]) / HBM
        backward = dV = P' dO, dP = dO V', dQ = dS K, dK = dS' Q, + a s^2 x (6 B [+ 5 B]) / HBM

    Counted: the whole square: the products know no causal mask; a sliding window saves nothing either.
    Ignored: scores of other sequences of a pack (every sequence is a batch entry of its own).
    Source: Megatron-LM core attention (CoreAttention: baddbmm, scale-mask-softmax kernel, dropout, bmm).
    """
    rows, columns = np.asarray(queries, dtype=np.float64), np.asarray(keys, dtype=np.float64)

    def product(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Floats:
        return gemm_s(m, n, k, gpu, cal, groups=heads)

    per_score = SCORE_BYTES[fused_softmax][backward] + (DROPOUT_BYTES if dropout else 0.0)
    around_s = memory_bound_s(heads * rows * columns * per_score, gpu, cal)
    if not backward:
        return around_s + product(rows, columns, query_dim) + product(rows, value_dim, columns)
    of_values = product(columns, value_dim, rows) + product(rows, columns, value_dim)
    of_scores = product(rows, query_dim, columns) + product(columns, query_dim, rows)
    return np.asarray(around_s + of_values + of_scores)


# Blocks that an SM holds at once, of FlashAttention-2 at head dimension 128: registers allow two of four warps in the
# forward, shared memory one of eight in the backward.
RESIDENT_BLOCKS = (2, 1)


@priced("attention")
def empty_blocks_s(
    segment_tokens: Floats,
    segment_offsets: Ints,
    heads: Floats | float,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    share: Floats | None = None,
) -> Floats:
    """Seconds of empty blocks of one kernel over every micro-batch, [n].

        all    = heads x segments x ceil(longest / tile)
        empty  = all - heads x sum of ceil(tokens / tile)
        t      = min(empty, all - places) x time of one / places          places = SMs x blocks an SM holds

    A kernel for sequences of several lengths starts as many blocks for each as for the longest; those behind a
    sequence's end leave at once. As long as there are places for all of them they keep nobody waiting.
    Counted: rows of tokens on this GPU (*segment_tokens*). A segment that only a *share* of the ranks holds counts for
    as much: a rank of the average.
    Ignored: half of a ring's steps that start half as many (zig-zag); kernels whose persistent blocks ask for their
    next tile (FlashAttention-3 since 2025): they start none.
    Source: grid of FlashAttention-2's variable-length kernels (Dao-AILab/flash-attention); the calibration's times.
    """
    tiles = np.ceil(segment_tokens / cal.attention_tile_tokens)
    starts = segment_offsets[:-1]
    held = np.ones_like(tiles) if share is None else share
    most, filled = np.maximum.reduceat(tiles, starts), np.add.reduceat(held * tiles, starts)
    started = heads * np.add.reduceat(held, starts) * most
    places = gpu.sm_count * RESIDENT_BLOCKS[backward]
    waiting = np.clip(started - places, 0.0, started - heads * filled)
    life_s = cal.empty_block_backward_s if backward else cal.empty_block_forward_s
    return np.asarray(waiting * life_s / places)
