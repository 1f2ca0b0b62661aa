"""The page checker: what it runs, what it compares, what it refuses."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_readme.py"
spec = importlib.util.spec_from_file_location("check_readme", SCRIPT)
assert spec is not None
assert spec.loader is not None
check_readme = importlib.util.module_from_spec(spec)
sys.modules["check_readme"] = check_readme
spec.loader.exec_module(check_readme)


def page(folder: Path, *lines: str) -> str:
    path = folder / "page.md"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_console_blocks_are_run_and_others_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = page(
        tmp_path, "```sh", "$ exit 7", "```", "```console", "$ echo one; echo two", "one", "two", "```"
    )
    assert check_readme.main([name]) == 0
    assert "1 commands, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        (["alpha 1", "beta 2"], 0),
        (["alpha    1"], 0),  # runs of blanks count as one
        (["alpha ...", "...", "gamma 3"], 0),
        (["beta 2", "alpha 1"], 1),  # the order counts
        (["alpha"], 1),  # a line must match as a whole
        (["delta"], 1),
    ],
)
def test_the_shown_lines_must_be_printed_in_order(tmp_path: Path, shown: list[str], code: int) -> None:
    name = page(tmp_path, "```console", "$ printf 'alpha 1\\nbeta 2\\ngamma 3\\n'", *shown, "```")
    assert check_readme.main([name]) == code


def test_a_failing_command_fails_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_readme.main([page(tmp_path, "```console", "$ exit 3", "```")]) == 1
    assert "exit code 3" in capsys.readouterr().err


def test_a_command_may_be_continued(tmp_path: Path) -> None:
    assert check_readme.main([page(tmp_path, "```console", "$ echo a \\", "    b", "a b", "```")]) == 0


def test_a_page_without_commands_is_an_error(tmp_path: Path) -> None:
    assert check_readme.main([page(tmp_path, "nothing to run")]) == 1


def test_an_unclosed_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="never closed"):
        check_readme.main([page(tmp_path, "```console", "$ echo a")])
