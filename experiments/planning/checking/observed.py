"""What checks look at: a scenario that was simulated, in the words of its scenario file and of the table of checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.cost_models.transformer.parameters import stage_layers
from hdpsim.experiments.output.plots.style import account_group, format_tokens
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.settings import settings

from .trials import Trials, overrides_of

if TYPE_CHECKING:
    from hdpsim.arrays import Floats
    from hdpsim.cost_models.hardware.parts import Fabric, Node
    from hdpsim.simulator.setup import Setup
    from hdpsim.simulator.step import StepResult

    from .trials import Changes, Overrides


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The step of a scenario, and a way to try changes of it."""

    trials: Trials
    account_s: dict[str, float]
    """Seconds of a step in each account, mean over ranks, stages and batches."""
    values: dict[str, tuple[Any, Any]]
    """Dotted key -> (value, default)."""

    @classmethod
    def of(cls, trials: Trials) -> Observed:
        """What *trials* have simulated."""
        assert trials.base.setup is not None
        return cls(trials=trials, account_s=trials.base.account_s(), values=settings(trials.base.setup))

    def changed(self, overrides: Overrides) -> Observed:
        """What is seen of the first batch's step with these changes, which can run."""
        trials = self.trials
        return Observed.of(
            Trials(scenario=trials.scenario, drawn=trials.drawn, base=trials.on_first(overrides))
        )

    @property
    def setup(self) -> Setup:
        """What was simulated."""
        assert self.trials.base.setup is not None
        return self.trials.base.setup

    @property
    def first(self) -> StepResult:
        """The step of the first batch."""
        return self.trials.base.results[0]

    @property
    def node(self) -> Node:
        """A server of the cluster."""
        return self.setup.cluster.node

    @property
    def step_s(self) -> float:
        """Mean over the batches."""
        return self.trials.base.step_s.mean

    def value(self, key: str) -> Any:
        """The value of a setting, by its dotted key."""
        return self.values[key][0]

    def seconds_in(self, *accounts: str) -> float:
        """Seconds of a step in these accounts."""
        return sum(self.account_s.get(name, 0.0) for name in accounts)

    def saved_s(self, changes: Changes) -> float:
        """Seconds of the first batch's step that are gone with these changes; 0 where they cannot run."""
        new_changes = self.trials.without_same(changes)
        if not new_changes:
            return 0.0
        return max(0.0, self.trials.first_gain_s(overrides_of(new_changes)))

    @cached_property
    def busy_s(self) -> Floats:
        """By stage: seconds of a step in which a GPU computes or communicates, mean over ranks and batches."""
        terms = len(self.first.accounts) - len(WAITS)
        results = self.trials.base.results
        busy_s: Floats = np.mean(
            [result.account_s[:terms].mean(axis=1).sum(axis=0) for result in results], axis=0
        )
        return busy_s

    def capacities(self, *factors: float) -> Iterator[dict[str, object]]:
        """Other rank capacities: the present one times each of the factors."""
        step = 128 * self.setup.layout.parallel.tp
        for factor in factors:
            tokens = int(self.first.rank_capacity_tokens * factor) // step * step
            if tokens:
                yield {"layout.rank_capacity": f"{tokens} tokens"}

    def degrees_of(self, **degrees: int) -> dict[str, object]:
        """Other degrees with the simplest schedule that takes them."""
        changes: dict[str, object] = {f"layout.{name}": value for name, value in degrees.items()}
        pp = degrees.get("pp", self.setup.layout.parallel.pp)
        if pp == 1 or "pp" in degrees:
            changes |= {"layout.vpp": 1, "layout.schedule": "1f1b"}
        return changes

    @property
    def is_static(self) -> bool:
        """Whether the strategy is a static mesh."""
        return self.setup.strategy.name == "static"

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.setup.layout.parallel.tp

    @property
    def fabric(self) -> Fabric:
        """The network between nodes."""
        return self.setup.cluster.fabric

    @property
    def degrees(self) -> str:
        """Degrees and schedule of the pipeline."""
        parallel, pipeline = self.setup.layout.parallel, self.setup.layout.pipeline
        chunks = f" of {pipeline.vpp} chunks" if pipeline.vpp > 1 else ""
        return f"{parallel.pp} stages{chunks}, schedule {pipeline.schedule}"

    @property
    def micro_batches(self) -> float:
        """Micro-batches that a rank works on, mean over ranks, of the first batch."""
        plan = self.first.plan
        return len(plan.member_ranks) / plan.ranks

    @property
    def layers(self) -> list[int]:
        """Layers of every stage."""
        return [sum(chunks) for chunks in stage_layers(self.setup.model, self.setup.layout)]

    @property
    def layer_counts(self) -> str:
        """How many layers stages have."""
        fewest, most = min(self.layers), max(self.layers)
        return f"{fewest} to {most}" if fewest < most else str(most)

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.layers)

    @property
    def slowest_stage(self) -> int:
        """The one that works longest."""
        return int(self.busy_s.argmax())

    @property
    def last_stage_s(self) -> float:
        """What the last stage works."""
        return float(self.busy_s[-1])

    @property
    def mean_stage_s(self) -> float:
        """What a stage works on average."""
        return float(self.busy_s.mean())

    @property
    def slowest_stage_s(self) -> float:
        """What the slowest stage works longer than the mean."""
        return float(self.busy_s.max()) - self.mean_stage_s

    @property
    def head_is_slowest(self) -> bool:
        """Whether the last stage is the slowest although it has no more layers than others."""
        layers = self.layers
        return self.stages > 1 and self.slowest_stage == self.stages - 1 and layers[-1] <= max(layers)

    @property
    def layers_are_uneven(self) -> bool:
        """Whether there are several stages, and it is not the head that makes one slow."""
        return self.stages > 1 and not self.head_is_slowest

    @property
    def tensor_parallel(self) -> str:
        """What waits for tensor parallelism."""
        if self.tp > self.node.gpus:
            return (
                f"tensor parallelism (TP {self.tp}) leaves the servers of {self.node.gpus} GPUs: every layer waits for "
                f"the network"
            )
        return f"tensor-parallel collectives of every layer (TP {self.tp}) that nothing hides"

    @property
    def largest_group(self) -> int:
        """Ranks of the largest context-parallel group."""
        return max(result.largest_group for result in self.trials.base.results)

    @property
    def rings_leave_servers(self) -> bool:
        """Whether the largest group does not fit into a server."""
        return self.largest_group * self.tp > self.node.gpus

    @property
    def nic_gb_per_s(self) -> float:
        """A GPU's share of the NICs."""
        return self.node.nic_bytes_per_s_per_gpu / 1e9

    @property
    def expert_degree(self) -> str:
        """How far experts are spread."""
        parallel = self.setup.layout.parallel
        return f"EP {parallel.ep}{', beyond a server' if parallel.expert_gpus > self.node.gpus else ''}"

    @property
    def has_expert_parallelism(self) -> bool:
        """Whether experts are spread at all."""
        return self.setup.layout.parallel.ep > 1

    @property
    def slow_nodes(self) -> str:
        """How many are slow, behind a sentence."""
        share, factor = (self.value(f"execution.slow_node_{what}") for what in ("share", "factor"))
        return f"; {share:.1%} of the nodes are {factor:g} times as slow" if share else ""

    @property
    def collects_garbage(self) -> bool:
        """Whether processes stop for it."""
        return bool(self.value("execution.gc_pause") > 0.0)

    @property
    def padding_s(self) -> float:
        """Compute on padding: its share of all tokens in packs, of the compute.

        Ignored: attention, which padding has less of.
        """
        results = self.trials.base.results
        padded = [result.plan.padding_tokens for result in results]
        pad = sum(float(tokens.sum()) for tokens in padded if tokens is not None)
        compute_s = sum(s for name, s in self.account_s.items() if account_group(name) == "compute")
        return compute_s * pad / (pad + sum(result.tokens for result in results))

    @property
    def padded_share(self) -> float:
        """Share of padding in the packs of the first batch."""
        padded = self.first.plan.padding_tokens
        pad = 0.0 if padded is None else float(padded.sum())
        return pad / (pad + self.first.tokens)

    @property
    def context(self) -> str:
        """Tokens of a pack."""
        return format_tokens(self.setup.context_tokens)

    @property
    def groups(self) -> int:
        """Groups of ranks to which packs are dealt."""
        return self.setup.ranks // self.first.largest_group

    @property
    def left_over(self) -> int:
        """Packs of the last round."""
        return self.first.plan_micro_batches % self.groups

    @property
    def left_over_s(self) -> float:
        """What groups without a pack wait for in the last round: rounds not filled, of the step."""
        rounds = -(-self.first.plan_micro_batches // self.groups)
        return (
            self.step_s * (1.0 - self.first.plan_micro_batches / (rounds * self.groups))
            if self.left_over
            else 0.0
        )

    @property
    def free_gib(self) -> float:
        """Memory of the fullest GPU that is left."""
        memory = self.first.memory
        return (memory.capacity_bytes - memory.total_bytes) / 2**30

    @property
    def capacity(self) -> str:
        """Tokens of a rank."""
        return format_tokens(self.first.rank_capacity_tokens)

    @property
    def slow_kernels(self) -> str:
        """Kernels that are not the default."""
        names = ("attention_kernel", "fused_kernels", "fused_loss", "gradient_accumulation", "expert_kernels")
        known = {name: self.values[f"layout.{name}"] for name in names}
        changed = {name: value for name, (value, default) in known.items() if value != default}
        return ", ".join(f"{name} {str(value).lower()}" for name, value in changed.items())

    @property
    def is_oversubscribed(self) -> bool:
        """Whether a tier has less bandwidth above than below."""
        return max(self.fabric.leaf_oversubscription, self.fabric.spine_oversubscription) > 1.0

    @property
    def hashes_flows(self) -> bool:
        """Whether hashes choose up-links."""
        return self.fabric.routing == "ecmp"

    @property
    def replicates_heads(self) -> bool:
        """Whether GPUs compute copies of the same key and value heads."""
        model = self.setup.model
        return self.tp > model.kv_heads and model.latent_attention is None


def halves(degree: int) -> Iterator[int]:
    """Half of a degree, half of that, and so on down to 1."""
    while degree % 2 == 0:
        degree //= 2
        yield degree
