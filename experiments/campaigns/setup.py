"""From a scenario to a campaign: what the simulator needs, derived from model, cluster and the `campaign` section."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reliability.checkpoint import (
    CheckpointSize,
    blocking_s,
    checkpoint_size,
    daly_interval_s,
    expected_ettr,
    load_s,
    upload_s,
    young_interval_s,
)
from hdpsim.cost_models.reliability.failures import (
    FailureCause,
    FailureProfile,
    failure_profile,
    load_failure_profile,
)
from hdpsim.cost_models.reliability.link_flap_stalls import LinkFlaps
from hdpsim.cost_models.reliability.startup import group_initialisation_s
from hdpsim.errors import CatalogError, InfeasibleError, ScenarioError
from hdpsim.experiments.campaigns.undisturbed_step import (
    UndisturbedStep,
    slow_steps_of,
    undisturbed_step,
    without_what_comes_and_goes,
)
from hdpsim.experiments.campaigns.without_effect import idle_keys
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.ranges import LIMITS
from hdpsim.simulator.campaign.diagnosis import TESTS
from hdpsim.simulator.campaign.events import Handling, mean_detection_s
from hdpsim.simulator.campaign.setup import CampaignSetup

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

SPARE_QUANTILE = 0.999  # ByteRobust keeps the 99th percentile; waiting hours for a repair costs more
MOST_CHECKPOINTS = 1e8  # a minute of computing per run; one a step is 4e5 in a month
VALID_LOST_SHARE = 0.25  # first order only: with more lost time the closed form is off by over 1.4 %


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """A campaign ready to run.

    Attributes:
        setup: for the simulator, seed and number of the run still to be set.
        seeds: how many runs.
        seed: seed of the study.
        size: how large a checkpoint is.
        unplanned_per_s: rate of the failures that nobody planned.
        restart_s: mean time from failure to training, without waiting for nodes.
        closed_form_ettr: first-order expectation of the effective-training-time ratio.
        closed_form_valid: whether its assumptions hold here.
        undisturbed: a step without link flaps.
        step_note: where the step time comes from.
        idle_notes: keys that change nothing, each with the reason.
    """

    setup: CampaignSetup
    seeds: int
    seed: int
    size: CheckpointSize
    unplanned_per_s: float
    restart_s: float
    closed_form_ettr: float
    closed_form_valid: bool
    undisturbed: UndisturbedStep
    step_note: str
    idle_notes: tuple[str, ...]

    @property
    def interval_s(self) -> float:
        """Work between two checkpoints."""
        return self.setup.steps_per_checkpoint * self.setup.step_s

    @property
    def expected_mtbf_s(self) -> float | None:
        """Mean time between unplanned failures; None = never."""
        return 1.0 / self.unplanned_per_s if self.unplanned_per_s > 0 else None


def plan_campaign(scenario: Scenario, *, known: CampaignPlan | None = None) -> CampaignPlan:
    """Derive a campaign.

    *known* is a plan of the same scenario but for its duration: its step is not simulated once more.

    Raises:
        UserInputError: an unknown or malformed failure profile.
        InfeasibleError: the step cannot be simulated, or is longer than the campaign.
    """
    return plan_values(scenario, campaign_values(scenario), known=known)


def plan_values(
    scenario: Scenario,
    values: Mapping[str, Any],
    *,
    known: CampaignPlan | None = None,
) -> CampaignPlan:
    """This plan with these values of the `campaign` section.

    *known* is a plan of the same scenario that differs in one value, not in `step` or `straggler_factor`: what was
    simulated for it is taken from there.
    """
    cluster = scenario.cluster
    stragglers = values["straggler_share"] > 0 or values["straggler_mttf"] is not None
    scenario = without_what_comes_and_goes(scenario, values, stragglers)
    if known is not None and stragglers == bool(known.setup.slow_steps):
        undisturbed = known.undisturbed
    else:
        undisturbed = undisturbed_step(scenario, values["step"])
    if undisturbed.seconds > values["duration"]:
        raise InfeasibleError(
            f"campaign.duration: {values['duration']:g} s are shorter than one step ({undisturbed.seconds:.3g} s)"
        )
    size = checkpoint_size(scenario.model, scenario.layout, _ranks(scenario), scenario.memory.overheads)
    times = _restart_times(scenario, values, size)
    flaps = _link_flaps(values)
    step_s, step_note = _stalled(
        undisturbed.seconds, undisturbed.note, flaps, cluster.nodes * cluster.node.nics
    )
    failures = _failures(scenario, values, flaps)
    handling = _handling(values)
    leaving = _leaving_nodes(cluster.nodes, values, handling, failures)
    slow_steps = known.setup.slow_steps if known is not None and stragglers else ()
    if stragglers and not slow_steps:
        slow_steps = slow_steps_of(scenario, values["straggler_factor"])
    steps = _steps_per_checkpoint(values, step_s, times, _losses_per_s(failures, leaving, slow_steps))
    _refuse_too_many(values["duration"] / (steps * step_s + times["block_s"]))
    strikes_per_s = failures.unplanned_per_s * (
        1 if handling.diagnosis.is_perfect else 1 + handling.diagnosis_rounds
    )
    stops_per_s = strikes_per_s + failures.planned_per_s + leaving.slow_per_s + leaving.alarms_per_s
    _refuse_too_many_stops(values["duration"] * stops_per_s)
    derived = {
        **times,
        "nodes": cluster.nodes,
        "links_per_node": cluster.node.nics,
        "step_s": step_s,
        "stalled_share": 1.0 - undisturbed.seconds / step_s,
        "tokens_per_step": undisturbed.tokens,
        "steps_per_checkpoint": steps,
        "failures": failures.profile,
        "handling": handling,
        "spares": _spares(values["spares"], leaving.mean_away),
        "slow_steps": slow_steps,
    }
    setup = CampaignSetup(**{**_stated(CampaignSetup, values), **derived, "seed": (0, 0)})
    ettr, valid, restart = _closed_form(setup, failures)
    return CampaignPlan(
        setup=setup,
        seeds=values["seeds"],
        seed=values["seed"],
        size=size,
        unplanned_per_s=failures.unplanned_per_s,
        restart_s=restart,
        closed_form_ettr=ettr,
        closed_form_valid=valid and setup.spares >= leaving.mean_away,
        undisturbed=undisturbed,
        step_note=step_note,
        idle_notes=idle_keys(values, failures.profile),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    """What ends the job, and how often.

    Attributes:
        profile: its causes, with link flaps that outlast the timeout.
        per_s: rate of each cause, over all nodes.
    """

    profile: FailureProfile
    per_s: tuple[float, ...]

    def _sum(self, counts: Callable[[FailureCause], bool]) -> float:
        return sum(rate for rate, cause in zip(self.per_s, self.profile.causes, strict=True) if counts(cause))

    @property
    def planned_per_s(self) -> float:
        return self._sum(lambda cause: cause.detection == "planned")

    @property
    def unplanned_per_s(self) -> float:
        return sum(self.per_s) - self.planned_per_s

    @property
    def evicting_per_s(self) -> float:
        """Rate of failures after which a node goes to repair."""
        return self._sum(lambda cause: cause.evict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeavingNodes:
    """Nodes that are taken out.

    Attributes:
        alarms_per_s: rate of healthy nodes taken for slow ones.
        slow_per_s: rate of nodes that become slow.
        found_per_s: rate of those that are found before they are as fast as the others again.
        mean_away: nodes in repair, in the mean over the run, with those that are slow at its start.
    """

    alarms_per_s: float
    slow_per_s: float
    found_per_s: float
    mean_away: float


def _ranks(scenario: Scenario) -> int:
    """Groups of GPUs that share the layers of one replica's stage and shards."""
    parallel = scenario.layout.parallel
    return scenario.cluster.gpus // (parallel.tp * parallel.pp)


