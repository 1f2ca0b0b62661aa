"""Layouts share what they have in common, and nothing that differs between them slips into what they share."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ideal_hardware import FAST_MEMORY_GPU, IDEAL, MODEL, PEAK, ideal_cluster, micro_batches

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.activations import (
    activation_bytes_per_token_layer,
    head_activation_bytes_per_token,
    layer_activations,
    working_set_bytes_per_token,
)
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.peak import _token_bytes, memory_report
from hdpsim.cost_models.step import layer_prices as layer_price_module
from hdpsim.cost_models.step.layer_prices import LayerPrices, layer_prices
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.tracing import Latest, tracing
from hdpsim.cost_models.transformer.parameters import _parameters_of, stage_contents

MOE = replace(MODEL, name="experts", experts=8, top_k=2, dense_layers=4, dense_ffn_hidden=11008)
CLUSTER: Cluster = ideal_cluster(gpu=replace(FAST_MEMORY_GPU, fp8_flop_per_s=2 * PEAK))
TOKENS = np.array([4096.0])

switches = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 8]),
        "cp": st.sampled_from([None, 1, 2]),
        "order": st.sampled_from(["tp-dp-pp", "tp-pp-dp"]),
        "sharding": st.sampled_from(["none", "zero1", "zero2", "zero3"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "recompute_small_kernels": st.booleans(),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "cp_kind": st.sampled_from(["ring", "all-gather"]),
        "cp_keep_gathered": st.booleans(),
        "attention_kernel": st.sampled_from(["flash", "unfused"]),
        "gradient_accumulation": st.sampled_from(["fused", "separate"]),
        "deferred_head_gradient": st.booleans(),
        "cuda_graphs": st.booleans(),
        "ep_overlap": st.booleans(),
    }
)
pipelines = st.sampled_from(
    [
        {"pp": 1},
        {"pp": 4},
        {"pp": 4, "vpp": 2, "schedule": "interleaved"},
        {"pp": 2, "schedule": "zb-h1"},
        {"pp": 4, "vpp": 2, "schedule": "zb-v"},
        {"pp": 2, "schedule": "dualpipe"},
    ]
)


@settings(max_examples=60)
@given(st.sampled_from([MODEL, MOE]), switches, pipelines)
def test_a_layer_cannot_tell_its_layout_from_what_it_is_given_of_it(
    model: Any, switched: dict[str, Any], pipeline: dict[str, Any]
) -> None:
    layout = Layout(**switched, **pipeline)
    batch = micro_batches([[4096]], group_size=[1])
    prices, shared = (LayerPrices(model, one, CLUSTER, IDEAL) for one in (layout, layout.of_layers))
    for side in (False, True):
        wanted, found = (one.terms_s(batch, (False, True)) for one in (prices, shared))
        assert all(np.array_equal(wanted[key], found[key]) for key in wanted)
        assert np.array_equal(prices.heads_s(TOKENS, (side,))[side], shared.heads_s(TOKENS, (side,))[side])
    kept = layout.of_layers.with_groups(recompute=layout.recompute)
    for bytes_of in (activation_bytes_per_token_layer, layer_activations, working_set_bytes_per_token):
        assert bytes_of(model, layout, moe=False) == bytes_of(model, kept, moe=False)
    assert head_activation_bytes_per_token(model, layout, 6.0) == head_activation_bytes_per_token(
        model, layout.of_layers, 6.0
    )
    of_a_report = (
        _token_bytes.__wrapped__(model, one, layout.recompute, MemoryOverheads(ring_steps_kept=True))
        for one in (layout, layout.of_layers)
    )
    assert len({str(found) for found in of_a_report}) == 1
    held = stage_contents(model, layout)[0]
    parts = (_parameters_of.__wrapped__(model, one, held) for one in (layout, layout.of_stages))
    assert len(set(parts)) == 1


def test_pipelines_share_one_layer_and_degrees_do_not() -> None:
    layout = Layout(tp=2, pp=4)
    once = layer_prices(MODEL, layout.of_layers, CLUSTER, IDEAL)
    alike = ({"pp": 2}, {"sharding": "none", "cp": 2}, {"vpp": 2}, {"recompute": "full"})
    for same in (layout.changed(**switches) for switches in alike):
        assert layer_prices(MODEL, same.of_layers, CLUSTER, IDEAL) is once
    for other in (layout.changed(tp=4), layout.changed(sharding="zero3")):
        assert layer_prices(MODEL, other.of_layers, CLUSTER, IDEAL) is not once


def test_prices_do_not_depend_on_what_was_priced_before() -> None:
    batches = micro_batches([[4096]]), micro_batches([[1024, 3072]]), micro_batches([[4096]], group_size=[2])
    layout = Layout(tp=2, pp=4)
    shared = MicroBatchCost(MODEL, layout, CLUSTER, IDEAL)
    for _ in range(2):
        for batch in batches:
            with tracing():  # a listener sees all work done anew
                alone = MicroBatchCost(MODEL, layout, CLUSTER, IDEAL).both_terms_s(batch)
            for wanted, found in zip(alone, shared.both_terms_s(batch), strict=True):
                assert np.array_equal(wanted, found)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe"])
def test_the_fullest_stage_is_the_fullest_of_all(schedule: str) -> None:
    vpp = {"interleaved": 3, "zb-v": 2}.get(schedule, 1)
    layout = Layout(tp=2, pp=8, vpp=vpp, schedule=schedule)
    for model, micro in ((catalog.model("llama-70b"), None), (MODEL, 3), (MOE, 16)):
        if model.layers < 8 * vpp:
            continue
        reports = [
            memory_report(model, layout, CLUSTER, 8, 4096, stage=stage, micro_batches=micro)
            for stage in range(8)
        ]
        fullest = memory_report(model, layout, CLUSTER, 8, 4096, micro_batches=micro)
        assert fullest == max(reports, key=lambda report: report.total_bytes)


def test_the_oldest_of_the_latest_makes_room() -> None:
    kept: Latest[str, int] = Latest(2)
    kept["a"], kept["b"], kept["a"], kept["c"] = 1, 2, 3, 4
    assert kept == {"b": 2, "c": 4}


def test_tables_of_planners_grow_by_what_is_new() -> None:
    layout = Layout(tp=2)
    asked = [np.array([1, 5, 300, 4096]), np.array([5, 300, 700]), np.array([4096, 1]), np.array([2, 8192])]
    grown, priced = LayerPrices(MOE, layout, CLUSTER, IDEAL), []
    whole = grown._of_one_rank
    grown._of_one_rank = lambda tokens: (priced.append(tokens.tolist()), whole(tokens))[1]  # type: ignore[method-assign]
    for tokens in asked:
        terms, heads = grown.table_s(tokens)
        expected_terms, expected_heads = whole(tokens)
        for key, rows in expected_terms.items():
            np.testing.assert_allclose(terms[key], rows, rtol=1e-14)
        for side, row in expected_heads.items():
            np.testing.assert_allclose(heads[side], row, rtol=1e-14)
    assert priced == [[1, 5, 300, 4096], [700], [2, 8192]]


def test_a_table_stays_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_price_module, "TABLE_SIZE", 3)
    prices = LayerPrices(MODEL, Layout(tp=2), CLUSTER, IDEAL)
    prices.table_s(np.array([1, 2, 3]))
    terms, _ = prices.table_s(np.array([3, 4]))
    np.testing.assert_allclose(terms[False, False], prices._of_one_rank(np.array([3, 4]))[0][False, False])
