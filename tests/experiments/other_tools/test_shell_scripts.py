"""Flags of shell scripts as bash itself would hand them to the program."""

from __future__ import annotations

import pytest

from hdpsim.experiments.other_tools.options import Unread
from hdpsim.experiments.other_tools.shell import read_flags


def flags(script: str) -> dict[str, object]:
    return {option.name: option.value for option in read_flags(script, "run.sh")}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            'A=(\n "--fp8-format hybrid"\n "--x"\n)\npython p.py ${A[@]}\n',
            {"fp8-format": "hybrid", "x": True},
        ),
        ('A=("--fp8-format hybrid" --x)\npython p.py "${A[@]}"\n', {"fp8-format hybrid": True, "x": True}),
        ('A=(--name "two words")\npython p.py "${A[@]}" --x\n', {"name": "two words", "x": True}),
        (
            'A=(--name "two words")\nB=("${A[@]}" --x)\npython p.py "${B[@]}"\n',
            {"name": "two words", "x": True},
        ),
        ("declare -a A=(--fp8-format hybrid)\npython p.py ${A[*]}\n", {"fp8-format": "hybrid"}),
    ],
)
def test_arrays_fall_into_words_unless_quotes_keep_them(script: str, expected: dict[str, object]) -> None:
    assert flags(script) == expected


@pytest.mark.parametrize(
    "end", [" > log", " 2>&1 | tee log", " &> log.txt", " 2>/dev/null", " &\nwait", "\necho done", "; exit 0"]
)
def test_what_follows_a_command_is_no_value_of_its_last_flag(end: str) -> None:
    found = flags(f"cd there && python p.py --swiglu --fp8-format hybrid{end}\n")
    assert found == {"swiglu": True, "fp8-format": "hybrid"}
    assert flags(f"python p.py --fp8-format hybrid --swiglu{end}\n") == found


@pytest.mark.parametrize(
    "condition",
    [
        '[ "$FP8" = 1 ] && A="--fp8-format hybrid"',
        '[[ $FP8 ]] && [[ $X ]] && A+=" --fp8-format hybrid"',
        '[ -z "$X" ] || A="$A --fp8-format hybrid"',
        'test "$FP8" &&\n  A="--fp8-format hybrid"',
        '(( FP8 > 0 )) && A="--fp8-format hybrid"',
        '[ "$FP8" ] && { B=1; A="--fp8-format hybrid"; }',
        'case $FP8 in\n 1) A="--fp8-format hybrid";;\n *) B=2;;\nesac',
        'case $FP8 in 1|2) A="--fp8-format hybrid";; esac',
    ],
)
def test_what_depends_on_a_test_is_not_taken_for_granted(condition: str) -> None:
    options = read_flags(f'A="--swiglu"\n{condition}\nC="--x"\npython p.py $C --y 1 $A\n', "run.sh")
    unsure = [option for option in options if isinstance(option.value, Unread)]
    assert any("condition" in str(option.value) for option in unsure)
    sure = {option.name: option.value for option in options if option not in unsure}
    assert sure.pop("swiglu", True) is True  # where a flag is added, the others stay
    assert sure == {"x": True, "y": "1"}


def test_what_is_only_printed_counts_where_nothing_else_has_flags() -> None:
    printed = 'echo "use --fp8-format hybrid with --tp 9"\n'
    assert flags(f"{printed}python p.py --tp 2\n") == {"tp": "2"}
    assert flags(printed) == {"fp8-format": "hybrid with", "tp": "9"}


def test_a_function_that_is_called_is_read_as_it_stands() -> None:
    assert flags('run() {\n  A="--x"\n  python p.py --tp 2 $A\n}\nrun\n') == {"tp": "2", "x": True}
