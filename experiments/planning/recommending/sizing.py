"""How many GPUs of one type meet a goal, with one layout whose data parallelism grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hdpsim.cost_models.reading.units import DAY_S, HOUR_S
from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.campaigns.run import campaign_to
from hdpsim.experiments.campaigns.setup import plan_campaign
from hdpsim.experiments.studies.money import mean_price
from hdpsim.simulator.planning import plan_batch

from .goal import Goal, probability, slower_with, surely_s

if TYPE_CHECKING:
    from hdpsim.cost_models.layout.layout import Layout
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.campaigns.run import CampaignStudy
    from hdpsim.experiments.campaigns.setup import CampaignPlan
    from hdpsim.experiments.output.statistics import Estimate
    from hdpsim.experiments.scenario.scenario import Scenario

NEIGHBOURS = 3
"""Numbers of GPUs next to the one that bisection finds, in blocks, that are looked at as well."""
NEAR = 1.03
"""How much more or fewer GPUs are tried than the last number lets expect, so that the answer lies in between."""
SIZES, CHEAPEST = 16, 3
"""Numbers of GPUs that are looked at for the cheapest, and of those the campaigns that are run."""
ROUNDINGS = 6
"""Campaigns of one number of GPUs until the tokens that it trains are found, to three digits."""
WORTH_DOUBLING = 1.02
"""Throughput that twice as many GPUs must at least give for still more to be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A number of GPUs, and what becomes of the goal on them.

    Attributes:
        scenario: on these GPUs.
        study: a campaign to the tokens, failures included.
        band: how well runs like it were predicted.
        probability: of meeting the date, and of the money sufficing where the goal has any.
        surely_s: the time in which it ends with the confidence that is asked for.
        within: whether the date and the money that are given are kept with that confidence.
    """

    scenario: Scenario
    study: CampaignStudy
    band: Band
    probability: float
    surely_s: float
    within: bool = True

    @property
    def gpus(self) -> int:
        """Number of all GPUs."""
        return self.scenario.cluster.gpus

    @property
    def paid_gpus(self) -> int:
        """With those of its racks that train nothing."""
        cluster = self.scenario.cluster
        return cluster.gpus + cluster.nodes * cluster.node.idle_gpus

    @property
    def tokens(self) -> float:
        """What it trains on."""
        assert self.study.target is not None
        return self.study.target.tokens

    @property
    def seconds(self) -> Estimate:
        """From the start to the last token, mean over the campaign's runs."""
        assert self.study.target is not None
        return self.study.target.seconds

    @property
    def days(self) -> float:
        """How long it takes, in days."""
        return self.seconds.mean / DAY_S

    @property
    def surely_days(self) -> float:
        """The same with the confidence that is asked for."""
        return self.surely_s / DAY_S

    @property
    def memory(self) -> MemoryReport:
        """Memory of the fullest stage."""
        return _memory(self.scenario, self.study.plan)

    @property
    def usd(self) -> float | None:
        """GPUs all that time, at the typical price; None where it is unknown."""
        assert self.study.target is not None
        return self.study.target.usd

    @property
    def surely_usd(self) -> float | None:
        """The same for as long as it takes with the confidence that is asked for."""
        return None if self.usd is None else self.usd * self.surely_s / self.seconds.mean

    def bought(self, goal: Goal) -> float:
        """Tokens that the money of a goal buys on these GPUs with that confidence; time grows evenly with tokens.

        tokens = tokens x money / what these cost with that confidence
        """
        assert goal.usd is not None
        assert self.surely_usd
        return self.tokens * goal.usd / self.surely_usd


