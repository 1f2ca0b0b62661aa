"""A step as the clock sees it: how long its batch is on the way, how long it trains, what it holds on hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.epilogue import planning_times
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.simulator.communicators import communicators_s
from hdpsim.simulator.many_steps.checkpoints import checkpoints_of
from hdpsim.simulator.many_steps.host_memory import HostedProgram, host_room_bytes
from hdpsim.simulator.many_steps.offload import Offload, hosted_program, offload_of
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.execution import Execution, SharedLinks
from hdpsim.simulator.play.flows.program import FlowProgram
from hdpsim.simulator.play.pipeline.program import Program, compile_program
from hdpsim.simulator.play.pipeline.schedules import STAGE_BY_STAGE
from hdpsim.simulator.play.randomness.noise import synchronised_pause_s
from hdpsim.simulator.play.replay import replay_timeline
from hdpsim.simulator.playing import plan_noise, play_plan, wired
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import result_of
from hdpsim.simulator.strategies.problem import PlanningProblem

MEASURED_PLANNER: Mapping[str, tuple[float, float, float]] = {
    "hdp-naive": (1.3e-5, 0.64, 0.25),
    "hdp-balance": (1.4e-5, 0.84, 0.086),
    "hdp-opt": (0.30, 0.0, 0.0),
}
"""Strategy -> (a, x, y) of hdpsim's own planner: a n^x k^y seconds for n sequences on k ranks.

