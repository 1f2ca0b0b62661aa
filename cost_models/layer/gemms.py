"""The matrix products of one transformer layer on one GPU: forward, input gradients and weight gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.casts import ROW_FORWARD_RATE, OperandCasts
from hdpsim.cost_models.kernels.products import BF16_BYTES, FP32_ACCUMULATE_BYTES, gemm_s, memory_bound_s
from hdpsim.cost_models.layer.gradient_accumulation import accumulate_overlap
from hdpsim.cost_models.layout.layout import Fp8Scaling, Precision
from hdpsim.cost_models.tracing import note, priced

Floats = NDArray[np.float64]

# Token counts priced in one go: tiles x products x three passes x this many numbers still fit a core's cache.
GEMM_BLOCK = 512
# A linear layer's passes, each one product: forward, input gradient and weight gradient.
PASSES = ("forward", "input gradient", "weight gradient")
FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = slice(0, 1), slice(1, 3), slice(1, 2), slice(2, 3)


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
    matrices: int = 1
    """Matrices that stock models keep apart (queries, keys and values; gate and up)."""
    name: str = ""
    """What the layer calls it."""
    always_bf16: bool = False
    """Stays in BF16 whatever the layout's precision (the router)."""


@dataclass(frozen=True, slots=True)
class _Products:
    """Products of one precision and kind of kernel as columns, [products, 1] or [passes, products or 1, 1] each."""

    precision: Precision
    inner: Floats
    columns: Floats
    outputs: Floats
    """Columns of the product of each pass."""
    count: Floats
    rows_share: Floats
    groups: Floats
    efficiency: Floats
    overlap: Floats
    output_bytes: Floats

    @classmethod
    def of(
        cls,
        precision: Precision,
        ops: list[LinearOp],
        cal: Calibration,
        gradient_output_bytes: int,
        forward_rate: float,
    ) -> _Products:
        """The columns of *ops*: all grouped, or none."""
        grouped = ops[0].groups > 1
        rows = [(op.columns, op.inner, op.count, op.rows_share, op.groups) for op in ops]
        columns, inner, count, share, groups = np.array(rows, dtype=np.float64).T[:, :, None]
        efficiency = cal.grouped_gemm_efficiency if grouped else 1.0
        gradient = efficiency * _promotion(precision, cal)
        overlap = cal.grouped_gemm_overlap if grouped else 1.0
        accumulating = min(overlap, accumulate_overlap(gradient_output_bytes, cal))
        by_pass = np.array(
            [
                (efficiency * forward_rate, overlap, BF16_BYTES),
                (gradient, overlap, BF16_BYTES),
                (gradient * cal.weight_gradient_efficiency, accumulating, gradient_output_bytes),
            ]
        ).T[:, :, None, None]
        return cls(
            precision=precision,
            inner=inner,
            columns=columns,
            outputs=np.stack([columns, inner, columns]),
            count=count,
            rows_share=share,
            groups=groups,
            efficiency=by_pass[0],
            overlap=by_pass[1],
            output_bytes=by_pass[2],
        )

    def shapes(self, tokens: Floats) -> tuple[Floats, Floats]:
        """Rows and contractions of all passes, [passes, products, tokens] each."""
        rows = tokens * self.rows_share / self.groups
        m, k = np.empty((2, 3, *rows.shape))
        m[:2], m[2] = rows, self.inner
        k[0], k[1], k[2] = self.inner, self.columns, rows
        return m, k


