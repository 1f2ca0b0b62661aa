"""What a calculation does not read cannot change it: copies that note what is read, and differences named alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware.catalog import cluster_of, gpu, node
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.cost_models.tracing import KeptByReads
from hdpsim.cost_models.values_read import changed, differences, noting

H100, HOPPER = gpu("h100"), calibration("hopper")


@dataclass(frozen=True, slots=True)
class Inner:
    """A part."""

    a: float = 1.0
    b: float = 2.0


@dataclass(frozen=True, slots=True)
class Outer:
    """A value with a part."""

    inner: Inner = Inner()
    c: float = 3.0
    kind: str = "plain"
    many: tuple[float, ...] = (1.0, 2.0)

    @property
    def product(self) -> float:
        """Of two fields."""
        return self.inner.a * self.c


def test_reads_are_noted_by_their_path() -> None:
    read = set[str]()
    copy = noting(Outer(), "outer", read)
    assert not read
    assert copy.product == 3.0
    assert read == {"outer.inner", "outer.inner.a", "outer.c"}
    assert copy.many[1] == 2.0
    assert "outer.many" in read


def test_a_copy_is_never_found_where_its_value_was_kept() -> None:
    kept = {Outer(): "known"}
    assert noting(Outer(), "outer", set()) not in kept


def test_comparing_a_copy_reads_all_of_it() -> None:
    read = set[str]()
    copy = noting(Outer(), "outer", read)
    assert copy == Outer()
    assert read == {f"outer.{name}" for name in ("inner", "inner.a", "inner.b", "c", "kind", "many")}
    assert copy != replace(Outer(), c=4.0)


def test_a_changed_copy_notes_what_it_was_not_given() -> None:
    read = set[str]()
    copy = changed(noting(Outer(), "outer", read), c=5.0)
    assert not read
    assert copy.c == 5.0
    assert not read
    assert copy.inner.b == 2.0
    assert read == {"outer.inner", "outer.inner.b"}
    assert changed(copy, kind="other").c == 5.0
    assert "outer.c" not in read


def test_changed_is_replace_of_any_other_value() -> None:
    assert changed(Outer(), c=5.0) == replace(Outer(), c=5.0)


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (Outer(), set()),
        (Outer(c=4.0), {"x.c"}),
        (Outer(inner=Inner(b=0.0), many=()), {"x.inner.b", "x.many"}),
        (Inner(), {"x"}),
    ],
)
def test_differences_are_named_as_reads_are(other: object, names: set[str]) -> None:
    assert set(differences(Outer(), other, "x")) == names


@given(
    st.sampled_from(
        ("gemm_efficiency", "hbm_efficiency", "launch_s", "ring_delay_s", "attention_half_tokens")
    ),
    st.floats(0.5, 0.99),
    st.sampled_from((64, 1000, 8192)),
)
def test_a_constant_that_no_product_reads_changes_none(name: str, factor: float, rows: int) -> None:
    read = set[str]()
    before = gemm_s(rows, 4096, 1024, H100, noting(HOPPER, "cal", read))
    other = replace(HOPPER, **{name: getattr(HOPPER, name) * factor})
    assert before == gemm_s(rows, 4096, 1024, H100, HOPPER)
    if read.isdisjoint(differences(HOPPER, other, "cal")):
        assert name not in ("gemm_efficiency", "hbm_efficiency")
        assert gemm_s(rows, 4096, 1024, H100, other) == before


def test_results_are_kept_for_values_that_agree_in_what_was_read() -> None:
    kept, asked = KeptByReads[Outer, float](keys=2, values=2), list[float]()

    def product(value: Outer) -> float:
        asked.append(value.c)
        return value.product

    assert kept.of("key", Outer(), product) == 3.0
    assert kept.of("key", Outer(inner=Inner(b=9.0), kind="other"), product) == 3.0  # neither was read
    assert len(asked) == 1
    assert kept.of("key", Outer(c=4.0), product) == 4.0
    assert kept.of("another key", Outer(), product) == 3.0
    assert len(asked) == 3
    assert kept.of("key", Outer(), product) == 3.0
    assert len(asked) == 3
    assert kept.of("key", Outer(inner=Inner(a=2.0)), product) == 6.0  # the first one of three goes
    assert kept.of("key", Outer(), product) == 3.0
    assert len(asked) == 5


def test_who_notes_what_is_read_finds_nothing_kept() -> None:
    kept, read = KeptByReads[Outer, float](keys=2, values=2), set[str]()
    kept.of("key", Outer(), lambda value: value.c)
    assert kept.of("key", noting(Outer(), "outer", read), lambda value: value.c) == 3.0
    assert read == {"outer.c"}


def test_the_slowest_gpu_of_a_job_reads_the_spread_alone() -> None:
    read = set[str]()
    slowest = noting(HOPPER, "cal", read).of_job(64)
    assert slowest.slowest_gpu == HOPPER.of_job(64).slowest_gpu
    assert read == {"cal.gpu_spread"}


def test_parts_of_a_cluster_are_noted() -> None:
    read = set[str]()
    cluster = noting(cluster_of(node("hgx-h100"), 64), "cluster", read)
    assert cluster.bf16_flop_per_s == cluster_of(node("hgx-h100"), 64).bf16_flop_per_s
    assert "cluster.node.gpu.bf16_flop_per_s" in read
    assert "cluster.node.gpu.tdp_w" not in read
