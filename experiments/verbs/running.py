"""Verbs that play a step, a run or a recorded job, and say where its time goes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hdpsim.errors import UserInputError
from hdpsim.experiments.scenario.overrides import GivenOverrides, override_texts
from hdpsim.experiments.scenario.scenario import ScenarioSource, load_scenario
from hdpsim.experiments.verbs.result import Result
from hdpsim.experiments.verbs.values import (
    Names,
    Progress,
    check_whole_number,
    quiet,
    share_of,
    steps_of,
    tokens_of,
    variant_names,
)

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.comparing.compare import Comparison, Outcome
    from hdpsim.experiments.studies.many_steps.replications import Replicated

Target = str | float | None
"""Tokens to train on: `"300B"`, 3e11, or None."""


def simulate(
    scenario: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    batches: int | None = None,
    replications: int | None = None,
    steps: int | None = None,
    timeline: str | None = None,
    tokens: Target = None,
    progress: Progress = quiet,
) -> Result:
    """How long is one step, and where does the time go?

        result = hdpsim.simulate("quickstart-8gpu", {"layout.tp": 4}, batches=2)
        result.to_frame()["step_s"]

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"layout.tp": 4}`.
        batches: global batches to average over; default: execution.batches of the scenario.
        replications: play the same plans so often, each time with other random numbers (slow machines, jitter), to
            show how far chance moves them.
        steps: play so many batches one after the other on one clock instead, with planner, loaders, checkpoints and
            host memory.
        timeline: file (.json, .json.gz) to open in Perfetto: when each operation of the first step ran, and the
            hottest links where transfers are flows. With *steps*: what planner, loaders, storage, stages, offload
            streams and checkpoints did when.
        tokens: time, GPU-hours and cost of training on so many tokens, such as `"300B"` or `"1.5T"`.
        progress: shows how far it is.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.output.files.out_file import check_out_file
    from hdpsim.experiments.studies.comparing.report import simulate_document, target_of
    from hdpsim.experiments.studies.many_steps.replications import with_replications

    if timeline is not None:
        check_out_file(timeline, "--timeline", (".json", ".json.gz"))
    target_tokens = tokens_of(tokens)
    check_whole_number("replications", replications, "replications")
    changes = override_texts(overrides)
    if steps is not None:
        if batches is not None or tokens is not None:
            raise UserInputError(
                "--steps: give neither --batches nor --tokens with it, which speak of single steps"
            )
        return _many_steps(load_scenario(scenario, changes), steps, replications, timeline, progress)
    if timeline is not None:
        changes = (*changes, "execution.executor=engine")  # the replay knows no single operations
    checked = load_scenario(scenario, changes)
    names = (checked.strategy.name,)
    result, replicated = _compared(
        "simulating", progress, checked, names, batches, replications, spans=timeline is not None
    )
    target = target_of(result, result.base, target_tokens)
    lines = [] if target is None else [target.costs.price.note]
    if timeline is not None:
        lines.append(_write_timeline(timeline, result.base, checked.name))
    document = with_replications(simulate_document(result, target), replicated)
    return Result(document=document, scenario=checked, found=result, lines=tuple(lines))


def _many_steps(
    scenario: Scenario, steps: int, replications: int | None, timeline: str | None, progress: Progress
) -> Result:
    from hdpsim.experiments.studies.many_steps.replications import replicate_runs, with_replications
    from hdpsim.experiments.studies.many_steps.report import many_steps_document
    from hdpsim.experiments.studies.many_steps.run import simulate_many

    check_whole_number("steps", steps, "batches")
    with progress("simulating") as shown:
        run = simulate_many(scenario, steps, shown, record=timeline is not None)
    lines: tuple[str, ...] = ()
    if timeline is not None:
        from hdpsim.experiments.output.timeline.run import write_run_timeline

        lines = (write_run_timeline(timeline, run.record, title=f"{scenario.name}, {run.strategy}"),)
    with progress("replicating") as shown:
        replicated = replicate_runs(scenario, steps, replications, shown) if replications else ()
    document = with_replications(many_steps_document(run), replicated)
    return Result(document=document, scenario=scenario, found=run, lines=lines)


def _write_timeline(path: str, outcome: Outcome, name: str) -> str:
    from hdpsim.experiments.output.timeline.step import write_timeline
    from hdpsim.experiments.studies.comparing import plan_files
    from hdpsim.experiments.studies.links.report import SeenLinks, link_lanes

    spans = outcome.results[0].spans
    assert spans is not None  # the engine was told to record them
    seen = SeenLinks.of(outcome)
    lanes = link_lanes(seen) if seen else []
    title, passes = f"{name}, {outcome.strategy}", plan_files.timeline_passes(outcome)
    summary = write_timeline(path, spans, title=title, links=lanes, passes=passes)
    left_out = f" ({summary.note})" if summary.note else ""
    return f"wrote {path}: {summary.slices:,} slices of {len(summary.ranks):,} ranks{left_out}" + (
        f", and {len(lanes)} links" if lanes else ""
    )


def compare(
    scenario: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    strategies: Names | None = None,
    batches: int | None = None,
    replications: int | None = None,
    timeline: str | None = None,
    tokens: Target = None,
    progress: Progress = quiet,
) -> Result:
    """Which strategy is fastest, by how much, and why?

        result = hdpsim.compare("quickstart-8gpu", strategies=["static", "hdp-opt"], batches=2)
        result.to_frame()[["strategy", "tokens_per_s", "speed_up"]]

    All strategies see the same global batches; the first one is the base of the speed-ups. The static mesh is compared
    as the scenario has it, and with the packer and context-parallel degree that suit it best.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"layout.tp": 4}`.
        strategies: what to compare: names, variants with keys of layout and strategy such as
            `"static(cp=32,packing=concatenate)"`, or your own as `"my_module:function"`. The first is the base of the
            speed-ups. Default: static and HDP of all planners.
        batches: global batches to average over; default: execution.batches of the scenario.
        replications: play the same plans so often, each time with other random numbers (slow machines, jitter), to
            show how far chance moves them.
        timeline: files (.json, .json.gz) to open in Perfetto: when each operation of the first step ran. There is one
            file a strategy, with its name before the ending.
        tokens: time, GPU-hours and cost of training on so many tokens, such as `"300B"` or `"1.5T"`.
        progress: shows how far it is.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.output.files.out_file import check_out_file
    from hdpsim.experiments.studies.comparing.compare import DEFAULT_STRATEGIES
    from hdpsim.experiments.studies.comparing.report import compare_document
    from hdpsim.experiments.studies.many_steps.replications import with_replications

    if timeline is not None:
        check_out_file(timeline, "--timeline", (".json", ".json.gz"))
        overrides = (*override_texts(overrides), "execution.executor=engine")
    names = DEFAULT_STRATEGIES if strategies is None else variant_names(strategies)
    target = tokens_of(tokens)
    check_whole_number("replications", replications, "replications")
    checked = load_scenario(scenario, overrides)
    spans = timeline is not None
    comparison, replicated = _compared(
        "comparing", progress, checked, names, batches, replications, spans=spans, baseline=True
    )
    lines = tuple(_write_timelines(timeline, comparison)) if timeline is not None else ()
    document = with_replications(compare_document(comparison, target), replicated, place=-1)
    return Result(document=document, scenario=checked, found=comparison, lines=lines, error=comparison.error)


