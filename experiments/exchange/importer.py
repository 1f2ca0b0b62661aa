"""From a file of another tool to a scenario document, and what it does and does not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import model_document
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import UserInputError
from hdpsim.experiments.exchange.machines import machine
from hdpsim.experiments.exchange.options import Option, read_toml, read_yaml
from hdpsim.experiments.exchange.shapes import catalog_name, named_alike, named_model, read_model
from hdpsim.experiments.exchange.shell import read_flags
from hdpsim.experiments.exchange.table import Tool, tool
from hdpsim.experiments.exchange.translate import Read, read_options
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.software.choice import read_software
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.reading import read_text

FORMATS: Mapping[str, str] = {
    "megatron": "megatron-core",
    "nemo": "nemo",
    "bridge": "megatron-bridge",
    "torchtitan": "torchtitan",
    "huggingface": "",
}
"""What `--from` takes, and the table that reads it (Hugging Face: none, the catalog's own reader)."""

_READERS: Mapping[str, Callable[[str, str], tuple[Option, ...]]] = {
    "flags": read_flags,
    "yaml": read_yaml,
    "toml": read_toml,
}
_NEEDED = {
    "model": "the model: --model NAME (hdpsim catalog models) or a path",
    "cluster": "the GPUs: --cluster NAME (hdpsim catalog clusters, nodes, gpus)",
    "gpus": "how many GPUs: --gpus N",
    "data.context": "the length of a sequence",
    "data.batch": "the global batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A scenario that a file describes.

    Attributes:
        format: what the file was read as.
        document: the scenario, as far as the file says it.
        origins: dotted key -> the option that says so.
        missing: dotted key of what a scenario needs and the file does not say -> in words.
        assumed: what was filled in.
        unknown: options that are not understood.
        not_modelled: options that change time or memory, and that no key of a scenario says.
        without_effect: options that change neither.
        scenario: the document, checked; None where something is missing.
    """

    format: str
    title: str
    source: str
    document: Mapping[str, Any]
    origins: Mapping[str, str]
    missing: Mapping[str, str]
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]
    not_modelled: tuple[str, ...]
    without_effect: tuple[str, ...]
    scenario: Scenario | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says beside the file."""

    cluster: str | None = None
    gpus: int | None = None
    model: str | None = None
    release: str | None = None


def import_file(path: str, form: str | None = None, asked: Asked | None = None) -> Imported:
    """Read a configuration of another tool; *form* is one of FORMATS, None: as it looks.

    Raises:
        UserInputError: unreadable, of no known form, or it contradicts itself.
        InfeasibleError: it cannot be simulated, or does not fit the GPUs.
    """
    asked = asked or Asked()
    text = read_text(path)
    form = form or _form_of(path, text)
    where = shortened(path, LONGEST_NAME)
    if form == "huggingface":
        return _of_hugging_face(path, asked)
    table = tool(FORMATS[form])
    options = _READERS[table.style](text, where)
    if not options:
        raise UserInputError(f"{where}: holds no options of {table.title}")
    base = None if asked.model is None else named_model(asked.model)
    read = read_options(options, table, where, base)
    named = read.facts.get("model")
    if base is None and isinstance(named, str):
        base = catalog.model(named)
        read = read_options(options, table, where, base)
    if not read.facts.keys() - {"run.interleaved"}:
        raise UserInputError(f"{where}: holds no options of {table.title} that say what is trained, or how")
    return _compose(read, table, form, path, asked, base)


def _form_of(path: str, text: str) -> str:
    """What a file is, by the end of its name and the sections it has."""
    ending = Path(path).suffix.lower()
    if ending == ".py":
        raise UserInputError(
            f"{path}: Python code is not run: newer releases of torchtitan, and recipes of NeMo and Megatron-Bridge, "
            "are Python. Let the tool print or dump its configuration, and import that file"
        )
    if ending == ".json":
        return "huggingface"
    if ending == ".toml":
        return "torchtitan"
    if ending in (".yaml", ".yml"):
        sections = {line.partition(":")[0] for line in text.splitlines() if line and not line[0].isspace()}
        nemo = sections & {"trainer", "exp_manager", "optim", "strategy"}
        return "nemo" if nemo else "bridge"
    return "megatron"


def _of_hugging_face(path: str, asked: Asked) -> Imported:
    model, ignored = model_from_hf_config(path)
    name = Path(path).resolve().parent.name if model.name == "config" else model.name
    read = Read(unknown=list(ignored))
    table = replace(tool("megatron-core"), title="Hugging Face", software="", complete=False)
    return _compose(read, table, "huggingface", path, asked, replace(model, name=name or "model"))


def _compose(read: Read, table: Tool, form: str, path: str, asked: Asked, base: Model | None) -> Imported:
    """The scenario of the facts."""
    where = shortened(path, LONGEST_NAME)
    assumed: list[str] = []
    missing: dict[str, str] = {}
    document: dict[str, Any] = {}
    document["model"], model = _model(read, table, base, asked, path, missing)
    _cluster(read, asked, document, missing, where)
    if asked.release is not None:
        document["software"] = _software(asked.release, table)
        read.origins["software"] = "--release"
    gpus = document.get("gpus")
    layout = _layout(read, model, gpus, where)
    data, strategy = _data(read, table, gpus, layout, assumed, missing, where)
    sections = {"layout": layout, "data": data, "strategy": strategy}
    document |= {name: part for name, part in sections.items() if part}
    document = {key: value for key, value in document.items() if value is not None}
    scenario = None
    if not missing:
        scenario = resolve_scenario(document, source=where, default_name=Path(path).stem)
    return Imported(
        format=form,
        title=table.title,
        source=Path(path).name,
        document=document,
        origins=read.origins,
        missing=missing,
        assumed=tuple(assumed),
        unknown=tuple(read.unknown),
        not_modelled=tuple(read.not_modelled),
        without_effect=tuple(sorted(set(read.without_effect))),
        scenario=scenario,
    )


def _model(
    read: Read, table: Tool, base: Model | None, asked: Asked, path: str, missing: dict[str, str]
) -> tuple[object, Model | None]:
    where = shortened(path, LONGEST_NAME)
    known, lacking = read_model(read, base, table.complete, where)
    if base is not None:
        if read.origins.get("model") is None:
            read.origins["model"] = "--model" if asked.model else path if table.software else Path(path).name
        alike = named_alike(base)
        return alike or {"name": base.name, **model_document(base)}, base
    if known is None:
        missing["model"] = f"{_NEEDED['model']}; the file lacks {', '.join(lacking)}"
        return None, None
    alike, model = catalog_name(known, Path(path).stem or "model", where)
    read.origins["model"] = "the shape that the file describes"
    return alike or {"name": model.name, **known}, model


def _cluster(read: Read, asked: Asked, document: dict[str, Any], missing: dict[str, str], where: str) -> None:
    facts = read.facts
    nodes, of_node = facts.get("run.nodes"), facts.get("run.gpus_per_node")
    gpus, own = asked.gpus, None
    if gpus is not None:
        read.origins["gpus"] = "--gpus"
    elif isinstance(nodes, int) and isinstance(of_node, int):
        gpus = nodes * of_node
        read.origins["gpus"] = f"{read.origins['run.nodes']} x {read.origins['run.gpus_per_node']}"
    if asked.cluster is None:
        missing["cluster"] = _NEEDED["cluster"]
    else:
        document["cluster"], own = machine(asked.cluster)
        read.origins["cluster"] = "--cluster"
    if gpus is None:
        if own is None:
            missing["gpus"] = _NEEDED["gpus"]
        gpus = own
    document["gpus"] = gpus


def _software(release: str, table: Tool) -> str:
    text = release if " " in release.strip() else f"{table.software} {release.strip()}"
    try:
        read_software(text)
    except ValueError as error:
        raise UserInputError(f"--release: {error}") from None
    return text


def _layout(read: Read, model: Model | None, gpus: int | None, where: str) -> dict[str, Any]:
    """The section `layout`: what the file says, and what its tool does without being told."""
    facts = read.facts
    layout = {key.removeprefix("layout."): value for key, value in facts.items() if key.startswith("layout.")}
    tp, pp = int(str(layout.get("tp", 1))), int(str(layout.get("pp", 1)))
    if layout.get("schedule") == "interleaved" and layout.get("vpp", 1) == 1:
        layout["vpp"] = 2
        read.origins["layout.vpp"] = "default of the schedule"
    if layout.get("schedule") == "zb-v":
        layout["vpp"] = 2
        read.origins["layout.vpp"] = "the schedule's own"
    if model is None or not model.experts:
        layout.pop("etp", None)
    elif "etp" not in layout:
        layout["etp"] = tp
        read.origins["layout.etp"] = "as tensor parallelism (the tool's default)"
    replicas = facts.get("run.replicas")
    if isinstance(replicas, int) and replicas > 1 and layout.get("sharding") != "none":
        if gpus is None or gpus % (tp * pp * replicas):
            raise UserInputError(
                f"{where}: {read.origins['run.replicas']}: {replicas} copies need --gpus, a multiple of "
                f"tp x pp x copies = {tp * pp * replicas}"
            )
        layout["shard_ranks"] = gpus // (tp * pp * replicas)
        read.origins["layout.shard_ranks"] = read.origins["run.replicas"]
    if layout.get("cp") == 1 and facts.get("run.dynamic"):
        del layout["cp"]
    shown = {}
    for name, value in layout.items():
        key = KEYS[f"layout.{name}"]
        by_default = name != "cp" and read.origins.get(f"layout.{name}", "").startswith("default")
        if not (by_default and value == key.dump(key.default)):
            shown[name] = value
    return shown


def _data(
    read: Read,
    table: Tool,
    gpus: int | None,
    layout: dict[str, Any],
    assumed: list[str],
    missing: dict[str, str],
    where: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `data` and `strategy`."""
    facts, origins = read.facts, read.origins
    length = facts.get("run.seq_length")
    cp = int(str(layout.get("cp", 1)))
    dynamic = bool(facts.get("run.dynamic"))
    if not isinstance(length, int):
        missing["data.context"] = _NEEDED["data.context"]
        missing["data.batch"] = _NEEDED["data.batch"]
        return {}, {}
    micro_batch = _micro_batch(read, table, assumed)
    data: dict[str, Any] = {"lengths": f"{length} tokens"}
    origins["data.lengths"] = origins["run.seq_length"]
    if dynamic:
        assumed.append(
            "every sequence has the full length: the options of a dynamic context do not say the lengths; "
            "write data.trace or data.distribution instead of data.lengths"
        )
        micro_batch = 1
    data["context"] = f"{length * micro_batch} tokens"
    origins["data.context"] = (
        f"{origins['run.seq_length']} x {origins.get('run.micro_batch', 'micro-batches of 1')}"
    )
    batch = _global_batch(read, gpus, micro_batch, layout, where)
    if batch is None:
        missing["data.batch"] = f"{_NEEDED['data.batch']} ({table.title} makes it of --gpus)"
    else:
        data["batch"] = f"{batch} sequences"
        stated = facts.get("run.global_batch") == batch
        origins["data.batch"] = origins["run.global_batch"] if stated else "micro-batch x data-parallel ranks"
    if dynamic:
        capacity = facts.get("run.rank_capacity")
        layout["rank_capacity"] = f"{capacity if isinstance(capacity, int) else -(-length // cp)} tokens"
        origins["layout.rank_capacity"] = origins.get("run.rank_capacity", "length over context parallelism")
        origins["strategy.name"] = "dynamic context parallelism; the planner is hdpsim's"
        return data, {"name": "hdp-opt"}
    if "cp" not in layout:
        layout["cp"] = 1
        origins["layout.cp"] = "not said; no context parallelism"
        assumed.append("layout.cp: 1: the file leaves it to its recipe")
    layout["rank_capacity"] = f"{-(-length * micro_batch // cp)} tokens"
    origins["layout.rank_capacity"] = "length x micro-batch over context parallelism"
    origins["strategy.name"] = "one mesh, micro-batches of one shape"
    return data, {"name": "static"}


def _micro_batch(read: Read, table: Tool, assumed: list[str]) -> int:
    facts = read.facts
    micro_batch = facts.get("run.micro_batch")
    staged = facts.get("run.stage_micro_batch")
    if isinstance(staged, int) and int(str(facts.get("layout.pp", 1))) > 1:
        micro_batch = staged
        read.origins["run.micro_batch"] = read.origins["run.stage_micro_batch"]
    if not isinstance(micro_batch, int):
        assumed.append(f"micro-batches of 1 sequence: the file does not say ({table.title})")
        return 1
    if micro_batch < 1:
        raise UserInputError(
            f"{read.origins['run.micro_batch']}: expected at least 1, got {quoted(micro_batch)}"
        )
    return micro_batch


def _global_batch(
    read: Read, gpus: int | None, micro_batch: int, layout: Mapping[str, Any], where: str
) -> int | None:
    """Sequences of a step: as stated, else a micro-batch for every data-parallel group."""
    stated = read.facts.get("run.global_batch")
    replica = int(str(layout.get("tp", 1))) * int(str(layout.get("pp", 1))) * int(str(layout.get("cp", 1)))
    groups = None if gpus is None or gpus % replica else gpus // replica
    if isinstance(stated, int) and stated > 0:
        if groups is not None and stated % (groups * micro_batch) and not read.facts.get("run.dynamic"):
            raise UserInputError(
                f"{where}: {read.origins['run.global_batch']}: {stated} sequences do not divide by micro-batch x "
                f"data-parallel groups = {micro_batch} x {groups}"
            )
        return stated
    own = read.facts.get("run.micro_batch")
    if groups is None:
        return None
    return groups * (own if isinstance(own, int) and own > 0 else micro_batch)
