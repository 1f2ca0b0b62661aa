"""Small plans and costs for the executors' tests: builders, Hypothesis strategies and a naive reference executor."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from hdpsim.cost_models.step.step_costs import Epilogue, MeetsAfter, StepCosts
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.pipeline.schedules import BACKWARD, FORWARD, stage_order

TERMS = ("attention", "gemm")


def make_plan(orders: Sequence[Sequence[int]], groups: Sequence[Sequence[int]] | None = None) -> Plan:
    """Return a plan with these orders, one whole sequence of 8 tokens per rank in each micro-batch.

    groups: the members of each micro-batch; by default whoever lists it.
    """
    if groups is None:
        count = 1 + max((m for order in orders for m in order), default=-1)
        groups = [[r for r, order in enumerate(orders) if m in order] for m in range(count)]
    sizes = np.array([len(g) for g in groups], dtype=np.int64)
    count = len(groups)
    return Plan(
        strategy="test",
        ranks=len(orders),
        capacity_tokens=8,
        segment_tokens=8 * sizes,
        segment_sequence=np.arange(count),
        segment_start=np.zeros(count, dtype=np.int64),
        segment_offsets=np.arange(count + 1),
        member_ranks=np.array([r for g in groups for r in g], dtype=np.int64),
        member_offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        offload_ratio=np.zeros(count),
        order=np.array([m for order in orders for m in order], dtype=np.int64),
        order_offsets=np.concatenate([[0], np.cumsum([len(o) for o in orders])]).astype(np.int64),
    )


def make_costs(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    stages: int = 1,
    chunks: int = 1,
    transfer_s: float = 0.0,
    data_s: float = 0.0,
    gather_s: float = 0.0,
    sync_s: float = 0.0,
    optimizer_s: float = 0.0,
) -> StepCosts:
    """Return costs that are the same on all virtual stages; one quarter of each duration is the first term."""
    share = np.array([0.25, 0.75])[:, None, None]
    forward, backward = np.array(forward_s, dtype=float), np.array(backward_s, dtype=float)
    return StepCosts(
        stages=stages,
        chunks=chunks,
        terms=TERMS,
        forward_terms_s=share * forward,
        backward_terms_s=share * backward,
        kind=np.zeros((stages, chunks), dtype=np.int64),
        transfer_s=np.full(len(forward), transfer_s),
        epilogue=Epilogue(
            data_s=data_s,
            parameter_gather_s=np.full(stages, gather_s),
            gradient_sync_s=np.full(stages, sync_s),
            optimizer_s=np.full(stages, optimizer_s),
        ),
    )


def scale_costs(costs: StepCosts, factor: float) -> StepCosts:
    """Return the costs with every duration times *factor*."""
    epilogue = costs.epilogue
    return replace(
        costs,
        forward_terms_s=factor * costs.forward_terms_s,
        backward_terms_s=factor * costs.backward_terms_s,
        transfer_s=factor * costs.transfer_s,
        epilogue=Epilogue(
            data_s=factor * epilogue.data_s,
            planning_s=factor * epilogue.planning_s,
            parameter_gather_s=factor * epilogue.parameter_gather_s,
            gradient_sync_s=factor * epilogue.gradient_sync_s,
            optimizer_s=factor * epilogue.optimizer_s,
        ),
    )


@dataclass(frozen=True)
class Case:
    """One thing to play."""

    plan: Plan
    costs: StepCosts
    noise: Noise | None


@st.composite
def pipeline_plans(draw: st.DrawFn) -> Plan:
    """Random groups at common slots, holes, and ranks with different numbers of slots."""
    ranks, slots = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    orders: list[list[int]] = [[] for _ in range(ranks)]
    groups: list[list[int]] = []
    for _ in range(slots):
        # Ranks with the same label share a micro-batch; label 0 is a hole.
        labels = draw(st.lists(st.integers(0, ranks), min_size=ranks, max_size=ranks))
        numbers = {label: len(groups) + i for i, label in enumerate(sorted(set(labels) - {0}))}
        groups += [[r for r in range(ranks) if labels[r] == label] for label in numbers]
        for rank, label in enumerate(labels):
            orders[rank].append(numbers.get(label, HOLE))
    cut = draw(st.booleans())
    if cut:
        orders = [_without_last_holes(order) for order in orders]
    return make_plan(orders, groups)


def _without_last_holes(order: list[int]) -> list[int]:
    while order and order[-1] == HOLE:
        order = order[:-1]
    return order


@st.composite
def flat_plans(draw: st.DrawFn) -> Plan:
    """Random groups without a pipeline: every rank keeps the common order, at slots of its own."""
    ranks = draw(st.integers(1, 6))
    members = st.sets(st.integers(0, ranks - 1), min_size=1).map(sorted)
    groups = draw(st.lists(members, max_size=14))
    numbers = draw(st.permutations(range(len(groups))))
    orders: list[list[int]] = [[] for _ in range(ranks)]
    for m in numbers:
        for rank in groups[m]:
            orders[rank].append(m)
    return make_plan(orders, groups)


durations = st.floats(0.0, 10.0, allow_subnormal=False)


@st.composite
def cases(draw: st.DrawFn, with_noise: bool = True, meets: bool = False) -> Case:
    """A random plan with random costs and perhaps noise, with and without a pipeline; *meets*: after passes."""
    stages, chunks = draw(
        st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3)])
    )
    meets_after: MeetsAfter = draw(
        st.sampled_from(["loss", "pass"] if meets else ["step", "step", "loss", "pass"])
    )
    plan = draw(flat_plans() if stages * chunks == 1 and meets_after == "step" else pipeline_plans())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.integers(1, 3))
    count = plan.micro_batches
    # Whole numbers give ties, which the executors must not resolve differently.
    whole = draw(st.booleans())

    def seconds(*shape: int) -> np.ndarray:
        return random.integers(0, 4, shape).astype(float) if whole else random.random(shape)

    costs = StepCosts(
        stages=stages,
        chunks=chunks,
        terms=TERMS,
        forward_terms_s=seconds(2, kinds, count),
        backward_terms_s=seconds(2, kinds, count),
        kind=random.integers(0, kinds, (stages, chunks)),
        transfer_s=seconds(count),
        meets_after=meets_after,
        drains_every=draw(st.sampled_from([0, 0, 1, 2, 3])),
        epilogue=Epilogue(
            data_s=float(seconds(1)[0]),
            parameter_gather_s=seconds(stages),
            gradient_sync_s=seconds(stages),
            optimizer_s=seconds(stages),
        ),
    )
    noise = None
    if with_noise and draw(st.booleans()):
        shape = (len(plan.order), stages, chunks)
        noise = Noise(
            rank_stage=0.5 + random.random((plan.ranks, stages)) if draw(st.booleans()) else None,
            forward=0.5 + random.random(shape) if draw(st.booleans()) else None,
            backward=0.5 + random.random(shape) if draw(st.booleans()) else None,
            forward_stage=1.0 + random.random((plan.ranks, stages)) if draw(st.booleans()) else None,
        )
    return Case(plan, costs, noise)


class StuckError(Exception):
    """The naive executor found nothing left to start."""


def naive_step(case: Case) -> tuple[float, np.ndarray]:
    """Return the step's time and accounts [A, R, S] by going round until everything has been played."""
    plan, costs, noise = case.plan, case.costs, case.noise
    S, V, R = costs.stages, costs.chunks, plan.ranks
    orders = [plan.order[a:b] for a, b in zip(plan.order_offsets, plan.order_offsets[1:], strict=False)]
    members = [
        plan.member_ranks[a:b].tolist()
        for a, b in zip(plan.member_offsets, plan.member_offsets[1:], strict=False)
    ]

    def factor(rank: int, slot: int, op: int, stage: int, chunk: int) -> float:
        result = 1.0
        if noise is not None and noise.rank_stage is not None:
            result *= noise.rank_stage[rank, stage]
        if op == FORWARD and noise is not None and noise.forward_stage is not None:
            result *= noise.forward_stage[rank, stage]
        drawn = None if noise is None else (noise.forward, noise.backward)[op]
        return result if drawn is None else result * drawn[plan.order_offsets[rank] + slot, stage, chunk]

    todo: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for rank in range(R):
        for stage in range(S):
            table = zip(
                *(
                    c.tolist()
                    for c in stage_order("interleaved", S, V, stage, len(orders[rank]), costs.drains_every)[
                        :3
                    ]
                ),
                strict=True,
            )
            todo[rank, stage] = [
                (op, chunk, int(orders[rank][slot]), slot)
                for op, chunk, slot in table
                if orders[rank][slot] != HOLE
            ]

    accounts = np.zeros((len(TERMS) + 10, R, S))
    opening = costs.epilogue.data_s + costs.epilogue.parameter_gather_s
    free = {(rank, stage): opening[stage] for rank in range(R) for stage in range(S)}
    ended: dict[tuple[int, int, int], float] = {}  # (op, virtual stage, micro-batch) -> time

    def arrival(op: int, k: int, m: int) -> float | None:
        if op == FORWARD:
            needed = None if k == 0 else (FORWARD, k - 1, m)
        else:
            needed = (FORWARD, k, m) if k == S * V - 1 else (BACKWARD, k + 1, m)
        if needed is None:
            return 0.0
        moves = S > 1 and needed[1] != k
        return None if needed not in ended else ended[needed] + (costs.transfer_s[m] if moves else 0.0)

    slot_of = {m: slot for order in orders for slot, m in enumerate(order.tolist()) if m != HOLE}
    computed: dict[
        tuple[int, int, int], float
    ] = {}  # operations whose ranks wait for others to end with them

    def with_whom(op: int, k: int, m: int) -> list[tuple[int, int, int]]:
        """Operations that end together."""
        meets = costs.meets_after == "pass" or (
            costs.meets_after == "loss" and (op, k) == (FORWARD, S * V - 1)
        )
        return [(op, k, one) for one in slot_of if meets and slot_of[one] == slot_of[m]] or [(op, k, m)]

    busy: set[tuple[int, int]] = set()
    while any(todo.values()):
        progress = False
        for (_, stage), operations in todo.items():
            if not operations:
                continue
            op, chunk, m, _ = operations[0]
            group = [todo[member, stage] for member in members[m]]
            there = arrival(op, chunk * S + stage, m)
            if there is None or not all(o and o[0][:3] == (op, chunk, m) for o in group):
                continue
            if any((member, stage) in busy for member in members[m]):
                continue
            start = max([there] + [free[member, stage] for member in members[m]])
            factors = [factor(member, todo[member, stage][0][3], op, stage, chunk) for member in members[m]]
            terms = (costs.forward_terms_s, costs.backward_terms_s)[op][:, costs.kind[stage, chunk], m]
            end = start + max(factors) * terms.sum()
            for member, own in zip(members[m], factors, strict=True):
                ready = max(there, free[member, stage])
                accounts[: len(TERMS), member, stage] += own * terms
                accounts[len(TERMS) + 3, member, stage] += ready - free[member, stage]
                accounts[len(TERMS) + 4, member, stage] += start - ready + (max(factors) - own) * terms.sum()
                todo[member, stage].pop(0)
                busy.add((member, stage))
            computed[op, chunk * S + stage, m] = end
            together = with_whom(op, chunk * S + stage, m)
            if all(one in computed for one in together):
                latest = max(computed[one] for one in together)
                for one in together:
                    ended[one] = latest
                    for member in members[one[2]]:
                        accounts[len(TERMS) + 4, member, stage] += latest - computed[one]
                        free[member, stage] = latest
                        busy.discard((member, stage))
            progress = True
            break
        if not progress:
            raise StuckError
    if busy:
        raise StuckError

    epilogue = costs.epilogue
    done = np.array([[free[rank, stage] for stage in range(S)] for rank in range(R)])
    sync_start = done.max(axis=0)
    optimizer_start = (sync_start + epilogue.gradient_sync_s).max()
    step = float((optimizer_start + epilogue.optimizer_s).max())
    first = len(TERMS)
    accounts[first] = epilogue.data_s - epilogue.planning_s
    accounts[first + 1] = epilogue.planning_s
    accounts[first + 2] = epilogue.parameter_gather_s
    accounts[first + 5] = sync_start - done
    accounts[first + 6] = epilogue.gradient_sync_s
    accounts[first + 7] = optimizer_start - sync_start - epilogue.gradient_sync_s
    accounts[first + 8] = epilogue.optimizer_s
    accounts[first + 9] = step - optimizer_start - epilogue.optimizer_s
    return step, accounts
