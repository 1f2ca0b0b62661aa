"""The matrix products of one transformer layer on one GPU: forward, input gradients and weight gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.casts import LinearOp, OperandCasts
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, gemm_s, memory_bound_s, output_tiles
from hdpsim.cost_models.kernels.number_formats import scaled_rates
from hdpsim.cost_models.layer.gradient_accumulation import accumulate_overlap, product_output_bytes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ProductPrecision
from hdpsim.cost_models.tracing import KeptByReads, note, priced

# Token counts priced in one go, at most, and tiles x products x passes x token counts: larger arrays leave a core's
# cache and are given back to the system each time. With twice as many products of 24 tiles took twice the time.
GEMM_BLOCK = 512
GEMM_NUMBERS = 2**16
KEPT_FROM = 1024  # token counts: what takes some ten milliseconds and more
# A linear layer's passes, each one product: forward, input gradient and weight gradient.
PASSES = ("forward", "input gradient", "weight gradient")
FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = slice(0, 1), slice(1, 3), slice(1, 2), slice(2, 3)


@dataclass(frozen=True, slots=True)
class _Products:
    """Products of one precision and kind of kernel as columns, [products, 1] or [passes, products or 1, 1] each."""

    precision: ProductPrecision
    inner: Floats
    columns: Floats
    outputs: Floats
    """Columns of the product of each pass."""
    rows_share: Floats
    groups: Floats
    efficiency: Floats
    overlap: Floats
    output_bytes: Floats

    @classmethod
    def of(
        cls, precision: ProductPrecision, ops: list[LinearOp], layout: Layout, cal: Calibration
    ) -> _Products:
        """The columns of *ops*: all grouped, or none."""
        rows = [(op.columns, op.inner, op.rows_share, op.groups) for op in ops]
        columns, inner, share, groups = np.array(rows, dtype=np.float64).T[:, :, None]
        efficiency, overlap = 1.0, 1.0
        if ops[0].groups > 1:
            efficiency, overlap = cal.grouped_gemm_efficiency, cal.grouped_gemm_overlap
        rates = scaled_rates(layout.precision.fp8_scaling, cal) if precision == "fp8" else (1.0, 1.0)
        forward, gradient = (efficiency * rate for rate in rates)
        output_bytes = product_output_bytes(layout)
        weight_overlap = min(overlap, accumulate_overlap(output_bytes, cal))
        weight = (gradient * cal.weight_gradient_efficiency, weight_overlap, output_bytes)
        passes = [(forward, overlap, BF16_BYTES), (gradient, overlap, BF16_BYTES), weight]
        by_pass = np.array(passes).T[:, :, None, None]
        outputs = np.stack([columns, inner, columns])
        return cls(precision, inner, columns, outputs, share, groups, *by_pass)

    def key(self) -> tuple[object, ...]:
        """By which equal products are found."""
        columns = (getattr(self, item.name) for item in fields(self))
        return tuple(one.tobytes() if isinstance(one, np.ndarray) else one for one in columns)

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
    gradient, weight gradient); weight gradients accumulate in fp32, which gemm_s overlaps as calibrated.
    Each forward casts the layer's input once, each backward the output's gradient once, both along rows and columns.
    Weights are cast once per step; with scales of rows in every pass, and more (OperandCasts).
    Counted: HBM traffic of the casts. With sequence parallelism a tensor of full width is cast before
    it is gathered: 1/tp of its rows on each GPU.
    Frozen weights have no weight gradient, and their operands no copy for it.
    Ignored: casts fused with the norm before them, casts of weights once per step, random signs and rotations of NVFP4.
    Source: Transformer Engine, user guide, "Low precision training".
    """

    def __init__(
        self,
        ops: Sequence[LinearOp],
        layout: Layout,
        gpu: Gpu,
        cal: Calibration,
        *,
        precision: ProductPrecision,
        full_width: int = 0,
        frozen: bool = False,
    ) -> None:
        self._gpu, self._cal, self._precision, self.frozen = gpu, cal, precision, frozen
        self.backward = INPUT_GRADIENT if frozen else BACKWARD
        kinds: dict[tuple[ProductPrecision, bool], list[LinearOp]] = {}
        for op in ops:
            kinds.setdefault(("bf16" if op.always_bf16 else precision, op.groups > 1), []).append(op)
        self._products = [_Products.of(kind, some, layout, cal) for (kind, _), some in kinds.items()]
        self._named = {
            "products": tuple(op.name for some in kinds.values() for op in some),
            "per_layer": np.ones(len(ops)),
            "priced_together": tuple(len(some) for some in kinds.values()),
        }
        narrow_shards = layout.tensor.sequence_parallel and layout.precision.fp8_scaling != "row"
        self._casts = OperandCasts.of(
            [op for op in ops if precision != "bf16" and not op.always_bf16],
            precision,
            layout.precision.fp8_scaling,
            frozen=frozen,
            full_width=full_width,
            sequence_shards=layout.parallel.tp if narrow_shards else 1,
        )

    @priced("gemm")
    def seconds(self, tokens: Floats, *, backward: bool) -> Floats:
        """All matrix products: forward; backward = input gradient + weight gradient (twice the FLOP)."""
        sides = self.backward if backward else FORWARD
        note(precision=self._precision, sides=PASSES[sides], **self._named)
        return self.products_s(tokens, sides)[0]

    @priced("gemm")
    def both_s(self, tokens: Floats) -> tuple[Floats, Floats]:
        """All matrix products of the forward, and of the backward (input and weight gradients), at once."""
        note(precision=self._precision, sides=PASSES[FORWARD] + PASSES[self.backward], **self._named)
        forward, backward = self.products_s(tokens, FORWARD, self.backward)
        return forward, backward

    def weight_gradient_s(self, tokens: Floats) -> Floats:
        """The part of the backward that is weight gradients: what a zero-bubble schedule can run apart."""
        return np.zeros_like(tokens) if self.frozen else self.products_s(tokens, WEIGHT_GRADIENT)[0]

    @priced("small_kernels")
    def cast_s(self, tokens: Floats, *, backward: bool) -> Floats:
        """Casting what the narrow products read, and scaling what they put out."""
        traffic = self._casts.per_token[backward] * tokens
        if self._casts.of_weights[backward]:
            traffic = np.where(tokens > 0, traffic + self._casts.of_weights[backward], 0.0)
        return memory_bound_s(traffic, self._gpu, self._cal)

    def products_s(self, tokens: Floats, *sides: slice) -> list[Floats]:
        """For each of *sides* (passes that follow each other) the seconds of all products.

        All passes and products of few token counts in one call: an array operation costs more than its numbers. Of many
        token counts, as planners' tables have, what is found is kept for all calibrations that agree on products; it is
        not to be changed.
        """
        if len(tokens) < KEPT_FROM:
            return self._products_s(self._cal, tokens, sides)
        key = (
            self._gpu,
            *map(_Products.key, self._products),
            tokens.tobytes(),
            *((s.start, s.stop) for s in sides),
        )

        def priced_s(cal: Calibration) -> list[Floats]:
            seconds = self._products_s(cal, tokens, sides)
            for side in seconds:
                side.setflags(write=False)
            return seconds

        return _kept_products.of(key, self._cal, priced_s)

    def _products_s(self, cal: Calibration, tokens: Floats, sides: tuple[slice, ...]) -> list[Floats]:
        tiles, passes = len(output_tiles(cal.tile_sides)[0]), sides[-1].stop - sides[0].start
        products = max((len(ops.columns) for ops in self._products), default=1)
        block = min(GEMM_BLOCK, max(1, GEMM_NUMBERS // (tiles * products * passes)))
        blocks = [
            self._block_s(cal, tokens[first : first + block], sides)
            for first in range(0, max(1, len(tokens)), block)
        ]
        return blocks[0] if len(blocks) == 1 else [np.concatenate(side) for side in zip(*blocks, strict=True)]

    def _block_s(self, cal: Calibration, tokens: Floats, sides: tuple[slice, ...]) -> list[Floats]:
        first, last = sides[0].start, sides[-1].stop
        totals: list[Floats] = []
        for ops in self._products:
            once = self._passes_s(cal, ops, tokens, slice(first, last))
            summed = [once[side.start - first : side.stop - first].sum(axis=0).sum(axis=0) for side in sides]
            totals = [total + more for total, more in zip(totals, summed, strict=True)] if totals else summed
        return totals

    def _passes_s(self, cal: Calibration, ops: _Products, tokens: Floats, passes: slice) -> Floats:
        m, k = ops.shapes(tokens)
        return gemm_s(
            m[passes],
            ops.outputs[passes],
            k[passes],
            self._gpu,
            cal,
            efficiency=ops.efficiency[passes],
            groups=ops.groups,
            output_bytes=ops.output_bytes[passes],
            precision=ops.precision,
            overlap=ops.overlap[passes],
        )


_kept_products: KeptByReads[Calibration, list[Floats]] = KeptByReads(keys=24, values=6)
"""Some 0.1 MB each."""
