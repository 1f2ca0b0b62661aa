"""How hdpsim's plots look, how their numbers read, and how they are saved.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any kind of colour vision
can tell apart. Plots use matplotlib's object interface: no display, no global state, safe in worker processes.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.experiments.output.amounts import large_amount
from hdpsim.experiments.output.files.out_file import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#1A1A1A")
"""Okabe and Ito, the strongest first; their yellow, too faint for dots and lines on white, is left out."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
INK = "#222222"
SOFT = "#5C5C5C"
GRID = "#DDDDDD"

_TITLE_PT, _CAPTION_PT, _LEADING, _EDGE_IN = 11.0, 8.0, 1.3, 0.07
_EM = {"normal": 0.6, "bold": 0.68}
"""Widths of a character of DejaVu Sans, as parts of its size, that hardly a line exceeds in the mean."""

_STRATEGY_COLOURS = {
    "static": "#8C8C8C",
    "best-static": "#4D4D4D",
    "hdp-naive": "#E69F00",
    "hdp-balance": "#56B4E9",
    "hdp-opt": "#0072B2",
}

ACCOUNT_GROUPS = ("compute", "communication", "overhead", "waiting")
"""The kinds of accounts. Communication is what compute does not hide: it is no work."""

ACCOUNT_SHADES = {
    "compute": ("#08457E", "#0072B2", "#3A94CC", "#7AB8E0", "#A9D3EE", "#D3E8F7"),
    "communication": ("#9A3F00", "#D55E00", "#EA8A2E", "#E69F00", "#F3BF55", "#F9DDA0"),
    "overhead": ("#00694C", "#009E73", "#4FBF9F", "#93D8C3", "#C5EADF", "#E0F4EE"),
    "waiting": ("#5E5E5E", "#7D7D7D", "#9B9B9B", "#B8B8B8", "#D2D2D2", "#E8E8E8"),
}
"""Dark to light per part of the step; the parts themselves differ in hue."""

_SHADE_OF = {
    "gemm": 0, "attention": 1, "small_kernels": 2, "ring_merge": 3, "recompute": 4, "logits": 5,
    "tp_communication": 0, "ring_wait": 1, "expert_all_to_all": 2, "gradient_sync": 3, "layer_gather": 4,
    "optimizer": 0, "host": 1, "data": 2, "planning": 3,
    "wait_gradients": 0, "wait_group": 1, "wait_pipeline": 2, "wait_stages": 3, "wait_step_end": 4,
}  # fmt: skip
"""An account looks the same in every plot; those that are seldom seen share the lightest shade of their part."""

_GROUPS = {"ring_merge": "compute", "host": "overhead"}
"""Accounts that the words below would put in the wrong place."""

_WAITING = ("wait", "bubble", "idle")
_OVERHEAD = ("data", "optimizer", "planning", "launch", "loading")
_COMMUNICATION = (
    "gather", "scatter", "reduce", "all_to_all", "ring", "transfer", "sync", "send", "comm", "offload"
)  # fmt: skip


@cache
def _looks() -> Any:
    import matplotlib as mpl

    return mpl.rc_params_from_file(shipped("experiments/data/plots.mplstyle"), use_default_template=False)


@contextmanager
def style() -> Iterator[None]:
    """Set hdpsim's look for the plots made inside the block, and restore the caller's afterwards."""
    import matplotlib as mpl

    with mpl.rc_context(_looks()):
        yield


@contextmanager
def figure_and_axes(
    width_in: float,
    height_in: float,
    rows: int = 1,
    columns: int = 1,
    *,
    share_y: bool = False,
    heights: Sequence[float] = (),
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of hdpsim's look without any window behind it, and its axes in reading order.

    *heights*: of rows, if unequal.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
        ratios = list(heights) or None
        grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y, height_ratios=ratios)
        yield figure, [axes for row in grid for axes in row]


