"""A first scenario from five answers, with a layout that fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpsim import __version__
from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.other_tools.machines import machine
from hdpsim.experiments.other_tools.scenario_text import scenario_text
from hdpsim.experiments.other_tools.shapes import named_model
from hdpsim.experiments.output.amounts import memory_of
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.software.choice import read_software
from hdpsim.experiments.software.rules import stacks
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, tokens_with_headroom
from hdpsim.traces import load_distribution, load_source, shipped_distributions, shipped_traces

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport

_MODEL_FILES = (".json", ".yaml", ".yml")
_SHARD_PARAMETERS = frozenset(
    name
    for stack in stacks()
    if stack.name in ("pytorch", "torchtitan", "nemo-automodel")
    for name in stack.frameworks
)
"""Frameworks whose usual way is to shard parameters (FSDP)."""
_TENSOR, _PIPELINE, _EXPERTS = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64)
_RECOMPUTE = ("none", "selective", "full")
_LEAST_TOKENS = 2048
"""A rank that holds fewer tokens of a longer context is no layout to start from."""
_MOST_SIMULATED = 8

Answer = Mapping[str, Any]
"""Dotted keys of a scenario."""


@dataclass(frozen=True, slots=True)
class Question:
    """One of the five questions.

    Attributes:
        options: what answers it on the command line.
        allowed: what may be answered, in words.
        read: the keys that an answer means; raises UserInputError with what is allowed.
    """

    asks: str
    options: tuple[str, ...]
    allowed: str
    read: Callable[[str], Answer]


def _model(text: str) -> Answer:
    if text.lower().endswith(_MODEL_FILES) and Path(text).is_file():
        return {"model": text}
    known = (*catalog.names("model"), *catalog.aliases("model"))
    if text.lower() not in known:
        raise UserInputError(
            f"{quoted(text)} is no shipped model and no .yaml or config.json file{did_you_mean(text, known)}; "
            f"shipped: {', '.join(catalog.names('model'))}"
        )
    return {"model": text.lower()}


def _machine(text: str) -> Answer:
    name, _, count = text.strip().partition(" ")
    cluster, own = machine(name.lower(), "GPUs")
    digits = count.strip().replace(",", "")
    gpus = int(digits) if digits.isdecimal() and len(digits) < 10 else None
    if digits and (gpus is None or not RANGES["gpus"].holds(gpus)):
        raise UserInputError(f"GPUs: expected how many behind {name}, got {quoted(count.strip())}")
    if gpus is None and own is None:
        raise UserInputError(f"GPUs: expected how many behind {name}, such as {name} 64")
    gpus = gpus or own
    node = catalog.cluster(name).node if isinstance(cluster, str) else catalog.node(str(cluster["node"]))
    if gpus is not None and gpus > node.gpus and gpus % node.gpus:
        below = gpus // node.gpus * node.gpus
        raise UserInputError(
            f"GPUs: {gpus} are not a whole number of {node.name} nodes of {node.gpus}; "
            f"nearest: {below} or {below + node.gpus}"
        )
    return {"cluster": cluster, "gpus": gpus}


def _lengths(text: str) -> Answer:
    name = text.strip()
    if name in shipped_traces():
        return {"data.trace": name}
    if name in shipped_distributions():
        return {"data.distribution": name}
    path = Path(name)
    if path.is_file():
        if path.suffix.lower() in (".yaml", ".yml"):
            load_distribution(path)
            return {"data.distribution": name}
        load_source(name)
        return {"data.trace": name}
    try:
        KEYS["data.lengths"].parse(name)
    except ValueError:
        known = (*shipped_traces(), *shipped_distributions())
        raise UserInputError(
            f"{quoted(name)} is no file, no shipped trace or distribution, and no length{did_you_mean(name, known)}; "
            f"shipped: {', '.join(known)}; or a length such as 8K"
        ) from None
    return {"data.lengths": f"{name.split()[0]} tokens"}


def _sizes(text: str) -> Answer:
    context, _, batch = text.strip().replace(",", " ").partition(" ")
    batch = batch.strip()
    if not batch:
        raise UserInputError("expected the context and the batch, such as 32K 4M tokens, or 8K 512 sequences")
    if not batch.endswith(("tokens", "sequences")):
        batch = f"{batch} tokens"
    answer = {"data.context": f"{context} tokens", "data.batch": batch}
    for key, value in answer.items():
        try:
            KEYS[key].parse(value)
        except ValueError as error:
            raise UserInputError(f"{key.partition('.')[2]}: {error}") from None
    return answer


def _framework(text: str) -> Answer:
    if text.strip().lower() in ("", "none"):
        return {}
    try:
        read_software(text)
    except ValueError as error:
        raise UserInputError(str(error)) from None
    return {"software": text.strip()}


QUESTIONS = (
    Question("Which model?", ("--model",), "a name of `hdpsim catalog models`, or a file", _model),
    Question(
        "Which GPUs, and how many?", ("--gpu", "--gpus"),
        "h100 64, hgx-h200-141gb 32, or a cluster such as superpod-h100", _machine,
    ),
    Question(
        "How long are the sequences?", ("--lengths",),
        "a file of lengths, a shipped trace or distribution, or one length for all (8K)", _lengths,
    ),
    Question(
        "The longest sequence, and the batch?", ("--context", "--batch"), "32K 4M tokens, or 8K 512 sequences", _sizes
    ),
    Question("Which framework?", ("--framework",), "megatron-core 0.14, torchtitan 2.8, ...; or none", _framework),
)  # fmt: skip


def says_it_all(question: Question, values: Sequence[str | None]) -> bool:
    """Whether options answer a question: a cluster has as many GPUs as it has.

    Raises:
        UserInputError: --gpu names nothing that is shipped.
    """
    if question.options[0] == "--gpu" and values[0] is not None and values[1] is None:
        return machine(values[0].lower(), "--gpu")[1] is not None
    return None not in values


def answered(question: Question, given: str) -> Answer:
    """The keys of an answer that was given as an option.

    Raises:
        UserInputError: it is none.
    """
    try:
        return question.read(given)
    except UserInputError as error:
        raise UserInputError(f"{' '.join(question.options)}: {error}") from None


def new_scenario(answers: Answer, name: str, headroom: float) -> tuple[str, Scenario, MemoryReport]:
    """A commented scenario file of the answers, what it says, and the memory that its first batch needs.

    Memory suffices for a share *headroom* more than is predicted.

    Raises:
        InfeasibleError: no layout of those that are tried fits into memory; it says what each lacked.
    """
    document: dict[str, Any] = {}
    for key, value in answers.items():
        section, dot, leaf = key.partition(".")
        if dot:
            document.setdefault(section, {})[leaf] = value
        else:
            document[key] = value
    framework = str(answers.get("software", "")).partition(" ")[0].lower()
    equal, shards = "data.lengths" in answers, framework in _SHARD_PARAMETERS
    document["strategy"] = {"name": "static" if equal or shards else "hdp-opt"}
    layout, scenario, memory = _fitting(document, "zero3" if shards else "zero1", name, headroom)
    ordered = {key: document[key] for key in ("model", "cluster", "gpus", "software") if document.get(key)}
    ordered |= {"layout": layout, "data": document["data"], "strategy": document["strategy"]}
    head = [
        f"Written by hdpsim {__version__} from five answers. `hdpsim simulate` says how long a step is,",
        "`hdpsim compare` which strategy is best, `hdpsim plan` which layout is. Keys: docs/reference/scenarios.md.",
    ]
    return scenario_text(ordered, meanings("comments_of_new"), head), scenario, memory


def _fitting(
    document: Mapping[str, Any], sharding: str, name: str, headroom: float
) -> tuple[dict[str, Any], Scenario, MemoryReport]:
    """The first layout that holds the batch, fewest GPUs a model first, the scenario that has it, and its memory."""
    lengths = None
    tried, simulated, closest = 0, 0, ""
    for layout in _layouts(document, sharding):
        try:
            scenario = resolve_scenario({**document, "layout": layout}, default_name=name, folder=Path())
        except InfeasibleError as error:
            closest = closest or str(error)
            continue
        tried += 1
        try:
            setup = scenario.setup()
            capacity = tokens_with_headroom(setup, headroom)
            if capacity < min(_LEAST_TOKENS, setup.context_tokens):
                closest = f"a rank would hold {capacity} tokens only"
                continue
            if not setup.strategy.has_one_mesh and capacity < capacity_tokens(setup):
                layout |= {"rank_capacity": f"{capacity} tokens"}
                scenario = resolve_scenario({**document, "layout": layout}, default_name=name, folder=Path())
            lengths = scenario.draw(1).lengths[0] if lengths is None else lengths
            simulated += 1
            memory = simulate_step(scenario.setup(), lengths).memory
            if not memory.is_tight(headroom):
                return layout, scenario, memory
            closest = f"{memory_of(memory)} are needed, and {headroom:.1%} more are to stay free"
        except InfeasibleError as error:
            closest = str(error)
        if simulated == _MOST_SIMULATED:
            break
    raise InfeasibleError(
        f"none of {tried} layouts fits; the last one: {closest}. Take more GPUs, GPUs with more memory, a shorter "
        "context, or let `hdpsim plan` look further"
    )


def _layouts(document: Mapping[str, Any], sharding: str) -> Iterator[dict[str, Any]]:
    """Layouts from the fewest GPUs a model to the most, each with little and with much recomputation."""
    model = named_model(str(document["model"]))
    gpus = int(document["gpus"])
    meshes = sorted(product(_TENSOR, _PIPELINE), key=lambda mesh: (mesh[0] * mesh[1], mesh[1]))
    for tp, pp in meshes:
        if gpus % (tp * pp) or model.heads % tp or model.layers < pp:
            continue
        ranks = gpus // (tp * pp)
        experts = [{"ep": ep} for ep in _EXPERTS if not (model.experts % ep or ranks % ep)]
        for spread, recompute in product(experts if model.experts else [{}], _RECOMPUTE):
            yield {"tp": tp, "pp": pp, **spread, "sharding": sharding, "recompute": recompute}
