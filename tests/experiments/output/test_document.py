from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hdpsim import __version__
from hdpsim.errors import NotFiniteError
from hdpsim.experiments.output.document import (
    Column,
    Document,
    OutputFile,
    Table,
    facts,
    interval,
    only_where,
)
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.experiments.output.statistics import Estimate, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    step_s: Estimate | None
    mfu: float | None = None


COLUMNS: tuple[Column[Run], ...] = (
    Column("name", heading="strategy"),
    Column("step_s", heading="step", unit="s", format=interval(1), missing="cannot run", ci95=True),
    Column("mfu", heading="MFU", format=".1%"),
    Column("gpus", lambda run: 8, shown=False),
    Column("", lambda run: "a|b", heading="remark", left=True),
)
TABLE = Table(
    title="Runs",
    columns=COLUMNS,
    rows=(Run(name="static", step_s=estimate([1.0, 2.0, 3.0]), mfu=0.4), Run(name="naive", step_s=None)),
    notes=("Two of them.",),
)


def test_people_see_the_columns_that_are_shown_and_data_has_those_with_a_name() -> None:
    drawn = TABLE.drawn()
    assert drawn.columns == ("strategy", "step s", "MFU", "remark")
    assert drawn.rows == (("static", "2.0 ± 2.5", "40.0%", "a|b"), ("naive", "cannot run", "-", "a|b"))
    assert drawn.left == {0, 3}
    first, other = TABLE.records()
    assert list(first) == ["name", "step_s", "step_s_ci95", "mfu", "gpus"]
    assert (first["step_s"], first["gpus"]) == (2.0, 8)
    assert first["step_s_ci95"] == pytest.approx(2.484, abs=1e-3)  # t(0.975, 2) / sqrt(3)
    assert other == {"name": "naive", "step_s": None, "step_s_ci95": None, "mfu": None, "gpus": 8}


def test_rows_may_be_mappings_and_a_name_is_a_heading() -> None:
    table = Table(columns=(Column("lower_bound", unit="s", format=".2f"),), rows=({"lower_bound": 1},))
    assert table.drawn().columns == ("lower bound s",)
    assert table.drawn().rows == (("1.00",),)
    assert table.records() == [{"lower_bound": 1}]


def test_a_table_as_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "**Runs**",
        "",
        "| strategy | step s | MFU | remark |",
        "|---|--:|--:|---|",
        "| static | 2.0 ± 2.5 | 40.0% | a\\|b |",
        "| naive | cannot run | - | a\\|b |",
        "",
        "Two of them.",
    ]


def test_a_document_reads_in_order_and_its_data_begins_with_the_envelope(tmp_path: Path) -> None:
    document = Document(
        kind="compare",
        head="two strategies",
        blocks=(facts("", (("step", "2 s"),)), "static is faster."),
        notes=("One note.", "Another."),
        payload={"results": [Run(name="static", step_s=None)]},
        files=(
            OutputFile("runs.csv", lambda: TABLE, "All runs."),
            OutputFile("why.txt", lambda: "because", "Why."),
        ),
    )
    assert document.text() == "two strategies\n\nstep  2 s\n\nstatic is faster.\n\nOne note.\nAnother."
    assert document.markdown().endswith("static is faster.\n\n- One note.\n- Another.")
    data = document.data()
    assert list(data.items())[:3] == [
        ("schema_version", 1),
        ("kind", "compare"),
        ("hdpsim_version", __version__),
    ]
    assert data["notes"] == ["One note.", "Another."]
    assert data["results"] == [{"name": "static", "step_s": None, "mfu": None}]
    assert write_document(str(tmp_path / "run"), document) == f"wrote {tmp_path / 'run'}"
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == data
    assert (
        (tmp_path / "run" / "runs.csv")
        .read_text()
        .startswith("name,step_s,step_s_ci95,mfu,gpus\nstatic,2.0,")
    )
    readme = (tmp_path / "run" / "README.md").read_text()
    assert readme.startswith("# two strategies\n")
    assert "- One note.\n- Another.\n" in readme
    assert "| `why.txt` | Why. |" in readme


def test_an_optional_column_is_shown_where_a_row_has_something_to_say() -> None:
    remark: Column[dict[str, str]] = Column("remark", optional=True)
    for words, heads in (("", ("name",)), ("slow", ("name", "remark"))):
        table = Table(columns=(Column("name"), remark), rows=({"name": "a", "remark": words},))
        assert table.drawn().columns == heads
        assert table.records() == [{"name": "a", "remark": words}]


def test_columns_may_be_limited_to_some_rows_and_moved_to_rows_that_hold_theirs() -> None:
    inner: tuple[Column[Run], ...] = (Column("mfu", format=".0%"), Column("name"))
    fast = only_where(lambda run: run.name == "fast", inner)
    columns = tuple(column.below(lambda pair: pair[1]) for column in fast)
    rows = ((1, Run(name="fast", step_s=None, mfu=0.5)), (2, Run(name="slow", step_s=None, mfu=0.1)))
    table = Table(columns=columns, rows=rows)
    assert table.drawn().rows == (("50%", "fast"), ("-", "-"))
    assert table.records() == [{"mfu": 0.5, "name": "fast"}, {"mfu": None, "name": None}]


def test_a_run_directory_may_have_its_own_title_and_words_and_says_that_it_is_partial(tmp_path: Path) -> None:
    document = Document(kind="scale", payload={}, head="head", title="Scaling", notes=("A note.",))
    write_document(str(tmp_path / "run"), document)
    assert (tmp_path / "run" / "README.md").read_text().startswith("# Scaling\n")
    assert "- head\n- A note.\n" in (tmp_path / "run" / "README.md").read_text()
    partial = replace(document, readme=("Other words.",), partial=True)
    assert write_document(str(tmp_path / "other"), partial).endswith("(partial)")
    assert "- Other words.\n\n" in (tmp_path / "other" / "README.md").read_text()


def test_a_list_without_a_kind_has_no_envelope() -> None:
    assert Document(kind="", payload={"entries": [1]}).data() == {"entries": [1]}


def test_no_document_holds_nan() -> None:
    with pytest.raises(NotFiniteError, match=r"results\.step_s of the result is"):
        Document(kind="simulate", payload={"results": {"step_s": float("nan")}}).data()


@pytest.mark.parametrize(
    ("value", "shape", "text"),
    [
        (-2e-16, ".3f", "0.000"),
        (-2e-16, ".1%", "0.0%"),
        (-0.0, ",.0f", "0"),
        (-0.6, ".0f", "-1"),
        (-0.01, "+.2f", "-0.01"),
    ],
)
def test_nothing_has_no_sign(value: float, shape: str, text: str) -> None:
    column: Column[Mapping[str, float]] = Column("x", format=shape)
    assert column.text({"x": value}) == text
