"""Tables of rows: lengths of sequences, published runs, kernels, cells of papers, recorded operations."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fuzz_mutate import TEXTS, other_value, spoiled_bytes, spoiled_document
from fuzz_written import SMALL, Arguments, typed, write_document, write_table
from recorded_jobs import Shape, record

from hdpsim.experiments.records.columns import shipped_records


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
        small = write_document(folder, "scenario.yaml", document, random.Random(3))
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
    path = write_document(folder, "distribution.yaml", spoiled_document(dice, document), dice)
    if dice.random() < 0.3:
        data = {key: value for key, value in SMALL["data"].items() if key != "trace"}
        text = {**SMALL, "data": {**data, "distribution": path}}
        return [
            "simulate",
            write_document(folder, "scenario.yaml", text, random.Random(3)),
            "--batches",
            "1",
            "--json",
        ]
    much = dice.choice(
        (["--count", "100"], ["--tokens", "64K"], ["--tokens", typed(other_value(dice, "64K"))])
    )
    return ["trace", "synth", "--distribution", path, *much, "-o", str(folder / "out.csv"), "--json"]


@cache
def _runs() -> tuple[list[dict[str, Any]], list[str]]:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    return rows, list(reader.fieldnames or [])


def records(dice: random.Random, folder: Path) -> Arguments:
    rows, columns = _runs()
    path = write_table(dice, dice.sample(rows, dice.choice((1, 2))), columns, folder / "runs.csv")
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
    path = write_table(dice, KERNELS, KERNEL_COLUMNS, folder / "kernels.csv")
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
    return ["replay-ops", str(path), "--meta", write_document(folder, "meta.yaml", meta, dice), "--json"]


def cells(dice: random.Random, folder: Path) -> Arguments:
    if dice.random() < 0.5:
        row: dict[str, Any] = {
            "model": "llama-7b", "dataset": "github", "gpus": 64, "context_tokens": 262144, "strategy": "static",
            "measured_tokens_per_s": 1e6,
        }  # fmt: skip
        path = write_table(dice, [row], list(row), folder / "cells.csv")
        return ["reproduce", "bytescale", "--cells", path, "--batches", "1", "--json"]
    row = {
        "system": "megascale", "model": "megascale-175b", "gpus": 256, "global_batch": 768, "metric": "step_s",
        "measured": 30.0,
    }  # fmt: skip
    path = write_table(dice, [row], list(row), folder / "cells.csv")
    return ["reproduce", "megascale", "--cells", path, "--json"]
