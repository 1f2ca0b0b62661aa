"""Core-attention disaggregation (DistCA): linear work stays where documents are, attention goes to all ranks alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.given_packs import plan_given_packs
from hdpsim.simulator.strategies.static.wlb_llm import fitting_packs


def plan_distca(problem: PlanningProblem) -> Plan:
    """Micro-batches that all ranks share: tokens spread evenly, and so, nearly, is the attention of all documents.

        micro-batches = ceil(tokens / (ranks x C)), of equal attention

    Which of them attends to what, and what travels for it, is the cost model's (layout.cp_kind = disaggregated): a plan
    says who shares a micro-batch.
    Source: DistCA (hao-ai-lab/distca), d2/planner/planner.py.

    Raises:
        InfeasibleError: the layout shares sequences otherwise, or a sequence does not fit all ranks.
    """
    kind = problem.cost.layout.context.kind
    if kind != "disaggregated":
        raise InfeasibleError(
            f"strategy distca deals attention alone to the ranks: it needs layout.cp_kind = disaggregated, not {kind}"
        )
    lengths, most = problem.lengths, problem.ranks * problem.capacity_tokens
    if lengths.max() > most:
        raise problem.too_long(int(lengths.max()), problem.ranks)
    attention = lengths.astype(np.float64) ** 2
    pack = fitting_packs(lengths, attention, -(-int(lengths.sum()) // most), 1, most)
    plan = plan_given_packs(problem, pack, problem.ranks)
    notes = (f"attention over {problem.ranks} ranks, {plan.micro_batches} micro-batches",)
    return replace(plan, capacity_tokens=problem.capacity_tokens, notes=notes)
