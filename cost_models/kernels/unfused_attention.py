"""Attention before FlashAttention: the scores of all pairs of tokens go to memory and come back for every operation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.gemm_and_attention import gemm_s, memory_bound_s

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
