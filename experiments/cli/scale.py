"""`hdpsim scale`: what do more GPUs buy?"""

from __future__ import annotations

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.common import (
    batches_option,
    emit_json,
    json_option,
    load,
    out_option,
    progress,
    say,
    scenario_argument,
    set_option,
    show_table,
    strategies,
    strategies_option,
)
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES


def _gpu_counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    allowed = RANGES["gpus"]
    longest = len(str(allowed.high))
    if not all(
        part.isascii() and part.isdecimal() and len(part) <= longest and allowed.holds(int(part))
        for part in parts
    ):
        raise UserInputError(
            f"--gpus: expected whole numbers from {allowed} separated by commas (1024,2048), got {quoted(text)}"
        )
    counts = tuple(int(part) for part in parts)
    twice = [count for index, count in enumerate(counts) if count in counts[:index]]
    if twice:
        raise UserInputError(f"--gpus: {twice[0]} is given more than once in {quoted(text)}")
    return counts


@click.command("scale")
@scenario_argument
@click.option("--gpus", required=True, metavar="N,N,...", help="Numbers of GPUs, such as 1024,2048,4096.")
@click.option("--weak", is_flag=True, help="Grow the global batch with the GPUs (default: keep it).")
@strategies_option
@set_option
@batches_option
@out_option
@json_option
def command(
    scenario: str,
    gpus: str,
    weak: bool,
    strategy_list: str | None,
    overrides: tuple[str, ...],
    batches: int | None,
    out: str | None,
    as_json: bool,
) -> None:
    """What do more GPUs buy?

    Strong scaling by default: the global batch stays the same.
    """
    from hdpsim.experiments.studies import report
    from hdpsim.experiments.studies.artefacts import check_out, write_scaling
    from hdpsim.experiments.studies.scale import scale, scaling_json, scaling_lines, scaling_table

    check_out(out)
    counts = _gpu_counts(gpus)
    checked = load(scenario, overrides)
    chosen = strategies(strategy_list, (checked.strategy.name,))
    with progress("scaling") as shown:
        scaling = scale(checked, counts, chosen, weak=weak, batches=batches, report=shown, baseline=True)
    document = report.json_document("scale", checked, scaling_json(scaling), weak=weak)
    written = None if out is None else write_scaling(out, document, scaling, checked)
    if as_json:
        emit_json(document)
        return
    say(report.headline(checked))
    say()
    show_table(scaling_table(scaling))
    say()
    for line in (*scaling_lines(scaling, checked), report.mfu_note(checked)):
        say(line)
    if written is not None:
        say(written)
