"""Whatever a file or an option holds: exit code 0, 2 or 3, a message that can be read, figures that are finite, an end.

The inputs are the same every time. Others: HDPSIM_FUZZ_SEED=7 pytest tests/fuzz; more: HDPSIM_FUZZ_INPUTS=5000 of every
format. A failure names the seed of its input; HDPSIM_FUZZ_ONLY=scenario:0:17 runs that one alone.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from fuzz_formats import FORMATS, SLOW
from fuzz_judge import complaint

pytestmark = pytest.mark.usefixtures("each_plan_once", "one_process")  # that one has the guards

SEED = os.environ.get("HDPSIM_FUZZ_SEED", "0")
INPUTS = os.environ.get("HDPSIM_FUZZ_INPUTS")
ONLY = os.environ.get("HDPSIM_FUZZ_ONLY")

FEW, MANY = 15, 40
"""Inputs of each format in the fast tests, and in all of them; slow formats get a tenth."""
MOST_SHOWN = 10


def fuzz(form: str, first: int, last: int, folder: Path) -> None:
    found = []
    for number in range(first, last):
        seed = f"{form}:{SEED}:{number}"
        if ONLY is not None and seed != ONLY:
            continue
        here = folder / str(number)
        here.mkdir()
        arguments = FORMATS[form](random.Random(seed), here)
        text = complaint(arguments)
        if text:
            shown = " ".join(argument[:150] for argument in arguments)
            found.append(f"HDPSIM_FUZZ_ONLY={seed}\n  hdpsim {shown!r}\n  {text}")
        else:
            shutil.rmtree(here)
    assert not found, f"{len(found)} inputs; the first:\n" + "\n\n".join(found[:MOST_SHOWN])


def _count(form: str, count: int) -> int:
    return count // 10 + 1 if form in SLOW else count


@pytest.mark.parametrize("form", FORMATS)
def test_whatever_is_given_ends_in_an_answer_or_a_message(form: str, tmp_path: Path) -> None:
    fuzz(form, 0, _count(form, FEW), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_thousand_more_do(form: str, tmp_path: Path) -> None:
    last = int(INPUTS) if INPUTS is not None else _count(form, MANY)
    fuzz(form, _count(form, FEW), last, tmp_path)
