"""Small recorded jobs: training steps played here operation by operation, written down as a profiler would.

Nothing of the product is used but the order of a pipeline schedule. Two ways to communicate between stages:

* blocking: Megatron's batches of sends and receives, during which the worker does nothing else;
* beside: sends start when their data is there, receives are posted one operation ahead, both while the worker computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hdpsim.simulator.play.pipeline.schedules import stage_order, warm_up_forwards

DIRECTIONS = ("forward", "backward")
Key = tuple[str, int, int, int]  # direction, data-parallel rank, boundary, micro-batch


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Degrees and habits of a job; times in seconds."""

    ranks: int = 2
    stages: int = 2
    chunks: int = 1
    micro_batches: int = 4
    steps: int = 2
    beside: bool = False
    no_ops: bool = False  # the profiler also lists transfers that have no neighbour
    transfer_s: float = 0.01
    collective_s: float = 0.03
    launch_s: float = 0.0  # from the start of a step to its first operation
    seed: int = 0
    compute_s: Callable[[np.random.Generator, str], float] = field(
        default=lambda random, direction: random.uniform(0.1, 0.3) * (1 if direction == "forward" else 2)
    )

    @property
    def last(self) -> int:
        return self.stages * self.chunks - 1

    def meta(self) -> dict[str, object]:
        return {
            "trial_name": "made-up", "run_id": 0, "dp_size": self.ranks, "dsp_size": 2, "pp_size": self.stages,
            "tp_size": 1, "vpp_size": self.chunks, "world_size": 2 * self.ranks * self.stages,
        }  # fmt: skip


