"""The best GPUs for tokens, a date and a sum of money, of which two are given or all, failures included."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.reading.units import HOUR_S
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.bands.memory_fit import shipped_margin
from hdpsim.experiments.planning.plan import words_of
from hdpsim.experiments.planning.search.budget import NO_LIMIT, Budget
from hdpsim.experiments.planning.search.search import search
from hdpsim.experiments.planning.search.space import ANY_GPUS, Candidate, servers_of, space_of
from hdpsim.experiments.scenario.overrides import parse_override
from hdpsim.experiments.studies.money import mean_price

from .earlier_dates import DateForMoney, dates_for_money, fewer_gpus
from .goal import USUAL_CONFIDENCE
from .most_for_money import makes_most
from .reasons import too_dear, unreachable
from .sizing import NEAR, Offer, Sizing, block_of

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.experiments.planning.search.evaluation import Evaluated
    from hdpsim.experiments.planning.search.search import Progress, SearchResult
    from hdpsim.experiments.scenario.scenario import Scenario

    from .goal import Goal, Wanted

Aim = Literal["gpus", "usd"]
Best = Literal["gpus", "usd", "tokens", "days"]
Overrides = tuple[str, ...]

USUAL_MFU = 0.4
"""Of which the first number of GPUs follows."""
SHARES = (0.35, 0.2, 0.15, 0.1, 0.1, 0.1)
"""Of a type's budget: searches on the first number of GPUs, on the one that this leads to, and so on."""
LEAST_STEPS = 20.0
"""A search of fewer finds little more than it began with: the first one takes them instead."""
ROUNDS = len(SHARES)
SEARCHING = 0.6
"""Of a budget of time; the rest is for steps and campaigns on every number of GPUs that comes up."""
FEW_TOKENS = 128
"""Of the batch for each of the first number of GPUs, however many the goal would take: more of them find no work."""
TOKENS_PER_GPU = 2048
"""Of the batch, for the first number of GPUs where neither a date nor a sum says how many: about as many as in the
largest published runs (Llama 3 405B: 1,024)."""
MOST_DOUBLINGS = 4
"""Of the first number of GPUs, where no layout fits it."""
_NEVER: dict[Wanted, str] = {
    "gpus": "no number of GPUs meets the date",
    "tokens": "date and money end before a step does, with what a job takes to begin and what failures take",
    "days": "failures leave no time",
}
OWN_LAYOUT = "the scenario's own layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeResult:
    """One type of GPU.

    Attributes:
        gpu: its name.
        offer: the best number of GPUs; None where none meets the goal.
        dear: where numbers of GPUs meet the date, but none for the money: the one that costs least.
        layout: in words; empty where none fits.
        reason: why there is no offer.
        fastest: where none meets the goal, the number of GPUs that takes least, and its seconds with the confidence.
        looked_at: numbers of GPUs on which a step was simulated.
        complete: whether every layout was looked at on every number of GPUs that was searched, and all were searched.
        sizing: of the layout; None where none fits.
    """

    gpu: str
    offer: Offer | None = None
    dear: Offer | None = None
    layout: str = ""
    reason: str = ""
    fastest: tuple[int, float] | None = None
    looked_at: int = 0
    complete: bool = True
    sizing: Sizing | None = None


