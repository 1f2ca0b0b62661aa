"""The keys of a scenario as JSON Schema, by which editors complete and check scenario files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from hdpsim.cost_models.calibration.calibration import calibration_names
from hdpsim.cost_models.hardware import catalog, entries
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.reading.field_docstrings import field_words
from hdpsim.cost_models.reading.fields import FieldKey, field_parser
from hdpsim.cost_models.reading.values import QUANTITIES, range_schema, text, without_none
from hdpsim.cost_models.reliability.failures import failure_profile_names
from hdpsim.cost_models.transformer.model import LatentAttention, Mamba, Model
from hdpsim.experiments.scenario.schema import KEYS, SECTIONS
from hdpsim.experiments.software.choice import software_names
from hdpsim.ranges import RANGES

Schema = dict[str, Any]

_ENTRIES: Mapping[str, type] = {
    "model": Model,
    "cluster": Cluster,
    "node": Node,
    "gpu": Gpu,
    "fabric": Fabric,
    "latent_attention": LatentAttention,
    "mamba": Mamba,
}
"""What the keys of models and clusters describe; each is a definition of the schema."""
_NAMED = ("model", "cluster", "node", "gpu")
"""Those of them that the catalog has by name."""
_DERIVED = frozenset({"name", "kv_heads", "head_dim", "host_link_duplex_bytes_per_s"})
"""Fields without a default that follow from others."""
_SOURCES: Mapping[str, Schema] = {
    "name": {"type": "string"},
    "aliases": {"type": "array", "items": {"type": "string"}},
    "source": {"type": "string"},
    "sources": {"type": "object"},
}
_SECTION_NEEDS: Mapping[str, Schema] = {
    "data": {"oneOf": [{"required": [source]} for source in ("trace", "distribution", "lengths")]}
}


def scenario_schema() -> Schema:
    """JSON Schema (draft 2020-12) of a scenario file."""
    properties: Schema = {name: _property(name) for name in KEYS if "." not in name}
    required = [name for name in properties if KEYS[name].required]
    for section in SECTIONS:
        of_section = {name.partition(".")[2]: name for name in KEYS if name.startswith(f"{section}.")}
        needed = [leaf for leaf, name in of_section.items() if KEYS[name].required]
        properties[section] = {
            "type": "object" if needed else ["object", "null"],
            "properties": {leaf: _property(name) for leaf, name in of_section.items()},
            "additionalProperties": False,
            **({"required": needed} if needed else {}),
            **_SECTION_NEEDS.get(section, {}),
        }
        required += [section] if needed else []
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scenario of hdpsim",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": {name: _entry(name, kind) for name, kind in _ENTRIES.items()},
    }


def _property(name: str) -> Schema:
    key = KEYS[name]
    described: Schema = {"description": key.described + ("" if key.basic else " (For experts.)")}
    if key.usual not in (None, ""):
        described["default"] = key.usual
    special = _special(name)
    return {**described, **(key.parse.schema if special is None else special)}


def _special(key: str) -> Schema | None:
    """The schema of a key whose names the catalog knows."""
    from hdpsim.traces import shipped_distributions, shipped_traces

    if key in ("model", "cluster"):
        return _named(key)
    if key == "software":
        names = "|".join(map(_any_case, software_names()))
        return {"type": "string", "pattern": rf"^\s*({names})( +v?\d+(\.\d+)*)?( +with .+)?\s*$"}
    if key == "data.trace":
        file = {
            "type": "object",
            "properties": {"file": text.schema, "column": {"type": ["string", "null"]}},
            "required": ["file"],
            "additionalProperties": False,
        }
        return _one_of_names((*shipped_traces(), *shipped_distributions()), file)
    names_of: Mapping[str, Callable[[], Iterable[str]]] = {
        "data.distribution": shipped_distributions,
        "calibration": lambda: ("default", *calibration_names()),
        "campaign.failures": failure_profile_names,
    }
    return _one_of_names(names_of[key]()) if key in names_of else None


def _any_case(name: str) -> str:
    return "".join(f"[{one.upper()}{one}]" if one.isalpha() else one for one in name)


def _one_of_names(names: Iterable[str], *others: Schema) -> Schema:
    """A known name, another text (a path, another spelling), or something else."""
    return {"anyOf": [{"enum": sorted(set(names))}, dict(text.schema), *others]}


def _named(name: str) -> Schema:
    return _one_of_names(catalog.names(name), {"$ref": f"#/$defs/{name}"})  # type: ignore[arg-type]


def _entry(name: str, kind: type) -> Schema:
    """A mapping that describes a model, a cluster or a part of one; with `like` it is only what differs."""
    properties, needed = dict(_SOURCES) if name in _NAMED else {}, []
    words = field_words(kind)
    for key, field, schema in _fields_of(kind):
        properties[key] = {**({"description": words[field]} if field in words else {}), **schema}
        item = next(item for item in fields(kind) if item.name == field)
        if item.default is MISSING and field not in _DERIVED and key != "nodes":
            needed.append(key)
    if kind is Cluster:
        properties["gpus"] = range_schema(RANGES["gpus"])
    described: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if name in _NAMED:
        properties["like"] = _one_of_names(catalog.names(name))  # type: ignore[arg-type]
    if name in ("model", "cluster"):  # parts of a cluster like another may say only what differs
        described["anyOf"] = [{"required": ["like"]}, {"required": needed}]
    return described


def _fields_of(kind: type) -> Iterator[tuple[str, str, Schema]]:
    """FieldKey, field and schema of everything that an entry of the catalog may have."""
    hints = get_type_hints(kind, include_extras=True)
    parts = {part: name for name, part in _ENTRIES.items()}
    for item in fields(kind):
        if item.name in ("name", "source", "price_source"):
            continue
        way = entries.KEYS.get(kind, {}).get(item.name, FieldKey())
        key, hint = way.name or item.name, hints[item.name]
        part = parts.get(without_none(hint))
        if part is not None:
            schema = _named(part) if part in _NAMED else {"$ref": f"#/$defs/{part}"}
        else:
            schema = dict(field_parser(hint, way, key).schema)
            if NoneType in get_args(hint) and way.kind not in QUANTITIES:
                schema = {"anyOf": [{"const": 0}, schema]}
        yield key, item.name, schema
