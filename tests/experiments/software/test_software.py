"""Software stacks as data: the reader of rules, the rules that ship, and `software:` of a scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.layout.layout import GROUPS, SWITCHES, Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError, ScenarioError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.records.switches import switches_of
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.software.choice import (
    read_software,
    software_names,
)
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import (
    KINDS,
    Stack,
    _Conditions,
    left_out,
    overheads_of,
    settable,
    setting_of,
    stacks,
    switches,
    usual_release,
)
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.experiments.validation.views import plain
from hdpsim.simulator.step import simulate_step

READINGS = {
    "activation_offload",
    "chunks",
    "document_tokens",
    "flop_convention",
    "interleaves",
    "memory_gauge",
    "node",
    "memory_stage",
    "unknown_framework",
    "unknown_policy",
    "not_modelled",
    "recompute",
    "board_w",
    "stays_gathered",
    "tensor_boost",
    "usual_policies",
}
"""What other code asks the rules for by name, beside fields of dataclasses."""


def holds(condition: dict[str, Any], **config: Any) -> tuple[str, ...] | None:
    test = _Conditions({"own": {"framework": "own"}}).compile(condition, "here")
    return test(Run(RunConfig(**{"gpu": "h100", **config})))


@pytest.mark.parametrize(
    ("condition", "config", "expected"),
    [
        ({}, {}, True),
        ({"framework": "^Meg"}, {"framework": "Megatron"}, True),
        ({"framework": "^Meg", "tp": ">1"}, {"framework": "Megatron"}, False),  # a degree nobody states is 1
        ({"year": "<2024"}, {"year": 2023}, True),
        ({"year": "<2024"}, {}, False),  # an unknown year is neither before
        ({"unless": {"year": "<=2023"}}, {}, True),  # nor surely not after
        ({"kv_heads": "unknown"}, {}, True),
        ({"kv_heads": "known"}, {"kv_heads": 8}, True),
        ({"zero_stage": ["zero1", None]}, {}, True),
        ({"zero_stage": "zero1"}, {}, False),
        ({"recompute": "unknown"}, {}, True),
        ({"sp": False}, {"sp": False}, True),
        ({"sp": False}, {}, False),  # nobody says that there is none
        ({"release": "Megatron-Bridge >= 26.06"}, {"framework": "Megatron-Bridge 26.06.01"}, True),
        ({"release": "Megatron-Bridge >= 26.06"}, {"framework": "Megatron-Bridge 26.04.01"}, False),
        ({"release": "core >= 0.10"}, {"framework": "core 0.9"}, False),  # numbers, not decimals
        ({"release": "core >= 0.9"}, {"framework": "core v0.10"}, True),
        ({"mentions": "NeMo < 24.05"}, {"notes": "container NeMo24.03.01"}, True),
        ({"mentions": "NeMo < 24.05"}, {"framework": "NeMo", "notes": "02-28"}, False),
        ({"generation": "hopper"}, {"gpu": "H100-SXM-80G"}, True),
        ({"generation": "hopper"}, {"gpu": "of nobody"}, False),
        ({"is": "own"}, {"framework": "my own"}, True),
        ({"any": [{"tp": "==8"}, {"pp": "==8"}]}, {"pp": 8}, True),
        ({"any": [{"tp": "==8"}, {"pp": "==8"}]}, {"pp": 4}, False),
        ({"unless": {"any": [{"tp": "==8"}, {"pp": "==8"}]}}, {"pp": 4}, True),
        ({"notes": ["one", "two"]}, {"notes": "two and one"}, True),
        ({"notes": ["one", "two"]}, {"notes": "two"}, False),
    ],
)
def test_a_condition(condition: dict[str, Any], config: dict[str, Any], expected: bool) -> None:
    assert (holds(condition, **config) is not None) is expected


def test_what_an_expression_caught_is_handed_on() -> None:
    assert holds({"notes": r"rank (\d+)|width (\d+)"}, notes="width 16") == ("16",)


@pytest.mark.parametrize(
    "condition", [{"tp": "many"}, {"colour": "red"}, {"is": "nobody"}, {"release": "new"}]
)
def test_a_condition_that_means_nothing_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match="here"):
        holds(condition)


def rules() -> list[tuple[Stack, Any]]:
    return [(stack, rule) for stack in stacks() for rule in stack.rules]


@pytest.mark.parametrize(
    ("stack", "rule"), rules(), ids=lambda item: getattr(item, "switch", getattr(item, "name", ""))
)
def test_every_shipped_rule_sets_a_switch_to_a_value_that_it_takes(stack: Stack, rule: Any) -> None:
    hints = {name: hint for owner in (Model, MemoryOverheads) for name, hint in get_type_hints(owner).items()}
    hints |= {name: get_type_hints(GROUPS[s.group])[s.field] for name, s in SWITCHES.items()}
    known = {name for owner in (Layout, Model, MemoryOverheads) for name in settable(owner)}
    assert rule.switch in known | READINGS
    assert rule.kind in KINDS
    assert rule.kind == "stated" or rule.source, "whoever is not quoted has a source"
    hint = hints.get(rule.switch)
    if get_origin(hint) is Literal and rule.value != "default":
        assert rule.value in get_args(hint)


def test_no_rule_names_a_record_a_source_or_a_measurement() -> None:
    families = {str(record.columns.get("family")) for record in read_records(shipped_records())}
    stacks_of_records = {
        "bloom",
        "nemo",
        "nanotron",
        "torchtitan",
        "megatron-lm",
        "megatron-bridge",
        "mlperf",
    }
    for stack, rule in rules():
        if stack.name == "sources" or rule.switch == "not_modelled":
            continue
        text = f"{rule.condition} {rule.words}"
        assert not (families - stacks_of_records) & set(text.lower().split()), (stack.name, rule.switch)
        assert "busbw" not in text
        assert "measured" not in text
        assert "regression" not in text


FRAMEWORKS = sorted({record.config.framework for record in read_records(shipped_records())})


@given(
    framework=st.sampled_from([*FRAMEWORKS, "of nobody"]),
    year=st.sampled_from([None, *range(2019, 2028)]),
    degrees=st.fixed_dictionaries({name: st.sampled_from([None, 1, 2, 8]) for name in ("tp", "pp", "cp", "ep")}),
    words=st.fixed_dictionaries({
        "precision": st.sampled_from([None, "bf16", "fp8", "mxfp8"]),
        "zero_stage": st.sampled_from([None, "none", "zero1", "zero3", "hsdp"]),
        "recompute": st.sampled_from([None, "none", "selective", "full"]),
        "task": st.sampled_from([None, "pretrain", "lora"]),
    }),
    n_experts=st.sampled_from([None, 8]),
)  # fmt: skip
def test_any_stack_of_any_year_gives_switches_that_are_taken(
    framework: str, year: int | None, degrees: dict[str, Any], words: dict[str, Any], n_experts: int | None
) -> None:
    config = RunConfig(
        gpu="H100-SXM-80G", n_gpus=64, framework=framework, year=year, n_experts=n_experts, **degrees, **words
    )
    found = switches_of(Run(config))
    assert Layout(**found.layout)
    for switch in switches():
        assert (
            setting_of(Run(config, frozenset(KINDS)), switch) is None
        )  # nothing is left of classes left out
    less = switches_of(Run(config, frozenset({"inferred"})))
    assert less.kinds <= {"stated", "release"}


def test_a_year_that_no_shipped_record_has_gets_the_switches_of_its_stack() -> None:
    def of(**config: Any) -> dict[str, Any]:
        return switches_of(Run(RunConfig(**{"gpu": "h100", "n_gpus": 64, **config}))).layout

    assert of(framework="Megatron-LM", year=2020)["gradient_accumulation"] == "separate"
    assert "gradient_accumulation" not in of(framework="Megatron-LM", year=2027)
    assert of(framework="Megatron-Core 0.7", year=2024, n_experts=8, tp=4)["etp"] == 4
    assert of(framework="Megatron-Core 0.14", year=2025, n_experts=8, tp=4)["etp"] == 4
    assert "etp" not in of(
        framework="Megatron-Core 0.14", year=2025, n_experts=8, tp=4, ep=32
    )  # 128 GPUs a copy
    assert "etp" not in of(framework="Megatron-Bridge 25.09", year=2025, n_experts=8, tp=4)
    swift = {"year": 2025, "n_experts": 8, "tp": 4}
    assert of(framework="Megatron-SWIFT (Megatron-Core 0.12)", **swift)["etp"] == 4
    assert "etp" not in of(framework="Megatron-SWIFT (Megatron-Core 0.14)", **swift)
    assert of(framework="torchtitan", year=2027, cp=2)["cp_kind"] == "all-gather"


def test_mixtures_of_many_experts_are_laid_out_as_the_guide_of_their_year_advises() -> None:
    """Experts whole beside cut attention, dispatched by DeepEP between servers, graphs on racks."""

    def of(**config: Any) -> dict[str, Any]:
        many = {"framework": "Megatron-Core", "year": 2025, "n_experts": 128, "topk": 8, "tp": 2, "ep": 32}
        return switches_of(Run(RunConfig(**{"gpu": "h100", "n_gpus": 256, **many, **config}))).layout

    assert "etp" not in of()
    assert of(year=2024)["etp"] == 2
    assert of(n_experts=64)["etp"] == 2
    assert of(notes="ETP 2")["etp"] == 2
    assert of()["expert_dispatch"] == "fused"
    assert "expert_dispatch" not in of(ep=8)  # within a server
    assert "expert_dispatch" not in of(topk=2)
    assert "expert_dispatch" not in of(framework="Megatron-Core 0.11")  # before DeepEP
    assert "expert_dispatch" not in of(notes="alltoall dispatcher")
    assert "cuda_graphs" not in of()
    racks = of(gpu="gb200")
    assert (racks["cuda_graphs"], racks["cuda_graph_experts"]) == (True, False)
    assert "cuda_graphs" not in of(gpu="gb200", notes="no graphs")


@pytest.mark.parametrize(
    ("config", "hidden"),
    [
        ({"framework": "Megatron-LM", "year": 2022, "sp": False}, True),
        ({"framework": "Megatron-LM", "year": 2022, "sp": True}, False),
        ({"framework": "Megatron-LM (SC21)", "year": 2021, "sp": False}, False),  # before it was asynchronous
        ({"framework": "Megatron-DeepSpeed", "year": 2022, "sp": False}, False),  # a fork of before
        ({"framework": "Megatron-LM", "year": 2022, "sp": False, "tp": 1}, False),
        ({"framework": "Megatron-LM", "year": 2022, "sp": False, "notes": "tp comm overlap True"}, False),
    ],
)
def test_all_reduces_of_megatron_lm_run_beside_weight_gradients(config: dict[str, Any], hidden: bool) -> None:
    run = Run(RunConfig(**{"gpu": "a100", "n_gpus": 64, "tp": 8, **config}))
    assert (setting_of(run, "tp_asynchronous") is not None) == hidden


def test_the_newest_release_not_newer_gives_the_year() -> None:
    assert read_software("megatron-core 0.13").year == 2025
    assert read_software("megatron-core 0.9.3").year == 2024
    assert read_software("megatron-core 9.0").year == 2026
    assert read_software("nemo").release == "25.07"
    assert read_software("torchtitan 2.8 with torch.compile").framework.endswith("with torch.compile")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("megatron-cor 0.13", "did you mean .megatron-core"),
        ("nemo 20.01", "older than the releases of nemo that are known: 23.08"),
        ("0.13 beta", "expected a stack and its release"),
    ],
)
def test_a_stack_that_is_not_known_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_scenario("quickstart-8gpu", (f"software={text}",))


@pytest.mark.parametrize("name", software_names())
def test_every_stack_times_a_scenario_and_says_what_it_set(name: str) -> None:
    scenario = load_scenario("quickstart-8gpu", (f"software={name}", "layout.rank_capacity=2K tokens"))
    assert simulate_step(scenario.setup(), scenario.batches(1)[0]).step_s > 0
    for setting in scenario.settings:
        if setting.switch in SWITCHES:
            found = scenario.layout.switch(setting.switch)
        else:
            owners = (scenario.model, scenario.memory.overheads)
            found = next(getattr(owner, setting.switch) for owner in owners if hasattr(owner, setting.switch))
        assert found == setting.value


@pytest.mark.parametrize(
    ("model", "node", "release", "kernel"),
    [
        ("deepseek-v3", "hgx-b200-180gb", "25.11", "cudnn2025"),
        ("deepseek-v3", "hgx-b200-180gb", "26.04", "flash"),
        ("deepseek-v3", "hgx-h100-80gb", "25.11", "flash"),
        ("llama-3-70b", "hgx-b200-180gb", "25.11", "flash"),
    ],
)
def test_latent_attention_on_blackwell_has_a_faster_backward_since_2026(
    model: str, node: str, release: str, kernel: str
) -> None:
    scenario = load_scenario(
        "quickstart-8gpu",
        (f"software=megatron-bridge {release}", f"model={model}", f"cluster.node={node}"),
    )
    assert scenario.layout.kernels.attention == kernel


@pytest.mark.parametrize(
    ("model", "gpu", "release", "kernel"),
    [
        ("gpt-oss-120b", "gb200", "26.06", "mxfp8"),
        ("gpt-oss-120b", "gb200", "26.04", "flash"),
        ("gpt-oss-120b", "b200-180gb", "26.06", "flash"),
        ("qwen3-30b-a3b", "b200-180gb", "26.06", "mxfp8"),
        ("deepseek-v3", "gb300", "26.06", "mxfp8"),
        ("deepseek-v3", "gb200", "26.06", "flash"),
    ],
)
def test_recipes_of_mixtures_have_attention_in_mxfp8_where_the_release_has_it(
    model: str, gpu: str, release: str, kernel: str
) -> None:
    node = f"{'nvl72' if gpu.startswith('gb') else 'hgx'}-{gpu}"
    said = {"software": f"megatron-bridge {release}", "model": model, "layout.precision": "mxfp8"}
    said |= {"cluster.node": node, "cluster.gpus": "72"}
    scenario = load_scenario("quickstart-8gpu", tuple(f"{key}={value}" for key, value in said.items()))
    assert scenario.layout.kernels.attention == kernel


@pytest.mark.parametrize(
    ("software", "other"),
    [("megatron-bridge 2026", "26.06"), ("megatron-bridge", "26.02"), ("megatron-bridge 26.08", None)],
)
def test_without_a_release_the_one_of_the_year_that_decides_most_otherwise_is_named(
    software: str, other: str | None
) -> None:
    mixture = ("model=qwen3-30b-a3b", "layout.precision=mxfp8", "cluster.node=nvl72-gb200", "cluster.gpus=72")

    def notes(*changes: str) -> list[str]:
        said = load_scenario("quickstart-8gpu", (f"software={software}", *mixture, *changes)).notes
        return [note for note in said if "no release is said" in note]

    assert [f"megatron-bridge {other} decides otherwise: " in note for note in notes()] == [True] * bool(
        other
    )
    # what the scenario writes itself no release decides
    written = "layout.cuda_graph_scope=layers"
    assert ["cuda_graph_scope" in note for note in notes()] == [True] * bool(other)
    assert ["cuda_graph_scope" in note for note in notes(written)] == [False] * bool(other)


def test_what_a_scenario_writes_wins_over_its_software() -> None:
    plain = load_scenario("quickstart-8gpu", ("software=torchtitan 2.8",))
    assert (plain.layout.kernels.attention, plain.layout.kernels.fused) == ("flash2", False)
    own = load_scenario("quickstart-8gpu", ("software=torchtitan 2.8", "layout.fused_kernels=true"))
    assert (own.layout.kernels.attention, own.layout.kernels.fused) == ("flash2", True)
    assert "fused_kernels" not in {setting.switch for setting in own.settings}


@pytest.mark.parametrize("name", ["torchtitan 2.8", "megatron-lm 0.4"])
def test_a_resolved_scenario_leaves_to_its_software_what_the_software_decides(
    name: str, tmp_path: Any
) -> None:
    scenario = load_scenario("quickstart-8gpu", (f"software={name}",))
    path = tmp_path / "again.yaml"
    path.write_text(scenario.to_yaml())
    again = load_scenario(path)
    assert (again.layout, again.model, again.settings) == (scenario.layout, scenario.model, scenario.settings)
    assert again.memory == scenario.memory
    other = load_scenario(path, ("software=nemo 24.07",))
    assert other.layout == load_scenario("quickstart-8gpu", ("software=nemo 24.07",)).layout


@pytest.mark.parametrize(
    ("software", "model", "node", "precision"),
    [
        ("megatron-core 0.13", "deepseek-v3", "nvl72-gb200", "bf16"),
        ("megatron-bridge 25.09", "deepseek-v2", "hgx-h100-80gb", "bf16"),
        ("nemo 2024", "nemotron-h-8b", "alps-gh200", "fp8"),
        ("nemo 25.04", "gpt3-175b", "nvl72-gb200", "fp8"),
        ("nemo-automodel", "deepseek-v3", "hgx-b200-180gb", "bf16"),
        ("torchtitan 2.8 with torch.compile", "nemotron-h-8b", "hgx-h100-80gb", "bf16"),
        ("transformers 4", "llama-3-8b", "hgx-h100-80gb", "bf16"),
    ],
)
def test_a_changed_part_keeps_what_software_decides_of_it(
    software: str, model: str, node: str, precision: str
) -> None:
    """A key of the model, of the node or of its GPU that is said again, with the value that it has, changes nothing."""
    keys = {
        "software": software, "model": model, "cluster.node": node, "gpus": 72 if node.startswith("nvl72") else 8,
        "data.context": "2K", "layout.precision": precision, "layout.recompute": "selective",
    }  # fmt: skip
    plain = load_scenario("quickstart-8gpu", keys)
    said = {
        "model.vocab": plain.model.vocab,
        "cluster.node.nics": plain.cluster.node.nics,
        "cluster.node.gpu.tdp": f"{plain.cluster.gpu.tdp_w}W",
    }
    again = load_scenario("quickstart-8gpu", {**keys, **said})
    assert again.settings == plain.settings
    assert again.layout == plain.layout
    assert again.model == replace(plain.model, name=again.model.name, source=again.model.source)


def test_memory_that_a_scenario_writes_wins_over_its_software() -> None:
    changes = ("software=nanotron", "memory.logit_bytes=4", "memory.must_fit=false")
    memory = load_scenario("quickstart-8gpu", changes).memory
    eager = overheads_of(Run(RunConfig(gpu="H100-SXM-80G", framework="nanotron")))
    assert memory.overheads == replace(eager, logit_bytes=4.0)
    assert not memory.must_fit
    notes = load_scenario("quickstart-8gpu", changes).notes
    assert any("set by software: " in note and "memory.host_run_ahead = true" in note for note in notes)
    assert load_scenario("quickstart-8gpu").memory.overheads == MemoryOverheads()


@pytest.mark.parametrize("name", ["megatron-core 0.13", "nemo 24.07", "torchtitan 2.8"])
def test_a_degree_that_a_planner_chooses_has_the_switches_of_the_same_degree_stated(name: str) -> None:
    """Quickstart's hdp-opt leaves `cp` open: groups of several ranks are those of a stack with several ranks."""
    planned = load_scenario("quickstart-8gpu", (f"software={name}",))
    stated = load_scenario("quickstart-8gpu", (f"software={name}", "layout.cp=2"))
    alone = load_scenario("quickstart-8gpu", (f"software={name}", "layout.cp=1"))
    assert planned.layout.parallel.cp is None
    for scenario in (planned, stated):
        assert scenario.memory.overheads.ring_steps_kept == ("torchtitan" not in name)
    assert planned.layout.context == stated.layout.context
    assert not alone.memory.overheads.ring_steps_kept


