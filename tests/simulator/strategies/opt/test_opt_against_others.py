"""tools/opt_against_others.py: the batches that it draws, and hdp-opt no slower than the others on one of each."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[4] / "tools" / "opt_against_others.py"
_SPEC = importlib.util.spec_from_file_location("opt_against_others", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
tool = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)


@pytest.mark.parametrize("kind", tool.DRAWN)
def test_drawn_batches_hold_at_most_their_tokens_within_the_context(kind: str) -> None:
    """A batch is filled up to the last sequence that still fits; a giant comes first."""
    lengths = tool.draw(kind, 8 * tool.CONTEXT, seed=1)
    assert lengths.min() >= 64
    assert lengths.max() <= tool.CONTEXT
    assert 7 * tool.CONTEXT < lengths.sum() <= 8 * tool.CONTEXT
    assert (lengths[0] == tool.CONTEXT) == (kind == "giant")


def test_hdp_opt_is_no_slower_on_a_pipeline() -> None:
    """One dense batch of uniform lengths: few long sequences, so that little can be balanced."""
    settings = ("cluster.gpus=8", "layout.tp=2", "layout.pp=2", "memory.must_fit=false")
    lengths = tool.draw("uniform", 4 * tool.CONTEXT, seed=0)
    seconds = [tool.step_s(settings, name, lengths) for name in ("static", "hdp-balance", "hdp-opt")]
    assert seconds[2] <= min(seconds) * (1 + tool.SLOWER)
