"""Verbs that answer what to run, on what, and what a change would buy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from hdpsim.cost_models.reading.values import choice, integer, read_at
from hdpsim.errors import HdpSimError, InfeasibleError, OwnPlanError, StrategyError, UserInputError
from hdpsim.experiments.scenario.overrides import RIVALS, GivenOverrides, override_texts, parse_override
from hdpsim.experiments.scenario.scenario import ScenarioSource, load_scenario
from hdpsim.experiments.verbs.result import Result
from hdpsim.experiments.verbs.running import Target
from hdpsim.experiments.verbs.values import (
    Counts,
    Names,
    Progress,
    changes_of,
    check_whole_number,
    counts_of,
    names_of,
    quiet,
    refuse_twice,
    share_of,
    strategy_names,
    tokens_of,
)
from hdpsim.ranges import Range

if TYPE_CHECKING:
    from hdpsim.experiments.sweeps.run import SweepRun

Objective = Literal["tokens_per_s", "usd_per_token", "time_to_train", "energy"]
Aim = Literal["gpus", "usd"]

_REASONS_SHOWN = 10


def plan(
    scenario: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    gpus: Counts = (),
    gpu_types: Names = (),
    objective: Objective = "tokens_per_s",
    tokens: Target = None,
    budget: str | float | None = "500 steps",
    headroom: str | float | None = None,
    searched: Iterable[str] = (),
    top: int = 5,
    batches: int | None = None,
    workers: int | None = None,
    engine: str | None = None,
    progress: Progress = quiet,
) -> Result:
    """Which layout and strategy is best on these GPUs, and why?

        best = hdpsim.plan("llama-3-70b-h100", budget="200 steps").scenario
        hdpsim.compare(best)

    Tries every layout that divides and every strategy on it, on the same global batches. Keys that are changed stay
    as they are set, and so does what the scenario's software stack decides.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"data.context": "64K tokens"}`. They stay as they are set.
        gpus: numbers of GPUs, such as `[1024, 2048]` or `"1K,2K"`; default: the scenario's.
        gpu_types: GPUs of the catalog, such as `["h100", "b200"]` or `"h100,b200"`; default: the scenario's.
        objective: what is best; `"time_to_train"` needs *tokens*.
        tokens: time, GPU-hours and cost of training on so many tokens, such as `"300B"` or `"1.5T"`.
        budget: when to stop: after counted work (`"500 steps"`), with which every machine finds the same; after a time
            (`"60s"`), in which a faster one gets further; or none, to the end.
        headroom: memory that stays free, as a share of the predicted peak, such as `"3%"`; default: what measured
            peaks say.
        searched: values of a key to try instead of the usual ones, such as `"layout.tp=4,8"`.
        top: how many of the best are shown.
        batches: global batches to average over; default: execution.batches of the scenario.
        workers: processes; default: one per processor. What is found does not depend on it, unless a budget of time
            ends the search.
        engine: where simulations run: on the workers of a Dask cluster, `"dask://HOST:PORT"`; default: local.
        progress: shows how far it is.

    Returns:
        A result whose `scenario` is the best one.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.bands.memory_fit import shipped_margin
    from hdpsim.experiments.parallel.engines import engine_of
    from hdpsim.experiments.planning import plan as study
    from hdpsim.experiments.planning.search.budget import budget_of
    from hdpsim.experiments.planning.search.search import search
    from hdpsim.experiments.planning.search.space import space_of

    read_at("objective", objective, choice(get_args(Objective)))
    read_at("top", top, integer(Range(1, 100)))
    check_whole_number("workers", workers, "workers")
    changes, target = override_texts(overrides), tokens_of(tokens)
    counts, types = counts_of(gpus) if gpus else (), names_of("--gpu", gpu_types) if gpu_types else ()
    if counts:
        refuse_twice("--gpus", ("gpus", *RIVALS["gpus"]), changes)
    if types:
        refuse_twice("--gpu", ("cluster.node",), changes)
    limit = budget_of(budget)
    kept_free = share_of("--headroom", headroom, may_be_zero=True)
    if objective == "time_to_train" and target is None:
        raise UserInputError("--objective time_to_train: say how many tokens with --tokens, such as 300B")
    checked, own_reason = study.open_scenario(scenario, changes)
    study.check_prices(checked, types, "--objective usd_per_token" if objective == "usd_per_token" else "")
    space = space_of(
        checked,
        gpus=counts,
        gpu_types=types,
        pinned=[parse_override(text)[0] for text in changes],
        values=dict(map(study.searched_values, searched)),
    )
    with progress("planning", limit.unit) as shown:
        found = search(
            checked,
            space,
            objective,
            limit,
            shown,
            batches=batches,
            count=top,
            headroom=shipped_margin().headroom if kept_free is None else kept_free,
            workers=workers,
            engine=engine_of(engine, workers) if engine else None,
            own_reason=own_reason,
        )
    if not found.best:
        raise study.nothing_runs(checked, found)
    return Result(
        document=study.plan_document(checked, found, target),
        scenario=study.planned(checked, found.best[0]),
        found=found,
        interrupted=found.interrupted,
    )


