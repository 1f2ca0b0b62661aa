"""Time of the host: launches of a layer, and hosts that check with each other before every collective.

A debugging mode of PyTorch (TORCH_DISTRIBUTED_DEBUG=DETAIL) wraps every collective: before it is launched, the hosts of
its group meet over TCP, one after the other, and compare its shape and type. The GPU does not wait for that, only the
launching thread does: the time shows where the host is the slower of the two, as it is with small micro-batches, many
ranks or many buckets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.adapters import step_tensors
from cost_models.calibration import Calibration
from cost_models.collectives import GroupShape
from cost_models.launches import backward_launches, forward_launches, tensor_collectives
from cost_models.layout import Layout
from cost_models.model import Model
from cost_models.network_calibration import NetworkCalibration
from cost_models.tracing import priced

__all__ = ["HostTime", "check_s", "step_checks_s", "step_host_s"]


# Of the six passes over a layer's tensors that step_layer_s stands for, those behind the gradients' norm, for which the
# host waits: clipped, updated, copied. Before it: zeroed, copied to fp32, unscaled.
BEHIND_NORM_SHARE = 0.5


@priced("host")
def check_s(group: GroupShape, network: NetworkCalibration) -> float:
    """Time a host spends before it may launch one collective of *group*.

        t = ranks on a node x local + ranks on other nodes x remote          0 for a group of one

    Counted: one exchange per rank, one after the other (a monitored barrier of Gloo).
    Ignored: hosts that arrive late; other groups that check at the same time.
    Source: PyTorch, ProcessGroupWrapper.cpp (runCollectiveChecks) and ProcessGroupGloo.cpp (monitoredBarrier).
    """
    if group.ranks == 1:
        return 0.0
    local = min(group.ranks, group.ranks_per_node)
    return local * network.check_local_s + (group.ranks - local) * network.check_remote_s


class HostTime:
    """Least time of layers of one layout: what the host needs to launch them."""

    def __init__(self, model: Model, layout: Layout, group: GroupShape, cal: Calibration) -> None:
        self._model, self._layout, self._cal = model, layout, cal
        self._check_s = check_s(group, cal.network) if layout.checked_collectives else 0.0

    @priced("host")
    def layer_s(self, *, moe: bool, backward: bool) -> float:
        """Forward or backward of one layer.

            t = max( launches x time of one, calibrated floor (backward: twice) ) + collectives x check

        Counted: with sequence parallelism the backward gathers its input once more: 3 collectives for 2.
        Source: see launches and check_s.
        """
        count = backward_launches if backward else forward_launches
        launches_s = count(self._model, self._layout, moe=moe) * self._cal.launch_s
        layer_s = max(launches_s, (2.0 if backward else 1.0) * self._cal.layer_floor_s)
        collectives = tensor_collectives(self._model, self._layout, moe=moe)
        again = 1.5 if backward and self._layout.sequence_parallel else 1.0
        return layer_s + again * collectives * self._check_s

    @property
    def pass_s(self) -> float:
        """Work around the layers of one pass, forward or backward, of a micro-batch: schedule and hooks."""
        if _whole_iteration(self._layout):
            return 0.0
        return self._cal.micro_batch_fixed_s / 2.0 / self._layout.vpp


@priced("optimizer")
def step_host_s(
    model: Model, layout: Layout, layers: NDArray[np.int64], cal: Calibration
) -> NDArray[np.float64]:
    """Host work of a step that nothing hides, on stages of so many *layers*.

        t = fixed + layers x time per layer          graph of the whole iteration: fixed + layers x time / 2

    Counted: adapters have fewer tensors than a layer that is trained whole. While the GPU replays the passes of a step
    from one graph the host queues what it does for every tensor before it needs the norm of the gradients: half.
    Source: calibration (step_fixed_s, step_layer_s); Megatron-Core, full_cuda_graph.py (FullCudaGraphWrapper holds the
    passes of all micro-batches, the optimizer stays outside).
    """
    layer_s = cal.step_layer_s * step_tensors(model, layout)
    if _whole_iteration(layout):
        layer_s *= BEHIND_NORM_SHARE
    return np.asarray(cal.step_fixed_s + layer_s * layers)


def _whole_iteration(layout: Layout) -> bool:
    return layout.cuda_graphs and layout.cuda_graph_scope == "iteration"


@priced("host")
def step_checks_s(group: GroupShape, layout: Layout, network: NetworkCalibration) -> float:
    """Checks of what the ranks of a data-parallel *group* do once a step beside reducing gradients: loss and norm.

    Source: Megatron-LM and nanotron (mean loss, norm of gradients); gathering parameters is checked with its traffic.
    """
    return 2.0 * check_s(group, network) if layout.checked_collectives else 0.0
