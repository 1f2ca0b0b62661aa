"""A recommendation as a document: which GPUs, how long, for how much, how surely."""

from __future__ import annotations

from typing import Any

from hdpsim.experiments.bands.band import widest_band
from hdpsim.experiments.bands.memory_fit import fits_probability
from hdpsim.experiments.output.amounts import duration, large_amount, memory_of, with_duration
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.statistics import estimate_json
from hdpsim.experiments.planning.plan import refused_elsewhere
from hdpsim.experiments.studies.money import usd_words

from .earlier_dates import DateForMoney
from .goal import Goal
from .recommend import Recommendation, TypeResult
from .sizing import Offer

_GIB = 2.0**30
_WHAT = {"gpus": "The fewest", "usd": "The cheapest", "tokens": "The most tokens", "days": "The earliest"}


def recommend_document(found: Recommendation) -> Document:
    """Everything about a recommendation."""
    best, scenario = found.best, found.scenario
    candidates = [_type_json(result, found.goal) for result in found.types]
    table = _table(found)
    dates = _dates_table(found) if len(found.dates) > 1 else None
    return Document(
        kind="recommend",
        head=f"{scenario.name}: {scenario.model.name}, {found.goal.words}",
        payload={
            "name": scenario.name,
            "target": attributes(found.goal, "tokens seconds days usd"),
            "objective": found.aim,
            "confidence": found.confidence,
            **_offer_json(best),
            "candidates": candidates,
            "best": {**candidates[0], "scenario": best.scenario.document},
            "max_gpus": found.most_gpus,
            "dates": [
                {**_offer_json(one.offer), "usd_per_day_earlier": one.usd_per_day} for one in found.dates
            ],
        },
        blocks=(_answer(found), table, *filter(None, (dates,))),
        notes=_notes(found),
        band=widest_band((best.band,)),
        files=files_of(
            "recommend",
            {"recommended.yaml": best.scenario.to_yaml, "candidates.csv": lambda: table}
            | ({"dates.csv": lambda: dates} if dates else {}),
        ),
    )


def _offer_json(offer: Offer) -> dict[str, Any]:
    target, study = offer.study.target, offer.study
    assert target is not None
    return {
        "gpu": offer.scenario.cluster.gpu.name,
        **attributes(offer, "gpus paid_gpus tokens days surely_days usd surely_usd probability"),
        "usd_range": target.costs.usd(target.tokens),
        **attributes(target, "kwh gpu_hours"),
        "seconds": estimate_json(offer.seconds),
        "effective_share": study.ettr.mean,
        "failures": study.failures.mean,
        "step_s": study.plan.undisturbed.seconds,
        "tokens_per_s": study.plan.undisturbed.tokens / study.plan.undisturbed.seconds,
        "band": offer.band.document(study.plan.undisturbed.seconds),
    }


def _type_json(result: TypeResult, goal: Goal) -> dict[str, Any]:
    known = attributes(result, "gpu layout looked_at") | {"all_layouts": result.complete}
    if result.offer is not None:
        memory = result.offer.memory
        return {
            **known,
            **_offer_json(result.offer),
            "memory_gib": memory.total_bytes / _GIB,
            "headroom_gib": (memory.capacity_bytes - memory.total_bytes) / _GIB,
            "fits_probability": fits_probability(memory),
            "feasible": True,
        }
    fastest = result.fastest and {"gpus": result.fastest[0], "seconds": result.fastest[1]}
    dear = result.dear and {
        **attributes(result.dear, "gpus days usd surely_usd probability"), "tokens": result.dear.bought(goal)
    }  # fmt: skip
    return {**known, "feasible": False, "reason": result.reason, "fastest": fastest, "over_budget": dear}


def _answer(found: Recommendation) -> str:
    best, goal = found.best, found.goal
    surely = f"with a probability of {found.confidence:.0%} at most"
    time = with_duration(best.seconds)
    if goal.seconds is None:
        time += f" ({surely} {duration(best.surely_s)})"
    cost = "at an unknown price" if best.usd is None else f"for {usd_words(best.usd)}"
    if goal.usd is not None and best.surely_usd is not None:
        cost += f" ({surely} {usd_words(best.surely_usd)})"
    searched = " Not all layouts were looked at: a larger --budget may find better ones."
    study = best.study
    return (
        f"{_WHAT[found.aim]}: {best.gpus:,} x {best.scenario.cluster.gpu.name} ({found.types[0].layout}) train "
        f"{large_amount(best.tokens)} tokens in {time} {cost}; "
        f"{study.ettr.mean:.1%} of the time trains, checkpoints, restarts and {study.failures.mean:,.1f} failures take "
        f"the rest. "
        f"The probability of being done {goal.limits} is {best.probability:.0%}.{_cheaper(found)}"
        f"{'' if all(result.complete for result in found.types) else searched}"
    )


