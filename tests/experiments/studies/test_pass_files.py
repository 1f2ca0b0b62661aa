"""passes.csv says when chosen ranks do what: seconds as in the accounts, and no more rows than there may be."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import hdpsim
from hdpsim.experiments.output.plots.style import ACCOUNT_GROUPS, account_group
from hdpsim.experiments.studies.comparing import pass_files as module
from hdpsim.experiments.studies.comparing.compare import Outcome, run_batches
from hdpsim.experiments.studies.comparing.pass_files import CHOSEN, pass_files

pytestmark = pytest.mark.usefixtures("lean_studies", "each_plan_once")

SMALL = ("data.context=64K", "layout.rank_capacity=16K", "memory.must_fit=false")
LENGTHS = np.array([40_000, 9_000, 8_000, 7_000, 300, 200, 100, 90])
PIPELINES = (
    ("layout.pp=1",),
    ("layout.pp=2",),
    ("layout.pp=2", "layout.vpp=2", "layout.schedule=interleaved"),
    ("layout.pp=2", "layout.schedule=zb-h1"),
    ("layout.pp=2", "execution.network=flows"),
)


def outcome_of(strategy: str, *changes: str) -> Outcome:
    scenario = hdpsim.load_scenario("quickstart-8gpu", (*SMALL, "layout.tp=1", *changes))
    return run_batches(scenario, [LENGTHS], strategy)


def table_of(*outcomes: Outcome) -> pd.DataFrame:
    (table,) = [file.content() for file in pass_files(outcomes) if file.name == "passes.csv"]
    assert isinstance(table, pd.DataFrame)
    return table


@pytest.mark.parametrize("strategy", ["static", "hdp-opt"])
@pytest.mark.parametrize("changes", PIPELINES, ids=" ".join)
def test_passes_last_as_long_as_their_accounts(strategy: str, changes: tuple[str, ...]) -> None:
    outcome = outcome_of(strategy, *changes)
    table, first = table_of(outcome), outcome.results[0]
    told = table["chosen"].unique().tolist()
    assert told == [why for why in (CHOSEN[0], CHOSEN[2], CHOSEN[1]) if why in told]
    assert told[0] == CHOSEN[0]
    if strategy == "static" and "layout.pp=1" in changes:
        assert told == [CHOSEN[0]], "ranks of one mesh wait alike"
    lasting = table["end_s"] - table["start_s"]
    assert (lasting > 0.0).all()
    np.testing.assert_allclose(sum(table[f"{group}_s"] for group in ACCOUNT_GROUPS), lasting, atol=3e-9)
    assert table["end_s"].max() <= first.step_s + 1e-9
    for (rank, stage), passes in table.groupby(["rank", "stage"]):
        for group in ("compute", "communication", "overhead"):
            accounts = [place for place, name in enumerate(first.accounts) if account_group(name) == group]
            of_accounts = first.account_s[accounts, rank, stage].sum()
            assert passes[f"{group}_s"].sum() == pytest.approx(of_accounts, rel=1e-6, abs=1e-6), group
        for _, lane in passes.groupby("lane"):  # nothing lies over another in its lane
            assert (lane["start_s"].to_numpy()[1:] >= lane["end_s"].to_numpy()[:-1] - 1e-9).all()


def test_a_strategy_has_no_more_rows_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of("static", "layout.pp=8", "layout.cp=1", "layout.rank_capacity=64K")
    whole = table_of(outcome)
    assert whole["stage"].nunique() == 8
    most = len(whole) // 3
    monkeypatch.setattr(module, "MOST_PASSES", most)
    fewer = table_of(outcome)
    assert 0 < len(fewer) <= most
    assert {0, 7} <= set(fewer["stage"])
    assert fewer["chosen"].unique().tolist() == [CHOSEN[0]]
