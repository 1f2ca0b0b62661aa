"""The command of a verb: what it does and what its options mean is said once, in the docstring of its function."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hdpsim.cost_models.reading.field_docstrings import named_words
from hdpsim.experiments.cli.groups import Verb
from hdpsim.experiments.cli.options import OUTPUT, Decorator, option_of
from hdpsim.experiments.cli.printing import Output
from hdpsim.experiments.cli.progress import progress

if TYPE_CHECKING:
    from hdpsim.experiments.verbs.result import Result

_SECTION = re.compile(r"^(?:Args|Returns|Raises):\n", re.M)


def _show(run: Callable[..., Result], output: Output, /, **given: Any) -> None:
    output.show(run(**given))


def verb(
    home: str,
    name: str,
    *more: Decorator,
    output: Sequence[Decorator] = OUTPUT,
    shown: Callable[..., None] = _show,
    about: str = "",
) -> click.Command:
    """The command of a function of a module of verbs, whose parameters its options are.

    Help is the docstring's, and defaults are the function's, where `PARAMETERS` says none.

    Args:
        home: the module.
        name: the function.
        more: options that the function does not have.
        output: where results may go.
        shown: called with the function, where results go, and what was given.
        about: help of the command, instead of the docstring's.
    """
    functions, choices = _source(home)
    function = functions[name]
    parameters = (*function.args.args, *function.args.kwonlyargs)

    def command(**given: Any) -> None:
        run = getattr(import_module(f"hdpsim.experiments.verbs.{home}"), name)
        if any(parameter.arg == "progress" for parameter in parameters):
            run = partial(run, progress=progress)
        output = Output(
            as_json=given.pop("as_json"), out=given.pop("out", None), report=given.pop("report", None)
        )
        shown(run, output, **{key: value for key, value in given.items() if value not in (None, ())})

    own_options = (
        option_of(name, parameter.arg, is_flag=_is_flag(parameter))
        for parameter in parameters
        if parameter.arg != "progress"
    )
    for option in reversed([*filter(None, own_options), *more, *output]):
        command = option(command)
    made = click.command(name.replace("_", "-"), cls=Verb)(command)
    documented, *sections = _SECTION.split(ast.get_docstring(function) or "")
    paragraphs = [text for text in documented.strip().split("\n\n") if not text.startswith(" ")]
    words = named_words(sections[0]) if sections else {}
    spellings = {str(param.name): _spelling(param) for param in made.params}
    made.help = about or _typed("\n\n".join(paragraphs), spellings)
    defaults = dict(zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True))
    known = {parameter.arg: parameter for parameter in parameters}
    for param in made.params:
        parameter = known.get(str(param.name))
        if not isinstance(param, click.Option) or parameter is None:
            continue
        if param.help is None:
            text = _typed(words[parameter.arg], spellings)
            if param.multiple:
                text = text.removesuffix(".") + "; repeatable."
            param.help = text[0].upper() + text[1:]
        kind = parameter.annotation
        if isinstance(kind, ast.Name) and kind.id in choices:
            param.type = click.Choice(choices[kind.id])
        default = defaults.get(parameter)
        if isinstance(default, ast.Constant) and default.value and not param.is_flag:
            param.default, param.show_default = default.value, True
    return made


def _is_flag(parameter: ast.arg) -> bool:
    return isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "bool"


def _spelling(param: click.Parameter) -> str:
    """How a parameter is called in the first line of the help."""
    return param.opts[-1] if isinstance(param, click.Option) else param.metavar or param.opts[-1].upper()


def _typed(text: str, spellings: dict[str, str]) -> str:
    """Words about Python as words about a command line: options for *parameters*, texts without quotes, no lists."""
    text = re.sub(r"`[\[{][^`]*[\]}]` or ", "", text).replace('`"', "").replace('"`', "")
    return re.sub(r"\*(\w+)\*", lambda starred: spellings.get(starred[1], starred[0]), text)


@cache
def _source(home: str) -> tuple[dict[str, ast.FunctionDef], dict[str, tuple[str, ...]]]:
    """The functions of a module of verbs, and its choices (`Aim = Literal[...]`): read, as importing takes longer."""
    path = Path(__file__).parents[1] / "verbs" / f"{home}.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = {part.name: part for part in body if isinstance(part, ast.FunctionDef)}
    choices: dict[str, tuple[str, ...]] = {}
    for part in body:
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Subscript):
            choices[ast.unparse(part.targets[0])] = ast.literal_eval(part.value.slice)
    return functions, choices
