"""What a record says of its pipeline: schedule, and chunks of layers on each stage."""

from __future__ import annotations

import re
from typing import get_args

from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.experiments.software.facts import Run, interleaves
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.seen_columns import RunConfig

_SPLIT = re.compile(r"\b(ZB-?\w+|DualPipe\w*)\b")
_SCHEDULES = {
    "ZB-1p": "zb-h1",
    "ZB-2p": "zb-h2",
    "ZB-H2": "zb-h2",
    "ZB-H1": "zb-h1",
    "ZB-V": "zb-v",
    "ZBV": "zb-v",
    "ZBVZeroBubble": "zb-v",
    "DualPipe": "dualpipe",
    "DualPipeV": "zb-v",
}
"""Names of schedules as frameworks write them -> of Layout. ZB-1p keeps 1F1B's memory, as ZB-H1 does,
ZB-2p twice as much, as ZB-H2 does. DualPipeV is ZB-V with forwards and backwards paired, where experts' traffic hides
("DualPipe could be better without the Dual", Sea AI Lab)."""


def schedule_of(config: RunConfig, vpp: int) -> str:
    """The pipeline schedule; a name that Layout does not know blocks the prediction."""
    name = _named(config)
    if name in get_args(Schedule):
        return name
    return "interleaved" if vpp > 1 else "1f1b"


def blocked(config: RunConfig) -> str:
    """Why the time of a record cannot be predicted: its schedule is not modelled. Empty: it can."""
    name = _named(config)
    if name and name not in get_args(Schedule):
        return f"the pipeline schedule {name} is not modelled: only {', '.join(get_args(Schedule))} are"
    return ""


def _named(config: RunConfig) -> str:
    stated = dict(config.switches).get("schedule")
    if stated is not None:
        return str(stated)
    named = _SPLIT.search(config.framework) or _SPLIT.search(config.notes)
    return _SCHEDULES.get(named[1], named[1]) if named else ""


def virtual_stages(run: Run, dealt_layers: int) -> tuple[int, str]:
    """Chunks of a stage and the words of an assumption.

    As printed, by this release or another of the same recipe; where only interleaving is known one of the
    *dealt_layers* to a chunk, as most recipes have it (NeMo's of 13 to 340 billion parameters, Megatron-Core's).
    """
    config = run.config
    pp = config.pp or 1
    if pp > 1 and config.vpp in (None, 1) and _named(config) == "zb-v":
        return 2, "two chunks on every stage (V-shaped schedules)"
    if config.vpp is not None:
        if config.vpp > 1 and pp == 1:
            return 1, f"vpp {config.vpp} ignored: there is no pipeline"
        return config.vpp, ""
    if pp == 1:
        return 1, ""
    of_other_releases = setting_of(run, "chunks")
    if of_other_releases is not None:
        return int(str(of_other_releases.value)), of_other_releases.words
    chunks = max(1, dealt_layers // pp) if interleaves(run) else 1
    return chunks, f"vpp {chunks}"
