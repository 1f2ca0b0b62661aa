"""The matrix products of one transformer layer on one GPU: forward, input gradients and weight gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from cost_models.gradient_accumulation import accumulate_overlap
from cost_models.hardware import Gpu
from cost_models.kernels import FP32_ACCUMULATE_BYTES, gemm_s, memory_bound_s
from cost_models.layout import Precision
from cost_models.matrix_units import CAST_BYTES
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
    always_bf16: bool = False
    """Stays in BF16 whatever the layout's precision (the router)."""


@dataclass(frozen=True, slots=True)
class _Products:
    """Products of one precision and overlap as columns, [products, 1] each."""

    precision: Precision
    overlap: float
    efficiency: float
    columns: Floats
    inner: Floats
    count: Floats
    rows_share: Floats
    groups: Floats

    @classmethod
    def of(cls, precision: Precision, ops: list[LinearOp], cal: Calibration) -> _Products:
        """The columns of *ops*: all grouped, or none."""
        grouped = ops[0].groups > 1
        rows = [(op.columns, op.inner, op.count, op.rows_share, op.groups) for op in ops]
        columns, inner, count, share, groups = np.array(rows, dtype=np.float64).T[:, :, None]
        return cls(
            precision=precision,
            overlap=cal.grouped_gemm_overlap if grouped else 1.0,
            efficiency=cal.grouped_gemm_efficiency if grouped else 1.0,
            columns=columns,
            inner=inner,
            count=count,
            rows_share=share,
            groups=groups,
        )


class LayerGemms:
    """All products of a layer; in a narrow *precision* also the casts of their operands.

    As Transformer Engine does it, all three products of every linear layer take narrow operands (forward, input
    gradient, weight gradient); weight gradients accumulate in fp32, which gemm_s overlaps as calibrated. Hopper adds up
    8-bit products in less than fp32: forwards do (fast accumulation), gradients promote partial sums.
    Each forward casts the layer's input once, each backward the output's gradient once, both along rows and columns.
    Weights are cast once per step.
    Counted: HBM traffic of the casts (CAST_BYTES). With sequence parallelism a tensor of full width is cast before
    it is gathered: 1/tp of its rows on each GPU.
    Ignored: casts fused with the norm before them, the weights' casts, random signs and rotations of NVFP4.
    Source: Transformer Engine, user guide, "Low precision training".
    """

    def __init__(
        self,
        ops: tuple[LinearOp, ...],
        gpu: Gpu,
        cal: Calibration,
        *,
        precision: Precision = "bf16",
        full_width: int = 0,
        sequence_shards: int = 1,
        gradient_output_bytes: int = FP32_ACCUMULATE_BYTES,
    ) -> None:
        self._gpu, self._cal, self._precision = gpu, cal, precision
        self._gradient_bytes = gradient_output_bytes
        self._names = tuple(op.name for op in ops)
        self._count = np.array([op.count for op in ops], dtype=np.float64)
        narrow = [op for op in ops if precision != "bf16" and not op.always_bf16]
        kinds: dict[tuple[Precision, bool], list[LinearOp]] = {}
        for op in ops:
            kinds.setdefault((precision if op in narrow else "bf16", op.groups > 1), []).append(op)
        self._products = [_Products.of(kind, some, cal) for (kind, _), some in kinds.items()]
        inputs, gradients = (
            sum(
                op.count * op.rows_share * width / (sequence_shards if dense and width == full_width else 1)
                for op in narrow
                for dense in (op.groups == 1,)
                for width in (op.columns if backward else op.inner,)
            )
            for backward in (False, True)
        )
        self._cast_bytes_per_token = (CAST_BYTES[precision] * inputs, CAST_BYTES[precision] * gradients)

    @priced("gemm")
    def seconds(self, tokens: Floats, *, backward: bool) -> Floats:
        """All matrix products: forward; backward = input gradient + weight gradient (twice the FLOP)."""
        note(products=self._names, per_layer=self._count, precision=self._precision)
        blocks = [
            self._block_s(tokens[first : first + GEMM_BLOCK], backward=backward)
            for first in range(0, len(tokens), GEMM_BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0), *blocks])

    @priced("small_kernels")
    def cast_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Casting what the narrow products read."""
        return memory_bound_s(self._cast_bytes_per_token[backward] * tokens, self._gpu, self._cal)

    def _block_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """All products of few token counts in one call: an array operation costs more than its numbers."""
        total = self._products_s(self._products[0], tokens, backward=backward)
        for more in self._products[1:]:
            total = total + self._products_s(more, tokens, backward=backward)
        return total

    def _products_s(self, ops: _Products, tokens: Floats, *, backward: bool) -> Floats:
        gpu, cal, columns, inner = self._gpu, self._cal, ops.columns, ops.inner
        efficiency, groups, precision, overlap = ops.efficiency, ops.groups, ops.precision, ops.overlap
        rows = tokens * ops.rows_share / groups
        if not backward:
            once = gemm_s(
                rows,
                columns,
                inner,
                gpu,
                cal,
                efficiency=efficiency,
                groups=groups,
                precision=precision,
                overlap=overlap,
            )
        else:
            once = gemm_s(
                rows,
                inner,
                columns,
                gpu,
                cal,
                efficiency=efficiency * _promotion(precision, cal),
                groups=groups,
                precision=precision,
                overlap=overlap,
            )
            once = once + self._weight_gradient_s(ops, rows)
        return np.asarray((once * ops.count).sum(axis=0))

    def _weight_gradient_s(self, ops: _Products, rows: Floats) -> Floats:
        """[products, n]: the weight gradient of each product."""
        cal = self._cal
        return gemm_s(
            ops.inner,
            ops.columns,
            rows,
            self._gpu,
            cal,
            efficiency=ops.efficiency * cal.weight_gradient_efficiency * _promotion(ops.precision, cal),
            groups=ops.groups,
            output_bytes=self._gradient_bytes,
            precision=ops.precision,
            overlap=min(ops.overlap, accumulate_overlap(self._gradient_bytes, cal)),
        )

    def weight_gradient_s(self, tokens: Floats) -> Floats:
        """The part of the backward that is weight gradients: what a zero-bubble schedule can run apart."""
        blocks = [
            sum(
                (self._weight_gradient_s(ops, block * ops.rows_share / ops.groups) * ops.count).sum(axis=0)
                for ops in self._products
            )
            for block in (tokens[first : first + GEMM_BLOCK] for first in range(0, len(tokens), GEMM_BLOCK))
        ]
        return np.concatenate([np.zeros(0), *blocks])


def _promotion(precision: Precision, cal: Calibration) -> float:
    """Rate of a gradient's product over a forward product of that precision, see LayerGemms."""
    return cal.fp8_gradient_efficiency if precision == "fp8" else 1.0
