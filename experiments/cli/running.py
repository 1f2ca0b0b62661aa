"""Verbs that play a step, a run or a recorded job, and say where its time goes."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.options import (
    OUTPUT,
    SCENARIO,
    batches_option,
    file_option,
    json_option,
    number_option,
    replications_option,
    strategies_option,
    target_option,
    workers_option,
)
from hdpsim.experiments.cli.verb import verb

simulate = verb(
    "running",
    "simulate",
    *SCENARIO,
    batches_option,
    replications_option,
    number_option("batches", "--steps"),
    file_option("--timeline"),
    target_option,
    *OUTPUT,
)

compare = verb(
    "running",
    "compare",
    *SCENARIO,
    strategies_option,
    batches_option,
    replications_option,
    file_option("--timeline"),
    target_option,
    *OUTPUT,
)

explain = verb("running", "explain", *SCENARIO, click.option("--term", metavar="NAME"), json_option)

replay = verb(
    "running",
    "replay",
    *SCENARIO,
    click.option("--trace", metavar="FILE"),
    click.option("--column", metavar="NAME"),
    click.option("--steps", metavar="all|N"),
    click.option("--until-ci", "until", metavar="SHARE"),
    workers_option,
    *OUTPUT,
)

replay_ops = verb(
    "running",
    "replay_ops",
    click.argument("trace", metavar="TRACE", type=click.Path()),
    click.option("--meta", required=True, metavar="FILE", type=click.Path()),
    *OUTPUT,
)

campaign = verb(
    "running",
    "campaign",
    *SCENARIO,
    click.option("--duration", metavar="TIME"),
    target_option,
    number_option("seeds", "--seeds"),
    workers_option,
    *OUTPUT,
)