def test_the_catalog_lists_stacks_and_their_rules() -> None:
    listed = CliRunner().invoke(cli, ["catalog", "software"])
    assert "megatron-core" in listed.output
    one = CliRunner().invoke(cli, ["catalog", "software", "torchtitan"])
    assert "tp_batch_first" in one.output
    unknown = CliRunner().invoke(cli, ["catalog", "software", "torchtitn"])
    assert unknown.exit_code == 2
    assert "did you mean 'torchtitan'" in unknown.output


def test_rules_are_left_out_by_class_or_by_the_switch_of_a_stack() -> None:
    assert left_out(["inferred", "nemo.tp_overlap"]) == {"inferred", "nemo.tp_overlap"}
    run = RunConfig(gpu="h100", framework="NeMo 24.07", tp=8)
    assert setting_of(Run(run), "tp_overlap") is not None
    assert setting_of(Run(run, frozenset({"nemo.tp_overlap"})), "tp_overlap") is None
    with pytest.raises(UserInputError, match=r"did you mean 'nemo\.tp_overlap'"):
        left_out(["nemo.tp_overlp"])


@pytest.mark.parametrize(
    ("software", "said"),
    [
        ("torchtitan 2.8", ""),
        ("torchtitan 2.8 with torch.compile", ""),
        ("torchtitan 99", "a release that is not known; the rules of 2.10 count"),
        ("nemo 2024", "of that year the usual one; the rules of 24.07 count"),
        ("nemo 2031", "no release of that year is known; the rules of 25.07 count"),
        ("maxtext 2025", ""),
        ("megatron-core 0.13 with bogus nonsense", "'with bogus nonsense' changes nothing"),
        ("deepspeed 0.16 with ZeRO-3", "'with ZeRO-3' changes nothing"),
    ],
)
def test_a_release_that_is_not_known_and_words_that_nobody_reads_are_said(software: str, said: str) -> None:
    notes = " | ".join(load_scenario("quickstart-8gpu", (f"software={software}",)).notes)
    assert (said in notes) if said else ("the rules of" not in notes and "no rule reads" not in notes), notes


