"""A setup as the scenario document that is read back as the same setup, and a document as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdpsim.cost_models.hardware.documents import cluster_document, model_document
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.simulator.settings import changed_settings
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
    sections: dict[str, Document] = {"layout": {}, "data": {}, "strategy": {}, "memory": {}, "execution": {}}
    sections["data"] = {**data, "context": f"{setup.context_tokens} tokens"}
    changed = changed_settings(setup)
    for dotted, key in KEYS.items():
        section, _, leaf = dotted.partition(".")
        if dotted in changed:
            sections[section][leaf] = key.dump(changed[dotted])
    document: Document = {
        "name": name,
        "description": description,
        "model": model_document(setup.model),
        "cluster": cluster_document(setup.cluster),
        **{section: keys for section, keys in sections.items() if keys},
    }
    return document if calibration == "default" else {**document, "calibration": calibration}


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
