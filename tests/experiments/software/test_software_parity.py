"""A record and a scenario of one stack and release: the same switches, the same memory, the same time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.experiments.records.columns import read_records, shipped_records
from hdpsim.experiments.records.prediction import predict_step
from hdpsim.experiments.records.scenario import run_document
from hdpsim.experiments.records.setup import PreparedRun, prepare
from hdpsim.experiments.scenario.scenario import Scenario, resolve_scenario
from hdpsim.experiments.software.choice import read_software
from hdpsim.experiments.software.rules import stacks
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.simulator.step import simulate_step

RELEASES = [
    f"{name} {release}" for stack in stacks() for name in stack.frameworks for release in stack.releases
]
SHIPPED = {(record.config.framework, record.config.year) for record in read_records(shipped_records())}
OF_THE_RUN = frozenset(
    {"tp", "pp", "vpp", "cp", "ep", "sharding", "shard_ranks", "sequence_parallel", "recompute", "precision",
     "rank_capacity", "schedule"}
)  # fmt: skip
"""Keys of layout that say how a run was cut, which no stack decides."""
SHAPE = {
    "model_name": "m", "layers": 4, "hidden": 1024, "ffn_hidden": 4096, "heads": 8, "kv_heads": 8, "head_dim": 128,
    "vocab": 32000, "seq_len": 2048, "micro_batch": 1, "global_batch_seqs": 32, "vpp": 1, "cp": 1, "task": "pretrain",
}  # fmt: skip
EXPERTS = {"n_experts": 8, "topk": 2, "ep": 2}
RUNS = st.fixed_dictionaries({
    "gpu": st.sampled_from(["H100-SXM-80G", "H200-SXM-141G", "B200-SXM-180G"]),
    "tp": st.sampled_from([1, 2]),
    "pp": st.sampled_from([1, 2]),
    "gated_mlp": st.booleans(),
    "precision": st.sampled_from(["bf16", "fp8"]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "zero_stage": st.sampled_from(["none", "zero1", "zero3"]),
    "experts": st.sampled_from([{"ep": 1}, EXPERTS]),
})  # fmt: skip


def both(release: str, run: dict[str, Any]) -> tuple[PreparedRun, Scenario]:
    """The record of a run of that stack, and a scenario that says how the run was cut and names the stack."""
    software = read_software(release)
    experts = run["experts"]
    columns: dict[str, Any] = {**SHAPE, **{name: value for name, value in run.items() if name != "experts"}}
    columns["sp"] = columns["tp"] > 1
    prepared = prepare(
        RunConfig(
            n_gpus=16, gpus_per_node=8, framework=software.framework, year=software.year, **columns, **experts
        )
    )
    document = run_document(prepared, "a run")
    document["layout"] = {key: value for key, value in document["layout"].items() if key in OF_THE_RUN}
    document["layout"]["sharding"] = run["zero_stage"]
    for key in ("dropout", "scaled_rotary"):
        document["model"].pop(key, None)
    document |= {"memory": {"must_fit": False}, "software": release}
    return prepared, resolve_scenario(document)


def test_most_releases_are_of_a_framework_and_year_that_no_shipped_record_has() -> None:
    unseen = [
        release
        for release in RELEASES
        if (read_software(release).framework, read_software(release).year) not in SHIPPED
    ]
    assert len(unseen) > 0.85 * len(RELEASES)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(release=st.sampled_from(RELEASES), run=RUNS)
def test_a_record_and_a_scenario_of_one_stack_have_the_same_switches(
    release: str, run: dict[str, Any]
) -> None:
    prepared, scenario = both(release, run)
    assert scenario.setup() == prepared.setup


@pytest.mark.parametrize("release", RELEASES)
def test_a_scenario_that_names_the_stack_of_a_record_is_timed_as_the_record(release: str) -> None:
    run = {
        "gpu": "H100-SXM-80G",
        "tp": 2,
        "pp": 2,
        "gated_mlp": True,
        "precision": "bf16",
        "recompute": "none",
    }
    prepared, scenario = both(release, {**run, "zero_stage": "zero1", "experts": {"ep": 1}})
    assert simulate_step(scenario.setup(), scenario.batches(1)[0]).step_s == predict_step(prepared)[0]
