"""What makes two runs alike as far as the quality of predictions goes: features, and the key of a configuration."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from typing import Any, get_type_hints

from hdpsim.cost_models.calibration.calibration import calibration, calibration_names
from hdpsim.cost_models.transformer.parameters import parameters
from hdpsim.experiments.output.amounts import large_amount
from hdpsim.simulator.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A run as the fidelity of its prediction sees it.

    Attributes:
        gpu: by catalog name.
        generation: generation of its calibration; a shipped one for a certain software stack counts as one of its own.
        bits: bits of the matrix products' operands.
        sharded: parameters are sharded (ZeRO-3, FSDP).
        experts: a mixture of experts.
        hybrid: layers of several kinds, such as Mamba-2 beside attention.
        recompute: none, selective or full.
        dynamic: sequences of many lengths, packed or in dynamic groups, instead of equal micro-batches.
        strategy: who shares them out: static, hdp-naive, hdp-balance or hdp-opt.
        adapters: the weights are frozen, and adapters beside them are trained.
        missing: the run used a mechanism that the prediction leaves out.
        gpus, parameters, sequence_tokens, tp, pp, cp, ep: sizes.
    """

    gpu: str
    generation: str
    bits: int
    sharded: bool
    experts: bool
    recompute: str
    dynamic: bool
    missing: bool
    gpus: int
    parameters: float
    sequence_tokens: int
    tp: int
    pp: int
    cp: int
    ep: int
    strategy: str = "static"
    adapters: bool = False
    hybrid: bool = False

    @classmethod
    def read(cls, cells: dict[str, str]) -> Features:
        """From the cells of a CSV row; a feature that an older file does not have keeps its default."""
        return cls(**{name: parse(cells[name]) for name, parse in _parsers(tuple(cells))})


_PARSED: dict[type, Callable[[str], Any]] = {bool: "True".__eq__, int: int, float: float, str: str}


@cache
def _parsers(columns: tuple[str, ...]) -> tuple[tuple[str, Callable[[str], Any]], ...]:
    """How each feature is read from a file of these columns: working that out takes longer than reading a row."""
    kinds = get_type_hints(Features)
    return tuple(
        (field.name, _PARSED[kinds[field.name]])
        for field in fields(Features)
        if field.name in columns or field.default is MISSING
    )


DISCRETE = {
    "generation": 1.5, "bits": 1.0, "sharded": 1.0, "experts": 1.0, "missing": 0.5, "gpu": 0.4, "recompute": 0.3,
    "dynamic": 1.5, "strategy": 0.3, "adapters": 1.0, "hybrid": 1.5,
}  # fmt: skip
"""What a difference adds to the squared distance."""

CONTINUOUS = {
    "gpus": 3.0, "parameters": 3.0, "sequence_tokens": 2.0, "tp": 2.0, "pp": 2.0, "cp": 2.0, "ep": 2.0,
}  # fmt: skip
"""Doublings that add 1 to it."""

_WORDS: dict[str, Callable[[Any], str]] = {
    "generation": lambda name: f"calibration {name}",
    "bits": lambda bits: f"{bits}-bit matrix products",
    "sharded": lambda sharded: "sharded parameters" if sharded else "whole parameters",
    "experts": lambda experts: "experts" if experts else "no experts",
    "missing": lambda missing: "a mechanism that hdpsim leaves out" if missing else "none left out",
    "gpu": lambda name: f"GPU {name}",
    "recompute": lambda kind: "no recompute" if kind == "none" else f"{kind} recompute",
    "dynamic": lambda dynamic: "sequences of many lengths" if dynamic else "equal sequences",
    "strategy": lambda name: f"strategy {name}",
    "adapters": lambda adapters: "adapters alone trained" if adapters else "all weights trained",
    "hybrid": lambda hybrid: "layers of several kinds" if hybrid else "layers of one kind",
    "gpus": lambda gpus: f"{gpus:,} GPUs",
    "parameters": lambda count: f"{large_amount(count)} parameters",
    "sequence_tokens": lambda tokens: f"{tokens:,} tokens in a typical sequence",
    **{degree: partial("{} {}".format, degree.upper()) for degree in ("tp", "pp", "cp", "ep")},
}
"""How each feature reads beside another run's."""

