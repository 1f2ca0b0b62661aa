"""Published runs as they are, as a user would write them down, and as if never seen before."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import deciding_rules, setting_of, usual_release
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.experiments.validation.run import run
from hdpsim.experiments.validation.views import plain, rules_of_families
from hdpsim.experiments.verbs.measurements import validate

SOME = ("megatron-bridge-0005", "mlperf-0001", "bloom-0001")


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> str:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"] in SOME]
    path = tmp_path_factory.mktemp("views") / "some.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_a_plain_record_has_the_name_of_its_framework_and_facts_of_the_model() -> None:
    config = RunConfig(
        gpu="H100", year=2025, framework="NeMo/Megatron-Core (MLPerf v5.0)", family="mlperf", tp=4,
        notes="config DGXH100_x; MLA; first 3 layers dense ffn 18432; CUDA graph; peak_mem_gb = reserved",
    )  # fmt: skip
    kept = replace(
        config, framework="NeMo/Megatron-Core", family="",
        notes="MLA; first 3 layers dense ffn 18432; peak_mem_gb = reserved",
    )  # fmt: skip
    assert plain(config) == kept
    assert plain(kept) == kept


def test_a_stack_without_release_is_the_middle_one_of_its_year() -> None:
    config = RunConfig(gpu="GB200", year=2026, framework="Megatron-Bridge", n_experts=8, ep=8)
    assert usual_release(Run(config), "Megatron-Bridge") == "26.04.01"  # the fourth of seven
    assert usual_release(Run(replace(config, year=2025)), "Megatron-Bridge") == "25.11"  # of 25.09 and 25.11
    assert (
        usual_release(Run(replace(config, year=None)), "Megatron-Bridge") == "26.08"
    )  # as a scenario without one
    assert usual_release(Run(config), "MLPerf") is None
    stated = replace(config, framework="Megatron-Bridge 25.09")
    assert usual_release(Run(stated), "Megatron-Bridge") is None
    dispatch = [setting_of(Run(one), "expert_dispatch") for one in (config, stated)]
    assert [one and one.value for one in dispatch] == ["fused", None]


def test_rules_of_one_family_alone_are_left_out_for_it() -> None:
    records = read_records(shipped_records())
    of_families = rules_of_families(records)
    left_out = set().union(*of_families.values())
    for record in records[::40]:
        for rule in deciding_rules(Run(record.config)):
            if rule.name in left_out:
                assert rule.name in of_families[record.config.family]
                assert rule.kind != "stated" or rule.stack == "sources"
    assert any(name.startswith("mlperf.") for name in of_families["mlperf"])
    assert not any("flop_convention" in name for name in left_out)


def test_views_change_predictions_but_never_how_a_measurement_is_read(some: str) -> None:
    documents = {view: run(some, view=view).data() for view in ("published", "plain", "unseen")}
    assert [document["as"] for document in documents.values()] == list(documents)
    rows = {view: document["records"] for view, document in documents.items()}
    for name in ("measured", "quantity", "flop_convention", "framework"):
        columns = [[row[name] for row in found] for found in rows.values()]
        assert columns[0] == columns[1] == columns[2]
    predicted = {view: [row["predicted"] for row in found] for view, found in rows.items()}
    assert predicted["plain"] != predicted["published"] != predicted["unseen"]
    for row in rows["unseen"]:
        assert row["group"][0] not in row["fidelity"].partition("like this one (")[2].partition(")")[0]


@pytest.mark.parametrize(
    "more", [["--write-residuals", "r.csv"], ["--kernels", "k.csv"], ["--steps", "s.jsonl"]]
)
def test_a_view_goes_with_predictions_of_runs(more: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["validate", "--as", "plain", *more])
    assert result.exit_code == 2
    assert "--as goes with predictions of runs" in result.output


def test_an_unknown_view_is_said_with_those_that_there_are() -> None:
    with pytest.raises(UserInputError, match="published, plain, unseen"):
        validate(view="bare")


BRIDGE = RunConfig(
    gpu="B200",
    year=2026,
    framework="Megatron-Bridge",
    n_experts=128,
    topk=8,
    ep=8,
    recompute="none",
    precision="mxfp8",
)


def said(config: RunConfig, *switches: str) -> list[object]:
    """Values of switches."""
    found = [setting_of(Run(config), switch) for switch in switches]
    return [one and one.value for one in found]


def test_a_stack_that_is_named_alone_runs_its_recipes() -> None:
    graphs = ("cuda_graphs", "expert_dispatch", "ep_overlap")
    assert said(BRIDGE, *graphs) == [True, "fused", None]  # a pipeline of one stage, nothing repeated
    assert said(replace(BRIDGE, pp=8, ep=32), *graphs) == [None, None, None]
    assert said(replace(BRIDGE, notes="perf recipe X: cuda_graph=None"), *graphs) == [None, None, None]
    servers = replace(BRIDGE, gpu="H100", precision="fp8", tp=2, pp=8, vpp=4, ep=32)
    assert said(servers, "ep_overlap", "fp8_scaling") == [True, "tensor"]
    dense = replace(servers, model_name="llama3.1-405b", n_experts=None, topk=None, ep=1)
    assert said(dense, "fp8_scaling") == ["tensor"]
    assert said(replace(dense, framework="NeMo"), "fp8_scaling") == [None]
    assert said(replace(dense, framework="NeMo", notes="FP8 current scaling"), "fp8_scaling") == ["tensor"]
    assert said(replace(servers, vpp=1), "ep_overlap") == [None]  # no other micro-batch to hide behind
    assert said(replace(servers, gpu="B300"), "ep_overlap") == [True]
    assert said(replace(servers, gpu="GB200"), "ep_overlap", "cuda_graphs") == [
        None,
        True,
    ]  # layers in graphs instead
    assert said(replace(BRIDGE, recompute="selective"), "recompute_small_kernels") == [True]
    assert said(replace(servers, framework="Megatron-Core"), "ep_overlap", "expert_dispatch") == [
        True,
        "fused",
    ]
    assert said(replace(servers, framework="Megatron-Core", year=2024), "ep_overlap", "expert_dispatch") == [
        None,
        None,
    ]


def test_eight_bits_of_torchtitan_are_compiled() -> None:
    titan = RunConfig(gpu="H100", year=2025, framework="torchtitan", precision="fp8", recompute="full", tp=1)
    assert said(titan, "fused_kernels") == [True]
    assert said(replace(titan, precision="bf16"), "fused_kernels") == [False]
    assert said(replace(titan, notes="no torch.compile"), "fused_kernels") == [False]
