"""What playing a plan yields, whoever played it (SimPy engine or closed-form replay)."""

from __future__ import annotations

from dataclasses import dataclass

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.network.flow_record import FlowRecord
from hdpsim.simulator.network.link_flaps_on_flows import Flap
from hdpsim.simulator.play.flows.rings import RingHops

WAITS = (
    "data",  # before the first forward: loading, and a pause that all processes make together
    "planning",  # before the first forward: batch metadata, planning, sending the plan
    "parameter_gather",  # exposed parameter all-gather before the first forward
    "wait_pipeline",  # waiting for the neighbour stage: bubbles and transfers
    "wait_group",  # waiting for other ranks: of a dynamic group, or where all meet: in a layer, after a pass
    "wait_gradients",  # own work done, waiting for the other ranks before gradients can be summed
    "gradient_sync",  # exposed gradient reduce-scatter
    "wait_stages",  # waiting until every stage's gradients are there (the global gradient norm)
    "optimizer",
    "wait_step_end",  # waiting for the slowest stage's optimizer
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Every operation as columns.

    op 0 = forward, 1 = backward (without its weight gradient where that runs apart), 4 = weight gradient,
    2 = everything in WAITS that is not a wait.
    """

    rank: Ints
    stage: Ints
    chunk: Ints
    op: Ints
    micro_batch: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinks:
    """What sharing links does to a step whose transfers are flows.

    Attributes:
        independent_s: the step with every transfer at the rate that prices assume (execution.network = independent).
        alone_s: the step on the same routes, every transfer as if nothing else were sent.
        contention_s: [A]: what others on its links add to each account, mean over ranks and stages. What processes
            wait for it elsewhere is in the waits.
        carried_bytes: [links]: what each that can hold anybody up carries; None: nobody keeps it.
        flaps: links that went down in the step.
        flaps_s: what that adds to the step.
        record: what went over every link, when asked for.
        ring: with a record: the hops of the busiest ring, if one crosses nodes.
    """

    independent_s: float
    alone_s: float
    contention_s: Floats
    carried_bytes: Floats | None = None
    flaps: tuple[Flap, ...] = ()
    flaps_s: float = 0.0
    record: FlowRecord | None = None
    ring: RingHops | None = None

    def contention(self, step_s: float) -> float:
        """What sharing links adds to the step, relative to the step alone; without flaps."""
        share = (step_s - self.flaps_s) / self.alone_s - 1.0
        return 0.0 if abs(share) < 1e-12 else share  # what is left of two equal sums is no contention


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Times of one step.

    Attributes:
        step_s: from step start to the end of the slowest optimizer.
        accounts: StepCosts.terms followed by WAITS.
        account_s: [A, R, S]: seconds of rank R, stage S in each account; they sum to step_s over A.
        spans: the timeline, when asked for.
        network: what sharing links does; None: transfers are independent.
        events: SimPy events processed (0 for the replay).
        allocator_wait_s: part of the host's time: waits for memory that queued work has used up, on the rank that
            waits longest.
    """

    step_s: float
    accounts: tuple[str, ...]
    account_s: Floats
    spans: Spans | None = None
    network: SharedLinks | None = None
    events: int = 0
    allocator_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Factors on durations, drawn before the step so that both executors see the same ones.

    Attributes:
        rank_stage: [R, S]: slowness of a rank's stage in all it does (unequal GPUs); 1 = nominal.
        forward_stage: [R, S]: slowness of its forwards alone (slow nodes).
        forward: [len(plan.order), S, V]: factor of the forward of the micro-batch in that entry of plan.order.
        backward: what *forward* says, for the backward.
    A shared micro-batch runs at the pace of its slowest member.
    """

    rank_stage: Floats | None = None
    forward_stage: Floats | None = None
    forward: Floats | None = None
    backward: Floats | None = None