def _compared(
    doing: str,
    progress: Progress,
    scenario: Scenario,
    strategies: Sequence[str],
    batches: int | None,
    replications: int | None,
    *,
    spans: bool,
    baseline: bool = False,
) -> tuple[Comparison, tuple[Replicated, ...]]:
    """The steps of all strategies, and their replications where some are asked for."""
    from hdpsim.experiments.studies.comparing.compare import compare as compare_strategies
    from hdpsim.experiments.studies.many_steps.replications import replicate

    with progress(doing) as shown:
        comparison = compare_strategies(
            scenario, strategies, batches, shown, spans=spans, links=True, baseline=baseline
        )
    with progress("replicating") as shown:
        return comparison, replicate(comparison, replications, shown) if replications else ()


def _write_timelines(path: str, comparison: Comparison) -> Iterator[str]:
    """One file a strategy that was recorded: FILE-NAME.json, without the signs that file names may not have."""
    ending = ".json.gz" if path.endswith(".gz") else ".json"
    for outcome in comparison.feasible:
        if outcome.results[0].spans is None:  # the best static mesh, which was looked for without recording
            continue
        name = "".join(one if one.isalnum() or one in "-_." else "-" for one in outcome.strategy)
        yield _write_timeline(
            f"{path.removesuffix(ending)}-{name}{ending}", outcome, comparison.scenario.name
        )


