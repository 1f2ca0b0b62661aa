"""A setup as the facts that tables write: keys of the layout and of the model, and how a step's batch is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields

from hdpsim.cost_models.transformer.model import Model
from hdpsim.experiments.other_tools.shapes import model_facts, named_alike
from hdpsim.experiments.other_tools.table import Tool
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.scenario.values import Batch
from hdpsim.simulator.settings import FIELDS
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import capacity_tokens


def usual_facts() -> dict[str, object]:
    """What every key has by default."""
    layout = {name: key.dump(key.default) for name, key in KEYS.items() if name.startswith("layout.")}
    model = {f"model.{item.name}": item.default for item in fields(Model) if item.default is not MISSING}
    return layout | model


def setup_facts(
    setup: Setup, tool: Tool, batch: Batch | None, length_tokens: int | None
) -> dict[str, object]:
    """Everything that a table may ask of *setup*.

    Args:
        setup: what is simulated.
        tool: whose options are written.
        batch: a step's; None: not known.
        length_tokens: of every sequence, where all are equal.
    """
    facts: dict[str, object] = {}
    for name, key in KEYS.items():
        section, _, leaf = name.partition(".")
        if section == "layout":
            facts[name] = key.dump(setup.layout.switch(FIELDS.get(leaf, leaf)))
    _pipeline(setup, tool, facts)
    _sharding(setup, tool, facts)
    if setup.model.experts:
        facts["layout.etp"] = setup.layout.parallel.expert_cut
    else:
        del facts["layout.etp"]
    facts |= _model(setup, tool)
    _step(setup, tool, batch, length_tokens, facts)
    return facts


def is_dynamic(setup: Setup) -> bool:
    """Whether groups of ranks form anew for every batch."""
    return setup.strategy.name != "static"


def _pipeline(setup: Setup, tool: Tool, facts: dict[str, object]) -> None:
    """Chunks of a stage: the tools say them by their number, or by the layers of each."""
    pp, pipeline, layers = setup.layout.parallel.pp, setup.layout.pipeline, setup.model.layers
    facts["run.interleaved"] = pipeline.schedule == "interleaved" and pp > 1
    if pipeline.schedule in ("1f1b", "interleaved") and "layout.schedule" not in tool.keys:
        del facts["layout.schedule"], facts["layout.vpp"]
        if pipeline.vpp > 1:
            facts["run.chunks"] = pipeline.vpp
    elif "run.chunk_layers" in tool.keys:
        deal = pp * pipeline.vpp
        chunk_layers = next(
            ((layers + more) // deal for more in range(3) if (layers + more) % deal == 0), None
        )
        if chunk_layers is not None:
            del facts["layout.vpp"]
            facts["run.chunk_layers"] = chunk_layers if pipeline.vpp > 1 else None


def _sharding(setup: Setup, tool: Tool, facts: dict[str, object]) -> None:
    sharding, ranks = setup.layout.sharding, setup.ranks
    if sharding.kind == "none":
        if tool.style == "toml":
            facts["run.replicas"] = ranks // (setup.layout.parallel.cp or 1)
    elif sharding.ranks is not None and ranks % sharding.ranks == 0 and "run.replicas" in tool.keys:
        del facts["layout.shard_ranks"]
        facts["run.replicas"] = ranks // sharding.ranks


def _model(setup: Setup, tool: Tool) -> dict[str, object]:
    """Facts of the model: its shape, or its name where a tool has models of its own."""
    if "model" in tool.keys:
        return {"model": named_alike(setup.model) or setup.model.name}
    facts = model_facts(setup.model, setup.layout.parallel.tp)
    if tool.style == "yaml":
        facts |= {"run.vocab_multiple": None, "run.pad_vocab": False}
    elif setup.model.vocab % setup.layout.parallel.tp:
        facts["model.vocab"] = setup.model.vocab  # it is padded, and no option says otherwise
    return facts


def _step(
    setup: Setup, tool: Tool, batch: Batch | None, length_tokens: int | None, facts: dict[str, object]
) -> None:
    """Lengths, micro-batches and the batch."""
    context, cp = setup.context_tokens, setup.layout.parallel.cp
    facts["run.dynamic"] = is_dynamic(setup)
    del facts["layout.rank_capacity"]
    if is_dynamic(setup):
        del facts["layout.cp"]
        facts |= {
            "run.rank_capacity": capacity_tokens(setup),
            "run.seq_length": context,
            "run.micro_batch": 1,
        }
        facts["run.global_batch"] = None if batch is None else batch.sequences
        _local_batch(setup, tool, facts, setup.ranks)
        return
    if cp is None:
        del facts["layout.cp"]
    equal = length_tokens if length_tokens and context % length_tokens == 0 else None
    length = equal or context
    micro_batch = context // length
    sequences = None
    if batch is not None and (equal or setup.strategy.packing == "concatenate"):
        if equal and batch.sequences:
            sequences = batch.sequences
        elif batch.tokens is not None and batch.tokens % length == 0:
            sequences = batch.tokens // length
    facts |= {"run.seq_length": length, "run.micro_batch": micro_batch, "run.global_batch": sequences}
    _local_batch(setup, tool, facts, setup.ranks // (cp or 1))


def _local_batch(setup: Setup, tool: Tool, facts: dict[str, object], groups: int) -> None:
    """Tools with a local batch beside the micro-batch: what of it one call of a pipeline's schedule has."""
    if "run.stage_micro_batch" not in tool.keys or setup.layout.parallel.pp == 1:
        return
    micro_batch, sequences = facts["run.micro_batch"], facts["run.global_batch"]
    call = setup.layout.pipeline.call
    assert isinstance(micro_batch, int)
    facts["run.stage_micro_batch"] = micro_batch
    local = 0 if call is None else call * micro_batch
    if isinstance(sequences, int) and sequences % (groups * (local or 1)) == 0:
        facts["run.micro_batch"] = local or sequences // groups
        del facts["layout.schedule_micro_batches"]


def shown_facts(keys: Mapping[str, object], names: list[str]) -> dict[str, str]:
    """Some facts in words."""
    words = {name: str(keys[name]) for name in names}
    return {name: text.lower() if isinstance(keys[name], bool) else text for name, text in words.items()}
