"""Loaders of a node: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models import catalog
from cost_models.calibration import calibration
from cost_models.data_pipeline import DataPipeline, node_loading_s
from cost_models.layout import Layout
from experiments.references import cluster_of_size

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
    assert node_loading_s(128e6, replace(layout, cp=4), CLUSTER, CAL, SHARED) == pytest.approx(4.0)
