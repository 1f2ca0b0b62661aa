"""Weight gradients of the output projection that the last stage computes while the pipeline drains."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.layer.gemms import LayerGemms
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import vocabulary_matrix


def drain_s(layout: Layout, backward_s: Floats) -> float:
    """Time from the last stage's last backward to the first stage's, by each stage's backward of all its chunks.

        t = (p - 1) x backward of a stage / v

    Counted: the mean stage.  Ignored: transfers.
    """
    return (layout.parallel.pp - 1) * float(backward_s.mean()) / layout.pipeline.vpp


@priced("optimizer")
def deferred_head_s(
    cost: MicroBatchCost, batches: MicroBatches, micro_batches: float, backward_s: Floats
) -> float:
    """What is left of them when the pipeline is empty: max(0, micro-batches x weight gradient - drain).

    Counted: heads of multi-token-prediction layers as well; all micro-batches of a step (a limit of those put off is
    taken not to bind); gradients of the whole stage are summed after them.
    Source: Megatron-Core, pipeline_parallel/schedules.py (finish_embedding_wgrad_compute) and model_parallel_config.py
    (defer_embedding_wgrad_compute: "defers the embedding WGRAD GEMMs while pipeline flush is in progress").
    """
    model, layout = cost.model, cost.layout
    if model.frozen:
        return 0.0
    inner, columns = vocabulary_matrix(model).shard(layout.parallel.tp)
    gemm = LinearOp(columns=columns, inner=inner)
    head = LayerGemms([gemm], layout, cost.cluster.gpu, cost.cal, precision="bf16")
    tokens = np.asarray(batches.tokens / batches.group_size, dtype=np.float64)
    once_s = float(head.weight_gradient_s(tokens).mean())
    return max(0.0, micro_batches * (1 + model.mtp_layers) * once_s - drain_s(layout, backward_s))
