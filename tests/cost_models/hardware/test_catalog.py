import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Fabric
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.errors import CatalogError, InfeasibleError, ScenarioError
from hdpsim.yaml_loader import YamlError, load_yaml

DATA = Path(catalog.__file__).parents[1] / "data"


@pytest.mark.parametrize("kind", ["gpu", "node", "cluster", "model"])
def test_every_shipped_entry_loads_and_says_where_it_is_from(kind: catalog.Kind) -> None:
    for name in catalog.names(kind):
        entry = getattr(catalog, kind)(name)
        assert entry.name == name
        assert entry.source


@pytest.mark.parametrize("folder", ["gpus", "nodes", "clusters"])
def test_every_figure_of_the_hardware_has_a_source(folder: str) -> None:
    exempt = {"aliases", "sources", "gpu", "node", "name"}
    for path in (DATA / folder).glob("*.yaml"):
        data = load_yaml(path)
        assert set(data) - exempt <= set(data["sources"]), path.name


@pytest.mark.parametrize("kind", ["gpu", "node", "cluster", "model"])
def test_no_alias_means_two_things(kind: catalog.Kind) -> None:
    spellings = [*catalog.names(kind)]
    for name in catalog.names(kind):
        spellings += load_yaml(DATA / f"{kind}s" / f"{name}.yaml")["aliases"]
    folded = [spelling.casefold().replace("-", "") for spelling in spellings]
    assert sorted(set(folded)) == sorted(folded)


def test_figures_are_converted_to_base_units() -> None:
    h100 = catalog.gpu("H100")
    assert h100.bf16_flop_per_s == 989e12
    assert h100.nvlink_bytes_per_s == 450e9
    assert h100.hbm_bytes == pytest.approx(79.18 * 2**30)
    assert h100.calibration == "hopper"
    assert catalog.gpu("a100").fp8_flop_per_s is None
    assert catalog.gpu("h800").nvlink_bytes_per_s == 200e9
    node = catalog.node("hgx-a100")
    assert node.nic_bytes_per_s == 25e9  # 200 Gbit/s
    assert node.nic_bytes_per_s_per_gpu == 25e9
    assert catalog.node("hgx-h20-4nic").nic_bytes_per_s_per_gpu == 25e9  # 4 x 50 / 8
    assert catalog.node("gb200-nvl72").gpus == 72
    assert catalog.cluster("megascale").gpus == 12288
    assert catalog.cluster("llama3-24k").gpus == 24576


@pytest.mark.parametrize("spelling", ["H100", "h100-80gb", "H100-SXM-80G", "h100 sxm", "h100_80GB"])
def test_names_do_not_depend_on_spelling(spelling: str) -> None:
    assert catalog.gpu(spelling) is catalog.gpu("h100-80gb")


def read(build: Callable[[object, Problems, str], Any], data: object, key: str = "") -> Any:
    """What *build* makes of the value of *key*."""
    problems = Problems("a test")
    entry = build(data, problems, key or build.__name__.partition("_")[0])
    problems.raise_if_any()
    return entry


def test_the_words_of_a_gpu_may_come_in_any_order() -> None:
    spellings = {name: name for name in catalog.names("gpu")} | catalog.aliases("gpu")
    for spelling, name in spellings.items():
        assert catalog.gpu(" ".join(reversed(spelling.split("-"))).replace("gb", " GB")).name == name
    for board in ("A100-SXM4-80GB", "a100sxm4-80gb", "A100SXM480GB", "A100SXM80GB", "NVIDIA A100 80 GB SXM"):
        assert catalog.gpu(board).name == "a100-80gb"
    assert catalog.gpu("NVIDIA B300 SXM6 AC") == catalog.gpu("B300-SXM-288G") == catalog.gpu("b300")
    for unknown in ("SXM", "A800-SXM4-40GB", "A100-PCIE-40GB"):
        with pytest.raises(CatalogError, match=f"no gpu '{unknown}'"):
            catalog.gpu(unknown)


def test_the_gpus_of_the_published_records_are_known() -> None:
    spellings = (
        "H100-SXM-80G",
        "A100-80G-SXM",
        "GB200-NVL72",
        "GB300-NVL72",
        "A100-40G-SXM",
        "B200-SXM-180G",
    )
    for name in (*spellings, "H100-SXM-96G-HBM2e-500W", "B300-SXM", "H200-SXM-141G"):
        assert catalog.gpu(name)
    assert catalog.gpu("H100-SXM-96G-HBM2e-500W").tdp_w == 500


def test_an_unknown_name_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(CatalogError, match=r"no gpu 'h1000' .*did you mean 'h100'.*a100-80gb") as caught:
        catalog.gpu("h1000")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_all_problems_of_a_mapping_come_together_with_their_keys() -> None:
    data = {"bf16": "312TFLOPS", "hbm": 80, "hmb": "80GiB", "sm_count": 1.5, "nvlink": "0GB/s"}
    with pytest.raises(ScenarioError) as caught:
        read(catalog.gpu_entry, data, "cluster.node.gpu")
    found = dict(caught.value.problems)
    assert "TFLOP/s" in found["cluster.node.gpu.bf16"]
    assert "GiB" in found["cluster.node.gpu.hbm"]
    assert "did you mean 'hbm'" in found["cluster.node.gpu.hmb"]
    assert "whole number" in found["cluster.node.gpu.sm_count"]
    assert "positive" in found["cluster.node.gpu.nvlink"]
    for missing in ("hbm_bandwidth", "host_link", "tdp", "calibration"):
        assert found[f"cluster.node.gpu.{missing}"] == "is required"


