"""The matrix products of one transformer layer on one GPU: forward, input gradients and weight gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from cost_models.hardware import Gpu
from cost_models.kernels import FP32_ACCUMULATE_BYTES, gemm_s
from cost_models.tracing import note, priced

__all__ = ["LayerGemms", "LinearOp"]

Floats = NDArray[np.float64]

# Token counts priced in one go: tiles x products x this many numbers still fit a core's cache.
GEMM_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearOp:
    """A matrix product of *tokens x share* rows with an (inner x columns) weight shard."""

    columns: int
    inner: int
    count: int = 1
    rows_share: float = 1.0
    """Rows over the rank's tokens (experts: top_k / ep x imbalance, spread over `experts_here` groups)."""
    groups: int = 1
    """Number of equal groups the rows are divided into (grouped GEMM)."""
    name: str = ""
    """What the layer calls it."""


class LayerGemms:
    """All products of a layer as columns, [products, 1] each."""

    def __init__(self, ops: tuple[LinearOp, ...], gpu: Gpu, cal: Calibration) -> None:
        self._gpu, self._cal = gpu, cal
        self._names = tuple(op.name for op in ops)
        rows = [(op.columns, op.inner, op.count, op.rows_share, op.groups) for op in ops]
        self._columns, self._inner, self._count, self._rows_share, self._groups = np.array(
            rows, dtype=np.float64
        ).T[:, :, None]
        self._efficiency = np.where(self._groups > 1, cal.grouped_gemm_efficiency, 1.0)

    @priced("gemm")
    def seconds(self, tokens: Floats, *, backward: bool) -> Floats:
        """All matrix products: forward; backward = input gradient + weight gradient (twice the FLOP)."""
        note(products=self._names, per_layer=self._count.ravel())
        blocks = [
            self._block_s(tokens[first : first + GEMM_BLOCK], backward=backward)
            for first in range(0, len(tokens), GEMM_BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0), *blocks])

    def _block_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """All products of few token counts in one call: an array operation costs more than its numbers."""
        gpu, cal, columns, inner = self._gpu, self._cal, self._columns, self._inner
        efficiency, groups = self._efficiency, self._groups
        rows = tokens * self._rows_share / groups
        if not backward:
            once = gemm_s(rows, columns, inner, gpu, cal, efficiency=efficiency, groups=groups)
        else:
            once = gemm_s(rows, inner, columns, gpu, cal, efficiency=efficiency, groups=groups)
            once = once + gemm_s(
                inner,
                columns,
                rows,
                gpu,
                cal,
                efficiency=efficiency * cal.weight_gradient_efficiency,
                groups=groups,
                output_bytes=FP32_ACCUMULATE_BYTES,
            )
        return np.asarray((once * self._count).sum(axis=0))
