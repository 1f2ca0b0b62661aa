"""Longest sequence first, each to the ranks that have least to do."""

import numpy as np

import hdpsim


@hdpsim.strategy("longest-first")
def plan(problem: hdpsim.PlanningProblem) -> hdpsim.Plan:
    """Deal the sequences of a batch to groups of neighbours."""
    builder = hdpsim.PlanBuilder(problem)
    work_s = np.zeros(problem.ranks)  # of every rank so far
    for sequence in np.argsort(-problem.lengths, kind="stable"):
        tokens = problem.lengths[sequence]
        size = min(-(-tokens // problem.capacity_tokens), problem.most_ranks)  # ranks that hold it
        first = np.arange(0, problem.ranks - size + 1, size)  # groups of neighbours start here
        groups = first[:, None] + np.arange(size)
        ranks = groups[work_s[groups].max(axis=1).argmin()]
        builder.add(sequence, ranks)
        work_s[ranks] = work_s[ranks].max() + problem.sequence_s(tokens, size)
    return builder.build()
