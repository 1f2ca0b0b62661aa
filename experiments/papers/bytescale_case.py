"""ByteScale's case study (Figure 18): LLaMA-7B, 2M context, Byted: time per rank, and one layer taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.experiments.output.document import Table, files_of
from hdpsim.experiments.output.plots.style import GRID, colours_of, figure_and_axes
from hdpsim.experiments.papers.bytescale_figures.kernels import products_s
from hdpsim.experiments.papers.bytescale_steps import (
    FOLDER,
    PLACE,
    SETUP,
    STRATEGIES,
    JobSteps,
    case_steps,
    tokens,
)
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results
from hdpsim.experiments.papers.report import FigureRow, Part, column
from hdpsim.simulator.plan_micro_batches import plan_micro_batches
from hdpsim.simulator.planning import micro_batch_cost, plan_batch
from hdpsim.simulator.setup import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CASE = SETUP["case_study"]
PAPER = FOLDER.published["case_study"]
SINGLE_TOKENS, SINGLE_RANKS = tokens(CASE["single_sequence"]["tokens"]), CASE["single_sequence"]["ranks"]
LAYER_TIMES = ("attention_s", "mlp_s", "ring_step_s", "merge_s", "hop_s")
RING_TERMS = ("attention", "ring_merge", "ring_wait")
FLAT_SHARE = 0.02
"""A range narrower than this part of its value is drawn as one mark."""


def case_study(results: Results) -> Part:
    """Step and busy times of the mean and of the heaviest batch, and one layer's forward, beside the paper's.

    The paper shows one batch and does not say which. The heaviest (by model FLOP) is chosen without looking at
    its times.
    """
    jobs = case_steps(results.batches)
    outcomes: dict[str, JobSteps] = {name: results.outcomes[job] for name, job in jobs.items()}
    static = jobs["static"]
    # A static mesh has batches of its own: whole packs.
    heaviest = {name: heaviest_batch(job.model, job.lengths()) for name, job in jobs.items()}
    busy_s = {name: _busy(outcome)[heaviest[name][0]] for name, outcome in outcomes.items()}
    packed, single = _layers(static.setup(), static.lengths()[heaviest["static"][0]])
    value = {
        **{name: getattr(static, name) for name in PLACE},
        "batches": results.batches,
        "heaviest_batch": {name: number for name, (number, _) in heaviest.items()},
        "heaviest_over_mean_flop": heaviest["hdp-balance"][1],
        "step_s": {
            name: {
                "paper": float(PAPER["step_s"][name]),
                "mean": outcome.total_s / results.batches,
                "heaviest": outcome.step_s[heaviest[name][0]],
            }
            for name, outcome in outcomes.items()
        },
        "busy_s": {
            name: {
                "paper": PAPER["busy_s"][name],
                "mean": _mean_spread(_busy(outcome)),
                "heaviest": _spread(busy_s[name]),
            }
            for name, outcome in outcomes.items()
        },
        "layer": {
            name: {"paper": PAPER["layer"][name], "predicted": asdict(layer)}
            for name, layer in (("packed", packed), ("single", single))
        },
        "communication_share": {
            "paper": PAPER["communication_share"],
            "predicted": packed.transfer_share,
            "exposed": packed.exposed_share,
        },
    }
    line = (
        f"Communication of a packed micro-batch at CP 256: {packed.transfer_share:.1%} of a layer's forward "
        f"(paper {PAPER['communication_share']:.1%}); {packed.exposed_share:.1%} is waiting and nothing else."
    )
    contents: dict[str, Callable[[], object]] = {
        "ranks.csv": partial(_rank_rows, busy_s),
        "rank_times": partial(_ranks_figure, busy_s),
    }
    files = files_of("reproduce", contents)
    tables = (_times_table(value), _layer_table(value))
    return Part(value=value, tables=tables, lines=(line,), files=files, compared=list(_compared(value)))


def _compared(value: Mapping[str, Any]) -> Iterator[FigureRow]:
    """Steps of the heaviest batch and what ranks do in it, and both layers' five times."""
    for name in STRATEGIES:
        step, busy = value["step_s"][name], value["busy_s"][name]
        yield compared(18, f"18b, step, {name}", "s", step["paper"], step["heaviest"])
        for key in ("least", "most"):
            what = f"18c, {key} busy rank, {name}"
            yield compared(18, what, "s", busy["paper"][key], busy["heaviest"][key])
    for name, layer in value["layer"].items():
        yield from layer_values(name, layer["predicted"])


