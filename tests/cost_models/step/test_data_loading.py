"""Loaders of a node: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.data_loading import DataPath, DataPipeline, node_loading_s
from hdpsim.experiments.scenario.references import cluster_of_size

CAL = replace(calibration("ampere"), loader_tokens_per_s=1e6)
CLUSTER = cluster_of_size(catalog.cluster("megascale"), 256)
SHARED, REDUNDANT = DataPipeline(), DataPipeline(loader="redundant")


def test_redundant_loaders_read_once_per_gpu() -> None:
    layout = Layout(tp=8, pp=8)  # 4 data-parallel ranks, one a node
    assert node_loading_s(4e6, layout, CLUSTER, CAL, SHARED) == pytest.approx(1.0)
    assert node_loading_s(4e6, layout, CLUSTER, CAL, REDUNDANT) == pytest.approx(8.0)


def test_several_ranks_of_a_node_and_context_parallel_ones() -> None:
    # tp 2: 4 ranks a node out of 128; each reads its own 1/128, both GPUs of it the same
    layout = Layout(tp=2)
    assert node_loading_s(128e6, layout, CLUSTER, CAL, SHARED) == pytest.approx(4.0)
    assert node_loading_s(128e6, layout, CLUSTER, CAL, REDUNDANT) == pytest.approx(8.0)
    # 4 context-parallel ranks read the same sequences: 32 data-parallel groups, one a node
    assert node_loading_s(128e6, layout.changed(cp=4), CLUSTER, CAL, SHARED) == pytest.approx(4.0)


def test_what_is_prepared_beside_training_shows_as_far_as_it_takes_longer() -> None:
    path = DataPath(loading_s=3.0, planning_s=2.0, ahead_steps=1)
    assert path.exposed_s(6.0) == (0.0, 0.0)
    assert path.exposed_s(5.0) == (0.0, 0.0)
    # One second late: planning, the last on the way. Four late: all of it, and two of loading.
    assert path.exposed_s(4.0) == (0.0, 1.0)
    assert path.exposed_s(1.0) == (2.0, 2.0)


def test_several_batches_on_their_way_hide_more() -> None:
    # Two steps ahead: a batch every max(3, 2, 5 / 2) seconds; more steps do not make the loaders faster.
    for ahead, period_s in ((1, 5.0), (2, 3.0), (9, 3.0)):
        path = DataPath(loading_s=3.0, planning_s=2.0, ahead_steps=ahead)
        assert path.period_s == period_s
        assert sum(path.exposed_s(1.0)) == period_s - 1.0


def test_nothing_is_hidden_without_prefetch() -> None:
    assert DataPath(loading_s=3.0, planning_s=2.0, ahead_steps=0).exposed_s(100.0) == (3.0, 2.0)
