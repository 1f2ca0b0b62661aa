"""Many runs of one campaign, in parallel, and what they say together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.campaigns.hidden import hidden_keys
from hdpsim.experiments.campaigns.setup import CampaignPlan, plan_campaign
from hdpsim.experiments.output.amounts import duration, large_amount
from hdpsim.experiments.output.statistics import Estimate, estimate
from hdpsim.experiments.parallel.pool import worker_pool
from hdpsim.experiments.studies.comparing.compare import Report, reported, silent
from hdpsim.experiments.studies.money import Costs, Target, mean_price
from hdpsim.experiments.studies.power import Power, waiting_power
from hdpsim.simulator.campaign.run_with_failures import simulate_campaign
from hdpsim.simulator.campaign.setup import ACCOUNTS, EFFECTIVE, CampaignResult, CampaignSetup

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


# processes take about a second to start; less work than this is done sooner without them
WORTH_A_POOL_S = 2.0

MARGIN, LEAST_SHARE, MOST_DOUBLINGS = 1.1, 0.05, 5
"""A run to a number of tokens: this much longer than the closed form expects, and again twice as long if need be."""

YEAR_S = 365.25 * 86400.0
LONGEST_S = 100.0 * YEAR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignStudy:
    """All runs of a campaign, in the order of their numbers."""

    scenario: Scenario
    plan: CampaignPlan
    results: tuple[CampaignResult, ...]
    hidden_notes: tuple[str, ...] = ()
    """A sentence for every key that changes none of these runs."""
    target: Target | None = None
    """What it takes to reach a number of tokens, when somebody asked."""

    @property
    def reached_s(self) -> tuple[float, ...]:
        """When each run had the tokens of the target; empty without one."""
        return () if self.target is None else self.times_to(self.target.tokens)

    def times_to(self, tokens: float) -> tuple[float, ...]:
        """When the runs that ever had so many tokens had them."""
        times = (reached_s(result, tokens) for result in self.results)
        return tuple(at for at in times if at is not None)

    @property
    def ettr(self) -> Estimate:
        """Effective-training-time ratio."""
        return estimate([result.ettr for result in self.results])

    @property
    def goodput(self) -> Estimate:
        """Kept tokens against those of an undisturbed run."""
        return estimate([result.goodput for result in self.results])

    @property
    def tokens(self) -> Estimate:
        """Kept tokens."""
        return estimate([result.tokens for result in self.results])

    @property
    def restarts(self) -> Estimate:
        """Restarts of a run, planned ones included."""
        return estimate([float(len(result.incidents)) for result in self.results])

    @property
    def failures(self) -> Estimate:
        """Unplanned restarts of a run."""
        return estimate([float(result.failures) for result in self.results])

    @property
    def mtbf_s(self) -> float | None:
        """Time of all runs over their unplanned failures; None if there were none."""
        count = sum(result.failures for result in self.results)
        return sum(result.duration_s for result in self.results) / count if count else None

    @property
    def costs(self) -> Costs:
        """What its kept tokens cost: GPUs are paid and draw power all the time, less while they train nothing."""
        cluster, options = self.scenario.cluster, self.scenario.costs
        duration_s = self.plan.setup.duration_s
        return Costs(
            price=mean_price(cluster, options),
            power=self._power(),
            gpus=cluster.gpus,
            tokens_per_s=self.tokens.mean / duration_s,
            co2_kg_per_kwh=options.co2_kg_per_kwh,
        )

    def _power(self) -> Power | None:
        """Mean of the runs; None where no step was simulated."""
        training = self.plan.undisturbed.power
        if training is None:
            return None
        waiting = waiting_power(self.scenario.cluster, self.scenario.costs)
        accounts = self.account_s()
        trained_s = sum(accounts[name].mean for name in (*EFFECTIVE, "lost_work"))
        return training.mixed_with(waiting, trained_s / self.plan.setup.duration_s)

    def account_s(self) -> dict[str, Estimate]:
        """Seconds of a run in each account; the means sum to the duration."""
        return {name: estimate([result.account_s[name] for result in self.results]) for name in ACCOUNTS}

    def restarts_by_cause(self) -> dict[str, Estimate]:
        """Restarts of a run by cause, the most frequent first."""
        counts = [result.restarts for result in self.results]
        names = dict.fromkeys(name for count in counts for name in count)
        estimates = {name: estimate([float(count.get(name, 0)) for count in counts]) for name in names}
        return dict(sorted(estimates.items(), key=lambda item: (-item[1].mean, item[0])))


def run_campaign(
    scenario: Scenario,
    *,
    workers: int | None = None,
    tokens: float | None = None,
    report: Report = silent,
) -> CampaignStudy:
    """Run every seed of the scenario's campaign.

    Args:
        scenario: what to run.
        workers: processes; default: as many as there are processors. The result does not depend on it.
        tokens: run until so many are trained on and kept, instead of for campaign.duration.
        report: told (done, total) after every run.

    Raises:
        UserInputError, InfeasibleError: see plan_campaign; also: the tokens are never reached.
    """
    workers = workers if workers is not None else os.cpu_count() or 1
    study = _study(scenario, workers, tokens, report)
    simulate = partial(_all, workers=workers)
    hidden = hidden_keys(study.scenario, study.plan, study.results, simulate)
    return replace(study, hidden_notes=hidden)


def campaign_to(scenario: Scenario, tokens: float, known: CampaignPlan) -> CampaignStudy:
    """Run a campaign until so many tokens are trained on and kept, in one process and without a word on hidden keys.

    *known* is the plan of the scenario: its step is not simulated once more.
    """
    return _study(scenario, 1, tokens, silent, known)


def _study(
    scenario: Scenario,
    workers: int,
    tokens: float | None,
    report: Report,
    known: CampaignPlan | None = None,
) -> CampaignStudy:
    if tokens is None:
        return _run(scenario, workers, report)
    plan = known or plan_campaign(scenario)
    undisturbed_s = tokens / plan.setup.tokens_per_step * plan.setup.step_s
    share = max(plan.closed_form_ettr, LEAST_SHARE)
    duration_s = max(MARGIN * undisturbed_s / share, undisturbed_s + plan.interval_s) + 2 * plan.restart_s
    for _ in range(MOST_DOUBLINGS):
        if duration_s > LONGEST_S:
            break
        longer = scenario.with_changes((f"campaign.duration={duration_s:.0f}s",))
        study = _run(longer, workers, report, plan)
        seconds = study.times_to(tokens)
        if len(seconds) == len(study.results):
            return replace(study, target=study.costs.target(tokens, estimate(seconds), plan.undisturbed.band))
        duration_s *= 2.0
    raise InfeasibleError(
        f"{large_amount(tokens)} tokens are not reached in {LONGEST_S / YEAR_S:.0f} years or {MOST_DOUBLINGS} times as "
        f"long as expected: without failures they take {duration(undisturbed_s)}, and the job keeps "
        f"{max(plan.closed_form_ettr, 0.0):.1%} of its time"
    )


def reached_s(result: CampaignResult, tokens: float) -> float | None:
    """When a run had trained on so many tokens for the first time; None when it never had.

    Between two points of the curve training goes on evenly, or work was lost.
    """
    points = list(zip(result.curve_s, result.curve_tokens, strict=True))
    for (begin_s, before), (end_s, after) in pairwise(points):
        if after >= tokens and after > before:
            return begin_s + max(0.0, tokens - before) / (after - before) * (end_s - begin_s)
    return None


def _run(
    scenario: Scenario,
    workers: int,
    report: Report,
    known: CampaignPlan | None = None,
) -> CampaignStudy:
    plan = plan_campaign(scenario, known=known)
    setups = [replace(plan.setup, seed=(plan.seed, number)) for number in range(plan.seeds)]
    results = tuple(reported(_all(setups, workers), report, len(setups)))
    return CampaignStudy(scenario=scenario, plan=plan, results=results)


def _all(setups: Sequence[CampaignSetup], workers: int) -> Iterator[CampaignResult]:
    """Results in order; in a pool of processes when the first run says that it is worth it."""
    began = time.perf_counter()
    yield simulate_campaign(setups[0])
    rest = setups[1:]
    if workers < 2 or (time.perf_counter() - began) * len(rest) < WORTH_A_POOL_S:
        yield from map(simulate_campaign, rest)
        return
    with worker_pool(min(workers, len(rest))) as pool:
        yield from pool.map(simulate_campaign, rest, chunksize=max(1, len(rest) // (4 * workers)))