def _restart_times(scenario: Scenario, values: Mapping[str, Any], size: CheckpointSize) -> dict[str, float]:
    """Seconds of writing and loading a checkpoint and of setting up groups: as given, or derived."""
    cluster, parallel, storage = scenario.cluster, scenario.layout.parallel, values["storage_bandwidth"]
    return {
        "block_s": _given_or(values["checkpoint_block"], lambda: blocking_s(size, cluster)),
        "upload_s": _given_or(values["checkpoint_upload"], lambda: upload_s(size, cluster, storage)),
        "load_s": _given_or(
            values["checkpoint_load"],
            lambda: load_s(size, cluster, _ranks(scenario), storage, values["readers"]),
        ),
        "group_initialisation_s": _given_or(
            values["group_initialisation"],
            lambda: group_initialisation_s(cluster.gpus, parallel.tp, parallel.pp, values["startup"]),
        ),
    }


def _link_flaps(values: Mapping[str, Any]) -> LinkFlaps:
    return LinkFlaps(
        per_link_day=values["link_flaps_per_day"],
        mean_s=values["link_flap_mean"],
        timeout=values["nccl_timeout"],
        retries=values["nccl_retries"],
        adaptive=values["adaptive_retransmission"],
    )


def _failures(scenario: Scenario, values: Mapping[str, Any], flaps: LinkFlaps) -> _Failures:
    """The profile's causes, and the flaps that end the job among them."""
    profile, cluster = _profile(values["failures"], scenario.folder), scenario.cluster
    if flaps.cause is not None:
        profile = replace(profile, causes=(*profile.causes, flaps.cause))
    return _Failures(
        profile=profile, per_s=profile.per_s(cluster.nodes, cluster.node.nics, values["failure_scale"])
    )


