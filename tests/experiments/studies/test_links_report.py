"""What simulate and compare say and write of links."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simpy

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Fabric
from hdpsim.cost_models.network.links import Links
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.experiments.output.timeline.step import write_timeline
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.changes.whatif import whatif, whatif_lines
from hdpsim.experiments.studies.comparing.compare import compare
from hdpsim.experiments.studies.comparing.report import simulate_document
from hdpsim.experiments.studies.links.over_steps import LinksOverSteps
from hdpsim.experiments.studies.links.plots import fabric_layers, link_pictures
from hdpsim.experiments.studies.links.report import (
    SeenLinks,
    collision_rows,
    link_lanes,
    link_rows,
    links_json,
    links_line,
)
from hdpsim.experiments.studies.many_steps.report import steps_table
from hdpsim.experiments.studies.many_steps.run import simulate_many
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.network.link_flaps_on_flows import Flap
from hdpsim.simulator.play.execution import SharedLinks, Spans
from hdpsim.simulator.step import simulate_step

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

SECOND = 50e9  # what a NIC moves in one

SMALL = (
    "gpus=32",
    "model.layers=4",
    "layout.pp=2",
    "layout.rank_capacity=4K",
    "data.batch=128K tokens",
    "data.context=16K",
    "execution.network=flows",
    "cluster.fabric.nodes_per_block=1",
    "cluster.fabric.routing=ecmp",
)


@pytest.fixture
def seen() -> SeenLinks:
    """GPU 0 sends 50 GB to GPU 8 in a ring and, half a second later, 25 GB in a sum; GPU 1 to GPU 9 in a ring."""
    exact = NetworkCalibration(nic_efficiency=1.0, p2p_nvlink_efficiency=1.0)
    links = Links.of(catalog.cluster_of("hgx-h100-80gb", 16, Fabric()), exact)
    env = simpy.Environment()
    network = FlowNetwork(env, links, record=True)

    def send(start_s: float, gpu: int, size: float, label: str) -> simpy.events.ProcessGenerator:
        yield env.timeout(start_s)
        pattern = links.routes(gpu, gpu + 8).pattern()
        activity = Activity.of(links, pattern, size, label=label)
        yield network.start(replace(activity, who=f"{label} of GPU {gpu}"))

    sent = ((0.0, 0, SECOND, "ring"), (0.5, 0, SECOND / 2, "sum"), (0.0, 1, SECOND, "ring"))
    env.run(until=env.all_of([env.process(send(*one)) for one in sent]))
    assert network.recorder is not None
    return SeenLinks(strategy="hdp-opt", step_s=2.0, record=network.recorder.record())


def test_rows_of_links_by_hand(seen: SeenLinks) -> None:
    rows = {row["link"]: row for row in link_rows(seen)}
    for name, gigabytes in (("nic-out:0.0", 75), ("nic-in:1.0", 75), ("nic-out:0.1", 50)):
        assert rows[name]["bytes"] == pytest.approx(gigabytes * 1e9)
        assert rows[name]["mean_load"] == pytest.approx(gigabytes / 100)  # of 50 GB/s in 2 s
        assert rows[name]["nearly_full_s"] == pytest.approx(gigabytes / 50)
        assert rows[name]["peak_load"] == pytest.approx(1.0)
    assert (rows["nic-out:0.0"]["kind"], rows["nic-out:0.0"]["place"]) == ("nic-out", "0.0")
    assert "nic-out:0.2" not in rows  # carries nothing


def test_two_flows_that_meet_on_a_link_by_hand(seen: SeenLinks) -> None:
    # From 0.5 s to 1.5 s both have half of the NIC: each ends half a second later than alone.
    rows = collision_rows([seen])
    lost = {(row["transfer"], row["met"]): row["lost_s"] for row in rows}
    assert lost == pytest.approx(
        {("ring of GPU 0", "sum of GPU 0"): 0.5, ("sum of GPU 0", "ring of GPU 0"): 0.5}
    )
    line = links_line(seen)
    assert "Transfers that met lost 1 s in all (2 of 3)" in line
    assert "0 at 75.0%" in line


def test_a_run_directory_has_every_byte_that_flows_carried(tmp_path: Path) -> None:
    comparison = compare(load_scenario("quickstart-8gpu", SMALL), ("hdp-opt",), 1, links=True)
    write_document(str(tmp_path / "run"), simulate_document(comparison))
    network = comparison.base.results[0].network
    assert network is not None
    assert network.record is not None
    with (tmp_path / "run" / "links.csv").open(newline="") as file:
        rows = {row["link"]: row for row in csv.DictReader(file)}
    carried = dict(zip(network.record.links.names(), network.record.link_bytes().tolist(), strict=True))
    assert {name: float(row["bytes"]) for name, row in rows.items()} == pytest.approx(
        {name: size for name, size in carried.items() if size > 0}
    )
    out, into = (
        np.sum([float(row["bytes"]) for row in rows.values() if row["kind"] == kind])
        for kind in ("nic-out", "nic-in")
    )
    assert out == pytest.approx(into)  # what leaves a node enters another
    assert all(0.0 < float(row["peak_load"]) <= 1.0 + 1e-9 for row in rows.values())
    readme = (tmp_path / "run" / "README.md").read_text()
    assert "`links.csv`" in readme
    assert "`collisions.csv`" in readme


def test_the_text_and_the_data_name_the_hottest_links() -> None:
    comparison = compare(load_scenario("quickstart-8gpu", SMALL), ("hdp-opt",), 2, links=True)
    document = simulate_document(comparison)
    network = document.data()["results"]["network"]
    said, of_all = [note for note in document.notes if "hottest links" in note]
    assert "of all 2 batches" in of_all
    for hottest, note in ((network["hottest_links"], said), (network["all_batches"], of_all)):
        loads = [row["mean_load"] for row in hottest]
        assert loads == pytest.approx(sorted(loads, reverse=True))
        assert all(row["link"] in note for row in hottest[:3])


def test_a_run_of_steps_says_what_its_links_carried_in_all_of_them() -> None:
    run = simulate_many(load_scenario("quickstart-8gpu", SMALL), 2)
    single = compare(load_scenario("quickstart-8gpu", SMALL), ("hdp-opt",), 2).base
    assert run.links is not None
    assert single.links is not None
    np.testing.assert_allclose(run.links.carried_bytes, single.links.carried_bytes, rtol=1e-12)
    assert run.links.carried_bytes.any()
    assert all(row.step.network is not None and row.step.network.carried_bytes is None for row in run.steps)
    assert [row["hottest_load"] for row in steps_table(run).records()] == [
        run.links.hottest[number][1] for number in (1, 2)
    ]


def test_the_pictures_of_a_step_are_drawn() -> None:
    larger = [one for one in SMALL if not one.startswith("data.")]
    larger += ["data.context=32K", "data.batch=512K tokens"]  # rings of more than one node
    comparison = compare(load_scenario("quickstart-8gpu", larger), ("hdp-opt",), 1, links=True)
    files = {file.name: file for file in link_pictures(comparison.feasible)}
    assert list(files) == ["link_load_hdp-opt", "fabric_load_hdp-opt", "ring_hops_hdp-opt"]
    for file in files.values():
        figure = file.content()
        assert figure.axes
        figure.canvas.draw()


def test_equal_blocks_are_drawn_once(seen: SeenLinks) -> None:
    links = Links.of(catalog.cluster_of("hgx-h100-80gb", 8 * 8, Fabric(nodes_per_block=2)))
    nothing = replace(seen.record, links=links, follows=np.full(len(links), -1))
    cold = SeenLinks(strategy="static", step_s=1.0, record=nothing)
    layers, blocks = fabric_layers(cold)
    assert blocks == ["0 (x4)"]
    assert [layer.load.shape for layer in layers] == [
        (8, 1),
        (8, 1),
        (8, 2),
        (8, 2),
    ]  # leaf up, down; NIC out, in
    cold.mean_load[links.names().index("nic-in:5.3")] = 0.5  # the sixth node is the second one of block 2
    layers, blocks = fabric_layers(cold)
    assert blocks == ["0 (x3)", "2"]
    assert np.argwhere(layers[3].load == 0.5).tolist() == [[3, 3]]


def test_hops_of_the_busiest_ring_by_hand() -> None:
    # Two ranks on two nodes: a hop each way, on links that nobody else uses.
    small = (
        "gpus=16",
        "layout.tp=8",
        "layout.recompute=none",
        "model.layers=4",
        "data.context=16K",
        "layout.rank_capacity=8K",
    )
    changes = (*small, "data.batch=16K tokens", "data.policy=chunk", "execution.network=flows")
    scenario = load_scenario("quickstart-8gpu", changes)
    setup = scenario.setup("hdp-opt")
    recording = replace(setup, execution=replace(setup.execution, record_links=True))
    network = simulate_step(recording, [16384]).network
    assert network is not None
    ring, record = network.ring, network.record
    assert ring is not None
    assert record is not None
    assert (ring.source.tolist(), ring.target.tolist()) == ([0, 1], [1, 0])
    # keys and values of 8,192 tokens, one head of 128 per GPU, 2 bytes, in 4 layers: once forward and twice backward
    sent = 4 * (1 + 2) * 2 * 8192 * 128 * 2
    nic = record.links.capacity_bytes_per_s[record.links.of_kind("nic-out")][0]
    assert ring.alone_s == pytest.approx([sent / nic] * 2)
    # a hidden gather is there meanwhile: the ring can have its fair share, and needs less
    assert (ring.shared_s > ring.alone_s).all()
    assert (ring.shared_s < ring.took_s).all()
    assert ring.took_s == pytest.approx(ring.took_alone_s)
    assert ring.took_s >= ring.alone_s.max() * (1 - 1e-9)


def test_lanes_of_links_in_a_timeline(
    tmp_path: Path, seen: SeenLinks, timeline_problems: Callable[[Path], tuple[str, ...]]
) -> None:
    whole, real = np.zeros(1, dtype=np.int64), np.zeros(1)
    spans = Spans(whole, whole, whole, whole, whole, real, real + 2.0)
    lanes = link_lanes(seen)
    path = tmp_path / "timeline.json"
    write_timeline(path, spans, links=lanes)
    assert timeline_problems(path) == ()
    (nic,) = [lane for lane in lanes if lane.name == "nic-out:0.0"]
    assert list(nic.transfers) == ["ring of GPU 0", "sum of GPU 0"]
    assert nic.start_s.tolist() == [0.0, 0.5]
    assert nic.end_s.tolist() == pytest.approx([1.5, 1.5])
    assert nic.load[:750] == pytest.approx(1.0)  # full until 1.5 of 2 s
    assert nic.load[750:] == pytest.approx(0.0)
    names = [event["args"]["name"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "M"
             and event["name"] == "thread_name"]  # fmt: skip
    assert "nic-out:0.0" in names
    assert "nic-out:0.0, at the same time 1" in names  # the sum beside the ring


def test_whatif_names_what_a_change_moves() -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    changes = ("cluster.fabric.degraded_links=leaf-up:0.0*=0.5", "cluster.fabric.placement=scattered")
    variants = whatif(scenario, changes, 1)
    said = [line for line in whatif_lines(variants) if "contention costs" in line]
    assert len(said) == 4
    assert said[0].startswith("  base: contention costs")
    assert "hottest links" in said[0]
    assert said[1].startswith(f"  {changes[0]}: ")
    assert "left of their rates: leaf-up:0.0 (50%)" in said[1]
    assert "left of their rates" not in said[2]


def test_loads_of_many_steps_by_hand() -> None:
    # Two steps of 2 s in which NIC 0.0 sends 50 GB and one of 4 s in which it sends 150 GB, NIC 0.1 sends 40 GB:
    # 250 of 400 GB and 40 of 400 GB; the first is hottest in the third step, with 150 of 200 GB.
    exact = NetworkCalibration(nic_efficiency=1.0)
    links = Links.of(catalog.cluster_of("hgx-h100-80gb", 16, Fabric()), exact)
    first = links.first["nic-out"]
    over = LinksOverSteps(links)
    for numbers, sent, step_s in (([1, 4], (1.0, 0.0), 2.0), ([3], (3.0, 0.8), 4.0)):
        carried = np.zeros(len(links))
        carried[first : first + 2] = np.array(sent) * SECOND
        shared = SharedLinks(independent_s=1.0, alone_s=1.0, contention_s=np.zeros(1), carried_bytes=carried)
        assert (
            over.add(numbers, shared, step_s).carried_bytes is None
        )  # nothing that grows with steps is kept
    rows = [tuple(row.values()) for row in over.rows()]
    assert rows == [
        ("nic-out:0.0", SECOND, 250e9, 0.625, 0.75, 3),
        ("nic-out:0.1", SECOND, 40e9, 0.1, 0.2, 3),
    ]
    assert over.hottest == {1: ("nic-out:0.0", 0.5), 4: ("nic-out:0.0", 0.5), 3: ("nic-out:0.0", 0.75)}
    assert over.words("batch").startswith(
        "nic-out:0.0 at 62.5%, at most 75.0% in batch 3; nic-out:0.1 at 10.0%"
    )


def test_flaps_are_named_and_their_seconds_are_in_the_table(seen: SeenLinks) -> None:
    flaps = (Flap(nic=0, at_s=0.25, down_s=0.1, stall_s=0.5), Flap(nic=1, at_s=1.9, down_s=0.2, stall_s=0.4))
    with_flaps = replace(seen, flaps=flaps)
    assert links_line(with_flaps).endswith(
        "2 link flaps, longest nic-out:0.0 0.1 s at 0.25 s (nothing moves for 0.5 s), "
        "nic-out:0.1 0.2 s at 1.9 s (nothing moves for 0.4 s)."
    )
    rows = {row["link"]: row["stood_still_s"] for row in link_rows(with_flaps)}
    assert rows["nic-out:0.0"] == pytest.approx(0.5)
    assert rows["nic-out:0.1"] == pytest.approx(0.1)  # the step of 2 s ends before
    assert rows["nic-in:1.0"] == 0.0
    assert links_json(with_flaps)["link_flaps"][0]["stall_s"] == 0.5


def test_whatif_says_what_flaps_cost() -> None:
    often = {"link_flaps_per_hour": 1000, "link_flap_mean": "10ms", "adaptive_retransmission": True}
    keys = [f"execution.{key}={value}" for key, value in often.items()]
    scenario = load_scenario("quickstart-8gpu", [*SMALL, "execution.seed=1", *keys[1:]])
    lines = whatif_lines(whatif(scenario, [keys[0]], 1))
    assert any(" link flaps cost 0." in line for line in lines)


def test_independent_transfers_have_no_links() -> None:
    scenario = load_scenario("quickstart-8gpu", [one for one in SMALL if "network" not in one])
    document = simulate_document(compare(scenario, ("hdp-opt",), 1, links=True))
    assert not any("hottest" in note for note in document.notes)
    assert "links.csv" not in [file.name for file in document.files]
