from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.scenario.overrides import apply_overrides, parse_override
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario, scenario_names
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.yaml_loader import load_yaml

GOOD = """\
model: llama-7b
cluster: {node: hgx-h100-80gb, gpus: 16}
layout: {tp: 2}
data: {distribution: bytescale-github, batch: 1M tokens, context: 128K}
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ScenarioError) as caught:
        resolve_scenario(load_yaml(text))
    return dict(caught.value.problems)


def test_units_become_base_units() -> None:
    scenario = resolve_scenario(load_yaml(GOOD))
    assert scenario.data.batch.tokens == 1024 * 1024
    assert scenario.data.context_tokens == 128 * 1024
    assert scenario.cluster.gpus == 16
    assert scenario.setup().ranks == 16 // 2


def test_defaults_are_those_of_the_schema() -> None:
    scenario = resolve_scenario(load_yaml(GOOD))
    assert scenario.strategy.name == KEYS["strategy.name"].default == "hdp-opt"
    assert scenario.layout.context.rank_capacity_tokens is None
    assert scenario.calibration.name == scenario.cluster.gpu.calibration


def test_false_is_none_where_that_is_a_word_and_only_there() -> None:
    assert {KEYS[key].parse(False) for key in ("memory.rotary_tables", "layout.recompute")} == {"none"}
    for key, value in (("memory.rotary_tables", True), ("layout.attention_kernel", False)):
        with pytest.raises(ValueError, match="is not one of"):
            KEYS[key].parse(value)


def test_a_batch_may_be_a_number_of_sequences() -> None:
    scenario = resolve_scenario(load_yaml(GOOD.replace("1M tokens", "64 sequences")))
    assert (scenario.data.batch.sequences, scenario.data.batch.tokens) == (64, None)
    batches = scenario.batches(2)
    assert all(len(lengths) >= 64 for lengths in batches)  # chunking may add pieces


def test_batches_have_the_asked_tokens_and_respect_the_context() -> None:
    batches = resolve_scenario(load_yaml(GOOD)).batches(3)
    assert len(batches) == 3
    for lengths in batches:
        assert lengths.sum() == 2**20
        assert lengths.max() <= 128 * 1024


def test_the_same_seed_gives_the_same_batches() -> None:
    scenario = resolve_scenario(load_yaml(GOOD))
    again = scenario.with_changes(["data.seed=1"])
    assert all(np.array_equal(a, b) for a, b in zip(scenario.batches(2), scenario.batches(2), strict=True))
    assert not np.array_equal(scenario.batches(1)[0], again.batches(1)[0])


def test_another_strategy_changes_nothing_else() -> None:
    setup = resolve_scenario(load_yaml(GOOD)).setup("static")
    assert setup.strategy.name == "static"
    assert setup.layout.parallel.tp == 2


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_are_fine_and_survive_writing_and_reading(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    again = load_scenario(write(tmp_path, scenario.to_yaml()))
    assert again == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_the_written_scenario_holds_every_key_that_applies() -> None:
    document = resolve_scenario(load_yaml(GOOD)).document
    assert document["layout"]["cp"] == "auto"
    assert (document["cluster"]["gpus"], document["gpus"]) == (16, "auto")
    assert document["data"]["batch"] == "1048576 tokens"
    assert "trace" not in document["data"]


@settings(max_examples=40)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip))
def test_any_name_survives_writing_and_reading(name: str) -> None:
    document = {**load_yaml(GOOD), "name": name}
    scenario = resolve_scenario(document)
    again = resolve_scenario(load_yaml(scenario.to_yaml()))
    assert again.name == name


BAD: dict[str, tuple[str, str, str]] = {
    "unknown section": ("layout:", "layuot:", "layuot"),
    "unknown key": ("tp: 2", "tpp: 2", "layout.tpp"),
    "word for a number": ("tp: 2", "tp: two", "layout.tp"),
    "zero": ("tp: 2", "tp: 0", "layout.tp"),
    "negative": ("tp: 2", "tp: -2", "layout.tp"),
    "fraction": ("tp: 2", "tp: 2.5", "layout.tp"),
    "truth value": ("tp: 2", "tp: true", "layout.tp"),
    "nothing": ("tp: 2", "tp:", "layout.tp"),
    "list": ("tp: 2", "tp: [2]", "layout.tp"),
    "no unit": ("batch: 1M tokens", "batch: 1000", "data.batch"),
    "wrong unit": ("128K", "128GB", "data.context"),
    "lower-case unit": ("128K", "128k", "data.context"),
    "no context": ("context: 128K", "context: 0", "data.context"),
    "no sequences": ("1M tokens", "0 sequences", "data.batch"),
    "half a sequence": ("1M tokens", "1.5 sequences", "data.batch"),
    "endless batch": ("1M tokens", "65537M tokens", "data.batch"),
    "endless sequences": ("1M tokens", "100000001 sequences", "data.batch"),
    "context over batch": ("128K", "2M", "data.context"),
    "unknown policy": ("batch:", "policy: crop, batch:", "data.policy"),
    "negative seed": ("batch:", "seed: -1, batch:", "data.seed"),
    "no seed to draw with": ("batch:", "seed: none, batch:", "data.seed"),
    "two sources": ("batch:", "trace: debian-code, batch:", "data.trace"),
    "no source": ("distribution: bytescale-github, ", "", "data.trace"),
    "unknown distribution": ("bytescale-github", "bytescale-gitlab", "data.distribution"),
    "unknown trace": ("distribution: bytescale-github", "trace: debian", "data.trace"),
    "missing trace file": ("distribution: bytescale-github", "trace: ./nowhere.csv", "data.trace"),
    "odd trace mapping": ("distribution: bytescale-github", "trace: {path: x}", "data.trace"),
    "unknown model": ("llama-7b", "llama-7x", "model"),
    "missing model": ("model: llama-7b\n", "", "model"),
    "missing model file": ("llama-7b", "nowhere.yaml", "model"),
    "model without layers": ("llama-7b", "{like: llama-7b, layers: 0}", "model.layers"),
    "unknown node": ("hgx-h100-80gb", "dgx-9000", "cluster.node"),
    "unknown cluster": ("{node: hgx-h100-80gb, gpus: 16}", "frontier", "cluster"),
    "cluster without size": (", gpus: 16}", "}", "cluster.nodes"),
    "missing cluster file": ("{node: hgx-h100-80gb, gpus: 16}", "nowhere.yaml", "cluster"),
    "unknown schedule": ("tp: 2", "tp: 2, schedule: gpipe", "layout.schedule"),
    "chunks without interleaving": ("tp: 2", "tp: 2, pp: 2, vpp: 2", "layout.vpp"),
    "interleaving without chunks": ("tp: 2", "tp: 2, pp: 2, schedule: interleaved", "layout.schedule"),
    "interleaving without stages": ("tp: 2", "tp: 2, vpp: 2, schedule: interleaved", "layout.schedule"),
    "capacity without meaning": ("tp: 2", "tp: 2, rank_capacity: large", "layout.rank_capacity"),
    "unknown calibration": ("model:", "calibration: hoper\nmodel:", "calibration"),
    "missing calibration file": ("model:", "calibration: nowhere.yaml\nmodel:", "calibration"),
    "unknown strategy": ("model:", "strategy: {name: hdp}\nmodel:", "strategy.name"),
    "strategy is a word": ("model:", "strategy: static\nmodel:", "strategy"),
    "jitter over 1": ("model:", "execution: {jitter: 2}\nmodel:", "execution.jitter"),
    "jitter is not a number": ("model:", "execution: {jitter: .nan}\nmodel:", "execution.jitter"),
    "endless batches": ("model:", "execution: {batches: 1e30}\nmodel:", "execution.batches"),
    "unknown executor": ("model:", "execution: {executor: simpy}\nmodel:", "execution.executor"),
    "empty name": ("model:", "name: ''\nmodel:", "name"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_scenario_names_the_key(case: str) -> None:
    old, new, key = BAD[case]
    assert old in GOOD
    problems = problems_of(GOOD.replace(old, new, 1))
    assert key in problems
    assert len(problems) <= 2, problems  # the fault, and at most what directly follows from it


@pytest.mark.parametrize(
    ("key", "value"), [("execution.link_flaps_per_hour", "5"), ("cluster.fabric.ecmp_seed", "7")]
)
def test_what_only_flows_know_names_the_file_and_the_key(key: str, value: str) -> None:
    with pytest.raises(ScenarioError, match=r"set execution\.network = flows") as caught:
        load_scenario("quickstart-8gpu", (f"{key}={value}",))
    assert [name for name, _ in caught.value.problems] == [key]
    load_scenario("quickstart-8gpu", (f"{key}={value}", "execution.network=flows"))


def test_every_problem_is_reported_at_once() -> None:
    text = (
        GOOD.replace("tp: 2", "tp: two, pp: 0").replace("128K", "5 parsecs").replace("llama-7b", "llama-7x")
    )
    assert set(problems_of(text)) == {"layout.tp", "layout.pp", "data.context", "model"}


def test_near_misses_are_suggested() -> None:
    problems = problems_of(
        GOOD.replace("tp: 2", "rank_capcity: 8K").replace("bytescale-github", "bytescale-gitub")
    )
    assert "rank_capacity" in problems["layout.rank_capcity"]
    assert "'bytescale-github'" in problems["data.distribution"]


def test_a_key_in_the_wrong_section_is_told_its_home() -> None:
    problems = problems_of(GOOD + "tp: 2\nexecution: {policy: chunk}\n")
    assert "layout.tp" in problems["tp"]
    assert "data.policy" in problems["execution.policy"]


def test_problems_of_a_file_carry_their_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"mine.yaml: 1 problem\n  layout.tp: .* \(line 3\)"):
        load_scenario(write(tmp_path, GOOD.replace("tp: 2", "tp: two")))


@pytest.mark.parametrize("text", ["", "[1, 2]", "just words", "3"])
def test_a_document_that_is_no_mapping_is_a_scenario_error(text: str) -> None:
    assert problems_of(text)


INFEASIBLE = {
    "GPUs and node": (("gpus=20",), "whole number of"),
    "GPUs and racks": (
        ("cluster.node=nvl72-gb200", "gpus=256"),
        "cluster.node.gpus=64 and cluster.node.nics=64",
    ),
    "GPUs and TP x PP": (("layout.pp=3",), "do not divide by tp x pp"),
    "heads": (("layout.tp=3", "gpus=24"), "32 attention heads"),
    "more stages than layers": (("layout.pp=64", "gpus=128"), "more than the 32 layers"),
    "experts of a dense model": (("layout.ep=2",), "has no experts"),
    "uneven experts": (("model=mistral-8x7b", "layout.ep=3"), "8 experts"),
    "experts and TP": (
        ("model=mistral-8x7b", "layout.tp=4", "layout.ep=8", "gpus=4"),
        "do not divide by ep = 8",
    ),
    "CP and ranks": (("layout.cp=3",), "8 ranks"),
    "FP8 on Ampere": (("cluster.node=hgx-a100-80gb", "layout.precision=fp8"), "no FP8"),
    "positions": (("model=gpt3-175b", "gpus=1024", "layout.tp=8"), "learned positions"),
}


@pytest.mark.parametrize("case", INFEASIBLE)
def test_degrees_that_do_not_fit_are_infeasible_with_the_reason(case: str) -> None:
    overrides, reason = INFEASIBLE[case]
    with pytest.raises(InfeasibleError, match=reason):
        resolve_scenario(load_yaml(GOOD), overrides=overrides)


def test_all_reasons_are_given_together() -> None:
    with pytest.raises(InfeasibleError) as caught:
        resolve_scenario(load_yaml(GOOD), overrides=("layout.tp=3", "layout.ep=2"))
    assert "layout.tp" in str(caught.value)
    assert "layout.ep" in str(caught.value)


def test_what_is_legal_but_odd_becomes_a_note() -> None:
    notes = " ".join(
        resolve_scenario(load_yaml(GOOD), overrides=("layout.tp=16", "layout.pp=3", "gpus=48")).notes
    )
    assert "wider than a node" in notes
    assert "uneven" in notes  # 32 layers on 3 stages


def test_nodes_of_other_sizes_keep_their_nics_and_say_so() -> None:
    larger = ("cluster.node.gpus=16", "gpus=16", "layout.tp=8")
    notes = resolve_scenario(load_yaml(GOOD), overrides=larger).notes
    assert any("nodes of 16 GPUs keep the 8 NICs" in note for note in notes)
    notes = resolve_scenario(load_yaml(GOOD), overrides=(*larger, "cluster.node.nics=16")).notes
    assert not any("NICs" in note for note in notes)


def test_part_of_a_node_is_a_cluster() -> None:
    cluster = resolve_scenario(load_yaml(GOOD), overrides=("gpus=2",)).cluster
    assert (cluster.nodes, cluster.node.gpus) == (1, 2)
    assert cluster.node.host_memory_bytes < load_scenario("quickstart-8gpu").cluster.node.host_memory_bytes


def test_names_can_be_refined_from_the_command_line() -> None:
    scenario = resolve_scenario(
        load_yaml(GOOD), overrides=("model.layers=40", "cluster.node.nic=800Gbps", "gpus=8")
    )
    assert scenario.model.layers == 40
    assert scenario.model.hidden == 4096
    assert scenario.cluster.node.nic_bytes_per_s == 100e9  # 800e9 / 8
    assert scenario.cluster.node.gpu.name.startswith("h100")


def test_parts_of_a_named_cluster_can_be_refined() -> None:
    named = GOOD.replace("{node: hgx-h100-80gb, gpus: 16}", "superpod-h100")
    changes = ("cluster.node.gpu.hbm=100GiB", "cluster.fabric.leaf_oversubscription=2")
    scenario = resolve_scenario(load_yaml(named), overrides=changes)
    assert scenario.cluster.gpu.hbm_bytes == 100 * 2**30
    assert scenario.cluster.fabric.leaf_oversubscription == 2.0
    assert scenario.cluster.gpus == 1024


def test_setting_one_source_replaces_the_other() -> None:
    scenario = resolve_scenario(load_yaml(GOOD), overrides=("data.trace=debian-code",))
    assert (scenario.data.trace, scenario.data.distribution) == ("debian-code", None)


def test_overrides_do_not_touch_their_input() -> None:
    document = load_yaml(GOOD)
    apply_overrides(document, ["layout.tp=4", "model.layers=2"])
    assert document == load_yaml(GOOD)


@pytest.mark.parametrize(
    "text", ["", "layout.tp", "=3", "layout.=3", ".tp=3", "layout.tp=[1]", "layout.tp={a: 1}"]
)
def test_malformed_overrides_say_what_is_expected(text: str) -> None:
    with pytest.raises(ScenarioError, match="--set"):
        parse_override(text)


def test_an_override_below_a_plain_value_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="has no keys of its own"):
        resolve_scenario(load_yaml(GOOD), overrides=("layout.tp.x=1",))


def test_relative_paths_start_at_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "tokens,x\n100,1\n200,2\n", "lengths.csv")
    write(tmp_path, "node: hgx-h100-80gb\ngpus: 16\n", "cluster.yaml")
    text = GOOD.replace("distribution: bytescale-github", "trace: {file: lengths.csv, column: tokens}")
    text = text.replace("{node: hgx-h100-80gb, gpus: 16}", "cluster.yaml").replace("1M tokens", "2 sequences")
    path = write(tmp_path, text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    scenario = load_scenario(path)
    assert sorted(scenario.batches(1)[0]) == [100, 200]
    again: Scenario = resolve_scenario(scenario.document)  # absolute paths: readable from anywhere
    assert again.cluster.node == scenario.cluster.node
    assert again.data == scenario.data


CONFIG = """{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
"intermediate_size": 1024, "vocab_size": 1000, "surprise": 1}"""


def test_a_hugging_face_config_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    write(folder, CONFIG, "config.json")
    scenario = load_scenario(write(tmp_path, GOOD.replace("llama-7b", "tiny-llama/config.json")))
    assert (scenario.model.name, scenario.model.layers, scenario.model.hidden) == ("tiny-llama", 4, 256)
    assert any("surprise" in note for note in scenario.notes)


@pytest.mark.parametrize("kind", ["json", "yaml"])
@pytest.mark.parametrize(
    ("change", "field"),
    [("sliding_window", 4096), ("layers", 7), ("vocab", 5000), ("qk_norm", True), ("name", "mine")],
)
def test_keys_of_a_model_file_can_be_set(tmp_path: Path, kind: str, change: str, field: object) -> None:
    own = "layers: 4\nhidden: 256\nheads: 8\nffn_hidden: 1024\nvocab: 1000\nsource: measured here\n"
    write(tmp_path, CONFIG if kind == "json" else own, f"small.{kind}")
    path = write(tmp_path, GOOD.replace("llama-7b", f"small.{kind}"))
    original = load_scenario(path).model
    changed = load_scenario(path, (f"model.{change}={str(field).lower() if field is True else field}",))
    assert getattr(changed.model, change) == field
    name = changed.model.name if change == "name" else "small (changed)"
    assert replace(original, **{change: field, "name": name}) == changed.model
    again: Scenario = resolve_scenario(changed.document)  # absolute paths: readable from anywhere
    assert again.model == changed.model
    later = load_scenario(path).with_changes(
        (f"model.{change}={str(field).lower() if field is True else field}",)
    )
    assert later.model == changed.model


def test_faults_beside_a_model_file_are_named(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, "small.json")
    path = write(tmp_path, GOOD.replace("llama-7b", "small.json"))
    with pytest.raises(ScenarioError, match=r"model.kv_heads: must divide the 8 heads"):
        load_scenario(path, ("model.kv_heads=3",))
    with pytest.raises(ScenarioError, match=r"model.surprise"):
        load_scenario(path, ("model.surprise=3",))
    with pytest.raises(ScenarioError, match=r"absent.json: no such file"):
        load_scenario(path, ("model.like=absent.json", "model.layers=3"))


def test_a_damaged_config_is_one_problem(tmp_path: Path) -> None:
    write(tmp_path, "{", "config.json")
    with pytest.raises(ScenarioError, match=r"model: .*config.json: not JSON"):
        load_scenario(write(tmp_path, GOOD.replace("llama-7b", "config.json")))


def test_an_unknown_scenario_lists_the_shipped_ones() -> None:
    with pytest.raises(UserInputError, match=r"did you mean 'quickstart-8gpu'.*demo-8x22b-12k"):
        load_scenario("quickstart-8gpus")


def test_a_calibration_of_another_generation_is_said() -> None:
    assert not any("generation" in note for note in load_scenario("quickstart-8gpu").notes)
    (note,) = load_scenario("quickstart-8gpu", ("calibration=ampere",)).notes
    assert note.startswith("calibration ampere is of generation ampere, h100-80gb of hopper")


@pytest.mark.parametrize(("node", "said"), [("hgx-h100-80gb", True), ("hgx-h20-96gb", False)])
def test_a_calibration_of_another_gpu_of_its_generation_is_said(node: str, said: bool) -> None:
    notes = load_scenario("llama-7b-1k-github", (f"cluster.node={node}",)).notes
    assert any("bytescale-h20 was fitted on h20-96gb only, not on" in note for note in notes) == said
