"""HBM traffic around narrow matrix products: casting what they read, scaling what they put out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cost_models.layout import Fp8Scaling, Precision
from cost_models.matrix_units import OPERAND_BYTES, cast_bytes

__all__ = ["ROW_FORWARD_RATE", "OperandCasts"]

# Scales of rows, per 16-bit weight: a forward reads it and writes 8 bits; a backward, which contracts over the other
# side, transposes it first (2 + 2) and reads it again (2 + 1). Weights with one scale are cast where they are sharded.
# Source: pytorch/ao, roofline_utils.py (get_tensor_memory_traffic_ovhd_s: rowwise, weight) and float8/float8_linear.py
# (arguments of high precision are cast in the forward and again in the backward).
ROW_WEIGHT_BYTES = (3.0, 7.0)
# Gradients promote partial sums, for which there was no usable kernel with scales of rows: the kernel without scales
# runs, another one multiplies its output by them (read 2 B, write 2 B).
# Source: pytorch/ao, float8/float8_ops.py (addmm_float8_unwrapped), pull request 1377 and issue 2184.
ROW_OUTPUT_BYTES = 4.0
# Forwards take a kernel with scales of rows: "most shapes are within 90-100%" of the one without (pytorch/pytorch,
# issue 147971, use_fast_accum=True); the middle.
ROW_FORWARD_RATE = 0.95


class _Product(Protocol):
    """What is needed of a LinearOp."""

    @property
    def columns(self) -> int: ...
    @property
    def inner(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def rows_share(self) -> float: ...
    @property
    def groups(self) -> int: ...
    @property
    def matrices(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OperandCasts:
    """Bytes of one pass of a layer, (forward, backward) each.

    Attributes:
        per_token: whatever a token carries through the products.
        of_weights: once per pass, however many tokens there are.
    """

    per_token: tuple[float, float]
    of_weights: tuple[float, float]

    @classmethod
    def of(
        cls,
        narrow: Sequence[_Product],
        precision: Precision,
        scaling: Fp8Scaling,
        *,
        frozen: bool,
        full_width: int,
        sequence_shards: int,
    ) -> OperandCasts:
        """Traffic of the products *narrow* of *precision*.

            per_token  = cast bytes x (inputs forward, gradients of outputs backward) / sequence shards where gathered
            scales of rows, more: backward 4 B per input gradient of each matrix
            of_weights = (3, 7 + 4 of the weight gradient) B per weight

        Counted: an input once, however many matrices share it; its gradient once per matrix.
        Ignored: casts fused with the kernel before them, extra reads of compilers.
        """
        inputs, gradients = (
            sum(
                op.count * op.rows_share * width / (sequence_shards if dense and width == full_width else 1)
                for op in narrow
                for dense in (op.groups == 1,)
                for width in (op.columns if backward else op.inner,)
            )
            for backward in (False, True)
        )
        per_element = cast_bytes(precision, scaling)
        if frozen and narrow:
            per_element -= OPERAND_BYTES[precision]
        forward, backward = per_element * inputs, per_element * gradients
        if precision != "fp8" or scaling != "row":
            return cls((forward, backward), (0.0, 0.0))
        weights = sum(op.count * op.groups * op.columns * op.inner for op in narrow)
        backward += ROW_OUTPUT_BYTES * sum(op.count * op.rows_share * op.matrices * op.inner for op in narrow)
        once, again = ROW_WEIGHT_BYTES
        again += 0.0 if frozen else ROW_OUTPUT_BYTES
        return cls((forward, backward), (once * weights, again * weights))