def layer_values(name: str, predicted: Mapping[str, Any]) -> Iterator[FigureRow]:
    """The five times of one of Figure 18a's layers, packed or single."""
    for key in LAYER_TIMES:
        figures = (f"18a, {name}: {key.removesuffix('_s')}", "ms", 1e3 * PAPER["layer"][name][key])
        yield compared(18, *figures, 1e3 * predicted[key])


def heaviest_batch(model: str, batches: Sequence[Ints]) -> tuple[int, float]:
    """Which batch has the most model FLOP, and how many times the mean that is."""
    flop = np.array([sequence_model_flop(catalog.model(model), lengths) for lengths in batches])
    heaviest = int(flop.argmax())
    return heaviest, float(flop[heaviest] / flop.mean())


def _times_table(value: Mapping[str, Any]) -> Table[Any]:
    words = {"least": "least busy rank", "most": "busiest rank", "deviation": "deviation over ranks"}
    rows = []
    for name in STRATEGIES:
        rows.append({"strategy": name, "what": "step", **value["step_s"][name]})
        for key, what in words.items():
            figures = {of: row.get(key) for of, row in value["busy_s"][name].items()}
            rows.append({"strategy": name, "what": what, **figures})
    heaviest = f"heaviest batch ({value['heaviest_over_mean_flop']:.2f} × mean FLOP)"
    columns = (
        column("strategy"),
        column("what", left=True),
        *(column(n, format="{:.0f}") for n in ("paper", "mean", "heaviest")),
    )
    title = (
        f"Case study (Figure 18: same setting): seconds; mean of {value['batches']} batches and {heaviest}"
    )
    return Table(title=title, columns=columns, rows=rows)


def _layer_table(value: Mapping[str, Any]) -> Table[Any]:
    rows = []
    for name, words in (("packed", "2M packed, 256 ranks"), ("single", "312K, 39 ranks")):
        paper, predicted = value["layer"][name]["paper"], value["layer"][name]["predicted"]
        figures = {
            key.removesuffix("_s"): f"{1e3 * paper[key]:.3g} / {1e3 * predicted[key]:.3g}"
            for key in LAYER_TIMES
        }
        rows.append({"micro-batch": words, **figures})
    title = "One layer's forward (Figure 18a): milliseconds, paper / prediction"
    return Table(title=title, columns=tuple(column(name) for name in rows[0]), rows=rows)


def _rank_rows(busy_s: Mapping[str, Floats]) -> list[dict[str, Any]]:
    return [
        {"strategy": name, "rank": rank, "busy_s": seconds}
        for name, row in busy_s.items()
        for rank, seconds in enumerate(row.tolist())
    ]


def _busy(outcome: JobSteps) -> Floats:
    assert outcome.busy_s is not None
    return outcome.busy_s


def _spread(busy_s: Floats) -> dict[str, float]:
    figures = {"least": busy_s.min(), "mean": busy_s.mean(), "most": busy_s.max(), "deviation": busy_s.std()}
    return {name: float(figure) for name, figure in figures.items()}


