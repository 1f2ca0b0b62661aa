"""Scenarios, single settings of theirs, sweeps and campaigns."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from fuzz_mutate import other_value, spoiled_document, spoiled_text
from fuzz_written import ROOT, SMALL, Arguments, typed, write_document

from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.scenario.schema import KEYS


def scenario(dice: random.Random, folder: Path) -> Arguments:
    document = json.loads(json.dumps(SMALL))
    roll = dice.random()
    if roll < 0.5:  # any key of the schema
        for _ in range(dice.choice((1, 1, 2, 3))):
            key = dice.choice(sorted(KEYS))
            *above, leaf = key.split(".")
            here = document.setdefault(above[0], {}) if above else document
            if isinstance(here, dict):
                here[leaf] = value_of_key(dice, key)
    elif roll < 0.6:
        document = spoiled_document(dice, load_scenario(dice.choice(("quickstart-8gpu",))).document)
    else:
        document = spoiled_document(dice, document)
    path = write_document(folder, "scenario.yaml", document, dice)
    verb = dice.choice(
        ("simulate", "simulate", "simulate", "compare", "explain", "scenarios", "whatif", "scale")
    )
    more = {
        "whatif": ["--set", "layout.tp=4", "--batches", "1"],
        "scale": ["--gpus", "8,16", "--batches", "1"],
        "explain": [],
        "scenarios": [],
    }
    return [verb, path, *more.get(verb, ["--batches", "1"]), "--json"]


@cache
def _shipped(name: str) -> dict[str, Any]:
    return load_scenario(name).document


def _shipped_value(key: str) -> Any:
    section, _, leaf = key.rpartition(".")
    document = _shipped("quickstart-8gpu")
    if section and section not in document:
        document = _shipped("campaign-llama3-16k")
    inner = document.get(section) if section else document
    return inner.get(leaf, "auto") if isinstance(inner, dict) else 8


_AS_MUCH_WORK_AS_ASKED = ("execution.batches", "campaign.seeds")
"""Ten times as many take ten times as long: the work is meant."""


def value_of_key(dice: random.Random, key: str) -> Any:
    """A value for a key: often one of its words, else something else than it has."""
    words = _words(key)
    if key in _AS_MUCH_WORK_AS_ASKED:
        return dice.choice((0, -1, 1, 2, 3, True, None, "x", "3", 1.5, 100_001, 10**19))
    return dice.choice(words) if words and dice.random() < 0.7 else other_value(dice, _shipped_value(key))


@cache
def _words(key: str) -> tuple[str, ...]:
    """The words that a key takes, as its own message lists them."""
    try:
        KEYS[key].parse("?")
    except (KeyError, ValueError) as error:
        words = str(error).partition("is not one of ")[2].partition(";")[0]
        return tuple(words.split(", ")) if words else ()
    return ()


def override(dice: random.Random, folder: Path) -> Arguments:
    """--set, of keys that exist, of parts of what is named, of keys that do not."""
    keys = [*sorted(KEYS), *_CATALOG_KEYS]
    changes: Arguments = []
    for _ in range(dice.choice((1, 1, 2))):
        key = dice.choice(keys) if dice.random() < 0.95 else spoiled_text(dice, dice.choice(keys))
        changes += ["--set", f"{key}={typed(value_of_key(dice, key))}"]
    path = write_document(folder, "scenario.yaml", SMALL, random.Random(3))
    return ["simulate", path, "--batches", "1", *changes, "--json"]


_CATALOG_KEYS = tuple(
    f"{prefix}.{key}"
    for prefix, kind, name in (
        ("model", "models", "llama-3-8b"),
        ("cluster.node", "nodes", "hgx-h100-80gb"),
        ("cluster.node.gpu", "gpus", "h100-80gb"),
    )
    for key in yaml.safe_load((ROOT / kind / f"{name}.yaml").read_text())
    if key not in ("aliases", "sources")
) + tuple(f"cluster.fabric.{key}" for key in (
    "nodes_per_block", "blocks_per_pod", "leaf_oversubscription", "spine_oversubscription", "hop_latency", "uplinks",
    "port_split", "flows_per_connection", "routing", "congestion_control", "ecmp_seed",
)) + ("cluster.nodes", "cluster.gpus", "cluster.node.gpus", "cluster.node.nics")  # fmt: skip


def sweeps(dice: random.Random, folder: Path) -> Arguments:
    document: dict[str, Any] = {
        "name": "mine",
        "base": SMALL,
        "set": {"layout.recompute": "full"},
        "grid": {"strategy.name": ["static", "hdp-opt"]},
        "zip": {"gpus": [8, 16], "data.batch": ["256K tokens", "512K tokens"]},
        "list": [{"layout.tp": 2}, {"layout.tp": 4}],
        "plot": {"x": "gpus", "colour": "strategy.name"},
    }
    if dice.random() < 0.5:
        key = dice.choice(sorted(KEYS))
        document["grid"] = {key: [value_of_key(dice, key), value_of_key(dice, key)]}
        del document["zip"], document["list"], document["plot"]
    else:
        document = spoiled_document(dice, document)
    path = write_document(folder, "sweep.yaml", document, dice)
    more = ["--dry-run"] if dice.random() < 0.3 else []
    return ["sweep", path, "--workers", "1", "--store", str(folder / "store"), *more, "--json"]


def failures(dice: random.Random, folder: Path) -> Arguments:
    """Failure profiles, and the keys of a campaign."""
    document = json.loads(json.dumps(SMALL))
    document["campaign"] = {"duration": "2d", "seeds": 2, "step": "5s"}
    if dice.random() < 0.5:
        source = dice.choice(sorted((ROOT / "failures").glob("*.yaml")))
        profile = spoiled_document(dice, yaml.safe_load(source.read_text()))
        document["campaign"]["failures"] = write_document(folder, "failures.yaml", profile, dice)
    else:
        for _ in range(dice.choice((1, 1, 2))):
            key = dice.choice([key for key in sorted(KEYS) if key.startswith("campaign.")])
            document["campaign"][key.removeprefix("campaign.")] = value_of_key(dice, key)
    path = write_document(folder, "scenario.yaml", document, random.Random(3))
    return ["campaign", path, "--workers", "1", "--json"]
