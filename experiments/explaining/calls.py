"""Reported calls of cost functions as data: words from docstrings, numbers from arguments, constants with sources."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any

import numpy as np

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.reading.field_docstrings import field_words
from hdpsim.cost_models.tracing import Call
from hdpsim.cost_models.transformer.model import Model

Document = dict[str, Any]

_LISTED = 16  # arrays of at most as many numbers are listed, larger ones summed up
_LABELS = ("Counted:", "Ignored:", "Source:")
_SHAPES = frozenset({"GroupShape", "Protocol"})
"""Arguments that are dataclasses and whose fields are shown; others (GPU, calibration) show what was read of them."""


def words_of(function: Callable[..., Any], owner: type | None = None) -> Document:
    """What a docstring says: summary, formula (its indented lines), what is counted and ignored, source.

    A method without a formula has that of its class.
    """
    words = _parsed(inspect.getdoc(function) or "")
    if not words["formula"] and owner is not None:
        of_class = _parsed(inspect.getdoc(owner) or "")
        words = {key: text if key == "summary" else text or of_class[key] for key, text in words.items()}
    return words


def _parsed(text: str) -> Document:
    words = {"summary": "", "formula": "", "counted": "", "ignored": "", "source": ""}
    if not text:
        return words
    summary, _, rest = text.partition("\n\n")
    words["summary"] = " ".join(summary.split())
    formula = [line for line in rest.splitlines() if line.startswith("    ")]
    words["formula"] = textwrap.dedent("\n".join(formula)) if formula else ""
    plain = " ".join(line.strip() for line in rest.splitlines() if not line.startswith("    "))
    places = sorted((plain.find(label), label) for label in _LABELS if label in plain)
    ends = [*(place for place, _ in places), len(plain)][1:]
    for (start, label), end in zip(places, ends, strict=True):
        words[label[:-1].lower()] = plain[start + len(label) : end].strip()
    return words


def call_document(call: Call, sources: Mapping[str, str], term: str) -> Document:
    """One call with everything it rests on; calls that price other accounts than *term* are left to those."""
    return {
        "name": call.function.__name__.lstrip("_"),
        "function": f"{call.function.__module__}.{call.function.__qualname__}",
        "direction": _direction(call),
        **words_of(call.function, call.owner),
        "inputs": {
            name: shown for name, value in call.inputs.items() if (shown := _value(value)) is not None
        },
        "constants": {name: {"value": value, "source": sources[name]} for name, value in call.read.items()},
        "result": _value(call.result),
        "unit": "FLOP/s" if call.function.__name__.endswith("_flop_per_s") else "s",
        "calls": [
            call_document(inner, sources, term)
            for inner in _chosen(call)
            if not inner.terms or term in inner.terms
        ],
    }


def _chosen(call: Call) -> Sequence[Call]:
    """What a call rests on: of the algorithms of a collective only the one taken."""
    if "algorithm" not in call.inputs or not call.calls:
        return call.calls
    taken_s = float(np.sum(call.result))
    return (min(call.calls, key=lambda option: abs(float(np.sum(option.result)) - taken_s)),)


def _direction(call: Call) -> str | None:
    backward = call.inputs.get("backward")
    return None if backward is None else "backward" if backward else "forward"


def _value(value: object) -> Any:
    """A number, a short list or a summary; None for what is no number (a GPU, a calibration)."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if is_dataclass(value) and type(value).__name__ in _SHAPES:
        return {item.name: getattr(value, item.name) for item in fields(value)}
    return None  # what was read of it is among the constants


def _array(values: Any) -> Any:
    if values.size == 1:
        return values.item()
    if values.ndim >= 2 and values.shape[0] <= _LISTED:
        return [_array(row) for row in values]
    flat = values.ravel()
    if flat.size and (flat == flat[0]).all():
        return flat[0].item()
    if flat.size <= _LISTED:
        return flat.tolist()
    return {
        "count": int(flat.size),
        "min": flat.min().item(),
        "mean": float(flat.mean()),
        "max": flat.max().item(),
    }


