"""What a network of flows costs against the number of activities: measured, fitted, drawn.

`python benchmarks/flow_cost.py [--plot]` writes benchmarks/flow_cost.json and, with --plot, docs/images/flow_cost.png;
`--show` draws what was measured before. A minute or two on one core.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import simpy
from measure import fitted_exponent

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.network.links import Links, Pattern
from hdpsim.cost_models.network.traffic import hops, permutation
from hdpsim.experiments.output.plots.style import GRID, INK, PALETTE, figure_and_axes, marker_of
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork

RESULTS = Path(__file__).with_name("flow_cost.json")
PLOT = RESULTS.parents[1] / "docs" / "images" / "flow_cost.png"
GPUS = 12288
STEPS = (1, 2, 4, 8, 16)  # times that every group of GPUs sends
SIZES = (512, 1024, 2048, 4096, 8192)  # flows of a permutation at once
VOLUME_BYTES = 16e6

Case = Callable[[int], tuple[Links, list[tuple[Pattern, int]], bool]]


def _cluster_links(gpus: int, routing: str) -> Links:
    cluster = catalog.cluster("megascale")
    fabric = replace(cluster.fabric, routing=routing)
    return Links.of(replace(cluster, nodes=gpus // 8, fabric=fabric))


def private_rings(steps: int) -> tuple[Links, list[tuple[Pattern, int]], bool]:
    """Rings of 2 to 128 nodes with links of their own, one activity after the other, of different sizes."""
    links, rng = _cluster_links(GPUS, "ideal"), np.random.default_rng(0)
    patterns, first = [], 0
    while first < GPUS // 8:
        nodes = min(GPUS // 8 - first, int(2 ** rng.uniform(1, 7)))
        gpus = np.arange(first * 8, (first + nodes) * 8).reshape(-1, 8)
        patterns.append((hops(gpus).pattern(links), 16 * steps))
        first += nodes
    return links, patterns, False


def equal_transfers(steps: int) -> tuple[Links, list[tuple[Pattern, int]], bool]:
    """Transfers of all GPUs in lockstep over hashed up-links: equal sizes, all at one instant."""
    links = _cluster_links(GPUS, "ecmp")
    return links, [(links.routes(gpu, (gpu + 512) % GPUS).pattern(), steps) for gpu in range(GPUS)], True


def hashed_permutation(flows: int) -> tuple[Links, list[tuple[Pattern, int]], bool]:
    """One flow of every GPU to a random one over hashed up-links, of different sizes: each end changes other rates."""
    links, traffic = _cluster_links(flows, "ecmp"), permutation(flows, 8, seed=0)
    pairs = zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)
    return links, [(links.routes(source, target).pattern(), 1) for source, target in pairs], False


SERIES: tuple[tuple[str, str, Case, tuple[int, ...]], ...] = (
    ("rings", "rings with links of their own, 12,288 GPUs", private_rings, STEPS),
    ("equal", "equal transfers that meet, 12,288 GPUs in lockstep", equal_transfers, STEPS),
    ("permutation", "random permutation, all sizes differ", hashed_permutation, SIZES),
)


def play(case: Case, size: int) -> tuple[int, float]:
    """Activities of a case, and CPU seconds they take (routes not counted)."""
    links, patterns, equal = case(size)
    rng = np.random.default_rng(1)
    env = simpy.Environment()
    network = FlowNetwork(env, links)

    def group(pattern: Pattern, steps: int) -> simpy.events.ProcessGenerator:
        for _ in range(steps):
            volume = VOLUME_BYTES * (1.0 if equal else rng.uniform(0.5, 2.0))
            yield network.start(Activity.of(links, pattern, volume, rest_s=1e-3))

    start = time.process_time()
    env.run(until=env.all_of([env.process(group(*item)) for item in patterns]))
    return sum(steps for _, steps in patterns), time.process_time() - start


def measure() -> list[dict[str, Any]]:
    entries = []
    for name, what, case, sizes in SERIES:
        points = [min((play(case, size) for _ in range(2)), key=lambda point: point[1]) for size in sizes]
        activities, seconds = ([point[part] for point in points] for part in (0, 1))
        entries.append(
            {
                "name": name,
                "what": what,
                "activities": activities,
                "cpu_s": seconds,
                "exponent": fitted_exponent(activities, seconds),
                "us_per_activity": [1e6 * s / n for n, s in zip(activities, seconds, strict=True)],
            }
        )
        print(
            f"{name}: exponent {entries[-1]['exponent']:.2f}, {entries[-1]['us_per_activity'][-1]:.0f} us",
            flush=True,
        )
    return entries


def draw(entries: list[dict[str, Any]], path: Path) -> None:
    """CPU time against activities on logarithmic axes, with fitted exponents."""
    with figure_and_axes(7.0, 4.4, columns=1) as (figure, (axes,)):
        for number, entry in enumerate(entries):
            axes.plot(
                entry["activities"], entry["cpu_s"], color=PALETTE[number], marker=marker_of(number), markersize=5,
                label=f"{entry['what']}: exponent {entry['exponent']:.2f}",
            )  # fmt: skip
        ends = np.array([min(e["activities"][0] for e in entries), max(e["activities"][-1] for e in entries)])
        axes.plot(ends, ends * 1e-4, color=INK, linestyle=":", linewidth=1.0, label="100 us each", zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("activities")
        axes.set_ylabel("CPU seconds, one thread")
        axes.grid(color=GRID, linewidth=0.6)
        axes.legend(loc="upper left")
        figure.savefig(path, dpi=110, metadata={"Software": "hdpsim"})


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--plot", action="store_true", help="draw docs/images/flow_cost.png")
    options = parser.parse_args()
    entries = json.loads(RESULTS.read_text(encoding="utf-8")) if options.show else measure()
    if not options.show:
        RESULTS.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        draw(entries, PLOT)


if __name__ == "__main__":
    main()
