"""What may be changed of a scenario to make it faster: every layout that divides, and every strategy on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.pipeline_cut import stages_of
from hdpsim.cost_models.layout_checks import layer_units
from hdpsim.cost_models.memory.peak import CAPACITY_STEP_TOKENS
from hdpsim.errors import UserInputError
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.quoting import quoted
from hdpsim.simulator.strategies.static.static_mesh import WHOLE_PACKINGS, divisors

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.simulator.setup import Setup

Changes = tuple[tuple[str, object], ...]
"""Dotted keys of a scenario and what is written there."""

LAYOUT_KEYS = (
    "layout.tp", "layout.pp", "layout.vpp", "layout.schedule", "layout.ep", "layout.etp", "layout.sharding",
    "layout.recompute", "layout.recompute_small_kernels", "layout.optimizer_offload",
)  # fmt: skip
"""What decides what a token costs."""

VARIANT_KEYS = ("strategy.name", "strategy.packing", "layout.cp", "layout.rank_capacity", "data.context")
"""What decides how a batch is spread on a layout."""

USUAL_SCHEDULES = ("1f1b", "interleaved")
"""Schedules that every training stack has."""
MOST_OF_A_SERVER = 16
"""GPUs of a server; racks have more, of which runs take as many as divide well (MLPerf Training 5.0: 2,496 = 39 x 64).
"""
ANY_GPUS = (
    "layout.tp=1", "layout.pp=1", "layout.vpp=1", "layout.schedule=1f1b", "layout.cp=auto", "layout.ep=1",
    "layout.etp=auto",
)  # fmt: skip
"""Degrees that divide whatever there is."""

SMALLER_CAPACITIES = (2, 4, 8)
"""HDP holds as many tokens on a rank as memory allows, or such a part of them."""
ANY_DEGREE = (
    "hdp-naive", "hdp-balance", "hdp-opt", "distca", "flexsp", "megatron-dynamic-cp", "megatron-hybrid-cp",
)  # fmt: skip
"""Strategies to which layout.cp says nothing."""
MICRO_BATCH_SEQUENCES = (1, 2, 4, 8)
"""Equal sequences of a static mesh's micro-batch, where the scenario gives their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Changes that make another scenario of the one that was asked about."""

    changes: Changes

    @property
    def overrides(self) -> tuple[str, ...]:
        """The changes as `--set` takes them."""
        return tuple(f"{key}={_written(value)}" for key, value in self.changes)

    def value(self, key: str, default: object = None) -> object:
        """What the candidate writes there."""
        return dict(self.changes).get(key, default)


