"""Which switches of layout and model a record means: its columns, its model in the catalog, its software stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError
from hdpsim.experiments.software.facts import Run, known_model
from hdpsim.experiments.software.rules import setting_of, switches
from hdpsim.experiments.software.run import RunConfig

# What has no switch yet, as notes and attention column word it; a mechanism that gets one moves up.
_NOT_MODELLED = (
    (re.compile(r"activation.*offload"), "activation offload of a static mesh"),
    (re.compile(r"[Mm]amba"), "Mamba layers"),
    (re.compile(r"performance regression"), "a slow release of a library, which the source mentions"),
    (
        re.compile(r"after_pp_fix=False"),
        "pipeline transfers that hold a stage for a quarter of a second across nodes",
    ),
)
_OF_THE_CATALOG = ("qk_norm", "expert_biases", "clamped_activation")
_WINDOWS = ("sliding_window", "full_attention_every", "chunked_attention")
Finding = tuple[object, str] | None
"""A switch's value and, where it is not stated, the words of the assumption; None: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What a record means for the simulator.

    Attributes:
        layout: fields of Layout beyond degrees, sharding and recomputation.
        model: fields of Model beyond its shape.
        origins: switch -> who says so and where: the class of the rule, its stack, its source.
        assumptions: what the source does not say and was filled in.
        not_modelled: what the run did and the prediction does not.
    """

    layout: dict[str, Any]
    model: dict[str, Any]
    origins: dict[str, tuple[str, str, str]]
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]


def switches_of(run: Run) -> Switches:
    """Columns first, then the rules of the run's software stack."""
    config = run.config
    of_layout, of_model = ({field.name for field in fields(owner)} for owner in (Layout, Model))
    layout: dict[str, Any] = {}
    model: dict[str, Any] = {}
    origins: dict[str, tuple[str, str, str]] = {}
    assumptions: list[str] = []

    def found(owner: dict[str, Any], switch: str, finding: Finding) -> None:
        if finding is not None:
            owner[switch] = finding[0]
            assumptions.extend([finding[1]] if finding[1] else [])

    found(layout, "precision", _precision(config))
    found(layout, "sequence_parallel", _sequence_parallel(config))
    for switch in switches():
        setting = setting_of(run, switch) if switch in of_layout | of_model else None
        if setting is not None and switch not in ("recompute",):
            found(layout if switch in of_layout else model, switch, (setting.value, setting.words))
            origins[switch] = (setting.kind, setting.stack, setting.source)
    if "embedding_layers" not in layout:
        found(layout, "embedding_layers", _embedding_layers(config))
    for switch, finding in _of_the_model(config):
        if switch not in model:
            found(model, switch, finding)
    balanced = setting_of(run, "balanced_experts")
    if balanced is not None:
        found(layout, "expert_imbalance", (1.0, balanced.words))
        origins["expert_imbalance"] = (balanced.kind, balanced.stack, balanced.source)
    text = f"{config.notes} {config.attention}"
    not_modelled = [words for pattern, words in _NOT_MODELLED if pattern.search(text)]
    if re.search(r"\bDualPipeV\b", f"{config.framework} {config.notes}"):
        not_modelled.append("pairs of a forward and a backward in DualPipeV: as ZB-V")
    if "sliding_window" not in model and re.search(r"sliding|window", text):
        not_modelled.append("sliding-window attention in some layers: every layer attends to all")
    return Switches(
        layout=layout,
        model=model,
        origins=origins,
        assumptions=tuple(assumptions),
        not_modelled=tuple(not_modelled),
    )


def _sequence_parallel(config: RunConfig) -> Finding:
    tp = config.tp or 1
    if config.sp is not None:
        return config.sp, ""
    return tp > 1, "sequence parallelism" if tp > 1 else ""


def _precision(config: RunConfig) -> Finding:
    if config.precision is None:
        return "bf16", "bf16"
    return config.precision.replace("fp16", "bf16"), ""


def _embedding_layers(config: RunConfig) -> Finding:
    """Frameworks cut layers evenly: where only layers + 2 divide, embedding and head were counted as one each.

    So were layers of multi-token prediction.
    """
    chunks = (config.pp or 1) * (config.vpp or 1)
    prediction = _prediction_layers(config)
    more = 2 + int(str(prediction[0])) if prediction else 2
    if chunks == 1 or config.layers is None or config.layers % chunks == 0 or (config.layers + more) % chunks:
        return None
    return True, "embedding and head counted as layers of the pipeline"


def _of_the_model(config: RunConfig) -> Iterator[tuple[str, Finding]]:
    """Fields of Model that records have no column for, from the catalog's model of that name and width."""
    for switch in _WINDOWS:
        yield switch, _window(config, switch)
    yield "mtp_layers", _prediction_layers(config)
    for switch in (*_OF_THE_CATALOG, "scaled_rotary"):
        yield switch, _of_the_catalog(config, switch)


def _window(config: RunConfig, switch: str) -> Finding:
    """A stated chunk counts as it is; of windows that are only mentioned the catalog's model knows the width."""
    chunk = re.search(r"(?i)chunked attention (\d+)", config.notes)
    if chunk:
        stated: dict[str, object] = {"sliding_window": int(chunk[1]), "chunked_attention": True}
        return (stated[switch], "") if switch in stated else None
    if not re.search(r"sliding|window", f"{config.notes} {config.attention}"):
        return None
    known = known_model(config)
    if known is None or known.sliding_window is None:
        return None
    return getattr(known, switch), f"attention windows of {known.name}" if switch == "sliding_window" else ""


def _of_the_catalog(config: RunConfig, switch: str) -> Finding:
    known = known_model(config)
    value = known and getattr(known, switch)
    return (value, f"{switch.replace('_', ' ')} of {known.name}") if known and value else None


def _prediction_layers(config: RunConfig) -> Finding:
    """Layers of multi-token prediction, where the record has all layers of the catalog's model."""
    found = _of_the_catalog(config, "mtp_layers")
    if found is None or re.search(r"(?i)\b(?:no MTP|MTP off)\b", config.notes):
        return None
    try:
        return found if catalog.model(config.model_name).layers == config.layers else None
    except CatalogError:
        return None
