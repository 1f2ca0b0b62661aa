"""The plots: saved twice, reproducible, labelled with units, and no text over other text."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from hdpsim.errors import UserInputError
from hdpsim.experiments.output.plots import plan as plots_of_plans
from hdpsim.experiments.output.plots import runs as plots
from hdpsim.experiments.output.plots import time as plots_of_time
from hdpsim.experiments.output.plots.style import (
    PALETTE,
    account_group,
    colours_of,
    format_count,
    format_tokens,
    marker_of,
    readable_name,
    save_figure,
)
from hdpsim.simulator.play.execution import WAITS

STRATEGIES = ("static", "hdp-naive", "hdp-opt")
ACCOUNTS = {
    "attention": 3.2,
    "gemm": 5.1,
    "small_kernels": 0.7,
    "router": 0.01,
    "tp_all_gather": 0.9,
    "cp_ring": 4.2,
    "ep_all_to_all": 0.4,
    "wait_pipeline": 2.1,
    "wait_group": 1.3,
    "optimizer": 0.15,
}


def time_breakdown() -> Figure:
    return plots_of_time.plot_time_breakdown(dict.fromkeys(STRATEGIES, ACCOUNTS))


def rank_step_time() -> Figure:
    busy = np.linspace(4.0, 9.0, 1536)
    layers = {"compute": busy, "communication": np.full(1536, 0.5), "wait": 9.0 - busy}
    return plots_of_time.plot_rank_step_time(dict.fromkeys(STRATEGIES, layers))


def steps() -> Figure:
    waits = {"data": [0.0, 2.0, 0.0, 0.5, 0.0, 0.0], "planning": [2.9, 0.0, 0.0, 0.0, 0.0, 0.2]}
    return plots_of_time.plot_steps(
        [9.0, 8.5, 9.4, 8.8, 9.1, 9.0], waits, warm_up=2, period_s=9.3, title="hdp-opt"
    )


def length_distribution() -> Figure:
    share = np.full(15, 1 / 15)
    return plots.plot_length_distribution([2**i for i in range(7, 22)], share, share)


def scaling() -> Figure:
    gpus = [1024, 2048, 4096, 8192, 12288, 16384]
    rows = {"static": [None, *(400.0 * n for n in gpus[1:])], "hdp-opt": [900.0 * n**0.98 for n in gpus]}
    return plots.plot_scaling(gpus, rows)


def paper_against_prediction() -> Figure:
    measured = np.geomspace(1e5, 1e7, 12)
    points = {f"model {i}": (measured, measured * (1 + 0.02 * i)) for i in range(11)}
    return plots.plot_paper_against_prediction(points)


def throughput_bars() -> Figure:
    return plots.plot_throughput_bars(
        {"static": 6.1e5, "hdp-naive": 2.3e6, "hdp-opt": 4.8e6}, {"hdp-opt": (4.7e6, 4.9e6)}
    )


def ablation() -> Figure:
    steps = ["static", "dynamic groups", "selective offloading", "balancing", "remote data loading"]
    return plots.plot_ablation(steps, [1, 3.2, 4.1, 6.8, 7.7], [1, 3.4, None, 7.0, 7.9])


def beside_paper() -> Figure:
    points = [(2**i, 1e6 / i, 9e5 / i if i < 20 else None) for i in range(18, 22)]
    panels = {
        "github lengths": {"static": points, "hdp-opt": points},
        "byted lengths": {"static": points},
    }
    return plots.plot_beside_paper(panels, x="context (tokens)", y="throughput (tokens/s)", title="A model")


def error_shares() -> Figure:
    errors = np.geomspace(0.002, 0.4, 25)
    return plots.plot_error_shares({"at the start": errors, "fitted": errors / 2}, title="Errors")


ALL: list[Callable[[], Figure]] = [
    time_breakdown,
    rank_step_time,
    steps,
    length_distribution,
    scaling,
    paper_against_prediction,
    throughput_bars,
    ablation,
    beside_paper,
    error_shares,
]


def texts_of(figure: Figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def test_every_public_plot_is_tested() -> None:
    public = {name for module in (plots, plots_of_time) for name in vars(module) if name.startswith("plot_")}
    assert {f"plot_{make.__name__}" for make in ALL} == public - {"plot_style"}


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("make", [time_breakdown, scaling, beside_paper])
def test_saved_as_png_and_svg_with_the_same_bytes_every_time(
    make: Callable[[], Figure], tmp_path: Path
) -> None:
    png, svg = save_figure(make(), tmp_path / "plot")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.png", "plot.svg"]
    again_png, again_svg = save_figure(make(), tmp_path / "again")
    assert again_png.read_bytes() == png.read_bytes()
    assert again_svg.read_bytes() == svg.read_bytes()


@pytest.mark.parametrize("make", ALL)
def test_no_text_overlaps_another_or_leaves_the_page(make: Callable[[], Figure]) -> None:
    figure = make()
    drawn = texts_of(figure)
    in_axes = {
        id(text)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for text in axis.get_ticklabels()
    }
    slanted = {id(text) for text in drawn if text.get_rotation() not in (0.0, 90.0)}
    boxes = [
        (t, t.get_window_extent()) for t in drawn if id(t) not in slanted and (t.get_figure() is not None)
    ]
    page = figure.bbox
    for text, box in boxes:
        if id(text) in in_axes and not page.contains(*box.get_points().mean(axis=0)):
            continue  # a tick outside of the view: matplotlib keeps it, and draws nothing
        assert box.x0 >= page.x0 - 1, text
        assert box.x1 <= page.x1 + 1, text
    for (a, box_a), (b, box_b) in combinations(boxes, 2):
        overlap_x = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        overlap_y = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        assert overlap_x <= 1 or overlap_y <= 1, f"{a} lies over {b}"


@pytest.mark.parametrize("make", ALL)
def test_axes_say_their_unit(make: Callable[[], Figure]) -> None:
    labels = [label for axes in make().axes for label in (axes.get_xlabel(), axes.get_ylabel()) if label]
    assert any(unit in label for label in labels for unit in ("second", "tokens", "%", "×"))


def test_the_callers_matplotlib_settings_stay_as_they_were() -> None:
    before = dict(mpl.rcParams)
    throughput_bars()
    assert dict(mpl.rcParams) == before


def test_bars_of_the_breakdown_end_at_the_step_time() -> None:
    (axes,) = time_breakdown().axes
    step_s = sum(ACCOUNTS.values())  # 18.06
    ends = [bar.get_x() + bar.get_width() for container in axes.containers for bar in container]  # type: ignore[attr-defined]
    assert max(ends) == pytest.approx(step_s)
    assert "18.1 s" in [text.get_text() for text in texts_of(axes.figure)]  # type: ignore[arg-type]


def test_small_accounts_are_drawn_together_and_lose_no_time() -> None:
    accounts = {f"kernel_{i}": 0.01 for i in range(20)} | {"gemm": 10.0}
    (axes,) = plots_of_time.plot_time_breakdown({"static": accounts}).axes
    widths = [bar.get_width() for container in axes.containers for bar in container]  # type: ignore[attr-defined]
    assert sum(widths) == pytest.approx(10.2)
    assert len(widths) == 2  # gemm and "other compute"


def test_rank_panels_tell_work_from_exposed_communication() -> None:
    # A step of 8 s: compute 4 and 2 s, (4 + 2) / 2 / 8 = 38 %; communication 4 and 2 s, the same.
    parts = {"compute": [4.0, 2.0], "communication": [4.0, 2.0], "waiting": [0.0, 4.0]}
    figure = plots_of_time.plot_rank_step_time({"static": parts})
    shown = [text.get_text() for text in texts_of(figure)]
    assert "static\n38% compute, 38% exposed comm." in shown
    assert not any("busy" in text for text in shown)


@pytest.mark.parametrize("strategies", [1, 2, 3, 4])
def test_the_legend_of_rank_panels_is_inside_the_figure(strategies: int) -> None:
    layers = {name: [1.0, 2.0] for name in ("overhead", "compute", "communication", "waiting")}
    figure = plots_of_time.plot_rank_step_time({f"s{i}": layers for i in range(strategies)})
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_rank_panels_show_the_longest_step_whichever_comes_first() -> None:
    figure = plots_of_time.plot_rank_step_time({"short": {"compute": [1.0]}, "long": {"compute": [8.0]}})
    assert all(axes.get_ylim() == pytest.approx((0.0, 8.4)) for axes in figure.axes)


def test_many_rank_panels_make_rows() -> None:
    figure = plots_of_time.plot_rank_step_time({f"s{i}": {"compute": [1.0, 2.0]} for i in range(6)})
    assert len({round(axes.get_position().y0, 2) for axes in figure.axes}) == 2
    assert figure.get_size_inches()[0] < 2.5 * figure.get_size_inches()[1]


def test_groups_of_one_rank_have_a_scale_that_starts_at_one() -> None:
    ones = np.ones((4, 3))
    figure = plots_of_plans.plot_plan_groups(
        np.ones(12, dtype=np.int64), np.ones(12), ones, ranks_per_node=2, crossing=0, title="mine"
    )
    scale = figure.axes[-1]
    assert [text.get_text() for text in scale.get_yticklabels()] == ["1", "2"]
    assert len(figure.axes[1].lines) == 2  # between two nodes, dark on white


def test_speed_ups_are_over_the_base() -> None:
    figure = plots.plot_throughput_bars({"a": 3.0, "b": 1.5}, base="b")
    assert "3\n2.00×" in [text.get_text() for text in texts_of(figure)]


def test_scatter_reports_the_errors_it_shows() -> None:
    # errors 5 % and 20 %: median 12.5 %, one of two within 10 %
    figure = plots.plot_paper_against_prediction({"x": ([100.0, 200.0], [105.0, 160.0])})
    (axes,) = figure.axes
    assert "2 records: median error 12.5%, 50% within 10%" in axes.get_title(loc="left")


def test_one_record_is_one_record() -> None:
    figure = plots.plot_paper_against_prediction({"a": ([100.0], [105.0])})
    assert "\n1 record: median error 5.0%" in figure.axes[0].get_title(loc="left")


@pytest.mark.usefixtures("pictures")
def test_an_unwritable_plot_is_a_users_problem(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="cannot write the plot"):
        save_figure(throughput_bars(), tmp_path / "missing" / "plot")


def test_numbers_read_well() -> None:
    assert [format_tokens(n) for n in (1, 1000, 1024, 3 * 2**19, 2**21, 2**30)] == [
        "1",
        "1,000",
        "1K",
        "1,536K",
        "2M",
        "1,024M",
    ]
    assert [format_count(x) for x in (0, 0.5, 999.6, 12_288, 4.8e6, math.inf)] == [
        "0",
        "0.5",
        "1K",
        "12.3K",
        "4.8M",
        "inf",
    ]


def test_every_wait_has_its_place() -> None:
    groups = {name: account_group(name) for name in WAITS}
    assert {name for name, group in groups.items() if group == "waiting"} == {
        name for name in WAITS if name.startswith("wait_")
    }
    assert groups["gradient_sync"] == groups["parameter_gather"] == "communication"
    assert groups["data"] == groups["optimizer"] == "overhead"
    assert account_group("ring_merge") == account_group("small_kernels") == "compute"
    assert account_group("ring_wait") == account_group("offload_wait") == "communication"
    assert readable_name("parameter_gather") == "parameter gather"


def test_series_differ_in_colour_or_marker() -> None:
    names = {f"series {i}": None for i in range(40)}
    colours = list(colours_of(names).values())
    assert len({(colour, marker_of(i)) for i, colour in enumerate(colours)}) == 40
    assert set(colours) == set(PALETTE)
