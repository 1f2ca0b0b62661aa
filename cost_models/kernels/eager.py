"""Operations that a stack leaves to PyTorch, each a kernel of its own: what they read and write, and at which rate.

A kernel of PyTorch loads and stores whole vectors where all its operands are contiguous and of one type. Views of part
of a tensor, operands that are broadcast, and operands of two types go element by element, with an index calculated for
each (aten/src/ATen/native/cuda/CUDALoops.cuh: launch_vectorized_kernel against launch_unrolled_kernel and
launch_legacy_kernel).
"""

from __future__ import annotations

from typing import NamedTuple

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
