"""Configurations of torchtitan as scenarios."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hdpsim.errors import UserInputError
from hdpsim.experiments.other_tools.exporter import export_scenario
from hdpsim.experiments.other_tools.importer import Imported, UserAnswers, import_file
from hdpsim.experiments.scenario.scenario import resolve_scenario


def imported(folder: Path, text: str, name: str, asked: UserAnswers | None = None) -> Imported:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return import_file(str(path), asked=asked or UserAnswers(cluster="h100", gpus=8))


def layout(found: Imported) -> dict[str, Any]:
    section: dict[str, Any] = found.document["layout"]
    return section


class TestTorchtitan:
    TOML = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "405B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
[compile]
enable = true
[parallelism]
tensor_parallel_degree = 8  # in a node
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = 'full'
"""

    def test_a_configuration(self, tmp_path: Path) -> None:
        asked = UserAnswers(cluster="h100", gpus=128, release="2.8")
        found = imported(tmp_path, self.TOML, "train.toml", asked)
        assert found.document["model"] == "llama-3-405b"
        assert found.document["software"] == "torchtitan 2.8"
        assert found.document["data"]["batch"] == "32 sequences"  # 2 on each of 128 / 8 groups
        expected = {
            "tp": 8,
            "sharding": "zero3",
            "recompute": "full",
            "tp_overlap": True,
            "fp8_scaling": "tensor",
        }
        assert expected.items() <= layout(found).items()

    def test_copies_of_shards(self, tmp_path: Path) -> None:
        text = self.TOML.replace("[parallelism]", "[parallelism]\ndata_parallel_replicate_degree = 4")
        found = imported(tmp_path, text, "train.toml", UserAnswers(cluster="h100", gpus=128))
        assert layout(found)["shard_ranks"] == 4  # 128 GPUs are 16 ranks

    def test_degrees_of_a_file_say_how_many_gpus_it_needs(self, tmp_path: Path) -> None:
        degrees = "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4"
        text = self.TOML.replace("[parallelism]", degrees)
        found = imported(tmp_path, text, "train.toml", UserAnswers(cluster="h100"))
        assert found.document["gpus"] == 64  # 4 shards x 2 copies x TP 8
        assert layout(found)["shard_ranks"] == 4
        assert "parallelism.data_parallel_shard_degree" not in found.without_effect
        with pytest.raises(UserInputError, match=r"4 shards .* are 64 GPUs, not 128"):
            imported(tmp_path, text, "train.toml", UserAnswers(cluster="h100", gpus=128))

    @pytest.mark.parametrize("experts", [False, True])
    def test_eight_bits_in_the_words_of_late_2025(self, tmp_path: Path, experts: bool) -> None:
        converters = "'quantize.linear.float8'" + (", 'quantize.grouped_mm.float8'" if experts else "")
        text = (
            "[model]\nname = 'llama3'\nflavor = '8B'\n"
            f"converters = [{converters}]\n[quantize.linear.float8]\nrecipe_name = 'rowwise'\n"
        )
        found = imported(tmp_path, text, "train.toml", UserAnswers(cluster="h100", gpus=8))
        assert {"precision": "fp8", "fp8_scaling": "row"}.items() <= layout(found).items()
        assert any("experts in 8 bits" in said for said in found.not_modelled) == experts

    def test_eight_bits_are_written_in_the_words_of_the_newest_release(self, tmp_path: Path) -> None:
        found = imported(tmp_path, self.TOML, "train.toml", UserAnswers(cluster="h100", gpus=128))
        text = export_scenario(resolve_scenario(found.document), "torchtitan").text
        written = tomllib.loads(text)
        assert written["model"]["converters"] == ["quantize.linear.float8"]
        assert written["quantize"]["linear"]["float8"] == {"recipe_name": "tensorwise"}
        again = imported(tmp_path, text, "again.toml", UserAnswers(cluster="h100", gpus=128))
        assert layout(again)["precision"] == "fp8"

    def test_local_batches_of_a_pipeline_are_calls_of_its_schedule(self, tmp_path: Path) -> None:
        # 2 sequences on each of 128 / 16 ranks are 16: a step of 64 has four local batches, one of 16 has one.
        piped = self.TOML.replace("[parallelism]", "[parallelism]\npipeline_parallel_degree = 2")
        asked = UserAnswers(cluster="h100", gpus=128)
        for sequences, calls in ((64, 2), (16, None)):
            text = piped.replace("seq_len", f"global_batch_size = {sequences}\nseq_len")
            found = layout(imported(tmp_path, text, "train.toml", asked))
            assert found.get("schedule_micro_batches") == calls
            assert found["gradient_overlap"] is False
        odd = text.replace(
            "pipeline_parallel_degree = 2",
            "pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3",
        )
        with pytest.raises(UserInputError, match="local batch of 2 sequences does not divide"):
            imported(tmp_path, odd.replace("= 16", "= 48"), "train.toml", asked)
        with pytest.raises(UserInputError, match=r"24 sequences do not divide by local batch x .* = 2 x 8"):
            imported(tmp_path, text.replace("= 16", "= 24"), "train.toml", asked)

    def test_python_is_not_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserInputError, match="Python code is not run"):
            imported(tmp_path, "config = 1", "config.py")
        with pytest.raises(UserInputError, match="is a scenario of hdpsim already"):
            imported(tmp_path, "model: x\ncluster: y\ndata: {}\n", "mine.yaml")

    def test_broken_toml(self, tmp_path: Path) -> None:
        with pytest.raises(UserInputError, match="not valid TOML"):
            imported(tmp_path, "[a\n", "train.toml")
