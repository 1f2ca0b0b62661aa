"""`hdpsim plan`: which layout and strategy is best on these GPUs?"""

from __future__ import annotations

import click

from hdpsim import interrupts
from hdpsim.errors import QuantityError, UserInputError
from hdpsim.experiments.cli.common import (
    Output,
    batches_option,
    gpu_counts,
    output_options,
    say,
    scenario_argument,
    set_option,
    split_list,
    target_option,
    workers_option,
)
from hdpsim.experiments.cli.progress import long_progress


def _names(_context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    return () if text is None else split_list(text, f"--{option.name}")


def _seconds(_context: click.Context, _option: click.Parameter, text: str) -> float | None:
    from hdpsim.cost_models.reading.units import parse_quantity

    if text.strip() == "none":
        return None
    try:
        return parse_quantity(text, "time")
    except QuantityError as error:
        raise UserInputError(f"--budget: expected a time such as 60s or 10min, or none: {error}") from None


@click.command("plan")
@scenario_argument
@click.option(
    "--gpus", metavar="N,N,...", callback=gpu_counts, help="Numbers of GPUs; default: the scenario's."
)
@click.option(
    "--gpu", "gpu_types", metavar="A,B", callback=_names, help="GPUs of the catalog, such as h100,h200,b200."
)
@click.option(
    "--objective",
    type=click.Choice(("tokens_per_s", "usd_per_token", "time_to_train", "energy")),
    default="tokens_per_s",
    show_default=True,
    help="What is best; time_to_train needs --tokens.",
)
@click.option(
    "--budget",
    "budget_s",
    metavar="TIME",
    default="60s",
    show_default=True,
    callback=_seconds,
    help="Time after which nothing new is tried, or none.",
)
@click.option(
    "--search",
    "searched",
    multiple=True,
    metavar="KEY=A,B",
    help="Values that are tried of a key, instead of what is usual; repeatable.",
)
@click.option(
    "--top", type=click.IntRange(1, 100), default=5, show_default=True, help="How many of the best are shown."
)
@click.option(
    "-o",
    "scenario_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the best one as a scenario (.yaml).",
)
@set_option
@batches_option
@target_option
@workers_option
@output_options
def command(
    scenario: str,
    gpus: tuple[int, ...],
    gpu_types: tuple[str, ...],
    objective: str,
    budget_s: float | None,
    searched: tuple[str, ...],
    top: int,
    scenario_file: str | None,
    overrides: tuple[str, ...],
    batches: int | None,
    tokens: float | None,
    workers: int | None,
    output: Output,
) -> None:
    """Which layout and strategy is best on these GPUs, and why?

    Tries every layout that divides and every strategy on it, on the same global batches. Keys that --set changes stay
    as they are set, and so does what the scenario's software stack decides.
    """
    from hdpsim.experiments.output.files import check_out_file
    from hdpsim.experiments.planning.plan import open_scenario, plan, plan_document, write_plan

    if scenario_file is not None:
        check_out_file(scenario_file, "-o", (".yaml", ".yml"))
    checked, own_reason = open_scenario(scenario, overrides)
    with long_progress("planning", "layouts") as shown:
        found = plan(
            checked,
            own_reason=own_reason,
            pinned=overrides,
            gpus=gpus,
            gpu_types=gpu_types,
            objective=objective,
            budget_s=budget_s,
            searched=searched,
            tokens=tokens,
            batches=batches,
            count=top,
            workers=workers,
            progress=shown,
        )
    lines = (write_plan(checked, found, scenario_file),) if scenario_file else ()
    output.present(plan_document(checked, found, tokens), lines)
    if found.interrupted:
        say(f"{interrupts.message()}: the result is partial", err=True)
        raise click.exceptions.Exit(interrupts.exit_code())
