"""Options to facts and facts to options, by the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from hdpsim.cost_models.layout.pipeline_cut import is_cut, stages_of
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.other_tools.options import Option, Unread, Value
from hdpsim.experiments.other_tools.table import Case, Choice, Number, Tool, holds
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.quoting import LONGEST_NAME, quoted, shortened

_LAYERS = re.compile(r"[\d\s\[\]()+*,]{1,400}")


@dataclass(slots=True, kw_only=True)
class Read:
    """What a file says, as keys of a scenario and facts about a run (`run.*`).

    Attributes:
        facts: key -> value.
        origins: key -> the option that says so, or that the tool's default does.
        unknown: options that no table has.
        without_effect: options that change neither time nor memory, here or ever.
        not_modelled: options that do, with what the scenario does not say of them.
        used: options that a number or a case was read from.
    """

    facts: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def set(self, key: str, value: object, origin: str) -> None:
        """Note a fact."""
        self.facts[key], self.origins[key] = value, origin

    def whole_number(self, key: str, otherwise: int = 1) -> int:
        """A fact that is a whole number."""
        return int(str(self.facts.get(key, otherwise)))


def read_options(options: Iterable[Option], tool: Tool, where: str, base: Model | None = None) -> Read:
    """What the options say, of the model *base* where they do not say it themselves.

    Raises:
        UserInputError: an option is given twice, is none of the tool's values, contradicts another, or has a value that
            only a run would know.
        InfeasibleError: it cannot be simulated.
    """
    given = _by_name(options, tool, where)
    read = Read()
    if base is not None:
        read.set("model.experts", base.experts, "default of the model")
    _check_together(given, tool, where)
    for number in tool.numbers:
        _read_number(number, given, tool, read, where)
    _read_chunks(read, base, _more_units(given, tool), where)
    for choice in tool.choices:
        _read_choice(choice, given, tool, read, where)
    for name, option in given.items():
        if name in tool.names:
            continue
        patterns = (*tool.not_modelled, *tool.without_effect)
        closest = max((pattern for pattern in patterns if fnmatchcase(name, pattern)), key=len, default=None)
        remark, shown = tool.not_modelled.get(closest or ""), spelled(option.name, tool)
        if closest is not None and (remark is None or option.value in (None, False)):
            read.without_effect.append(shown)
        elif remark is not None:
            read.not_modelled.append(f"{shown}: {remark}")
        elif not name.startswith("$"):  # any program has variables of its own
            read.unknown.append(shown)
    read.without_effect = [name for name in read.without_effect if name not in read.used]
    return read


def _by_name(options: Iterable[Option], tool: Tool, where: str) -> dict[str, Option]:
    """The options by the names of the table; the same one twice must say the same."""
    given: dict[str, Option] = {}
    for option in options:
        name = _renamed(option.name, tool.rename)
        before = given.get(name)
        meant = name in tool.names
        if before is not None and meant and _plain(before.value) != _plain(option.value):
            raise UserInputError(
                f"{_at(option, tool, where)}: {_value_words(option.value)} contradicts {_value_words(before.value)}"
                + (f" in line {before.line}" if before.line else "")
            )
        given[name] = option
    return given


def _renamed(name: str, rename: Mapping[str, str]) -> str:
    """The table's name of an option, whose beginning other releases or layouts of the file call otherwise."""
    for old in sorted(rename, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return rename[old] + name.removeprefix(old)
    return name


def _check_together(given: Mapping[str, Option], tool: Tool, where: str) -> None:
    values = {name: option.value for name, option in given.items()}
    for rule in tool.contradictions:
        asked = all(_is(values.get(name), value) for name, value in rule.given.items())
        if asked and not all(_is(values.get(name), value) for name, value in rule.without.items()):
            option = given[next(iter(rule.given))]
            raise UserInputError(f"{_at(option, tool, where)}: {rule.says}")


def _read_number(number: Number, given: Mapping[str, Option], tool: Tool, read: Read, where: str) -> None:
    written = [given[name] for name in number.names if name in given and given[name].value is not None]
    values = [_number_of(option, number, tool, where) for option in written]
    if any(value != values[0] for value in values):
        names = " and ".join(f"{option.name} {_value_words(option.value)}" for option in written)
        raise UserInputError(f"{_at(written[-1], tool, where)}: {names} contradict each other")
    if values:
        read.used |= {spelled(option.name, tool) for option in written}
        read.set(number.key, values[0], spelled(written[0].name, tool))
    elif (
        tool.complete
        and number.absent is not None
        and number.key not in read.facts
        and holds(number.when, read.facts)
    ):
        read.set(number.key, number.absent, f"default of {tool.title}")


def _number_of(option: Option, number: Number, tool: Tool, where: str) -> object:
    value = option.value
    if isinstance(value, Unread):
        raise UserInputError(f"{_at(option, tool, where)}: {value.why}; write the value into the file")
    if value is True or value is False:
        raise UserInputError(f"{_at(option, tool, where)}: expected a value, got {_value_words(value)}")
    takes_all = number.notation in ("layers", "cut")
    text = str(value).split()[0] if not takes_all and str(value).split() else str(value)
    try:
        read = NOTATIONS[number.notation][0](text)
        if number.key in KEYS:
            KEYS[number.key].parse(read)
        if number.key.startswith("run.") and isinstance(read, int) and read < number.least:
            raise ValueError(f"expected a whole number of at least {number.least}, got {read}")
        return read
    except ValueError as error:
        raise UserInputError(f"{_at(option, tool, where)}: {error}") from None


def _more_units(given: Mapping[str, Option], tool: Tool) -> range:
    """What may be dealt to stages beside layers: embedding and output projection."""
    if tool.style == "toml":
        return range(3)  # torchtitan takes as many stages as the layers need, its ends a layer less each
    counted = [name for name, option in given.items() if "account-for" in name and option.value is True]
    return range(len(counted), len(counted) + 1)


def _read_chunks(read: Read, base: Model | None, more: range, where: str) -> None:
    """Model chunks of a stage, from their number or from the layers of one."""
    facts = read.facts
    pp, layers = read.whole_number("layout.pp"), facts.get("model.layers", base and base.layers)
    chunks_by_key = dict[str, int]()
    if "run.chunks" in facts:
        chunks_by_key["run.chunks"] = read.whole_number("run.chunks")
    if "run.layers_per_chunk" in facts and isinstance(layers, int) and pp > 1:
        deal = pp * max(1, read.whole_number("run.layers_per_chunk"))
        units = next((layers + units for units in more if (layers + units) % deal == 0), None)
        if units is None:
            raise UserInputError(
                f"{where}: {read.origins['run.layers_per_chunk']}: {layers} layers do not divide by pp x "
                f"layers of a chunk = {deal}"
            )
        chunks_by_key["run.layers_per_chunk"] = units // deal
    cut = facts.get("layout.pipeline_layout")
    if isinstance(cut, str) and is_cut(cut) and pp > 1 and len(stages_of(cut)) % pp == 0:
        chunks_by_key["layout.pipeline_layout"] = len(stages_of(cut)) // pp
    if len(set(chunks_by_key.values())) > 1:
        names = " and ".join(read.origins[key] for key in chunks_by_key)
        raise UserInputError(
            f"{where}: {names} contradict each other: {' and '.join(map(str, chunks_by_key.values()))} chunks"
        )
    for key, chunks in chunks_by_key.items():
        if chunks > 1 and pp > 1:
            read.set("layout.vpp", chunks, read.origins[key])
            read.set("layout.schedule", "interleaved", read.origins[key])
    facts["run.interleaved"] = "layout.vpp" in facts


def _read_choice(choice: Choice, given: Mapping[str, Option], tool: Tool, read: Read, where: str) -> None:
    of_choice = {name: given[name] for name in sorted(choice.names) if name in given}
    asked = {name: option for name, option in of_choice.items() if option.value is not None}
    if not holds(choice.when, read.facts):
        read.without_effect += [spelled(name, tool) for name in of_choice]
        return
    if not asked and not tool.complete:
        return
    for name, option in list(asked.items()):
        allowed = [case.options[name] for case in choice.cases if name in case.options]
        if isinstance(option.value, Unread):
            if all(value is True for value in allowed) and "condition" not in option.value.why:
                read.unknown.append(f"(after {spelled(option.name, tool)}: {option.value.why})")
                of_choice[name] = asked[name] = replace(option, value=True)
                continue
            raise UserInputError(
                f"{_at(option, tool, where)}: {option.value.why}; write the value into the file"
            )
        if option.value is not False and not any(_is(option.value, value) for value in allowed):
            raise UserInputError(
                f"{_at(option, tool, where)}: {_value_words(option.value)} is not one of {', '.join(_words(allowed))}"
            )
    values = {name: option.value for name, option in asked.items()}
    for case in choice.cases:
        if holds(case.when, read.facts) and all(
            _is(values.get(name), value) for name, value in case.options.items()
        ):
            _take(case, of_choice, tool, read, where)
            return
    names = ", ".join(f"{option.name} {_value_words(option.value)}" for option in asked.values())
    raise UserInputError(f"{where}: these options do not go together here: {names}")


def _take(case: Case, of_choice: Mapping[str, Option], tool: Tool, read: Read, where: str) -> None:
    used = [name for name in case.options if name in of_choice]
    if case.refuse:
        raise InfeasibleError(f"{where}: {case.refuse}")
    origin = ", ".join(_option_words(of_choice[name], tool) for name in used)
    for key, value in case.sets.items():
        read.set(key, value, origin or f"default of {tool.title}")
    if case.remark:
        read.not_modelled.append(f"{origin or f'default of {tool.title}'}: {case.remark}")
    read.used |= {spelled(of_choice[name].name, tool) for name in used}
    idle = (
        option for name, option in of_choice.items() if name not in used and option.value not in (None, False)
    )
    read.without_effect += [spelled(option.name, tool) for option in idle]


def _at(option: Option, tool: Tool, where: str) -> str:
    """The file, the line and the option, as far as they are known."""
    line = f":{option.line}" if option.line else ""
    return f"{where}{line}: {spelled(option.name, tool)}"


def spelled(name: str, tool: Tool) -> str:
    """An option as its tool writes it."""
    return f"--{name}" if tool.style == "flags" and not name.startswith(("$", "(")) else name


def _option_words(option: Option, tool: Tool) -> str:
    name = spelled(option.name, tool)
    return name if option.value is True else f"{name} {_value_words(option.value)}"


def _is(value: Value, expected: object) -> bool:
    """Whether the value of an option is what a case wants."""
    if isinstance(expected, list):
        return any(_is(value, one) for one in expected)
    if value is None or isinstance(value, Unread):
        return False
    if expected == "any":
        return value is not False
    if isinstance(expected, bool):
        words = ("true", "yes", "1") if expected else ("false", "no", "0")
        alone = expected and isinstance(value, str) and not _is_word(value)
        return value is expected or str(value).lower() in words or alone
    return _plain(value) == _plain(expected)


def _is_word(value: str) -> bool:
    """Whether a flag that takes no value was given one; the name of a file may only stand behind it."""
    return re.fullmatch(r"[\w.-]{1,20}", value) is not None and not value.endswith((".py", ".sh"))


def _plain(value: object) -> str:
    """A value as it compares: 1.0 is 1, True is true."""
    if isinstance(value, Unread):
        return value.why
    text = str(value).strip().lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _words(allowed: Iterable[object]) -> list[str]:
    flat = [one for value in allowed for one in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(_value_words(one) or "a flag without a value" for one in flat))


def _value_words(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "?" if isinstance(value, Unread) else shortened(str(value), LONGEST_NAME)


@dataclass(slots=True, kw_only=True)
class Written:
    """Options for a scenario.

    Attributes:
        options: name -> value, in the order of the table.
        cannot: keys that the tool has no option for, or none for this value.
        idle: keys that mean nothing here.
    """

    options: dict[str, object] = field(default_factory=dict)
    cannot: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)


def write_options(
    facts: Mapping[str, object], usual: Mapping[str, object], tool: Tool, spelling: str = ""
) -> Written:
    """The options that say *facts*, as a release spells them; keys that have their *usual* value need none."""
    written = Written()
    for number in tool.numbers:
        value = facts.get(number.key)
        if value is None or value == number.absent or number.read_only:
            continue
        if holds(number.when, facts):
            written.options[number.option] = NOTATIONS[number.notation][1](value)
        elif value != usual.get(number.key):
            written.idle.append(number.key)
    for choice in tool.choices:
        _write_choice(choice, facts, usual, spelling, written)
    unknown = [key for key, value in facts.items() if key not in tool.keys and value != usual.get(key)]
    written.cannot = [key for key in (*written.cannot, *unknown) if not key.startswith("run.")]
    return written


def _write_choice(
    choice: Choice, facts: Mapping[str, object], usual: Mapping[str, object], spelling: str, written: Written
) -> None:
    asked = [key for key in choice.keys if key in facts]
    if not asked:
        return
    if not holds(choice.when, facts):
        written.idle += [key for key in asked if facts[key] != usual.get(key)]
        return
    case = _nearest(choice, facts, spelling)
    sets = {} if case is None else case.sets
    wrong = {key for key in sets if key in asked and facts[key] != sets[key]}
    silent = {key for key in asked if key not in sets and facts[key] != usual.get(key)}
    if case is not None:
        for name, value in case.options.items():
            written.options[name] = value[0] if isinstance(value, list) else value
    if case is None or wrong:
        written.cannot += [key for key in asked if key in wrong | silent or case is None]
    else:
        written.idle += sorted(silent)


def _nearest(choice: Choice, facts: Mapping[str, object], spelling: str) -> Case | None:
    """The first case that says all that it says of the facts, else the one that gets most of them right."""
    best, most = None, 0
    for case in choice.cases:
        written = not (case.read_only or case.refuse) and case.spelling in ("", spelling)
        if not (written and holds(case.when, facts)):
            continue
        right = sum(facts.get(key) == value for key, value in case.sets.items())
        if case.sets and right == len(case.sets):
            return case
        if right > most:
            best, most = case, right
    return best


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[\d_,]{1,18}", text) or not text.strip("+-_,"):
        raise ValueError(f"expected a whole number, got {quoted(text)}")
    return int(text.replace(",", "").replace("_", ""))


def _finite(text: str) -> float:
    if not re.fullmatch(r"\d{1,12}(?:\.\d{0,12})?(?:[eE][-+]?\d{1,2})?", text):
        raise ValueError(f"expected a number, got {quoted(text)}")
    return float(text)


def _window(text: str) -> int:
    """Tokens of a window that is written as how far it reaches to the left and to the right."""
    left_reach = re.fullmatch(r"[\[(]?(\d{1,9}),?\s*(?:0|-1)?[\])]?", text)
    if left_reach is None:
        raise ValueError(f"expected a window such as 127,0, got {quoted(text)}")
    return int(left_reach[1]) + 1


def _dense_layers(text: str) -> list[int]:
    """Which layers have experts, written as `([0]*3+[1]*58)`, as a list or as one number."""
    plain = text.strip().strip("\"'")
    if not _LAYERS.fullmatch(plain):
        raise ValueError(f"expected layers such as [0]*3+[1]*58, got {quoted(text)}")
    if re.fullmatch(r"\d{1,6}", plain):
        return [int(plain)]
    if re.fullmatch(r"[\d ]+", plain):
        return [-1, *map(int, plain.split())]
    layers: list[int] = []
    for part in plain.strip("()").replace(" ", "").split("+"):
        piece = re.fullmatch(r"\(?\[((?:\d,?)+)\]\)?(?:\*(\d{1,4}))?", part)
        if piece is None:
            raise ValueError(f"expected layers such as [0]*3+[1]*58, got {quoted(text)}")
        layers += [int(digit) for digit in piece[1].split(",") if digit] * int(piece[2] or 1)
    return [-1, *layers]


def _cut(text: str) -> str:
    """Stages in letters, or as lists of words, one of each stage."""
    plain = text.strip().strip("\"'")
    if not plain.startswith("["):
        return plain
    stages = [re.findall(r"\w+", stage) for stage in re.findall(r"\[([^\[\]]*)\]", plain)]
    unknown = sorted({word for stage in stages for word in stage} - _PARTS.keys())
    if unknown:
        raise ValueError(f"expected stages of {', '.join(_PARTS)}, got {quoted(unknown[0])}")
    return "|".join("".join(_PARTS[word] for word in stage) for stage in stages)


_PARTS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}

NOTATIONS: Mapping[str, tuple[Callable[[str], object], Callable[[object], object]]] = {
    "": (_integer, lambda value: value),
    "text": (str, lambda value: value),
    "number": (_finite, lambda value: value),
    "window": (_window, lambda value: f"{int(str(value)) - 1},0"),
    "layers": (_dense_layers, lambda value: value),
    "cut": (_cut, lambda value: value),
}
"""How a value is read from and written to another tool, where it is not a whole number."""