class _Tried(NamedTuple):
    """A layout, the numbers of GPUs that were looked at for it, and the best of them that meets the date."""

    sizing: Sizing
    offer: Offer | None
    layout: Evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What was asked, and the answer for every type of GPU, the best first.

    Attributes:
        aim: what makes an offer the best: the fewest GPUs, the least money, the most tokens, the earliest date.
        most_gpus: that were tried at most.
        dates: where the earliest date was looked for, what others cost, the latest first.
    """

    scenario: Scenario
    goal: Goal
    aim: Best
    confidence: float
    types: tuple[TypeResult, ...] = field(default_factory=tuple)
    most_gpus: int = 0
    dates: tuple[DateForMoney, ...] = ()

    @property
    def best(self) -> Offer:
        """The best of all types."""
        assert self.types[0].offer is not None
        return self.types[0].offer


def recommend(
    scenario: Scenario,
    goal: Goal,
    *,
    gpu_types: Sequence[str] = (),
    aim: Aim = "gpus",
    confidence: float = USUAL_CONFIDENCE,
    keep_layout: bool = False,
    pinned: Overrides = (),
    budget: Budget = NO_LIMIT,
    max_gpus: int | None = None,
    progress: Progress = lambda done, total, words: None,
) -> Recommendation:
    """Find the GPUs that meet a goal.

    Args:
        scenario: model, data, batch and campaign; its number of GPUs does not matter.
        goal: tokens, time and money, two of them or all.
        gpu_types: GPUs of the catalog, each on its usual server; default: the scenario's.
        aim: fewest or cheapest, where tokens and a date are given.
        confidence: the probability of meeting the date that is asked for.
        keep_layout: only data parallelism grows; else layouts are searched.
        pinned: ``key=value`` changes that were made to the scenario: their keys are not searched.
        budget: how far the searches for layouts go, all together.
        max_gpus: GPUs that can be had, idle ones of racks included; default: see largest_cluster.
        progress: told which type is looked at.

    Raises:
        InfeasibleError: no type meets the goal; the message says what would have to change.
    """
    names = tuple(catalog.gpu(name).name for name in gpu_types) or (scenario.cluster.gpu.name,)
    best: Best = aim if goal.wanted == "gpus" else goal.wanted
    known = [parse_override(text)[0] for text in pinned]
    most = max_gpus or largest_cluster(scenario)
    types = []
    for number, name in enumerate(names):
        progress(number, len(names), name)
        servers = servers_of(scenario, name if gpu_types else None, known)
        answers = [
            _answer(
                _OneType(
                    scenario=scenario, goal=goal, aim=best, confidence=confidence, pinned=pinned, gpu=name,
                    site=server, max_gpus=most, budget=budget.part(1.0 / len(names) / len(servers)),
                ),
                keep_layout, alone=len(names) == len(servers) == 1,
            )
            for server in servers
        ]  # fmt: skip
        types.append(min(answers, key=lambda result: _rank(result.offer or result.dear, best)))
    progress(len(names), len(names), "")
    types.sort(key=lambda result: _rank(result.offer or result.dear, best))
    if types[0].offer is None:
        raise unreachable(goal, confidence, types, scenario, most)
    dates = [] if best != "days" else dates_for_money(
        offer for one in types if one.offer and one.sizing for offer in fewer_gpus(one.sizing, one.offer)
    )  # fmt: skip
    return Recommendation(
        scenario=scenario, goal=goal, aim=best, confidence=confidence, types=tuple(types), most_gpus=most,
        dates=tuple(dates),
    )  # fmt: skip


def largest_cluster(scenario: Scenario) -> int:
    """As many GPUs as the largest cluster of the catalog has, or the scenario's own: nobody is known to rent more."""
    return max(scenario.cluster.gpus, *(catalog.cluster(name).gpus for name in catalog.names("cluster")))


def _answer(one: _OneType, keep_layout: bool, *, alone: bool) -> TypeResult:
    """The result of one type; where the scenario cannot run on it, the reason, unless it is the only one."""
    try:
        return one.kept() if keep_layout else one.searched()
    except (InfeasibleError, ScenarioError) as error:
        if alone:
            raise
        return TypeResult(gpu=one.gpu, reason=" ".join(str(error).split()))


