"""Recorded jobs: replays give back what was recorded, and what-ifs what another recording would have shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from recorded_jobs import Shape, record

from hdpsim.errors import UserInputError
from hdpsim.simulator.recorded.graph import host_gaps, link_operations
from hdpsim.simulator.recorded.operations import PEER_TO_PEER, RecordedJob, code, is_kind
from hdpsim.simulator.recorded.whatif import Analysis, analyse

MakeJob = Callable[[Shape], RecordedJob]

SHAPES = [
    Shape(stages=1, micro_batches=3),
    Shape(stages=1, micro_batches=3, beside=True),
    Shape(stages=2, ranks=3),
    Shape(stages=4, micro_batches=6),
    Shape(stages=4, micro_batches=2),
    Shape(stages=2, chunks=2),
    Shape(stages=4, chunks=3, micro_batches=8, steps=1),
    Shape(stages=4, micro_batches=6, beside=True),
    Shape(stages=2, chunks=2, ranks=3, beside=True),
    Shape(stages=2, chunks=2, beside=True, no_ops=True),
    Shape(stages=4, chunks=3, micro_batches=8, steps=1, beside=True, no_ops=True),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_replay_gives_back_the_recorded_steps(job: MakeJob, shape: Shape) -> None:
    graph = link_operations(job(shape))
    replayed = graph.step_s(graph.replay.ends(graph.work_s))[0]
    np.testing.assert_allclose(replayed, graph.job.step_s(), rtol=1e-12)
    assert graph.blocking == (not shape.beside or shape.stages == 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_ideal_is_the_job_recorded_with_equal_computations(job: MakeJob, shape: Shape) -> None:
    analysis = analyse(link_operations(job(shape)))
    mean_s = record(shape).groupby("optype")["duration"].mean()
    equal = record(
        replace(shape, steps=1, compute_s=lambda _, direction: float(mean_s[f"{direction}-compute"]))
    )
    expected_s = (equal["start_ts"] + equal["duration"]).max()
    np.testing.assert_allclose(analysis.ideal_s, expected_s, rtol=1e-9)
    assert analysis.slowdown == pytest.approx(analysis.without_gaps_s.mean() / expected_s)


def test_the_transfer_time_is_what_remains_without_the_wait(job: MakeJob) -> None:
    shape = Shape(stages=4, micro_batches=6, transfer_s=0.0125, collective_s=0.07)
    graph = link_operations(job(shape))
    kind = graph.job.kind[graph.row]
    transfers = is_kind(kind, *PEER_TO_PEER)
    np.testing.assert_allclose(graph.work_s[transfers], 0.0125, atol=1e-12)
    np.testing.assert_allclose(graph.work_s[kind == code("grads-reduce-scatter")], 0.07, atol=1e-12)
    assert graph.job.duration_s[graph.row[transfers]].max() > 0.1  # with the wait it is much more


def test_clocks_of_finite_precision_do_no_harm(job: MakeJob) -> None:
    exact = job(Shape(stages=4, chunks=2, micro_batches=8, beside=True, no_ops=True))
    random = np.random.default_rng(1)
    noisy = replace(
        exact,
        start_s=np.float32(exact.start_s + random.uniform(-1e-5, 1e-5, len(exact))).astype(np.float64),
        duration_s=np.float32(exact.duration_s).astype(np.float64),
    )
    graph = link_operations(noisy)
    replayed = graph.step_s(graph.replay.ends(graph.work_s))[0]
    np.testing.assert_allclose(replayed, noisy.step_s(), rtol=1e-3)


def test_usual_host_gaps_are_found_and_added(job: MakeJob) -> None:
    # 0.2 s that nobody recorded pass between the all-gather of the parameters and the first computation.
    launch_s = 0.2
    recorded = job(Shape(stages=2, ranks=3))
    gathers = recorded.kind == code("params-all-gather")
    graph = link_operations(
        replace(recorded, start_s=np.where(gathers, recorded.start_s, recorded.start_s + launch_s))
    )
    analysis = analyse(graph)
    np.testing.assert_allclose(analysis.predicted_s, analysis.recorded_s, rtol=1e-9)
    np.testing.assert_allclose(analysis.recorded_s - analysis.without_gaps_s, launch_s, rtol=1e-9)
    gaps = host_gaps(graph)
    assert gaps.max() == pytest.approx(launch_s)
    assert np.sum(gaps > 1e-9) == 2 * 3 * 2  # the first operation of each worker in each of the two steps


def analysis_of(job: MakeJob, shape: Shape) -> Analysis:
    return analyse(link_operations(job(shape)))


def test_engine_and_closed_form_agree(job: MakeJob) -> None:
    assert analysis_of(job, Shape(stages=4, chunks=2, micro_batches=8)).engine_difference < 1e-9


def test_an_even_job_has_no_slowdown_and_nothing_to_blame(job: MakeJob) -> None:
    even = Shape(stages=2, compute_s=lambda _, direction: 0.2)
    analysis = analysis_of(job, even)
    assert analysis.slowdown == pytest.approx(1.0)
    assert all(effect.share is None for effect in analysis.by_stage)
    assert all(effect.saved_s == pytest.approx(0.0, abs=1e-9) for effect in analysis.by_kind)


def test_a_slow_stage_is_blamed(job: MakeJob) -> None:
    recorded = job(Shape(stages=2, micro_batches=8, compute_s=lambda _, direction: 0.2))
    slow = _slowed(recorded, recorded.stage == 1, 2.0)
    analysis = analyse(slow)
    first, last = analysis.by_stage
    assert last.slowdown_alone is not None
    assert first.slowdown_alone is not None
    assert last.slowdown_alone > 1.2 > first.slowdown_alone
    assert last.saved_s > first.saved_s
    even = {effect.name: effect.saved_s for effect in analysis.remedies}
    assert even["stages even"] > 5 * max(abs(even["ranks even"]), abs(even["micro-batches even"]))


def test_a_slow_rank_is_blamed(job: MakeJob) -> None:
    recorded = job(Shape(stages=2, ranks=4, micro_batches=4, compute_s=lambda _, direction: 0.2))
    analysis = analyse(_slowed(recorded, recorded.data_parallel_rank == 2, 1.5))
    assert analysis.by_rank[0].name == "dp_rank 2"
    assert {rank for rank, _ in analysis.worker[:2]} == {2}
    assert analysis.by_rank[0].share == pytest.approx(1.0, abs=0.2)
    even = {effect.name: effect.saved_s for effect in analysis.remedies}
    assert even["ranks even"] > 0.1
    assert even["stages even"] == pytest.approx(0.0, abs=1e-9)


def _slowed(job: RecordedJob, which: np.ndarray[Any, Any], factor: float) -> Any:
    """The job as it would have been recorded with some computations slower: replayed, and written down again."""
    graph = link_operations(job)
    compute = is_kind(job.kind[graph.row], "forward-compute", "backward-compute")
    work_s = np.where(compute & which[graph.row], factor * graph.work_s, graph.work_s)
    return replace(graph, work_s=work_s)


class TestIncomplete:
    def without(self, job: RecordedJob, which: np.ndarray[Any, Any]) -> RecordedJob:
        columns = (
            "step", "data_parallel_rank", "stage", "rank", "kind", "sequence", "chunk", "virtual_stage",
            "start_s", "duration_s",
        )  # fmt: skip
        return replace(job, **{name: getattr(job, name)[~which] for name in columns})

    def lost(self, job: RecordedJob, kind: str, stage: int) -> np.ndarray[Any, Any]:
        lost = (job.kind == code(kind)) & (job.stage == stage) & (job.sequence == 0) & (job.step == 0)
        return lost & (job.data_parallel_rank == 1)

    def test_a_send_without_computation(self, job: MakeJob) -> None:
        whole = job(Shape(stages=2))
        with pytest.raises(
            UserInputError, match=r"step 3, dp_rank 1 stage 0: 3 forward-send operations for 4 "
        ):
            link_operations(self.without(whole, self.lost(whole, "forward-send", 0)))

    def test_a_collective_that_somebody_missed(self, job: MakeJob) -> None:
        whole = job(Shape(stages=2))
        with pytest.raises(
            UserInputError, match=r"grads-reduce-scatter 0 .* 1 operations meet here; expected 2"
        ):
            link_operations(self.without(whole, self.lost(whole, "grads-reduce-scatter", 0)))

    def test_the_first_receive_may_be_missing_where_nothing_arrives(self, job: MakeJob) -> None:
        whole = job(Shape(stages=2, chunks=2, beside=True, no_ops=True))
        graph = link_operations(self.without(whole, self.lost(whole, "forward-recv", 0)))
        replayed = graph.step_s(graph.replay.ends(graph.work_s))[0]
        np.testing.assert_allclose(replayed, whole.step_s(), rtol=1e-12)