def recommend(
    scenario: ScenarioSource,
    target: str,
    overrides: GivenOverrides = (),
    *,
    gpu_types: Names = (),
    objective: Aim | None = None,
    confidence: float = 0.8,
    keep_layout: bool = False,
    max_gpus: int | None = None,
    budget: str | float | None = "500 steps",
    batches: int | None = None,
    progress: Progress = quiet,
) -> Result:
    """Which GPUs, and how many, for tokens, a date and a sum of money?

        hdpsim.recommend("llama-3-70b-h100", "300B tokens in 30 days for 20M USD", keep_layout=True)

    Give two of the three, or all. Failures, restarts and checkpoints are those of the scenario's campaign.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        target: two or three of tokens, a time and money: `"300B tokens in 30 days"` (the fewest GPUs), `"300B tokens in
            30 days for 20M USD"`, `"20M USD in 60 days"` (the most tokens), `"300B tokens for 20M USD"` (the earliest
            date).
        overrides: keys to change, as `--set` does: `{"data.context": "64K tokens"}`. They stay as they are set.
        gpu_types: GPUs of the catalog, such as `["h100", "b200"]` or `"h100,b200"`; default: the scenario's.
        objective: for tokens and a date the fewest `"gpus"`, or the cheapest (`"usd"`); default: gpus.
        confidence: probability with which date and budget have to be met; 0.5 is an even bet.
        keep_layout: search no layouts: only data parallelism grows.
        max_gpus: as many as you can have, of each type; default: those of the largest cluster of the catalog, 24,576.
        budget: when to stop: after counted work (`"500 steps"`), with which every machine finds the same; after a time
            (`"60s"`), in which a faster one gets further; or none, to the end.
        batches: global batches to average a step over; default: execution.batches of the scenario.
        progress: shows how far it is.

    Returns:
        A result whose `scenario` is the recommended one.

    Raises:
        UserInputError: what was given is wrong; the message says what is allowed.
        InfeasibleError: the target cannot be met; the message says what would have to change.
    """
    from hdpsim.experiments.planning.plan import check_prices, open_scenario
    from hdpsim.experiments.planning.recommending import recommend as study
    from hdpsim.experiments.planning.recommending.document import recommend_document
    from hdpsim.experiments.planning.recommending.goal import parse_goal
    from hdpsim.experiments.planning.search.budget import budget_of

    if not 0.01 <= confidence <= 0.99:
        raise UserInputError(f"confidence must be from 0.01 to 0.99, got {confidence}")
    if objective not in (None, "gpus", "usd"):
        raise UserInputError(f"objective must be gpus or usd, got {objective!r}")
    if batches is not None:
        check_whole_number("batches", batches, "batches")
    check_whole_number("max_gpus", max_gpus, "gpus")
    goal = parse_goal(target)
    if objective is not None and goal.wanted != "gpus":
        most = "the most tokens" if goal.wanted == "tokens" else "the earliest date"
        raise UserInputError(
            f"--objective: {goal.words} looks for {most}; leave it out, or give tokens and a date"
        )
    types = names_of("--gpu", gpu_types) if gpu_types else ()
    limit = budget_of(budget)
    changes = override_texts(overrides)
    if types:
        refuse_twice("--gpu", ("cluster.node",), changes)
    batches_change = () if batches is None else (f"execution.batches={batches}",)
    checked, _ = open_scenario(scenario, (*changes, *batches_change))
    check_prices(checked, types, "" if goal.usd is None else "--target")
    with progress("recommending", "types") as shown:
        found = study.recommend(
            checked,
            goal,
            gpu_types=types,
            aim=objective or "gpus",
            confidence=confidence,
            keep_layout=keep_layout,
            pinned=changes,
            budget=limit,
            max_gpus=max_gpus,
            progress=shown,
        )
    return Result(document=recommend_document(found), scenario=found.best.scenario, found=found)


