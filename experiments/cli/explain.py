"""`hdpsim explain`: a predicted step taken apart, one number traced to its roots."""

from __future__ import annotations

import click

from hdpsim.experiments.cli.common import (
    emit_json,
    json_option,
    load,
    say,
    scenario_argument,
    set_option,
    show_table,
)


@click.command("explain")
@scenario_argument
@set_option
@click.option(
    "--term",
    metavar="NAME",
    help="One term, such as tp_communication, or one part of it, such as tp_all_gather or gemm_qkv.",
)
@json_option
def command(scenario: str, overrides: tuple[str, ...], term: str | None, as_json: bool) -> None:
    """Where does every second of the predicted step come from?

    Takes the step of the scenario's first global batch apart: each term with its seconds; with --term its formula,
    the numbers that went in, the constants and where they come from.
    """
    from hdpsim.experiments.explaining import explain
    from hdpsim.experiments.explaining import text as explain_text
    from hdpsim.experiments.output.finite import finite
    from hdpsim.experiments.studies import report

    checked = load(scenario, overrides)
    document = finite(explain.explain(checked))
    found = None if term is None else explain.find_term(document, term)
    if as_json:
        emit_json(
            document if found is None else {**document, "terms": [found["term"]], "parts": found["parts"]}
        )
        return
    say(report.headline(checked))
    say(f"strategy {document['strategy']}: step {explain_text.seconds(document['step_s'])}")
    say()
    if found is None:
        show_table(explain_text.step_table(document))
        say()
        if document["software"]:
            show_table(explain_text.software_table(document))
            say()
        for note in document["notes"]:
            say(note)
        say(f"parts for --term: {', '.join(explain.term_names(document))}")
        return
    if found["part"] is not None:
        say(f"{found['part']}, a part of {found['term']['term']}")
        for part in found["parts"]:
            say("\n".join(explain_text.part_lines(part)))
        return
    say("\n".join(explain_text.term_lines(document, found["term"])))
    if found["term"]["products"]:
        say()
        show_table(explain_text.product_table(found["term"]))