def headed(figure: Figure, title: str) -> None:
    """Give a figure of several panels its title."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")


def beside(axes: Axes, text: str, point: tuple[float, float]) -> None:
    """Write *text* to the right of a point."""
    axes.annotate(text, point, (5, 0), va="center", textcoords="offset points", fontsize=9)


def captioned(figure: Figure, lines: Sequence[str]) -> Figure:
    """Put a head on a figure: its title, and below it *lines* that say what it is about.

    The head is a strip of its own on top of what was drawn, so that nothing can lie over it; what is too long for the
    figure's width goes on in another line.
    """
    width_in, height_in = figure.get_size_inches()
    title = figure.get_suptitle()
    titled = [axes for axes in figure.axes if axes.get_title(loc="left")]
    if title:
        figure.suptitle("")
    elif len(titled) == 1 and titled[0] is figure.axes[0]:
        title = titled[0].get_title(loc="left")
        titled[0].set_title("", loc="left")
    texts = [(line, _TITLE_PT, "bold", INK) for line in title.split("\n") if line]
    texts += [(line, _CAPTION_PT, "normal", SOFT) for line in lines if line]
    wrapped = [
        (part, size, weight, colour)
        for line, size, weight, colour in texts
        for part in textwrap.wrap(line, int(72.0 * (width_in - 2 * _EDGE_IN) / (_EM[weight] * size)))
    ]
    strip_in = 2 * _EDGE_IN + sum(_LEADING * size / 72.0 for _, size, _, _ in wrapped)
    whole_in = height_in + strip_in
    figure.set_size_inches(width_in, whole_in)
    top_in = whole_in - _EDGE_IN
    for part, size, weight, colour in wrapped:
        figure.text(_EDGE_IN / width_in, top_in / whole_in, part, fontsize=size, fontweight=weight, color=colour,
                    va="top", family="DejaVu Sans", parse_math=False)  # fmt: skip
        top_in -= _LEADING * size / 72.0
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0.0, 0.0, 1.0, height_in / whole_in))  # type: ignore[call-arg]
    return figure


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write *figure* as STEM.png and STEM.svg and return both paths; equal figures give equal bytes."""
    paths = (Path(f"{stem}.png"), Path(f"{stem}.svg"))
    for path in paths:
        write_figure(figure, path)
    return paths


def write_figure(figure: Figure, path: Path) -> None:
    """Write *figure* as .png or .svg, whichever the path ends with."""
    with replacing(path, "plot") as target:
        _draw(figure, target, path.suffix[1:].lower())


def svg_of(figure: Figure) -> str:
    """The SVG of a figure, as save_figure writes it."""
    written = io.StringIO()
    _draw(figure, written, "svg")
    return written.getvalue()


def _draw(figure: Figure, target: IO[Any], kind: str) -> None:
    metadata = {"Date": None, "Creator": "hdpsim"} if kind == "svg" else {"Software": "hdpsim"}
    with style(), warnings.catch_warnings():
        # of a character of a name that the font has not a box is drawn
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)


def colours_of(names: Mapping[str, object]) -> dict[str, str]:
    """Return a colour for every name: fixed for hdpsim's own strategies, from the palette for others."""
    fixed = {name: _STRATEGY_COLOURS[name] for name in names if name in _STRATEGY_COLOURS}
    rest = cycle([colour for colour in PALETTE if colour not in fixed.values()])
    return {name: fixed.get(name) or next(rest) for name in names}


