"""How commands show themselves: those that have commands, and the options of those that do something."""

from __future__ import annotations

from collections.abc import Mapping

import click

from hdpsim.quoting import did_you_mean

_FEW = 6
"""So many commands are named in full where one is not known."""


_RESULTS = {
    "timeline", "drawing", "output", "scenario_file", "megatron", "bridge", "torchtitan", "out", "report", "as_json"
}  # fmt: skip
"""Parameters that say where results go."""


class Verb(click.Command):
    """A command whose help has the options that say where results go under a heading of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options that ask, then those that write."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Where results go": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections["Where results go" if param.name in _RESULTS else "Options"].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Commands(click.Group):
    """Says of every command what it answers in a whole sentence, and of an unknown one what there is."""

    def sections(self, ctx: click.Context) -> Mapping[str, list[str]]:
        """Commands by the heading under which they stand."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All commands with the first sentence of their help; click cuts it off at the end of the line."""
        sections = self.sections(ctx)
        width = max(len(name) for names in sections.values() for name in names)
        for heading, names in sections.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [
                (f"{name:{width}}", _first_sentence(command))
                for name, command in commands
                if command is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command as click does; a command that does not exist gets a message of our own."""
        name, known = str(args[0]), self.list_commands(ctx)
        if name in known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = did_you_mean(name, known)
        if not meant:
            listed = f"; commands: {', '.join(known)}"
            meant = listed if len(known) <= _FEW else f"; `{ctx.command_path} --help` lists them"
        raise click.UsageError(f"{name!r} is no command of {ctx.command_path}{meant}", ctx)


def _first_sentence(command: click.Command) -> str:
    """The first paragraph of its help, up to the end of its first sentence."""
    paragraph = " ".join((command.help or "").split("\n\n")[0].split())
    ends = [place for place in (paragraph.find(". "), paragraph.find("? ")) if place >= 0]
    return paragraph[: min(ends) + 1] if ends else paragraph