def check(
    scenario: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    batches: int | None = None,
    tokens: Target = None,
    progress: Progress = quiet,
) -> Result:
    """What is wrong with this scenario, what does it cost, and which change helps?

        better = hdpsim.check("llama-7b-1k-github", batches=1).scenario

    Every change is simulated on the same batches; only what fits and gains is recommended.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"layout.tp": 4}`.
        batches: global batches to average over; default: execution.batches of the scenario.
        tokens: what is wasted in money when training on so many tokens, such as `"300B"` or `"1.5T"`.
        progress: shows how far it is.

    Returns:
        A result whose `scenario` has all changes that gain together.

    Raises:
        UserInputError: what was given is wrong; the message says what is allowed.
        InfeasibleError: it cannot run; the message says why, and which change makes it run.
    """
    from hdpsim.experiments.planning.checking import check as study
    from hdpsim.experiments.planning.checking.document import check_document
    from hdpsim.experiments.planning.checking.repair import explained

    changes, target = override_texts(overrides), tokens_of(tokens)
    with progress("checking") as shown:
        try:
            checked = load_scenario(scenario, changes)
            found = study.check(checked, batches, shown)
        except InfeasibleError as error:
            raise explained(error, scenario, changes) from None
    return Result(
        document=check_document(found, target), scenario=checked.with_changes(found.together), found=found
    )


def check_strategy(
    strategy: str | Callable[..., object],
    overrides: GivenOverrides = (),
    *,
    scenario: ScenarioSource = "quickstart-8gpu",
    ranks: int = 16_384,
    progress: Progress = quiet,
) -> Result:
    """Does a strategy keep every promise of a plan, on every kind of batch?

        hdpsim.check_strategy("my_module:my_strategy", ranks=64).error is None

    Tokens, capacity, members, order, deadlocks, the same plan every time; batches of one token to a full context, 1 to
    16,384 ranks, with and without a pipeline. What breaks is shown with the smallest batch found.

    Args:
        strategy: `"module:function"`, an installed name, or the function itself (of a module that can be imported).
        overrides: keys of the scenario to change, as `--set` does.
        scenario: take its model, nodes and keys; GPUs, stages, context and capacity are those of the cases.
        ranks: leave out cases of more ranks.
        progress: shows how far it is.

    Returns:
        A result whose `error` says which promises are broken; None where all are kept.

    Raises:
        UserInputError: there is no such strategy, or it cannot be loaded.
    """
    from hdpsim.experiments.studies.own_strategy import check as study
    from hdpsim.experiments.studies.own_strategy.document import strategy_check_document

    check_whole_number("ranks", ranks, "cp")
    given = strategy if isinstance(strategy, str) else f"{strategy.__module__}:{strategy.__qualname__}"
    (name,) = strategy_names([given], "MODULE:FUNCTION")
    checked = load_scenario(scenario, overrides)
    with progress("checking") as shown:
        found = study.check_strategy(checked, name, most_ranks=ranks, report=shown)
    error: HdpSimError | None = None
    if found.broken:
        names = ", ".join(one.promise for one in found.broken)
        error = OwnPlanError(f"strategy {name} breaks what plans promise: {names}")
    elif not found.kept["runs"]:
        reasons = "\n".join(f"  {reason}" for reason in list(found.refused)[:5])
        error = InfeasibleError(f"strategy {name} refuses every case, so nothing was checked:\n{reasons}")
    document = strategy_check_document(found, checked.name)
    return Result(document=document, scenario=checked, found=found, error=error)


