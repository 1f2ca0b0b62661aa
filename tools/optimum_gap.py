"""How far strategies are from the best plan there is, on batches that are small enough to find it.

    python tools/optimum_gap.py --batches 12

The optimum is exact: an integer programme over every set of sequences on every set of ranks, each priced as the
simulation prices it.

    choose micro-batches (set of sequences m, set of ranks g):  each sequence once,
    least T with  sum over chosen (m, g) with r in g of time(m, g) <= T  for every rank r

Counted: packing, groups of any ranks of one node, memory of a rank.
Ignored: waits of members for each other, so that no plan is below it and some optima no order reaches; offloading, cut
sequences, pipelines.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hdpsim.arrays import Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.tables import TextTable, plain_text
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.flexsp.integer_programme import least
from hdpsim.simulator.strategies.problem import PlanningProblem

STRATEGIES = (
    "static", "wlb-llm", "megatron-dp-balanced", "megatron-dynamic-cp", "megatron-hybrid-cp", "flexsp",
    "hdp-naive", "hdp-balance", "hdp-opt",
)  # fmt: skip
"""What is planned."""
SCENARIO = (
    "cluster.gpus=8", "layout.tp=2", "layout.rank_capacity=8K", "data.context=32K", "memory.must_fit=false",
    "strategy.selective_offloading=false", "strategy.padding=false",
)  # fmt: skip


def optimum_s(problem: PlanningProblem) -> float:
    """The least work of the busiest rank of any plan of a few sequences on a few ranks."""
    from scipy.sparse import csr_array

    lengths, ranks = problem.lengths, problem.ranks
    everyone = range(len(lengths))
    sets = [one for size in range(1, len(lengths) + 1) for one in combinations(everyone, size)]
    groups = [one for size in range(1, ranks + 1) for one in combinations(range(ranks), size)]
    pairs = [
        (held, group)
        for held in sets
        for group in groups
        if int(lengths[list(held)].sum()) <= len(group) * problem.capacity_tokens
        and len(group) <= problem.most_ranks
    ]
    seconds = _times_s(problem, sets)
    times = np.array([seconds[held, len(group)] for held, group in pairs])
    # Columns: every pair, then T.
    once = np.array(
        [[sequence in held for held, _ in pairs] + [False] for sequence in everyone], dtype=np.float64
    )
    busy = np.array([[rank in group for _, group in pairs] for rank in range(ranks)]) * times
    busy = np.hstack([busy, -np.ones((ranks, 1))])
    objective = np.append(np.zeros(len(pairs)), 1.0)
    answer = least(
        objective,
        objective == 0.0,
        np.where(objective == 0.0, 1.0, np.inf),
        [(csr_array(once), 1.0, 1.0), (csr_array(busy), -np.inf, 0.0)],
        mip_rel_gap=1e-4,
    )
    if answer is None:
        raise InfeasibleError("no plan holds these sequences")
    return float(answer[-1])


def _times_s(
    problem: PlanningProblem, sets: list[tuple[int, ...]]
) -> dict[tuple[tuple[int, ...], int], float]:
    """Of every set of sequences on so many neighbouring ranks."""
    sizes = range(1, problem.ranks + 1)
    offsets = np.cumsum([0, *(len(held) for held in sets)])
    tokens = problem.lengths[np.concatenate([np.array(held) for held in sets])]
    found = {}
    for size in sizes:
        batches = MicroBatches(
            segment_tokens=tokens,
            segment_offsets=offsets,
            group_size=np.full(len(sets), size),
            tier=np.full(len(sets), problem.compact_tier(size)),
            offload_ratio=np.zeros(len(sets)),
        )
        for held, seconds in zip(sets, problem.cost.busy_s(batches).tolist(), strict=True):
            found[held, size] = seconds
    return found


def busiest_s(setup: Setup, lengths: Ints) -> float:
    """When the last rank of a simulated step is done with its micro-batches."""
    result = simulate_step(setup, lengths)
    until = result.accounts.index("wait_gradients")
    before = [result.accounts.index(name) for name in ("data", "planning", "parameter_gather")]
    work = [row for row in range(until) if row not in before]
    return float(result.account_s[work].sum(axis=0).max())


def draw(number: int, sequences: int) -> Ints:
    """The lengths of a random small batch: log-normal, some longer than a rank holds."""
    drawn = np.random.default_rng(number).lognormal(np.log(4000), 1.2, sequences)
    return np.clip(drawn, 64, 32768).astype(np.int64)


def gaps(batches: int, sequences: int) -> dict[str, list[float]]:
    """For every strategy how much longer its busiest rank takes than the optimum, batch by batch."""
    found: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for number in range(batches):
        lengths = draw(number, sequences)
        best_s: float | None = None
        for name in STRATEGIES:
            setup = load_scenario("quickstart-8gpu", (*SCENARIO, f"strategy.name={name}")).setup(name)
            if best_s is None:
                best_s = optimum_s(planning_problem(setup, lengths))
            try:
                found[name].append(busiest_s(setup, lengths) / best_s - 1.0)
            except InfeasibleError:
                continue
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=12, metavar="N")
    parser.add_argument("--sequences", type=int, default=7, metavar="N", help="of a batch; 4 ranks")
    options = parser.parse_args(arguments)
    rows = tuple(
        (name, str(len(found)), f"{np.median(found):+.1%}", f"{np.max(found):+.1%}")
        if found
        else (name, "0", "-", "-")
        for name, found in gaps(options.batches, options.sequences).items()
    )
    title = f"Busiest rank over the optimum: {options.sequences} sequences on 4 ranks"
    columns = ("strategy", "batches", "median", "largest")
    print(plain_text(TextTable(title=title, columns=columns, rows=rows)))


if __name__ == "__main__":
    main()
