"""From a file of another tool to a scenario document, and what it does and does not say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import model_document
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import UserInputError
from hdpsim.experiments.other_tools.machines import machine
from hdpsim.experiments.other_tools.options import Option, read_toml, read_yaml
from hdpsim.experiments.other_tools.shapes import (
    catalog_name,
    named_alike,
    named_model,
    read_model,
    size_words,
)
from hdpsim.experiments.other_tools.shell import read_flags
from hdpsim.experiments.other_tools.table import Tool, tool
from hdpsim.experiments.other_tools.translate import Read, read_options
from hdpsim.experiments.output.meanings import meanings
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


_OTHERS = {
    "deepspeed": {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"},
    "llm-foundry": {"fsdp_config", "device_train_microbatch_size", "global_train_batch_size", "max_duration"},
    "maxtext": {"per_device_batch_size", "max_target_length", "remat_policy", "ici_fsdp_parallelism"},
    "nanotron": {"batch_accumulation_per_replica", "tp_mode", "pp_engine"},
}  # fmt: skip
"""Stacks whose files are not read, and options that two of which tell such a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAnswers:
    """What the user says beside the file."""

    cluster: str | None = None
    gpus: int | None = None
    model: str | None = None
    release: str | None = None


def import_file(path: str, form: str | None = None, asked: UserAnswers | None = None) -> Imported:
    """Read a configuration of another tool; *form* is one of FORMATS, None: as it looks.

    Raises:
        UserInputError: unreadable, of no known form, or it contradicts itself.
        InfeasibleError: it cannot be simulated, or does not fit the GPUs.
    """
    asked = asked or UserAnswers()
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
    return _Import(read, table, path, asked, base).found(form)


def _form_of(path: str, text: str) -> str:
    """What a file is, by the end of its name and the sections it has."""
    ending = Path(path).suffix.lower()
    if ending == ".py":
        raise UserInputError(
            f"{path}: Python code is not run: newer releases of torchtitan, and recipes of NeMo and Megatron-Bridge, "
            "are Python. Let the tool print or dump its configuration, and import that file"
        )
    if ending in (".json", ".yaml", ".yml"):
        _refuse_others(path, text)
    if ending == ".json":
        return "huggingface"
    if ending == ".toml":
        return "torchtitan"
    if ending in (".yaml", ".yml"):
        sections = {line.partition(":")[0] for line in text.splitlines() if line and not line[0].isspace()}
        if {"cluster", "data"} <= sections:
            raise UserInputError(
                f"{path}: is a scenario of hdpsim already: `hdpsim simulate` takes it, `hdpsim export` turns it into "
                "options of another tool"
            )
        nemo = sections & {"trainer", "exp_manager", "optim", "strategy"}
        return "nemo" if nemo else "bridge"
    if tool(FORMATS["megatron"]).names.isdisjoint(re.findall(r"--([\w-]+)", text)):
        raise UserInputError(
            f"{path}: is no configuration: it holds no option of Megatron-LM. Import reads scripts and flags of "
            "Megatron-LM, YAML of NeMo and Megatron-Bridge, TOML of torchtitan, and config.json of Hugging Face"
        )
    return "megatron"


def _refuse_others(path: str, text: str) -> None:
    """Files of tools that have no table here: their options would all be listed as not understood."""
    names = set(re.findall(r"(\w+)[\"']?\s*:", text))
    other = next((stack for stack, own in _OTHERS.items() if len(names & own) > 1), None)
    if other is not None:
        raise UserInputError(
            f"{path}: is a configuration of {other}, which import does not read. `hdpsim new --framework {other}` "
            f"writes a scenario to complete; `software: {other}` sets what that stack does"
        )


def _of_hugging_face(path: str, asked: UserAnswers) -> Imported:
    model, ignored = model_from_hf_config(path)
    name = Path(path).resolve().parent.name if model.name == "config" else model.name
    read = Read(unknown=list(ignored))
    table = replace(tool("megatron-core"), title="Hugging Face", software="", complete=False)
    return _Import(read, table, path, asked, replace(model, name=name or "model")).found("huggingface")


