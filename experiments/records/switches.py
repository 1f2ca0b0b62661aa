"""Which switches of layout and model a record means: its columns, its model in the catalog, its software stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.model_of_run import known_model
from hdpsim.experiments.software.rules import (
    Setting,
    fields_set,
    overheads_of,
    settable,
    setting_of,
    words_of,
)
from hdpsim.experiments.software.run_config import RunConfig

_OF_THE_CATALOG = ("qk_norm", "expert_biases", "clamped_activation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What a record means for the simulator.

    Attributes:
        layout: fields of Layout beyond degrees, sharding and recomputation.
        model: fields of Model beyond its shape.
        memory: what its stack keeps in memory.
        kinds: classes of the rules that were applied, but for those of memory.
        assumptions: what the source does not say and was filled in.
        not_modelled: what the run did and the prediction does not.
    """

    layout: dict[str, Any]
    model: dict[str, Any]
    memory: MemoryOverheads
    kinds: frozenset[str]
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]


def switches_of(run: Run) -> Switches:
    """Columns first, then the rules of the run's software stack, then the catalog's model of that name."""
    config = run.config
    of_layout, of_model = settable(Layout), settable(Model)
    ruled = [setting for setting in fields_set(run, Layout, Model) if setting.switch != "recompute"]
    decided = {setting.switch for setting in ruled}
    more = [_embedding_layers(config), *_of_the_model(config)]
    settings = [
        _precision(config),
        _sequence_parallel(config),
        *ruled,
        *(setting for setting in more if setting is not None and setting.switch not in decided),
    ]
    model = {setting.switch: setting.value for setting in settings if setting.switch in of_model}
    not_modelled = words_of(run, "not_modelled")
    if "sliding_window" not in model and _mentions_windows(config):
        not_modelled += ("sliding-window attention in some layers: every layer attends to all",)
    return Switches(
        layout={setting.switch: setting.value for setting in settings if setting.switch in of_layout},
        model=model,
        memory=overheads_of(run),
        kinds=frozenset(setting.kind for setting in ruled),
        assumptions=tuple(setting.words for setting in (*settings, *unknown_words(run)) if setting.words),
        not_modelled=not_modelled,
    )


def unknown_words(run: Run) -> tuple[Setting, ...]:
    """What names its stack and its recomputation and means nothing to the rules."""
    settings = (setting_of(run, switch) for switch in ("unknown_framework", "unknown_policy"))
    return tuple(setting for setting in settings if setting is not None)


def _sequence_parallel(config: RunConfig) -> Setting:
    if config.sp is not None:
        return Setting(switch="sequence_parallel", value=config.sp)
    cut = (config.tp or 1) > 1
    return Setting(switch="sequence_parallel", value=cut, words="sequence parallelism" if cut else "")


def _precision(config: RunConfig) -> Setting:
    if config.precision is None:
        return Setting(switch="precision", value="bf16", words="bf16")
    if config.precision in ("tf32", "fp32"):
        raise InfeasibleError(
            f"matrix products in {config.precision} are not modelled, only in 16 bits and less"
        )
    return Setting(switch="precision", value=config.precision.replace("fp16", "bf16"))


def _embedding_layers(config: RunConfig) -> Setting | None:
    """Frameworks cut layers evenly: where only layers + 2 divide, embedding and head were counted as one each.

    So were layers of multi-token prediction.
    """
    chunks = (config.pp or 1) * (config.vpp or 1)
    prediction = _prediction_layers(config)
    more = 2 + int(str(prediction.value)) if prediction else 2
    if chunks == 1 or config.layers is None or config.layers % chunks == 0 or (config.layers + more) % chunks:
        return None
    words = "embedding and head counted as layers of the pipeline"
    return Setting(switch="embedding_layers", value=True, words=words)


def _of_the_model(config: RunConfig) -> Iterator[Setting | None]:
    """Fields of Model that records have no column for, from the catalog's model of that name and width."""
    yield from _windows(config)
    yield _prediction_layers(config)
    for switch in (*_OF_THE_CATALOG, "scaled_rotary"):
        yield _of_the_catalog(config, switch)


def _windows(config: RunConfig) -> Iterator[Setting]:
    """A stated chunk counts as it is; of windows that are only mentioned the catalog's model knows the width."""
    chunk, known = re.search(r"(?i)chunked attention (\d+)", config.notes), known_model(config)
    if chunk:
        yield Setting(switch="sliding_window", value=int(chunk[1]))
        yield Setting(switch="chunked_attention", value=True)
    elif _mentions_windows(config) and known is not None and known.sliding_window is not None:
        yield Setting(
            switch="sliding_window", value=known.sliding_window, words=f"attention windows of {known.name}"
        )
        for switch in ("full_attention_every", "chunked_attention"):
            yield Setting(switch=switch, value=getattr(known, switch))


def _mentions_windows(config: RunConfig) -> bool:
    return re.search(r"sliding|window", f"{config.notes} {config.attention}") is not None


def _of_the_catalog(config: RunConfig, switch: str) -> Setting | None:
    known = known_model(config)
    value = known and getattr(known, switch)
    if known is None or not value:
        return None
    return Setting(switch=switch, value=value, words=f"{switch.replace('_', ' ')} of {known.name}")


def _prediction_layers(config: RunConfig) -> Setting | None:
    """Layers of multi-token prediction, where the record has all layers of the catalog's model."""
    catalog_layers = _of_the_catalog(config, "mtp_layers")
    if catalog_layers is None or re.search(r"(?i)\b(?:no MTP|MTP off)\b", config.notes):
        return None
    known = known_model(config)
    return catalog_layers if known is not None and known.layers == config.layers else None