@dataclass(kw_only=True)
class Sizing:
    """One layout on one type of GPUs, and every number of GPUs that was looked at.

    Attributes:
        at: the scenario on so many GPUs.
        goal: what has to be met.
        confidence: the probability of meeting it that is asked for.
        block: GPUs must be a multiple of it.
        most: GPUs that there are at most.
        headroom: over what is predicted, a share of it, for which memory must suffice.
    """

    at: Callable[[int], Scenario]
    goal: Goal
    confidence: float
    block: int
    most: int
    headroom: float = 0.0
    _rates: dict[int, float] = field(default_factory=dict)
    _plans: dict[int, tuple[Scenario, CampaignPlan]] = field(default_factory=dict)
    _offers: dict[int, Offer | None] = field(default_factory=dict)

    @property
    def most_blocks(self) -> int:
        """Blocks that there are at most."""
        return self.most // self.block

    def about_s(self, gpus: int) -> float:
        """Seconds to the last token of the goal in closed form, with the confidence asked for; infinite: never."""
        rate = self.rate(gpus)
        return (self.goal.tokens or 0.0) / rate if rate else math.inf

    def rate(self, gpus: int) -> float:
        """Tokens a second in closed form, failures included, with the confidence asked for.

        0 where there are not so many GPUs, where it cannot run, or leaves less headroom than is asked for.
        """
        if gpus not in self._rates:
            self._rates[gpus] = self._closed_form(gpus)
        return self._rates[gpus]

    def _closed_form(self, gpus: int) -> float:
        if gpus > self.most:
            return 0.0
        try:
            scenario = self.at(gpus)
            plan = plan_campaign(scenario)
        except (InfeasibleError, ScenarioError):
            return 0.0
        if self.headroom and _memory(scenario, plan).is_tight(self.headroom):
            return 0.0
        self._plans[gpus] = scenario, plan
        slower = slower_with(self.confidence, _band(scenario), plan.undisturbed.sampling)
        undisturbed = plan.setup.tokens_per_step / plan.setup.step_s
        return undisturbed * max(plan.closed_form_ettr, 1e-3) / slower

    def lasts_s(self, gpus: int) -> float:
        """How long so many GPUs may take: until the date, or until the money is spent where that is earlier."""
        return min(self.goal.until_s, self.paid_s(gpus))

    def paid_s(self, gpus: int) -> float:
        """How long the money lasts for so many GPUs.

        seconds = USD / (USD an hour of a GPU x GPUs / 3600); endless without a sum
        """
        scenario, _ = self._plans[gpus]
        hourly = mean_price(scenario.cluster, scenario.costs).usd_per_hour
        if self.goal.usd is None or not hourly:
            return math.inf
        return self.goal.usd / (hourly * gpus / HOUR_S)

    def offer(self, gpus: int) -> Offer | None:
        """A whole campaign on so many GPUs; None where it cannot run or never reaches the tokens.

        Without tokens in the goal it trains the most that keep date and money with the confidence that is asked for,
        rounded down to three digits: what is printed can be asked for.
        """
        if gpus not in self._offers:
            self._offers[gpus] = self._whole_campaigns(gpus) if self.rate(gpus) else None
        return self._offers[gpus]

    def _whole_campaigns(self, gpus: int) -> Offer | None:
        if self.goal.tokens is not None:
            return self._campaign(gpus, self.goal.tokens)
        tokens = rounded_down(self.rate(gpus) * self.lasts_s(gpus))
        most: Offer | None = None
        tried: set[float] = set()
        last = 0.0, 0.0
        while tokens not in tried and len(tried) < ROUNDINGS:
            offer = self._campaign(gpus, tokens)
            if offer is None:
                break
            if offer.within and (most is None or tokens > most.tokens):
                most = offer
            tried.add(tokens)
            before, last = last, (tokens, offer.surely_s)
            following = _tokens_in(self.lasts_s(gpus), before, last)
            if following <= 0.0:
                break
            tokens = rounded_down(following)
        return most

    def _campaign(self, gpus: int, tokens: float) -> Offer | None:
        scenario, plan = self._plans[gpus]
        try:
            study = campaign_to(scenario, tokens, plan)
        except (InfeasibleError, ScenarioError):
            return None
        band, sampling = _band(scenario), study.plan.undisturbed.sampling
        lasts_s = self.lasts_s(gpus)
        until_s = surely_s(self.confidence, study.reached_s, band, sampling)
        return Offer(
            scenario=scenario,
            study=study,
            band=band,
            probability=probability(Goal(seconds=lasts_s), study.reached_s, band, sampling),
            surely_s=until_s,
            within=until_s <= lasts_s,
        )

    def meets(self, offer: Offer | None) -> bool:
        """Whether an offer meets the date with the confidence that is asked for, whatever it costs."""
        return offer is not None and (self.goal.seconds is None or offer.surely_s <= self.goal.seconds)

    def fewest(self, guess: int) -> Offer | None:
        """The fewest GPUs that meet the date; None where no number does.

        Bisection over multiples of the block with the closed form, which falls with the number of GPUs as good as
        always; then whole campaigns on the number found and on its neighbours.
        """
        blocks = self._bisected(max(1, min(guess, self.most) // self.block))
        if blocks is None:
            return None
        while not self.meets(self.offer(blocks * self.block)):
            blocks += 1
            if blocks > self.most_blocks or self.about_s(blocks * self.block) > 2.0 * self.goal.until_s:
                return None
        missed = 0
        best = blocks
        for fewer in range(blocks - 1, 0, -1):
            if self.meets(self.offer(fewer * self.block)):
                best, missed = fewer, 0
            else:
                missed += 1
            if missed == NEIGHBOURS:
                break
        return self.offer(best * self.block)

    def cheapest(self, fewest: int) -> list[int]:
        """Of the numbers up to twice the *fewest*, about SIZES of them and round ones, those that cost least."""
        step = self.block * max(1, 2 ** math.ceil(math.log2(fewest / self.block / SIZES)))
        sizes = range(fewest // step * step + step, min(2 * fewest, self.most) + 1, step)
        return sorted(sizes, key=lambda gpus: gpus * self.about_s(gpus))[:CHEAPEST]

    def _bisected(self, guess: int) -> int | None:
        """The fewest blocks whose closed form meets the goal.

        Numbers are tried where time times GPUs would be what it was on the last one, a little on the safe side.
        """
        low, high, doubled = 0, guess, False
        while not self._about_meets(high):
            low, factor = high, self.about_s(high * self.block) * NEAR / self.goal.until_s
            if factor > 2.0 or doubled:
                if not self._grows(high):
                    low, high = 0, self._fewer(guess)
                    break
                factor = 2.0
            high, doubled = min(math.ceil(high * factor), self.most_blocks), True
        if not high:
            return None
        while not low and high > 1:
            expected = high * self.about_s(high * self.block) / self.goal.until_s
            fewer = min(high - 1, max(high // 2, int(expected / NEAR)))
            low, high = (low, fewer) if self._about_meets(fewer) else (fewer, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._about_meets(middle) else (middle, high)
        return high

    def _fewer(self, blocks: int) -> int:
        """The first half of *blocks*, half of that and so on that meets the goal, as long as each is faster; or 0."""
        while blocks > 1 and self.about_s(blocks // 2 * self.block) < self.about_s(blocks * self.block):
            blocks //= 2
            if self._about_meets(blocks):
                return blocks
        return 0

    def _about_meets(self, blocks: int) -> bool:
        return self.about_s(blocks * self.block) <= self.goal.until_s

    def _grows(self, blocks: int) -> bool:
        """Whether twice as many GPUs, or all there are, are worth a try: they are faster, or the first that run."""
        more = min(2 * blocks, self.most_blocks)
        if more <= blocks:
            return False
        now_s = self.about_s(blocks * self.block)
        gain = WORTH_DOUBLING ** math.log2(more / blocks)
        return math.isinf(now_s) or self.about_s(more * self.block) * gain <= now_s

    @property
    def looked_at(self) -> int:
        """Numbers of GPUs on which a step was simulated."""
        return len(self._rates)

    def fastest(self) -> tuple[int, float] | None:
        """The number of GPUs that takes least among those looked at, and its seconds; None where none runs."""
        runs = [(self.about_s(gpus), gpus) for gpus, rate in self._rates.items() if rate]
        return min(runs)[::-1] if runs else None

    @property
    def binds(self) -> bool:
        """Whether all GPUs that there are, in whole blocks, are the fastest: more of them might be faster."""
        fastest = self.fastest()
        return fastest is not None and fastest[0] == self.most_blocks * self.block

    def offers(self) -> Iterator[Offer]:
        """Every offer that meets the date."""
        yield from (offer for offer in self._offers.values() if offer is not None and self.meets(offer))


def _tokens_in(seconds: float, before: tuple[float, float], last: tuple[float, float]) -> float:
    """Tokens that take so long, on the line through two campaigns' tokens and seconds: a job also takes time to begin.

    Through no tokens in no time and the last campaign, where more tokens took no longer.

    >>> _tokens_in(100.0, (0.0, 0.0), (10.0, 160.0)), _tokens_in(100.0, (10.0, 160.0), (6.25, 122.5))
    (6.25, 4.0)
    """
    if (last[0] - before[0]) * (last[1] - before[1]) <= 0.0:
        before = 0.0, 0.0
    return last[0] + (seconds - last[1]) * (last[0] - before[0]) / (last[1] - before[1])


def rounded_down(value: float) -> float:
    """The first three digits: what is shown, and no more than it was.

    >>> rounded_down(1_239_999.0), rounded_down(12.0)
    (1230000.0, 12.0)
    """
    digit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.floor(value / digit * (1.0 + 1e-12)) * digit


def block_of(layout: Layout, node_gpus: int) -> int:
    """GPUs that the layout deals out at once, in whole servers.

    lcm(server, pp * lcm(tp * cp, GPUs of a copy of the experts))
    """
    parallel = layout.parallel
    ranks = parallel.tp * (parallel.cp or 1)
    return math.lcm(node_gpus, parallel.pp * math.lcm(ranks, parallel.expert_gpus))


def _memory(scenario: Scenario, plan: CampaignPlan) -> MemoryReport:
    """Of the fullest stage: of the steps that were simulated, or planned for one that the scenario states."""
    return plan.undisturbed.memory or plan_batch(scenario.setup(), scenario.batches(1)[0])[2]


def _band(scenario: Scenario) -> Band:
    return setup_band(scenario.setup(), scenario.batches(1)[0])
