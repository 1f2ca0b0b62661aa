from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim import traces
from hdpsim.errors import TraceError


def test_mean_of_a_bucket_by_hand() -> None:
    # Lengths 2, 3, 4 with P(n) = ln(n / (n - 1)) / ln 4 = 1/2, 0.29248, 0.20752.
    bucket = traces.Distribution(name="d", edges_tokens=(1, 4), token_shares=(1.0,))
    expected = 2 * 0.5 + 3 * math.log(3 / 2) / math.log(4) + 4 * math.log(4 / 3) / math.log(4)
    assert bucket.mean_tokens == pytest.approx(expected, rel=1e-12)
    drawn = bucket.sample(200_000, np.random.default_rng(1))
    assert np.bincount(drawn)[2:] / 200_000 == pytest.approx([0.5, 0.29248, 0.20752], abs=0.005)


def test_sample_shares_follow_from_token_shares() -> None:
    # Buckets of the single lengths 2 and 4 with equal tokens: twice as many sequences of length 2.
    both = traces.Distribution(name="d", edges_tokens=(1, 2, 3, 4), token_shares=(50, 0, 50))
    assert both.sample_shares == pytest.approx([2 / 3, 0, 1 / 3])
    assert both.mean_tokens == pytest.approx(8 / 3)
    assert set(both.sample(1000, np.random.default_rng(0)).tolist()) == {2, 4}


@pytest.mark.parametrize("name", traces.shipped_distributions())
def test_shipped_distributions_reproduce_their_token_shares(name: str) -> None:
    distribution = traces.load_distribution(name)
    rows = traces.statistics(traces.synthesize(distribution, 2_000_000, seed=3)).rows()
    assert [row["upper_edge_tokens"] for row in rows] == list(distribution.edges_tokens[1:])
    for row, token_share, sample_share in zip(
        rows, distribution.token_shares, distribution.sample_shares, strict=True
    ):
        # The longest bucket holds only tens to hundreds of the sequences: four standard errors of their number.
        tolerance = 4 / math.sqrt(row["samples"]) + 0.01
        assert row["token_share"] == pytest.approx(token_share, rel=tolerance)
        assert row["sample_share"] == pytest.approx(float(sample_share), rel=tolerance)


def test_byted_facts_of_the_paper() -> None:
    byted = traces.load_distribution("bytescale-byted")
    shares = byted.sample_shares
    assert shares[0] == pytest.approx(0.60, abs=0.005)  # the tallest bar of Figure 4
    assert shares[-1] == pytest.approx(0.0005, abs=0.00002)  # 0.05 % reach 2M
    assert shares[6:].sum() == pytest.approx(0.01, abs=0.0005)  # 1 % of the samples ...
    assert sum(byted.token_shares[6:]) == pytest.approx(0.443, abs=0.003)  # ... hold 44.3 % of the tokens
    assert sum(byted.token_shares[7:]) == pytest.approx(0.37, abs=0.005)
    assert byted.mean_tokens == pytest.approx(6250, rel=0.01)


def test_github_facts_of_the_paper() -> None:
    github = traces.load_distribution("bytescale-github")
    assert sum(github.token_shares[6:]) == pytest.approx(0.162, abs=0.002)
    assert sum(github.token_shares[7:]) == pytest.approx(0.098, abs=0.002)
    assert github.sample_shares[0] == pytest.approx(
        0.72, abs=0.06
    )  # the bar is not reachable exactly, see docs


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 2**31), min_size=2, max_size=6, unique=True).map(sorted),
    st.data(),
)
def test_samples_stay_inside_the_buckets(edges: list[int], data: st.DataObject) -> None:
    shares = data.draw(
        st.lists(st.floats(0.01, 1), min_size=len(edges) - 1, max_size=len(edges) - 1).map(tuple)
    )
    distribution = traces.Distribution(name="d", edges_tokens=tuple(edges), token_shares=shares)
    lengths = distribution.sample(500, np.random.default_rng(0))
    assert lengths.min() > edges[0]
    assert lengths.max() <= edges[-1]
    assert math.fsum(distribution.token_shares) == pytest.approx(1)
    assert edges[0] < distribution.mean_tokens <= edges[-1] * (1 + 1e-6)


def test_seeds_decide() -> None:
    github = traces.load_distribution("bytescale-github")
    first, again, other = (traces.synthesize(github, 100, seed=s).lengths.tolist() for s in (1, 1, 2))
    assert first == again != other
    assert next(github.stream(1)).tolist()[:5] == next(github.stream(1)).tolist()[:5]


@pytest.mark.parametrize("tokens", [1, 1000, 10**6, 2 * 10**8])
def test_a_trace_of_so_many_tokens(tokens: int) -> None:
    trace = traces.synthesize_tokens(traces.load_distribution("bytescale-byted"), tokens, seed=5)
    assert trace.tokens == tokens


@pytest.mark.parametrize(
    ("edges", "shares", "words"),
    [
        ((1,), (), "two or more numbers"),
        ((4, 2), (1.0,), "increase"),
        ((0, 2), (1.0,), "at least 1"),
        ((1, 2**31 + 1), (1.0,), "at most 2147483648"),
        ((1, 2.5), (1.0,), "whole numbers"),
        ((1, 2, 3), (1.0,), "2 buckets, but there are 1"),
        ((1, 2), (0.0,), "not all 0"),
        ((1, 2, 3), (2.0, -1.0), "0 or more"),
        ((1, 2), (math.nan,), "0 or more"),
        ((1, 2), (math.inf,), "0 or more"),
    ],
)
def test_impossible_distributions(edges: tuple[int, ...], shares: tuple[float, ...], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        traces.Distribution(name="d", edges_tokens=edges, token_shares=shares)


def test_nothing_to_draw() -> None:
    github = traces.load_distribution("bytescale-github")
    with pytest.raises(TraceError, match="sequences must be a whole number from 1"):
        traces.synthesize(github, 0)
    with pytest.raises(TraceError, match="tokens must be a whole number from 1"):
        traces.synthesize_tokens(github, 0)


def test_own_distributions(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("edges_tokens: [1, 2, 4]\ntoken_percent: [25, 75]\n")
    mine = traces.read_distribution(path)
    assert (mine.name, mine.edges_tokens, mine.token_shares) == ("mine", (1, 2, 4), (0.25, 0.75))
    assert isinstance(traces.load_source(path), traces.Distribution)
    assert len(traces.load_trace(path, count=7)) == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2]", "found a list of 2"),
        ("edges_tokens: [1, 2]", "expected the keys"),
        ("edges_tokens: [1, 2]\ntoken_percent: [1]\nshares: 3", "found edges_tokens, token_percent, shares"),
        ("edges_tokens: 5\ntoken_percent: [1]", "edges_tokens must be a list"),
        ("edges_tokens: [1, 2]\ntoken_percent: [x]", "token_percent must be a list of numbers"),
        (
            "edges_tokens: [1, 2]\ntoken_percent: [1]\nfills_context: 1",
            "fills_context must be true or false, got 1",
        ),
        ("a: [", "not valid YAML"),
    ],
)
def test_malformed_distribution_files(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(TraceError, match=words) as caught:
        traces.read_distribution(path)
    assert caught.value.path == str(path)


def test_no_distribution_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        traces.read_distribution(tmp_path / "absent.yaml")
