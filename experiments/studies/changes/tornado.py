"""Which inputs matter: each one moved down and up by the same share, sorted by what that does to the throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.entries import KEYS as HARDWARE_KEYS
from hdpsim.cost_models.reading.fields import FieldKey
from hdpsim.cost_models.reading.units import written_quantity
from hdpsim.cost_models.reading.values import QUANTITIES
from hdpsim.cost_models.values_read import differences, noting
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.plots.changes import Swing, plot_tornado
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.scenario.values import Batch
from hdpsim.experiments.studies.comparing.compare import (
    Lengths,
    Outcome,
    Report,
    counted,
    run_batches,
    run_setup,
    silent,
)
from hdpsim.experiments.studies.step_report import one_line, scenario_document
from hdpsim.ranges import check
from hdpsim.simulator.setup import Setup

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

NO_EFFECT = 1e-9
"""Relative change of the throughput below which an input has none."""

MOST_DRAWN, MOST_SHOWN = 20, 25
_SECTIONS = ("data.batch", "data.context", "layout.", "data.", "strategy.", "memory.", "execution.")
_NO_INPUTS = frozenset({"data.seed", "execution.seed", "execution.batches", "data.lengths"})
_PARTS = {"cluster.node.gpu": "node.gpu", "cluster.node": "node", "cluster.fabric": "fabric"}
"""Where the keys of a part of the cluster begin, and the part as attributes of the cluster."""
_NOTED = frozenset({"cluster", "calibration"})
"""Parts of a setup of which is noted what is read; all other parts count as read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A number that a simulation depends on.

    Attributes:
        key: as scenarios write it; of a constant `calibration.NAME`.
        value: in base units.
        write: how files have a value.
        whole: counted, not measured.
    """

    key: str
    value: float
    write: Callable[[float], object] = float
    whole: bool = False

    def moved(self, share: float) -> float:
        """The value times 1 + share; whole numbers are rounded."""
        value = self.value * (1.0 + share)
        return float(round(value)) if self.whole else value

    def text(self, value: float) -> str:
        """A value as scenarios write it."""
        written = self.write(value)
        return written_quantity(written, "") if isinstance(written, float) else str(written)

    def set_in(self, scenario: Scenario, value: float) -> Scenario:
        """The scenario with that value; raises UserInputError where it may not be, InfeasibleError where it cannot."""
        section, _, name = self.key.partition(".")
        if section != "calibration":
            return scenario.with_changes((f"{self.key}={self.text(value)}",))
        cal = scenario.calibration
        if name.startswith("network."):
            changed = {name.removeprefix("network."): value}
            return replace(scenario, calibration=replace(cal, network=replace(cal.network, **changed)))  # type: ignore[arg-type]
        return replace(scenario, calibration=replace(cal, **{name: value}))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An input at one of its ends.

    Attributes:
        change: of the throughput, relative to the base on as many batches; None where it cannot be.
        reason: why it cannot.
        batches: how many it is a mean over.
    """

    value: float
    tokens_per_s: float | None
    change: float | None
    reason: str = ""
    batches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An input and both of its ends."""

    input: Input
    lower: End
    higher: End

    @property
    def effect(self) -> float:
        """The larger of the two changes."""
        return max(abs(end.change or 0.0) for end in (self.lower, self.higher))

    @property
    def batches(self) -> int:
        """How many its ends are means over."""
        return max(self.lower.batches, self.higher.batches)

    @property
    def reasons(self) -> str:
        """Why an end cannot be."""
        both = ((self.lower, "lowered"), (self.higher, "raised"))
        return "; ".join(f"{words}: {one_line(end.reason)}" for end, words in both if end.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """All inputs, those with the largest effect first."""

    share: float
    tokens_per_s: float
    batches: int
    moved: tuple[Moved, ...]

    @property
    def with_effect(self) -> tuple[Moved, ...]:
        """The inputs that move the throughput, or cannot be moved at all."""
        return tuple(one for one in self.moved if one.effect > NO_EFFECT or one.reasons)


def inputs_of(scenario: Scenario) -> tuple[Input, ...]:
    """Every measured number that is not zero: parts of the cluster, batch and context, switches, constants."""
    return (*_hardware(scenario), *_keys(scenario), *_constants(scenario))


def _hardware(scenario: Scenario) -> Iterator[Input]:
    for prefix, path in _PARTS.items():
        part: Any = scenario.cluster
        for name in path.split("."):
            part = getattr(part, name)
        hints = get_type_hints(type(part), include_extras=True)
        for name, value in _numbers(part):
            way = HARDWARE_KEYS[type(part)].get(name, FieldKey())
            if name != "usd_per_hour" and _measured(hints[name]):
                dimension = way.kind if way.kind in QUANTITIES else ""
                write = partial(written_quantity, dimension=dimension)
                yield Input(key=f"{prefix}.{way.name or name}", value=value, write=write)


def _numbers(part: Any) -> Iterator[tuple[str, float]]:
    """Figures of a part that are not zero."""
    for item in fields(part):
        value = getattr(part, item.name)
        if isinstance(value, float | int) and not isinstance(value, bool) and value:
            yield item.name, float(value)


def _measured(hint: Any) -> bool:
    return any(option is float or float in get_args(option) for option in (hint, *get_args(hint)))


def _keys(scenario: Scenario) -> Iterator[Input]:
    document = scenario.document
    for dotted, key in KEYS.items():
        section, _, leaf = dotted.partition(".")
        written = document.get(section, {}).get(leaf) if leaf else None
        if written is None or dotted in _NO_INPUTS or not dotted.startswith(_SECTIONS):
            continue
        value = key.parse(written)
        if isinstance(value, Batch):
            amount, what = (value.tokens, "tokens") if value.tokens else (value.sequences, "sequences")
            yield Input(key=dotted, value=float(amount or 0), write=f"{{:.0f}} {what}".format, whole=True)
        elif isinstance(value, int) and not isinstance(value, bool) and "token" in key.parse.words:
            yield Input(key=dotted, value=float(value), write="{:.0f} tokens".format, whole=True)
        elif isinstance(value, float) and value:
            yield Input(key=dotted, value=value, write=key.dump)


def _constants(scenario: Scenario) -> Iterator[Input]:
    cal: Calibration = scenario.calibration
    for prefix, part in (("calibration", cal), ("calibration.network", cal.network)):
        yield from (Input(key=f"{prefix}.{name}", value=value) for name, value in _numbers(part))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The scenario as it is, and what of its cluster and constants was read to simulate it.

    A figure that nothing read moves nothing: more than half of the inputs, which are not simulated.
    """

    setup: Setup
    batches: Sequence[Lengths]
    tokens_per_s: float
    read: frozenset[str]

    @classmethod
    def of(cls, scenario: Scenario, batches: Sequence[Lengths]) -> _Base:
        """Simulate the scenario; raises InfeasibleError."""
        setup, read = scenario.setup(), set[str]()
        parts: dict[str, Any] = {name: noting(getattr(setup, name), name, read) for name in _NOTED}
        of_steps = set[str]()  # bands, which come after all steps, also read names
        outcome = run_setup(
            replace(setup, **parts), batches, scenario.strategy.name, lambda: of_steps.update(read)
        )
        rate = _rate(outcome)
        if rate is None:
            raise InfeasibleError(f"the scenario itself cannot run:\n{outcome.reason}")
        return cls(setup=setup, batches=batches, tokens_per_s=rate, read=frozenset(of_steps))

    def changed_to(self, scenario: Scenario) -> tuple[float | None, str]:
        """Tokens/s of another scenario on the same batches; None, and why, where it cannot run."""
        setup = scenario.setup()
        parts = {item.name for item in fields(setup)} - _NOTED
        if all(getattr(setup, name) == getattr(self.setup, name) for name in parts) and not any(
            self.read.intersection(differences(getattr(self.setup, name), getattr(setup, name), name))
            for name in _NOTED
        ):
            return self.tokens_per_s, ""
        outcome = run_setup(setup, self.batches, scenario.strategy.name)
        return _rate(outcome), outcome.reason