def _rank(offer: Offer | None, aim: Best) -> tuple[int, float, float]:
    """What is too dear comes after what is not, the cheapest of it first; those of unknown price behind others."""
    if offer is None:
        return 2, 0.0, 0.0
    usd = float("inf") if offer.usd is None else offer.usd
    if not offer.within:
        return 1, usd, offer.gpus
    match aim:
        case "tokens":
            first, then = -offer.tokens, usd
        case "days":
            first, then = offer.surely_s, usd
        case "usd":
            first, then = usd, offer.paid_gpus
        case "gpus":
            first, then = offer.paid_gpus, usd
        case _:
            assert_never(aim)
    return 0, first, then


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneType:
    """The question for one type of GPU."""

    scenario: Scenario
    goal: Goal
    aim: Best
    confidence: float
    pinned: Overrides
    gpu: str
    site: tuple[tuple[str, object], ...]
    max_gpus: int
    budget: Budget

    def kept(self) -> TypeResult:
        """Answer with the scenario's own layout."""
        sizing = self._sizing((), block_of(self.scenario.layout, self._server_gpus))
        offer = self._offer(sizing, self._guess())
        return self._result(sizing, offer, OWN_LAYOUT)

    def searched(self) -> TypeResult:
        """Answer with the layouts that searches find for the numbers of GPUs that come up."""
        limit_s = math.inf if self.budget.seconds is None else self.budget.seconds
        until_s = time.monotonic() + limit_s
        gpus, first = self._first_layouts()
        found, complete = first.best, first.complete
        if not found:
            return TypeResult(gpu=self.gpu, reason=f"no layout fits {gpus:,} GPUs or fewer")
        tried: dict[Candidate, _Tried] = {}
        searched = {gpus}
        for number in range(ROUNDS):
            if tried and time.monotonic() > until_s:
                complete = False
                break
            if number:
                refined = self._layouts(gpus, number, [one.candidate for one in found])
                found, complete = refined.best or found, complete and refined.complete
            best = found[0]
            if best.candidate not in tried:
                layout = self._with_degrees(gpus, best.candidate).overrides
                block = block_of(self._sized(gpus).with_changes(layout).layout, self._server_gpus)
                sizing = self._sizing(layout, block, shipped_margin().headroom)
                most = max((one.sizing.rate(gpus) for one in tried.values()), default=0.0)
                here = sizing.rate(-(-gpus // sizing.block) * sizing.block)
                if not tried or here > most:  # else it is better on the first batch alone
                    tried[best.candidate] = _Tried(sizing, self._offer(sizing, gpus), best)
            following = self._next(searched, tuple(tried.values()), fewer=number + 1 < len(self._shares))
            if following is None:
                break
            searched.add(gpus := following)
        chosen = self._chosen(tuple(tried.values()))
        found_here = self._result(chosen.sizing, chosen.offer, words_of(chosen.layout), complete=complete)
        if complete:
            return found_here
        both = (found_here, self._with_own_layout(chosen))
        return min(both, key=lambda result: _rank(result.offer or result.dear, self.aim))

    def _with_own_layout(self, chosen: _Tried) -> TypeResult:
        """With the scenario's own layout, which a search that its budget ends may miss.

        Without an offer where the layout that was found takes no longer on as many GPUs, unless the earliest date is
        looked for: that may lie on more of them.
        """
        gpus = chosen.offer.gpus if chosen.offer else self._guess()
        block = block_of(self._sized(gpus).layout, self._server_gpus)
        sizing = self._sizing((), block, shipped_margin().headroom)
        faster = sizing.rate(-(-gpus // sizing.block) * sizing.block) > chosen.sizing.rate(gpus)
        offer = self._offer(sizing, gpus) if faster or self.goal.wanted == "days" else None
        return self._result(sizing, offer, OWN_LAYOUT, complete=False)

    def _chosen(self, tried: Sequence[_Tried]) -> _Tried:
        """The layout with the best offer; the last one where there is none."""
        met = [one for one in tried if one.offer is not None]
        return min(met, key=lambda one: _rank(one.offer, self.aim)) if met else tried[-1]

    def _next(self, searched: Set[int], tried: Sequence[_Tried], *, fewer: bool) -> int | None:
        """The number of GPUs on which layouts are searched next; None where no other may be better.

        That of the best offer; then fewer, as its layout may only be too large for their memory: what the work of the
        best offer leads to, or the middle between the last number that was searched in vain and the offer's. For the
        earliest date more: its layout may not divide them. For the most tokens those that the money pays until the
        date, for most layouts the best number. Without *fewer* nothing is left for that.
        """
        chosen = self._chosen(tried)
        if chosen.offer is None:
            fastest = chosen.sizing.fastest()
            return fastest[0] if fastest and fastest[0] not in searched else None
        now = chosen.offer.gpus
        if now not in searched:
            return now
        if not fewer:
            return None
        if self.goal.tokens is None:
            cluster = chosen.offer.scenario.cluster
            servers = int(min(self._paid(cluster), self._most)) // cluster.node.gpus
            paid = max(1, servers) * cluster.node.gpus
            return None if paid in searched else paid
        if self.goal.seconds is None:
            more = min(2 * now, self._most // self._server_gpus * self._server_gpus)
            return more if more > now and more not in searched else None
        server = chosen.offer.scenario.cluster.node.gpus
        work = now * chosen.sizing.about_s(now) / self.goal.seconds
        expected = max(1, math.ceil(work / NEAR / server)) * server
        low = max(expected - server, max((one for one in searched if one < now), default=0))
        following = expected if expected > low else (low + now) // 2 // server * server
        return following if low < following < now else None

    def _result(
        self, sizing: Sizing, offer: Offer | None, layout: str, *, complete: bool = True
    ) -> TypeResult:
        fastest = sizing.fastest()
        reason = "" if offer else _NEVER[self.goal.wanted] if fastest else "the layout cannot run"
        if sizing.block > self._most:
            reason = f"the layout takes {sizing.block:,} GPUs at least, more than --max-gpus {self.max_gpus}"
        dear = None if offer is None or offer.within else offer
        if dear:
            reason = too_dear(dear, self.goal, self.confidence)
        return TypeResult(
            gpu=self.gpu, offer=None if dear else offer, dear=dear, layout=layout, reason=reason, fastest=fastest,
            looked_at=sizing.looked_at, complete=complete, sizing=sizing,
        )  # fmt: skip

    def _offer(self, sizing: Sizing, guess: int) -> Offer | None:
        """The fewest GPUs, or the cheapest of those that meet the date, up to twice as many.

        The cheapest are looked for as well where the fewest are too dear. Without tokens or a date it is the number
        that makes most of the money.
        """
        if not sizing.most_blocks:
            return None
        if self.goal.wanted != "gpus":
            return makes_most(sizing, guess)
        fewest = sizing.fewest(guess)
        if fewest is None or (self.aim == "gpus" and fewest.within):
            return fewest
        for gpus in sizing.cheapest(fewest.gpus):
            sizing.offer(gpus)
        return min(sizing.offers(), key=lambda offer: _rank(offer, self.aim))

    @property
    def _shares(self) -> tuple[float, ...]:
        """Of the budget that each search takes; later ones try the best layouts so far, and nothing else."""
        if self.budget.steps is None:
            return SHARES
        later = [share for share in SHARES[1:] if share * self.budget.steps >= LEAST_STEPS]
        return 1.0 - sum(later), *later

    def _sizing(self, layout: Overrides, block: int, headroom: float = 0.0) -> Sizing:
        return Sizing(
            at=partial(self._at, layout),
            goal=self.goal,
            confidence=self.confidence,
            block=block,
            most=self._most,
            headroom=headroom,
        )

    @property
    def _most(self) -> int:
        """GPUs that train, of as many as can be had: in racks some are idle."""
        site = dict(self.site)
        gpus = self._server_gpus
        own = 0 if "cluster.node" in site else self.scenario.cluster.node.idle_gpus
        idle = int(str(site.get("cluster.node.idle_gpus", own)))
        return self.max_gpus // (gpus + idle) * gpus

    @property
    def _server_gpus(self) -> int:
        """GPUs of a whole server of the type: 8 mostly, 72 of a rack of GB200."""
        site = dict(self.site)
        if "cluster.node.gpus" in site:
            return int(str(site["cluster.node.gpus"]))
        name = site.get("cluster.node")
        return self.scenario.cluster.node.gpus if name is None else catalog.node(str(name)).gpus

    def _at(self, layout: Overrides, gpus: int) -> Scenario:
        return self.scenario.with_changes((*self._on(gpus), *layout))

    def _on(self, gpus: int) -> Overrides:
        return Candidate(changes=(*self.site, ("gpus", gpus))).overrides

    def _sized(self, gpus: int) -> Scenario:
        """The scenario on so many GPUs of the type; with degrees that divide, where its own do not."""
        try:
            return self.scenario.with_changes(self._on(gpus))
        except InfeasibleError:
            known = {parse_override(text)[0] for text in self.pinned}
            others = tuple(text for text in ANY_GPUS if parse_override(text)[0] not in known)
            return self.scenario.with_changes((*self._on(gpus), *others))

    def _guess(self) -> int:
        """The first number of GPUs, in servers: a power of two, none without a few tokens of the batch.

        Those that do the work at a usual MFU; without tokens those that the money pays until the date; without a date
        as many as the largest runs have for their batch.
        """
        lengths = self.scenario.batches(1)[0]
        tokens = float(lengths.sum())
        cluster = self._sized(self._server_gpus).cluster
        if self.goal.seconds is None:
            gpus = tokens / TOKENS_PER_GPU
        elif self.goal.tokens is None:
            gpus = self._paid(cluster)
        else:
            flop = sequence_model_flop(self.scenario.model, lengths, causal=True) / tokens
            gpus = self.goal.tokens / self.goal.seconds * flop / (USUAL_MFU * cluster.gpu.bf16_flop_per_s)
        servers = 1
        while servers * cluster.node.gpus < min(gpus, self._most / 2, tokens / FEW_TOKENS):
            servers *= 2
        return servers * cluster.node.gpus

    def _paid(self, cluster: Cluster) -> float:
        """GPUs that the money pays until the date.

        GPUs = USD / (USD an hour of a GPU x hours)
        """
        hourly = mean_price(cluster, self.scenario.costs).usd_per_hour
        assert self.goal.usd
        assert self.goal.seconds
        assert hourly
        return self.goal.usd / hourly / (self.goal.seconds / HOUR_S)

    def _first_layouts(self) -> tuple[int, SearchResult]:
        """Layouts for the first number of GPUs, or for more where none fits."""
        gpus = self._guess()
        found = self._layouts(gpus)
        for _ in range(MOST_DOUBLINGS - 1):
            if found.best or 2 * gpus > self._most:
                break
            gpus *= 2
            found = self._layouts(gpus)
        return gpus, found

    def _layouts(self, gpus: int, number: int = 0, seeds: Sequence[Candidate] = ()) -> SearchResult:
        """The best layouts on so many GPUs, by the first batch; none where none fits."""
        sized = self._sized(gpus)
        space = space_of(sized, pinned=["cluster.node", *(parse_override(text)[0] for text in self.pinned)])
        share = (*self._shares, *len(SHARES) * (0.0,))[number]
        budget = self.budget.part(share * (1.0 if self.budget.seconds is None else SEARCHING))
        headroom = shipped_margin().headroom
        return search(sized, space, budget=budget, batches=1, headroom=headroom, seeds=seeds)

    def _with_degrees(self, gpus: int, candidate: Candidate) -> Candidate:
        """The candidate, with the degrees of the scenario that it does not change."""
        return Candidate(
            changes=tuple({**dict(_degrees(self._sized(gpus))), **dict(candidate.changes)}.items())
        )


def _degrees(scenario: Scenario) -> list[tuple[str, object]]:
    """The degrees that a scenario has, which another number of GPUs may have replaced."""
    return [
        (key, scenario.document.get("layout", {}).get(key.removeprefix("layout.")))
        for key in (text.partition("=")[0] for text in ANY_GPUS)
        if key.removeprefix("layout.") in scenario.document.get("layout", {})
    ]
