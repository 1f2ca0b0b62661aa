"""The way of a batch to the GPUs: reading and preprocessing, planning, and how much of both the GPUs wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.reading.checked import Checked, Count
from hdpsim.cost_models.tracing import priced

Loader = Literal["shared", "redundant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPipeline(Checked):
    """How a node feeds its GPUs."""

    loader: Loader = "shared"
    """One loader a node writes into shared memory, or every GPU's process reads and preprocesses for itself."""
    asynchronous: bool = True
    """The next step's data is prepared while this step trains; off: when the step begins."""
    prefetch_steps: Count = 1
    """Asynchronous: so many steps ahead the batches are prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPath:
    """What a batch passes before the GPUs may start with it: loading, then planning.

    Attributes:
        loading_s: reading and preprocessing on the node that reads most.
        planning_s: metadata to one controller, planning, sending the plan; 0 where there is nothing to plan.
        ahead_steps: batches that are on their way beside training; 0: none, the step waits for its own.
    """

    loading_s: float
    planning_s: float
    ahead_steps: int

    @property
    def period_s(self) -> float:
        """Time from one batch that is ready to the next, beside training that never lets it wait.

            max(loading, planning, (loading + planning) / q)        q: steps ahead

        Counted: loaders and planner work on one batch at a time, each on its own; with q batches on their way a batch
        is begun when the q-th before it has been taken.
        """
        if not self.ahead_steps:
            return 0.0
        return max(self.loading_s, self.planning_s, (self.loading_s + self.planning_s) / self.ahead_steps)

    def exposed_s(self, step_s: float) -> tuple[float, float]:
        """What loading and planning add to every step of *step_s*, once steps have settled.

        Steps cannot follow each other faster than batches get ready, so beside training they add what their period
        exceeds the step by. Planning is the last on the way: it shows first.
        """
        if not self.ahead_steps:
            return self.loading_s, self.planning_s
        late_s = max(0.0, self.period_s - step_s)
        planning_s = min(late_s, self.planning_s)
        return late_s - planning_s, planning_s


@priced("data")
def node_loading_s(
    tokens: float, layout: Layout, cluster: Cluster, cal: Calibration, pipeline: DataPipeline
) -> float:
    """Time the node that reads most needs for one step's data.

        t = copies x tokens of the node / rate of a node
        tokens of the node = tokens of the batch / d x ranks on the node        d: data-parallel ranks
        copies: 1 (shared), or the GPUs of a TP group on the node, all of which read the same (redundant)

    Counted: disk and CPU of a node are shared by its loaders, so redundant ones contend; context-parallel ranks read
        the sequences they share.
    Ignored: transfer to the GPU; that middle pipeline stages need no tokens (the first and the last do, and everybody
        waits for them).
    Source: MegaScale, arXiv 2402.15627 section 3.4 (redundant data loaders, two-layer tree); rate: calibration.
    """
    node_gpus = cluster.node.gpus
    ranks = layout.parallel.ranks(cluster.gpus)
    ranks_on_node = max(1, min(ranks, node_gpus // layout.parallel.rank_stride))
    copies = min(layout.parallel.tp, node_gpus) if pipeline.loader == "redundant" else 1
    data_parallel = ranks / (layout.parallel.cp or 1)
    groups = max(1.0, ranks_on_node / (layout.parallel.cp or 1))
    return copies * groups * tokens / data_parallel / cal.loader_tokens_per_s
