"""The keys of a scenario file: what each one accepts, its default, and how it is written back.

One table, `KEYS`, from dotted key to `Key`. `read_keys` checks a whole document against it and reports every
problem at once, so that a user repairs a file in one go; `check_together` looks at keys that contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args

from hdpsim.cost_models.hardware.prices import CostOptions
from hdpsim.cost_models.memory.activations import LayerActivations
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.reading.values import (
    Parser,
    choice,
    integer,
    number,
    or_word,
    quantity,
    shown,
    some_of,
    text,
)
from hdpsim.cost_models.step.data_loading import DataPipeline
from hdpsim.errors import StrategyError
from hdpsim.experiments.scenario.keys import keys_of, keys_without_field, layout_keys
from hdpsim.experiments.scenario.values import REQUIRED, Batch, Key
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES
from hdpsim.simulator.find_own_strategy import (
    OWN_NAME,
    OWN_WORDS,
    installed_names,
    is_own_name,
    load_strategy,
)
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.settings import FIELDS
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, StrategyName, StrategyOptions
from hdpsim.traces import shipped_distributions


def strategy_names() -> tuple[str, ...]:
    """Every strategy a scenario may ask for."""
    return get_args(StrategyName)


def _strategy_name(value: object) -> str:
    """A shipped strategy, or one's own, which is looked up at once."""
    if isinstance(value, str) and value not in strategy_names() and is_own_name(value):
        try:
            load_strategy(value)
        except StrategyError as error:
            raise ValueError(str(error)) from None
        return value
    known = strategy_names() if value in strategy_names() else (*strategy_names(), *installed_names())
    try:
        return str(choice(known)(value))
    except ValueError as error:
        raise ValueError(f"{error}; or {OWN_WORDS}") from None


strategy_name = Parser(
    read=_strategy_name,
    words=f"{', '.join(strategy_names())}; or {OWN_WORDS}",
    schema={"anyOf": [choice(strategy_names()).schema, {"type": "string", "pattern": rf"^{OWN_NAME}$"}]},
    choices=strategy_names(),
)

_BUFFERS = "cuda_context_bytes", "library_bytes", "nccl_bytes_per_group", "bucket_buffer_bytes"
_BYTES_PER_UNIT = tuple(
    f"{name}_bytes"
    for name in (
        "logit", "bucket", "loose_gradient", "gather_buffer", "second_gradient", "update_copy", "cached_logit",
        "eight_bit_copy",
    )
)  # fmt: skip
"""Bytes per parameter or logit, plain numbers."""
_COUNT = replace(RANGES["reuse_parameters"], low=0.0)
_KEPT = tuple(field.name for field in fields(LayerActivations))

KEYS: Mapping[str, Key] = {
    **keys_without_field("head"),
    **layout_keys(),
    **keys_without_field("data"),
    **keys_of("data", DataPipeline, {"prefetch_steps": integer(RANGES["prefetch_steps"])}),
    **keys_of(
        "strategy",
        StrategyOptions,
        {"name": strategy_name, "offload_ratio": or_word("auto", number(RANGES["share"]))},
        basic=("name",),
    ),
    **keys_of("memory", MemoryOptions, without=("overheads",), basic=("must_fit",)),
    **keys_of(
        "memory",
        MemoryOverheads,
        {
            **dict.fromkeys(_BUFFERS, quantity("bytes", zero=True)),
            **dict.fromkeys(_BYTES_PER_UNIT, number(RANGES["stack_bytes"])),
            **dict.fromkeys(("update_parameters", "gathered_parameters"), number(_COUNT)),
            "activation_factor": number(RANGES["activation_factor"]),
            "selective_share": or_word("layout", number(RANGES["share"])),
            "selective_keeps": or_word("share", some_of(_KEPT)),
        },
    ),
    **keys_of(
        "execution",
        ExecutionOptions,
        {
            "seed": integer(RANGES["seed"]),
            "launch_skew_s": quantity("time", zero=True),
            "gpu_spread": or_word("auto", number(RANGES["gpu_spread"])),
            "gc_pause_s": quantity("time", zero=True),
            "gc_period_steps": integer(RANGES["period_steps"]),
            "link_flap_mean_s": quantity("time"),
        },
        without=("spans", "record_links", "step", "replication"),
    ),
    **keys_without_field("execution"),
    **keys_of(
        "costs",
        CostOptions,
        {
            "prices": text,
            "usd_per_hour": or_word("list", quantity("money")),
            "network_w": quantity("power", zero=True),
            "co2_kg_per_kwh": or_word("unknown", quantity("emission", zero=True)),
        },
        basic=("provider", "usd_per_hour"),
    ),
    **keys_of(
        "run",
        RunOptions,
        {
            "planning_s": or_word("auto", quantity("time", zero=True)),
            "checkpoint_steps": or_word("never", integer(RANGES["period_steps"])),
        },
        without=("storage_bytes_per_s", "checkpoint_block_s", "checkpoint_upload_s"),
    ),
    **keys_without_field("campaign"),
}