def explain(scenario: ScenarioSource, overrides: GivenOverrides = (), *, term: str | None = None) -> Result:
    """Where does every second of the predicted step come from?

        hdpsim.explain("quickstart-8gpu", term="tp_all_gather")

    Takes the step of the scenario's first global batch apart.

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"layout.tp": 4}`.
        term: one term (`"tp_communication"`) or one part of it (`"gemm_qkv"`), with its formula, the numbers that went
            in, and where its constants come from; default: all terms with their seconds.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.explaining.explain import explain as explain_step
    from hdpsim.experiments.explaining.text import explain_document

    checked = load_scenario(scenario, overrides)
    explained = explain_step(checked)
    return Result(document=explain_document(checked, explained, term), scenario=checked, found=explained)


def replay(
    scenario: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    trace: str | Path | None = None,
    column: str | None = None,
    steps: int | str | None = None,
    until: str | float | None = None,
    workers: int | None = None,
    progress: Progress = quiet,
) -> Result:
    """How fast does training go through a whole data set?

        result = hdpsim.replay("quickstart-8gpu", trace="debian-code", steps=20)
        result.to_frame()[["step", "step_s", "tokens_per_s"]]

    The trace is streamed, cut into global batches and simulated step by step; memory does not grow with the file.
    Ctrl-C ends it with a valid partial result (of the command: exit code 130).

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"layout.tp": 4}`.
        trace: a file of any size, streamed in its own order, or the name of a shipped trace; default: data.trace of
            the scenario.
        column: the column of that file with the lengths.
        steps: how many, or `"all"`; default: all of the data.
        until: stop once the 95 % interval of the mean is within this share of it, such as `"1%"` or 0.01.
        workers: processes; default: one per processor. The result does not depend on it.
        progress: shows how far it is.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.datasets.replay import replay_dataset
    from hdpsim.experiments.datasets.report import replay_document
    from hdpsim.experiments.parallel.engines import LocalEngine

    check_whole_number("workers", workers, "workers")
    count, share = steps_of(steps), share_of("--until-ci", until)
    checked = load_scenario(scenario, (*_of_trace(trace, column), *override_texts(overrides)))
    with progress("replaying", "steps") as shown:
        played = replay_dataset(checked, LocalEngine(workers), steps=count, until=share, report=shown)
    return Result(
        document=replay_document(played),
        scenario=checked,
        found=played,
        error=played.error,
        interrupted=played.stopped == "interrupted",
    )


def _of_trace(trace: str | Path | None, column: str | None) -> tuple[str, ...]:
    """The changes for another trace; relative paths start in the current directory."""
    if trace is None:
        if column is not None:
            raise UserInputError("--column names a column of --trace FILE: give both")
        return ()
    name = os.path.abspath(trace) if os.path.isfile(trace) else str(trace)
    return override_texts(
        {"data.trace": name} if column is None else {"data.trace": name, "data.trace.column": column}
    )


def replay_ops(trace: str | Path, meta: str | Path, *, progress: Progress = quiet) -> Result:
    """Play the recorded operations of a real job: how close is the prediction, and what made the job slow?

        hdpsim.replay_ops("operations.parquet", "job.yaml")

    The trace is a .parquet or .csv file with one row per operation. Its columns are dp_rank, stage, rank, step,
    optype, start_ts, duration, seq_id, mc, mb_id and gmc; times are in seconds.

    Args:
        trace: .parquet or .csv with one row per operation (docs/how-to/recorded_jobs.md).
        meta: YAML with trial_name, dp_size, pp_size, tp_size, dsp_size, vpp_size and world_size of the job.
        progress: shows how far it is.

    Raises:
        UserInputError: a file that cannot be used; the message says where.
    """
    from hdpsim.experiments.recorded_jobs.report import job_document
    from hdpsim.experiments.recorded_jobs.trace import read_recorded_job
    from hdpsim.simulator.recorded.graph import link_operations
    from hdpsim.simulator.recorded.whatif import analyse

    graph = link_operations(read_recorded_job(trace, meta))
    with progress("replaying") as shown:
        analysis = analyse(graph, shown)
    return Result(document=job_document(graph, analysis), found=analysis)


def campaign(
    scenario: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    duration: str | None = None,
    tokens: Target = None,
    seeds: int | None = None,
    workers: int | None = None,
    progress: Progress = quiet,
) -> Result:
    """How much of a weeks-long run is left after failures, restarts and checkpoints?

        hdpsim.campaign("campaign-llama3-16k", duration="30d", seeds=4).to_dict()["ettr"]

    Args:
        scenario: a shipped scenario's name, a path, a dictionary of its keys, or a Scenario.
        overrides: keys to change, as `--set` does: `{"campaign.checkpoint_interval": "30min"}`.
        duration: wall-clock time, `"30d"`; default: campaign.duration of the scenario.
        tokens: run until it has so many tokens instead, `"300B"`.
        seeds: runs to average over; default: campaign.seeds of the scenario.
        workers: processes; default: one per processor. The result does not depend on it.
        progress: shows how far it is.

    Raises:
        UserInputError, InfeasibleError: what was given is wrong, or cannot run; the message says why.
    """
    from hdpsim.experiments.campaigns.report import campaign_document
    from hdpsim.experiments.campaigns.run import run_campaign

    if duration is not None and tokens is not None:
        raise UserInputError("give either --duration or --tokens: so many tokens take as long as they take")
    check_whole_number("seeds", seeds, "seeds")
    check_whole_number("workers", workers, "workers")
    asked = {"campaign.duration": duration, "campaign.seeds": seeds}
    changes = override_texts({key: value for key, value in asked.items() if value is not None})
    target = tokens_of(tokens)
    checked = load_scenario(scenario, (*override_texts(overrides), *changes))
    with progress("simulating runs") as shown:
        study = run_campaign(checked, workers=workers, tokens=target, report=shown)
    return Result(document=campaign_document(checked, study), scenario=checked, found=study)
