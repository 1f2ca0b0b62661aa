"""How good hdp-opt plans of a pipeline are: `python tools/planner_gap.py demo-8x22b-12k --batches 4`.

For every batch of a scenario, in seconds: the bound without bubbles; the ideal step with bubbles (no gaps, any
fraction of a micro-batch); the end of the plan as rehearsed.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hdpsim.experiments.output.tables import TextTable, plain_text
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.strategies.opt.dealing import fill_packs
from hdpsim.simulator.strategies.opt.hdp_opt import usual_s
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences, ideal_step_s


def main(arguments: list[str] | None = None) -> None:
    """Print the table of one scenario."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("scenario", help="name or file of a scenario with a pipeline")
    parser.add_argument("--batches", type=int, default=4, metavar="N")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in hdpsim simulate"
    )
    options = parser.parse_args(arguments)
    scenario = load_scenario(options.scenario, options.set)
    setup = scenario.setup("hdp-opt")
    rows = []
    for number, lengths in enumerate(scenario.batches(options.batches)):
        plan, problem, _ = plan_batch(setup, lengths)
        packs, long = fill_packs(problem), LongSequences(problem)
        short_s = packs.short_s
        ideal_s, _ = ideal_step_s(problem, long, usual_s(problem), short_s, plan.ideal_s)
        end_s = plan.makespan_s + ideal_s - plan.ideal_s
        rows.append(
            (
                str(number),
                f"{plan.ideal_s:.2f}",
                f"{ideal_s:.2f}",
                f"{end_s:.2f} ({end_s / ideal_s - 1:+.1%})",
                f"{plan.makespan_s / plan.ideal_s - 1:+.1%}",
            )
        )
    columns = ("batch", "plan ideal s", "ideal s", "plan s", "over plan ideal")
    print(plain_text(TextTable(title=scenario.name, columns=columns, rows=tuple(rows))))


if __name__ == "__main__":
    main()
