"""What people give a verb in Python: numbers, or texts as the options of the commands take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.experiments.output.amounts import parse_target
from hdpsim.experiments.scenario.overrides import override_texts, parse_override
from hdpsim.experiments.scenario.schema import strategy_name
from hdpsim.experiments.studies.comparing.strategy_variants import read_variants, split_variants
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES, check

Progress = Callable[..., AbstractContextManager[Callable[..., None]]]
"""`with progress(label, unit) as shown:` shows how far some work is, which calls `shown(done, total)`."""

Names = str | Iterable[str]
Counts = int | str | Iterable[int]


@contextmanager
def quiet(_label: str, _unit: str = "") -> Iterator[Callable[..., None]]:
    """Progress that shows nothing."""
    yield lambda *_told, **_more: None


def check_whole_number(name: str, value: int | None, kind: str) -> None:
    """Refuse what is no whole number of that *kind* (see `hdpsim.ranges`); nothing is fine."""
    if value is not None:
        check(kind, value, name)


def tokens_of(value: str | float | None) -> float | None:
    """Tokens as `"300B"` or a number."""
    if value is None:
        return None
    return parse_target(value if isinstance(value, str) else f"{value:.0f}")


def steps_of(value: int | str | None) -> int | None:
    """How many steps, as `"20"` or a number; None and "all": no limit."""
    if value is None or value == "all":
        return None
    given = str(value)
    steps = int(given) if given.isascii() and given.isdecimal() and len(given) <= 10 else 0
    if not RANGES["steps"].holds(steps):
        raise UserInputError(f"--steps: expected all or a whole number of at least 1, got {quoted(given)}")
    return steps


def share_of(name: str, value: str | float | None, *, may_be_zero: bool = False) -> float | None:
    """A share between 0 and 1 as `"1%"` or a number."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0 or not (share or may_be_zero):
        raise UserInputError(
            f"{name}: expected a share {'from' if may_be_zero else 'above'} 0 to below 100 % such as 1% or 0.01, "
            f"got {quoted(text)}"
        )
    return share


def names_of(name: str, value: Names) -> tuple[str, ...]:
    """Different names, in a list or with commas between them."""
    parts = tuple(part.strip() for part in (value.split(",") if isinstance(value, str) else value))
    if not all(parts) or len(set(parts)) != len(parts):
        shown = value if isinstance(value, str) else ", ".join(parts)
        raise UserInputError(f"{name}: expected different names separated by commas, got {quoted(shown)}")
    return parts


def counts_of(value: Counts) -> tuple[int, ...]:
    """Different numbers of GPUs, in a list or with commas between them: `"512,1K"`."""
    name = "--gpus"
    parts: Sequence[object]
    if isinstance(value, str):
        parts = [_count(part.strip()) for part in value.split(",")]
    else:
        parts = [value] if isinstance(value, int) else list(value)
    counts = tuple(part for part in parts if isinstance(part, int) and RANGES["gpus"].holds(part))
    if len(counts) != len(parts):
        raise UserInputError(
            f"{name}: expected whole numbers from {RANGES['gpus']} separated by commas (1024,2K; K = 1024), got "
            f"{quoted(str(value))}"
        )
    twice = [count for index, count in enumerate(counts) if count in counts[:index]]
    if twice:
        raise UserInputError(f"{name}: {twice[0]} is given more than once in {quoted(str(value))}")
    return counts


def refuse_twice(option: str, keys: Sequence[str], changes: Iterable[str]) -> None:
    """Refuse changes of keys that an option of the command sets, too."""
    for key, _ in map(parse_override, changes):
        if any(key == one or key.startswith(f"{one}.") for one in keys):
            raise UserInputError(f"{option} contradicts --set {key}; give one of them")


def _count(text: str) -> int | None:
    """A whole number, or one of 1024 each; None: neither."""
    number = text.removesuffix("K")
    if not (number.isascii() and number.isdecimal()) or len(number) > len(str(RANGES["gpus"].high)):
        return None
    return int(number) * (1024 if text.endswith("K") else 1)


def changes_of(given: str | Iterable[str | Mapping[str, object]] | Mapping[str, object]) -> tuple[str, ...]:
    """Changes to try one by one, each of one key or of several: `["layout.tp=4", {"layout.tp": 4, "layout.pp": 2}]`.

    A mapping alone is one change a key.
    """
    if isinstance(given, str | Mapping):
        return override_texts(given)
    return tuple(one if isinstance(one, str) else ",".join(override_texts(one)) for one in given)


def strategy_names(value: Names, name: str = "--strategies") -> tuple[str, ...]:
    """Names of strategies that exist."""
    names = names_of(name, value)
    problems: list[tuple[str, str]] = []
    for spelled in names:
        try:
            strategy_name(spelled)
        except ValueError as error:
            problems.append(("", str(error)))
    if problems:
        raise ScenarioError(tuple(problems), name)
    return names


def variant_names(value: Names) -> tuple[str, ...]:
    """Names of strategies and of variants such as static(cp=8), each as its row is called."""
    parts = split_variants(value) if isinstance(value, str) else tuple(value)
    return tuple(variant.label for variant in read_variants(parts))