def scale(
    scenario: ScenarioSource,
    gpus: Counts,
    overrides: GivenOverrides = (),
    *,
    weak: bool = False,
    strategies: Names | None = None,
    batches: int | None = None,
    progress: Progress = quiet,
) -> Result:
    """What do more GPUs buy?

        hdpsim.scale("quickstart-8gpu", [8, 16, 32], batches=1).plot()

    Strong scaling by default: the global batch stays the same.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        gpus: numbers of GPUs, such as `[1024, 2048]` or `"1K,2K"`.
        overrides: keys to change, as `--set` does: `{"layout.tp": 4}`.
        weak: the global batch grows with the GPUs; default: it stays the same.
        strategies: names, the first being the base of the speed-ups; one's own as `"my_module:function"`; default: the
            scenario's.
        batches: global batches to average over; default: execution.batches of the scenario.
        progress: shows how far it is.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.studies import scale as study

    counts = counts_of(gpus)
    refuse_twice("--gpus", ("gpus", *RIVALS["gpus"]), override_texts(overrides))
    names = None if strategies is None else strategy_names(strategies)
    checked = load_scenario(scenario, overrides)
    with progress("scaling") as shown:
        scaling = study.scale(
            checked,
            counts,
            names or (checked.strategy.name,),
            weak=weak,
            batches=batches,
            report=shown,
            baseline=True,
        )
    return Result(document=study.scaling_document(scaling, checked), scenario=checked, found=scaling)


def whatif(
    scenario: ScenarioSource,
    changes: Mapping[str, object] | Iterable[str | Mapping[str, object]] = (),
    *,
    strategies: Names | None = None,
    tornado: str | float | None = None,
    batches: int | None = None,
    progress: Progress = quiet,
) -> Result:
    """What does each change buy, alone and together, and which inputs matter?

        hdpsim.whatif("quickstart-8gpu", {"layout.tp": 1, "data.context": "64K tokens"}, batches=1)

    Simulates the scenario as it is, with each change alone, with the first ones together, and with all of them.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        changes: what to try: one key a change, `{"layout.tp": 4}`; or a list whose members change one key or several,
            `["layout.tp=4", {"layout.tp": 4, "layout.pp": 2}]`.
        strategies: names, the first being the base of the speed-ups; one's own as `"my_module:function"`; default: the
            scenario's.
        tornado: move every numeric input down and up by this share instead, such as `"10%"`, on one batch unless
            *batches* says more.
        batches: global batches to average over; default: execution.batches of the scenario, with tornado one.
        progress: shows how far it is.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.studies.changes import tornado as inputs
    from hdpsim.experiments.studies.changes import whatif as study

    tried = changes_of(changes)
    if tornado is not None:
        if tried or strategies is not None:
            raise UserInputError(
                "--tornado goes without --set and --strategies: it moves every input of the scenario"
            )
        share = share_of("--tornado", tornado)
        assert share is not None
        checked = load_scenario(scenario)
        with progress("simulating") as shown:
            moved = inputs.tornado(checked, share, 1 if batches is None else batches, shown)
        return Result(document=inputs.tornado_document(checked, moved), scenario=checked, found=moved)
    if not tried:
        raise UserInputError("whatif needs at least one change: --set key=value, or --tornado")
    names = () if strategies is None else strategy_names(strategies)
    checked = load_scenario(scenario)
    with progress("simulating") as shown:
        variants = study.whatif(checked, tried, batches, shown, names)
        best = study.best_of_base(variants)
    return Result(document=study.whatif_document(checked, variants, best), scenario=checked, found=variants)