def _handling(values: Mapping[str, Any]) -> Handling:
    tests = tuple(test for test in TESTS if test in values["diagnosis_tests"])
    return Handling(**{**_stated(Handling, values), "diagnosis_tests": tests})


def _leaving_nodes(
    nodes: int, values: Mapping[str, Any], handling: Handling, failures: _Failures
) -> _LeavingNodes:
    """How many nodes leave: failed ones, slow ones that are found, healthy ones by mistake.

    away = (failures that evict + slow nodes found + healthy ones by mistake) x repair + slow at the start

    Ignored: spares that are slow themselves.
    """
    mttf_s = values["straggler_mttf"]
    slow_per_s = 0.0 if mttf_s is None else nodes / mttf_s
    found_per_s = slow_per_s * _found_share(
        values["straggler_detection"], values["straggler_recovery"], handling.straggler_misses
    )
    alarms_per_s = nodes * handling.straggler_false_positives / values["straggler_detection"]
    wrong_per_s = (
        failures.unplanned_per_s * nodes * handling.diagnosis_false_positives * len(handling.diagnosis_tests)
    )
    in_repair = (failures.evicting_per_s + found_per_s + alarms_per_s + wrong_per_s) * values["repair"]
    return _LeavingNodes(
        alarms_per_s=alarms_per_s,
        slow_per_s=slow_per_s,
        found_per_s=found_per_s,
        mean_away=in_repair + values["straggler_share"] * nodes,
    )


def _found_share(look_s: float, recovery_s: float | None, misses: float) -> float:
    """Share of the nodes that become slow which a look finds before they are as fast as the others again.

        q = exp(-look / recovery): it is still slow at the next look
        share = q (1 - m) + q m q (1 - m) + ... = q (1 - m) / (1 - q m)

    Limits: all of them where they stay slow and looks miss some, none where looks miss everything.
    """
    slow = 1.0 if recovery_s is None else math.exp(-look_s / recovery_s)
    return slow * (1.0 - misses) / (1.0 - slow * misses) if misses < 1.0 else 0.0


def _losses_per_s(
    failures: _Failures, leaving: _LeavingNodes, slow_steps: Sequence[tuple[int, float]]
) -> float:
    """Rate of failures by which an interval between checkpoints is chosen.

    A failure loses half an interval of work. A slow node that was found waits for the next checkpoint, and half an
    interval takes f times as long: it counts as 1 - 1 / f of a failure. Where nothing is lost at all, planned stops and
    nodes that leave are counted, for without a checkpoint they would never come.
    """
    slower = slow_steps[0][1] if slow_steps else 1.0
    lost = failures.unplanned_per_s + leaving.found_per_s * (1.0 - 1.0 / slower)
    return lost or failures.planned_per_s + leaving.slow_per_s + leaving.alarms_per_s


def _steps_per_checkpoint(
    values: Mapping[str, Any], step_s: float, times: Mapping[str, float], losses_per_s: float
) -> int:
    """Whole steps between checkpoints; an interval longer than the run means one at its end."""
    least_s = math.ceil(times["upload_s"] / step_s) * step_s
    wanted_s = _interval_s(values["checkpoint_interval"], times["block_s"], least_s, losses_per_s)
    interval_s: float = min(wanted_s, values["duration"])
    return max(1, round(interval_s / step_s))


def campaign_values(scenario: Scenario) -> dict[str, Any]:
    """Our values of the `campaign` section, defaults filled in."""
    written: Mapping[str, object] = scenario.document.get("campaign", {})
    prefix = "campaign."
    return {
        name.removeprefix(prefix): key.parse(written[name.removeprefix(prefix)])
        for name, key in KEYS.items()
        if name.startswith(prefix)
    }