@pytest.mark.parametrize("name", software_names())
@pytest.mark.parametrize("year", [2021, 2023, 2025])
def test_a_stack_of_a_year_is_a_record_of_that_framework_and_year(name: str, year: int) -> None:
    software = read_software(f"{name} {year}")
    stack = next(stack for stack in stacks() if name in stack.frameworks)
    assert software.year == year or str(2024) in stack.releases  # MaxText's releases are years
    assert read_software(f"{name} {year}").release_said == (str(year) in stack.releases)
    if software.framework.lower() == name:  # all that a record says of it
        record = Run(RunConfig(gpu="h100", framework=software.framework, year=year))
        assert usual_release(record, software.framework) == software.known_release
    else:
        assert software.known_release in software.framework


@pytest.mark.parametrize("name", software_names())
def test_every_stack_is_known_by_all_words_of_its_name(name: str) -> None:
    said = read_software(name)
    assert read_software(name.replace("-", " ").title()) == said
    run = Run(RunConfig(gpu="h100", framework=said.framework, year=said.year))
    named = Run(plain(run.config))
    assert named.config.framework in said.framework
    for switch in ("unknown_framework", "optimizer_bytes", "unfused_copies"):
        assert setting_of(run, switch) == setting_of(named, switch)
    assert setting_of(run, "unknown_framework") is None


