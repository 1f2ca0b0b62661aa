"""A weeks-long run as a discrete-event simulation: steps, failures, recovery, checkpoints; where every second went."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import cast

import numpy as np
import simpy

from hdpsim.arrays import Ints
from hdpsim.cost_models.reliability.failures import FailureCause
from hdpsim.simulator.campaign.between_failures import (
    CYCLE_ACCOUNTS,
    TICKS_PER_S,
    Closing,
    Pace,
    SavedCycle,
    Stretch,
)
from hdpsim.simulator.campaign.diagnosis import Fault, Round
from hdpsim.simulator.campaign.events import (
    FALSE_ALARM,
    STRAGGLER,
    SparePool,
    detection_ticks,
    failure_draws,
    ticks,
)
from hdpsim.simulator.campaign.setup import ACCOUNTS, CampaignResult, CampaignSetup, Incident

_Process = Generator[simpy.Event, None, None]


def simulate_campaign(setup: CampaignSetup) -> CampaignResult:
    """Run one campaign.

    Counted: everything in ACCOUNTS; failures strike during recovery too and start it anew, but none of nodes that are
        away. Planned stops and evictions of stragglers wait for the next checkpoint and its upload.
    Ignored: a node that becomes slow does so at the next checkpoint; failures of spares; node failures that come in
        groups; silent data corruption that is only seen after more than one checkpoint.
    """
    return _Run(setup).result()


class _Run:
    """State of one campaign; the job is one process, everything else interrupts it.

    Invariant: the ticks in all accounts, those of the phase or stretch under way and those of the checkpoint that
    is being uploaded add up to env.now.
    """

    def __init__(self, setup: CampaignSetup) -> None:
        self._setup = setup
        (
            failures,
            self._detect,
            self._steps_random,
            repair,
            self._slow_random,
            self._test_random,
            self._where,
        ) = map(np.random.default_rng, np.random.SeedSequence(setup.seed).spawn(7))
        self._env = simpy.Environment()
        self._pool = SparePool(self._env, setup.spares, setup.handling.repair_s, repair)
        self._pace = Pace(
            step_s=setup.step_s,
            steps_per_cycle=setup.steps_per_checkpoint,
            block_ticks=ticks(setup.block_s),
            upload_ticks=ticks(setup.upload_s),
            jitter=setup.jitter,
            drift_per_day=setup.drift_per_day,
        )
        self._ticks = dict.fromkeys(ACCOUNTS, 0)
        self._steps = 0.0
        self._stretch: Stretch | None = None
        self._uploading: SavedCycle | None = None
        self._phase: tuple[str, int] | None = None
        self._cycles_since_restart = 0
        self._wake = self._env.event()
        self._requests: list[FailureCause] = []
        """Planned stops, and slow nodes that were found, waiting for the next checkpoint."""
        self._missing = self._slow = self._restarts = 0
        self._evictions = self._false_evictions = self._overlooked = 0
        self._faults: list[Fault] = []
        """Nodes at fault that nobody has found yet."""
        self._open: list[tuple[str, int, int]] = []
        self._incidents: list[Incident] = []
        self._unplanned = 0
        self._curve: list[tuple[int, float]] = [(0, 0.0)]
        self._job = self._env.process(self._train())
        profile = setup.failures
        rates = profile.per_s(setup.nodes, setup.links_per_node, setup.failure_scale)
        self._env.process(self._fail(failure_draws(profile.causes, rates, failures)))
        if setup.straggler_mttf_s is not None:
            self._env.process(self._slow_down(setup.straggler_mttf_s / setup.nodes))
        if setup.handling.straggler_false_positives:
            self._env.process(self._mistake())
        self._join(int(self._slow_random.binomial(setup.nodes, setup.straggler_share)))

    def result(self) -> CampaignResult:
        """Run to the end and settle what is under way."""
        end = ticks(self._setup.duration_s)
        self._env.run(until=end)
        if self._stretch is not None:
            self._settle(self._stretch.end(end))
        elif self._uploading is not None:
            self._end_upload()
        if self._phase is not None:
            account, since = self._phase
            self._ticks[account] += end - since
        self._close_incidents(end)
        self._curve.append((end, self._steps))
        setup = self._setup
        return CampaignResult(
            duration_s=setup.duration_s,
            account_ticks=tuple(self._ticks.values()),
            steps=self._steps,
            tokens=self._steps * setup.tokens_per_step,
            goodput=self._steps * setup.step_s * (1.0 - setup.stalled_share) / setup.duration_s,
            incidents=tuple(self._incidents),
            failures=self._unplanned,
            curve_s=tuple(at / TICKS_PER_S for at, _ in self._curve),
            curve_tokens=tuple(steps * setup.tokens_per_step for _, steps in self._curve),
            evictions=self._evictions,
            least_spares=self._pool.least_spares,
            false_evictions=self._false_evictions,
            overlooked=self._overlooked,
        )

    @property
    def _tick_now(self) -> int:
        return int(self._env.now)

    def _train(self) -> _Process:
        """The job: start, run until something happens, recover, run again."""
        failure: FailureCause | None = None
        while True:
            yield from self._recover(failure)
            failure = yield from self._run()

    def _run(self) -> Generator[simpy.Event, None, FailureCause | None]:
        """Train until a failure (returned) or a planned stop (None)."""
        while True:
            stretch = self._begin_stretch()
            try:
                if not self._requests:
                    self._wake = self._env.event()
                    yield self._wake
                yield self._env.timeout(stretch.checkpoint_after(self._tick_now) - self._tick_now)
            except simpy.Interrupt as interrupt:
                return self._lose(stretch, cast(_Blow, interrupt.cause))
            self._settle(stretch.at_checkpoint(self._tick_now))
            stops = [cause for cause in self._requests if cause is not _OTHER_PACE]
            self._requests.clear()
            if not stops:
                continue
            try:
                yield from self._stop(stops)
            except simpy.Interrupt as interrupt:
                self._end_upload(lost=True)
                return self._strike(cast(_Blow, interrupt.cause))
            return None

    def _begin_stretch(self) -> Stretch:
        self._stretch = Stretch(
            self._pace,
            self._tick_now,
            self._steps_random,
            slowness=self._setup.slowness(self._slow),
            cycles_since_restart=self._cycles_since_restart,
            uploading=self._uploading,
        )
        self._uploading = None
        return self._stretch

    def _stop(self, stops: list[FailureCause]) -> _Process:
        """A planned stop after a checkpoint, one restart for all its reasons: wait until the checkpoint has arrived."""
        self._open.append((stops[0].name, self._tick_now, 0))
        for cause in stops:
            self._evict(cause)
        yield from self._pause("checkpoint_wait", self._pace.upload_ticks)
        self._end_upload()

    def _evict(self, cause: FailureCause) -> None:
        """Take the node behind *cause* out of the job, if there is one, and send it to repair."""
        if cause is STRAGGLER:
            self._slow -= 1
        if cause.evict and self._missing < self._setup.nodes:  # what is found twice leaves once
            self._missing += 1
            self._evictions += 1
            self._false_evictions += cause is FALSE_ALARM
            self._pool.repair()

    def _recover(self, failure: FailureCause | None) -> _Process:
        """Everything between a stop and the next step; a failure on the way starts it anew."""
        setup = self._setup
        while True:
            try:
                if failure is not None:
                    until_detected = detection_ticks(failure, setup.handling, self._detect)
                    yield from self._pause("detection", until_detected)
                    yield from self._diagnose()
                yield from self._replace()
                yield from self._pause("scheduling", ticks(setup.scheduling_s))
                yield from self._pause("group_initialisation", ticks(setup.group_initialisation_s))
                if self._steps > 0:
                    yield from self._pause("checkpoint_load", ticks(setup.load_s))
                break
            except simpy.Interrupt as interrupt:
                failure = self._strike(cast(_Blow, interrupt.cause))
        self._cycles_since_restart = 0
        self._restarts += 1
        for fault in self._faults:
            self._env.process(self._fault_recurs(fault, self._restarts))
        self._close_incidents(self._tick_now)
        self._curve.append((self._tick_now, self._steps))

    def _replace(self) -> _Process:
        """Take a spare for every node that is missing; wait for repairs while there is none.

        Slow nodes that were found by now leave too: the job stands still anyway.
        """
        for _ in range(self._requests.count(STRAGGLER)):
            self._requests.remove(STRAGGLER)
            self._evict(STRAGGLER)
        while self._missing:
            if self._pool.take():
                self._missing -= 1
                self._join(int(self._slow_random.uniform() < self._setup.straggler_share))
            else:
                yield from self._spend("waiting_for_node", self._pool.arrival)

    def _pause(self, account: str, amount: int) -> _Process:
        return self._spend(account, self._env.timeout(amount))

    def _spend(self, account: str, until: simpy.Event) -> _Process:
        """Let time pass in an account until an event; an interrupt cuts it short."""
        since = self._tick_now
        self._phase = (account, since)
        try:
            yield until
        finally:
            self._ticks[account] += self._tick_now - since
            self._phase = None

    def _diagnose(self) -> _Process:
        """Find the nodes at fault and evict them: people do, or a round of tests on all nodes, which can be wrong.

        A node whose heartbeats stopped is known without a test.
        """
        handling = self._setup.handling
        suite = handling.diagnosis
        by_hand = self._detect.uniform() < handling.manual_share
        if by_hand or any(fault.rounds >= suite.most_rounds for fault in self._faults):
            yield from self._pause("diagnosis", ticks(handling.manual_s))
            located = list(self._faults)
        else:
            tests = Round(suite, self._test_random)
            for test, seconds in zip(suite.tests, suite.seconds, strict=True):
                yield from self._pause("diagnosis", ticks(seconds))
                tests.run(test, self._faults, self._setup.nodes - self._missing - len(self._faults))
            for _ in range(tests.wrongly_found):
                self._evict(FALSE_ALARM)
            located = [f for f in self._faults if f in tests.found or f.cause.detection == "heartbeat"]
        for fault in located:
            self._faults.remove(fault)
            self._evict(fault.cause)
        for fault in self._faults:
            fault.rounds += 1
        self._overlooked += len(self._faults)

    def _fault_recurs(self, fault: Fault, restarts: int) -> _Process:
        """A fault that was overlooked stops the job again, unless something else did before."""
        mean_s = self._setup.handling.fault_recurrence_s
        yield self._env.timeout(ticks(self._test_random.exponential(mean_s)))
        if self._restarts == restarts and fault in self._faults and self._stretch is not None:
            self._job.interrupt(fault)

    def _lose(self, stretch: Stretch, cause: _Blow) -> FailureCause:
        """A failure in the middle of training."""
        closing = stretch.fail(self._tick_now)
        self._curve.append((self._tick_now, self._steps + closing.reached_steps))
        self._settle(closing)
        self._ticks["lost_work"] += closing.lost_ticks
        return self._strike(cause, closing.lost_ticks)

    def _strike(self, blow: _Blow, lost: int = 0) -> FailureCause:
        """Note an unplanned failure; the node at fault is yet to be found."""
        cause = blow.cause if isinstance(blow, Fault) else blow
        self._unplanned += 1
        self._open.append((cause.name, self._tick_now, lost))
        if cause is blow and cause.evict and len(self._faults) + self._missing < self._setup.nodes:
            self._faults.append(Fault(cause))
        return cause

    def _settle(self, closing: Closing) -> None:
        """Book what a stretch is sure of."""
        self._keep(closing.kept, closing.kept_steps)
        self._uploading = closing.uploading
        self._cycles_since_restart += closing.cycles
        self._stretch = None

    def _end_upload(self, *, lost: bool = False) -> None:
        """The checkpoint of a planned stop has arrived, or was *lost* while it travelled."""
        if self._uploading is not None and lost:
            self._ticks["lost_work"] += int(self._uploading.parts.sum())
        elif self._uploading is not None:
            self._keep(self._uploading.parts, self._uploading.steps)
        self._uploading = None

    def _keep(self, parts: Ints, steps: float) -> None:
        for account, amount in zip(CYCLE_ACCOUNTS, parts, strict=True):
            self._ticks[account] += int(amount)
        self._steps += steps

    def _close_incidents(self, now: int) -> None:
        for cause, at, lost in self._open:
            at_s, lost_s, down_s = (amount / TICKS_PER_S for amount in (at, lost, now - at))
            self._incidents.append(Incident(cause=cause, at_s=at_s, lost_s=lost_s, down_s=down_s))
        self._open.clear()

    def _fail(self, draws: Iterator[tuple[int, FailureCause]]) -> _Process:
        """Failures, one after the other."""
        for gap, cause in draws:
            yield self._env.timeout(gap)
            if self._strikes_nobody(cause):
                continue
            if cause.detection == "planned":
                self._request(cause)
            else:
                self._job.interrupt(cause)

    def _strikes_nobody(self, cause: FailureCause) -> bool:
        """Whether a failure would be one of a node that is away: draws are those of a full job.

        Every failure takes one number, whatever is away, so that runs that differ in repairs have the same failures.
        """
        place = self._where.uniform() * self._setup.nodes
        return cause.scope != "job" and place < self._missing

    def _request(self, cause: FailureCause) -> None:
        """Ask the job to stop (or to take note) at its next checkpoint."""
        self._requests.append(cause)
        if not self._wake.triggered:
            self._wake.succeed()

    def _join(self, slow_nodes: int, lasts_s: float = math.inf) -> None:
        """Slow nodes become part of the job; each is found on its own, or is as fast as the others after a while."""
        self._slow += slow_nodes
        for _ in range(slow_nodes):
            self._env.process(self._find(lasts_s))

    def _find(self, lasts_s: float) -> _Process:
        """Look at a slow node again and again, until it is found or not slow any more."""
        setup, misses = self._setup, self._setup.handling.straggler_misses
        while lasts_s > setup.straggler_detection_s:
            yield self._env.timeout(ticks(setup.straggler_detection_s))
            lasts_s -= setup.straggler_detection_s
            if not misses or self._slow_random.uniform() >= misses:
                self._request(STRAGGLER)
                return
            self._overlooked += 1
        yield self._env.timeout(ticks(lasts_s))
        self._slow -= 1
        self._request(_OTHER_PACE)

    def _mistake(self) -> _Process:
        """Every look may take healthy nodes for slow ones, which leave at the next checkpoint."""
        setup, wrong = self._setup, self._setup.handling.straggler_false_positives
        while True:
            yield self._env.timeout(ticks(setup.straggler_detection_s))
            known = self._missing + self._slow + self._requests.count(FALSE_ALARM)
            healthy = max(0, setup.nodes - known)
            for _ in range(int(self._test_random.binomial(healthy, wrong))):
                self._request(FALSE_ALARM)

    def _slow_down(self, mean_s: float) -> _Process:
        """Healthy nodes that become slow."""
        while True:
            yield self._env.timeout(ticks(self._slow_random.exponential(mean_s)))
            mean_lasts_s = self._setup.straggler_recovery_s
            self._join(1, math.inf if mean_lasts_s is None else self._slow_random.exponential(mean_lasts_s))
            self._request(_OTHER_PACE)


_Blow = FailureCause | Fault
"""What stops the job: something new, or a fault that was overlooked."""
_OTHER_PACE = FailureCause(name="other pace", per_day=0.0, scope="node", detection="planned", evict=False)
"""Not a stop: a node became slow, or fast again, so the pace changes at the next checkpoint."""