Source: CPU time of one core of a shared server, the faster of two batches of bytescale-github, context 256K, n = 1,230
to 20,778, k = 64 to 2,048 (hdp-opt: 768); least squares of logarithms, residuals of a factor of 1.3, 1.1 and 2.1
(standard deviation). hdp-opt searches: its time depends on the batch, and hardly on n and k (fitted exponents -0.05 and
0.13 explain nothing). Longer contexts take it longer, 2.5 s at 2M.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPath:
    """What a batch passes before its step.

    Attributes:
        read_bytes: from the storage, by all nodes.
        loading_s: reading and preprocessing, if the storage were infinitely fast.
        gather_s: metadata of all loaders to the planner.
        plan_s: planning.
        send_s: the plan to all ranks.
        ahead_steps: batches on their way beside training; 0: the batch's way begins when the step before has ended.
        host_bytes: of the batch, in host memory of a node until the step begins.
    """

    read_bytes: float
    loading_s: float
    gather_s: float
    plan_s: float
    send_s: float
    ahead_steps: int
    host_bytes: float

    @property
    def planning_s(self) -> float:
        """The way through the planner."""
        return self.gather_s + self.plan_s + self.send_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A step that only has to be played on the clock.

    Attributes:
        step_s: seconds of the step alone, as if batches were ready at once; schedules without a barrier between
            steps: of each of many such steps.
        account_s: seconds of that step in each account, mean over ranks and stages.
        phases_s: [S, 4]: when gradients of a stage begin to be summed, when they are, begin and end of its optimizer;
            from the begin of the step.
        longest_s: [S, S]: of schedules without that barrier, the longest way from the begin of a stage to the end of
            another one; None: all stages begin and end together.
        offload: what it offloads.
        program: to be played event by event in the run's environment; None: what is above says it all.
        flowing: the same of a step whose transfers share links, which it does with the steps beside it.
        hosted: the same of a step that offloads more than hosts hold at once: its forwards wait for room.
        allocator_wait_s: waits for memory at its end, which are in no operation of the program.
        network: what sharing links and flaps do to the step alone; None: its transfers are independent.
    """

    tokens: int
    sequences: int
    longest_tokens: int
    model_flop: float
    model_flop_full: float
    peak_flop_per_s: float
    micro_batches: int
    largest_group: int
    notes: tuple[str, ...]
    path: BatchPath
    step_s: float
    account_s: Mapping[str, float]
    phases_s: Floats
    longest_s: Floats | None
    offload: Offload | None
    program: Program | None
    hosted: HostedProgram | None
    allocator_wait_s: float
    flowing: FlowProgram | None
    network: SharedLinks | None = None

    @property
    def stages(self) -> int:
        """Pipeline stages that begin on their own."""
        return 1 if self.longest_s is None else len(self.longest_s)

    @property
    def flaps_s(self) -> float:
        """What links that go down add to it."""
        return 0.0 if self.network is None else self.network.flaps_s

    @property
    def sharing_s(self) -> float:
        """What transfers that meet on links add to it, beside flaps."""
        return 0.0 if self.network is None else self.network.contention(self.step_s) * self.network.alone_s

    @property
    def host_bytes(self) -> float:
        """Bytes of the step that the fullest host holds at a time."""
        if self.hosted is not None:
            return self.hosted.room_bytes
        return 0.0 if self.offload is None else self.offload.peak_bytes

    def ends_s(self, begin_s: Floats) -> Floats:
        """[S]: when stages end that begin at *begin_s*."""
        if self.longest_s is None:
            return begin_s + self.step_s
        return np.asarray((begin_s[:, None] + self.longest_s).max(axis=0))


def prepare_step(
    setup: Setup, lengths: ArrayLike, run: RunOptions, *, mesh_degree: int | None = None
) -> PreparedStep:
    """Plan and price one batch, and play it as far as nothing else on the clock matters.

    Raises:
        UserInputError: the batch is empty or holds anything but whole numbers from 1 to the context.
        InfeasibleError: the step cannot run.
    """
    plan, problem, report = plan_batch(setup, lengths, mesh_degree=mesh_degree)
    priced = price_plan(setup, problem, plan)
    path = batch_path(setup, problem, priced, run)
    made_s = communicators_s(setup.strategy, problem.cost, plan)
    data_s = synchronised_pause_s(setup.execution) + made_s
    epilogue = replace(priced.epilogue, data_s=data_s, planning_s=made_s)
    costs = replace(priced, epilogue=epilogue, data_path=None)
    execution = play_plan(setup, plan, costs)
    noise = plan_noise(setup, plan, costs)
    by_stage = costs.schedule in STAGE_BY_STAGE
    by_event = setup.execution.executor == "engine"
    on_links = setup.execution.network == "flows"
    # Beside a step that ends with a barrier only storage traffic can be on its links.
    meets = on_links and (by_stage or by_event or run.storage_nics == "shared")
    program = offload = hosted = flowing = longest_s = None
    if by_stage or by_event or meets or plan.offload_ratio.any():
        program = compile_program(plan, costs, noise)
    if meets and program is not None:
        flaps = execution.network.flaps if execution.network else ()
        flowing = FlowProgram.of(program, replace(wired(setup), flaps=flaps))
        program = flowing.alone
    if program is not None and plan.offload_ratio.any():
        offload, hosted = _offloading(setup, problem, program, _step_room_bytes(setup, run, path))
    if program is not None and by_stage:
        longest_s = longest_ways_s(program) + execution.allocator_wait_s
    result = result_of(setup, plan, problem, report, costs, execution)
    return PreparedStep(
        tokens=result.tokens,
        sequences=len(problem.lengths),
        longest_tokens=int(problem.lengths.max()),
        model_flop=result.model_flop,
        model_flop_full=result.model_flop_full,
        peak_flop_per_s=setup.cluster.bf16_flop_per_s,
        micro_batches=result.plan_micro_batches,
        largest_group=result.largest_group,
        notes=result.notes,
        path=path,
        step_s=result.step_s,
        account_s=dict(zip(result.accounts, result.account_s.mean(axis=(1, 2)).tolist(), strict=True)),
        phases_s=_phases_s(execution),
        longest_s=longest_s,
        offload=offload,
        program=program if by_event or flowing is not None else None,
        flowing=flowing,
        hosted=hosted,
        allocator_wait_s=execution.allocator_wait_s,
        network=execution.network,
    )


def _offloading(
    setup: Setup, problem: PlanningProblem, program: Program, room_bytes: int | None
) -> tuple[Offload | None, HostedProgram | None]:
    """What a step sends to hosts; and the step as hosts of *room_bytes* make it, where they cannot hold it at once."""
    timeline = replay_timeline(program, np.zeros(program.costs.stages))
    offload = offload_of(setup, problem.cost, program, timeline)
    if offload is None or room_bytes is None or offload.peak_bytes <= room_bytes:
        return offload, None
    if setup.execution.network == "flows":
        raise InfeasibleError(
            "execution.network = flows does not play steps that offload more than hosts hold at once: offload less "
            "(strategy.selective_offloading, strategy.activation_offload), or use execution.network = independent"
        )
    return offload, hosted_program(setup, problem.cost, program, room_bytes)


def _step_room_bytes(setup: Setup, run: RunOptions, path: BatchPath) -> int | None:
    """What a step may hold so that the batches ahead of it and the copy of a checkpoint find room beside it.

    None where nothing has to fit.
    """
    room_bytes, taken = host_room_bytes(setup), checkpoints_of(setup, run)
    if room_bytes is None:
        return None
    copy_bytes = math.ceil(taken.host_bytes if taken else 0.0)
    return max(0, math.floor(room_bytes) - path.ahead_steps * math.ceil(path.host_bytes) - copy_bytes)


def _phases_s(execution: Execution) -> Floats:
    """[S, 4]: see PreparedStep; all ranks of a stage sum their gradients at the same time."""
    of_account = dict(zip(execution.accounts, execution.account_s[:, 0], strict=True))
    end_s = execution.step_s - of_account["wait_step_end"]
    optimizer_s = end_s - of_account["optimizer"]
    summed_s = optimizer_s - of_account["wait_stages"]
    return np.stack([summed_s - of_account["gradient_sync"], summed_s, optimizer_s, end_s], axis=1)


def batch_path(setup: Setup, problem: PlanningProblem, costs: StepCosts, run: RunOptions) -> BatchPath:
    """What the batch passes before its step; see DataPath.

    Counted: the remote loader reads every token once; static meshes and HDP without it what each node's loaders read.
    """
    path, tokens, cluster = costs.data_path, int(problem.lengths.sum()), setup.cluster
    assert path is not None, "price_plan says what a batch passes"
    strategy = setup.strategy
    if strategy.name != "static" and strategy.remote_data_loading:
        read_tokens = float(tokens)
    else:
        read_tokens = path.loading_s * problem.cost.cal.loader_tokens_per_s * cluster.nodes
    gather_s = plan_s = send_s = 0.0
    if strategy.name != "static":
        gather_s, plan_s, send_s = planning_times(problem.cost, len(problem.lengths))
        plan_s = _planning_s(run, problem, strategy.name, plan_s)
    return BatchPath(
        read_bytes=read_tokens * run.token_bytes,
        loading_s=path.loading_s,
        gather_s=gather_s,
        plan_s=plan_s,
        send_s=send_s,
        ahead_steps=path.ahead_steps,
        host_bytes=read_tokens * run.token_bytes / cluster.nodes,
    )


def _planning_s(run: RunOptions, problem: PlanningProblem, strategy: str, calibrated_s: float) -> float:
    """Stated, as measured, or as the calibration says."""
    if run.planning_s is not None:
        return run.planning_s
    if run.planner == "calibration":
        return calibrated_s
    if strategy not in MEASURED_PLANNER:
        measured = f"hdpsim has measured its planners {' and '.join(MEASURED_PLANNER)}, not {strategy}"
        raise UserInputError(f"run.planner: {measured}; give run.planning_time")
    scale_s, of_sequences, of_ranks = MEASURED_PLANNER[strategy]
    return float(scale_s * len(problem.lengths) ** of_sequences * problem.ranks**of_ranks)


def longest_ways_s(program: Program) -> Floats:
    """[S, S]: the longest way of operations from the begin of stage s to the end of stage t; see play.repetition.

    A step whose stage s begins so late that everything waits for it ends everywhere at that begin + L(s, t).
    """
    stages, optimizer_s = program.stages, program.costs.epilogue.optimizer_s
    ways_s = np.empty((stages, stages))
    together = replay_timeline(program, np.zeros(stages)).step_end
    late_s = 2.0 * float((together.optimizer_start_s + optimizer_s).max())
    for stage in range(stages):
        end = replay_timeline(program, late_s * (np.arange(stages) == stage)).step_end
        ends_s = end.optimizer_start_s + optimizer_s
        ways_s[stage] = np.where(ends_s >= late_s, ends_s - late_s, -np.inf)
    return ways_s
