from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.reliability.failures import (
    failure_profile,
    failure_profile_names,
    job_mttf_s,
    load_failure_profile,
)
from hdpsim.errors import CatalogError, ScenarioError, UserInputError

HOUR = 3600.0
DAY = 86400.0


def test_llama3s_counts_come_back_on_its_own_cluster() -> None:
    profile = failure_profile("llama3")
    assert 54 * DAY * sum(profile.per_s(2048, 8)) == pytest.approx(466)
    assert 54 * DAY * sum(profile.unplanned.per_s(2048, 8)) == pytest.approx(419)
    per_1000_node_days = 1000 * DAY * sum(profile.unplanned.per_s(2048, 8)) / 2048
    assert per_1000_node_days == pytest.approx(3.79, abs=0.005)


@pytest.mark.parametrize(
    ("profile", "gpus", "hours"),
    [
        ("meta-rsc-1", 16384, 1.80),
        ("meta-rsc-1", 131072, 0.23),
        ("llama3", 12288, 4.1),
        ("meta-rsc-1", 12288, 2.4),
        ("meta-rsc-2", 12288, 6.7),
    ],
)
def test_published_mean_times_to_failure(profile: str, gpus: int, hours: float) -> None:
    mttf_h = 1 / sum(failure_profile(profile).unplanned.per_s(gpus // 8, 8)) / HOUR
    assert mttf_h == pytest.approx(hours, rel=0.03)


def test_the_linear_law() -> None:
    assert job_mttf_s(2048, 6.5) / HOUR == pytest.approx(1.803, abs=0.001)  # 24,000 / (2,048 x 6.5)
    assert job_mttf_s(16384, 6.5) / HOUR == pytest.approx(0.225, abs=0.001)


def test_link_causes_scale_with_links_and_job_causes_with_nothing() -> None:
    profile = failure_profile("llama3")
    one, two = profile.per_s(1000, 4), profile.per_s(1000, 8)
    more = profile.per_s(2000, 8)
    for cause, a, b, c in zip(profile.causes, one, two, more, strict=True):
        assert b == pytest.approx(a * (2 if cause.scope == "link" else 1))
        assert c == pytest.approx(b * (1 if cause.scope == "job" else 2))


def test_megascale_has_llama3s_mix_without_the_planned_ones() -> None:
    profile, mix = failure_profile("megascale"), failure_profile("llama3").unplanned
    assert 28 * DAY * sum(profile.per_s(1536, 8)) == pytest.approx(111.8, abs=0.1)  # 2.6 x 1.536 x 28
    ratio = [a.per_day / b.per_day for a, b in zip(profile.causes, mix.causes, strict=True)]
    assert ratio == pytest.approx([ratio[0]] * len(ratio))


@pytest.mark.parametrize("name", failure_profile_names())
def test_every_shipped_profile_reads_and_has_rates(name: str) -> None:
    profile = failure_profile(name)
    assert profile.title
    assert all(cause.per_day > 0 for cause in profile.causes)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CatalogError, match=r"llama-3.*did you mean.*llama3.*meta-rsc-1"):
        failure_profile("llama-3")


BAD = {
    "no causes": ("title: x", "causes: is required"),
    "no rate": ("title: x\ncauses: {a: {evict: true}}", "causes.a: give either count or per_1000_days"),
    "both": (
        "title: x\ngpus: 8\nperiod: 1d\ncauses: {a: {count: 1, per_1000_days: 1}}",
        "give either count or per_1000_days",
    ),
    "counts of nothing": ("title: x\ncauses: {a: {count: 1}}", "causes.a.count: needs gpus and period"),
    "half an observation": (
        "title: x\ngpus: 8\ncauses: {a: {per_1000_days: 1}}",
        "gpus and period go together",
    ),
    "unknown key": ("title: x\ncauses: {a: {per_1000_days: 1, evcit: true}}", "evcit"),
    "unknown scope": ("title: x\ncauses: {a: {per_1000_days: 1, scope: rack}}", "node, link, job"),
    "negative": ("title: x\ncauses: {a: {per_1000_days: -1}}", "expected a number from 0"),
    "unknown mix": ("title: x\nper_1000_node_days: 1\nmix_of: llama4", "mix_of"),
    "mix without a rate": ("title: x\nmix_of: llama3", "per_1000_node_days: is required with mix_of"),
    "no unit": ("title: x\ngpus: 8\nperiod: 54\ncauses: {a: {count: 1}}", "period"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_malformed_profile_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_failure_profile(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "causes: [1]", "title: x\ncauses: {a: 3}"])
def test_anything_else_is_a_message_too(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserInputError):
        load_failure_profile(path)


@pytest.mark.parametrize("name", failure_profile_names())
@given(nodes=st.integers(1, 20_000), times=st.integers(2, 100))
def test_everything_that_stops_a_job_grows_with_it(name: str, nodes: int, times: int) -> None:
    profile = failure_profile(name)
    assert profile.per_s(times * nodes, 8) == pytest.approx(
        [times * rate for rate in profile.per_s(nodes, 8)]
    )


def test_one_node_is_hardly_ever_maintained() -> None:
    profile = failure_profile("llama3")
    planned = [
        r for r, c in zip(profile.per_s(1, 8), profile.causes, strict=True) if c.detection == "planned"
    ]
    assert planned == [pytest.approx(47 / 54 / DAY / 2048)]  # one in 6.4 years, not 26 a month