def sweep(
    sweep: str | Path | Mapping[str, object],
    overrides: GivenOverrides = (),
    *,
    dry_run: bool = False,
    store: str | Path | None = None,
    workers: int | None = None,
    engine: str | None = None,
    progress: Progress = quiet,
) -> Result:
    """Which of many combinations is best, and how do they compare?

        hdpsim.sweep({"base": "quickstart-8gpu", "grid": {"layout.tp": [1, 2, 4]}}, {"execution.batches": 1})

    A sweep is a YAML file (docs/how-to/sweeps.md) or the name of a shipped one: a base scenario and axes (grid, zip,
    list) of values for its keys. Finished results are kept: a sweep that was interrupted goes on where it stopped, and
    a repeated one costs nothing.

    Args:
        sweep: a sweep file, a shipped sweep's name, or a dictionary with a base scenario and axes (grid, zip, list).
        overrides: keys to change in every combination, as `--set` does.
        dry_run: only say how many simulations it would be, and about how long.
        store: folder where results are kept; default: hdpsim/results in your cache folder.
        workers: processes; default: one per processor. The result does not depend on it.
        engine: where simulations run: on the workers of a Dask cluster, `"dask://HOST:PORT"`; default: local.
        progress: shows how far it is.

    Returns:
        A result whose `error` says why no combination can run, or which failed; None where all is well.

    Raises:
        UserInputError: what was given is wrong; the message says what is allowed.
    """
    from hdpsim.experiments.parallel.engines import engine_of
    from hdpsim.experiments.sweeps import run as study
    from hdpsim.experiments.sweeps.axes import load_sweep
    from hdpsim.experiments.sweeps.cells import expand
    from hdpsim.experiments.sweeps.report import estimate_document, store_line, sweep_document
    from hdpsim.experiments.sweeps.store import ResultStore, default_store

    check_whole_number("workers", workers, "workers")
    read = load_sweep(sweep)
    cells = expand(read, override_texts(overrides))
    kept = ResultStore(str(store) if store is not None else default_store())
    chosen = engine_of(engine, workers)
    if dry_run:
        with chosen:
            estimate = study.estimate_sweep(cells, kept, chosen.slots)
        return Result(document=estimate_document(read.name, estimate), found=estimate)
    with progress("sweeping", "simulations") as shown:
        run = study.run_sweep(read, cells, kept, chosen, shown)
    return Result(
        document=sweep_document(run, str(Path(kept.folder).absolute())),
        found=run,
        lines=(store_line(run),),
        error=None if run.interrupted else _sweep_error(run),
        interrupted=run.interrupted,
    )


def _sweep_error(run: SweepRun) -> HdpSimError | None:
    """What is wrong with a sweep that has ended: own strategies that break, or nothing that can run."""
    from hdpsim.experiments.studies.step_report import one_line

    kinds: dict[str, type[HdpSimError]] = {"bad strategy": StrategyError, "bad plan": OwnPlanError}
    for status, kind in kinds.items():
        why = dict.fromkeys(one_line(result.reason) for result in run.results if result.status == status)
        if why:
            return kind("\n".join(list(why)[:_REASONS_SHOWN]))
    if run.count("ok") or run.count("failed"):
        return None
    reasons = list(dict.fromkeys(one_line(result.reason) for result in run.results))[:_REASONS_SHOWN]
    return InfeasibleError("no cell can run:\n" + "\n".join(f"  {reason}" for reason in reasons))