def _cheaper(found: Recommendation) -> str:
    """That the fewest GPUs are not the cheapest: of several types numbers alone compare little."""
    priced = [result.offer for result in found.types if result.offer and result.offer.usd is not None]
    cheapest = min(priced, key=lambda offer: offer.usd or 0.0, default=found.best)
    if (
        found.aim != "gpus"
        or found.best.usd is None
        or cheapest.usd is None
        or cheapest.usd >= found.best.usd
    ):
        return ""
    return (
        f" {cheapest.gpus:,} x {cheapest.scenario.cluster.gpu.name} cost less, {usd_words(cheapest.usd)}, with a "
        f"probability of {cheapest.probability:.0%} (--objective usd looks for the cheapest)."
    )


def _table(found: Recommendation) -> Table[TypeResult]:
    def of_offer(what: str) -> Any:
        return lambda result: result.offer and getattr(result.offer, what)

    columns: tuple[Column[TypeResult], ...] = (
        Column("gpu", heading="GPU"),
        Column("gpus", of_offer("gpus"), heading="GPUs", format=","),
        Column("tokens", of_offer("tokens"), format=large_amount, shown=found.goal.tokens is None),
        Column("days", of_offer("days"), format=".1f"),
        Column("usd", of_offer("usd"), heading="USD", format=large_amount, missing="unknown"),
        Column("kwh", _kwh, heading="MWh", format=lambda kwh: f"{kwh / 1000:,.0f}", missing="unknown"),
        Column("probability", of_offer("probability"), format=".0%"),
        Column("", lambda result: result.offer and result.offer.study.ettr.mean, heading="of the time trains",
               format=".1%"),
        Column("", lambda result: result.offer and memory_of(result.offer.memory), heading="memory per GPU"),
        Column("layout", heading="layout and strategy", left=True),
        Column("reason", _reason, heading="remark", left=True, optional=True),
    )  # fmt: skip
    title = f"What meets {found.goal.words}" if found.goal.tokens else f"What {found.goal.words} train"
    return Table(title=f"{title}, by type of GPU", columns=columns, rows=found.types)


def _refused(found: Recommendation) -> list[str]:
    """What is recommended and could not be started as it is, by type of GPU."""
    offers = [result.offer for result in found.types if result.offer]
    return [
        f"{offer.gpus:,} x {offer.scenario.cluster.gpu.name}: {note}"
        for offer in offers
        for note in refused_elsewhere(offer.scenario)
    ]


def _at_the_limit(result: TypeResult) -> bool:
    """Whether more GPUs than there are might be better: all of them are the fastest, and the money pays for them."""
    sizing, offer = result.sizing, result.offer
    if sizing is None or offer is None or not sizing.binds:
        return False
    return sizing.goal.tokens is not None or offer.gpus == sizing.most_blocks * sizing.block


def _dates_table(found: Recommendation) -> Table[DateForMoney]:
    """What an earlier date costs."""
    several = len(found.types) > 1
    columns: tuple[Column[DateForMoney], ...] = (
        Column("gpus", lambda one: one.offer.gpus, heading="GPUs", format=","),
        Column("gpu", lambda one: one.offer.scenario.cluster.gpu.name, heading="GPU", left=True, shown=several),
        Column("days", lambda one: one.offer.days, format=".1f"),
        Column("surely_days", lambda one: one.offer.surely_days, heading=f"days ({found.confidence:.0%} sure)",
               format=".1f"),
        Column("usd", lambda one: one.offer.usd, heading="USD", format=large_amount),
        Column("usd_per_day_earlier", lambda one: one.usd_per_day, heading="USD for each day earlier",
               format=large_amount),
    )  # fmt: skip
    return Table(title="What an earlier date costs, with the same layout", columns=columns, rows=found.dates)


def _kwh(result: TypeResult) -> float | None:
    """What all GPUs, hosts, network and cooling take until the last token."""
    target = result.offer and result.offer.study.target
    return target.kwh if target else None


def _reason(result: TypeResult) -> str:
    if result.offer is not None and (idle := result.offer.scenario.cluster.node.idle_gpus):
        used = result.offer.scenario.cluster.node.gpus
        return f"{used} GPUs of each rack of {used + idle} train; all {result.offer.paid_gpus:,} are paid"
    if result.fastest is None or result.offer is not None or result.dear is not None:
        return result.reason
    gpus, seconds = result.fastest
    return f"{result.reason}: {gpus:,} GPUs are the fastest and need {duration(seconds)}"


def _notes(found: Recommendation) -> tuple[str, ...]:
    best, limits = found.best, found.goal.limits_named
    asked = f"GPUs meet {limits} if they do with a probability of {found.confidence:.0%} (--confidence)."
    most = f"No more than {found.most_gpus:,} GPUs were tried (--max-gpus)."
    bound = any(_at_the_limit(result) for result in found.types)
    return (
        *_refused(found),
        asked,
        *((most,) if bound and found.goal.wanted != "gpus" else ()),
        "Probability: how far off predictions of such runs were (log-normal through P10 and P90 of the band), and "
        f"{best.study.plan.seeds} runs of a campaign with failures, restarts and checkpoints (the keys campaign.*).",
        *dict.fromkeys(result.offer.study.costs.price.note for result in found.types if result.offer),
        f"How far off predictions of such runs were: {best.band.note}",
    )