def _rate(outcome: Outcome) -> float | None:
    return outcome.tokens_per_s.mean if outcome.results else None


def tornado(scenario: Scenario, share: float, batches: int = 1, report: Report = silent) -> Tornado:
    """Move every input of the scenario down and up, one at a time, on the same *batches*.

    An input of the data changes which sequences meet in a batch. Its rows are means over execution.batches, if those
    are more: on one batch they would tell what that batch happens to hold.

    Raises:
        InfeasibleError: the scenario itself cannot run.
    """
    check("batches", batches, "count")
    inputs = inputs_of(scenario)
    done = counted(report, 2 * len(inputs) + 1)
    of_data = max(batches, scenario.batch_count)
    drawn = scenario.draw(of_data).lengths
    bases: dict[int, _Base] = {}
    for count in dict.fromkeys((batches, of_data)):
        bases[count] = _Base.of(scenario, drawn[:count])
    done()

    def end(one: Input, by: float) -> End:
        value, count = one.moved(by), batches
        try:
            changed = one.set_in(scenario, value)
            if changed.document["data"] != scenario.document["data"]:
                count = of_data
                outcome = run_batches(changed, changed.draw(count).lengths)
                rate, reason = _rate(outcome), outcome.reason
            else:
                rate, reason = bases[count].changed_to(changed)
        except (UserInputError, InfeasibleError) as error:
            rate, reason = None, str(error)
        done()
        if rate is None:
            return End(value=value, tokens_per_s=None, change=None, reason=reason)
        return End(
            value=value, tokens_per_s=rate, change=rate / bases[count].tokens_per_s - 1.0, batches=count
        )

    moved = [Moved(input=one, lower=end(one, -share), higher=end(one, share)) for one in inputs]
    moved.sort(key=lambda one: (-one.effect, one.input.key))
    return Tornado(share=share, tokens_per_s=bases[batches].tokens_per_s, batches=batches, moved=tuple(moved))


