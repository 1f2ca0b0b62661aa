"""What sweeps and whole-dataset replays cost besides the simulation itself."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from figures import Figure, Prepared

from hdpsim.experiments.datasets.replay import replay_dataset
from hdpsim.experiments.parallel.engines import LocalEngine
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.sweeps.axes import load_sweep
from hdpsim.experiments.sweeps.cells import expand
from hdpsim.experiments.sweeps.run import run_sweep
from hdpsim.experiments.sweeps.store import ResultStore
from hdpsim.traces import global_batches, open_stream

WORKERS = 2
ENTRIES = 1_000
SEQUENCES = 10_000_000

# Sixty-four small cells: Llama-3 8B on 8 to 64 GPUs, a static mesh and balanced HDP and eight seeds.
_SWEEP = """
base: quickstart-8gpu
set: {execution.batches: 1, data.batch: 256K tokens, data.context: 32K}
grid:
  gpus: [8, 16, 32, 64]
  strategy.name: [static, hdp-opt]
  data.seed: [0, 1, 2, 3, 4, 5, 6, 7]
"""


@cache
def _holder() -> tempfile.TemporaryDirectory[str]:
    """Made when first asked for: workers import this file."""
    return tempfile.TemporaryDirectory(prefix="hdpsim-bench-")


def _folder() -> Path:
    return Path(_holder().name)


def _filled(name: str) -> ResultStore:
    """A new store with ENTRIES entries."""
    shutil.rmtree(_folder() / name, ignore_errors=True)
    store = ResultStore(_folder() / name)
    for key in _keys():
        store.put(key, _ENTRY)
    return store


def _sweep(*, again: bool) -> Prepared:
    path = _folder() / "sweep.yaml"
    path.write_text(_SWEEP)
    sweep = load_sweep(path)
    store = _folder() / "swept"

    def run() -> None:
        if not again:
            shutil.rmtree(store, ignore_errors=True)
        run_sweep(sweep, expand(sweep), ResultStore(store), LocalEngine(WORKERS))

    if again:
        run()
    return Prepared(
        run=run, items=sweep.cells, item="cells", detail=f"{sweep.cells} cells, {WORKERS} processes"
    )


def _keys() -> list[str]:
    return [f"{number:064x}"[::-1] for number in range(ENTRIES)]


_ENTRY = {"status": "ok", "reason": "", "result": {f"account_{i}": i / 3 for i in range(60)}}


def _store_write() -> Prepared:
    detail = f"{ENTRIES:,} entries of 1.5 kB"
    return Prepared(run=lambda: _filled("written"), items=ENTRIES, item="entries", detail=detail)


def _store_read() -> Prepared:
    store = _filled("read")
    return Prepared(
        run=lambda: [store.get(key) for key in _keys()],
        items=ENTRIES,
        item="entries",
        detail=f"{ENTRIES:,} entries of 1.5 kB, checksums verified",
    )


def _stream(ending: str) -> Prepared:
    lengths = np.random.default_rng(0).integers(1, 4000, SEQUENCES).astype(np.int32)
    path = _folder() / f"big.{ending}"
    if ending == "npy":
        np.save(path, lengths)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"tokens": lengths}), path)

    def run() -> None:
        for _ in global_batches(open_stream(path), context_tokens=2**18, budget_tokens=2**25, wrap=False):
            pass

    return Prepared(
        run=run, items=SEQUENCES, item="sequences", detail=f"{SEQUENCES:,} sequences, batches of 32M tokens"
    )


def _replay() -> Prepared:
    lengths = np.random.default_rng(0).integers(1, 4000, 200_000).astype(np.int32)
    path = _folder() / "small.npy"
    np.save(path, lengths)
    changes = (
        f"data.trace={path}",
        "data.batch=2M tokens",
        "data.context=32K",
        "strategy.name=static",
        "gpus=64",
    )
    scenario = load_scenario("quickstart-8gpu", changes)
    steps = 100
    return Prepared(
        run=lambda: replay_dataset(scenario, LocalEngine(WORKERS), steps=steps),
        items=steps,
        item="steps",
        detail=f"{steps} static steps of 64 GPUs and 2M tokens, {WORKERS} processes",
    )


DATASET_FIGURES: tuple[Figure, ...] = (
    Figure(
        "sweep-new", "a sweep of small cells, processes started, store empty", lambda: _sweep(again=False)
    ),
    Figure("sweep-again", "the same sweep when the store has everything", lambda: _sweep(again=True)),
    Figure("store-write", "results written to the store", _store_write),
    Figure("store-read", "results read from it", _store_read),
    Figure("stream-npy", "global batches cut from a .npy stream", lambda: _stream("npy")),
    Figure("stream-parquet", "global batches cut from a .parquet stream", lambda: _stream("parquet")),
    Figure("replay-dataset", "a data set replayed", _replay),
)
