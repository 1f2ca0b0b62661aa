"""Measure every figure and write benchmarks/results.json: `make bench`, or `python benchmarks/run.py --help`."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataset_figures import DATASET_FIGURES
from figures import FIGURES, SCALING, SCALING_GPUS, SCALING_TARGET_GPUS, Figure, Prepared, at_scale
from measure import (
    REPEATS,
    Yardsticks,
    command_peak_bytes,
    fitted_exponent,
    median_s,
    peak_bytes,
    yardsticks,
)
from scaling_plot import draw_scaling
from search_figures import SEARCH_FIGURES

from hdpsim.experiments.output.tables import TextTable, markdown, plain_text

EXPONENT_LIMIT = 1.1  # linear, with some room for noise
RESULTS = Path(__file__).with_name("results.json")
PLOT = RESULTS.parents[1] / "docs" / "images" / "scaling.png"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only figures whose name contains TEXT")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help="runs per figure (median)")
    parser.add_argument("--no-scaling", action="store_true", help="leave out the series over GPUs")
    parser.add_argument(
        "--show", action="store_true", help="measure nothing; print --out as a Markdown table"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="default: %(default)s")
    parser.add_argument(
        "--plot",
        type=Path,
        nargs="?",
        const=PLOT,
        metavar="FILE",
        help="draw time and memory against GPUs (with --show: from --out); default: docs/images/scaling.png",
    )
    options = parser.parse_args()
    entries = json.loads(options.out.read_text(encoding="utf-8")) if options.show else measure_all(options)
    if options.plot:
        draw_scaling(entries, options.plot)
    print(markdown(table(entries)) if options.show else f"\n{plain_text(table(entries))}")


def measure_all(options: Namespace) -> list[dict[str, Any]]:
    """Measure what *options* choose and write the results."""
    sticks = yardsticks(options.repeats)
    print(
        f"Yardsticks: a SimPy timeout {sticks.simpy_event_s * 1e6:.2f} us, numpy sorts a million doubles in "
        f"{sticks.numpy_sort_s * 1e3:.1f} ms, Python starts in {sticks.python_start_s * 1e3:.0f} ms"
    )
    entries = []
    for figure in (*FIGURES, *DATASET_FIGURES, *SEARCH_FIGURES):
        if options.only in figure.name:
            entries.append(measured(figure, sticks, options.repeats))
            print(f"{figure.name}: {shown_s(entries[-1]['seconds'])}", flush=True)
    if not options.no_scaling:
        entries += scaling(sticks, options.repeats, options.only)
    options.out.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    return entries


def entry(
    name: str,
    what: str,
    prepared: Prepared,
    yardstick: str,
    sticks: Yardsticks,
    repeats: int,
    clock: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """The keys every entry has."""
    seconds = median_s(prepared.run, repeats, clock)
    peak = command_peak_bytes(list(prepared.command)) if prepared.command else peak_bytes(prepared.run)
    found: dict[str, Any] = {
        "name": name,
        "what": what,
        "seconds": seconds,
        "ratio": seconds / sticks.seconds(yardstick, prepared.events),
        "yardstick": yardstick,
        "peak_bytes": peak,
        "detail": prepared.detail,
    }
    if prepared.events:
        found["events_per_s"] = prepared.events / seconds
    if prepared.items:
        found[f"{prepared.item}_per_s"] = prepared.items / seconds
        found["detail"] += f"; {prepared.items / seconds:,.0f} {prepared.item}/s"
    return found


def measured(figure: Figure, sticks: Yardsticks, repeats: int) -> dict[str, Any]:
    """One figure against its targets."""
    found = entry(figure.name, figure.what, figure.prepare(), figure.yardstick, sticks, repeats)
    found["target_s"], found["target_bytes"] = figure.target_s, figure.target_bytes
    found["met"] = (figure.target_s is None or found["seconds"] <= figure.target_s) and (
        figure.target_bytes is None or found["peak_bytes"] <= figure.target_bytes
    )
    return found


def scaling(sticks: Yardsticks, repeats: int, only: str) -> list[dict[str, Any]]:
    """CPU time and memory over GPUs, the batch growing in proportion, with exponents of fitted power laws."""
    chosen = [part for part in SCALING if only in f"{part[0]}-scaling"]
    series: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in chosen}
    for gpus in SCALING_GPUS if chosen else ():
        samples = repeats if gpus <= SCALING_TARGET_GPUS else 1
        for name, yardstick, prepare in chosen:
            what = f"{name} from {SCALING_GPUS[0]:,} to {SCALING_GPUS[-1]:,} GPUs"
            prepared = prepare(at_scale(gpus))
            series[name].append(
                entry(f"{name}-scaling", what, prepared, yardstick, sticks, samples, time.process_time)
            )
        print(f"scaling: {gpus:,} GPUs done", flush=True)
    return [_of_all_sizes(points) for points in series.values()]


def _of_all_sizes(points: list[dict[str, Any]]) -> dict[str, Any]:
    """One entry: that of the largest size with a target, and what every size took."""
    seconds, peaks = ([point[key] for point in points] for key in ("seconds", "peak_bytes"))
    target = SCALING_GPUS.index(SCALING_TARGET_GPUS)
    exponent = fitted_exponent(list(SCALING_GPUS[: target + 1]), seconds[: target + 1])
    return points[target] | {
        "gpus": list(SCALING_GPUS),
        "seconds_by_gpus": seconds,
        "peak_bytes_by_gpus": peaks,
        "exponent": exponent,
        "exponent_of_all_sizes": fitted_exponent(list(SCALING_GPUS), seconds),
        "peak_exponent_of_all_sizes": fitted_exponent(list(SCALING_GPUS), peaks),
        "target_exponent": EXPONENT_LIMIT,
        "met": exponent <= EXPONENT_LIMIT,
    }


def shown_s(seconds: float) -> str:
    """Seconds as people read them."""
    return f"{seconds * 1e3:.2f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def table(entries: list[dict[str, Any]]) -> TextTable:
    """All entries for the terminal."""
    rows = []
    for found in entries:
        target = "-" if found.get("target_s") is None else shown_s(found["target_s"])
        if "exponent" in found:
            target = f"exponent {found['exponent']:.2f} <= {found['target_exponent']:g}"
        elif found["target_bytes"] is not None:
            target = f"{target}, {found['target_bytes'] / 1e6:,.0f} MB".removeprefix("-, ")
        ratio = f"{found['ratio']:.3g} x {found['yardstick']}"
        peak = f"{found['peak_bytes'] / 1e6:,.1f} MB"
        verdict = "" if target == "-" else "met" if found["met"] else "MISSED"
        rows.append((found["name"], shown_s(found["seconds"]), ratio, peak, target, verdict))
    return TextTable(
        title="", columns=("figure", "median", "ratio", "peak memory", "target", ""), rows=tuple(rows)
    )


if __name__ == "__main__":
    main()
