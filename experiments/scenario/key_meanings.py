"""Every key of a scenario with what it accepts, its default and its meaning: for documentation and editors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.scenario.values import REQUIRED
from hdpsim.ranges import Range

_BASIC = frozenset(
    {
        "name", "description", "model", "cluster", "gpus", "software", "data.trace", "data.distribution",
        "data.lengths", "data.batch", "data.context", "data.policy", "data.seed", "strategy.name", "memory.must_fit",
        "execution.batches", "calibration", "costs.provider",
        "costs.price", "campaign.duration", "campaign.seeds", "campaign.failures",
        "campaign.spares", "campaign.checkpoint_interval",
    }
)  # fmt: skip
"""What everybody needs beside the switches of a layout that say so themselves."""

_MEANINGS: Mapping[str, str] = {
    "name": "For reports; by default that of the file.",
    "description": "For reports.",
    "model": "What is trained (hdpsim catalog models).",
    "cluster": "On what (hdpsim catalog clusters, hdpsim catalog nodes).",
    "gpus": "As many GPUs of the cluster, whole nodes or part of one, if it states no other size; auto: all.",
    "software": "Sets what the file leaves alone as that training stack does: megatron-core 0.13.",
    "data.trace": "Recorded lengths; a trace starts again when it ends.",
    "data.distribution": "Lengths drawn from published shares.",
    "data.lengths": "Every sequence has so many tokens; of a list each in turn, again and again (never shuffled).",
    "data.batch": "One global batch.",
    "data.context": "The longest sequence.",
    "data.policy": "What becomes of longer sequences.",
    "data.seed": "Shuffles a trace (none: order of the file) or draws from a distribution.",
    "execution.batches": "Global batches to average over; fewer than 3 have no confidence interval.",
    "calibration": "The constants of the cost models; default: those of the GPU's generation.",
    "campaign.duration": "Length of a run.",
    "campaign.seeds": "How many runs.",
    "campaign.seed": "The seed that all runs start from.",
    "campaign.step": "An undisturbed step; auto: simulated, mean over execution.batches.",
    "campaign.jitter": "Coefficient of variation from step to step.",
    "campaign.drift_per_day": "Growth of the step per day since the last restart.",
    "campaign.failures": "What breaks and how often: the name or the file of a profile.",
    "campaign.failure_scale": "Factor on all rates of failures.",
    "campaign.heartbeat": "Period of the heartbeats by which dead nodes are found.",
    "campaign.heartbeat_misses": "Missed heartbeats that make a node dead.",
    "campaign.hang_timeout": "Time until a hanging collective is given up (600s: PyTorch with NCCL).",
    "campaign.diagnosis": "One round of all tests for the node that failed, on all nodes at once.",
    "campaign.diagnosis_tests": "Tests that run: NIC loopback, NIC to NIC, NCCL in a node, NCCL among neighbours.",
    "campaign.diagnosis_misses": "Probability that a test overlooks a fault that it can see.",
    "campaign.diagnosis_false_positives": "Probability that a test finds fault with a healthy node, which is replaced.",
    "campaign.diagnosis_rounds": "Rounds of tests that may overlook a fault before people look for it.",
    "campaign.fault_recurrence": "Mean time until a fault that was overlooked stops the job again.",
    "campaign.link_flaps_per_day": "How often a link goes down for seconds.",
    "campaign.link_flap_mean": "How long it stays down on average (exponential).",
    "campaign.nccl_timeout": "A connection waits 4.096 us x 2^this before it sends again; longer flaps end the job.",
    "campaign.nccl_retries": "So often a connection sends again before it fails.",
    "campaign.adaptive_retransmission": "NICs send again 67 ms after the link is back instead of at their timeout.",
    "campaign.manual_share": "Share of failures that people have to look at.",
    "campaign.manual": "How long people take.",
    "campaign.spares": "Healthy nodes in the pool; auto: enough 99.9 % of the time.",
    "campaign.repair": "Time until an evicted node is back in the pool.",
    "campaign.scheduling": "Placing the job and starting its processes.",
    "campaign.startup": "How processes find each other when they start.",
    "campaign.group_initialisation": "Making the communication groups; auto: from the start-up model.",
    "campaign.checkpoint_interval": "Work between two checkpoints, rounded to whole steps; young, daly: the optimum.",
    "campaign.checkpoint_block": "How long a checkpoint holds up training; auto: from state and host link.",
    "campaign.checkpoint_upload": "How long it is written beside training; auto: from state, NICs and storage.",
    "campaign.checkpoint_load": "Reading a checkpoint back; auto: from state, NICs and storage.",
    "campaign.storage_bandwidth": "Of the remote storage, both ways (published: 50 GB/s to 2 TB/s); runs use it, too.",
    "campaign.readers": "Who reads a checkpoint from the storage.",
    "campaign.straggler_share": "Probability that a node, at the start or from the pool, is slow.",
    "campaign.straggler_factor": "How much longer a slow node takes for the same forward.",
    "campaign.straggler_detection": "Time until a slow node is found.",
    "campaign.straggler_mttf": "Mean time until a healthy node becomes slow.",
    "campaign.straggler_recovery": "Mean time until such a node is as fast as the others again.",
    "campaign.straggler_misses": "Probability that a look (every straggler_detection) overlooks a slow node.",
    "campaign.straggler_false_positives": "Probability that a look takes a healthy node for a slow one.",
}  # fmt: skip
"""Meanings of keys that do not say it themselves: those that become no field of a setup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioKey:
    """One key.

    Attributes:
        values: what it accepts, in words.
        choices: the values it accepts, where they can be listed.
        limits: the range of a number.
        default: as a scenario has it; None where nothing is said by default.
        required: whether there is no default.
        basic: whether everybody needs it, not experts alone.
        needs: what of other keys it needs to have an effect.
    """

    key: str
    values: str
    choices: tuple[object, ...]
    limits: Range | None
    default: object
    required: bool
    meaning: str
    basic: bool
    needs: tuple[str, ...]

    @property
    def described(self) -> str:
        """What it means, and what it needs to have an effect."""
        return self.meaning + (f" Needs {', '.join(self.needs)}." if self.needs else "")


@cache
def scenario_keys() -> tuple[ScenarioKey, ...]:
    """Every key, in the order in which scenarios are written."""
    return tuple(
        ScenarioKey(
            key=dotted,
            values=key.parse.words,
            choices=key.parse.choices,
            limits=key.parse.limits,
            default=None if key.default is REQUIRED else key.dump(key.default),
            required=key.default is REQUIRED,
            meaning=key.meaning or _MEANINGS[dotted],
            basic=key.basic or dotted in _BASIC,
            needs=key.needs,
        )
        for dotted, key in KEYS.items()
    )