_BITS = {"bf16": 16, "fp8": 8, "mxfp8": 8, "nvfp4": 4}


def features_of(
    setup: Setup, sequence_tokens: float, *, dynamic: bool = False, missing: bool = False
) -> Features:
    """The features of a setup whose typical sequence has *sequence_tokens*."""
    model, layout, cluster, fitted = setup.model, setup.layout, setup.cluster, setup.calibration.name
    return Features(
        gpu=cluster.gpu.name,
        generation=fitted if fitted in calibration_names() else cluster.gpu.calibration,
        bits=_BITS[layout.precision.products],
        sharded=layout.sharding.kind == "zero3",
        experts=bool(model.experts),
        recompute=layout.recompute.kind,
        dynamic=dynamic,
        missing=missing,
        gpus=cluster.gpus,
        parameters=float(f"{parameters(model).total:.4g}"),
        sequence_tokens=round(sequence_tokens),
        tp=layout.parallel.tp,
        pp=layout.parallel.pp,
        cp=layout.parallel.cp or 1,
        ep=layout.parallel.ep,
        strategy=setup.strategy.name,
        adapters=model.frozen,
        hybrid=bool(model.layer_pattern),
    )


def differences_in_words(own: Features, other: Features) -> str:
    """What *other* has instead of what *own* has, as far as it matters.

    Sizes count when they are more than half their scale apart.
    """
    sizes = {name: abs(log2(getattr(own, name)) - log2(getattr(other, name))) for name in CONTINUOUS}
    names = [name for name in DISCRETE if getattr(own, name) != getattr(other, name)]
    names += [name for name, doublings in sizes.items() if doublings > CONTINUOUS[name] / 2]
    parts = (f"{_WORDS[name](getattr(other, name))} instead of {_instead(own, name)}" for name in names)
    return ", ".join(parts) or "many little differences"


def size_in_words(run: Features) -> str:
    """What was run on what."""
    sequences = f"{run.sequence_tokens:,} tokens a sequence"
    return f"{large_amount(run.parameters)} parameters on {run.gpus:,} x {run.gpu}, {sequences}"


def _instead(own: Features, name: str) -> str:
    """The own value: a name or a number stands alone after the other's words."""
    value = getattr(own, name)
    if name in ("generation", "gpu", "strategy", "tp", "pp", "cp", "ep"):
        return str(value)
    if name in ("gpus", "sequence_tokens"):
        return f"{value:,}"
    return _WORDS[name](value).removesuffix(" parameters")


def configuration_key(setup: Setup, sequences: int, sequence_tokens: int, micro_batch_tokens: int) -> str:
    """The same for the same model, cluster size, degrees and batch, whoever measured it and whenever."""
    model, layout, parallel = setup.model, setup.layout, setup.layout.parallel
    parts = (
        model.layers, model.hidden, model.ffn_hidden, model.heads, model.kv_heads, model.vocab, model.experts,
        model.top_k,
        setup.cluster.gpu.name, setup.cluster.gpus, parallel.tp, parallel.pp, layout.pipeline.vpp, parallel.cp or 1,
        parallel.ep, layout.sharding.kind, layout.recompute.kind, layout.precision.products, sequences,
        sequence_tokens, micro_batch_tokens,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def in_sample(generation: str, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the *sources* whose runs had a part in a constant of the shipped calibration of that name."""
    if generation not in calibration_names():
        return ()
    fitted = calibration(generation).fitted_on
    return tuple(source for source in sources if source in fitted)


def log2(value: float) -> float:
    """Doublings."""
    return math.log2(max(value, 1e-12))