class LayerGemms:
    """All products of a layer; in a narrow *precision* also the casts of their operands.

    As Transformer Engine does it, all three products of every linear layer take narrow operands (forward, input
    gradient, weight gradient); weight gradients accumulate in fp32, which gemm_s overlaps as calibrated. Hopper adds up
    8-bit products in less than fp32: forwards do (fast accumulation), gradients promote partial sums.
    Each forward casts the layer's input once, each backward the output's gradient once, both along rows and columns.
    Weights are cast once per step; with scales of rows in every pass, and more (operand_casts).
    Counted: HBM traffic of the casts. With sequence parallelism a tensor of full width is cast before
    it is gathered: 1/tp of its rows on each GPU.
    Frozen weights have no weight gradient, and their operands no copy for it.
    Ignored: casts fused with the norm before them, casts of weights once per step, random signs and rotations of NVFP4.
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
        frozen: bool = False,
        fp8_scaling: Fp8Scaling = "delayed",
    ) -> None:
        self._gpu, self._cal, self._precision, self._frozen = gpu, cal, precision, frozen
        self._backward = INPUT_GRADIENT if frozen else BACKWARD
        narrow = [op for op in ops if precision != "bf16" and not op.always_bf16]
        kinds: dict[tuple[Precision, bool], list[LinearOp]] = {}
        for op in ops:
            kinds.setdefault((precision if op in narrow else "bf16", op.groups > 1), []).append(op)
        rate = ROW_FORWARD_RATE if fp8_scaling == "row" else 1.0
        self._products = [
            _Products.of(kind, some, cal, gradient_output_bytes, rate if kind == "fp8" else 1.0)
            for (kind, _), some in kinds.items()
        ]
        self._named = {
            "products": tuple(op.name for some in kinds.values() for op in some),
            "per_layer": np.array([op.count for some in kinds.values() for op in some], dtype=np.float64),
            "priced_together": tuple(len(some) for some in kinds.values()),
        }
        self._casts = OperandCasts.of(
            narrow,
            precision,
            fp8_scaling,
            frozen=frozen,
            full_width=full_width,
            sequence_shards=sequence_shards,
        )

    @property
    def frozen(self) -> bool:
        """Whether there are no weight gradients."""
        return self._frozen

    @priced("gemm")
    def seconds(self, tokens: Floats, *, backward: bool) -> Floats:
        """All matrix products: forward; backward = input gradient + weight gradient (twice the FLOP)."""
        sides = PASSES[self._backward if backward else FORWARD]
        note(precision=self._precision, sides=sides, **self._named)
        return self.products_s(tokens, backward=backward)

    @priced("gemm")
    def both_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """All matrix products of the forward, and of the backward (input and weight gradients), at once."""
        note(precision=self._precision, sides=PASSES[FORWARD] + PASSES[self._backward], **self._named)
        return self.both_products_s(tokens)

    def both_products_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """The same as numbers of whoever calls."""
        forward, backward = self._blocks_s(tokens, FORWARD, self._backward)
        return forward, backward

    def weight_gradient_s(self, tokens: Floats) -> Floats:
        """The part of the backward that is weight gradients: what a zero-bubble schedule can run apart."""
        return np.zeros_like(tokens) if self._frozen else self._blocks_s(tokens, WEIGHT_GRADIENT)[0]

    def products_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """See seconds."""
        return self._blocks_s(tokens, self._backward if backward else FORWARD)[0]

    @priced("small_kernels")
    def cast_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Casting what the narrow products read, and scaling what they put out."""
        traffic = self._casts.per_token[backward] * tokens
        if self._casts.of_weights[backward]:
            traffic = np.where(tokens > 0, traffic + self._casts.of_weights[backward], 0.0)
        return memory_bound_s(traffic, self._gpu, self._cal)

    def _blocks_s(self, tokens: Floats, *sides: slice) -> list[Floats]:
        """For each of *sides* (passes that follow each other) the seconds of all products.

        All passes and products of few token counts in one call: an array operation costs more than its numbers.
        """
        blocks = [
            self._block_s(tokens[first : first + GEMM_BLOCK], sides)
            for first in range(0, max(1, len(tokens)), GEMM_BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else [np.concatenate(side) for side in zip(*blocks, strict=True)]

    def _block_s(self, tokens: Floats, sides: tuple[slice, ...]) -> list[Floats]:
        first, last = sides[0].start, sides[-1].stop
        totals: list[Floats] = []
        for ops in self._products:
            once = self._passes_s(ops, tokens, slice(first, last))
            summed = [
                (once[side.start - first : side.stop - first].sum(axis=0) * ops.count).sum(axis=0)
                for side in sides
            ]
            totals = [total + more for total, more in zip(totals, summed, strict=True)] if totals else summed
        return totals

    def _passes_s(self, ops: _Products, tokens: Floats, passes: slice) -> Floats:
        """[passes, products, n]"""
        m, k = ops.shapes(tokens)
        return gemm_s(
            m[passes],
            ops.outputs[passes],
            k[passes],
            self._gpu,
            self._cal,
            efficiency=ops.efficiency[passes],
            groups=ops.groups,
            output_bytes=ops.output_bytes[passes],
            precision=ops.precision,
            overlap=ops.overlap[passes],
        )


def _promotion(precision: Precision, cal: Calibration) -> float:
    """Rate of a gradient's product over a forward product of that precision, see LayerGemms."""
    return cal.fp8_gradient_efficiency if precision == "fp8" else 1.0
