"""Operations that were recorded while a real job trained: the columns, and what each kind of operation is.

A *worker* is one pipeline stage of one data-parallel rank, number data_parallel_rank * stages + stage; of the GPUs
that share a worker (tensor or sequence parallelism) one is recorded. Model chunk c of stage s holds the virtual
stage c * stages + s.

Source of the format and of the kinds: the traces published with Lin et al., "Understanding Stragglers in Large Model
Training Using What-if Analysis", OSDI 2025 (arXiv 2505.05713).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints

COMPUTE = ("forward-compute", "backward-compute")
"""One micro-batch through one model chunk."""

PEER_TO_PEER = ("forward-send", "forward-recv", "backward-send", "backward-recv")
"""Activations and their gradients between neighbouring virtual stages."""

DATA_PARALLEL = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
"""Collectives of the workers that hold the same stage."""

_ON_ONE_WORKER = ("layernorm-grads-all-reduce", "gc", "optimizer")
"""Between the GPUs of one worker, or on its host: nobody else is waited for."""

_MEETINGS = ("embedding-grads-all-reduce", "optimizer-clip-main-grad")
COMMUNICATION = (*PEER_TO_PEER, *DATA_PARALLEL, "layernorm-grads-all-reduce", *_MEETINGS)
"""Kinds whose ideal is a median: a few transfers that took very long should not count (paper, section 3.2)."""

KINDS = (*COMPUTE, *PEER_TO_PEER, *DATA_PARALLEL, *_MEETINGS, *_ON_ONE_WORKER)
"""All kinds of operations; a kind's code is its place here."""


def code(kind: str) -> int:
    """The number that stands for *kind* in `RecordedJob.kind`."""
    return KINDS.index(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """The recorded operations of a job, one entry per operation in every array.

    Attributes:
        name: what the job is called.
        data_parallel: data-parallel ranks that were recorded.
        stages: pipeline stages.
        chunks: model chunks per stage (1: no interleaving).
        gpus: GPUs of the job.
        steps: the label of every recorded step, ascending.
        step: index into `steps`.
        data_parallel_rank: who.
        stage: which pipeline stage.
        rank: global rank of the recorded GPU.
        kind: index into `KINDS`.
        sequence: order among the operations of one kind of a worker in a step.
        chunk: model chunk, or -1.
        virtual_stage: of compute operations, or -1.
        start_s: from the start of the step.
        duration_s: with the wait for peers, if there are any.
    """

    name: str
    data_parallel: int
    stages: int
    chunks: int
    gpus: int
    steps: Ints
    step: Ints
    data_parallel_rank: Ints
    stage: Ints
    rank: Ints
    kind: Ints
    sequence: Ints
    chunk: Ints
    virtual_stage: Ints
    start_s: Floats
    duration_s: Floats

    def __len__(self) -> int:
        return len(self.step)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.data_parallel * self.stages

    @property
    def worker(self) -> Ints:
        """The worker of every operation."""
        return self.data_parallel_rank * self.stages + self.stage

    @property
    def lane(self) -> Ints:
        """A number for the worker and the step of every operation: step * workers + worker."""
        return self.step * self.workers + self.worker

    @property
    def end_s(self) -> Floats:
        """When every operation ended."""
        return self.start_s + self.duration_s

    def on_one_axis(self, seconds: Floats) -> Floats:
        """Moments of all operations on one time axis, on which the lanes follow each other."""
        return np.asarray(self.lane * (float(self.end_s.max()) + 1.0) + seconds)

    def step_s(self) -> Floats:
        """[steps]: from the first start to the last end of each step, as recorded."""
        first, last = (np.full(len(self.steps), sign * np.inf) for sign in (1, -1))
        np.minimum.at(first, self.step, self.start_s)
        np.maximum.at(last, self.step, self.end_s)
        return np.asarray(last - first)

    def describe(self, operation: int) -> str:
        """Name one operation for a message."""
        return (
            f"{KINDS[self.kind[operation]]} {self.sequence[operation]} of dp_rank "
            f"{self.data_parallel_rank[operation]} stage {self.stage[operation]} "
            f"in step {self.steps[self.step[operation]]}"
        )


def is_kind(kinds: Ints, *names: str) -> Bools:
    """Which of *kinds* are one of *names*."""
    return np.isin(kinds, [code(name) for name in names])
