"""The output projection, its vocabulary cut by tensor parallelism, the cross-entropy behind it, and its average."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.gemms import FORWARD, LayerGemms
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import vocabulary_matrix
from hdpsim.cost_models.transformer.model import Model

LOSS_PASSES_BYTES = 12.0  # fused cross-entropy on fp32 logits: write, read, write gradient (4 B each)
# Separate operations (Megatron-LM, core/tensor_parallel/cross_entropy.py without fusion): to fp32 2 + 4, maximum 4,
# subtract 4 + 4, exponential 4 + 4, sum 4, divide 4 + 4; gradient: scale 4 + 4, to 16 bits 4 + 2. What it fuses by
# torch.compile moves 48: maximum 2 + 4, exponential and sum into a new buffer 4 + 4, copied back 4 + 4, divide 4 + 4;
# gradient: copied 4 + 4, scaled 4 + 4 + 2 (core/fusions/fused_cross_entropy.py; its note of 2026 tells of the copies).
SEPARATE_LOSS_PASSES_BYTES = 52.0
# torch.nn.CrossEntropyLoss of 16-bit logits without gradients: to fp32 2 + 4, log-softmax 4 + 4
METRIC_BYTES = 14.0


class OutputHead:
    """Time of the head of one model and layout; a multi-token-prediction layer has one of its own."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        gpu: Gpu,
        cal: Calibration,
        collectives: Collectives | None = None,
    ) -> None:
        """*collectives*: what gathers logits; None: nothing does."""
        self._layout, self._gpu, self._cal = layout, gpu, cal
        inner, columns = vocabulary_matrix(model).shard(layout.parallel.tp)
        self._collectives = collectives if layout.tensor.gathered_logits and layout.parallel.tp > 1 else None
        self._logits = columns * layout.parallel.tp if self._collectives else columns
        self._products = LayerGemms(
            [LinearOp(columns=columns, inner=inner)],
            layout,
            gpu,
            cal,
            precision="bf16",
            frozen=model.frozen or layout.defers_head_gradient,  # see deferred_head
        )

    def sides_s(self, tokens: Floats, sides: tuple[bool, ...]) -> dict[bool, Floats]:
        """[n] by side (backward): projection and loss."""
        return dict(zip(sides, self._logits_s(tokens, sides), strict=True))

    @priced("logits")
    def _logits_s(self, tokens: Floats, sides: tuple[bool, ...]) -> list[Floats]:
        """Output projection (vocabulary sharded over TP) and cross-entropy, whose gradient its forward computes."""
        passes = (self._products.backward if side else FORWARD for side in sides)
        loss_s = self.loss_s(tokens) + self._gather_s(tokens)
        return [
            time_s if side else time_s + loss_s
            for side, time_s in zip(sides, self._products.products_s(tokens, *passes), strict=True)
        ]

    def weight_gradient_s(self, tokens: Floats) -> Floats:
        """[n]: the part of the backward that is the weight gradient."""
        return self._products.weight_gradient_s(tokens)

    def _gather_s(self, tokens: Floats) -> Floats:
        """Gathering the logits of the whole vocabulary (gathered_logits).

            t = all-gather(2 B x V x tokens) + 2 x 2 B x V x tokens / HBM       put together by a copy

        Counted: in the forward alone; every GPU takes its own part of the gradient.
        Ignored: that NICs are busy meanwhile where the group spans servers.
        Source: PyTorch, ColwiseParallel(output_layouts=Replicate()), distributed/_functional_collectives.py
        (all_gather_tensor: cat of chunks where the dimension is not the first).
        """
        if self._collectives is None:
            return np.zeros_like(tokens)
        volume = BF16_BYTES * self._logits * tokens
        gather_s = self._collectives.all_gather_s(volume, self._collectives.group(self._layout.parallel.tp))
        return np.asarray(gather_s + memory_bound_s(2 * volume, self._gpu, self._cal))

    def loss_s(self, tokens: Floats) -> Floats:
        """Cross-entropy of the logits a GPU has, its gradient included, and metrics that compute it again."""
        kernels = self._layout.kernels
        passes_bytes = kernels.loss_bytes
        if passes_bytes is None:
            fused = kernels.fused and kernels.fused_loss
            passes_bytes = LOSS_PASSES_BYTES if fused else SEPARATE_LOSS_PASSES_BYTES
        passes_bytes += METRIC_BYTES * kernels.loss_metrics
        return memory_bound_s(passes_bytes * self._logits * tokens, self._gpu, self._cal)


LOSS_BYTES = 8.0  # two numbers of 32 bits: the sum of the losses and the tokens that count


@priced("logits")
def loss_average_s(layout: Layout, collectives: Collectives) -> float:
    """What it takes once all ranks have come to it.

        t = AR(8 bytes, ranks of the stage)

    Counted: its latency, on the stream of the last stage. That ranks wait there for the last one is a matter of playing
    (simulator/play/pipeline/common_ends.py).
    Ignored: the host, which does not wait for it; a sum over context-parallel ranks before it; DualPipe's two ends.
    Source: NVIDIA/Megatron-LM, pretrain_gpt.py (loss_func: average_losses_across_data_parallel_group, later all_reduce
    of reporting_loss, both without async_op: PyTorch makes the current stream wait for the collective's, not the host);
    the same in NVIDIA/NeMo, megatron_gpt_model.py and lightning/megatron_parallel.py (MaskedTokenLossReduction).
    """
    if layout.sharding.loss_average == "step" or layout.pipeline.schedule == "dualpipe":
        return 0.0
    ranks = layout.parallel.ranks(collectives.fabric.cluster.gpus)
    return float(collectives.all_reduce_s(LOSS_BYTES, collectives.group(ranks, layout.parallel.rank_stride)))
