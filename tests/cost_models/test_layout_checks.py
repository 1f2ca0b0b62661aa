"""One place decides whether a model can be spread in some way: what it lets pass is priced, what prices is let pass."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import (
    ContextParallelKind,
    ProductPrecision,
    RankOrder,
    Schedule,
    ShardingKind,
    StageBalance,
)
from hdpsim.cost_models.layout_checks import check_layout, reasons_against
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.reliability.checkpoint import checkpoint_size
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu, stage_layers
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.setup import MemoryOptions, Setup, StrategyOptions
from hdpsim.simulator.step import simulate_step

CONTEXT = 512
MODELS = {
    name: replace(catalog.model(name), layers=layers)
    for name, layers in (("llama-7b", 6), ("mixtral-8x7b", 4), ("deepseek-v3", 5), ("gpt3-175b", 4))
} | {"narrow": replace(catalog.model("llama-7b"), layers=4, ffn_hidden=11009, kv_heads=4)}


def one(kind: object) -> st.SearchStrategy[object]:
    return st.sampled_from(get_args(kind))


degrees = st.fixed_dictionaries(
    {
        "tp": st.sampled_from((1, 2, 3, 4, 8)),
        "pp": st.sampled_from((1, 2, 4)),
        "vpp": st.sampled_from((1, 1, 2)),
        "ep": st.sampled_from((1, 2, 4, 6, 8)),
        "schedule": one(Schedule),
    },
    optional={
        "etp": st.sampled_from((1, 2, 4)),
        "cp": st.sampled_from((1, 2, 3)),
        "cp_kind": one(ContextParallelKind),
        "shard_ranks": st.sampled_from((1, 2, 3, 4)),
        "sharding": one(ShardingKind),
        "order": one(RankOrder),
        "precision": one(ProductPrecision),
        "stage_balance": one(StageBalance),
        "embedding_layers": st.booleans(),
        "pp_overlap": st.booleans(),
    },
)


def price(model: str, gpus: int, layout: Layout) -> None:
    """Everything that a step costs, whatever memory there is."""
    setup = Setup(
        model=MODELS[model],
        cluster=catalog.cluster_of("hgx-b200-180gb", gpus),
        layout=layout,
        calibration=calibration("blackwell"),
        context_tokens=CONTEXT,
        strategy=StrategyOptions(name="static"),
        memory=MemoryOptions(must_fit=False),
    )
    result = simulate_step(setup, np.full(8 * setup.ranks, CONTEXT))
    assert np.isfinite(result.step_s)
    assert checkpoint_size(setup.model, layout, setup.ranks).unique_bytes > 0
    for stage in range(layout.parallel.pp):
        assert parameters_per_gpu(setup.model, layout, stage).total > 0
        assert state_bytes(setup.model, layout, setup.ranks, stage).total >= 0


@settings(max_examples=80)
@given(st.sampled_from(sorted(MODELS)), st.sampled_from((8, 16, 24)), degrees)
@example("narrow", 8, {"tp": 2})  # an MLP that tp does not divide
@example("llama-7b", 8, {"vpp": 2})
@example("mixtral-8x7b", 8, {"shard_ranks": 3})
@example("deepseek-v3", 8, {"pp": 4, "vpp": 2, "schedule": "interleaved", "embedding_layers": True})
def test_what_is_feasible_prices_and_what_is_not_does_not(
    model: str, gpus: int, chosen: dict[str, object]
) -> None:
    layout = Layout(**chosen, rank_capacity_tokens=CONTEXT)  # type: ignore[arg-type]
    cluster = catalog.cluster_of("hgx-b200-180gb", gpus)
    reasons = reasons_against(MODELS[model], cluster, layout, CONTEXT)
    ranks, rest = divmod(gpus, layout.parallel.tp * layout.parallel.pp)
    if not reasons:
        price(model, gpus, layout)
        check_layout(MODELS[model], layout, ranks)
        assert sum(map(sum, stage_layers(MODELS[model], layout))) == MODELS[model].layers
        return
    if not rest:
        with pytest.raises(InfeasibleError) as caught:
            check_layout(MODELS[model], layout, ranks)
        assert set(str(caught.value).partition(": ")[2].split("; ")) == set("; ".join(reasons).split("; "))
    with pytest.raises(InfeasibleError):
        price(model, gpus, layout)


def test_an_order_of_gpus_that_a_single_stage_does_not_notice_is_no_reason() -> None:
    layout = Layout(ep=8, order="tp-pp-dp")
    cluster = catalog.cluster_of("hgx-b200-180gb", 8)
    assert not reasons_against(MODELS["mixtral-8x7b"], cluster, layout, CONTEXT)
    two_stages = reasons_against(MODELS["mixtral-8x7b"], cluster, layout.changed(pp=2, ep=4), CONTEXT)
    assert [reason.partition(":")[0] for reason in two_stages] == ["layout.order"]
