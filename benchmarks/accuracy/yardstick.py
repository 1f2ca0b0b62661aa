"""The yardstick: a regression by gradient-boosted trees on the same runs. `python benchmarks/accuracy/yardstick.py`

It learns the logarithm of a step's time over the time of its matrix products at the GPU's peak rate, which needs no
simulator, from sizes, degrees, rates and precision. Whoever simulates must be better than this where runs are known,
and much better where they are not. Needs scikit-learn (extra `dev`). Writes predictions/gradient_boosting.csv; every
prediction is made by trees that saw neither the run nor one of its configuration, nor what its question leaves out.
"""

from __future__ import annotations

import csv
import os
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmark import FOLDER, NEWEST, Case, cases
from numpy.typing import NDArray

from hdpsim.cost_models.transformer.flop import model_flop_per_token
from hdpsim.experiments.bands.features import configuration_key
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.records.completion import completed
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.software.run_config import RunConfig

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so few runs take longer on several cores

SEED = 0
FOLDS = 5
TREES = {"max_iter": 200, "learning_rate": 0.05, "max_leaf_nodes": 12, "min_samples_leaf": 5}
OUT = FOLDER / "predictions" / "gradient_boosting.csv"
_BITS = {"fp8": 8, "mxfp8": 8, "nvfp4": 4}
_RECOMPUTE = {"none": 0, "selective": 1, "full": 2}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="default: %(default)s")
    out = parser.parse_args().out
    rows = predictions(cases())
    out.parent.mkdir(exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "question", "step_s"])
        writer.writerows((name, question, f"{step_s:.5g}") for question, name, step_s in rows)
    print(f"wrote {out}")


def predictions(runs: Sequence[Case]) -> list[tuple[str, str, float]]:
    """Question, run and predicted seconds of a step."""
    configs = {record.name: record.config for record in read_records(shipped_records())}
    known = [known_of(configs[run.name]) for run in runs]
    features = np.array([row for row, _, _ in known])
    ideal_s = np.array([seconds for _, seconds, _ in known])
    keys = np.array([key for _, _, key in known])
    target = np.log(np.array([run.measured_step_s for run in runs]) / ideal_s)
    families = np.array([run.family for run in runs])
    newest = np.array([run.generation == NEWEST for run in runs])
    fold = folds(keys)
    splits = [("known", fold == number, fold != number) for number in range(FOLDS)]
    splits += [("family", families == family, families != family) for family in sorted(set(families))]
    splits.append(("generation", newest, ~newest))
    found = []
    for question, judged, seen in splits:
        learned = seen & ~np.isin(keys, keys[judged])  # the same configuration at another source is no news
        step_s = ideal_s[judged] * np.exp(learn(features[learned], target[learned], features[judged]))
        names = [run.name for run, asked in zip(runs, judged, strict=True) if asked]
        found += [(question, name, float(seconds)) for name, seconds in zip(names, step_s, strict=True)]
    return found


def folds(keys: NDArray[np.str_]) -> NDArray[np.int64]:
    """The fold of every run; runs of one configuration are in one."""
    distinct, place = np.unique(keys, return_inverse=True)
    dealt = np.random.default_rng(SEED).permutation(len(distinct)) % FOLDS
    return np.asarray(dealt[place])


def learn(
    features: NDArray[np.float64], target: NDArray[np.float64], asked: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What trees that learned *features* -> *target* say of others."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(loss="absolute_error", random_state=SEED, **TREES)
    return np.asarray(trees.fit(features, target).predict(asked))


def known_of(config: RunConfig) -> tuple[list[float], float, str]:
    """Features of a run, the seconds of its products at the GPU's peak, and the key of its configuration."""
    config, _ = completed(config)
    prepared = prepare(config)
    setup = prepared.setup
    gpu, model, layout = setup.cluster.gpu, setup.model, setup.layout
    tokens = prepared.sequences * prepared.seq_len
    flop = model_flop_per_token(model, prepared.seq_len, causal=True, recompute="none").total * tokens
    bits = _BITS.get(config.precision or "", 16)
    narrow = {8: gpu.fp8_flop_per_s, 4: gpu.fp4_flop_per_s}.get(bits)
    peak = narrow or gpu.bf16_flop_per_s
    ideal_s = flop / peak / setup.cluster.gpus
    sizes = (
        peak, setup.cluster.gpus, prepared.seq_len, prepared.micro_batch, prepared.micro_batches, model.hidden,
        model.ffn_hidden, max(model.experts, 1), max(model.top_k, 1), layout.parallel.tp, layout.parallel.pp,
        layout.pipeline.vpp, layout.parallel.cp or 1, layout.parallel.ep,
    )  # fmt: skip
    words = [bits, _RECOMPUTE[config.recompute or "none"], layout.sharding.kind == "zero3"]
    micro_batch_tokens = prepared.micro_batch * prepared.seq_len
    key = configuration_key(setup, prepared.sequences, prepared.seq_len, micro_batch_tokens)
    return [*np.log(sizes).tolist(), *map(float, words)], ideal_s, key


if __name__ == "__main__":
    main()
