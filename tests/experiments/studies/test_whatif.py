from __future__ import annotations

import pytest

from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.scenario.overrides import split_group
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.studies.changes.whatif import (
    waterfall,
    whatif,
    whatif_document,
    whatif_json,
    whatif_lines,
    whatif_table,
)
from hdpsim.experiments.studies.step_report import mfu_note

pytestmark = pytest.mark.usefixtures("fake_simulator")


@pytest.fixture
def scenario() -> Scenario:
    return load_scenario("quickstart-8gpu", ("execution.batches=1",))


def test_base_each_change_alone_and_all_together(scenario: Scenario) -> None:
    variants = whatif(scenario, ("strategy.name=static", "gpus=16"))
    assert [v.label for v in variants] == ["base", "strategy.name=static", "gpus=16", "all together"]
    # Base 1.75 s; static 5 s; 16 GPUs halve either.
    assert [v.outcome.step_s.mean for v in variants] == pytest.approx([1.75, 5.0, 0.875, 2.5])
    speed_ups = [row["speed_up_vs_base"] for row in whatif_json(variants)]
    assert speed_ups == pytest.approx([1.0, 0.35, 2.0, 0.7])


def test_one_change_needs_no_row_for_all(scenario: Scenario) -> None:
    assert [v.label for v in whatif(scenario, ("gpus=16",))] == ["base", "gpus=16"]


