from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpsim import traces
from hdpsim.errors import TraceError


def test_what_is_shipped() -> None:
    assert traces.shipped_traces() == ("debian-code",)
    assert traces.shipped_distributions() == ("bytescale-byted", "bytescale-github", "packed", "wlb-llm")


def test_debian_code_is_the_recorded_trace() -> None:
    trace = traces.load_trace("debian-code")
    assert trace.name == "debian-code"
    assert "cl100k_base" in trace.provenance
    summary = traces.statistics(trace)
    assert (summary.samples, summary.tokens) == (422_224, 1_454_974_074)
    assert (summary.min_tokens, summary.max_tokens) == (1, 2_097_152)
    assert summary.percentile_tokens == ((50.0, 620), (90.0, 5577), (99.0, 41831), (99.9, 272125))
    # Shares in percent of the buckets 8K .. 2M as they were when the trace was recorded.
    samples = [100 * row["sample_share"] for row in summary.rows()[-9:]]
    tokens = [100 * row["token_share"] for row in summary.rows()[-9:]]
    assert samples == pytest.approx([6.33, 3.63, 1.89, 0.83, 0.316, 0.142, 0.0677, 0.0256, 0.0116], rel=0.005)
    assert tokens == pytest.approx([10.5, 12.0, 12.4, 10.8, 8.21, 7.37, 6.87, 5.23, 5.68], rel=0.005)


def test_a_distribution_by_name_is_drawn_from() -> None:
    trace = traces.load_trace("bytescale-byted", count=1000, seed=4)
    assert len(trace) == 1000
    assert "seed 4" in trace.provenance
    assert "2502.21231" in trace.provenance
    assert isinstance(traces.load_source("bytescale-byted"), traces.Distribution)


def test_a_file_by_path(tmp_path: Path) -> None:
    traces.write_trace(traces.Trace(np.array([1, 2]), "x"), tmp_path / "x.csv")
    assert traces.load_trace(tmp_path / "x.csv", column="tokens").lengths.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["debian-cod", "Debian-Code"])
def test_a_misspelt_name(name: str) -> None:
    known = r"did you mean 'debian-code'\?\); shipped: debian-code, bytescale-byted, bytescale-github, packed, wlb-llm"
    with pytest.raises(TraceError, match=known):
        traces.load_trace(name)


def test_unknown_names() -> None:
    with pytest.raises(TraceError, match="there is no trace of this name"):
        traces.load_trace("nothing")
    with pytest.raises(
        TraceError, match=r"there is no distribution of this name.*did you mean .bytescale-byted"
    ):
        traces.load_distribution("bytescale-bytes")
    with pytest.raises(TraceError, match="no such file"):
        traces.load_trace("no/such.csv")
