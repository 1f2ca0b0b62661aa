"""The keys of a scenario file: what each one accepts, its default, and how it is written back.

One table, `KEYS`, from dotted key to `Key`. `read_keys` checks a whole document against it and reports every
problem at once, so that a user repairs a file in one go. Meaning that spans several keys (degrees that must
divide, a context longer than the batch) is checked by `experiments.scenario`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import get_args

from cost_models.checkpoint import Readers
from cost_models.layout import AttentionKernel, Precision, Recompute, Schedule, Sharding
from cost_models.schema import Problems, did_you_mean
from cost_models.startup import StartupMethod
from cost_models.units import parse_quantity, unit_names
from hdpsim.errors import QuantityError
from simulator.setup import Packing, StrategyName
from traces import LongSequencePolicy

__all__ = ["KEYS", "REQUIRED", "SECTIONS", "Batch", "Key", "read_keys", "strategy_names"]


_DAY_S = 86400.0
_LONGEST_S = 36500 * _DAY_S  # a century: beyond it a duration is a mistake


class _Required:
    """Marks a key without a default."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Size of a global batch: a token budget or a number of sequences; exactly one is set."""

    tokens: int | None = None
    sequences: int | None = None

    def __str__(self) -> str:
        return f"{self.tokens} tokens" if self.tokens is not None else f"{self.sequences} sequences"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the scenario file.

    Attributes:
        parse: from the YAML value to ours; raises ValueError with what is allowed.
        default: our value when the key is absent, or REQUIRED.
        dump: from our value back to a YAML value that `parse` accepts.
    """

    parse: Callable[[object], object]
    default: object = REQUIRED
    dump: Callable[[object], object] = lambda value: value


def strategy_names() -> tuple[str, ...]:
    """Every strategy a scenario may ask for."""
    return get_args(StrategyName)


def _shown(value: object) -> str:
    """*value* as the user may have written it in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {_shown(value)}")
    return value


