"""tools/chunkflow_bubbles.py: the published example, and passes by hand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from chunkflow_bubbles import bubble, chunks_of, main, passes


def test_the_published_example(capsys: pytest.CaptureFixture[str]) -> None:
    """ChunkFlow (arXiv 2503.02356), lengths inferred: bubbles of 57.1 % under 1F1B, 47.8 % in chunks."""
    main([])
    assert capsys.readouterr().out == "1F1B, a sequence each: 57.1%\nstate-aware 1F1B, chunks: 47.8%\n"


def test_equal_micro_batches_have_the_bubbles_of_1f1b() -> None:
    """(p - 1) / (m + p - 1), however many chunks are kept."""
    run = [one for number in range(8) for one in passes([number], 1)]
    assert bubble(run, [1.0] * 8, 4) == pytest.approx(3 / 11)


def test_one_stage_has_no_bubbles() -> None:
    chunks = chunks_of([7, 1, 1, 3], 2)
    for kept in (1, 2, 9):
        run = [one for group in chunks.groups for one in passes(group, kept)]
        assert bubble(run, chunks.lengths, 1) == 0.0


def test_short_sequences_are_packed_and_long_ones_cut() -> None:
    assert chunks_of([4, 2, 1, 1], 2) == ([2, 2, 2, 2], [[0], [1], [2, 3]])
    assert chunks_of([5], 2) == ([2, 2, 1], [[0, 1, 2]])


@pytest.mark.parametrize(
    ("kept", "order"),
    [(1, "f0 f1 F2 B2 F1 B1 F0 B0"), (2, "f0 F1 F2 B2 B1 F0 B0"), (3, "F0 F1 F2 B2 B1 B0")],
)
def test_backwards_run_from_the_last_chunk(kept: int, order: str) -> None:
    assert " ".join(f"{kind}{chunk}" for kind, chunk in passes([0, 1, 2], kept)) == order