def marker_of(position: int) -> str:
    """Return a marker for the series in that position: neighbours differ, and so do series of equal colour."""
    return MARKERS[(position + position // len(PALETTE)) % len(MARKERS)]


def format_tokens(tokens: float) -> str:
    """Return a token count as people name lengths, in binary thousands.

    >>> format_tokens(262_144), format_tokens(2 * 2**20), format_tokens(12_345), format_tokens(1)
    ('256K', '2M', '12,345', '1')
    """
    for scale, letter in ((2**20, "M"), (2**10, "K")):
        if tokens >= scale and tokens % scale == 0:
            return f"{tokens / scale:,.0f}{letter}"
    return f"{tokens:,.0f}"


def format_count(value: float) -> str:
    """Return a number with three significant digits and a decimal K, M, B or T.

    >>> format_count(1_234_567), format_count(12_288), format_count(950), format_count(0.25), format_count(999_999)
    ('1.23M', '12.3K', '950', '0.25', '1M')
    """
    return large_amount(value) if math.isfinite(value) else f"{value:g}"


def readable_name(account: str) -> str:
    """Return an account's name as words: "tp_all_gather" -> "TP all gather".

    >>> readable_name("tp_all_gather"), readable_name("wait_pipeline")
    ('TP all gather', 'wait pipeline')
    """
    acronyms = {"tp", "cp", "pp", "dp", "ep", "hdp", "moe", "mlp", "gemm", "qkv", "kv"}
    words = account.replace("-", "_").split("_")
    return " ".join(word.upper() if word in acronyms else word for word in words)


def account_group(account: str) -> str:
    """Return which part of the step an account belongs to, for colours and order.

    >>> [account_group(name) for name in ("attention", "cp_ring", "optimizer", "wait_group")]
    ['compute', 'communication', 'overhead', 'waiting']
    """
    name = account.lower()
    if name in _GROUPS:
        return _GROUPS[name]
    if name.startswith(_WAITING):
        return "waiting"
    if name.startswith(_OVERHEAD):
        return "overhead"
    if any(word in name for word in _COMMUNICATION):
        return "communication"
    return "compute"


def account_colours(accounts: Iterable[str]) -> dict[str, str]:
    """The colour of every account, the same in all plots: the hue of its part of the step, in a shade of its own."""
    return {name: ACCOUNT_SHADES[account_group(name)][_SHADE_OF.get(name, -1)] for name in accounts}


def tidy_ticks(largest: float) -> list[float]:
    """Round numbers from 0 to one that is not less than *largest*, four to seven of them.

    >>> tidy_ticks(79.2), tidy_ticks(0.31)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 0.1, 0.2, 0.3, 0.4])
    """
    power = 10.0 ** math.floor(math.log10(largest))
    step = next(each * power for each in (0.2, 0.5, 1.0, 2.0) if largest / (each * power) <= 6.0)
    count = math.ceil(round(largest / step, 9))
    return [round(number * step, 12) for number in range(count + 1)]


def count_axis(axis: Axis) -> None:
    """Label the ticks of *axis* (axes.xaxis or axes.yaxis) as 1.5K, 20M, ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    class Locator(LogLocator):
        """1, 2 and 5 of every decade; on less than a decade round numbers, of which there are more."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            if vmin > 0.0 and vmax < 12.0 * vmin:
                return MaxNLocator(nbins=6).tick_values(vmin, vmax)
            return super().tick_values(vmin, vmax)

    if axis.get_scale() == "log":
        axis.set_major_locator(Locator(subs=(1.0, 2.0, 5.0), numticks=12))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    axis.set_minor_formatter(NullFormatter())


def base2_ticks(axes: Axes, values: list[float], labels: list[str]) -> None:
    """Give *axes* a logarithmic x axis with one tick per value; close labels are slanted, closer ones left out."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    order = sorted(range(len(values)), key=values.__getitem__)
    span = math.log2(values[order[-1]] / values[order[0]]) or 1.0
    slanted = any(math.log2(values[b] / values[a]) < span / 8 for a, b in pairwise(order))
    least = span / (22 if slanted else 8)
    kept = order[:1]
    for i in order[1:]:
        if math.log2(values[i] / values[kept[-1]]) >= least:
            kept.append(i)
    axes.set_xticks([values[i] for i in kept], [labels[i] for i in kept])
    if slanted:
        axes.tick_params(axis="x", rotation=50)
