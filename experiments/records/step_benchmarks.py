"""Benchmarks whose measured steps do not say how they were run: what their modes and columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, assert_never, cast

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.records.steps import MeasuredStep
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.simulator.strategies.static.wlb_llm import balanced_packs
from hdpsim.yaml_loader import load_yaml

Packing = Literal["joined", "balanced", "one"]
_FOLDER = shipped("experiments/data/steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A source of measured steps.

    Attributes:
        models: its names of models -> those of the catalog.
        modes: how a step was run -> its packing and its kind of context parallelism.
        unsized: keys of the layout of a mode's steps whose batches have no size: they are of earlier revisions.
        work_tokens: length at which linear work and attention of a document count the same to its packer.
        scenario: keys that all its steps share.
    """

    name: str
    models: Mapping[str, str]
    modes: Mapping[str, Mapping[str, str]]
    unsized: Mapping[str, Mapping[str, Any]]
    work_tokens: float
    scenario: Mapping[str, Any]

    def document(self, step: MeasuredStep) -> dict[str, Any]:
        """The scenario of a step.

        Raises:
            UserInputError: columns that are missing or make no sense.
        """
        mode, tp = self.modes[step.columns["mode"]], step.whole_number("tp_size")
        layout: dict[str, Any] = {"tp": tp, "rank_capacity": sum(step.lengths)}
        if "cp_kind" in mode:
            layout["cp_kind"] = mode["cp_kind"]
        if step.columns.get("batch_size") is None:
            layout |= self.unsized.get(step.columns["mode"], {})
        longest, gpus = max(step.lengths), tp * step.whole_number("dp_size") * self._degree(step)
        return {
            **self.scenario,
            "model": self._model(step),
            "cluster": {**self.scenario["cluster"], "gpus": gpus},
            "layout": layout,
            "data": {"lengths": [longest], "batch": "1 sequences", "context": longest},
        }

    def packs(self, step: MeasuredStep) -> tuple[Ints, int]:
        """For every document the number of its micro-batch, and the ranks that share each.

        joined: pack k with pack k + dp, on one rank. balanced: the documents of all packs dealt to the dp replicas by
        work, of up to 2 num_tokens a replica (2 num_tokens batch_size / cp_size where batches have a size); one replica
        takes them as they are. one: all documents on all ranks.
        """
        packing = cast(Packing, self.modes[step.columns["mode"]]["packs"])
        replicas = step.whole_number("dp_size")
        given = np.repeat(np.arange(len(step.packs)), [len(pack) for pack in step.packs])
        match packing:
            case "joined":
                if len(step.packs) != 2 * replicas:
                    words = f"packs are not two for each of dp_size = {replicas} ranks"
                    raise InfeasibleError(f"{len(step.packs)} {words}")
                return given % replicas, 1
            case "one":
                return np.zeros_like(given), replicas
            case "balanced":
                return self._dealt(step, given, replicas)
            case _:
                assert_never(packing)

    def _dealt(self, step: MeasuredStep, given: Ints, replicas: int) -> tuple[Ints, int]:
        """The packs of a mode that deals documents by their work."""
        degree = step.whole_number("cp_size", 1)
        if replicas == 1:
            return np.zeros_like(given), degree
        most = 2 * step.whole_number("num_tokens")
        if step.columns.get("batch_size") is not None:
            most = most * step.whole_number("batch_size") // degree
        lengths = np.array(step.lengths, dtype=np.int64)
        share = lengths / self.work_tokens
        return balanced_packs(lengths, share**2 + share, replicas, most), degree

    def settings(self, step: MeasuredStep) -> str:
        """How the step was run, in words."""
        shared = f" cp{self._degree(step)}" if self._balanced(step) else ""
        return f"{step.columns['mode']} dp{step.whole_number('dp_size')}{shared}"

    def _balanced(self, step: MeasuredStep) -> bool:
        return self.modes[step.columns["mode"]]["packs"] == "balanced"

    def _degree(self, step: MeasuredStep) -> int:
        return step.whole_number("cp_size", 1) if self._balanced(step) else 1

    def _model(self, step: MeasuredStep) -> str:
        name = step.columns.get("model_path")
        if name not in self.models:
            known = ", ".join(self.models)
            raise UserInputError(
                f"{step.where}: model_path: {quoted(name)} is none of {self.name}'s models: {known}"
            )
        return self.models[str(name)]


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """All benchmarks that are known."""
    documents = [load_yaml(path) for path in sorted(_FOLDER.glob("*.yaml"))]
    fields = ("name", "models", "modes", "unsized", "work_tokens", "scenario")
    return tuple(Benchmark(**{name: document[name] for name in fields}) for document in documents)


def benchmark_of(step: MeasuredStep) -> Benchmark | None:
    """The benchmark that knows the step's mode; None where the step has none.

    Raises:
        UserInputError: a mode that no benchmark has.
    """
    mode = step.columns.get("mode")
    if mode is None:
        return None
    for benchmark in benchmarks():
        if mode in benchmark.modes:
            return benchmark
    known = tuple(name for benchmark in benchmarks() for name in benchmark.modes)
    raise UserInputError(
        f"{step.where}: mode: {quoted(mode)} is not one of {', '.join(known)}{did_you_mean(str(mode), known)}; "
        "a run of your own names its strategy instead"
    )
