from __future__ import annotations

import pytest

from hdpsim.experiments.output.tables import TextTable, plain_text, print_rich

TABLE = TextTable(
    title="Times",
    columns=("strategy", "step s", "most time in"),
    rows=(("static", "12.5", "CP ring 60%"), ("hdp-opt", "3.0", "attention " * 8)),
    left=frozenset({0, 2}),
)


def test_plain_text_aligns_numbers_right_and_texts_left() -> None:
    lines = plain_text(TABLE).splitlines()
    assert lines[0] == "Times"
    assert lines[1] == "strategy  step s  most time in"
    assert lines[2] == "static      12.5  CP ring 60%"


def test_heads_without_text_are_left_out() -> None:
    table = TextTable(title="", columns=("", ""), rows=(("a", "1"),))
    assert plain_text(table) == "a  1"


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_cell_is_lost_on_any_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_rich(TABLE)
    shown = capsys.readouterr().out
    assert "12.5" in shown
    assert "hdp-opt" in shown
    assert shown.count("attention") == 8
