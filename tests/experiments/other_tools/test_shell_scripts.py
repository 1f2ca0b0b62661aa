"""Flags of shell scripts as bash itself would hand them to the program."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('FP8=true\nif [ "$FP8" = true ]; then\n A+=(--fp8)\nelse\n A+=(--bf16)\nfi', {"fp8": True}),
        ('if [ "${FP8:-no}" = true ]; then A+=(--fp8); fi; A+=(--bf16)', {"bf16": True}),
        (
            "N=2\nif [[ $N -gt 4 ]]; then A+=(--x)\nelif [[ $N -ge 2 ]]; then A+=(--y 1); else A+=(--z); fi",
            {"y": "1"},
        ),
        ('N=2\n[ $N -eq 2 ] && A+=(--x) || A+=(--y)\n[ -z "$N" ] || A+=(--z)', {"x": True, "z": True}),
        ('N=2\nif [ $N = 1 ]; then\n if [ "$1" = a ]; then A+=(--x); fi\nfi\nA+=(--y)', {"y": True}),
    ],
)
def test_branches_that_the_script_itself_decides_are_read(script: str, expected: dict[str, object]) -> None:
    assert flags(f'A=()\n{script}\npython p.py "${{A[@]}}"\n') == expected


TESTS = st.sampled_from(
    [
        "[ $N -gt 1 ]",
        "[ $N = 2 ]",
        "[[ $N != 3 ]]",
        '[ -z "$E" ]',
        '[ -n "$E" ]',
        "! [ $N -lt 2 ]",
        "true",
        "false",
    ]
)
CONDITIONS = st.lists(TESTS, min_size=1, max_size=3).flatmap(
    lambda tests: st.lists(
        st.sampled_from(["&&", "||"]), min_size=len(tests) - 1, max_size=len(tests) - 1
    ).map(lambda signs: " ".join(part for pair in zip(tests, [*signs, ""], strict=True) for part in pair))
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@settings(max_examples=25)
@given(conditions=st.lists(CONDITIONS, min_size=3, max_size=3), number=st.integers(0, 3))
def test_what_is_decided_is_what_bash_decides(conditions: list[str], number: int) -> None:
    """Three kinds of statements: an if in an if, an elif, and a chain."""
    first, second, third = conditions
    script = (
        f'N={number}\nE=""\nA=""\n'
        f'if {first}; then A="$A --a"; if {second}; then A="$A --b"; else A="$A --c"; fi\n'
        f'elif {third}\nthen A="$A --d"; else A="$A --e"; fi\n'
        f'{second} && A="$A --f" || A="$A --g"\n'
    )
    done = subprocess.run(["bash", "-c", f"{script}echo $A"], capture_output=True, text=True, check=True)
    options = read_flags(f"{script}python p.py $A\n", "run.sh")
    known = {f"--{option.name}" for option in options if not isinstance(option.value, Unread)}
    unsure = {f"--{option.name}" for option in options if isinstance(option.value, Unread)}
    said = set(done.stdout.split())
    assert known <= said <= known | unsure
    assert not unsure
