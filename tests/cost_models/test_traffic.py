"""Which traffic crosses which layer: MegaScale's cluster by hand."""

from __future__ import annotations

import pytest

from cost_models import catalog
from cost_models.layout import Layout
from cost_models.parameters import parameters_per_gpu
from cost_models.traffic import traffic_of

MODEL, CLUSTER = catalog.model("megascale-175b"), catalog.cluster("megascale")
LAYOUT = Layout(tp=8, pp=8, vpp=6, schedule="interleaved")


def test_data_parallel_groups_next_to_each_other_stay_below_their_switches() -> None:
    rows = {(t.kind, t.order): t for t in traffic_of(MODEL, LAYOUT, CLUSTER, micro_batches=32, tokens=2048)}
    # 192 nodes of a stage fill three blocks of 64: 3 hops of 192 leave a block, the wrap-around among them
    assert rows["data-parallel", "tp-dp-pp"].leaves_block == pytest.approx(3 / 192)
    assert rows["pipeline", "tp-dp-pp"].leaves_block == 1.0
    # pipelines of 8 nodes fit blocks of 64: nothing of them leaves; their data-parallel rings hop from 8 to 8 nodes
    assert rows["pipeline", "tp-pp-dp"].leaves_block == 0.0
    assert rows["data-parallel", "tp-pp-dp"].leaves_block == pytest.approx(1 / 8)
    data, pipeline = rows["data-parallel", "tp-dp-pp"], rows["pipeline", "tp-dp-pp"]
    parameters = sum(parameters_per_gpu(MODEL, LAYOUT, s).total for s in range(8)) / 8
    assert data.bytes_per_gpu == pytest.approx(191 / 192 * 6 * parameters)
    # 47 boundaries of 8 x 6 chunks, there and back, 2,048 x 12,288 x 2 B / 8 each, by 8 stages
    assert pipeline.bytes_per_gpu == pytest.approx(2 * 47 * 2048 * 12288 * 2 / 8 * 32 / 8)
    for row in rows.values():
        assert sum(row.share) == pytest.approx(1.0)
