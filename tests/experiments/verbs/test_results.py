"""What verbs take and return in Python, on a simulator whose results can be computed by hand."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hdpsim
from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.output.document import Column, Document, Table
from hdpsim.experiments.scenario.overrides import override_texts, parse_override
from hdpsim.experiments.scenario.scenario import load_scenario, scenario_path
from hdpsim.experiments.verbs.values import counts_of, share_of
from hdpsim.yaml_loader import load_document

QUICK = "quickstart-8gpu"
BOTH = ["static", "hdp-opt"]


@pytest.fixture(autouse=True)
def _by_hand(fake_simulator: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hdpsim.experiments.studies.comparing.compare.settled_degree", lambda setup, lengths: None
    )


def compared(**options: object) -> hdpsim.Result:
    return hdpsim.simulate(QUICK, batches=3, **options)  # type: ignore[arg-type]


def test_a_scenario_is_a_name_a_path_a_dictionary_or_a_scenario(tmp_path: Path) -> None:
    document = load_document(scenario_path(QUICK)).data
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(document))
    sources = (QUICK, file, str(file), document, load_scenario(QUICK))
    found = [hdpsim.simulate(source, {"layout.tp": 4}, batches=1).to_dict() for source in sources]
    assert [one["results"] for one in found] == [found[0]["results"]] * 5
    assert {one["scenario"]["layout"]["tp"] for one in found} == {4}
    with pytest.raises(UserInputError, match="a scenario is the name of a shipped one"):
        hdpsim.simulate(8)  # type: ignore[arg-type]


def test_overrides_are_those_of_set() -> None:
    given_as = ({"layout.tp": 4, "data.seed": None}, ["layout.tp=4", "data.seed=none"])
    first, second = (hdpsim.load_scenario(QUICK, overrides) for overrides in given_as)
    assert first == second == load_scenario(QUICK, ("layout.tp=4", "data.seed=none"))
    with pytest.raises(ScenarioError, match=r"layout: expected one value, got .*; set its keys one by one"):
        hdpsim.load_scenario(QUICK, {"layout": {"tp": 4}})


@given(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("1e-.,: #'\"nulyx\n")
)
def test_every_value_is_read_as_it_was_given(value: object) -> None:
    (text,) = override_texts({"layout.tp": value})
    key, read = parse_override(text)
    assert key == "layout.tp"
    assert read == value
    assert type(read) is type(value)


def test_tables_are_data_frames() -> None:
    result = compared()
    frame = result.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["strategy"]) == ["hdp-opt"]
    assert {"step_s", "tokens_per_s", "memory_bytes"} <= set(frame)
    assert len(result.to_frame("batches")) == 3
    assert result.tables[:2] == ("summary", "batches")
    with pytest.raises(
        UserInputError, match=r"no table is called 'batch' \(did you mean 'batches'\?\); there are summary"
    ):
        result.to_frame("batch")


def test_figures_are_by_name_and_show_themselves_in_a_notebook() -> None:
    result = compared()
    assert result.figures[0] == "time_breakdown"
    figure = result.plot()
    assert figure._repr_png_()[:4] == b"\x89PNG"  # type: ignore[attr-defined]
    assert len(pickle.loads(pickle.dumps(figure)).axes) == len(figure.axes)
    assert result.plot("length_distribution").axes
    with pytest.raises(UserInputError, match="no figure is called 'pie'"):
        result.plot("pie")


def test_without_figures_the_first_numbers_are_bars() -> None:
    rows = [{"term": "gemm", "seconds": 2.5}, {"term": "attention", "seconds": 1.5}]
    columns: tuple[Column[dict[str, object]], ...] = (Column("term"), Column("seconds"))
    result = hdpsim.Result(
        document=Document(
            kind="explain", payload={}, head="mine", blocks=(Table(columns=columns, rows=rows),)
        )
    )
    (axes,) = result.plot().axes
    assert [bar.get_width() for bar in axes.patches] == [2.5, 1.5]  # type: ignore[attr-defined]
    assert axes.get_xlabel() == "seconds"
    empty = hdpsim.Result(
        document=Document(kind="none", payload={}, blocks=(Table(columns=columns[:1], rows=rows),))
    )
    with pytest.raises(UserInputError, match="none: there is nothing to draw; its tables: table_1"):
        empty.plot()


def test_it_is_saved_as_the_run_directory_of_the_command(tmp_path: Path) -> None:
    result = compared()
    assert result.save(tmp_path / "run") == tmp_path / "run"
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert saved == result.to_dict()
    assert "hdpsim in Python" in (tmp_path / "run" / "README.md").read_text()
    assert (tmp_path / "run" / "summary.csv").read_text().startswith("strategy,")


def test_a_notebook_shows_tables_and_nothing_that_names_could_smuggle_in() -> None:
    rows = [{"name": "<script>alert(1)</script>", "step_s": 1.0}]
    columns: tuple[Column[dict[str, object]], ...] = (Column("name"), Column("step_s"))
    table = Table(title="A & B", columns=columns, rows=rows, notes=("<b>",))
    html = hdpsim.Result(
        document=Document(kind="x", payload={}, head="a\nb", blocks=(table, "end"))
    )._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.startswith("<p>a</p><p>b</p>")
    assert "<caption>A &amp; B</caption>" in html
    assert html.endswith("<p>end</p>")
    assert repr(compared()).startswith("quickstart-8gpu: llama-3-8b on 8 x h100-80gb")


def test_wrong_values_say_what_is_allowed() -> None:
    wrong = {
        "batches": lambda: hdpsim.simulate(QUICK, batches=0),
        "tokens": lambda: hdpsim.simulate(QUICK, tokens=-1),
        "unknown strategy|static": lambda: hdpsim.compare(QUICK, strategies=["statik"]),
        "gpus: expected whole numbers": lambda: hdpsim.scale(QUICK, [8, 0]),
        "given more than once": lambda: hdpsim.scale(QUICK, [8, 8]),
        "budget: expected simulated steps": lambda: hdpsim.plan(QUICK, budget="soon"),
        "--gpus contradicts --set gpus": lambda: hdpsim.plan(QUICK, {"gpus": 16}, gpus=8),
        "--gpus contradicts --set cluster.nodes": lambda: hdpsim.scale(QUICK, 8, {"cluster.nodes": 2}),
        "--gpu contradicts --set cluster.node.nic": lambda: hdpsim.recommend(
            QUICK, "1B tokens in 1 days", {"cluster.node.nic": "100Gbps"}, gpu_types="h100"
        ),
        "objective: .fame. is not one of": lambda: hdpsim.plan(QUICK, objective="fame"),  # type: ignore[arg-type]
        "top: expected a whole number": lambda: hdpsim.plan(QUICK, top=0),
        "confidence must be": lambda: hdpsim.recommend(QUICK, "1B tokens in 1 days", confidence=2),
        "headroom": lambda: hdpsim.plan(QUICK, headroom=1.5),
        "--until-ci: expected a share": lambda: hdpsim.replay(QUICK, until=2),
        "pattern: .all. is not one of": lambda: hdpsim.flows(QUICK, pattern="all"),  # type: ignore[arg-type]
        "at least one change": lambda: hdpsim.whatif(QUICK),
        "--tornado goes without": lambda: hdpsim.whatif(QUICK, {"layout.tp": 1}, tornado="10%"),
        "either --duration or --tokens": lambda: hdpsim.campaign(QUICK, duration="1d", tokens="1B"),
    }
    for words, call in wrong.items():
        with pytest.raises(UserInputError, match=words):
            call()


def test_what_cannot_run_says_why() -> None:
    with pytest.raises(InfeasibleError, match="needs 90 GiB"):
        hdpsim.simulate(QUICK, {"layout.tp": 16, "gpus": 16}, batches=1)


def test_numbers_of_gpus_are_read_as_lengths_are() -> None:
    assert counts_of("512, 1K,16K") == (512, 1024, 16384)
    assert counts_of(8) == (8,)
    assert counts_of([8, 16]) == (8, 16)
    with pytest.raises(UserInputError, match="1024 is given more than once"):
        counts_of("1024,1K")
    for wrong in ("K", "1k", "1KK", "-1K", "1.5K", "", "1,", "0", "10000000K", "9" * 40):
        with pytest.raises(UserInputError, match="expected whole numbers from 1 to 10,000,000"):
            counts_of(wrong)


@pytest.mark.parametrize(
    ("value", "share"), [("10%", 0.1), ("0.25", 0.25), (" 2.5 % ", 0.025), (0.01, 0.01), (None, None)]
)
def test_shares_are_texts_or_numbers(value: str | float | None, share: float | None) -> None:
    assert share_of("--tornado", value) == pytest.approx(share)
    assert share_of("--headroom", "0", may_be_zero=True) == 0.0


@pytest.mark.parametrize("value", ["0", "100%", "1.5", "ten", "-5%", "", "nan", 2.0])
def test_what_is_no_share_is_one_message(value: str | float) -> None:
    with pytest.raises(UserInputError, match="--tornado: expected a share above 0"):
        share_of("--tornado", value)
    if value != "0":
        with pytest.raises(UserInputError, match="--headroom: expected a share from 0"):
            share_of("--headroom", value, may_be_zero=True)