def test_a_framework_that_no_rule_knows_is_said() -> None:
    unknown = Run(RunConfig(gpu="h100", framework="Frobnicator 3", year=2025))
    assert any("framework Frobnicator 3" in words for words in switches_of(unknown).assumptions)


def test_a_policy_of_maxtext_is_said_after_with() -> None:
    changes = ("layout.recompute=selective", "layout.cp=1", "layout.sharding=zero3")
    open_ = load_scenario("quickstart-8gpu", (*changes, "software=maxtext 2025"))
    assert any("remat_policy" in note for note in open_.notes)
    said = load_scenario(
        "quickstart-8gpu", (*changes, "software=maxtext 2025 with remat_policy=save_qkv_proj")
    )
    assert not any("remat_policy" in note for note in said.notes)
    with_unknown = (*changes, "software=maxtext 2025 with remat_policy=save_all")
    assert any(
        "policy save_all is not known" in note
        for note in load_scenario("quickstart-8gpu", with_unknown).notes
    )
    # All but queries, keys, values and the last product: of 4 h^2 + 3 x 3.5 h^2 (kv an eighth) more than half.
    assert said.layout.recompute.share == 1.0
    assert 0.5 < said.layout.recompute.products < 0.7


def test_fp16_is_told_what_it_is_here() -> None:
    with pytest.raises(ScenarioError, match=r"layout\.gradient_bytes: 2"):
        load_scenario("quickstart-8gpu", ("layout.precision=fp16",))
