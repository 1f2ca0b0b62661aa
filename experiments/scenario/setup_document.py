"""A setup as the scenario document that is read back as the same setup, and a document as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdpsim.cost_models.hardware.documents import cluster_document, model_document
from hdpsim.experiments.scenario.schema import FIELDS, KEYS
from hdpsim.simulator.setup import Setup

Document = dict[str, Any]


def setup_document(
    setup: Setup, data: Mapping[str, object], *, name: str, description: str, calibration: str = "default"
) -> Document:
    """The scenario of *setup*: only what is not the default.

    Args:
        setup: what is simulated.
        data: keys of the section `data` besides those of the setup: where the lengths come from, the batch.
        name: of the scenario.
        description: of the scenario.
        calibration: file of the setup's calibration, where it is not the GPU's own.
    """
    memory = {item: getattr(setup.memory.overheads, item) for item in setup.memory.overheads.__slots__}
    pipeline = {
        "loader": setup.data_pipeline.loader,
        "asynchronous_loading": setup.data_pipeline.asynchronous,
        "prefetch_steps": setup.data_pipeline.prefetch_steps,
    }
    sections = {
        "layout": _changed("layout", {item: getattr(setup.layout, item) for item in setup.layout.__slots__}),
        "data": {**data, "context": f"{setup.context_tokens} tokens", **_changed("data", pipeline)},
        "strategy": _changed(
            "strategy", {item: getattr(setup.strategy, item) for item in setup.strategy.__slots__}
        ),
        "memory": _changed("memory", {**memory, "must_fit": setup.memory.must_fit}),
        "execution": _changed(
            "execution", {item: getattr(setup.execution, item) for item in setup.execution.__slots__}
        ),
    }
    document: Document = {
        "name": name,
        "description": description,
        "model": model_document(setup.model),
        "cluster": cluster_document(setup.cluster),
        **{section: keys for section, keys in sections.items() if keys},
    }
    return document if calibration == "default" else {**document, "calibration": calibration}


def _changed(section: str, fields: Mapping[str, object]) -> Document:
    """Those of the section's keys whose field is not the default, as they are written."""
    found: Document = {}
    for dotted, key in KEYS.items():
        home, _, leaf = dotted.rpartition(".")
        field = FIELDS.get(leaf, leaf)
        if home == section and field in fields and fields[field] != key.default:
            found[leaf] = key.dump(fields[field])
    return found


def as_yaml(document: Mapping[str, object]) -> str:
    """The document as text, texts quoted only where it is needed."""
    import yaml

    # JSON is YAML, and its quoted texts cannot be taken for numbers: quote only where it is needed.
    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = (
            all(part.isalnum() for part in value.replace("-", " ").replace("_", " ").split())
            and value[:1].isalpha()
        )
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
