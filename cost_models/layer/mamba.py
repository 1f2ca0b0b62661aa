"""What a Mamba-2 layer does between its two matrix products: convolution, scan, gated norm; and their exchange.

The scan cuts a sequence into chunks of L tokens. Within a chunk it is matrix products; between chunks states are passed
on. For every head (H of them, of width P), with a state of P x N and B and C shared by the heads of a group (G groups):

    chunk scores     C B^T                    2 L N per token and group       (only in the chunk: L x L)
    chunk outputs    (scores, masked) X       2 L P per token and head
    chunk states     B^T X                    2 N P per token and head
    state passing    state x decay + new      N P per chunk and head, one chunk after the other
    state outputs    C state                  2 N P per token and head

Each is a kernel of its own. At L = N = 128 they do some thirty FLOP for each byte that they move, where a GPU needs
hundreds to be busy with matrix work; but their tiles are small, and between loads, products, exponentials and stores
there is little that runs at once. So a kernel takes the time of its HBM traffic and that of its work on the SMs.

Source: Dao and Gu, arXiv 2405.21060, section 6 (chunks) and listing 1; state-spaces/mamba, ops/triton/ssd_combined.py
(_mamba_chunk_scan_combined_fwd and _bwd, _mamba_split_conv1d_scan: the kernels and what each reads and writes).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.attention.ulysses_and_gather import group_shape
from hdpsim.cost_models.layer.micro_batches import Groups
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.model import Mamba, Model
from hdpsim.errors import InfeasibleError

# Copies of Megatron-Core's exchange: pieces put together to be sent, all five tensors joined, tokens brought into
# order; on the way back tokens out of order and pieces put together.
COPIES_THERE, COPIES_BACK = 3.0, 2.0


class MambaKernels(NamedTuple):
    """What a token's way between the two products of a layer takes on one GPU."""

    streamed: float
    """Elements of 16 bits that convolution and gated norm read and write."""
    scanned: float
    """Elements of 16 bits that the scan reads and writes."""
    scan_flop: float
    convolved: tuple[float, float]
    """Elements that pass the convolution forward and backward."""
    normed: float
    """Elements that pass the gated norm's backward."""

    @property
    def passes(self) -> float:
        """Elements that all kernels together read and write."""
        return self.streamed + self.scanned

    def work_s(self, gpu: Gpu, cal: Calibration) -> float:
        """Seconds of all SMs, beside those of the traffic."""
        forward, backward = self.convolved
        streaming_s = forward * cal.convolution_sm_s + backward * cal.convolution_backward_sm_s
        streaming_s += self.normed * cal.gated_norm_backward_sm_s
        return (self.scan_flop / cal.scan_flop_per_sm + streaming_s) / gpu.sm_count


def mamba_kernels(model: Model, layout: Layout, *, backward: bool) -> MambaKernels:
    """Traffic and work between in_proj and out_proj per token, over t = tp; traffic in elements of 16 bits.

    With i = H P inner elements, w = 2 G N of B and C, S = H P N / L of states and A = G L of scores per token (L tokens
    in a chunk; f: 32 bits, counted twice):

        forward   convolution   2 i + 2 w                   x, B, C; out
                  steps         5 H                         in; steps and sums f
                  states        i + w/2 + 2 S               x, B; states f
                  passing       3 S                         states f; states
                  scores        w + 2 A                     B, C; scores f
                  outputs       2 i + w/2 + S + 2 A         x, C, states, scores f; out
                  gated norm    3 i                         scan, gate; out
        backward  all of the forward up to the scores again, then gradients of
                  gated norm    5 i                         gradient, scan, gate; two gradients
                  states        i + w/2 + S                 gradient, C; of states
                  passing       5 S                         states, their gradients; both, f and 16 bits
                  inputs        3 i + w/2 + S + 2 A         x, gradient, B, of states, scores f; of x
                  B; C          2 (i + 3/2 w + S)           x or gradient, states or theirs, B or C; f
                  scores        2 i + 2 A                   x, gradient; f
                  their factors 2 w + 2 A                   f, B, C; of B, of C
                  decays        2 i + 2 A                   x, gradient, scores f
                  sums          7 w + 7 A                   parts of the gradients of B, C and scores, f
                  convolution   3 i + 3 w                   gradient, x, B, C; out
        FLOP      forward       H (4 N P + L P) + 2 G L N   states, outputs of states; outputs (half a square); scores
                  backward      H (10 N P + 3 L P) + 6 G L N    states again, gradients of states, inputs, B, C;
                                                            inputs, scores, decays; scores again, their factors

    Counted: every kernel reads and writes its tensors once; work on the SMs, beside it (work_s). Sums: each part is of
    some heads; 14 B an element is what they take on H100 (five shapes of 0.1 ms and more: 13.8 to 15.3 B).
    Ignored: what heads of a group read once more past the L2 cache; chunks that short sequences leave partly empty.
    Packs reset states between sequences (seq_idx), which costs nothing more.
    Source: as above; torch.autograd.Function MambaSplitConv1dScanCombinedFn, which keeps what in_proj put out alone.
    """
    mamba = model.mamba
    assert mamba is not None
    inner, shared = float(mamba.inner), 2.0 * mamba.groups * mamba.state
    states = inner * mamba.state / mamba.chunk
    scores = float(mamba.groups * mamba.chunk)
    convolution = 2.0 * (inner + shared)
    up_to_scores = 5.0 * mamba.heads + inner + 1.5 * shared + 5.0 * states + 2.0 * scores
    of_states, of_scores, of_groups = inner * mamba.state, inner * mamba.chunk, scores * mamba.state
    if backward:
        gradients = 10.0 * inner + 13.0 * shared + 9.0 * states + 15.0 * scores
        streamed = convolution + 5.0 * inner + 3.0 * (inner + shared)
        scanned = up_to_scores + gradients
        flop = 10.0 * of_states + 3.0 * of_scores + 6.0 * of_groups
    else:
        streamed = convolution + 3.0 * inner
        scanned = up_to_scores + 2.0 * inner + shared / 2.0 + states + 2.0 * scores
        flop = 4.0 * of_states + of_scores + 2.0 * of_groups
    tp = layout.parallel.tp
    channels, normed = (inner + shared) / tp, backward * inner / tp
    return MambaKernels(streamed / tp, scanned / tp, flop / tp, (channels, backward * channels), normed)


