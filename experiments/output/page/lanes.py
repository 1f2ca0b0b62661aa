"""The chart of passes on a page: when chosen ranks do what, a lane for each of their stages.

Every rank is a picture of its own on one scale of time, so that the page can show one and hide the others. A lane is
one stop of the keyboard; the arrow keys step through its passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from hdpsim.experiments.output.page.charts import piece
from hdpsim.experiments.output.page.view import Rows
from hdpsim.experiments.output.plots.passes import COMPUTE, OTHERS, Lane, fitting_lanes, pieces
from hdpsim.experiments.output.plots.style import readable_name, tidy_ticks

WIDTH, LEFT, RIGHT = 960, 90, 24
HEIGHT, GAP, HEAD, FOOT = 24, 6, 26, 26
MOST_LANES, MOST_PASSES = 96, 4_000
"""Of a page: 4,000 passes are about 2 MB."""
LABELLED, LARGE = 30, 46
"""Pixels from which a pass says its direction and number, and from which both in full."""
_LETTERS = {"forward": "F", "backward": "B", "weight gradient": "W"}
_PATTERNS = {
    "communication": '<path d="M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2" stroke="#ffffff" stroke-width="1.2"/>',
    "overhead": '<path d="M0,0 l6,6 M0,6 l6,-6" stroke="#ffffff" stroke-width="1"/>',
    "waiting": '<circle cx="3" cy="3" r="1.2" fill="#333333"/>',
}
"""Marks by which kinds are told without colours, 6 by 6."""


def pass_lanes(rows: Rows) -> str:
    """The chart, as HTML; empty where there is none."""
    shown = fitting_lanes(rows, MOST_LANES, MOST_PASSES)
    if not shown:
        return ""
    end_s = max(float(str(row["end_s"])) for lane in shown.values() for row in lane)
    ranks: dict[tuple[str, int], dict[Lane, list[Mapping[str, object]]]] = {}
    for lane, passes in shown.items():
        ranks.setdefault(lane[:2], {})[lane] = passes
    pictures = [_rank(lanes, end_s) for lanes in ranks.values()]
    return "\n".join(['<div class="lanes">', _legend(), *pictures, "</div>"])


def _rank(lanes: Mapping[Lane, Sequence[Mapping[str, object]]], end_s: float) -> str:
    (strategy, rank, _, _), chosen = next(iter(lanes)), next(iter(lanes.values()))[0]["chosen"]
    name = f"{strategy}, rank {rank}, {chosen}"
    ticks = [tick for tick in tidy_ticks(end_s) if tick <= end_s]
    scale = (WIDTH - LEFT - RIGHT) / end_s
    foot = HEAD + len(lanes) * (HEIGHT + GAP)
    lines = [f'<text class="group" x="0" y="16">{escape(name)}</text>']
    for tick in ticks:
        x = LEFT + tick * scale
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD}" y2="{foot}"/>')
        lines.append(f'<text class="tick" x="{x:.1f}" y="{foot + 16}">{tick:g} s</text>')
    for place, (lane, passes) in enumerate(lanes.items()):
        top = HEAD + place * (HEIGHT + GAP)
        stage = f"stage {lane[2]}" + (f" +{lane[3]}" if lane[3] else "")
        busy = sum(float(str(row["end_s"])) - float(str(row["start_s"])) for row in passes)
        spent = f"{len(passes)} passes, {busy:.4g} of {end_s:.4g} s"
        words = f"{name}, {stage}: {spent}; arrow keys go through them"
        lines.append(
            f'<g class="lane" tabindex="0" role="group" aria-label="{escape(words)}">'
            f'<text class="name" x="{LEFT - 8}" y="{top + 17}">{stage}</text>'
        )
        lines += [_pass(row, name, top, scale) for row in passes]
        lines.append("</g>")
    box = f"0 0 {WIDTH} {foot + FOOT}"
    return (
        f'<div class="rank" data-name="{escape(name)}"><svg class="chart" viewBox="{box}" role="group" '
        f'aria-label="{escape(name)}">' + "\n".join(lines) + "</svg></div>"
    )


def _pass(row: Mapping[str, object], name: str, top: int, scale: float) -> str:
    words = f"{name}, stage {row['stage']}: {_words(row)}"
    drawn = []
    for kind, start, seconds, colour in pieces(row):
        width = seconds * scale
        if width < 0.05:
            continue
        at = f'x="{LEFT + start * scale:.2f}" y="{top}" width="{width:.2f}" height="{HEIGHT}"'
        drawn.append(f'<rect {at} fill="{colour}"/>')
        if kind in _PATTERNS and width >= 2.0:
            drawn.append(f'<rect {at} fill="url(#pass-{kind})"/>')
        if kind in _LETTERS and width >= LABELLED:
            text = f"{_LETTERS[kind]}{_number(row, 'micro_batch')}" if width >= LARGE else _LETTERS[kind]
            ink = "#000000" if kind == "forward" else "#FFFFFF"
            x = LEFT + start * scale + width / 2
            drawn.append(f'<text class="in" fill="{ink}" x="{x:.1f}" y="{top + 16}">{text}</text>')
    return piece(words, [*drawn, f"<title>{escape(words)}</title>"], stop=-1)


def _words(row: Mapping[str, object]) -> str:
    start, end = (float(str(row[name])) for name in ("start_s", "end_s"))
    when = f"{start:.4g} to {end:.4g} s"
    if row["pass"] not in COMPUTE:
        return f"{readable_name(str(row['pass']))}, {when}"
    ranks = _number(row, "group_size")
    what = (
        f"{row['pass']} of micro-batch {_number(row, 'micro_batch')} ({_number(row, 'tokens'):,} tokens in "
        f"{_number(row, 'sequences')} sequences, on {ranks} {'rank' if ranks == 1 else 'ranks'})"
    )
    spent = ", ".join(
        f"{group} {seconds:.3g} s"
        for group in ("compute", *OTHERS)
        if (seconds := float(str(row[f"{group}_s"]))) > 0.0
    )
    return f"{what}, {when}: {spent}"


def _number(row: Mapping[str, object], name: str) -> int:
    return int(float(str(row[name])))


def _legend() -> str:
    """What the colours and marks mean, and the marks themselves."""
    box = 'width="6" height="6" patternUnits="userSpaceOnUse"'
    marks = (f'<pattern id="pass-{kind}" {box}>{mark}</pattern>' for kind, mark in _PATTERNS.items())
    lines = ["<defs>", *marks, "</defs>"]
    x = 0
    for kind, colour in (COMPUTE | OTHERS).items():
        lines.append(f'<rect x="{x}" y="4" width="22" height="14" fill="{colour}"/>')
        if kind in _PATTERNS:
            lines.append(f'<rect x="{x}" y="4" width="22" height="14" fill="url(#pass-{kind})"/>')
        words = {"waiting": "waiting for the group; between passes: empty"}.get(kind, kind)
        lines.append(f'<text x="{x + 28}" y="16">{words}</text>')
        x += 44 + 8 * len(words)
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} 24" role="img" aria-label="Legend">'
    return "".join((head, *lines, "</svg>"))