def _stated(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass that are keys of the `campaign` section, those in seconds without their unit."""
    keys = {field.name: field.name.removesuffix("_s") for field in fields(kind)}
    return {name: values[key] for name, key in keys.items() if key in values}


def _given_or(value: float | None, derived: Callable[[], float]) -> float:
    return derived() if value is None else value


def _profile(name: str, folder: Path | None) -> FailureProfile:
    """The shipped profile of that name, or the one in a file."""
    if not name.lower().endswith((".yaml", ".yml")):
        try:
            return failure_profile(name)
        except CatalogError as error:
            raise ScenarioError((("campaign.failures", str(error)),)) from None
    for place in (folder, Path()):
        if place is not None and (place / name).is_file():
            return load_failure_profile((place / name).resolve())
    return load_failure_profile(Path(name))


def _stalled(step_s: float, note: str, flaps: LinkFlaps, links: int) -> tuple[float, str]:
    """The mean step with the stalls of the flaps the job survives."""
    share = flaps.stall_share(links)
    if share >= 1.0:
        raise InfeasibleError(
            f"campaign.link_flaps_per_day: {flaps.per_link_day:g} flaps of {links} links stall the job all the time"
        )
    if share == 0.0:
        return step_s, note
    return step_s / (1.0 - share), f"{note}; {100 * share:.2g} % of the time stalled by link flaps"


def _interval_s(interval: float | str, block_s: float, least_s: float, failures_per_s: float) -> float:
    """The wanted interval; the best one is not shorter than an upload (*least_s*), and without failures endless.

    A checkpoint waits until the one before has arrived. So with less work than that between them as much is lost in a
    failure, and training stands still besides.
    """
    if not isinstance(interval, str):
        return interval
    if failures_per_s == 0:
        return math.inf
    formula = young_interval_s if interval == "young" else daly_interval_s
    return max(formula(block_s, 1.0 / failures_per_s), least_s)


def _refuse_too_many(checkpoints: float) -> None:
    if checkpoints > MOST_CHECKPOINTS:
        raise InfeasibleError(
            f"campaign.checkpoint_interval: {checkpoints:.3g} checkpoints in campaign.duration are more than "
            f"{MOST_CHECKPOINTS:.0e}; take fewer, or a shorter run"
        )


def _refuse_too_many_stops(stops: float) -> None:
    most, why = LIMITS["campaign_stops"]
    if stops > most:
        raise InfeasibleError(
            f"{stops:,.3g} failures, slow nodes and planned stops are expected in campaign.duration; at most "
            f"{most:,}: {why}"
        )


def _spares(given: int | None, mean_away: float) -> int:
    """Size of the spare pool: as given, or what is enough 99.9 % of the time.

    Nodes in repair are Poisson distributed with mean rate x repair time, whatever the distribution of the repair;
    nodes that are slow at the start leave in one go and are added to the mean.
    Source: Palm's theorem (M/G/infinity); the idea: ByteRobust, arXiv 2509.16293.
    """
    if given is not None:
        return given
    from scipy.special import pdtr, pdtrik

    enough = math.ceil(float(pdtrik(SPARE_QUANTILE, mean_away)))  # to within rounding: perhaps one too many
    return enough - 1 if enough and pdtr(enough - 1, mean_away) >= SPARE_QUANTILE else enough


def _closed_form(setup: CampaignSetup, failures: _Failures) -> tuple[float, bool, float]:
    """Expected ratio, whether it is valid here, and the mean restart time.

    Meta's formula with the time a checkpoint travels added to the lost work, and planned restarts subtracted.
    Ignored: waiting for nodes, stragglers, failures during restarts, faults that are overlooked, false alarms.
    """
    handling, unplanned = setup.handling, failures.unplanned_per_s
    start = setup.scheduling_s + setup.group_initialisation_s + setup.load_s
    diagnosis = (
        1.0 - handling.manual_share
    ) * handling.diagnosis_s + handling.manual_share * handling.manual_s
    noticed = sum(
        rate * mean_detection_s(cause, handling)
        for rate, cause in zip(failures.per_s, setup.failures.causes, strict=True)
    )
    restart = start + diagnosis + (noticed / unplanned if unplanned > 0 else 0.0)
    interval = setup.steps_per_checkpoint * setup.step_s
    ratio = expected_ettr(unplanned, restart + setup.upload_s, setup.block_s, interval)
    ratio -= failures.planned_per_s * (start + setup.upload_s) / (1.0 + setup.block_s / interval)
    lost = unplanned * (restart + setup.upload_s + interval / 2.0)
    steady = setup.straggler_share == 0 and setup.straggler_mttf_s is None and handling.is_perfect
    valid = lost < VALID_LOST_SHARE and setup.upload_s <= interval and steady
    return ratio, valid, restart