def most_mamba_ranks(model: Model, layout: Layout) -> int | None:
    """Ranks over which the heads of a GPU can be spread; None: there are none."""
    return None if model.mamba is None else max(1, model.mamba.heads // layout.parallel.tp)


class MambaExchange:
    """All-to-alls of a context-parallel group around the convolution and the scan of one Mamba-2 layer.

    A scan needs all tokens of a sequence in order: every rank gets all tokens of a share of the heads, and gives back
    its share of the tokens. Forward and backward alike, nothing beside it.

        there  2 B x (2 i + copies x 2 G N + H) / t per token, five tensors one after the other
        back   2 B x i / t
        copies max(1, ranks / (G / t)): groups fewer than ranks go to several

    Counted: copies in memory before and behind (COPIES_THERE, COPIES_BACK). A group need not divide the heads, as if
    they could be spread evenly (a stated cp must: feasibility).
    Ignored: work of the scan on copies of B and C.
    Source: Megatron-Core, ssm/mamba_context_parallel.py.
    """

    def __init__(
        self, model: Model, layout: Layout, gpu: Gpu, cal: Calibration, collectives: Collectives
    ) -> None:
        assert model.mamba is not None
        self._mamba: Mamba = model.mamba
        self._most = most_mamba_ranks(model, layout) or 1
        self._layout, self._gpu, self._cal, self._collectives = layout, gpu, cal, collectives

    def _widths(self, ranks: int) -> tuple[tuple[float, ...], float]:
        """Elements per token and GPU of each tensor on its way there, and of the one on its way back."""
        mamba, tp = self._mamba, self._layout.parallel.tp
        shared = max(1.0, ranks * tp / mamba.groups) * mamba.groups * mamba.state
        outward = (mamba.inner, mamba.inner, shared, shared, mamba.heads)
        return tuple(width / tp for width in outward), mamba.inner / tp

    @priced("ring_wait")
    def seconds(self, tokens_per_rank: Floats, group_size: Floats, tier: Ints) -> Floats:
        """[n]: of one layer's forward, or of its backward."""
        out = np.zeros(group_size.shape)
        for of_kind, size, level in Groups(tokens_per_rank, group_size, tier).kinds():
            if size > self._most:
                raise InfeasibleError(
                    f"context parallelism spreads the heads of Mamba-2 layers over a group: {size} ranks are more than "
                    f"the {self._most} heads of a GPU (tp = {self._layout.parallel.tp})"
                )
            tokens = tokens_per_rank[of_kind]
            group = group_shape(self._layout, self._collectives.fabric, size, level)
            outward, returned = self._widths(size)
            copied = 2.0 * BF16_BYTES * (COPIES_THERE * sum(outward) + COPIES_BACK * returned) * tokens
            seconds = memory_bound_s(copied, self._gpu, self._cal)
            for width in (*outward, returned):
                seconds = seconds + self._collectives.all_to_all_s(BF16_BYTES * width * tokens, group)
            out[of_kind] = seconds
        return out

    def sent(self, tokens_per_rank: Floats, group_size: Floats, tier: Ints) -> SentTimes:
        """What a GPU sends to other nodes in all exchanges."""
        groups = Groups(tokens_per_rank, group_size, tier)
        seconds = np.where(groups.far, self.seconds(tokens_per_rank, group_size, tier), 0.0)
        sent, rate = np.zeros_like(seconds), np.ones_like(seconds)
        for of_kind, size, level in groups.kinds():
            if not level:
                continue
            group = group_shape(self._layout, self._collectives.fabric, size, level)
            outward, returned = self._widths(size)
            elsewhere = 1.0 - group.ranks_per_node / size
            sent[of_kind] = BF16_BYTES * (sum(outward) + returned) * tokens_per_rank[of_kind] * elsewhere
            rate[of_kind] = min(network for _, network in self._collectives.wires(group).remote)
        return SentTimes.of_collective(seconds, sent, rate, counted=groups.far)