def test_problems_of_nested_entries_are_all_found() -> None:
    data = {"node": {"gpu": "h1000", "gpus": 0}, "fabric": {"kind": "ring", "hop_latency": 3, "x": 1}}
    with pytest.raises(ScenarioError) as caught:
        read(catalog.cluster_entry, data)
    keys = {key for key, _ in caught.value.problems}
    wanted = ("node.gpu", "node.gpus", "node.nics", "nodes", "fabric.kind", "fabric.hop_latency", "fabric.x")
    assert {f"cluster.{key}" for key in wanted} <= keys


@pytest.mark.parametrize("value", [None, 3, [1], True])
def test_neither_a_name_nor_a_mapping(value: object) -> None:
    with pytest.raises(ScenarioError, match="must be the name of a model or a mapping"):
        read(catalog.model_entry, value)


def test_an_entry_can_start_from_a_shipped_one() -> None:
    gpu = {"like": "h100", "tdp": "500W", "tensor_boost": True}
    node = read(catalog.node_entry, {"like": "hgx-h100", "nics": 4, "gpu": gpu})
    assert node.gpu.tensor_boost
    assert node.gpu.exponentials == 1.0
    assert catalog.gpu("gb300").exponentials == catalog.gpu("b300").exponentials == 2.0
    with pytest.raises(ScenarioError, match=r"exponentials: expected a number from 0.001"):
        read(catalog.node_entry, {"like": "hgx-h100", "gpu": {"like": "h100", "exponentials": 0}})
    assert (node.nics, node.gpu.tdp_w, node.gpus) == (4, 500.0, 8)
    small = read(
        catalog.cluster_entry, {"like": "megascale", "gpus": 1024, "fabric": {"spine_oversubscription": 3}}
    )
    assert small.nodes == 128
    assert small.fabric == Fabric(nodes_per_block=64, blocks_per_pod=4, spine_oversubscription=3.0)
    with pytest.raises(ScenarioError, match=r"model\.like: there is no model 'llama-8'"):
        read(catalog.model_entry, {"like": "llama-8"})
    with pytest.raises(ScenarioError, match=r"node\.gpu\.like: there is no gpu 'h1000'") as error:
        read(catalog.node_entry, {"like": "hgx-h100", "gpu": {"like": "h1000"}})
    assert "is required" not in str(error.value)  # all keys that the GPU would have had


def test_superchips_have_the_host_of_their_name() -> None:
    """GB and GH: Grace, which takes its time to launch in every node."""
    for node in map(catalog.node, catalog.names("node")):
        grace = node.gpu.name.startswith(("gb", "gh"))
        assert (node.arm_host, node.host_time == 1.15) == (grace, grace), node.name


def test_a_cluster_is_sized_by_nodes_or_by_gpus() -> None:
    assert read(catalog.cluster_entry, {"node": "hgx-h100", "gpus": 64}).nodes == 8
    assert read(catalog.cluster_entry, {"node": "hgx-h100", "nodes": 2}).gpus == 16
    with pytest.raises(ScenarioError, match="multiple of the 8 GPUs"):
        read(catalog.cluster_entry, {"node": "hgx-h100", "gpus": 65})
    with pytest.raises(ScenarioError, match="together with nodes"):
        read(catalog.cluster_entry, {"node": "hgx-h100", "gpus": 64, "nodes": 8})
    assert catalog.cluster_of("hgx-h100", 128).nodes == 16
    with pytest.raises(InfeasibleError, match="whole number"):
        catalog.cluster_of("hgx-h100", 12)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"kv_heads": 5}, "kv_heads"),
        ({"experts": 8, "top_k": 9}, "top_k"),
        ({"experts": 8}, "top_k"),
        ({"top_k": 2}, "top_k"),
        ({"experts": 1, "top_k": 1}, "experts"),
        ({"experts": 8, "top_k": 2, "dense_layers": 99, "dense_ffn_hidden": 4}, "dense_layers"),
        ({"experts": 8, "top_k": 2, "dense_layers": 2}, "dense_ffn_hidden"),
        ({"layers": 0}, "layers"),
        ({"heads": 7, "kv_heads": 7, "head_dim": None}, "head_dim"),
        ({"norm": "batch"}, "norm"),
        ({"gated_mlp": "on"}, "gated_mlp"),
        ({"latent_attention": {"kv_lora_rank": 512}}, "latent_attention.v_head_dim"),
    ],
)
def test_contradictions_inside_a_model_are_refused(change: dict[str, object], key: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(catalog.model_entry, {"like": "llama-7b", **change})
    assert f"model.{key}" in dict(caught.value.problems)


def test_a_users_files_load_and_their_faults_have_lines(tmp_path: Path) -> None:
    good = tmp_path / "my-model.yaml"
    good.write_text("like: llama-7b\nlayers: 16\n")
    assert catalog.load_model(good).layers == 16
    assert catalog.load_model(good).name == "my-model"
    bad = tmp_path / "bad.yaml"
    bad.write_text("like: megascale\n\nnode: {like: hgx-h100, nics: many}\n")
    with pytest.raises(ScenarioError, match=r"bad\.yaml: 1 problem\n  node\.nics: .* \(line 3\)"):
        catalog.load_cluster(bad)
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ScenarioError, match="mapping"):
        catalog.load_cluster(tmp_path / "list.yaml")
    with pytest.raises(YamlError, match="no such file"):
        catalog.load_model(tmp_path / "absent.yaml")


def test_a_name_that_is_not_shipped_is_compared_with_all_others_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def hint(name: str, known: object) -> str:
        asked.append(name)
        return ""

    monkeypatch.setattr(catalog, "did_you_mean", hint)
    for _ in range(3):
        with pytest.raises(CatalogError, match="there is no model 'asked-three-times'"):
            catalog.model("asked-three-times")
    assert asked == ["asked-three-times"]
