"""plan.csv says what a plan does, micro-batch by micro-batch; the figures show the same."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.comparing.plan_files import (
    _of_slots,
    _ranges,
    micro_batch_seconds,
    plan_files,
)

pytestmark = pytest.mark.usefixtures("lean_studies", "each_plan_once")

SMALL = ("data.context=64K", "layout.rank_capacity=16K", "memory.must_fit=false")
LENGTHS = np.array([40_000, 9_000, 8_000, 7_000, 300, 200, 100, 90])


def _outcome(strategy, *changes):
    return run_batches(hdpsim.load_scenario("quickstart-8gpu", (*SMALL, *changes)), [LENGTHS], strategy)


@pytest.mark.parametrize("strategy", ["static", "hdp-naive", "hdp-balance", "hdp-opt"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_table_holds_every_token_and_the_work_of_the_step(strategy, stages):
    outcome = _outcome(strategy, f"layout.pp={stages}", "layout.tp=1")
    (table,) = [file.content() for file in plan_files((outcome,)) if file.name == "plan.csv"]
    assert table["tokens"].sum() == LENGTHS.sum()
    listed = " ".join(table["sequences"]).split()
    assert sorted(map(int, listed)) == list(range(len(LENGTHS)))
    plan = outcome.results[0].plan
    assert table["group_size"].tolist() == plan.group_size.tolist()
    # The busiest stage of every rank works as long as its micro-batches take.
    result = outcome.results[0]
    waits = [place for place, name in enumerate(result.accounts) if name.startswith("wait")]
    surround = [place for place, name in enumerate(result.accounts) if name in (
        "data", "planning", "parameter_gather", "gradient_sync", "optimizer", "pp_transfer")]  # fmt: skip
    other = set(waits) | set(surround)
    busy_s = sum(result.account_s[place] for place in range(len(result.accounts)) if place not in other)
    by_rank = np.nansum(_of_slots(plan, micro_batch_seconds(outcome)), axis=1)
    np.testing.assert_allclose(by_rank, busy_s.max(axis=1), rtol=0.02)


def test_the_table_says_what_the_ranks_have_cut():
    """16 documents of 64 tokens on four ranks stay whole, by pack; one of 40,000 with a few short ones does not."""
    lengths = [np.array([64] * 16), LENGTHS]
    for batch, expected in zip(lengths, ("pack", "document"), strict=True):
        scenario = hdpsim.load_scenario(
            "quickstart-8gpu", (*SMALL, "layout.cp=4", "layout.cp_kind=all-gather")
        )
        outcome = run_batches(scenario, [batch], "wlb-llm")
        (table,) = [file.content() for file in plan_files((outcome,)) if file.name == "plan.csv"]
        shared = (table["group_size"] > 1) & table["sequences"].str.contains(" ")
        assert set(table["cut"][shared]) == {expected}
        assert set(table["cut"][~shared]) <= {""}


def test_ranks_are_written_as_ranges():
    assert _ranges(np.array([0])) == "0"
    assert _ranges(np.array([0, 1, 2, 3, 8, 9, 11])) == "0-3 8-9 11"


def test_slots_that_are_holes_are_empty():
    outcome = _outcome("hdp-naive", "layout.pp=2", "layout.tp=1")
    plan = outcome.results[0].plan
    table = _of_slots(plan, np.arange(plan.micro_batches, dtype=float))
    assert np.isnan(table).sum() == table.size - (plan.order >= 0).sum()


def test_out_has_the_table_and_figures_of_every_strategy(tmp_path):
    out = tmp_path / "run"
    words = [
        "compare",
        "quickstart-8gpu",
        "--batches",
        "1",
        "--strategies",
        "hdp-naive,hdp-opt",
        "--out",
        str(out),
    ]
    for change in (*SMALL, "data.batch=128K tokens"):
        words += ["--set", change]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    for name in ("plan_work_hdp-naive", "plan_groups_hdp-opt"):
        assert (out / f"{name}.png").is_file()
        assert name in (out / "README.md").read_text()
    with (out / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["strategy"] for row in rows} == {"hdp-naive", "hdp-opt"}
    assert all(float(row["seconds"]) > 0 for row in rows)