def tornado_document(scenario: Scenario, study: Tornado) -> Document:
    """The inputs with the largest effect as table and plot; all of them as data."""
    table = tornado_table(study)
    idle = len(study.moved) - len(study.with_effect)
    lines = (
        f"{idle} of {len(study.moved)} inputs have no effect on this step; zeros and counts are not moved.",
        "One at a time: inputs that act together are not moved together.",
    )
    swings = [
        Swing(_label(one, study.batches), one.lower.change, one.higher.change)
        for one in study.with_effect[:MOST_DRAWN]
        if one.effect > NO_EFFECT
    ]
    figure = partial(
        plot_tornado,
        swings,
        share=study.share,
        title=f"Inputs that matter most, each moved by {study.share:.0%}",
    )
    return scenario_document(
        "whatif",
        scenario,
        [
            {
                "input": one.input.key,
                "value": one.input.value,
                **attributes(one, "effect batches lower higher"),
            }
            for one in study.moved
        ],
        more={
            "tornado": study.share,
            "base_tokens_per_s": study.tokens_per_s,
            "batches": study.batches,
            "without_effect": idle,
            "remarks": lines,
        },
        blocks=(replace(table, rows=table.rows[:MOST_SHOWN]),),
        notes=lines,
        files=files_of("whatif", {"tornado.csv": table.records, "tornado": figure}),
    )


def _label(moved: Moved, batches: int) -> str:
    """The input, and over how many batches it is a mean where those are more than the others'."""
    return f"{moved.input.key} ({moved.batches} batches)" if moved.batches > batches else moved.input.key


def tornado_table(study: Tornado) -> Table[Moved]:
    """Inputs with an effect, the largest first."""
    words = f"{study.share:.0%}"

    def remark(moved: Moved) -> str:
        more = f"other batches: means over {moved.batches}" if moved.batches > study.batches else ""
        return "; ".join(filter(None, (more, moved.reasons)))

    columns: tuple[Column[Moved], ...] = (
        Column("input", lambda moved: moved.input.key),
        Column("value", lambda moved: moved.input.value, format=".4g"),
        Column("lower_change", lambda moved: moved.lower.change, heading=f"-{words}", format="+.2%"),
        Column("higher_change", lambda moved: moved.higher.change, heading=f"+{words}", format="+.2%"),
        Column("lower_value", lambda moved: moved.lower.value, shown=False),
        Column("higher_value", lambda moved: moved.higher.value, shown=False),
        Column("lower_tokens_per_s", lambda moved: moved.lower.tokens_per_s, shown=False),
        Column("higher_tokens_per_s", lambda moved: moved.higher.tokens_per_s, shown=False),
        Column("batches", lambda moved: moved.batches, shown=False),
        Column("remark", remark, left=True, optional=True),
    )
    over = "one batch" if study.batches == 1 else f"{study.batches} batches"
    title = f"Change of {study.tokens_per_s:,.0f} tokens/s when an input moves by {words}, {over}"
    return Table(title=title, columns=columns, rows=study.with_effect)