def _count(value: object) -> int:
    assert isinstance(value, int)
    return value


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is tried.

    Attributes:
        sites: changes of GPUs and their number; one without changes: those of the scenario.
        pinned: keys that stay as the scenario has them.
        values: of keys for which somebody said what is tried.
    """

    sites: tuple[Changes, ...] = ((),)
    pinned: frozenset[str] = frozenset()
    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def axis(self, key: str, scenario: Scenario, usual: Sequence[object]) -> tuple[object, ...]:
        """The values of a key: what was said, the scenario's own where it is pinned, else the *usual* ones."""
        if key in self.values:
            return self.values[key]
        if key in self.pinned or key in _of_software(scenario):
            return (own_value(scenario, key),)
        return tuple(dict.fromkeys(usual))

    def layouts(self, scenario: Scenario, cluster: Cluster) -> Iterator[Changes]:
        """Every combination of degrees and switches that may divide on the GPUs of a *cluster*.

        What else speaks against one is found out when it is tried.
        """
        gpus, node = cluster.gpus, cluster.node
        powers = [2**power for power in range(node.gpus.bit_length()) if 2**power <= node.gpus]
        for tp in map(_count, self.axis("layout.tp", scenario, powers)):
            if gpus % tp:
                continue
            units = layer_units(scenario.model, scenario.layout.changed(pp=2, vpp=1))
            for pp in map(_count, self.axis("layout.pp", scenario, divisors(gpus // tp, 1, units))):
                yield from self._with_degrees(scenario, gpus, tp, pp)

    def _with_degrees(self, scenario: Scenario, gpus: int, tp: int, pp: int) -> Iterator[Changes]:
        ranks = gpus // (tp * pp)
        present = own_value(scenario, "layout.sharding")
        sharding = ("zero1", "zero3", present) if ranks > 1 else (present,)
        for chunks, experts, shards, (recompute, kernels), offload in product(
            self._chunks(scenario, pp),
            self._experts(scenario, gpus, tp),
            self.axis("layout.sharding", scenario, sharding),
            self._recomputation(scenario),
            self.axis("layout.optimizer_offload", scenario, (False, True)),
        ):
            stages = pp * _count(chunks["layout.vpp"])
            yield tuple({
                "layout.tp": tp, "layout.pp": pp, **chunks, **self._cut(scenario, stages), **experts,
                "layout.sharding": shards,
                "layout.recompute": recompute, "layout.recompute_small_kernels": kernels,
                "layout.optimizer_offload": offload,
            }.items())  # fmt: skip

    def _chunks(self, scenario: Scenario, pp: int) -> Iterator[dict[str, object]]:
        """Chunks of a stage and the schedules that take so many."""
        present = own_value(scenario, "layout.schedule")
        schedules = self.axis("layout.schedule", scenario, (*USUAL_SCHEDULES, present))
        units = layer_units(scenario.model, scenario.layout.changed(pp=pp, vpp=1))
        usual = [
            chunks
            for chunks in range(1, max(1, units // pp) + 1)
            if units % (pp * chunks) == 0 or not chunks & (chunks - 1)
        ]
        for chunks in self.axis("layout.vpp", scenario, usual if pp > 1 else [1]):
            for schedule in schedules:
                needed = {"interleaved": chunks != 1, "zb-v": chunks == 2 and pp > 1, "1f1b": chunks == 1}
                if needed.get(str(schedule), chunks == 1 and pp > 1):
                    yield {"layout.vpp": chunks, "layout.schedule": schedule}

    def _cut(self, scenario: Scenario, stages: int) -> dict[str, object]:
        """A cut by hand has one number of stages: with others layers are dealt as usual, unless it is pinned."""
        key, cut = "layout.pipeline_layout", scenario.layout.pipeline.cut
        if cut is None or key in self.pinned | _of_software(scenario) or len(stages_of(cut)) == stages:
            return {}
        return {key: "auto"}

    def _experts(self, scenario: Scenario, gpus: int, tp: int) -> Iterator[dict[str, object]]:
        """Degrees of experts; nothing where there are none."""
        if not scenario.model.experts:
            yield {}
            return
        cuts = ("auto", 1) if tp > 1 else ("auto",)
        for ep, etp in product(
            self.axis("layout.ep", scenario, divisors(scenario.model.experts, 1, gpus)),
            self.axis("layout.etp", scenario, cuts),
        ):
            yield {"layout.ep": ep, "layout.etp": etp}

    def _recomputation(self, scenario: Scenario) -> list[tuple[object, object]]:
        """Kinds of recomputation, the selective one with small kernels, too."""
        own_kernels = own_value(scenario, "layout.recompute_small_kernels")
        kinds = []
        for kind in self.axis("layout.recompute", scenario, ("none", "selective", "full")):
            usual = (own_kernels, True) if kind == "selective" else (own_kernels,)
            kinds += [(kind, each) for each in self.axis("layout.recompute_small_kernels", scenario, usual)]
        return kinds

    def variants(
        self,
        scenario: Scenario,
        setup: Setup,
        capacity_tokens: Callable[[], int],
        *,
        equal: bool,
        auto: bool = True,
    ) -> Iterator[Changes]:
        """Every strategy on a layout, with the ranks and tokens that a micro-batch may have.

        Args:
            scenario: what was asked about.
            setup: with the layout.
            capacity_tokens: tokens that memory allows on a rank while a pipeline is full; 0: none.
            auto: what memory allows leaves room enough.
            equal: all sequences are of one length: packers make the same packs, and HDP has nothing to balance.
        """
        names = () if equal else ("hdp-opt", "hdp-naive")
        for name in self.axis("strategy.name", scenario, (*names, "static", scenario.strategy.name)):
            if name == "static":
                yield from self._static(scenario, setup, equal=equal)
            else:
                yield from self._dynamic(scenario, setup, str(name), capacity_tokens(), auto=auto)

    def _static(self, scenario: Scenario, setup: Setup, *, equal: bool) -> Iterator[Changes]:
        present = scenario.strategy.packing
        packings = self.axis(
            "strategy.packing", scenario, (present,) if equal else (present, *WHOLE_PACKINGS)
        )
        for context in self._contexts(scenario):
            most = max(1, context // (CAPACITY_STEP_TOKENS * setup.layout.parallel.tp))
            for cp, packing in product(
                self.axis("layout.cp", scenario, divisors(setup.ranks, 1, most)), packings
            ):
                capacity_tokens = context if not isinstance(cp, int) else -(-context // cp)
                capacity = self.axis("layout.rank_capacity", scenario, (f"{capacity_tokens} tokens",))[0]
                yield (
                    ("strategy.name", "static"), ("strategy.packing", packing), ("layout.cp", cp),
                    ("layout.rank_capacity", capacity),
                    *((("data.context", f"{context} tokens"),) if context != scenario.data.context_tokens else ()),
                )  # fmt: skip

    def _contexts(self, scenario: Scenario) -> tuple[int, ...]:
        """Tokens of a pack: of lengths that stand in the scenario several, where the context cuts nothing."""
        context, given = scenario.data.context_tokens, scenario.data.lengths_tokens
        if given is None or "data.context" in self.pinned:
            return (context,)
        batch = scenario.data.batch
        most = batch.tokens or sum(given) * (batch.sequences or 1)
        usual = [max(given) * count for count in MICRO_BATCH_SEQUENCES if max(given) * count <= most]
        return tuple(dict.fromkeys((context, *usual)))

    def _dynamic(
        self, scenario: Scenario, setup: Setup, name: str, capacity_tokens: int, *, auto: bool
    ) -> Iterator[Changes]:
        step = CAPACITY_STEP_TOKENS * setup.layout.parallel.tp
        parts = [capacity_tokens // part // step * step for part in SMALLER_CAPACITIES]
        usual = [f"{part} tokens" for part in (capacity_tokens, *parts) if part]
        if auto and usual:
            usual[0] = "auto"
        degrees: tuple[object, ...] = ("auto",)
        if name not in ANY_DEGREE:
            most = max(1, scenario.data.context_tokens // step)
            degrees = self.axis("layout.cp", scenario, ("auto", *divisors(setup.ranks, 1, most)))
        for capacity, cp in product(self.axis("layout.rank_capacity", scenario, usual), degrees):
            yield (("strategy.name", name), ("layout.cp", cp), ("layout.rank_capacity", capacity))


def own_value(scenario: Scenario, key: str) -> Any:
    """What a scenario has there, as a scenario file writes it; its default where that is left out."""
    section, _, leaf = key.partition(".")
    if section == "layout":
        name = "rank_capacity_tokens" if leaf == "rank_capacity" else leaf
        return KEYS[key].dump(scenario.layout.switch(name))
    return KEYS[key].dump(getattr(scenario.strategy, leaf))


def _of_software(scenario: Scenario) -> frozenset[str]:
    """Keys that the scenario's software stack has decided."""
    return frozenset(f"layout.{setting.switch}" for setting in scenario.settings)


def space_of(
    scenario: Scenario,
    *,
    gpus: Sequence[int] = (),
    gpu_types: Sequence[str] = (),
    pinned: Sequence[str] = (),
    values: Mapping[str, tuple[object, ...]] | None = None,
) -> Space:
    """The space around a scenario.

    Args:
        scenario: what was asked about.
        gpus: numbers of GPUs; default: the scenario's.
        gpu_types: GPUs of the catalog, each on its usual server; default: the scenario's.
        pinned: keys that stay as they are.
        values: what is tried of a key, instead of what is usual.

    Raises:
        UserInputError: values of a key that is not searched.
        CatalogError: a GPU that is not in the catalog, or on none of its servers.
    """
    for key in values or {}:
        if key not in (*LAYOUT_KEYS, *VARIANT_KEYS):
            known = ", ".join((*LAYOUT_KEYS, *VARIANT_KEYS))
            raise UserInputError(f"--search: {quoted(key)} is not searched; searched: {known}")
        for value in (values or {})[key]:
            try:
                KEYS[key].parse(value)
            except ValueError as error:
                raise UserInputError(f"--search: {key}: {error}") from None
    sites = [
        site
        for name in gpu_types or (None,)
        for count in gpus or (None,)
        for site in _sites(scenario, name, count, pinned)
    ]
    return Space(
        sites=tuple(sites),
        pinned=frozenset(pinned),
        values=values or {},
    )


def _sites(
    scenario: Scenario, gpu_type: str | None, count: int | None, pinned: Sequence[str]
) -> list[Changes]:
    """So many GPUs of a type, in whole servers, or in shares of racks where whole racks do not divide them.

    Of the scenario's own racks both are tried: all GPUs of each, and its share.
    """
    all_of_server, *shares = servers_of(scenario, gpu_type, pinned)
    if not shares:
        return [_with_count(all_of_server, count)]
    (share,) = shares
    rack = scenario.cluster.node if gpu_type is None else catalog.node(node_of(scenario, gpu_type))
    used, gpus = _count(dict(share)["cluster.node.gpus"]), count or scenario.cluster.gpus
    if gpus % rack.gpus == 0:
        own = [] if count or gpu_type else [_with_count(share, gpus // rack.gpus * used)]
        return [_with_count(all_of_server, count), *own]
    return [_with_count(all_of_server if gpus % used else share, count)]


def _with_count(site: Changes, count: int | None) -> Changes:
    return site if count is None else (*site, ("gpus", count))


def servers_of(scenario: Scenario, gpu_type: str | None, pinned: Sequence[str]) -> list[Changes]:
    """The server of a type of GPU, or of the scenario; of a rack also the usual share of it, 64 GPUs of 72.

    Degrees of 8 and 16 divide that share. The other GPUs of the rack are idle, but paid for. A server of which some
    key is pinned stays as it is.
    """
    all_of_server: Changes = () if gpu_type is None else (("cluster.node", node_of(scenario, gpu_type)),)
    if any(key.startswith("cluster.node") for key in pinned) or len(scenario.cluster.kinds) > 1:
        return [all_of_server]
    node = scenario.cluster.node if gpu_type is None else catalog.node(node_of(scenario, gpu_type))
    used = 2 ** (node.gpus.bit_length() - 1)
    if node.gpus <= MOST_OF_A_SERVER or used == node.gpus or node.nics * used % node.gpus:
        return [all_of_server]
    share: Changes = (
        ("cluster.node.gpus", used), ("cluster.node.nics", node.nics * used // node.gpus),
        ("cluster.node.idle_gpus", node.gpus - used),
        ("cluster.node.host_memory", f"{node.host_memory_bytes * used / node.gpus / 1e9:.0f}GB"),
    )  # fmt: skip
    return [all_of_server, (*all_of_server, *share)]


def node_of(scenario: Scenario, gpu_type: str) -> str:
    """The server of the catalog for a GPU: the scenario's own, or the usual one."""
    node, gpu = scenario.cluster.node, catalog.gpu(gpu_type).name
    if node.gpu.name == gpu and node.name in catalog.names("node"):
        return node.name
    return catalog.node_with(gpu).name
