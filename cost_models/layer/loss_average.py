"""The loss of a micro-batch, averaged over all ranks after its forward on the last stage."""

from __future__ import annotations

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.tracing import priced

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