@dataclass(slots=True)
class _Import:
    """The scenario of what was read, section by section; *base* is the model that is named."""

    read: Read
    table: Tool
    path: str
    asked: UserAnswers
    base: Model | None
    missing: dict[str, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The file, for messages."""
        return shortened(self.path, LONGEST_NAME)

    def found(self, form: str) -> Imported:
        """Everything together."""
        read = self.read
        named, model = self._model()
        cluster, gpus = self._cluster()
        software = self._software()
        layout = self._layout(model, gpus)
        data, strategy = self._data(gpus, layout)
        sections = {"layout": layout, "data": data, "strategy": strategy}
        document: dict[str, Any] = {
            "model": named,
            "cluster": cluster,
            "gpus": gpus,
            "software": software,
        }
        document = {key: value for key, value in document.items() if value is not None}
        document |= {name: part for name, part in sections.items() if part}
        scenario = None
        if not self.missing:
            scenario = resolve_scenario(document, source=self.where, default_name=Path(self.path).stem)
        return Imported(
            format=form,
            title=self.table.title,
            source=Path(self.path).name,
            document=document,
            origins=read.origins,
            missing=self.missing,
            assumed=tuple(self.assumed),
            unknown=tuple(read.unknown),
            not_modelled=tuple(read.not_modelled),
            without_effect=tuple(sorted(set(read.without_effect))),
            scenario=scenario,
        )

    def _need(self, key: str, more: str = "") -> None:
        self.missing[key] = meanings("needed_of_imports")[key] + more

    def _model(self) -> tuple[object, Model | None]:
        origins, base = self.read.origins, self.base
        known, lacking = read_model(self.read, base, self.table.complete, self.where)
        if base is not None:
            file = self.path if self.table.software else Path(self.path).name
            origins["model"] = (
                f"{origins.get('model', '--model' if self.asked.model else file)}: {size_words(base)}"
            )
            return named_alike(base) or {"name": base.name, **model_document(base)}, base
        if known is None:
            self._need("model", f"; the file lacks {', '.join(lacking)}")
            return None, None
        alike, model = catalog_name(known, Path(self.path).stem or "model", self.where)
        origins["model"] = f"the shape that the file describes: {size_words(model)}"
        return alike or {"name": model.name, **known}, model

    def _cluster(self) -> tuple[object, int | None]:
        """The key `cluster`, and how many GPUs."""
        facts, origins = self.read.facts, self.read.origins
        nodes, of_node = facts.get("run.nodes"), facts.get("run.gpus_per_node")
        gpus, cluster, own = self.asked.gpus, None, None
        if gpus is not None:
            origins["gpus"] = "--gpus"
        elif isinstance(nodes, int) and isinstance(of_node, int):
            gpus = nodes * of_node
            origins["gpus"] = f"{origins['run.nodes']} x {origins['run.gpus_per_node']}"
        gpus = self._of_shards(gpus)
        if self.asked.cluster is None:
            self._need("cluster")
        else:
            cluster, own = machine(self.asked.cluster)
            origins["cluster"] = "--cluster"
        if gpus is None and own is None:
            self._need("gpus")
        return cluster, own if gpus is None else gpus

    def _of_shards(self, gpus: int | None) -> int | None:
        """As many GPUs as the degrees of a file make where it says over how many it shards; they must be *gpus*.

        Source: torchtitan/distributed/parallel_dims.py, ParallelDims: dp_replicate * dp_shard * cp * tp * pp.
        """
        shards = self.read.whole_number("run.shards", -1)
        if shards < 1:
            return gpus
        degrees = math.prod(self.read.whole_number(f"layout.{name}") for name in ("tp", "pp", "cp"))
        mesh, said = (
            shards * self.read.whole_number("run.replicas") * degrees,
            self.read.origins["run.shards"],
        )
        if gpus is None:
            self.read.origins["gpus"] = f"{said} x copies x cp x tp x pp"
        elif gpus != mesh:
            raise UserInputError(
                f"{self.where}: {said}: {shards} shards x copies x cp x tp x pp are {mesh:,} GPUs, not {gpus:,}"
            )
        return mesh

    def _software(self) -> str | None:
        if self.asked.release is None:
            return None
        release = self.asked.release.strip()
        text = self.asked.release if " " in release else f"{self.table.software} {release}"
        try:
            read_software(text)
        except ValueError as error:
            raise UserInputError(f"--release: {error}") from None
        self.read.origins["software"] = "--release"
        return text

    def _layout(self, model: Model | None, gpus: int | None) -> dict[str, Any]:
        """The section `layout`: what the file says, and what its tool does without being told."""
        facts, origins = self.read.facts, self.read.origins
        layout = {
            key.removeprefix("layout."): value for key, value in facts.items() if key.startswith("layout.")
        }
        tp, pp = self.read.whole_number("layout.tp"), self.read.whole_number("layout.pp")
        if layout.get("schedule") == "interleaved" and layout.get("vpp", 1) == 1:
            layout["vpp"], origins["layout.vpp"] = 2, "default of the schedule"
        if layout.get("schedule") == "zb-v":
            layout["vpp"], origins["layout.vpp"] = 2, "the schedule's own"
        if model is None or not model.experts:
            layout.pop("etp", None)
        elif "etp" not in layout:
            layout["etp"], origins["layout.etp"] = tp, "as tensor parallelism (the tool's default)"
        replicas = facts.get("run.replicas")
        if isinstance(replicas, int) and replicas > 1 and layout.get("sharding") != "none":
            if gpus is None or gpus % (tp * pp * replicas):
                raise UserInputError(
                    f"{self.where}: {origins['run.replicas']}: {replicas} copies need --gpus, a multiple of "
                    f"tp x pp x copies = {tp * pp * replicas}"
                )
            layout["shard_ranks"] = gpus // (tp * pp * replicas)
            origins["layout.shard_ranks"] = origins["run.replicas"]
        if layout.get("cp") == 1 and facts.get("run.dynamic"):
            del layout["cp"]
        return {name: value for name, value in layout.items() if not self._goes_without_saying(name, value)}

    def _goes_without_saying(self, name: str, value: object) -> bool:
        """Whether a value of the layout is the tool's default and hdpsim's."""
        key = KEYS[f"layout.{name}"]
        by_default = name != "cp" and self.read.origins.get(f"layout.{name}", "").startswith("default")
        return by_default and value == key.dump(key.default)

    def _data(self, gpus: int | None, layout: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sections `data` and `strategy`; completes the layout with what depends on lengths."""
        facts, origins = self.read.facts, self.read.origins
        length, dynamic = facts.get("run.seq_length"), bool(facts.get("run.dynamic"))
        if not isinstance(length, int):
            self._need("data.context")
            self._need("data.batch")
            return {}, {}
        cp, micro_batch = int(str(layout.get("cp", 1))), self._micro_batch()
        if dynamic:
            self.assumed.append(
                "every sequence has the full length: the options of a dynamic context do not say the lengths; "
                "write data.trace or data.distribution instead of data.lengths"
            )
            micro_batch = 1
        data: dict[str, Any] = {"lengths": f"{length} tokens", "context": f"{length * micro_batch} tokens"}
        origins["data.lengths"] = origins["run.seq_length"]
        of_pack = origins.get("run.micro_batch", "micro-batches of 1")
        origins["data.context"] = f"{origins['run.seq_length']} x {of_pack}"
        batch = self._global_batch(gpus, micro_batch, layout)
        if batch is None:
            self._need("data.batch", f" ({self.table.title} makes it of --gpus)")
        else:
            data["batch"] = f"{batch} sequences"
            stated = facts.get("run.global_batch") == batch
            made = "micro-batch x data-parallel ranks"
            origins["data.batch"] = origins["run.global_batch"] if stated else made
            self._schedule_calls(batch, gpus, micro_batch, layout)
        if dynamic:
            capacity = facts.get("run.rank_capacity")
            layout["rank_capacity"] = f"{capacity if isinstance(capacity, int) else -(-length // cp)} tokens"
            over = "length over context parallelism"
            origins["layout.rank_capacity"] = origins.get("run.rank_capacity", over)
            origins["strategy.name"] = "dynamic context parallelism; the planner is hdpsim's"
            return data, {"name": "hdp-opt"}
        if "cp" not in layout:
            layout["cp"], origins["layout.cp"] = 1, "not said; no context parallelism"
            self.assumed.append("layout.cp: 1: the file leaves it to its recipe")
        layout["rank_capacity"] = f"{-(-length * micro_batch // cp)} tokens"
        origins["layout.rank_capacity"] = "length x micro-batch over context parallelism"
        origins["strategy.name"] = "one mesh, micro-batches of one shape"
        return data, {"name": "static"}

    def _micro_batch(self) -> int:
        facts, origins = self.read.facts, self.read.origins
        micro_batch, staged = facts.get("run.micro_batch"), facts.get("run.stage_micro_batch")
        if isinstance(staged, int) and self.read.whole_number("layout.pp") > 1:
            micro_batch, origins["run.micro_batch"] = staged, origins["run.stage_micro_batch"]
        if not isinstance(micro_batch, int):
            self.assumed.append(f"micro-batches of 1 sequence: the file does not say ({self.table.title})")
            return 1
        if micro_batch < 1:
            raise UserInputError(
                f"{origins['run.micro_batch']}: expected at least 1, got {quoted(micro_batch)}"
            )
        return micro_batch

    def _global_batch(self, gpus: int | None, micro_batch: int, layout: Mapping[str, Any]) -> int | None:
        """Sequences of a step: as stated, else what a data-parallel group takes at once, for every group."""
        facts = self.read.facts
        stated, own = facts.get("run.global_batch"), facts.get("run.micro_batch")
        at_once = (
            own if isinstance(own, int) and own > 0 else micro_batch
        )  # all micro-batches of a local batch
        replica = math.prod(int(str(layout.get(degree, 1))) for degree in ("tp", "pp", "cp"))
        groups = None if gpus is None or gpus % replica else gpus // replica
        if isinstance(stated, int) and stated > 0:
            if groups is not None and stated % (groups * at_once) and not facts.get("run.dynamic"):
                what = "local batch" if "run.stage_micro_batch" in self.table.keys else "micro-batch"
                raise UserInputError(
                    f"{self.where}: {self.read.origins['run.global_batch']}: {stated} sequences do not divide by "
                    f"{what} x data-parallel groups = {at_once} x {groups}"
                )
            return stated
        return groups and groups * at_once

    def _schedule_calls(self, batch: int, gpus: int | None, micro_batch: int, layout: dict[str, Any]) -> None:
        """A pipeline whose step has several local batches calls its schedule for each of them."""
        facts, origins = self.read.facts, self.read.origins
        local = facts.get("run.micro_batch")
        replica = math.prod(int(str(layout.get(degree, 1))) for degree in ("tp", "pp", "cp"))
        if "run.stage_micro_batch" not in facts or not isinstance(local, int) or layout.get("pp", 1) == 1:
            return
        if local % micro_batch:
            raise UserInputError(
                f"{self.where}: a local batch of {local} sequences does not divide by "
                f"{origins['run.stage_micro_batch']} {micro_batch}"
            )
        if gpus is None or batch * replica > local * gpus:
            layout["schedule_micro_batches"] = local // micro_batch
            made = f"local batch size over {origins['run.stage_micro_batch']}"
            origins["layout.schedule_micro_batches"] = made
