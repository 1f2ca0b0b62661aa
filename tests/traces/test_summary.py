from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim import traces


def test_statistics_by_hand() -> None:
    # Buckets: (0, 1]: 1; (1, 2]: 2; (2, 4]: 3, 4; (4, 8]: none; (8, 16]: 10. Total 1 + 2 + 3 + 4 + 10 = 20.
    summary = traces.statistics(traces.Trace(np.array([10, 1, 4, 2, 3]), "t"))
    assert (summary.samples, summary.tokens, summary.min_tokens, summary.max_tokens) == (5, 20, 1, 10)
    assert summary.mean_tokens == 4
    assert summary.token_weighted_mean_tokens == (100 + 1 + 16 + 4 + 9) / 20
    assert summary.percentile_tokens == ((50.0, 3), (90.0, 10), (99.0, 10), (99.9, 10))
    assert [(b.label, b.samples, b.tokens) for b in summary.buckets] == [
        ("1", 1, 1),
        ("2", 1, 2),
        ("4", 2, 7),
        ("8", 0, 0),
        ("16", 1, 10),
    ]
    assert summary.rows()[2] == {
        "bucket": "4",
        "upper_edge_tokens": 4,
        "samples": 2,
        "sample_share": 0.4,
        "tokens": 7,
        "token_share": 0.35,
    }
    assert summary.summary()["p99.9_tokens"] == 10


@given(st.lists(st.integers(1, 2**31), min_size=1, max_size=50))
def test_buckets_hold_everything_once(lengths: list[int]) -> None:
    summary = traces.statistics(traces.Trace(np.array(lengths), "t"))
    assert sum(bucket.samples for bucket in summary.buckets) == len(lengths)
    assert sum(bucket.tokens for bucket in summary.buckets) == sum(lengths)
    for bucket in summary.buckets:
        inside = [n for n in lengths if bucket.upper_edge_tokens / 2 < n <= bucket.upper_edge_tokens]
        assert (bucket.samples, bucket.tokens) == (len(inside), sum(inside))
    mean, weighted = summary.mean_tokens, summary.token_weighted_mean_tokens
    assert summary.min_tokens <= mean * (1 + 1e-12)
    assert mean <= weighted * (1 + 1e-12)
    assert weighted <= summary.max_tokens * (1 + 1e-12)


@pytest.mark.parametrize(
    ("tokens", "label"), [(1, "1"), (512, "512"), (1024, "1K"), (2**19, "512K"), (2**21, "2M"), (2**31, "2G")]
)
def test_labels(tokens: int, label: str) -> None:
    assert traces.bucket_label(tokens) == label