def test_variants_with_the_same_data_see_the_same_batches(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    real = Scenario.draw

    def counted(self: Scenario, count: int | None = None) -> object:
        drawn.append(self.data.context_tokens)
        return real(self, count)

    monkeypatch.setattr(Scenario, "draw", counted)
    whatif(scenario, ("gpus=16", "data.context=64K"))
    assert drawn == [128 * 1024, 64 * 1024]


def test_an_infeasible_change_is_a_row_with_its_reason(scenario: Scenario) -> None:
    variants = whatif(scenario, ("layout.tp=3", "gpus=16"))
    table = whatif_table(variants).drawn()
    assert "do not divide by tp" in table.rows[1][-1]
    assert "cannot run:" not in table.rows[1][-1].removeprefix("cannot run:")
    assert table.rows[2][-1] == ""
    assert whatif_json(variants)[1]["feasible"] is False


def test_a_change_the_simulator_refuses_is_a_row_too(scenario: Scenario) -> None:
    variants = whatif(scenario, ("gpus=16", "layout.tp=16"))
    assert [v.feasible for v in variants] == [True, True, False, False]
    assert "90 GiB" in variants[3].outcome.reason


def test_a_malformed_change_is_an_error(scenario: Scenario) -> None:
    with pytest.raises(ScenarioError, match=r"layout\.tpp"):
        whatif(scenario, ("layout.tpp=2",))


def test_when_nothing_can_run_it_is_infeasible() -> None:
    scenario = load_scenario("quickstart-8gpu", ("gpus=16", "layout.tp=16"))
    with pytest.raises(InfeasibleError, match="neither the scenario"):
        whatif(scenario, ("data.seed=1",))


def test_progress_counts_every_step(scenario: Scenario) -> None:
    seen: list[tuple[int, int]] = []
    whatif(scenario, ("gpus=16",), 2, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_values_of_one_key_are_alternatives_and_never_together(scenario: Scenario) -> None:
    variants = whatif(scenario, ("gpus=16", "layout.tp=4", "gpus=32"))
    assert [variant.label for variant in variants] == ["base", "gpus=16", "layout.tp=4", "gpus=32"]
    assert any("gpus has several values" in line for line in whatif_lines(variants))
    assert not any(file.name.startswith("waterfall") for file in whatif_document(scenario, variants).files)


def test_changes_that_need_each_other_are_rows_alone_and_run_together(scenario: Scenario) -> None:
    variants = whatif(scenario, ("layout.pp=2", "layout.vpp=2", "layout.schedule=interleaved"))
    assert [v.feasible for v in variants] == [True, True, False, False, False, True]
    assert "needs schedule: interleaved (or zb-v)" in variants[2].outcome.reason
    assert "layout.schedule: interleaved needs vpp" in whatif_table(variants).drawn().rows[3][-1]


def test_changes_that_contradict_each_other_are_an_error(scenario: Scenario) -> None:
    with pytest.raises(ScenarioError, match="interleaved needs vpp"):
        whatif(scenario, ("layout.pp=2", "layout.schedule=interleaved"))


def test_the_note_on_mfu_names_the_gpu_of_every_row(scenario: Scenario) -> None:
    variants = whatif(scenario, ("cluster.node=hgx-b200-180gb", "gpus=16"))
    shown = [variant.scenario for variant in variants if variant.scenario is not None]
    note = mfu_note(*shown)
    for row in shown:
        assert row.cluster.gpu.name in note
    assert ("989" in note and "2,25" in note) or "2.25" in note
    assert "each row's GPU" in note
    assert "each row's GPU" not in mfu_note(scenario, scenario)


def test_a_change_that_moves_no_step_says_so(scenario: Scenario) -> None:
    variants = whatif(scenario, ("gpus=16", "cluster.fabric.spine_oversubscription=2"), 1)
    text = whatif_document(scenario, variants).text()
    (line,) = (line for line in text.splitlines() if line.startswith("cluster.fabric.spine"))
    assert line.endswith("same step")
    assert text.count("same step") == 1


def test_a_group_is_one_change_of_several_keys(scenario: Scenario) -> None:
    variants = whatif(scenario, ("layout.tp=4,gpus=16", "data.context=64K"))
    assert [v.label for v in variants] == ["base", "layout.tp=4,gpus=16", "data.context=64K", "all together"]
    assert variants[1].changes == ("layout.tp=4", "gpus=16")
    assert variants[1].scenario == scenario.with_changes(("layout.tp=4", "gpus=16"))
    assert variants[3].scenario == scenario.with_changes(("layout.tp=4", "gpus=16", "data.context=64K"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("layout.tp=4", ("layout.tp=4",)),
        ("layout.tp=4, gpus=16", ("layout.tp=4", "gpus=16")),
        ("name='a,b=c',gpus=16", ("name='a,b=c'", "gpus=16")),
        ("memory.selective_keeps=[a,b=1],gpus=16", ("memory.selective_keeps=[a,b=1]", "gpus=16")),
        ("description=one, two", ("description=one, two",)),
    ],
)
def test_commas_that_separate_changes(text: str, parts: tuple[str, ...]) -> None:
    assert split_group(text) == parts


def test_a_key_twice_in_one_change_is_refused(scenario: Scenario) -> None:
    with pytest.raises(UserInputError, match=r"one change has layout\.tp twice"):
        whatif(scenario, ("layout.tp=4,layout.tp=1", "gpus=16"))
    with pytest.raises(UserInputError, match=r"gpus=16 is given more than once"):
        whatif(scenario, ("gpus=16", "layout.tp=4", "gpus=16"))


def test_the_first_changes_together_stand_before_all(scenario: Scenario) -> None:
    variants = whatif(scenario, ("gpus=16", "strategy.name=static", "data.context=64K"))
    assert [v.label for v in variants][4:] == ["changes 1 to 2", "all together"]
    # Base 1.75 s; 16 GPUs halve it; static takes 5 s, with 16 GPUs 2.5 s.
    assert variants[4].outcome.step_s.mean == pytest.approx(2.5)
    falls = waterfall(variants)
    assert [fall.label for fall in falls] == ["base", "gpus=16", "strategy.name=static", "data.context=64K"]
    rates = [1e6 / variants[place].outcome.tokens_per_s.mean for place in (0, 1, 4, 5)]
    assert [fall.joined_s for fall in falls] == pytest.approx(rates)
    assert falls[2].alone_s == pytest.approx(1e6 / variants[2].outcome.tokens_per_s.mean)


def test_strategies_side_by_side_on_the_same_batches(scenario: Scenario) -> None:
    variants = whatif(scenario, ("gpus=16",), batches=3, strategies=("static", "hdp-opt"))
    assert [v.outcome.strategy for v in variants] == ["static", "static", "hdp-opt", "hdp-opt"]
    assert all(v.drawn is variants[0].drawn for v in variants)
    rows = whatif_json(variants)
    assert [row["speed_up_vs_base"] for row in rows] == pytest.approx([1.0, 2.0, 1.0, 2.0])
    assert rows[2]["speed_up_vs_first"] == pytest.approx(5.0 / 1.75)
    saved = rows[3]["step_saved_s"]
    assert saved["mean"] == pytest.approx(1.75 / 2)
    assert saved["ci95_half_width"] is not None
    drawn = whatif_table(variants).drawn()
    assert {"strategy", "saves s", "band of the step", "USD/M tokens", "kWh/M tokens"} <= set(drawn.columns)
    with pytest.raises(UserInputError, match=r"strategy\.name is changed, but --strategies"):
        whatif(scenario, ("strategy.name=static",), strategies=("hdp-opt",))


def test_the_run_directory_has_table_and_waterfall(scenario: Scenario) -> None:
    variants = whatif(scenario, ("gpus=16", "layout.tp=3"), strategies=("static", "hdp-opt"))
    files = {file.name: file.content for file in whatif_document(scenario, variants).files}
    assert {"whatif.csv", "waterfall_static", "waterfall_hdp-opt"} <= files.keys()
    assert len(files["whatif.csv"]()) == 8
    figure = files["waterfall_static"]()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "cannot run" in texts
