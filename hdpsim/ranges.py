"""What a number may be: the range of every quantity that is read, and the limits of the work one input may ask for.

One table for scenario files, `--set`, catalogs, calibrations, configurations of models, records, tables of kernels,
cells, recorded operations and options. Ranges are wide: what lies outside is a slip of the pen, another unit or a
damaged file, and would end in an overflow, in nan or in work without end. Units are those of our fields (seconds,
bytes, tokens, FLOP).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted


@dataclass(frozen=True, slots=True)
class Range:
    """From *low* to *high*, both allowed; whole numbers where both are written as such.

    Attributes:
        unit: what is counted or measured; empty for a plain number.
        why: why nothing beyond is allowed, where that needs a word.
        words: both ends as a user would write them, where they carry a unit of their own.
    """

    low: float
    high: float
    unit: str = ""
    why: str = ""
    words: str = ""

    @property
    def only_whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: object) -> bool:
        """Whether *value* is such a number; a truth value, a text, nan and infinity are not."""
        kinds = int if self.only_whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.words:
            return self.words
        low, high = (f"{end:,}" if self.only_whole else f"{end:g}" for end in (self.low, self.high))
        return f"{low} to {high}{f' {self.unit}' if self.unit else ''}"

    def from_least(self, low: float) -> Range:
        """The same with another lower end."""
        return Range(low, self.high, self.unit, self.why)

    def complaint(self, value: object) -> str:
        """What is wrong with *value*, which is not in the range."""
        kind = "a whole number" if self.only_whole else "a number"
        why = f" ({self.why})" if self.why else ""
        return f"must be {kind} from {self}, got {quoted(value)}{why}"


_SHARE = Range(0.0, 1.0, "", "it is a share")
_POSITIVE_SHARE = Range(1e-6, 1.0, "", "it is a share")
_FACTOR = Range(1e-3, 1e3, "", "it is a ratio")
_TOKENS = Range(1, 2**31, "tokens", "a thousand times the longest contexts of today")
_WIDTH = Range(1, 1_000_000, "", "fifty times the widest models")

RANGES: Mapping[str, Range] = {
    # the job
    "gpus": Range(1, 10_000_000, "GPUs", "ten times the largest clusters that are planned"),
    "nodes": Range(1, 10_000_000, "nodes", "ten times the largest clusters that are planned"),
    "gpus_per_node": Range(1, 4096, "GPUs of one node"),
    "nics": Range(1, 4096, "NICs of one node"),
    "board_gpus": Range(2, 4096, "GPUs of one board"),
    "links_per_node": Range(1, 4096, "links of one node"),
    "tp": Range(1, 65_536, "GPUs"),
    "pp": Range(1, 4096, "pipeline stages", "a hundred times the deepest pipelines"),
    "vpp": Range(1, 10_000, "chunks of a stage", "no more than layers"),
    "cp": Range(1, 10_000_000, "ranks"),
    "ep": Range(1, 65_536, "ranks", "no more than experts"),
    "prefetch_steps": Range(1, 1000, "steps"),
    "buckets": Range(1, 4096, "buckets"),
    "outlier_queues": Range(0, 16, "queues"),
    "dp": Range(1, 10_000_000, "ranks"),
    "shard_ranks": Range(1, 10_000_000, "ranks"),
    "bucket_parameters": Range(1.0, 1e12, "parameters"),
    "expert_imbalance": Range(1.0, 1e4),
    "loss_metrics": Range(0, 100, "metrics"),
    # the network between nodes
    "nodes_per_block": Range(1, 1_000_000, "nodes"),
    "blocks_per_pod": Range(1, 1_000_000, "blocks"),
    "oversubscription": Range(1.0, 1000.0),
    "uplinks": Range(1, 65_536, "up-links of a switch"),
    "port_split": Range(1, 64),
    "flows_per_connection": Range(1, 1024, "flows"),
    # the model
    "layers": Range(1, 10_000, "layers", "eighty times the deepest models"),
    "hidden": _WIDTH,
    "heads": Range(1, 65_536, "heads"),
    "head_dim": Range(1, 65_536),
    "lora_rank": _WIDTH,
    "ffn_hidden": Range(1, 10_000_000, "", "a hundred times the widest models"),
    "vocab": Range(1, 100_000_000, "tokens of the vocabulary"),
    "experts": Range(0, 65_536, "experts"),
    "top_k": Range(0, 65_536, "experts"),
    "mtp_layers": Range(0, 100, "layers"),
    "full_attention_every": Range(0.0, 10_000.0, "layers"),
    # tokens
    "context_tokens": _TOKENS,
    "token_bytes": Range(0.0, 1e9, "B", "of one token; a picture has thousands of both"),
    "length_tokens": Range(1, 2**31, "tokens", "a thousand times the longest contexts of today"),
    "window_tokens": _TOKENS,
    "positions": Range(0, 2**31, "positions"),
    "rank_capacity_tokens": Range(1, 2**34, "tokens"),
    "batch_tokens": Range(1, 2**34, "tokens", "a hundred times the largest batches"),
    "batch_sequences": Range(1, 1_000_000, "sequences", "thirty times the largest batches"),
    "drawn_tokens": Range(1, 2**40, "tokens"),
    "drawn_sequences": Range(
        1, 20_000_000, "sequences", "a scenario draws from the distribution itself, without end"
    ),
    # the parts of a node
    "flop_rate": Range(1e9, 1e21, "FLOP/s", "from a telephone to a thousand times today's fastest GPU"),
    "bandwidth": Range(1e3, 1e18, "B/s"),
    "bytes": Range(1.0, 1e18, "B"),
    "flop": Range(0.0, 1e36, "FLOP"),
    "power": Range(1e-3, 1e9, "W"),
    "money": Range(1e-6, 1e6, "USD/h"),
    "server_ratio": Range(1.0, 10.0, "", "a server takes what its GPUs take, and more"),
    "pue": Range(1.0, 10.0, "", "a data centre takes what its computers take, and more"),
    "emission": Range(0.0, 10.0, "kg/kWh", "ten times that of the dirtiest power stations"),
    "sm_count": Range(1, 1_000_000, "multiprocessors"),
    "ratio": _FACTOR,
    "share": _SHARE,
    "positive_share": _POSITIVE_SHARE,
    # what a software stack keeps in memory
    "stack_bytes": Range(0.0, 100.0, "B", "per parameter, weight or logit"),
    "activation_factor": Range(0.0, 100.0, "", "it is a ratio"),
    # time
    "time": Range(1e-12, 36_500 * 86_400.0, "s", "beyond a century a duration is a slip", "1e-3ns to 36500d"),
    "step_s": Range(1e-9, 1e9, "s"),
    "slow_factor": Range(1.0, 100.0),
    "failure_scale": Range(0.0, 1000.0),
    "gpu_spread": Range(0.0, 0.5, "", "it is a coefficient of variation"),
    "per_day": Range(0.0, 1e6, "events a day"),
    "per_hour": Range(0.0, 1000.0, "events an hour"),
    "per_1000_days": Range(0.0, 1e9, "events in a thousand days"),
    "events": Range(0.0, 1e9, "events"),
    "slow_period_share": Range(0.0, 0.5, "", "what most nodes are in is no slow period"),
    "jitter": Range(0.0, 1.0, "", "it is a coefficient of variation"),
    # how long and how often
    "seed": Range(0, 2**63 - 1),
    "batches": Range(1, 100_000, "batches"),
    "replications": Range(2, 10_000, "replications"),
    "seeds": Range(1, 100_000, "runs"),
    "steps": Range(1, 10**9, "steps"),
    "workers": Range(1, 1024, "processes"),
    "period_steps": Range(1, 1_000_000, "steps"),
    "noise_steps": Range(0, 10_000, "steps"),
    "misses": Range(1, 1000),
    "nccl_timeout": Range(1, 31, "", "4.096 us times two to that power"),
    "spares": Range(0, 10_000_000, "nodes"),
    "count": Range(0, 2**31),
    "number": Range(0.0, 1e15),
    # what was measured
    "year": Range(1990, 2100),
    "sequences": Range(1, 100_000_000, "sequences"),
    "micro_batches": Range(1, 10_000_000, "micro-batches"),
    "network_gbps": Range(1e-3, 1e6, "Gbit/s"),
    "tokens_per_s": Range(1e-6, 1e15, "tokens/s"),
    "tflops": Range(1e-9, 1e9, "TFLOP/s"),
    "percent": Range(1e-6, 1000.0, "%", "of whatever peak its source means"),
    "memory_gb": Range(1e-3, 1e6, "GB"),
    "kernel_us": Range(1e-4, 1e12, "us"),
    "kernel_tflops": Range(1e-9, 1e9, "TFLOP/s"),
    "kernel_gbps": Range(1e-9, 1e9, "GB/s"),
    "kernel_dimension": Range(1, 2**40),
}
"""The range of every quantity, by its name."""

_CONSTANTS: Mapping[str, Range] = {
    "_efficiency": Range(1e-3, 1.5, "", "a share of a peak"),
    "_rate": Range(1e-3, 10.0, "", "it is a ratio"),
    "_overlap": _SHARE,
    "_slowdown": Range(0.0, 0.999, "", "a share of the rate that is lost"),
    "_share": _SHARE,
    "_tail": _SHARE,
    "_spread": Range(0.0, 0.5, "", "it is a coefficient of variation"),
    "_imbalance": Range(1.0, 1e4),
    "_exponent": Range(0.0, 10.0),
    "_power": Range(1.0, 1e3, "", "1 adds up"),
    "_launches": Range(0.0, 1e4, "launches"),
    "_w": Range(0.0, 1e6, "W"),
    "_joule_per_flop": Range(0.0, 1e-6, "J"),
    "_flop_per_sm": Range(1e6, 1e18, "FLOP/s"),
    "_k": Range(0.0, 1e6, "elements"),
    "_fixup": Range(0.0, 1e6, "elements"),
    "_sides": Range(0.0, 25.0, "lengths"),
    "_half_tokens": Range(0.0, 1e9, "tokens"),
    "_tile_tokens": Range(1.0, 65_536.0, "tokens"),
    "_ramp": Range(0.0, 1e3, "", "it is a ratio"),
    "_head_dim": Range(0.0, 65_536.0),
    "_passes": Range(0.0, 1e3, "passes"),
    "_bytes_per_element": Range(0.0, 1e4, "B"),
    "_factor": Range(0.0, 1e3, "", "it is a ratio"),
    "_bytes_per_s": Range(1e3, 1e18, "B/s"),
    "_tokens_per_s": Range(1.0, 1e15, "tokens/s"),
    "_s_per_sequence": Range(0.0, 3600.0, "s"),
    "_s": Range(0.0, 3600.0, "s"),
}
"""The ranges of a calibration's constants, by how their names end; the longest end counts."""

