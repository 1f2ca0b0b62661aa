"""What breaks and how often: published failure counts as rates per node, per link or per job.

A profile is a file of data/failures; the file's name is the profile's name. A user's own has the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from hdpsim.cost_models.reading.fields import Fields, Problems
from hdpsim.cost_models.reading.shipped import known_file, names_in, shipped
from hdpsim.cost_models.reading.units import DAY_S
from hdpsim.yaml_loader import load_document

Scope = Literal["node", "link", "job"]
Detection = Literal["in-band", "heartbeat", "hang", "planned"]

_FOLDER = shipped("cost_models/data/failures")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """One reason why a job stops.

    Attributes:
        name: the cause, as reports print it.
        per_day: events per day and unit of the scope.
        scope: what it happens to: each node, each NIC-to-switch link, or the job as a whole.
        detection: how the job notices: an error in band, missed heartbeats, a hang that ends in a timeout;
            or planned, in which case a checkpoint is taken first.
        evict: whether a node is taken out for repair.
    """

    name: str
    per_day: float
    scope: Scope
    detection: Detection
    evict: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureProfile:
    """Everything that stops jobs on one published system.

    Attributes:
        name: the file's name, without its ending.
        title: what was observed, in one line.
        causes: in the order of the file.
    """

    name: str
    title: str
    causes: tuple[FailureCause, ...]

    def per_s(self, nodes: int, links_per_node: int, scale: float = 1.0) -> tuple[float, ...]:
        """Events per second of each cause, for a job on that many nodes."""
        units = {"node": float(nodes), "link": float(nodes * links_per_node), "job": 1.0}
        return tuple(scale * cause.per_day * units[cause.scope] / DAY_S for cause in self.causes)

    @property
    def unplanned(self) -> FailureProfile:
        """This profile without planned interruptions."""
        return replace(self, causes=tuple(c for c in self.causes if c.detection != "planned"))


def job_mttf_s(nodes: int, failures_per_1000_node_days: float) -> float:
    """Mean time to failure of a job.

        MTTF = 1000 days / (N r_f)

    Counted: independent failures with a constant rate on every node.
    Ignored: what small jobs show (published 7.9 h at 1,024 GPUs against 28.8 h); use from 4,096 GPUs on.
    Source: Meta, arXiv 2410.21680.
    """
    return 1000.0 * DAY_S / (nodes * failures_per_1000_node_days)


def failure_profile_names() -> tuple[str, ...]:
    """The shipped profiles."""
    return names_in(_FOLDER)


@cache
def failure_profile(name: str) -> FailureProfile:
    """The shipped profile of that name; raises CatalogError."""
    return load_failure_profile(known_file(name, _FOLDER, "failure profile"))


def load_failure_profile(path: Path) -> FailureProfile:
    """Read a profile.

    Keys: title; causes, each with detection, evict, scope and either count or per_1000_days (per unit of its scope);
    gpus, gpus_per_node, links_per_node and period turn counts into rates; per_1000_node_days replaces the total
    rate of node and link causes and keeps their mix; mix_of takes the unplanned causes of a shipped profile.

    Raises:
        UserInputError: unreadable, or a ScenarioError with every problem.
    """
    document = load_document(path)
    problems = Problems(str(path), document.where)
    fields = Fields(document.data, problems)
    title = fields.text("title")
    fields.take("sources")
    links_per_node = fields.integer("links_per_node", default=8)
    causes = list(_causes(fields, _observed(fields), links_per_node))
    total = fields.number("per_1000_node_days", default=0.0, kind="per_1000_days")
    fields.finish()
    if not causes:
        problems.add("causes", "is required (or mix_of: the name of a shipped profile)")
    problems.raise_if_any()
    if total > 0:
        causes = _scaled_to(causes, total / 1000.0, links_per_node)
    return FailureProfile(name=path.stem, title=title, causes=tuple(causes))


def _observed(fields: Fields) -> tuple[float, float] | None:
    """Nodes and days behind the counts."""
    per_node = fields.integer("gpus_per_node", default=8)
    gpus, period = fields.has("gpus"), fields.has("period")
    nodes = fields.integer("gpus", default=0) / per_node
    days = fields.quantity("period", "time", default=0.0) / DAY_S
    if gpus != period:
        fields.problems.add("gpus" if period else "period", "gpus and period go together")
    return (nodes, days) if nodes and days else None


def _causes(
    fields: Fields, observed: tuple[float, float] | None, links_per_node: int
) -> Iterator[FailureCause]:
    problems = fields.problems
    if fields.has("mix_of"):
        name = fields.choice("mix_of", failure_profile_names())
        if not fields.has("per_1000_node_days"):
            problems.add("per_1000_node_days", "is required with mix_of")
        if not problems.found:
            yield from failure_profile(name).unplanned.causes
        return
    below = fields.mapping("causes")
    weights_only = fields.has("per_1000_node_days")
    for name in below.given:
        entry = below.mapping(name)
        scope: Scope = entry.choice("scope", get_args(Scope), default="node")  # type: ignore[assignment]
        detection: Detection = entry.choice("detection", get_args(Detection), default="in-band")  # type: ignore[assignment]
        evict = entry.boolean("evict", default=detection != "planned")
        count = entry.number("count", default=0.0, kind="events")
        rate = entry.number("per_1000_days", default=0.0)
        entry.finish()
        if entry.has("count") == entry.has("per_1000_days"):
            problems.add(entry.key, "give either count or per_1000_days")
            continue
        if entry.has("count") and observed is None and not weights_only:
            problems.add(entry.dotted("count"), "needs gpus and period, or per_1000_node_days")
            continue
        nodes, days = observed or (1.0, 1.0)
        units = {"node": nodes, "link": nodes * links_per_node, "job": 1.0}[scope]
        per_day = rate / 1000.0 if entry.has("per_1000_days") else count / (units * days)
        yield FailureCause(name=name, per_day=per_day, scope=scope, detection=detection, evict=evict)


def _scaled_to(causes: list[FailureCause], per_node_day: float, links_per_node: int) -> list[FailureCause]:
    """The same mix of node and link causes with that total; causes of the job keep their rate."""
    weight = {"node": 1.0, "link": float(links_per_node), "job": 0.0}
    now = sum(cause.per_day * weight[cause.scope] for cause in causes)
    return [
        cause
        if cause.scope == "job" or not now
        else replace(cause, per_day=cause.per_day * per_node_day / now)
        for cause in causes
    ]
