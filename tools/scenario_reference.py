"""The tables of keys in docs/reference/scenarios.md, made from the keys themselves.

    python tools/scenario_reference.py           write them
    python tools/scenario_reference.py --check   1 when the page shows other ones

They stand between <!-- keys:basic --> or <!-- keys:expert --> and <!-- keys:end -->.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from hdpsim.cost_models.layout.layout import GROUPS, SWITCHES
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.scenario.values import Key
from hdpsim.simulator.find_own_strategy import OWN_WORDS
from hdpsim.simulator.settings import FIELDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "scenarios.md"
LARGER_UNITS = {"s": (("d", 86400), ("h", 3600), ("min", 60)), "B": (("GiB", 2**30), ("MiB", 2**20))}


def filled(page: str) -> str:
    """The page with the tables as they are now."""
    basic = [name for name, key in KEYS.items() if key.basic]
    tables = {"basic": _table(basic), "expert": _expert_tables()}
    for name, text in tables.items():
        head, begin, rest = page.partition(f"<!-- keys:{name} -->\n")
        _, end, tail = rest.partition("<!-- keys:end -->")
        assert begin and end, f"<!-- keys:{name} --> is missing, or the end below it"  # noqa: PT018
        page = head + begin + text + end + tail
    return page


def _expert_tables() -> str:
    """A table for every section; the switches of a layout stand group by group."""
    tables: dict[str, list[str]] = {}
    for name, key in KEYS.items():
        if not key.basic:
            tables.setdefault(_title(name), []).append(name)
    return "\n".join(f"### {title}\n\n{_table(rows)}" for title, rows in tables.items())


def _title(key: str) -> str:
    section, _, leaf = key.partition(".")
    if section != "layout":
        return f"`{section}`"
    group = SWITCHES[FIELDS.get(leaf, leaf)].group
    words = (GROUPS[group].__doc__ or "").partition("\n")[0].removesuffix(".")
    return f"`layout`: {words[0].lower()}{words[1:]}"


def _table(names: Sequence[str]) -> str:
    keys = ((name, KEYS[name]) for name in names)
    cells = ((f"`{name}`", _values(key), _default(key), _meaning(key)) for name, key in keys)
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]
    return "\n".join(("| Key | Values | Default | Meaning |", "|---|---|---|---|", *rows, ""))


def _meaning(key: Key) -> str:
    """A sentence, unless it begins with a value that some key may have (`zero1: ...`)."""
    first = re.match(r"[\w-]*", key.meaning)
    values = {choice for other in KEYS.values() for choice in other.parse.choices}
    if first is not None and first[0] in values:
        return key.described
    return key.described[0].upper() + key.described[1:]


def _values(key: Key) -> str:
    if key.parse.choices == (True, False):
        return "true, false"
    words = ", ".join(f"`{choice}`" for choice in key.parse.choices)
    if words and key.parse.words.endswith(OWN_WORDS):
        words += f"; or {OWN_WORDS.replace('my_module:function', '`my_module:function`')}"
    return words or re.sub(r"; or (\S+)$", r"; or `\1`", key.parse.words)


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.usual in (None, ""):
        return "-"
    return f"`{str(key.usual).lower() if isinstance(key.usual, bool) else _short(key.usual)}`"


def _short(default: object) -> str:
    """A default with the largest unit in which it is short: 2592000s is 30d."""
    found = re.fullmatch(r"([\d.]+)(s|B)", str(default))
    if found is None:
        return f"{default:g}" if isinstance(default, float) else str(default)
    for unit, size in LARGER_UNITS[found[2]]:
        count = Decimal(found[1]) / size
        if count >= 1 or (unit == "GiB" and count > 0):
            short = f"{count.normalize():f}"
            if len(short) <= 4:
                return f"{short}{unit}"
    return str(default)


def main() -> int:
    """Write or check; 1 when the page shows something else."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    shown = PAGE.read_text(encoding="utf-8")
    page = filled(shown)
    if not parser.parse_args().check:
        PAGE.write_text(page, encoding="utf-8")
    elif page != shown:
        print(f"{PAGE.name}: other keys; run python tools/scenario_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