LIMITS: Mapping[str, tuple[int, str]] = {
    "configuration_bytes": (2**20, "a configuration has some kilobytes"),
    "configuration_depth": (50, "a configuration is a few levels deep"),
    "configuration_values": (100_000, "a configuration has some hundred values"),
    "table_bytes": (64 * 2**20, "a table of measurements has some megabytes"),
    "operations_bytes": (2**29, "some hundred bytes for each of the operations allowed"),
    "operations": (5_000_000, "more do not fit into memory at once; cut the recording by steps"),
    "campaign_stops": (100_000, "each is an event of the simulation; take a shorter run or lower rates"),
    "line_bytes": (2**20, "a length has ten digits"),
    "trace_sequences": (
        20_000_000,
        "statistics of more fill the memory; `hdpsim replay` streams a file of any length",
    ),
    "trace_bytes": (2**36, "a damaged or hostile archive"),
    "batch_pieces": (1_000_000, "planning takes ten seconds for a million"),
    "ranks": (262_144, "planning takes half a minute for as many with a large batch"),
    "batches_pieces": (50_000_000, "more do not fit into memory; take fewer batches"),
}
"""What one input may ask for, and why not more."""


def constant_range(name: str) -> Range:
    """The range of a constant of a calibration.

    >>> constant_range("gemm_efficiency").high
    1.5
    """
    ends = [end for end in _CONSTANTS if name.endswith(end)]
    return _CONSTANTS[max(ends, key=len)]


def check(kind: str, value: object, name: str = "") -> None:
    """Raise UserInputError unless *value* is in the range of *kind*; *name* is what the message calls it."""
    allowed = RANGES[kind]
    if not allowed.holds(value):
        raise UserInputError(f"{name or kind} {allowed.complaint(value)}")