def products_of(call: Call) -> list[Document]:
    """The matrix products of a layer's forward or backward, one by one.

    Of several sizes of micro-batches, seconds and shape are means.
    """
    if "per_layer" not in call.inputs:
        return []
    names, sides = call.inputs["products"], call.inputs["sides"]
    per_layer = np.asarray(call.inputs["per_layer"], dtype=np.float64).tolist()
    kernels = (inner for inner in call.calls if "m" in inner.inputs and np.size(inner.inputs["m"]) > 0)
    rows: list[Document] = []
    first = 0
    # of many sizes of micro-batches the first block: dense products, narrow ones and those of experts, all passes each
    for count, kernel in zip(call.inputs["priced_together"], kernels, strict=False):
        every = np.asarray(kernel.result).reshape(len(sides), count, -1)
        sizes = [
            np.broadcast_to(np.asarray(kernel.inputs[axis], dtype=np.float64), every.shape)
            for axis in ("m", "n", "k", "groups")
        ]
        m, n, k, groups = sizes
        busy_s, flop = every.mean(axis=2), (2.0 * groups * m * n * k).mean(axis=2)
        for (pass_, side), place in product(enumerate(sides), range(count)):
            one_s, repeats = float(busy_s[pass_, place]), per_layer[first + place]
            rows.append(
                {
                    "product": names[first + place] or f"product_{first + place}",
                    "side": side,
                    **{
                        axis: float(size[pass_, place].mean())
                        for axis, size in zip("mnk", sizes, strict=False)
                    },
                    "groups": int(groups[pass_, place, 0]),
                    "per_layer": int(repeats),
                    "seconds_per_layer": repeats * one_s,
                    "flop_per_s": float(flop[pass_, place]) / one_s if one_s > 0 else 0.0,
                }
            )
        first += count
    return rows


_GPU_SOURCES = {"hbm_bytes_per_s": "hbm_bandwidth", "host_link_duplex_bytes_per_s": "host_link_duplex"}
"""Fields of a GPU whose source is noted under a name that is not their beginning."""


class Sources(dict[str, str]):
    """Source of a number by the name a watched value reports it under, such as "calibration.launch_s"."""

    def __init__(self, cal: Calibration, cluster: Cluster, model: Model) -> None:
        super().__init__()
        for key, entry in cal.entries:
            fitted = f"; fitted on {entry.fitted_on}" if entry.fitted_on else ""
            name = key if key.startswith("network.") else f"calibration.{key}"
            said = "".join(
                f"; {kind}: {words}"
                for kind, words in (("kernels", entry.kernels), ("runs", entry.runs))
                if words
            )
            self[name] = f"calibration {cal.name}: {entry.source}{fitted}{said}"
        self._cluster, self._model = cluster, model

    def __missing__(self, name: str) -> str:
        owner, _, field = name.partition(".")
        gpu, node = self._cluster.gpu, self._cluster.node
        if owner == "gpu":
            return f"{gpu.name}: {_part(gpu.source, field)}"
        if owner == "network":
            return f"default of the network calibration: {field_words(NetworkCalibration).get(field, '')}".removesuffix(
                ": "
            )
        owners = {
            "node": f"node {node.name}: {node.source}",
            "fabric": f"cluster {self._cluster.name}: {self._cluster.source}",
            "cluster": f"cluster {self._cluster.name}: {self._cluster.source}",
            "model": f"model {self._model.name}: {self._model.source}",
        }
        return owners.get(owner, "scenario").removesuffix(": ")


def _part(source: str, field: str) -> str:
    """The part of a GPU's source that speaks of *field*; all of it where none does."""
    parts = dict(part.split(": ", 1) for part in source.split("; ") if ": " in part)
    wanted = _GPU_SOURCES.get(field, field)
    fitting = [key for key in parts if wanted.startswith(key)]
    return parts[max(fitting, key=len)] if fitting else source
