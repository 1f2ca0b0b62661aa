"""Every file format and option of hdpsim, with a small sound example of each that is spoiled."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from fuzz_mutate import TEXTS, other_value, spoiled_bytes, spoiled_document, spoiled_text
from recorded_jobs import Shape, record

from hdpsim.cost_models.calibration.calibration import calibration_names
from hdpsim.cost_models.hardware import catalog
from hdpsim.experiments.cli.app import VERBS
from hdpsim.experiments.records.table import shipped_records
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.scenario.schema import KEYS

Arguments = list[str]
ROOT = Path(catalog.__file__).parents[1] / "data"

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "gpus": 8},
    "layout": {"tp": 2, "recompute": "full", "rank_capacity": "16K tokens"},
    "data": {"trace": "debian-code", "batch": "256K tokens", "context": "16K tokens", "seed": 0},
    "execution": {"batches": 1},
}


def _write(folder: Path, name: str, document: Any, dice: random.Random) -> str:
    """*document* as YAML (JSON is some), sometimes with its bytes spoiled, too."""
    path = folder / name
    try:
        text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
    except (yaml.YAMLError, ValueError):
        text = json.dumps(document, default=str)
    content = text.encode("utf-8", "surrogatepass")
    path.write_bytes(spoiled_bytes(dice, content) if dice.random() < 0.1 else content)
    return str(path)


def scenario(dice: random.Random, folder: Path) -> Arguments:
    document = json.loads(json.dumps(SMALL))
    roll = dice.random()
    if roll < 0.5:  # any key of the schema
        for _ in range(dice.choice((1, 1, 2, 3))):
            key = dice.choice(sorted(KEYS))
            *above, leaf = key.split(".")
            here = document.setdefault(above[0], {}) if above else document
            if isinstance(here, dict):
                here[leaf] = _value(dice, key)
    elif roll < 0.6:
        document = spoiled_document(dice, load_scenario(dice.choice(("quickstart-8gpu",))).document)
    else:
        document = spoiled_document(dice, document)
    path = _write(folder, "scenario.yaml", document, dice)
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
def _whole(name: str) -> dict[str, Any]:
    return load_scenario(name).document


def _full(key: str) -> Any:
    section, _, leaf = key.rpartition(".")
    document = _whole("quickstart-8gpu")
    if section and section not in document:
        document = _whole("campaign-llama3-16k")
    inner = document.get(section) if section else document
    return inner.get(leaf, "auto") if isinstance(inner, dict) else 8


_AS_MUCH_WORK_AS_ASKED = ("execution.batches", "campaign.seeds")
"""Ten times as many take ten times as long: the work is meant."""


def _value(dice: random.Random, key: str) -> Any:
    """A value for a key: often one of its words, else something else than it has."""
    words = _words(key)
    if key in _AS_MUCH_WORK_AS_ASKED:
        return dice.choice((0, -1, 1, 2, 3, True, None, "x", "3", 1.5, 100_001, 10**19))
    return dice.choice(words) if words and dice.random() < 0.7 else other_value(dice, _full(key))


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
        changes += ["--set", f"{key}={_typed(_value(dice, key))}"]
    path = _write(folder, "scenario.yaml", SMALL, random.Random(3))
    return ["simulate", path, "--batches", "1", *changes, "--json"]


def _typed(value: Any) -> str:
    """*value* as somebody types it: no zero bytes, which no command line holds."""
    text = value if isinstance(value, str) else yaml.safe_dump(value).removesuffix("\n...\n").strip()
    return text.replace("\0", "")[:100_000]


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
    "port_split", "flows_per_connection", "routing", "congestion_control",
)) + ("cluster.nodes", "cluster.gpus", "cluster.node.gpus", "cluster.node.nics")  # fmt: skip


def catalogs(dice: random.Random, folder: Path) -> Arguments:
    """Files of GPUs, nodes, clusters and models, in a scenario or drawn."""
    document = json.loads(json.dumps(SMALL))
    kind = dice.choice(("gpus", "nodes", "clusters", "models"))
    source = dice.choice(sorted((ROOT / kind).glob("*.yaml")))
    entry = spoiled_document(dice, yaml.safe_load(source.read_text()))
    if kind == "models":
        document["model"] = entry if dice.random() < 0.5 else _write(folder, "model.yaml", entry, dice)
    elif kind == "clusters":
        path = _write(folder, "cluster.yaml", entry, dice)
        if dice.random() < 0.5:
            return ["fabric", path, "--json"]
        document["cluster"] = path
        document["gpus"] = 64
    else:
        node = entry if kind == "nodes" else {"like": "hgx-h100-80gb", "gpu": entry}
        document["cluster"] = {"node": node, "gpus": 8}
    return [
        "simulate",
        _write(folder, "scenario.yaml", document, random.Random(3)),
        "--batches",
        "1",
        "--json",
    ]


def trace(dice: random.Random, folder: Path) -> Arguments:
    lengths: list[Any] = [dice.randint(1, 100_000) for _ in range(dice.choice((1, 5, 200)))]
    for _ in range(dice.choice((0, 1, 1, 3))):
        lengths[dice.randrange(len(lengths))] = other_value(dice, lengths[0])
    form = dice.choice(
        ("csv", "csv.gz", "tsv", "txt", "txt.gz", "jsonl", "jsonl.gz", "npy", "npz", "parquet")
    )
    column = dice.choice(("tokens", "length", *TEXTS[:30]))
    path = folder / f"trace.{form}"
    content = _trace_bytes(dice, form.removesuffix(".gz"), lengths, column)
    if dice.random() < 0.3:
        content = spoiled_bytes(dice, content)
    path.write_bytes(gzip.compress(content, mtime=0) if form.endswith(".gz") else content)
    if form.endswith(".gz") and dice.random() < 0.2:
        path.write_bytes(spoiled_bytes(dice, path.read_bytes()))
    verb = dice.choice(("stats", "check"))
    named = ["--column", column.replace("\0", "")] if dice.random() < 0.3 else []
    if dice.random() < 0.15:
        document = {**SMALL, "data": {**SMALL["data"], "trace": str(path)}}
        small = _write(folder, "scenario.yaml", document, random.Random(3))
        return ["replay", small, "--steps", "2", "--workers", "1", "--json"]
    return ["trace", verb, str(path), *named, "--json"]


def _trace_bytes(dice: random.Random, form: str, lengths: list[Any], column: str) -> bytes:
    buffer = io.BytesIO()
    if form in ("csv", "tsv"):
        text = io.StringIO()
        writer = csv.writer(text, delimiter="," if form == "csv" else "\t")
        writer.writerow([column, "other"])
        writer.writerows([[value, 1] for value in lengths])
        return text.getvalue().encode("utf-8", "surrogatepass")
    if form == "txt":
        return "\n".join(map(str, lengths)).encode("utf-8", "surrogatepass")
    if form == "jsonl":
        rows = [value if dice.random() < 0.02 else {column: value, "o": "\ud800"} for value in lengths]
        return "\n".join(json.dumps(row, default=str) for row in rows).encode("utf-8", "surrogatepass")
    array = _array(dice, lengths)
    try:
        if form == "npy":
            np.save(buffer, array)
        elif form == "npz":
            np.savez_compressed(buffer, **{dice.choice(("lengths", "tokens", "x")): array, "y": np.zeros(3)})
        else:
            pd.DataFrame({column: list(array.ravel()), "other": 1.0}).to_parquet(buffer)
    except Exception:  # what cannot be written is no input
        return b"PAR1"
    return buffer.getvalue()


def _array(dice: random.Random, lengths: list[Any]) -> Any:
    try:
        array = np.array(lengths)
    except (ValueError, OverflowError):
        array = np.array(lengths, dtype=object)
    if dice.random() < 0.4:
        kind = dice.choice(
            ("i1", "u8", "f2", "f8", "O", "U5", "M8[s]", "m8[s]", "c16", "?", ">i4", "g", "V8")
        )
        try:
            with np.errstate(all="ignore"):
                array = array.astype(kind)
        except (ValueError, TypeError, OverflowError):
            array = (
                np.arange(1, 5).astype("i8").astype(kind, casting="unsafe")
                if kind != "V8"
                else np.zeros(2, "V8")
            )
    if dice.random() < 0.1:
        array = array.reshape(dice.choice(((-1,), (-1, 1), ())) if array.size == 1 else (-1, 1))
    return array


def distribution(dice: random.Random, folder: Path) -> Arguments:
    document = {
        "name": "mine",
        "source": "me",
        "edges_tokens": [128, 1024, 4096, 65536],
        "token_percent": [20, 30, 50],
    }
    path = _write(folder, "distribution.yaml", spoiled_document(dice, document), dice)
    if dice.random() < 0.3:
        data = {key: value for key, value in SMALL["data"].items() if key != "trace"}
        text = {**SMALL, "data": {**data, "distribution": path}}
        return [
            "simulate",
            _write(folder, "scenario.yaml", text, random.Random(3)),
            "--batches",
            "1",
            "--json",
        ]
    much = dice.choice(
        (["--count", "100"], ["--tokens", "64K"], ["--tokens", _typed(other_value(dice, "64K"))])
    )
    return ["trace", "synth", "--distribution", path, *much, "-o", str(folder / "out.csv"), "--json"]


def _table(dice: random.Random, rows: list[dict[str, Any]], columns: list[str], path: Path) -> str:
    """Rows as CSV with some cells spoiled, sometimes a column lost or packed."""
    rows = [dict(row) for row in rows]
    for _ in range(dice.choice((1, 1, 2, 4))):
        row = dice.choice(rows)
        column = dice.choice([name for name in columns if row.get(name) not in (None, "")] or columns)
        old: Any = row.get(column, "")
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            old = float(old)
        row[column] = other_value(dice, old)
    if dice.random() < 0.1:
        columns = [name for name in columns if name != dice.choice(columns)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode("utf-8", "surrogatepass")
    content = spoiled_bytes(dice, content) if dice.random() < 0.1 else content
    path.write_bytes(gzip.compress(content, mtime=0) if dice.random() < 0.1 else content)
    return str(path)


@cache
def _runs() -> tuple[list[dict[str, Any]], list[str]]:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    return rows, list(reader.fieldnames or [])


def records(dice: random.Random, folder: Path) -> Arguments:
    rows, columns = _runs()
    path = _table(dice, dice.sample(rows, dice.choice((1, 2))), columns, folder / "runs.csv")
    memory = ["--memory"] if dice.random() < 0.2 else []
    return ["validate", path, *memory, "--json"]


KERNELS: list[dict[str, Any]] = [
    {"kind": "gemm", "gpu": "H100-SXM-80G", "dtype": "fp8", "m": 16384, "n": 16384, "k": 16384, "tflops": 1377.3},
    {"kind": "grouped_gemm", "gpu": "h100", "dtype": "bf16", "m": 1024, "n": 4096, "k": 512, "groups": 8,
     "time_us": 90},
    {"kind": "flash_fwd", "gpu": "h100", "batch": 1, "seq_len": 16384, "heads": 16, "head_dim": 128, "causal": 1,
     "tflops": 616},
    {"kind": "flash_bwd", "gpu": "a100-80gb", "batch": 2, "seq_len": 4096, "heads": 16, "kv_heads": 4,
     "head_dim": "192/128", "causal": "true", "time_us": 6000},
    {"kind": "allreduce", "gpu": "h100", "size_bytes": 2**30, "n_ranks": 8, "ranks_per_node": 8, "n_nodes": 1,
     "busbw_gbs": 466},
    {"kind": "alltoall", "gpu": "A100-80G-SXM", "size_bytes": 2**24, "n_ranks": 16, "ranks_per_node": 8, "n_nodes": 2,
     "time_us": 2600, "notes": "EFA 400Gb/s per node"},
    {"kind": "allgather", "gpu": "h100", "size_bytes": 2**20, "n_ranks": 4, "ranks_per_node": 4, "n_nodes": 1,
     "time_us": 30},
    {"kind": "hbm_stream", "gpu": "h100", "value": 2970, "unit": "GB/s"},
    {"kind": "pcie_copy", "gpu": "h100", "value": 50, "unit": "GB/s", "direction": "h2d"},
    {"kind": "p2p", "gpu": "h100", "value": 300, "unit": "GB/s", "size_bytes": 2**20, "n_ranks": 2,
     "ranks_per_node": 2, "n_nodes": 1},
]  # fmt: skip
KERNEL_COLUMNS = [
    "id", "kind", "gpu", "dtype", "size_bytes", "m", "n", "k", "groups", "batch", "seq_len", "heads", "kv_heads",
    "head_dim", "causal", "direction", "n_ranks", "ranks_per_node", "n_nodes", "value", "unit", "time_us", "busbw_gbs",
    "tflops", "source", "notes",
]  # fmt: skip


def kernels(dice: random.Random, folder: Path) -> Arguments:
    path = _table(dice, KERNELS, KERNEL_COLUMNS, folder / "kernels.csv")
    if dice.random() < 0.1:
        output = str(folder / "fitted.yaml")
        return [
            "calibrate",
            "--gpu",
            "h100",
            "--kernels",
            path,
            "--no-runs",
            "-o",
            output,
            "--workers",
            "1",
            "--json",
        ]
    return ["validate", "--kernels", path, "--json"]


def hugging_face(dice: random.Random, folder: Path) -> Arguments:
    document = dice.choice(CONFIGS)
    entry = spoiled_document(dice, document)
    if dice.random() < 0.5:  # a key that somebody writes
        key = dice.choice(CONFIG_KEYS)
        if isinstance(entry, dict):
            entry = {**entry, key: other_value(dice, 1)}
    path = folder / "config.json"
    content = json.dumps(entry, default=str).encode("utf-8", "surrogatepass")
    path.write_bytes(spoiled_bytes(dice, content) if dice.random() < 0.1 else content)
    small = {**SMALL, "model": str(path)}
    return ["simulate", _write(folder, "scenario.yaml", small, random.Random(3)), "--batches", "1", "--json"]


_LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
    "num_hidden_layers": 8, "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": False,
    "max_position_embeddings": 4096, "attention_bias": False, "sliding_window": None, "head_dim": 128,
}  # fmt: skip
CONFIGS: tuple[dict[str, Any], ...] = (
    _LLAMA,
    {**_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 4096},
    {**_LLAMA, "model_type": "deepseek_v3", "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
     "moe_intermediate_size": 512, "first_k_dense_replace": 1, "kv_lora_rank": 256, "q_lora_rank": 512,
     "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "num_nextn_predict_layers": 1},
    {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
    {"text_config": {**_LLAMA, "layer_types": ["full_attention", "sliding_attention"] * 4, "sliding_window": 512}},
)  # fmt: skip
CONFIG_KEYS = (
    "mlp_only_layers", "moe_layer_freq", "decoder_sparse_step", "layer_types", "multi_query", "text_config", "head_dim",
    "num_key_value_heads", "use_sliding_window", "attention_chunk_size", "parallel_attn", "name", "model_type",
    "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size", "vocab_size", "kv_lora_rank",
)  # fmt: skip


@cache
def _constants(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "calibration" / f"{name}.yaml").read_text())
    return document


def calibrations(dice: random.Random, folder: Path) -> Arguments:
    document = json.loads(json.dumps(_constants(dice.choice(calibration_names()))))
    if dice.random() < 0.85:
        section = dice.choice(("constants", "constants", "constants", "network"))
        for _ in range(dice.choice((1, 1, 2, 5))):
            entries = document.get(section) or document["constants"]
            key = dice.choice(sorted(entries))
            entries[key]["value"] = other_value(dice, entries[key]["value"])
    else:
        document = spoiled_document(dice, document)
    path = _write(folder, "own.yaml", document, dice)
    if dice.random() < 0.2:
        table = _table(random.Random(1), KERNELS, KERNEL_COLUMNS, folder / "kernels.csv")
        return ["validate", "--kernels", table, "--calibration", path, "--json"]
    small = {**SMALL, "calibration": path}
    return ["simulate", _write(folder, "scenario.yaml", small, random.Random(3)), "--batches", "1", "--json"]


@cache
def _recorded() -> tuple[Any, dict[str, Any]]:
    shape = Shape(ranks=2, stages=2, micro_batches=2, steps=2)
    return record(shape), dict(shape.meta())


def operations(dice: random.Random, folder: Path) -> Arguments:
    table, meta = _recorded()
    form = dice.choice(("csv", "csv", "csv.gz", "parquet"))
    path = folder / f"trace.{form}"
    table = table.copy()
    if dice.random() < 0.75:
        for _ in range(dice.choice((1, 1, 2, 30))):
            column = dice.choice(list(table.columns))
            row = dice.randrange(len(table))
            new = other_value(dice, table[column].iloc[row])
            table[column] = table[column].astype(object)
            table.at[row, column] = new if not isinstance(new, list | dict) else str(new)
    else:
        meta = spoiled_document(dice, meta)
    if dice.random() < 0.15:
        table = table.drop(columns=dice.choice(list(table.columns)))
    try:
        table.to_parquet(path) if form == "parquet" else table.to_csv(path, index=False)
    except Exception:  # what cannot be written is no input
        path.write_bytes(b"PAR1")
    if dice.random() < 0.1:
        path.write_bytes(spoiled_bytes(dice, path.read_bytes()))
    return ["replay-ops", str(path), "--meta", _write(folder, "meta.yaml", meta, dice), "--json"]


def sweeps(dice: random.Random, folder: Path) -> Arguments:
    document: dict[str, Any] = {
        "name": "mine",
        "base": SMALL,
        "set": {"layout.recompute": "full"},
        "grid": {"strategy.name": ["static", "hdp-balance"]},
        "zip": {"gpus": [8, 16], "data.batch": ["256K tokens", "512K tokens"]},
        "list": [{"layout.tp": 2}, {"layout.tp": 4}],
        "plot": {"x": "gpus", "colour": "strategy.name"},
    }
    if dice.random() < 0.5:
        key = dice.choice(sorted(KEYS))
        document["grid"] = {key: [_value(dice, key), _value(dice, key)]}
        del document["zip"], document["list"], document["plot"]
    else:
        document = spoiled_document(dice, document)
    path = _write(folder, "sweep.yaml", document, dice)
    more = ["--dry-run"] if dice.random() < 0.3 else []
    return ["sweep", path, "--workers", "1", "--store", str(folder / "store"), *more, "--json"]


def cells(dice: random.Random, folder: Path) -> Arguments:
    if dice.random() < 0.5:
        row: dict[str, Any] = {
            "model": "llama-7b", "dataset": "github", "gpus": 64, "context_tokens": 262144, "strategy": "static",
            "measured_tokens_per_s": 1e6,
        }  # fmt: skip
        path = _table(dice, [row], list(row), folder / "cells.csv")
        return ["reproduce", "bytescale", "--cells", path, "--batches", "1", "--json"]
    row = {
        "system": "megascale", "model": "megascale-175b", "gpus": 256, "global_batch": 768, "metric": "step_s",
        "measured": 30.0,
    }  # fmt: skip
    path = _table(dice, [row], list(row), folder / "cells.csv")
    return ["reproduce", "megascale", "--cells", path, "--json"]


def failures(dice: random.Random, folder: Path) -> Arguments:
    """Failure profiles, and the keys of a campaign."""
    document = json.loads(json.dumps(SMALL))
    document["campaign"] = {"duration": "2d", "seeds": 2, "step": "5s"}
    if dice.random() < 0.5:
        source = dice.choice(sorted((ROOT / "failures").glob("*.yaml")))
        profile = spoiled_document(dice, yaml.safe_load(source.read_text()))
        document["campaign"]["failures"] = _write(folder, "failures.yaml", profile, dice)
    else:
        for _ in range(dice.choice((1, 1, 2))):
            key = dice.choice([key for key in sorted(KEYS) if key.startswith("campaign.")])
            document["campaign"][key.removeprefix("campaign.")] = _value(dice, key)
    path = _write(folder, "scenario.yaml", document, random.Random(3))
    return ["campaign", path, "--workers", "1", "--json"]


def options(dice: random.Random, folder: Path) -> Arguments:
    """Arguments as somebody types them."""
    small = _write(folder, "scenario.yaml", SMALL, random.Random(3))
    special = _special_file(dice, folder)
    value = _typed(other_value(dice, dice.choice((1, "8", "30d", 0.01))))
    trace_file = folder / "t.csv"
    trace_file.write_text("tokens\n5000\n70000\n")
    chosen = dice.choice(
        (
            ["simulate", small, "--batches", str(_value(dice, "execution.batches"))],
            ["simulate", small, "--set", value],
            ["simulate", special],
            ["simulate", value],
            ["compare", small, "--batches", "1", "--strategies", value],
            ["scale", small, "--batches", "1", "--gpus", value],
            ["whatif", small, "--batches", "1", "--set", value],
            ["explain", small, "--term", value],
            ["sweep", special],
            ["sweep", value, "--dry-run"],
            ["sweep", "weak-scaling", "--dry-run", "--store", str(folder / "store"), "--engine", value],
            ["replay", small, "--trace", str(trace_file), "--workers", "1", "--steps", value],
            ["replay", small, "--trace", special, "--workers", "1", "--steps", "1"],
            ["replay", small, "--trace", str(trace_file), "--workers", "1", "--until-ci", value],
            ["replay", small, "--trace", str(trace_file), "--workers", "1", "--column", value],
            ["trace", "stats", special],
            ["trace", "check", value],
            ["trace", "stats", str(trace_file), "--column", value],
            ["trace", "synth", "--distribution", "bytescale-github", "-o", str(folder / "o.csv"), "--seed", value,
             "--count", "10"],
            ["trace", "synth", "--distribution", "bytescale-github", "-o", str(folder / "o.csv"), "--tokens", value],
            ["trace", "synth", "--distribution", special, "-o", str(folder / "o.csv"), "--count", "10"],
            ["replay-ops", special, "--meta", special],
            ["campaign", small, "--workers", "1", "--seeds", "1", "--duration", value],
            ["reproduce", "bytescale", "--cells", special, "--batches", "1"],
            ["reproduce", "megascale", "--cells", special],
            ["validate", special],
            ["validate", "--kernels", special],
            ["validate", "--calibration", special],
            ["calibrate", special, "--gpu", "h100", "-o", str(folder / "c.yaml")],
            ["calibrate", "--gpu", value, "--no-runs", "-o", str(folder / "c.yaml")],
            ["calibrate", "--gpu", "h100", "--start", special, "--no-runs", "-o", str(folder / "c.yaml")],
            ["scenarios", value],
            ["catalog", value],
            ["fabric", value],
            ["fabric", special],
            ["fabric", "superpod-h100", "--gpus", value],
            ["fabric", "superpod-h100", "--gpus", str(dice.choice((8, 64, 4096, 65_536, 10_000_000)))],
            [dice.choice(sorted(VERBS)), value],
            [value],
        )
    )  # fmt: skip
    asks = chosen[0] in VERBS and "--json" not in chosen and not value.startswith("-")
    return [*chosen, "--json"] if asks else chosen


def _special_file(dice: random.Random, folder: Path) -> str:
    """What is called like a file and is none, or unfolds to much more than it is."""
    name = str(
        folder
        / dice.choice(("x.yaml", "x.csv", "x.parquet", "x.csv.gz", "x.json", "x.npz", "x.npy", "x.txt"))
    )
    kind = dice.choice(("fifo", "folder", "device", "bomb", "empty", "deep", "wide", "link"))
    if kind == "fifo":
        os.mkfifo(name)
    elif kind == "folder":
        os.mkdir(name)
    elif kind == "device":
        os.symlink("/dev/zero", name)
    elif kind == "link":
        os.symlink(name, name)
    else:
        content = {"bomb": _bomb(), "empty": b"", "deep": b"[" * 100_000, "wide": b"9" * 3_000_000}[kind]
        Path(name).write_bytes(content)
    return name


@cache
def _bomb() -> bytes:
    """256 MiB of zeros in a few hundred kilobytes."""
    return gzip.compress(b"\0" * 2**28, compresslevel=1, mtime=0)


FORMATS: dict[str, Callable[[random.Random, Path], Arguments]] = {
    "scenario": scenario,
    "set": override,
    "catalog": catalogs,
    "trace": trace,
    "distribution": distribution,
    "records": records,
    "kernels": kernels,
    "config.json": hugging_face,
    "calibration": calibrations,
    "operations": operations,
    "sweep": sweeps,
    "cells": cells,
    "campaign": failures,
    "options": options,
}
SLOW = {"cells"}
"""Formats whose commands take a second and more."""
