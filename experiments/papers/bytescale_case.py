"""ByteScale's case study (Figure 18): LLaMA-7B, 2M context, Byted: time per rank, and one layer taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.step.micro_batch import MicroBatches
from hdpsim.cost_models.step.micro_batch_cost import TERMS
from hdpsim.experiments.papers.bytescale_data import STRATEGIES, figures, layouts
from hdpsim.experiments.papers.bytescale_simulation import Job, Outcome, batches_of, heaviest_batch, setup_of
from hdpsim.simulator.setup import Setup, StrategyName, StrategyOptions
from hdpsim.simulator.step import micro_batch_cost, micro_batches, plan_batch

MODEL, DATASET, CONTEXT_TOKENS = "llama-7b", "byted", 2**21
SINGLE_TOKENS, SINGLE_RANKS = 312 * 1024, 39  # the long sequence of Figure 18a
RING_TERMS = ("attention", "ring_merge", "ring_wait")

Floats = NDArray[np.float64]


def case_job(options: StrategyOptions, batches: int) -> Job:
    """The setting of Figures 18 and 20 under these options."""
    return Job(
        model=MODEL,
        dataset=DATASET,
        gpus=layouts()[MODEL].gpus,
        context_tokens=CONTEXT_TOKENS,
        options=options,
        batches=batches,
        keep_ranks=True,
    )


def heaviest_busy_s(outcomes: Mapping[StrategyName, Outcome], batches: int) -> dict[str, Floats]:
    """Busy time of every rank in the heaviest batch, by strategy."""
    heaviest, _ = heaviest_batch(MODEL, batches_of(DATASET, CONTEXT_TOKENS, batches))
    return {name: _busy(outcome)[heaviest] for name, outcome in outcomes.items()}


def case_document(outcomes: Mapping[StrategyName, Outcome], batches: int) -> dict[str, Any]:
    """Step and busy times of the mean and of the heaviest batch, and one layer's forward, beside the paper's.

    The paper shows one batch and does not say which. The heaviest (by model FLOP) is chosen without looking at
    its times.
    """
    lengths = batches_of(DATASET, CONTEXT_TOKENS, batches)
    heaviest, over_mean = heaviest_batch(MODEL, lengths)
    paper = figures()["case_study"]
    packed, single = _layers(lengths[heaviest], batches)
    return {
        "model": MODEL,
        "dataset": DATASET,
        "gpus": layouts()[MODEL].gpus,
        "context_tokens": CONTEXT_TOKENS,
        "batches": batches,
        "heaviest_batch": heaviest,
        "heaviest_over_mean_flop": over_mean,
        "step_s": {
            name: {
                "paper": float(paper["step_s"][name]),
                "mean": outcomes[name].total_s / batches,
                "heaviest": outcomes[name].step_s[heaviest],
            }
            for name in STRATEGIES
        },
        "busy_s": {
            name: {
                "paper": paper["busy_s"][name],
                "mean": _mean_spread(_busy(outcomes[name])),
                "heaviest": _spread(_busy(outcomes[name])[heaviest]),
            }
            for name in STRATEGIES
        },
        "layer": {
            "packed": {"paper": paper["layer"]["packed"], "predicted": packed.document()},
            "single": {"paper": paper["layer"]["single"], "predicted": single.document()},
        },
        "communication_share": {
            "paper": paper["communication_share"],
            "predicted": packed.transfer_share,
            "exposed": packed.exposed_share,
        },
    }


def _busy(outcome: Outcome) -> Floats:
    assert outcome.busy_s is not None
    return outcome.busy_s


def _spread(busy_s: Floats) -> dict[str, float]:
    return {
        "least": float(busy_s.min()),
        "mean": float(busy_s.mean()),
        "most": float(busy_s.max()),
        "deviation": float(busy_s.std()),
    }


def _mean_spread(busy_s: Floats) -> dict[str, float]:
    """The spread within a batch, mean over batches."""
    spreads = [_spread(batch) for batch in busy_s]
    return {name: float(np.mean([spread[name] for spread in spreads])) for name in spreads[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer's forward of one micro-batch, seconds on one rank.

    Attributes:
        ranks: of its group (d); the ring has d steps and d - 1 hops.
        attention_s: kernels, merging and transfers that show.
        exposed_s: those transfers alone.
        rest_s: everything else; embedding and host work of the micro-batch spread over the layers.
        ring_step_s: attention kernel of one ring step.
        merge_s: merging one step's partial output.
        hop_s: one hop's transfer, hidden or not.
    """

    ranks: int
    attention_s: float
    exposed_s: float
    rest_s: float
    ring_step_s: float
    merge_s: float
    hop_s: float

    @property
    def transfer_share(self) -> float:
        """Share of the layer during which keys and values are on their way: the paper's share of communication."""
        return (self.ranks - 1) * self.hop_s / (self.attention_s + self.rest_s)

    @property
    def exposed_share(self) -> float:
        """Share of the layer that waits for transfers and does nothing else."""
        return self.exposed_s / (self.attention_s + self.rest_s)

    def document(self) -> dict[str, float]:
        """Its figures."""
        names = ("ranks", "attention_s", "exposed_s", "rest_s", "ring_step_s", "merge_s", "hop_s")
        return {name: getattr(self, name) for name in names}


def _layers(lengths: NDArray[np.int64], batches: int) -> tuple[_Layer, _Layer]:
    """The packed static micro-batch of median time in that batch, and the single long sequence on its own ranks."""
    setup = setup_of(case_job(StrategyOptions(name="static"), batches))
    plan, problem, _ = plan_batch(setup, lengths)
    packs = micro_batches(problem, plan)
    forward_s = micro_batch_cost(setup).terms_s(packs, backward=False).sum(axis=(0, 1))
    median = int(np.argsort(forward_s, kind="stable")[len(forward_s) // 2])
    members = np.arange(SINGLE_RANKS, dtype=np.int64)
    single = MicroBatches(
        segment_tokens=np.array([SINGLE_TOKENS], dtype=np.int64),
        segment_offsets=np.array([0, 1], dtype=np.int64),
        group_size=np.array([SINGLE_RANKS], dtype=np.int64),
        tier=problem.cost.fabric.ring_tiers(
            members * setup.layout.tp, np.array([0, SINGLE_RANKS], dtype=np.int64)
        ),
        offload_ratio=np.zeros(1),
    )
    return _layer(setup, packs, median), _layer(setup, single, 0)


def _layer(setup: Setup, batches: MicroBatches, number: int) -> _Layer:
    cost = micro_batch_cost(setup)
    layers = cost.busiest_layers
    terms = cost.terms_s(batches, backward=False).sum(axis=1)[:, number] / layers
    by_name = dict(zip(TERMS, terms.tolist(), strict=True))
    attention_s = sum(by_name[name] for name in RING_TERMS)
    ranks = int(batches.group_size[number])
    local_tokens = float(batches.tokens[number]) / ranks  # padding travels too
    hop_s = cost.attention.hop_s(local_tokens, ranks, batches.tier[number], backward=False)
    return _Layer(
        ranks=ranks,
        attention_s=attention_s,
        exposed_s=by_name["ring_wait"],
        rest_s=float(terms.sum()) - attention_s - by_name["logits"],
        ring_step_s=by_name["attention"] / ranks,
        merge_s=by_name["ring_merge"] / (ranks - 1),
        hop_s=float(hop_s),
    )
