"""Charts of a page: drawn as SVG, so that they print, scale, and can be read without a pointer or a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from hdpsim.experiments.output.page.view import Rows
from hdpsim.experiments.output.plots.style import (
    ACCOUNT_GROUPS,
    ACCOUNT_SHADES,
    account_colours,
    account_group,
    readable_name,
    tidy_ticks,
)
from hdpsim.quoting import shortened

WIDTH, BAR, GAP, LEFT, RIGHT = 960, 30, 14, 170, 70
MOST_BARS, LONGEST_NAME = 24, 23
_OF_A_PIECE = frozenset({"cell", "account", "group", "seconds", "share"})
"""Columns that do not say whose bar a piece belongs to."""
STRIP, MOST_COLUMNS = 110, 64
"""Height of a strip of ranks, and columns in it: the keyboard steps through all of them."""
_STRIP_COLOURS = {
    group: ACCOUNT_SHADES[group][shade] for group, shade in zip(ACCOUNT_GROUPS, (1, 3, 1, 4), strict=True)
}
SMALLEST_LABEL = 0.055
"""Share of the longest bar from which a piece has its name in it."""
_PLOT = {"left": 96, "top": 14, "width": 820, "height": 320, "bottom": 52}


def account_bars(rows: Rows) -> str:
    """Where the time goes: a bar of accounts for each strategy, or cell of a sweep; empty: none, or too many.

    Accounts keep their colours in every plot; each piece says its name where it is long enough, and all of it to a
    pointer, to the keyboard and to readers of screens.
    """
    bars: dict[str, list[tuple[str, str, float]]] = {}
    for row in rows:
        seconds = float(str(row.get("seconds") or 0.0))
        account, group = str(row.get("account", "")), str(row.get("group", ""))
        if seconds > 0.0 and account and group:
            name = ", ".join(str(value) for key, value in row.items() if key not in _OF_A_PIECE)
            bars.setdefault(name, []).append((account, group, seconds))
    if not bars or len(bars) > MOST_BARS:
        return ""
    longest = max(sum(piece[2] for piece in pieces) for pieces in bars.values())
    accounts = list(dict.fromkeys(account for pieces in bars.values() for account, _, _ in pieces))
    colours, scale = account_colours(accounts), (WIDTH - LEFT - RIGHT) / longest
    lines = []
    for number, (strategy, pieces) in enumerate(bars.items()):
        top, x = GAP + number * (BAR + GAP), float(LEFT)
        lines.append(_name(strategy, top + BAR / 2))
        total = sum(seconds for _, _, seconds in pieces)
        for account, group, seconds in sorted(pieces, key=lambda piece: ACCOUNT_GROUPS.index(piece[1])):
            width = seconds * scale
            words = f"{strategy}, {readable_name(account)} ({group}): {seconds:.3g} s, {seconds / total:.1%}"
            drawn = [
                f'<rect x="{x:.1f}" y="{top}" width="{max(width, 0.5):.1f}" '
                f'height="{BAR}" fill="{colours[account]}"><title>{escape(words)}</title></rect>'
            ]
            if width > SMALLEST_LABEL * (WIDTH - LEFT - RIGHT) and len(account) * 6.2 < width:
                at = f'x="{x + width / 2:.1f}" y="{top + BAR / 2 + 4:.0f}"'
                name = escape(readable_name(account))
                drawn.append(f'<text class="in" fill="{_ink(colours[account])}" {at}>{name}</text>')
            lines.append(piece(words, drawn, f" {escape(group)}"))
            x += width
        lines.append(f'<text class="total" x="{x + 6:.1f}" y="{top + BAR / 2 + 5:.0f}">{total:.4g} s</text>')
    height = GAP + len(bars) * (BAR + GAP)
    return _svg(height, "Where the time of a step goes, by strategy", lines)


def rank_strips(rows: Rows) -> str:
    """What every rank does in a step, a strip for each strategy; empty where there is none.

    A column is a rank, or neighbours where they are many: from the bottom compute, communication, overhead, waiting.
    """
    strategies: dict[str, dict[int, list[dict[str, float]]]] = {}
    for row in rows:
        ranks = strategies.setdefault(str(row["strategy"]), {})
        ranks.setdefault(int(str(row["rank"])), []).append(_by_group(row))  # one of each stage
    steps = {name: sum(next(iter(ranks.values()))[0].values()) for name, ranks in strategies.items()}
    if not steps or max(steps.values()) <= 0.0:
        return ""
    scale, lines = STRIP / max(steps.values()), []
    for number, (strategy, ranks) in enumerate(strategies.items()):
        floor = (number + 1) * (STRIP + 2 * GAP)
        lines.append(_name(strategy, floor - steps[strategy] * scale / 2))
        known = sorted(ranks)
        together = -(-len(known) // MOST_COLUMNS)
        width = (WIDTH - LEFT - RIGHT) / -(-len(known) // together)
        for place in range(0, len(known), together):
            strip_ranks = known[place : place + together]
            stages = [parts for rank in strip_ranks for parts in ranks[rank]]
            mean = {group: sum(parts[group] for parts in stages) / len(stages) for group in ACCOUNT_GROUPS}
            ranks_shown = (
                f"rank {strip_ranks[0]}"
                if len(strip_ranks) == 1
                else f"ranks {strip_ranks[0]} to {strip_ranks[-1]}"
            )
            parts = ", ".join(f"{group} {seconds:.3g} s" for group, seconds in mean.items())
            words, drawn = f"{strategy}, {ranks_shown}: {parts}", []
            x, y = LEFT + place // together * width, float(floor)
            for group, seconds in mean.items():
                y -= seconds * scale
                drawn.append(
                    f'<rect class="strip" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{seconds * scale:.2f}" '
                    f'fill="{_STRIP_COLOURS[group]}"/>'
                )
            lines.append(piece(words, [*drawn, f"<title>{escape(words)}</title>"]))
        top = floor - steps[strategy] * scale
        lines.append(
            f'<text class="total" x="{WIDTH - RIGHT + 6}" y="{top + 10:.0f}">{steps[strategy]:.4g} s</text>'
        )
    foot = len(strategies) * (STRIP + 2 * GAP) + 20
    for place, (group, colour) in enumerate(_STRIP_COLOURS.items()):
        x = LEFT + 190 * place
        lines.append(f'<rect x="{x}" y="{foot}" width="14" height="14" fill="{colour}"/>')
        lines.append(f'<text x="{x + 20}" y="{foot + 12}">{group}</text>')
    return _svg(
        foot + 24, "What every rank does in the step of the first batch, in the order of ranks", lines
    )


def piece(words: str, drawn: Sequence[str], kind: str = "", *, stop: int = 0) -> str:
    """What is drawn as one piece, which says its *words* to a pointer, to the keyboard and to readers of screens.

    *stop*: of the keyboard; -1: the arrow keys alone lead there.
    """
    said = f'aria-label="{escape(words)}" data-words="{escape(words)}"'
    return f'<g class="piece{kind}" tabindex="{stop}" role="img" {said}>{"".join(drawn)}</g>'


def _name(text: str, middle: float) -> str:
    """The name at the left of a bar or strip."""
    return f'<text class="name" x="{LEFT - 10}" y="{middle + 5:.0f}">{escape(shortened(text, LONGEST_NAME))}</text>'


def _by_group(row: Mapping[str, object]) -> dict[str, float]:
    """Seconds of a rank and stage by kind of account."""
    parts = dict.fromkeys(ACCOUNT_GROUPS, 0.0)
    for name, value in row.items():
        if name.endswith("_s"):
            parts[account_group(name.removesuffix("_s"))] += float(str(value))
    return parts


def candidate_dots(rows: Rows) -> str:
    """Throughput against memory of the candidates of a search; empty where there are fewer than two."""
    dots = [
        (float(str(row["memory_gib"])), float(str(row["tokens_per_s"])), str(row.get("layout", "")))
        for row in rows
        if _positive(row.get("memory_gib")) and _positive(row.get("tokens_per_s"))
    ]
    if len(dots) < 2:
        return ""
    most_gib, most_rate = max(dot[0] for dot in dots), max(dot[1] for dot in dots)
    left, top, width, height = (_PLOT[key] for key in ("left", "top", "width", "height"))
    x_ticks, y_ticks = tidy_ticks(most_gib), tidy_ticks(most_rate)
    right, up = width / x_ticks[-1], height / y_ticks[-1]
    lines = [*_axes(x_ticks, y_ticks)]
    for gib, rate, layout in dots:
        words = f"{layout}: {rate:,.0f} tokens/s, {gib:.1f} GiB"
        x, y = left + gib * right, top + height - rate * up
        dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7"><title>{escape(words)}</title></circle>'
        lines.append(piece(words, [dot]))
    return _svg(top + height + _PLOT["bottom"], "Candidates: throughput against memory", lines)


def _axes(x_ticks: Sequence[float], y_ticks: Sequence[float]) -> Iterator[str]:
    left, top, width, height = (_PLOT[key] for key in ("left", "top", "width", "height"))
    for tick in x_ticks:
        x = left + width * tick / x_ticks[-1]
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{top + height + 18}">{tick:,.6g}</text>'
    for tick in y_ticks:
        y = top + height * (1.0 - tick / y_ticks[-1])
        yield f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="name" x="{left - 8}" y="{y + 4:.1f}">{tick:,.6g}</text>'
    yield f'<text class="tick" x="{left + width / 2:.0f}" y="{top + height + 40}">memory per GPU, GiB</text>'
    yield (f'<text class="tick" transform="rotate(-90)" x="{-(top + height / 2):.0f}" y="14">tokens/s</text>')


def _svg(height: float, words: str, lines: Sequence[str]) -> str:
    box, label = f"0 0 {WIDTH} {height:.0f}", escape(words)
    head = f'<svg class="chart" viewBox="{box}" role="group" aria-label="{label}">'
    return "\n".join((head, *lines, "</svg>"))


def _ink(colour: str) -> str:
    """Black or white, whichever stands out on a colour (#RRGGBB): by its relative luminance (WCAG 2)."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255.0 for place in (1, 3, 5))
    return "#000000" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18 else "#FFFFFF"


def _positive(value: object) -> bool:
    try:
        return float(str(value)) > 0.0
    except ValueError:
        return False