def _reference(value: object) -> object:
    """A catalog name, a path, or an inline mapping; looked up later, where paths are known."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"expected a name, a path or a mapping, got {_shown(value)}")


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {_shown(value)}")
    return value


def _integer(minimum: int, maximum: int = 2**53) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            upper = "" if maximum == 2**53 else f" and at most {maximum}"
            raise ValueError(f"expected a whole number of at least {minimum}{upper}, got {_shown(value)}")
        return value

    return parse


def _one_of(*values: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or value not in values:
            raise ValueError(f"expected {' or '.join(map(str, values))}, got {_shown(value)}")
        return int(value)

    return parse


def _number(minimum: float, maximum: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= maximum
        if not fits:
            raise ValueError(f"expected a number from {minimum:g} to {maximum:g}, got {_shown(value)}")
        return float(value)  # type: ignore[arg-type]  # checked in the line above

    return parse


def _choice(options: tuple[str, ...]) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value in options:
            return str(value)
        hint = did_you_mean(value, options) if isinstance(value, str) else ""
        raise ValueError(f"{_shown(value)} is not one of {', '.join(options)}{hint}")

    return parse


def _or_word(word: str, parse: Callable[[object], object]) -> Callable[[object], object]:
    """Like *parse*, but *word* is accepted too and means None."""

    def parse_or_word(value: object) -> object:
        if value == word:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}; or {word}") from None

    return parse_or_word


def _word_or(word: str, dump: Callable[[object], object] = lambda value: value) -> Callable[[object], object]:
    return lambda value: word if value is None else dump(value)


def _quantity(dimension: str, *, zero: bool = False) -> Callable[[object], float]:
    """A quantity with its unit ("30d", "2TB/s"), positive, or zero too."""

    def parse(value: object) -> float:
        if not isinstance(value, str):
            example = {"time": "30d", "bandwidth": "100GB/s"}[dimension]
            raise ValueError(f'expected a text with a unit such as "{example}", got {_shown(value)}')
        parsed = parse_quantity(value, dimension)
        if not (parsed > 0 or (zero and parsed == 0)):
            raise ValueError(f"must be positive, got {_shown(value)}")
        if dimension == "time" and parsed > _LONGEST_S:
            raise ValueError(f"must be at most {_LONGEST_S / _DAY_S:.0f}d, got {_shown(value)}")
        return parsed

    return parse


def _dump_time(value: object) -> str:
    return f"{_plain_number(value)}s"


def _dump_bandwidth(value: object) -> str:
    return f"{Decimal(repr(value)).scaleb(-9).normalize():f}GB/s"


def _plain_number(value: object) -> str:
    """A number as `parse_quantity` reads it back exactly."""
    text = repr(value)
    return text.removesuffix(".0")


def _tokens(value: object) -> int:
    """Tokens: 8192, "8K", "8K tokens"."""
    tokens = 0.0
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        text = value.strip().removesuffix("tokens") if isinstance(value, str) else value
        try:
            tokens = parse_quantity(text, "tokens")
        except QuantityError:
            tokens = 0.0
    if not 1 <= tokens < 2**53:
        allowed = ", ".join(unit_names("tokens"))
        raise ValueError(f"expected a positive number of tokens with one of {allowed}; got {_shown(value)}")
    return int(tokens)


def _dump_tokens(value: object) -> str:
    return f"{value} tokens"


def _batch(value: object) -> Batch:
    if isinstance(value, str) and value.rstrip().endswith(("sequences", "sequence")):
        number = value.strip().removesuffix("s").removesuffix("sequence").strip()
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(
                f'expected a positive whole number of sequences ("512 sequences"), got {value!r}'
            )
        return Batch(sequences=int(number))
    if not isinstance(value, str):
        raise ValueError(f'expected "32M tokens" or "512 sequences", got {_shown(value)}')
    return Batch(tokens=_tokens(value))


def _time_key(default_s: float, *, zero: bool = False) -> Key:
    return Key(parse=_quantity("time", zero=zero), default=default_s, dump=_dump_time)


def _auto_time_key(*, zero: bool = False) -> Key:
    parse = _or_word("auto", _quantity("time", zero=zero))
    return Key(parse=parse, default=None, dump=_word_or("auto", _dump_time))


def _interval(value: object) -> object:
    """Work between two checkpoints: seconds, or the name of the optimum."""
    if value in ("young", "daly"):
        return value
    try:
        return _quantity("time")(value)
    except ValueError as error:
        raise ValueError(f"{error}; or young, daly (the optimum)") from None


def _dump_interval(value: object) -> object:
    return value if isinstance(value, str) else _dump_time(value)


KEYS: Mapping[str, Key] = {
    "name": Key(parse=_text, default=""),
    "description": Key(parse=_text, default=""),
    "model": Key(parse=_reference),
    "cluster": Key(parse=_reference),
    "gpus": Key(parse=_or_word("auto", _integer(1, 10_000_000)), default=None, dump=_word_or("auto")),
    "layout.tp": Key(parse=_integer(1), default=1),
    "layout.pp": Key(parse=_integer(1), default=1),
    "layout.vpp": Key(parse=_integer(1), default=1),
    "layout.cp": Key(parse=_or_word("auto", _integer(1)), default=None, dump=_word_or("auto")),
    "layout.ep": Key(parse=_integer(1), default=1),
    "layout.sequence_parallel": Key(parse=_boolean, default=True),
    "layout.schedule": Key(parse=_choice(get_args(Schedule)), default="1f1b"),
    "layout.sharding": Key(parse=_choice(get_args(Sharding)), default="zero1"),
    "layout.shard_ranks": Key(parse=_or_word("all", _integer(1)), default=None, dump=_word_or("all")),
    "layout.gradient_bytes": Key(parse=_one_of(2, 4), default=4),
    "layout.optimizer_offload": Key(parse=_boolean, default=False),
    "layout.dp_overlap": Key(parse=_boolean, default=True),
    "layout.recompute": Key(parse=_choice(get_args(Recompute)), default="none"),
    "layout.precision": Key(parse=_choice(get_args(Precision)), default="bf16"),
    "layout.tp_overlap": Key(parse=_boolean, default=False),
    "layout.attention_kernel": Key(parse=_choice(get_args(AttentionKernel)), default="flash"),
    "layout.fused_kernels": Key(parse=_boolean, default=True),
    "layout.rank_capacity": Key(
        parse=_or_word("auto", _tokens), default=None, dump=_word_or("auto", _dump_tokens)
    ),
    "data.trace": Key(parse=_reference, default=None),
    "data.distribution": Key(parse=_text, default=None),
    "data.batch": Key(parse=_batch, dump=str),
    "data.context": Key(parse=_tokens, dump=_dump_tokens),
    "data.policy": Key(parse=_choice(get_args(LongSequencePolicy)), default="chunk"),
    "data.seed": Key(parse=_or_word("none", _integer(0)), default=0, dump=_word_or("none")),
    "strategy.name": Key(parse=_choice(get_args(StrategyName)), default="hdp-balance"),
    "strategy.packing": Key(parse=_choice(get_args(Packing)), default="in-order"),
    "strategy.padding": Key(parse=_boolean, default=True),
    "strategy.dynamic_groups": Key(parse=_boolean, default=True),
    "strategy.selective_offloading": Key(parse=_boolean, default=True),
    "strategy.balancing": Key(parse=_boolean, default=True),
    "strategy.remote_data_loading": Key(parse=_boolean, default=True),
    "execution.executor": Key(parse=_choice(("replay", "engine")), default="replay"),
    "execution.seed": Key(parse=_integer(0), default=0),
    "execution.jitter": Key(parse=_number(0.0, 1.0), default=0.0),
    "execution.slow_node_share": Key(parse=_number(0.0, 1.0), default=0.0),
    "execution.slow_node_factor": Key(parse=_number(1.0, 100.0), default=1.1),
    "execution.batches": Key(parse=_integer(1, 100_000), default=1),
    "calibration": Key(parse=_text, default="default"),
    "campaign.duration": _time_key(30 * _DAY_S),
    "campaign.seeds": Key(parse=_integer(1, 100_000), default=8),
    "campaign.seed": Key(parse=_integer(0), default=0),
    "campaign.step": _auto_time_key(),
    "campaign.jitter": Key(parse=_number(0.0, 1.0), default=0.0),
    "campaign.drift_per_day": Key(parse=_number(0.0, 1.0), default=0.0),
    "campaign.failures": Key(parse=_text, default="llama3"),
    "campaign.failure_scale": Key(parse=_number(0.0, 1000.0), default=1.0),
    "campaign.heartbeat": _time_key(10.0),
    "campaign.heartbeat_misses": Key(parse=_integer(1, 1000), default=3),
    "campaign.hang_timeout": _time_key(600.0),
    "campaign.diagnosis": _time_key(300.0, zero=True),
    "campaign.manual_share": Key(parse=_number(0.0, 1.0), default=0.0),
    "campaign.manual": _time_key(3600.0, zero=True),
    "campaign.spares": Key(parse=_or_word("auto", _integer(0)), default=None, dump=_word_or("auto")),
    "campaign.repair": _time_key(_DAY_S),
    "campaign.scheduling": _time_key(60.0, zero=True),
    "campaign.startup": Key(parse=_choice(get_args(StartupMethod)), default="ordered"),
    "campaign.group_initialisation": _auto_time_key(zero=True),
    "campaign.checkpoint_interval": Key(parse=_interval, default="daly", dump=_dump_interval),
    "campaign.checkpoint_block": _auto_time_key(zero=True),
    "campaign.checkpoint_upload": _auto_time_key(zero=True),
    "campaign.checkpoint_load": _auto_time_key(zero=True),
    "campaign.storage_bandwidth": Key(parse=_quantity("bandwidth"), default=100e9, dump=_dump_bandwidth),
    "campaign.readers": Key(parse=_choice(get_args(Readers)), default="one-per-group"),
    "campaign.straggler_share": Key(parse=_number(0.0, 1.0), default=0.0),
    "campaign.straggler_factor": Key(parse=_number(1.0, 100.0), default=1.1),
    "campaign.straggler_detection": _time_key(3600.0),
    "campaign.straggler_mttf": Key(
        parse=_or_word("never", _quantity("time")), default=None, dump=_word_or("never", _dump_time)
    ),
}

SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in KEYS if "." in key))
"""The parts of a scenario that hold keys of their own."""


def read_keys(document: object, problems: Problems) -> dict[str, object]:
    """Check *document* against KEYS and note every problem.

    Returns:
        Our value of every dotted key that is fine; absent ones have their default.
    """
    if not isinstance(document, Mapping):
        problems.add("", f"a scenario is a mapping of keys, got {_shown(document)}")
        return {}
    flat, spoiled = _flatten(document, problems)
    values: dict[str, object] = {}
    for name, key in KEYS.items():
        if name in flat:
            try:
                values[name] = key.parse(flat[name])
            except ValueError as error:
                problems.add(name, str(error))
        elif name.partition(".")[0] in spoiled:
            continue
        elif key.default is not REQUIRED:
            values[name] = key.default
        else:
            problems.add(name, "is required")
    return values


def _flatten(document: Mapping[str, object], problems: Problems) -> tuple[dict[str, object], set[str]]:
    """Dotted keys and their values, and the sections that are not mappings."""
    flat: dict[str, object] = {}
    spoiled: set[str] = set()
    for top, value in document.items():
        if top in KEYS:
            flat[top] = value
        elif top not in SECTIONS:
            problems.add(top, _unknown(top))
        elif isinstance(value, Mapping):
            for leaf, inner in value.items():
                dotted = f"{top}.{leaf}"
                if dotted in KEYS:
                    flat[dotted] = inner
                else:
                    problems.add(dotted, _unknown(dotted))
        elif value is not None:  # null: a section whose keys are all commented out
            problems.add(top, f"expected a mapping of keys, got {_shown(value)}")
            spoiled.add(top)
    return flat, spoiled


def _unknown(dotted: str) -> str:
    section, dot, leaf = dotted.rpartition(".")
    if dot and section not in SECTIONS:
        return f"is not a known key: there is no section {section!r}; sections: {', '.join(SECTIONS)}"
    known = [key.rpartition(".")[2] for key in KEYS if key.rpartition(".")[0] == section]
    if not dot:
        known += SECTIONS
    homes = [key for key in KEYS if key.rpartition(".")[2] == leaf]
    hint = f" (did you mean {' or '.join(homes)}?)" if homes else did_you_mean(leaf, known)
    return f"is not a known key{hint}; allowed: {', '.join(known)}"
