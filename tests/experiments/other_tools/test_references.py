"""Values of a YAML recipe that stand elsewhere in it, and what capacity factors of experts mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpsim.experiments.other_tools.importer import UserAnswers, import_file
from hdpsim.experiments.other_tools.options import Unread, read_yaml

RECIPE = """
trainer: {num_nodes: 2, devices: 8}
model:
  hidden: 12288
  ffn: ${multiply:4, ${.hidden}}
  same: ${model.hidden}
  launched: ${training.model.hidden}
  chained: ${.same}
  tp: 4
  nested: {above: "${..tp}", ceil: "${divide_ceil:${trainer.devices}, 3}"}
  unknown: ${data_dir}/text
  nobody: ${model.absent}
  computed: ${env:HOME}
  circle: ${.circle}
  by_zero: ${divide_floor:4, 0}
  endless: .inf
  no_number: ${divide_ceil:${.endless}, 2}
  times_text: ${multiply:4, ${.unknown}}
  whole: ${model.nested}
"""


def test_references_and_sums_are_filled_in_and_what_only_a_run_knows_is_not() -> None:
    values = {option.name: option.value for option in read_yaml(RECIPE, "recipe.yaml")}
    expected = {"ffn": 49152, "same": 12288, "launched": 12288, "chained": 12288, "nested.above": 4}
    assert {name: values[f"model.{name}"] for name in expected} == expected
    assert values["model.nested.ceil"] == 3
    for name in ("unknown", "nobody", "computed", "circle", "by_zero", "no_number", "times_text", "whole"):
        assert isinstance(values[f"model.{name}"], Unread), name


@pytest.mark.parametrize("sections", ["trainer: {precision: bf16}\n", ""])
@pytest.mark.parametrize(("factor", "even"), [("1.0", True), ("1.25", False)])
def test_only_a_capacity_of_the_mean_makes_experts_equal(
    tmp_path: Path, sections: str, factor: str, even: bool
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"{sections}model:\n  num_moe_experts: 8\n  expert_model_parallel_size: 8\n"
        f"  moe_expert_capacity_factor: {factor}\n"
    )
    asked = UserAnswers(cluster="h100", gpus=8, model="mixtral-8x7b")
    found = import_file(str(path), asked=asked)
    assert (found.document["layout"].get("expert_routing") == "even") == even
    assert any("are dropped" in said for said in found.not_modelled) != even