RENAMED: Mapping[str, str] = {
    "memory.expert_outputs_kept": "layout.expert_weights",
    "memory.optimizer_bytes": "layout.optimizer_bytes",
}
"""Keys of earlier versions, and what each is called now."""

OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("micro_batch", "micro_batch_size", "mbs"), "layout.rank_capacity"),
    **dict.fromkeys(("fsdp", "zero", "zero_stage"), "layout.sharding"),
}
"""What other tools call a key, and its name here."""

SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in KEYS if "." in key))
"""The parts of a scenario that hold keys of their own."""


def read_keys(document: object, problems: Problems) -> dict[str, object]:
    """Check *document* against KEYS and note every problem.

    Returns:
        Our value of every dotted key that is fine; absent ones have their default.
    """
    if not isinstance(document, Mapping):
        problems.add("", f"a scenario is a mapping of keys, got {shown(document)}")
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
            problems.add(top, f"expected a mapping of keys, got {shown(value)}")
            spoiled.add(top)
    return flat, spoiled


def now_called(old: str) -> str:
    """What became of a key of an earlier version, in words; empty: there was none of this name."""
    new = RENAMED.get(old)
    return f" (it is now {new}: {KEYS[new].parse.words})" if new else ""


_FEW_KEYS = 15
"""So many keys are named where one is not known, though another may be meant."""


def _unknown(dotted: str) -> str:
    section, dot, leaf = dotted.rpartition(".")
    if dot and section not in SECTIONS:
        return f"is not a known key: there is no section {quoted(section)}; sections: {', '.join(SECTIONS)}"
    known = [key.rpartition(".")[2] for key in KEYS if key.rpartition(".")[0] == section]
    if not dot:
        known += SECTIONS
    homes = [key for key in KEYS if key.rpartition(".")[2] == leaf or key == OF_OTHERS.get(leaf)]
    near = f" (did you mean {' or '.join(homes)}?)" if homes else did_you_mean(leaf, known)
    hint = now_called(dotted) or near
    if hint and len(known) > _FEW_KEYS:
        return f"is not a known key{hint}; docs/reference/scenarios.md has all keys"
    return f"is not a known key{hint}; allowed: {', '.join(known)}"


def check_together(values: Mapping[str, object], problems: Problems) -> None:
    """Problems that only show when several keys are looked at together."""
    sources = ("data.trace", "data.distribution", "data.lengths")
    if all(key in values for key in sources):
        given = [key for key in sources if values[key] is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            problems.add("data.trace", f"give one of data.trace, data.distribution and data.lengths; {what}")
    drawn = values.get("data.distribution") is not None or values.get("data.trace") in shipped_distributions()
    if drawn and values.get("data.seed", 0) is None:
        words = "lengths drawn from a distribution need a seed, a whole number of at least 0"
        problems.add("data.seed", words)
    batch, context = values.get("data.batch"), values.get("data.context")
    batch_tokens = batch.tokens if isinstance(batch, Batch) else None
    if batch_tokens is not None and isinstance(context, int) and context > batch_tokens:
        words = f"{context} tokens are more than the whole batch ({batch_tokens} tokens)"
        problems.add("data.context", words)
    lengths = values.get("data.lengths")
    if isinstance(lengths, tuple) and isinstance(context, int) and max(lengths) > context:
        words = f"a sequence of {max(lengths)} tokens is longer than data.context, {context} tokens"
        problems.add("data.lengths", words)
    schedule, vpp, pp = (values.get(f"layout.{key}") for key in ("schedule", "vpp", "pp"))
    if schedule == "interleaved" and vpp == 1:
        words = "interleaved needs vpp of at least 2 (model chunks per stage); vpp is 1"
        problems.add("layout.schedule", words)
    if schedule == "1f1b" and isinstance(vpp, int) and vpp > 1:
        also = " (or zb-v)" if vpp == 2 else ""
        words = f"vpp = {vpp} needs schedule: interleaved{also}; 1f1b has one chunk per stage"
        problems.add("layout.vpp", words)
    if schedule == "interleaved" and pp == 1:
        problems.add("layout.schedule", "interleaved needs pp of at least 2; pp is 1")


def section_of(values: Mapping[str, object], section: str) -> dict[str, Any]:
    """The values of a section by the fields that they set."""
    return {name: values[key] for key, name in _fields_of(section) if key in values}


@cache
def _fields_of(section: str) -> tuple[tuple[str, str], ...]:
    """The keys of a section, each with the field that it sets."""
    prefix = f"{section}."
    leaves = ((key, key.removeprefix(prefix)) for key in KEYS if key.startswith(prefix))
    return tuple((key, FIELDS.get(name, name)) for key, name in leaves)
