"""docs/reference/cli.md and docs/reference/scenarios.md list every verb, option and key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.schema import KEYS

DOCS = Path(__file__).resolve().parents[3] / "docs"


def verbs(name: str = "", command: click.Command = cli) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something: "simulate", "trace stats"."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for part in command.list_commands(context):
        inner = command.get_command(context, part)
        assert inner is not None
        yield from verbs(f"{name} {part}".strip(), inner)


def test_every_verb_and_option_is_in_the_page_of_commands() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ") for line in page.partition("## Options")[2].splitlines() if line.startswith("| ")
    ]
    missing = []
    for verb, command in verbs():
        if f"hdpsim {verb}" not in page and not verb.startswith("catalog "):
            missing.append(verb)
        for option in command.params:
            names = [name for name in option.opts if name.startswith("--")]
            for name in names if isinstance(option, click.Option) else []:
                of = [row[1] for row in rows if f"`{name}" in row[0]]
                if not any(verb in text or verb.split()[0] in text or text == "all" for text in of):
                    missing.append(f"{verb} {name}")
    assert not missing


def test_every_key_is_in_the_page_of_scenarios() -> None:
    page = (DOCS / "reference" / "scenarios.md").read_text(encoding="utf-8")
    campaign = (DOCS / "how-to" / "campaign.md").read_text(encoding="utf-8")
    missing = [
        key
        for key in KEYS
        if f"`{key}`" not in page
        and f"`{key.rpartition('.')[2]}`" not in (campaign if key.startswith("campaign.") else page)
    ]
    assert not missing
