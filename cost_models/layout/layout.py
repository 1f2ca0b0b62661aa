"""How a model is spread over GPUs: the parallel degrees and the switches of the training stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from hdpsim.cost_models.layout.switch_metadata import About, about
from hdpsim.cost_models.layout.switches import (
    Context,
    Experts,
    Group,
    Host,
    Kernels,
    Parallel,
    Pipeline,
    Precision,
    Recompute,
    Sharding,
    Tensor,
)
from hdpsim.cost_models.reading.checked import Checked, MisfitError
from hdpsim.errors import UserInputError
from hdpsim.quoting import did_you_mean

GROUPS: Mapping[str, type[Group]] = {
    "parallel": Parallel, "pipeline": Pipeline, "tensor": Tensor, "sharding": Sharding, "recompute": Recompute,
    "precision": Precision, "experts": Experts, "kernels": Kernels, "host": Host, "context": Context,
}  # fmt: skip


class Switch(NamedTuple):
    """Where the switch of a *name* is found: its *group*, its *field* there, and what is said of it."""

    name: str
    group: str
    field: str
    about: About


def _switches() -> dict[str, Switch]:
    by_name = {}
    for group, kind in GROUPS.items():
        for item in fields(kind):  # type: ignore[arg-type]  # every group is a dataclass
            said = about(item)
            name = said.name or item.name
            by_name[name] = Switch(name, group, item.name, said)
    return by_name


SWITCHES: Mapping[str, Switch] = _switches()
"""Every switch of a layout by the one name that scenarios, software stacks and `Layout(...)` call it."""

_DEFAULTS: Mapping[str, Group] = {name: kind() for name, kind in GROUPS.items()}


def _watched_part(part: Callable[[Layout], Layout]) -> Callable[[Layout], Layout]:
    """A *part* of a layout, kept; of a layout that is watched all of it, so that whatever is read is seen."""
    kept = lru_cache(maxsize=4096)(part)

    def found(layout: Layout) -> Layout:
        return kept(layout) if type(layout.pipeline) is Pipeline else layout

    found.__doc__ = part.__doc__
    return found


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Layout(Checked):
    """Degrees and switches, in groups.

    A layout is made of switches by their names, of whole groups, or of both:

        Layout(tp=2, schedule="zb-h1")
        Layout(parallel=Parallel(tp=2), pipeline=Pipeline(schedule="zb-h1"))

    Raises:
        UserInputError: an unknown switch, or every switch that is not what its field's annotation says.
    """

    parallel: Parallel
    pipeline: Pipeline
    tensor: Tensor
    sharding: Sharding
    recompute: Recompute
    precision: Precision
    experts: Experts
    kernels: Kernels
    host: Host
    context: Context

    def __init__(self, **switches: Any) -> None:
        given = {name: value for name, value in switches.items() if isinstance(value, Group)}
        if given:
            switches = {name: value for name, value in switches.items() if name not in given}
            _check_groups(given, switches)
        for name, group in _with_changes({**_DEFAULTS, **given}, switches).items():
            object.__setattr__(self, name, group)

    def with_groups(self, **groups: Group) -> Layout:
        """This layout with other groups, which are not checked again."""
        new = object.__new__(Layout)
        for name in GROUPS:
            object.__setattr__(new, name, groups.get(name, getattr(self, name)))
        return new

    def changed(self, **switches: Any) -> Layout:
        """This layout with other values of some switches."""
        return Layout(**_with_changes({name: getattr(self, name) for name in GROUPS}, switches))

    @property
    @_watched_part
    def of_layers(self) -> Layout:
        """The layout as far as a pass of a single layer or head can tell.

        It is the same for all pipelines and kinds of sharding, and whatever of a forward the backward repeats. What
        prices a layer is given this layout, so that it cannot depend on anything else.
        """
        deferred, schedule = self.defers_head_gradient, self.pipeline.schedule
        # Deferring needs a pipeline of two stages at least; with this order stages stand between neighbouring ranks.
        stages = self.parallel.pp if self.parallel.order == "tp-pp-dp" else 1 + deferred
        schedule = "1f1b" if schedule == "interleaved" else schedule
        recompute = Recompute()
        if self.recompute.kind == "selective" and self.recompute.small_kernels:
            recompute = Recompute(kind="selective", small_kernels=True, layers=self.recompute.layers)
        sharding = Sharding(kind="zero3") if self.sharding.sums_layers else Sharding()
        if self.sharding.kind == "zero3" and self.sharding.module_hooks:
            sharding = replace(sharding, module_hooks=True)
        return self.with_groups(
            parallel=replace(self.parallel, pp=stages, cp=None),
            pipeline=Pipeline(schedule=schedule, deferred_head_gradient=deferred),
            sharding=sharding,
            recompute=recompute,
            context=replace(self.context, rank_capacity_tokens=None),
        )

    @property
    @_watched_part
    def of_stages(self) -> Layout:
        """The layout as far as the contents of pipeline stages go: degrees and the pipeline."""
        return Layout(parallel=replace(self.parallel, cp=None), pipeline=self.pipeline)

    @property
    @_watched_part
    def of_states(self) -> Layout:
        """The layout as far as weights, gradients and optimizer states go."""
        return self.of_stages.with_groups(sharding=self.sharding, precision=self.precision)

    @property
    @_watched_part
    def of_prices(self) -> Layout:
        """The layout as far as prices go: how much ranks may hold decides what is planned, not what that costs."""
        return self.with_groups(context=replace(self.context, rank_capacity_tokens=None))

    def switch(self, name: str) -> Any:
        """The value of the switch of that name."""
        _, group, field, _ = SWITCHES[name]
        return getattr(getattr(self, group), field)

    def switches(self) -> dict[str, Any]:
        """The value of every switch, by its name."""
        return {name: self.switch(name) for name in SWITCHES}

    def __repr__(self) -> str:
        usual = Layout()
        changed = {name: value for name, value in self.switches().items() if value != usual.switch(name)}
        return f"Layout({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def meeting_ranks(self, ranks: int) -> int:
        """Neighbours, of so many ranks, that meet in every layer: they share its parameters (zero3) or its experts."""
        shard = min(self.sharding.ranks or ranks, ranks) if self.sharding.kind == "zero3" else 1
        return min(ranks, math.lcm(shard, self.parallel.expert_ranks))

    @property
    def defers_head_gradient(self) -> bool:
        """Whether weight gradients of the output projection wait until the pipeline drains: there must be one."""
        pipeline = self.pipeline
        deferred = pipeline.deferred_head_gradient and pipeline.schedule in ("1f1b", "interleaved")
        return deferred and self.parallel.pp > 1


def _with_changes(groups: Mapping[str, Any], switches: Mapping[str, Any]) -> dict[str, Any]:
    """The groups after *switches* are set, all of whose faults are named at once."""
    unknown = [name for name in switches if name not in SWITCHES]
    if unknown:
        hint = did_you_mean(unknown[0], tuple(SWITCHES))
        raise UserInputError(f"Layout: there is no switch {', '.join(unknown)}{hint}")
    new: dict[str, dict[str, Any]] = {}
    for name, value in switches.items():
        _, group, field, _ = SWITCHES[name]
        new.setdefault(group, {})[field] = value
    changed = dict(groups)
    problems: dict[str, str] = {}
    for group, changes in new.items():
        try:
            changed[group] = replace(groups[group], **changes)
        except MisfitError as error:
            problems |= {f"{group}.{field}": text for field, text in error.problems}
    if problems:
        homes = {switch.name: f"{switch.group}.{switch.field}" for switch in SWITCHES.values()}
        faults = ((switch, problems[home]) for switch, home in homes.items() if home in problems)
        raise MisfitError("Layout", tuple(faults))
    return changed


def _check_groups(given: Mapping[str, Group], switches: Mapping[str, object]) -> None:
    for name, group in given.items():
        kind = GROUPS.get(name)
        if kind is None or not isinstance(group, kind):
            raise UserInputError(f"Layout: {name} is no group of the kind {type(group).__name__}")
    for name in switches:
        # As dataclasses.replace(layout, recompute="full") would drop the rest of the group
        if name in GROUPS:
            raise UserInputError(f"Layout: {name} is a switch and a group; use layout.changed({name}=...)")
