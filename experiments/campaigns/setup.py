"""From a scenario to a campaign: what the simulator needs, derived from model, cluster and the `campaign` section."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
from hdpsim.cost_models.reliability.failures import FailureProfile, failure_profile, load_failure_profile
from hdpsim.cost_models.reliability.link_flap_stalls import LinkFlaps
from hdpsim.cost_models.reliability.startup import group_initialisation_s
from hdpsim.errors import CatalogError, InfeasibleError, ScenarioError
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.money import costs_of
from hdpsim.ranges import LIMITS
from hdpsim.simulator.campaign.diagnosis import TESTS
from hdpsim.simulator.campaign.events import Handling, mean_detection_s
from hdpsim.simulator.campaign.setup import CampaignSetup

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.peak import MemoryReport
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.power import Power
    from hdpsim.simulator.step import StepResult

SPARE_QUANTILE = 0.999  # ByteRobust keeps the 99th percentile; waiting hours for a repair costs more
MOST_CHECKPOINTS = 1e8  # a minute of computing per run; one a step is 4e5 in a month
VALID_LOST_SHARE = 0.25  # first order only: with more lost time the closed form is off by over 1.4 %


@dataclass(frozen=True, slots=True, kw_only=True)
class UndisturbedStep:
    """A step, and where its figures come from.

    Attributes:
        sampling: standard error of the seconds per token, of them: other batches would have given another mean.
        memory: of the fullest stage, for the batch that needs most; None of a step that was not simulated.
        power: mean while it runs; None of a step that was not simulated.
        band: how well steps like it were predicted; None of one that was not simulated.
    """

    seconds: float
    tokens: float
    note: str
    sampling: float = 0.0
    memory: MemoryReport | None = None
    power: Power | None = None
    band: Band | None = None


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
    layout, cluster = scenario.layout, scenario.cluster
    ranks = cluster.gpus // (layout.parallel.tp * layout.parallel.pp)
    stragglers = values["straggler_share"] > 0 or values["straggler_mttf"] is not None
    if stragglers:  # the campaign's slow nodes come and go: none is part of the undisturbed step
        scenario = _with_slow_nodes(scenario, 0, 1.0)
    if values["link_flaps_per_day"]:  # as its flaps do
        scenario = replace(scenario, execution=replace(scenario.execution, link_flaps_per_hour=0.0))
    if known is not None and stragglers == bool(known.setup.slow_steps):
        undisturbed = known.undisturbed
    else:
        undisturbed = _step(scenario, values["step"])
    step_s, tokens, step_note = undisturbed.seconds, undisturbed.tokens, undisturbed.note
    if step_s > values["duration"]:
        raise InfeasibleError(
            f"campaign.duration: {values['duration']:g} s are shorter than one step ({step_s:.3g} s)"
        )
    size = checkpoint_size(scenario.model, layout, ranks)
    block = _given(values["checkpoint_block"], lambda: blocking_s(size, cluster))
    storage = values["storage_bandwidth"]
    upload = _given(values["checkpoint_upload"], lambda: upload_s(size, cluster, storage))
    load = _given(values["checkpoint_load"], lambda: load_s(size, cluster, ranks, storage, values["readers"]))
    groups = _given(
        values["group_initialisation"],
        lambda: group_initialisation_s(
            cluster.gpus, layout.parallel.tp, layout.parallel.pp, values["startup"]
        ),
    )
    flaps = LinkFlaps(
        per_link_day=values["link_flaps_per_day"],
        mean_s=values["link_flap_mean"],
        timeout=values["nccl_timeout"],
        retries=values["nccl_retries"],
        adaptive=values["adaptive_retransmission"],
    )
    profile = _profile(values["failures"], scenario.folder)
    if flaps.cause is not None:  # some end the job
        profile = replace(profile, causes=(*profile.causes, flaps.cause))
    step_s, step_note = _stalled(step_s, step_note, flaps, cluster.nodes * cluster.node.nics)
    rates = profile.per_s(cluster.nodes, cluster.node.nics, values["failure_scale"])
    planned = sum(r for r, c in zip(rates, profile.causes, strict=True) if c.detection == "planned")
    unplanned = sum(rates) - planned
    evicting = sum(r for r, c in zip(rates, profile.causes, strict=True) if c.evict)
    tests = tuple(test for test in TESTS if test in values["diagnosis_tests"])
    handling = Handling(**{**_stated(Handling, values), "diagnosis_tests": tests})
    alarms_per_s = cluster.nodes * handling.straggler_false_positives / values["straggler_detection"]
    wrong_per_s = (
        unplanned * cluster.nodes * handling.diagnosis_false_positives * len(handling.diagnosis_tests)
    )
    away = (evicting + alarms_per_s + wrong_per_s) * values["repair"] + values[
        "straggler_share"
    ] * cluster.nodes
    least_s = math.ceil(upload / step_s) * step_s
    wanted_s = _interval_s(values["checkpoint_interval"], block, least_s, unplanned)
    # one that is longer than the run is once at its end, too
    steps = max(1, round(min(wanted_s, values["duration"]) / step_s))
    _refuse_too_many(values["duration"] / (steps * step_s + block))
    slow_per_s = 0.0 if values["straggler_mttf"] is None else cluster.nodes / values["straggler_mttf"]
    strikes = unplanned * (1 if handling.diagnosis.is_perfect else 1 + handling.diagnosis_rounds)
    _refuse_too_many_stops(values["duration"] * (strikes + planned + slow_per_s + alarms_per_s))
    slow_steps = known.setup.slow_steps if known is not None and stragglers else ()
    if stragglers and not slow_steps:
        slow_steps = _slow_steps(scenario, values["straggler_factor"])
    derived = {
        "nodes": cluster.nodes,
        "links_per_node": cluster.node.nics,
        "step_s": step_s,
        "tokens_per_step": tokens,
        "steps_per_checkpoint": steps,
        "block_s": block,
        "upload_s": upload,
        "load_s": load,
        "group_initialisation_s": groups,
        "failures": profile,
        "handling": handling,
        "spares": _spares(values["spares"], away),
        "slow_steps": slow_steps,
    }
    setup = CampaignSetup(**{**_stated(CampaignSetup, values), **derived, "seed": (0, 0)})
    ettr, valid, restart = _closed_form(setup, rates, unplanned, planned)
    valid &= setup.spares >= away
    return CampaignPlan(
        setup=setup,
        seeds=values["seeds"],
        seed=values["seed"],
        size=size,
        unplanned_per_s=unplanned,
        restart_s=restart,
        closed_form_ettr=ettr,
        closed_form_valid=valid,
        undisturbed=undisturbed,
        step_note=step_note,
        idle_notes=idle_keys(values, profile),
    )


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


def _given(value: float | None, derived: Callable[[], float]) -> float:
    return derived() if value is None else value


def _step(scenario: Scenario, fixed_s: float | None) -> UndisturbedStep:
    """The step as it is simulated, or as the scenario states it."""
    budget = scenario.data.batch.tokens
    if fixed_s is not None:
        if budget is None:
            budget = int(np.mean([int(lengths.sum()) for lengths in scenario.batches()]))
        return UndisturbedStep(seconds=fixed_s, tokens=float(budget), note="fixed by campaign.step")
    outcome = run_batches(scenario, scenario.batches())
    if not outcome.results:
        raise InfeasibleError(f"the step of {scenario.name} cannot be simulated: {outcome.reason}")
    tokens = float(np.mean([result.tokens for result in outcome.results]))
    count = len(outcome.results)
    batches = "one global batch" if count == 1 else f"{count} global batches"
    return UndisturbedStep(
        seconds=outcome.step_s.mean,
        tokens=tokens,
        note=f"simulated, mean over {batches} ({outcome.strategy})",
        sampling=sampling_error(outcome.results) if outcome.independent else 0.0,
        memory=max((result.memory for result in outcome.results), key=lambda memory: memory.total_bytes),
        power=costs_of(outcome, scenario.costs).power,
        band=outcome.band,
    )


def sampling_error(steps: Sequence[StepResult]) -> float:
    """Relative standard error of the seconds per token of a mean over batches that were drawn independently.

        r = sum of seconds / sum of tokens
        error = s / (sqrt(n) * mean seconds), s^2 = sum (seconds - r * tokens)^2 / (n - 1)

    The error of a ratio of means (Cochran, Sampling Techniques, 3rd ed., 6.3), as batches differ in tokens, too.
    Limits: 0 of a single batch, of which nobody knows how far others would be off.
    """
    if len(steps) < 2:
        return 0.0
    seconds = np.array([step.step_s for step in steps])
    tokens = np.array([step.tokens for step in steps], dtype=np.float64)
    rest = seconds - seconds.sum() / tokens.sum() * tokens
    return float(math.sqrt(float(rest @ rest) / (len(steps) - 1) / len(steps)) / seconds.mean())


def _with_slow_nodes(scenario: Scenario, nodes: int, factor: float) -> Scenario:
    execution = replace(
        scenario.execution, slow_node_share=nodes / scenario.cluster.nodes, slow_node_factor=factor
    )
    return replace(scenario, execution=execution)


def _slow_steps(scenario: Scenario, factor: float) -> tuple[tuple[int, float], ...]:
    """What 1, 4, 16, ... and all nodes that are slower by *factor* do to the step: simulated, as `simulate` would.

    A slow node holds up its own stage, and the job only as far as the others do not wait anyway.
    """
    outcomes = {}
    nodes = sorted({*(4**i for i in range(12) if 4**i < scenario.cluster.nodes), scenario.cluster.nodes})
    batches = scenario.batches()
    for slow in (0, *nodes):
        outcome = run_batches(_with_slow_nodes(scenario, slow, factor), batches)
        if not outcome.results:
            raise InfeasibleError(f"the step of {scenario.name} cannot be simulated: {outcome.reason}")
        outcomes[slow] = outcome.step_s.mean
    return tuple((slow, max(1.0, outcomes[slow] / outcomes[0])) for slow in nodes)


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


def _closed_form(
    setup: CampaignSetup, rates: tuple[float, ...], unplanned: float, planned: float
) -> tuple[float, bool, float]:
    """Expected ratio, whether it is valid here, and the mean restart time.

    Meta's formula with the time a checkpoint travels added to the lost work, and planned restarts subtracted.
    Ignored: waiting for nodes, stragglers, failures during restarts, faults that are overlooked, false alarms.
    """
    handling = setup.handling
    start = setup.scheduling_s + setup.group_initialisation_s + setup.load_s
    diagnosis = (
        1.0 - handling.manual_share
    ) * handling.diagnosis_s + handling.manual_share * handling.manual_s
    noticed = sum(
        rate * mean_detection_s(cause, handling)
        for rate, cause in zip(rates, setup.failures.causes, strict=True)
    )
    restart = start + diagnosis + (noticed / unplanned if unplanned > 0 else 0.0)
    interval = setup.steps_per_checkpoint * setup.step_s
    ratio = expected_ettr(unplanned, restart + setup.upload_s, setup.block_s, interval)
    ratio -= planned * (start + setup.upload_s) / (1.0 + setup.block_s / interval)
    lost = unplanned * (restart + setup.upload_s + interval / 2.0)
    steady = setup.straggler_share == 0 and setup.straggler_mttf_s is None and handling.is_perfect
    valid = lost < VALID_LOST_SHARE and setup.upload_s <= interval and steady
    return ratio, valid, restart


def idle_keys(values: Mapping[str, Any], profile: FailureProfile) -> tuple[str, ...]:
    """One sentence for every key of *values* (without `campaign.`) that is not the default and changes nothing."""
    found: dict[str, str] = {}
    for why, names in _rules(values, profile):
        for name in names.split() if why else ():
            key = KEYS[f"campaign.{name}"]
            if values[name] != key.default:
                found.setdefault(name, f"campaign.{name} = {key.dump(values[name])} changes nothing: {why}")
    return tuple(found.values())


def _rules(values: Mapping[str, Any], profile: FailureProfile) -> Iterator[tuple[str, str]]:
    """Why some keys change nothing (an empty text: they may), and their names."""
    flaps = "" if values["link_flaps_per_day"] else "link_flaps_per_day is 0"
    yield flaps, "link_flap_mean nccl_timeout nccl_retries adaptive_retransmission"
    evicted = any(cause.evict for cause in profile.causes)
    overlooks = evicted and (values["diagnosis_misses"] or set(values["diagnosis_tests"]) != set(TESTS))
    yield "" if values["manual_share"] or overlooks else "manual_share is 0", "manual"
    by_hand = "manual_share is 1" if values["manual_share"] == 1.0 else ""
    yield by_hand, "diagnosis diagnosis_tests diagnosis_misses diagnosis_false_positives"
    yield "" if evicted else f"no failure of {profile.title} takes a node out", "diagnosis_misses"
    yield "" if overlooks else "no fault is overlooked", "fault_recurrence diagnosis_rounds"
    stragglers = values["straggler_share"] > 0.0 or values["straggler_mttf"] is not None
    yield "" if stragglers else "no node is slow", "straggler_factor straggler_misses"
    looks = stragglers or values["straggler_false_positives"]
    yield "" if looks else "no node is slow", "straggler_detection"
    yield "straggler_mttf is never" if values["straggler_mttf"] is None else "", "straggler_recovery"
    given = {name: values[name] is not None for name in _DERIVED}
    yield "group_initialisation is given" if given["group_initialisation"] else "", "startup"
    yield "checkpoint_load is given" if given["checkpoint_load"] else "", "readers"
    both = given["checkpoint_load"] and given["checkpoint_upload"]
    yield "checkpoint_load and checkpoint_upload are given" if both else "", "storage_bandwidth"
    noticed = {cause.detection for cause in profile.causes}
    nobody = f"no failure of {profile.title} is noticed by"
    yield "" if "heartbeat" in noticed else f"{nobody} a heartbeat", "heartbeat heartbeat_misses"
    yield "" if "hang" in noticed else f"{nobody} a timeout", "hang_timeout"
    mistaken = values["diagnosis_false_positives"] or values["straggler_false_positives"]
    evicts = stragglers or evicted or mistaken
    yield "" if evicts else f"no failure of {profile.title} takes a node out", "repair spares"


_DERIVED = ("group_initialisation", "checkpoint_load", "checkpoint_upload")
"""Times that are derived from other keys unless they are given."""
