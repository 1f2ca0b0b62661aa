"""Where a number that a cost function read comes from: datasheet, calibration, network defaults, scenario."""

from __future__ import annotations

import ast
import inspect
from functools import cache

from cost_models.calibration import Calibration
from cost_models.hardware import Cluster
from cost_models.model import Model
from cost_models.network_calibration import NetworkCalibration

__all__ = ["Sources"]

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
            return f"default of the network calibration: {_field_words().get(field, '')}".removesuffix(": ")
        found = {
            "node": f"node {node.name}: {node.source}",
            "fabric": f"cluster {self._cluster.name}: {self._cluster.source}",
            "cluster": f"cluster {self._cluster.name}: {self._cluster.source}",
            "model": f"model {self._model.name}: {self._model.source}",
        }
        return found.get(owner, "scenario").removesuffix(": ")


def _part(source: str, field: str) -> str:
    """The part of a GPU's source that speaks of *field*; all of it where none does."""
    parts = dict(part.split(": ", 1) for part in source.split("; ") if ": " in part)
    wanted = _GPU_SOURCES.get(field, field)
    found = [key for key in parts if wanted.startswith(key)]
    return parts[max(found, key=len)] if found else source


@cache
def _field_words() -> dict[str, str]:
    """What the network calibration says below each of its fields."""
    (definition,) = ast.parse(inspect.getsource(NetworkCalibration)).body
    assert isinstance(definition, ast.ClassDef)
    words: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            words[field.target.id] = " ".join(str(below.value.value).split())
    return words
