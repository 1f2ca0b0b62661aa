"""How the source of a measured kernel measured it: facts of experiments/data/kernel_sources.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.layout.switches import AttentionKernel
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import CatalogError
from hdpsim.yaml_loader import load_yaml

_FILE = shipped("experiments/data/kernel_sources.yaml")
_COLUMNS = ("kind", "dtype", "source", "notes", "n_nodes", "head_dim", "listed_before")
_OF_A_NETWORK = {"nic_efficiency", "nccl_before_2_18"}
"""Nothing else may be said of a source's network: latencies could only be read off the rows that they would serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """What has to be known of a row beside the kernel's shape.

    Attributes:
        burst: at clocks that do not last.
        key_value_passes: passes over keys and values that are timed along with attention.
        query_passes: HBM passes over queries timed along with attention.
        least_head_width: width that a head of keys counts as at least in those passes.
        token_bytes: the same for each token, however many heads it has.
        call_tokens: of all documents that one call attends to, where the time is that of one of them.
        tdp_w: power limit of its boards; 0: that of the GPU.
        loop: such kernels in a row, of a burst: where they take LASTING_S together, clocks are those that last.
        launch_s: least time of a kernel, as the benchmark launches them.
        launch_each_s: what each GPU of a collective, or each group of a product, adds to that.
        lone_s: host time that is measured along, where nothing else is queued before a collective.
        cut_s: times are printed as so many whole units of this, cut off.
        algorithm: of NCCL, where the benchmark prescribes one; empty: what NCCL picks.
        zeros_rate: of products of zeros over others by generation of the GPU, and of any `other`.
        cast_bytes: per element of an input, casts that are timed along.
        cast_s: start and end of their kernels by generation of the GPU, and of any `other`.
        splits_k: its library may cut tiles of a product along the inner dimension.
        sums_of_16_bits: gradients of weights are added to sums of 16 bits, where the row does not say.
        attention: the attention kernel.
        node: the catalog's node; empty for the reference design of the GPU.
        network: what its network is known to deliver (nic_efficiency), and facts of its release (see _OF_A_NETWORK).
        refused: why the row cannot be judged; empty when it can.
        not_fitted: why no constant is fitted on it; empty when they are.
    """

    burst: bool = False
    key_value_passes: float = 0.0
    query_passes: float = 0.0
    least_head_width: float = 0.0
    token_bytes: float = 0.0
    call_tokens: float = 0.0
    tdp_w: float = 0.0
    loop: int = 0
    launch_s: float = 0.0
    launch_each_s: float = 0.0
    lone_s: float = 0.0
    cut_s: float = 0.0
    algorithm: str = ""
    zeros_rate: Mapping[str, float] = field(default_factory=dict)
    cast_bytes: float = 0.0
    cast_s: Mapping[str, float] = field(default_factory=dict)
    splits_k: bool = True
    sums_of_16_bits: bool = False
    attention: AttentionKernel = "flash"
    node: str = ""
    network: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    not_fitted: str = ""


def instrument_of(row: Mapping[str, str]) -> Instrument:
    """The facts of all entries that count for a row of a table of kernels."""
    return _instrument(*(row.get(column) or "" for column in _COLUMNS))


@lru_cache(maxsize=4096)
def _instrument(*cells: str) -> Instrument:
    texts = dict(zip(_COLUMNS, cells, strict=True))
    texts["text"] = f"{texts['source']} {texts['notes']}"
    facts: dict[str, Any] = {}
    for where, said in _entries():
        matches = [pattern.search(texts[column]) for column, pattern in where.items()]
        if not all(matches):
            continue
        names = {name: text for match in matches if match for name, text in match.groupdict().items()}
        for name, value in said.items():
            facts.setdefault(name, value.format(**names) if isinstance(value, str) else value)
    return Instrument(**facts)


@cache
def _entries() -> tuple[tuple[Mapping[str, re.Pattern[str]], Mapping[str, Any]], ...]:
    known = {item.name for item in fields(Instrument)}
    read = []
    for number, entry in enumerate(load_yaml(_FILE)["entries"], 1):
        said = {name: value for name, value in entry.items() if name not in ("where", "because")}
        if not said or said.keys() - known or not entry.get("because"):
            raise CatalogError(f"{_FILE.name}, entry {number}: needs `because` and facts of {sorted(known)}")
        if said.get("network", {}).keys() - _OF_A_NETWORK:
            raise CatalogError(
                f"{_FILE.name}, entry {number}: of a network {sorted(_OF_A_NETWORK)} can be known"
            )
        read.append(({column: re.compile(text) for column, text in entry["where"].items()}, said))
    return tuple(read)


def gpu_of(name: str, tdp_w: float = 0.0) -> Gpu:
    """The catalog's GPU, or a board that no node of the catalog carries; at that limit, where one is known."""
    board = dict(_boards().get(name, {"gpu": name}))
    if tdp_w:
        board["tdp_w"] = tdp_w
    return replace(catalog.gpu(board.pop("gpu")), **board)


@cache
def _boards() -> Mapping[str, Mapping[str, Any]]:
    boards: Mapping[str, Mapping[str, Any]] = load_yaml(_FILE)["boards"]
    return boards