def _mean_spread(busy_s: Floats) -> dict[str, float]:
    """The spread within a batch, mean over batches."""
    spreads = [_spread(batch) for batch in busy_s]
    return {name: float(np.mean([spread[name] for spread in spreads])) for name in spreads[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's forward of one micro-batch, seconds on one rank.

    Attributes:
        ranks: of its group (d); the ring has d steps and d - 1 hops.
        attention_s: kernels, merging and transfers that show.
        exposed_s: those transfers alone.
        mlp_s: the MLP's products.
        rest_s: everything but attention, the MLP's products included; embedding and host work of the micro-batch
            spread over the layers.
        ring_step_s: attention kernel of one ring step.
        merge_s: merging one step's partial output.
        hop_s: one hop's transfer beside that work, hidden or not.
    """

    ranks: int
    attention_s: float
    exposed_s: float
    mlp_s: float
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


def _layers(setup: Setup, lengths: Ints) -> tuple[Layer, Layer]:
    """The packed static micro-batch of median time in that batch, and the single long sequence on its own ranks."""
    plan, problem, _ = plan_batch(setup, lengths)
    packs = plan_micro_batches(problem.cost, plan)
    forward_s = micro_batch_cost(setup).terms_s(packs, backward=False).sum(axis=(0, 1))
    median = int(np.argsort(forward_s, kind="stable")[len(forward_s) // 2])
    return _layer(setup, packs, median), single_layer(setup)


def single_layer(setup: Setup) -> Layer:
    """One layer's forward of Figure 18a's long sequence on its own ranks."""
    gpus = np.arange(SINGLE_RANKS, dtype=np.int64) * setup.layout.parallel.tp
    tier = micro_batch_cost(setup).fabric.ring_tiers(gpus, np.array([0, SINGLE_RANKS]))
    return _layer(setup, MicroBatches.one([SINGLE_TOKENS], SINGLE_RANKS, int(tier[0])), 0)


def _layer(setup: Setup, batches: MicroBatches, number: int) -> Layer:
    cost = micro_batch_cost(setup)
    layers = cost.busiest_layers
    terms = cost.terms_s(batches, backward=False).sum(axis=1)[:, number] / layers
    by_name = dict(zip(TERMS, terms.tolist(), strict=True))
    attention_s = sum(by_name[name] for name in RING_TERMS)
    ranks = int(batches.group_size[number])
    local_tokens = float(batches.tokens[number]) / ranks  # padding travels too
    ring_step_s, merge_s = by_name["attention"] / ranks, by_name["ring_merge"] / (ranks - 1)
    alone_s = float(cost.attention.hop_s(batches.groups, backward=False)[number])
    kept = setup.calibration.ring_overlap
    return Layer(
        ranks=ranks,
        attention_s=attention_s,
        exposed_s=by_name["ring_wait"],
        mlp_s=products_s(
            setup.model, setup.layout, "mlp", local_tokens, setup.cluster.gpu, setup.calibration
        ),
        rest_s=float(terms.sum()) - attention_s - by_name["logits"],
        ring_step_s=ring_step_s,
        merge_s=merge_s,
        hop_s=min(alone_s / kept, alone_s + (1.0 - kept) * (ring_step_s + merge_s)),
    )


def _ranks_figure(busy_s: Mapping[str, Floats]) -> Figure:
    """Busy time of every rank by strategy, busiest first, and the range the paper reports as a band at the side."""
    colours = colours_of(busy_s)
    with figure_and_axes(8.2, 4.6) as (figure, (axes,)):
        ranks = max(len(seconds) for seconds in busy_s.values())
        for position, (name, seconds) in enumerate(busy_s.items()):
            axes.step(np.arange(1, len(seconds) + 1), np.sort(seconds)[::-1], color=colours[name], linewidth=2,
                      label=f"{name}: {seconds.min():.0f} to {seconds.max():.0f} s")  # fmt: skip
            least, most = PAPER["busy_s"][name]["least"], PAPER["busy_s"][name]["most"]
            at = ranks * (1.05 + 0.035 * position)
            if most - least < FLAT_SHARE * most:
                axes.plot([at], [most], color=colours[name], marker="_", markersize=11, markeredgewidth=3)
            else:
                axes.plot([at, at], [least, most], color=colours[name], linewidth=5, solid_capstyle="butt")
        axes.axvline(1.02 * ranks, color=GRID, linewidth=1)
        axes.text(1.085 * ranks, -0.02, "paper", transform=axes.get_xaxis_transform(), ha="center", va="top",
                  fontsize=9)  # fmt: skip
        axes.set_xlim(1, 1.16 * ranks)
        axes.set_xticks(np.linspace(0, ranks, 5)[1:].astype(int))
        axes.set_ylim(bottom=0)
        axes.set(xlabel="ranks, busiest first", ylabel="forward and backward in one step (s)")
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_title("Time of every rank (ByteScale, Figure 18c)")
        figure.legend(loc="outside lower center", ncols=len(busy_s))
    return figure