class Step:
    """One step, played and written down."""

    def __init__(self, shape: Shape, step: int, random: np.random.Generator) -> None:
        self.shape, self.step, self.random = shape, step, random
        self.rows: list[dict[str, object]] = []
        self.counts: dict[tuple[int, int, str], int] = {}
        self.workers = [(rank, stage) for rank in range(shape.ranks) for stage in range(shape.stages)]
        self.order = {
            stage: [
                (DIRECTIONS[op], int(chunk), int(slot))
                for op, chunk, slot in zip(
                    *stage_order("interleaved", shape.stages, shape.chunks, stage, shape.micro_batches)[:3],
                    strict=True,
                )
            ]
            for stage in range(shape.stages)
        }
        self.done: dict[tuple[int, int, int], float] = {}  # end of operation k of a worker
        self.duration = {
            (rank, stage, k): shape.compute_s(random, operation[0])
            for rank, stage in self.workers
            for k, operation in enumerate(self.order[stage])
        }
        self.opening = {
            (rank, stage): shape.launch_s + self._gather(rank, stage) for rank, stage in self.workers
        }
        if shape.beside:
            self._play_beside()
        else:
            self._play_blocking()
        self._epilogue()

    def virtual(self, stage: int, chunk: int) -> int:
        return chunk * self.shape.stages + stage

    def boundary_in(self, stage: int, operation: tuple[str, int, int]) -> int | None:
        """The boundary (named after its lower virtual stage) an operation receives over."""
        direction, chunk, _ = operation
        virtual = self.virtual(stage, chunk)
        if direction == "forward":
            return virtual - 1 if virtual > 0 else None
        return virtual if virtual < self.shape.last else None

    def boundary_out(self, stage: int, operation: tuple[str, int, int]) -> int | None:
        direction, chunk, _ = operation
        virtual = self.virtual(stage, chunk)
        if direction == "forward":
            return virtual if virtual < self.shape.last else None
        return virtual - 1 if virtual > 0 else None

    def write(
        self,
        rank: int,
        stage: int,
        kind: str,
        start: float,
        end: float,
        chunk: int = -1,
        micro_batch: int = -1,
    ) -> None:
        place = (rank, stage, kind)
        sequence = self.counts.get(place, 0)
        self.counts[place] = sequence + 1
        compute = kind.endswith("compute")
        self.rows.append({
            "dp_rank": rank, "stage": stage, "rank": 2 * (stage * self.shape.ranks + rank), "step": self.step,
            "optype": kind, "start_ts": start, "duration": end - start, "seq_id": sequence, "mc": chunk,
            "mb_id": micro_batch, "gmc": self.virtual(stage, chunk) if compute else -1,
        })  # fmt: skip

    def _gather(self, rank: int, stage: int) -> float:
        """All-gather of parameters: chunk after chunk; the first computation waits for the first."""
        cost, launch = self.shape.collective_s, self.shape.launch_s
        for chunk in range(self.shape.chunks):
            self.write(
                rank, stage, "params-all-gather", launch + chunk * cost, launch + (chunk + 1) * cost, chunk
            )
        return cost if self.shape.beside else cost * self.shape.chunks

    def _play_beside(self) -> None:
        shape = self.shape
        sent: dict[Key, float] = {}
        received: dict[Key, tuple[tuple[int, int], float, float]] = {}
        at = dict.fromkeys(self.workers, 0)
        progress = True
        while progress:
            progress = False
            for rank, stage in self.workers:
                order = self.order[stage]
                while at[rank, stage] < len(order):
                    k = at[rank, stage]
                    operation = direction, chunk, slot = order[k]
                    start = self.done.get((rank, stage, k - 1), self.opening[rank, stage])
                    if direction == "forward" and shape.chunks > 1:  # its parameters
                        start = max(start, shape.launch_s + shape.collective_s * (chunk + 1))
                    boundary = self.boundary_in(stage, operation)
                    if boundary is not None:
                        key = (direction, rank, boundary, slot)
                        if key not in sent:
                            break
                        posted = self.done.get((rank, stage, k - 2), self.opening[rank, stage])
                        arrived = max(sent[key], posted) + shape.transfer_s
                        received[key] = ((rank, stage), posted, arrived)
                        start = max(start, arrived)
                    end = start + self.duration[rank, stage, k]
                    self.done[rank, stage, k] = end
                    self.write(rank, stage, f"{direction}-compute", start, end, chunk, slot)
                    boundary = self.boundary_out(stage, operation)
                    if boundary is not None:
                        sent[direction, rank, boundary, slot] = end
                    at[rank, stage] += 1
                    progress = True
        for rank, stage in self.workers:
            assert at[rank, stage] == len(self.order[stage])
            self._write_beside(rank, stage, sent, received)

    def _write_beside(
        self, rank: int, stage: int, sent: dict[Key, float],
        received: dict[Key, tuple[tuple[int, int], float, float]],
    ) -> None:  # fmt: skip
        for k, operation in enumerate(self.order[stage]):
            direction, _, slot = operation
            start = self.done[rank, stage, k] - self.duration[rank, stage, k]
            boundary = self.boundary_in(stage, operation)
            if boundary is not None:
                _, posted, arrived = received[direction, rank, boundary, slot]
                self.write(rank, stage, f"{direction}-recv", posted, arrived)
            elif self.shape.no_ops:
                self.write(rank, stage, f"{direction}-recv", start - 1e-6, start - 1e-6)
            boundary = self.boundary_out(stage, operation)
            end = self.done[rank, stage, k]
            if boundary is not None:
                key = (direction, rank, boundary, slot)
                self.write(rank, stage, f"{direction}-send", end, received[key][2])
            elif self.shape.no_ops:
                self.write(rank, stage, f"{direction}-send", end, end + 1e-6)
        if self.shape.no_ops:  # one receive more than there are computations, at the very end
            end = self.done[rank, stage, len(self.order[stage]) - 1]
            self.write(rank, stage, "forward-recv", end + 1e-3, end + 1e-3)

    def _play_blocking(self) -> None:
        programs = {(rank, stage): self._program(stage) for rank, stage in self.workers}
        clock = dict(self.opening)
        at = dict.fromkeys(self.workers, 0)
        posted: dict[tuple[Key, str], float] = {}
        progress = True
        while progress:
            progress = False
            for worker in self.workers:
                rank, stage = worker
                while at[worker] < len(programs[worker]):
                    item = programs[worker][at[worker]]
                    if isinstance(item, int):
                        direction, chunk, slot = self.order[stage][item]
                        end = clock[worker] + self.duration[rank, stage, item]
                        self.write(rank, stage, f"{direction}-compute", clock[worker], end, chunk, slot)
                        self.done[rank, stage, item] = clock[worker] = end
                    else:
                        batch = [((d, rank, boundary, slot), way) for d, boundary, slot, way in item]
                        for key, way in batch:
                            if (key, way) not in posted:
                                posted[key, way] = clock[worker]
                                progress = True
                        other = {"send": "recv", "recv": "send"}
                        if not all((key, other[way]) in posted for key, way in batch):
                            break
                        end = max(
                            max(posted[key, "send"], posted[key, "recv"]) + self.shape.transfer_s
                            for key, _ in batch
                        )
                        for key, way in batch:
                            self.write(rank, stage, f"{key[0]}-{way}", clock[worker], end)
                        clock[worker] = end
                    at[worker] += 1
                    progress = True
        assert all(at[worker] == len(programs[worker]) for worker in self.workers)
        self.opening = clock

    def _program(self, stage: int) -> list[int | list[tuple[str, int, int, str]]]:
        """Computations (their number) and batches of transfers, as Megatron runs them."""
        order = self.order[stage]
        forwards = [k for k, operation in enumerate(order) if operation[0] == "forward"]
        backwards = [k for k, operation in enumerate(order) if operation[0] == "backward"]
        total = len(forwards)
        warm_up = min(warm_up_forwards(self.shape.stages, self.shape.chunks, stage), total)
        program: list[int | list[tuple[str, int, int, str]]] = []

        def batch(*transfers: tuple[str, int, list[int]]) -> None:
            posts = []
            for way, i, operations in transfers:
                if i < len(operations):
                    operation = order[operations[i]]
                    find = self.boundary_out if way == "send" else self.boundary_in
                    boundary = find(stage, operation)
                    if boundary is not None:
                        posts.append((operation[0], boundary, operation[2], way))
            if posts:
                program.append(posts)

        batch(("recv", 0, forwards))
        for i in range(warm_up):
            program.append(forwards[i])
            if self.shape.chunks == 1:
                batch(("send", i, forwards))
                batch(("recv", i + 1, forwards))
            elif i == warm_up - 1:
                batch(("send", i, forwards), ("recv", i + 1, forwards), ("recv", 0, backwards))
            else:
                batch(("send", i, forwards), ("recv", i + 1, forwards))
        for i in range(total - warm_up):
            forward = i + warm_up
            program.append(forwards[forward])
            if self.shape.chunks == 1:
                batch(("send", forward, forwards), ("recv", i, backwards))
                program.append(backwards[i])
                if forward + 1 < total:
                    batch(("send", i, backwards), ("recv", forward + 1, forwards))
                else:
                    batch(("send", i, backwards))
            else:
                program.append(backwards[i])
                batch(
                    ("send", forward, forwards), ("send", i, backwards),
                    ("recv", forward + 1, forwards), ("recv", i + 1, backwards),
                )  # fmt: skip
        for i in range(total - warm_up, total):
            if self.shape.chunks == 1:
                batch(("recv", i, backwards))
            program.append(backwards[i])
            if self.shape.chunks == 1:
                batch(("send", i, backwards))
            else:
                batch(("send", i, backwards), ("recv", i + 1, backwards))
        return program

    def _epilogue(self) -> None:
        shape = self.shape
        computed = {
            (rank, stage): self.done[rank, stage, len(self.order[stage]) - 1] for rank, stage in self.workers
        }
        clock = dict(computed) if shape.beside else dict(self.opening)
        for rank, stage in self.workers:
            self.write(rank, stage, "gc", computed[rank, stage], computed[rank, stage])
        if shape.beside:
            self._reduce_beside(clock)
        for worker in self.workers:
            self._after(clock, worker, "layernorm-grads-all-reduce", 0.001)
        ends = sorted({0, shape.stages - 1})
        for rank in range(shape.ranks):
            self._together(clock, [(rank, stage) for stage in ends], "embedding-grads-all-reduce", 0.02)
        kind = "separate-grads-all-reduce" if shape.beside else "grads-reduce-scatter"
        for stage in range(shape.stages):
            for chunk in range(1 if shape.beside else shape.chunks):
                group = [(rank, stage) for rank in range(shape.ranks)]
                self._together(clock, group, kind, shape.collective_s, chunk)
        self._together(clock, self.workers, "optimizer-clip-main-grad", 0.005)
        for worker in self.workers:
            self._after(clock, worker, "optimizer", 0.04)

    def _reduce_beside(self, clock: dict[tuple[int, int], float]) -> None:
        """Gradients of a chunk are summed as soon as its last backward is done; the end waits for all of them."""
        for stage in range(self.shape.stages):
            free = 0.0
            for chunk in reversed(range(self.shape.chunks)):
                last = max(k for k, op in enumerate(self.order[stage]) if op[:2] == ("backward", chunk))
                starts = [max(self.done[rank, stage, last], free) for rank in range(self.shape.ranks)]
                free = max(starts) + self.shape.collective_s
                for rank, start in enumerate(starts):
                    self.write(rank, stage, "grads-reduce-scatter", start, free, chunk)
            for rank in range(self.shape.ranks):
                clock[rank, stage] = max(clock[rank, stage], free)

    def _after(
        self, clock: dict[tuple[int, int], float], worker: tuple[int, int], kind: str, seconds: float
    ) -> None:
        start = clock[worker]
        clock[worker] = start + seconds
        self.write(*worker, kind, start, clock[worker])

    def _together(
        self, clock: dict[tuple[int, int], float], group: list[tuple[int, int]], kind: str, seconds: float,
        chunk: int = -1,
    ) -> None:  # fmt: skip
        end = max(clock[worker] for worker in group) + seconds
        for worker in group:
            self.write(*worker, kind, clock[worker], end, chunk)
            clock[worker] = end


def record(shape: Shape) -> pd.DataFrame:
    """The trace of a job of that shape, rows in no particular order."""
    random = np.random.default_rng(shape.seed)
    rows = [row for step in range(shape.steps) for row in Step(shape, 10 * step + 3, random).rows]
    table = pd.DataFrame(rows)
    return table.sample(frac=1.0, random_state=shape.seed).reset_index(drop=True)
