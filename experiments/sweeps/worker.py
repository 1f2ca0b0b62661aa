"""What a worker does with one cell of a sweep."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hdpsim.errors import HdpSimError, OwnPlanError, StrategyError, UserInputError
from hdpsim.experiments.output.json_data import plain
from hdpsim.experiments.parallel.code_version import code_version
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.step_report import outcome_json
from hdpsim.simulator.find_own_strategy import location, source_hash

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.data_use import Drawn
    from hdpsim.experiments.scenario.scenario import Scenario


def simulate_cells(
    scenarios: tuple[Scenario, ...], code: str, own: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Simulate several cells one after the other, each as simulate_cell does.

    Args:
        scenarios: of the cells.
        code: code_version() of the process that asks.
        own: strategies of one's own there, and the hash of their source.

    Raises:
        UserInputError: this process runs other code than the one that asks (a worker of a cluster, not updated).
    """
    if code != code_version():
        raise UserInputError(
            f"the workers run another hdpsim ({code_version()}) than this command ({code}): install the same "
            "version on all of them"
        )
    for name in {scenario.strategy.name for scenario in scenarios} & own.keys():
        if source_hash(name) != own[name]:
            raise UserInputError(
                f"the workers have another {name} ({location(name)}) than this command: bring the same file to all"
            )
    return [simulate_cell(scenario) for scenario in scenarios]


def simulate_cell(scenario: Scenario) -> dict[str, Any]:
    """Simulate all batches of a scenario.

    Returns:
        status: "ok"; "infeasible" (legal, cannot run); "invalid" (its data cannot be used); "bad plan", "bad
            strategy" (one's own breaks a promise, or fails); "failed" (a bug of hdpsim).
        reason: why it is not ok.
        result: the outcome as --json prints it, when it is ok.
        wall_s: how long that took here; all else is the same everywhere.
    """
    began = time.perf_counter()
    entry: dict[str, Any] = {"status": "ok", "reason": "", "result": None}
    try:
        drawn = _drawn(scenario)
        outcome = run_batches(scenario, drawn.lengths, independent=not drawn.use.repeated)
    except (OwnPlanError, StrategyError) as error:
        status = "bad plan" if isinstance(error, OwnPlanError) else "bad strategy"
        entry |= {"status": status, "reason": str(error)}
    except HdpSimError as error:
        entry |= {"status": "infeasible" if error.exit_code == 3 else "invalid", "reason": str(error)}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno} of {where.filename})"
        entry |= {"status": "failed", "reason": text}
    else:
        if outcome.results:
            memory_bytes = outcome.results[0].memory.total_bytes
            entry["result"] = plain(
                {
                    **outcome_json(outcome, scenario.costs, hidden=False),
                    "memory_bytes": memory_bytes,
                    "data": drawn.use.document(),
                }
            )
        else:
            entry |= {"status": "infeasible", "reason": outcome.reason}
    entry["wall_s"] = time.perf_counter() - began
    return entry


def _drawn(scenario: Scenario) -> Drawn:
    data = json.dumps(scenario.document["data"], sort_keys=True)
    return _drawn_batches(_Key(scenario, (data, scenario.batch_count)))


@dataclass(frozen=True)
class _Key:
    """A scenario that equals others with the same batches, so that these are read and cut once."""

    scenario: Scenario = field(compare=False)
    key: tuple[str, int]


@lru_cache(maxsize=8)
def _drawn_batches(key: _Key) -> Drawn:
    return key.scenario.draw(key.scenario.batch_count)
