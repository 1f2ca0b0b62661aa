"""Everything a simulated step depends on besides the batch: model, cluster, layout, strategy, execution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, get_args

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextSharding
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.checked import Amount, Checked, Count, Number, Share, Text
from hdpsim.cost_models.reliability.link_flap_stalls import LinkFlaps
from hdpsim.cost_models.step.data_loading import DataPipeline
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError
from hdpsim.ranges import RANGES
from hdpsim.simulator.find_own_strategy import OWN_WORDS, is_own_name, reserve

StrategyName = Literal["static", "hdp-naive", "hdp-balance", "hdp-opt", "wlb-llm", "distca"]
OF_PAPERS: tuple[StrategyName, ...] = ("wlb-llm", "distca")
"""Strategies of others that are no parts of HDP."""
reserve(get_args(StrategyName))
OwnStrategyName = Annotated[str, Text(is_own_name, OWN_WORDS)]
Communicators = Literal["shared", "per-group"]
BalanceMode = Literal["auto", "dp", "pp"]
Executor = Literal["replay", "engine"]
Network = Literal["independent", "flows"]
Packing = Literal["in-order", "first-fit", "best-fit", "concatenate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions(Checked):
    """The strategy and its parts, each of which can be switched off on its own."""

    name: StrategyName | OwnStrategyName = "hdp-opt"
    """How sequences are spread over ranks: a static mesh, hybrid data parallelism as ByteScale's Algorithm 1 (naive),
    as its Algorithm 2 (balance) or as our own planner (opt) has it, packs of equal work (WLB-LLM), attention dealt to
    all ranks alike (DistCA); by the same key flexsp, megatron-dp-balanced, megatron-dynamic-cp, megatron-hybrid-cp,
    megatron-balanced-pp and functions of one's own."""
    packing: Packing = "in-order"
    """How the static mesh packs sequences up to the context length; concatenate: any plan may cut them."""
    padding: bool = True
    """Static mesh: micro-batches have a fixed shape, packs are filled up to the context with padding tokens."""
    activation_offload: Share = 0.0
    """Static mesh: share of kept activations that goes to host memory (a stage's first and last layer keep theirs)."""
    dynamic_groups: bool = True
    """HDP: communicate only where a sequence needs it. Off: every sequence uses the static CP group."""
    selective_offloading: bool = True
    """HDP: activations of long sequences may go to host memory, so that they need fewer ranks (Equation 3)."""
    offload_ratio: Share | None = None
    """HDP: share of a long sequence's activations that group sizes count on going to host memory; None = as much as its
    compute hides, in groups that keep it off the critical path (Equation 3)."""
    communicators: Communicators = "shared"
    """HDP: rings of all groups are messages of one communicator over all ranks, or every group of ranks has one of its
    own, made before the step that uses it, with buffers in GPU memory."""
    balancing: bool = True
    """hdp-balance, hdp-opt: equalise work over ranks (off = hdp-naive)."""
    fixed_shape: bool = False
    """hdp-naive, hdp-balance: micro-batches have a fixed shape, layout.rank_capacity tokens on each of their ranks,
    filled up with padding (offloading: they may hold more). Off: the tokens of their sequences."""
    buckets: Annotated[int, RANGES["buckets"]] = 16
    """hdp-balance: buckets of equal work that the sequences, sorted by length, are cut into."""
    delta: Share = 0.02
    """hdp-balance: share of a rank's mean work by which a rank must lag behind the busiest one to be given more."""
    mode: BalanceMode = "auto"
    """hdp-balance: dp takes sequences from one bucket at a time, pp from all in turn; auto: pp with a pipeline."""
    remote_data_loading: bool = True
    """HDP: a remote loader reads every token once, beside training; off: all nodes read all, when the step begins."""
    speed_aware: bool = True
    """HDP on nodes of several kinds: ranks get sequences by their speed and memory; off: as if all were the slowest."""

    outlier_queues: Annotated[int, RANGES["outlier_queues"]] = 0
    """wlb-llm: queues in which long documents wait for later batches, until every micro-batch can get one; 0: none."""

    estimate_error: Share = 0.0
    """HDP, one's own: coefficient of variation of the planner's estimates of time, by length; steps take the truth."""

    @property
    def has_one_mesh(self) -> bool:
        """Whether all micro-batches run on the groups of one static mesh."""
        return self.name == "static" or not (self.dynamic_groups or self.is_own)

    @property
    def in_turns(self) -> bool:
        """Whether all ranks run equally many micro-batches, so that they can meet in each of them."""
        return self.has_one_mesh or self.name in ("wlb-llm", "distca")

    @property
    def of_bytescale(self) -> bool:
        """Whether ByteScale's Algorithm 1 or 2 plans."""
        naive = self.name == "hdp-opt" and not self.balancing
        return self.dynamic_groups and (naive or self.name in ("hdp-naive", "hdp-balance"))

    @property
    def is_own(self) -> bool:
        """Whether a function of somebody else plans."""
        return self.name not in get_args(StrategyName)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions(Checked):
    """How the plan is played."""

    executor: Executor = "replay"
    """In closed form, or event by event; both give the same times."""
    network: Network = "independent"
    """Transfers between nodes at rates of their own, or as flows that share links (the engine plays)."""
    seed: Number = 0
    """Of everything that is drawn at random: the same machines and moments under every strategy and layout."""
    jitter: Share = 0.0
    """Coefficient of variation of every operation's duration (log-normal)."""
    node_jitter: Share = 0.0
    """Coefficient of variation of a node's compute time from step to step (log-normal), shared by all its GPUs."""
    node_jitter_steps: Annotated[int, RANGES["noise_steps"]] = 0
    """Steps over which a node's pace drifts (correlation exp(-1 / this) from one to the next); 0: new in each step."""
    step_jitter: Share = 0.0
    """Coefficient of variation that all nodes share in a step (log-normal)."""
    slow_period_share: Annotated[float, RANGES["slow_period_share"]] = 0.0
    """Share of the nodes that are in a slow period at any time."""
    slow_period_factor: Annotated[float, RANGES["slow_factor"]] = 1.5
    """How much longer a node computes in a slow period."""
    slow_period_steps: Annotated[int, RANGES["noise_steps"].from_least(1)] = 100
    """Mean steps that a slow period lasts."""
    collective_jitter: Share = 0.0
    """Coefficient of variation of one rank's time in a collective, which waits for the slowest of its ranks."""
    launch_skew_s: Amount = 0.0
    """How far launches of ranks drift apart in a micro-batch (standard deviation), until gradients are summed."""
    slow_node_share: Share = 0.0
    """Share of nodes whose forwards are slower by slow_node_factor."""
    slow_node_factor: Annotated[float, RANGES["slow_factor"]] = 1.1
    """How much longer a slow node takes for the same forward; its backwards keep their time."""
    gpu_spread: Annotated[float, RANGES["gpu_spread"]] | None = None
    """Coefficient of variation of the speed of equal GPUs, the same all the time, drawn from the seed; None = the
    calibration's, and all GPUs at the rate that the slowest of so many is expected to have."""
    gc_pause_s: Amount = 0.0
    """One garbage collection of a training process; 0 = never."""
    gc_period_steps: Count = 10
    """Steps from one collection of a process to its next."""
    gc_synchronised: bool = False
    """All processes collect in the same step, at its start, instead of whenever each one's turn comes."""
    link_flaps_per_hour: Annotated[float, RANGES["per_hour"]] = 0.0
    """How often the link of a NIC goes down for seconds (flows only)."""
    link_flap_mean_s: Amount = 5.0
    """How long it stays down on average (exponential)."""
    nccl_timeout: Annotated[int, RANGES["nccl_timeout"]] = 20
    """A connection over a link that is down sends again every 4.096 us x 2^this."""
    nccl_retries: Annotated[int, RANGES["misses"].from_least(0)] = 7
    """How often it does, before the job ends."""
    adaptive_retransmission: bool = False
    """The NIC sends again soon after the link is back, not at the next full timeout."""
    spans: bool = False
    """Record every operation for a timeline (engine only)."""
    record_links: bool = False
    """Record what went over every link (flows only)."""
    step: Number = 0
    """Number of the step in its run: what is drawn anew from step to step depends on it."""
    replication: Number = 0
    """Number of the repetition with other machines and moments."""

    @property
    def draws_nothing(self) -> bool:
        """Whether every duration is what the costs say."""
        slow = self.slow_node_share > 0 and self.slow_node_factor != 1.0
        return not (slow or self.gpu_spread or self.draws_steps)

    @property
    def draws_steps(self) -> bool:
        """Whether what is drawn changes from one step to the next."""
        drawn = self.jitter or self.node_jitter or self.step_jitter or self.slow_period_share
        return bool(drawn or (self.gc_pause_s > 0 and not self.gc_synchronised) or self.link_flaps_per_hour)

    @property
    def link_flaps(self) -> LinkFlaps:
        """The law of links that go down."""
        return LinkFlaps(
            per_link_day=24.0 * self.link_flaps_per_hour,
            mean_s=self.link_flap_mean_s,
            timeout=self.nccl_timeout,
            retries=self.nccl_retries,
            adaptive=self.adaptive_retransmission,
        )

    @property
    def may_hurry(self) -> bool:
        """Whether what is drawn can make operations faster than their costs, beside the spread of GPUs."""
        return bool(self.jitter or self.node_jitter or self.step_jitter)

    @property
    def has_tails(self) -> bool:
        """Whether collectives or launches wait for the slowest of their ranks."""
        return bool(self.collective_jitter or self.launch_skew_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions(Checked):
    """What the training stack keeps in memory beside training itself, and what becomes of a step that does not fit."""

    overheads: MemoryOverheads = field(default_factory=MemoryOverheads)
    must_fit: bool = True
    """A step that needs more memory than there is cannot run; off: it is simulated all the same (a run that exists)."""


def lacking_flows(execution: ExecutionOptions, cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """Keys that only flows know, where the network is another."""
    if execution.network == "flows":
        return ()
    return tuple(
        (key, "needs flows, which know links: set execution.network = flows")
        for key, given in (
            ("cluster.fabric.degraded_links", cluster.fabric.degraded_links),
            ("cluster.fabric.ecmp_seed", cluster.fabric.ecmp_seed),
            ("execution.link_flaps_per_hour", execution.link_flaps_per_hour),
        )
        if given
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Checked):
    """One configuration, ready to simulate any batch."""

    model: Model
    cluster: Cluster
    layout: Layout
    calibration: Calibration
    context_tokens: Count
    strategy: StrategyOptions = field(default_factory=StrategyOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    data_pipeline: DataPipeline = field(default_factory=DataPipeline)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    kind_calibrations: tuple[Calibration, ...] = ()
    """Of nodes of several kinds, the calibration of each; `calibration` is that of the first."""
    software_stated: bool = True
    """Whether somebody says what the training stack does, or switches stand as they usually do: bands of a guess are
    those of guesses; no time depends on it."""
    set_by_software: tuple[str, ...] = field(default=(), compare=False)
    """Fields that the software stack set, not the user: notes say so; no time depends on it."""

    def contradictions(self) -> tuple[tuple[str, str], ...]:
        """What only flows know, without flows."""
        return lacking_flows(self.execution, self.cluster)

    @property
    def kinds(self) -> tuple[Setup, ...]:
        """The setup as if all nodes were of one kind, for every kind of node: itself where there is only one.

        Raises:
            InfeasibleError: something that is not modelled on nodes of several kinds.
        """
        if not isinstance(self.cluster, MixedCluster):
            return (self,)
        for wrong, key in (
            (self.execution.gpu_spread, "execution.gpu_spread"),
            (self.execution.gc_pause_s and not self.execution.gc_synchronised, "execution.gc_pause"),
            (self.memory.overheads.host_run_ahead, "memory.host_run_ahead"),
        ):
            if wrong:
                raise InfeasibleError(f"{key} is not modelled on nodes of several kinds; leave it out")
        if len(self.kind_calibrations) != len(self.cluster.kinds):
            raise InfeasibleError(
                f"cluster {self.cluster.name} needs a calibration for each of its {len(self.cluster.kinds)} kinds of "
                f"nodes in kind_calibrations, got {len(self.kind_calibrations)}"
            )
        return tuple(
            replace(self, cluster=cluster, calibration=fitted, kind_calibrations=())
            for cluster, fitted in zip(self.cluster.kinds, self.kind_calibrations, strict=True)
        )

    def at_step(self, number: int) -> Setup:
        """The setup of a step of a run: itself where nothing is drawn anew from step to step."""
        if not self.execution.draws_steps or self.execution.step == number:
            return self
        return replace(self, execution=replace(self.execution, step=number))

    @property
    def cp_sharding(self) -> ContextSharding:
        """What groups cut: as stated, or else as the system does it whose strategy this is."""
        chooses = self.strategy.name in ("wlb-llm", "hdp-opt") and self.strategy.dynamic_groups
        return self.layout.context.sharding or ("adaptive" if chooses else "document")

    @property
    def ranks(self) -> int:
        """HDP ranks (d_hdp = d_dp x d_cp)."""
        return self.layout.parallel.ranks(self.cluster.gpus)
