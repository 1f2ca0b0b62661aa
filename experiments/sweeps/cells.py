"""The cells of a sweep: every combination as a checked scenario, or the reason why it is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hdpsim.cost_models.reading.fields import Problems
from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.parallel.code_version import scenario_key
from hdpsim.experiments.scenario.overrides import apply_values, parse_override, rivals
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario, scenario_path
from hdpsim.experiments.scenario.schema import check_together, read_keys
from hdpsim.yaml_loader import load_document

if TYPE_CHECKING:
    from hdpsim.experiments.sweeps.axes import Point, Sweep


_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of a sweep.

    Attributes:
        changes: what the axes set, without the fixed changes.
        scenario: None when there is nothing to simulate.
        key: where its result is kept; empty without a scenario.
        status: "to run", "infeasible" (legal, cannot run) or "invalid" (its keys contradict each other).
        reason: why it is not "to run".
    """

    index: int
    changes: Point
    scenario: Scenario | None
    key: str = ""
    status: str = "to run"
    reason: str = ""


def _base(sweep: Sweep, overrides: tuple[str, ...]) -> tuple[Mapping[str, object], Point, Path, str]:
    """The base document, the changes of every cell (fixed ones and *overrides*), where its paths start, and its name.

    Raises:
        UserInputError: the base cannot be read.
    """
    document: object = sweep.base
    folder, name = sweep.folder, sweep.name
    if isinstance(sweep.base, str):
        own_file = sweep.folder / sweep.base
        try:
            path = own_file if own_file.is_file() else scenario_path(sweep.base)
        except UserInputError as error:
            raise ScenarioError((("base", str(error)),), sweep.source) from None
        document, folder, name = load_document(path).data, path.parent, path.stem
    if not isinstance(document, Mapping):
        raise ScenarioError((("base", "is not a scenario: expected a mapping of keys"),), sweep.source)
    given = tuple(parse_override(text) for text in overrides)
    twice = tuple(
        (key, "is on an axis of the sweep; --set cannot change it")
        for key, value in given
        if any(name in sweep.keys for name in (key, *rivals(key, value)))
    )
    if twice:
        raise ScenarioError(twice, "--set")
    replaced = {name for key, value in given for name in rivals(key, value)}
    fixed = tuple(value for value in sweep.fixed if value[0] not in replaced)
    return document, (*fixed, *given), folder, name


def expand(sweep: Sweep, overrides: tuple[str, ...] = ()) -> tuple[Cell, ...]:
    """Put all cells together and check each.

    A value that is wrong wherever it is used is an error. Values that contradict each other in some cells (two chunks
    a stage with the schedule 1f1b) make these cells "invalid".

    Raises:
        ScenarioError: every problem of the base or of a value, each once.
    """
    document, fixed, folder, name = _base(sweep, overrides)
    cells: list[Cell] = []
    problems: dict[tuple[str, str], int] = {}
    for index, changes in enumerate(sweep.combinations()):
        try:
            cells.append(_cell(index, changes, fixed, document, folder, name))
        except ScenarioError as error:
            for problem in error.problems:
                problems[problem] = problems.get(problem, 0) + 1
    if problems:
        shown = [
            (key, text if count == sweep.cells else f"{text} (in {count} of {sweep.cells} cells)")
            for (key, text), count in list(problems.items())[:_MOST_SHOWN]
        ]
        if len(problems) > _MOST_SHOWN:
            shown.append(("", f"and {len(problems) - _MOST_SHOWN} more"))
        raise ScenarioError(tuple(shown), sweep.source)
    if cells and all(cell.status == "invalid" for cell in cells):
        reasons = dict.fromkeys(cell.reason for cell in cells)
        raise ScenarioError(tuple(("", reason) for reason in list(reasons)[:_MOST_SHOWN]), sweep.source)
    return tuple(cells)


def _cell(
    index: int, changes: Point, fixed: Point, base: Mapping[str, object], folder: Path, name: str
) -> Cell:
    document = apply_values(base, (*fixed, *changes))
    try:
        scenario = resolve_scenario(document, source="cell", folder=folder, default_name=name)
    except InfeasibleError as error:
        return Cell(index=index, changes=changes, scenario=None, status="infeasible", reason=str(error))
    except ScenarioError as error:
        reason = _contradiction(document, error)
        if not reason:
            raise
        return Cell(index=index, changes=changes, scenario=None, status="invalid", reason=reason)
    return Cell(index=index, changes=changes, scenario=scenario, key=scenario_key(scenario))


def _contradiction(document: Mapping[str, object], error: ScenarioError) -> str:
    """The problems of a cell when all of them come from keys that contradict each other, else an empty text."""
    together = Problems("")
    check_together(read_keys(document, Problems("")), together)
    if not set(error.problems) <= set(together.found):
        return ""
    return "; ".join(f"{key}: {text}" for key, text in error.problems)
