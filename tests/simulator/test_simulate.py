from dataclasses import replace

import numpy as np
import pytest
from simulator_setups import HOPPER, MODEL, small_cluster, small_setup

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.epilogue import loading_s, planning_s
from hdpsim.cost_models.transformer.flop import forward_flop, sequence_model_flop
from hdpsim.errors import InfeasibleError, OutOfMemoryError, UserInputError
from hdpsim.simulator.planning import micro_batch_cost, plan_batch
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.setup import ExecutionOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, memory_of

LENGTHS = np.array([4096, 3000, 500, 100, 1024] * 10)


def test_throughput_and_utilisation_by_hand():
    setup = small_setup()
    result = simulate_step(setup, LENGTHS)
    assert result.tokens == 87_200
    assert result.gpus == 16
    assert result.tokens_per_s == pytest.approx(87_200 / result.step_s)
    flop = sequence_model_flop(MODEL, LENGTHS, causal=True)
    assert result.model_flop == flop
    assert result.mfu == pytest.approx(flop / (16 * 989.4e12 * result.step_s), rel=1e-3)
    assert result.model_flop_full > result.model_flop
    assert result.mfu_full / result.mfu == pytest.approx(result.model_flop_full / result.model_flop)
    assert result.hardware_flop == result.model_flop  # nothing is recomputed
    assert result.hardware_flop_full == result.model_flop_full
    assert repr(result).startswith(
        f"StepResult(hdp-opt: a step of {result.step_s:.3f} s, 87,200 tokens on 16 GPUs"
    )


def test_full_recomputation_adds_a_forward_of_the_layers():
    setup = small_setup(layout=Layout(recompute="full"))
    result = simulate_step(setup, LENGTHS)
    assert 1.2 < result.hardware_flop / result.model_flop < 4 / 3
    # of each sequence by its own length: a third more of the layers' products and scores, nothing of the head
    head = 3 * forward_flop(MODEL).head * LENGTHS.sum()
    for model, hardware in (
        (result.model_flop, result.hardware_flop),
        (result.model_flop_full, result.hardware_flop_full),
    ):
        assert hardware == pytest.approx((model - head) * 4 / 3 + head)


def test_selective_recomputation_counts_attention_once_more():
    result = simulate_step(small_setup(layout=Layout(recompute="selective")), LENGTHS)
    scores = forward_flop(MODEL).attention * (LENGTHS.astype(float) ** 2).sum()
    assert result.hardware_flop_full - result.model_flop_full == pytest.approx(scores)


def test_accounts_name_every_second():
    result = simulate_step(small_setup(), LENGTHS)
    assert result.accounts[-len(WAITS) :] == WAITS
    assert result.account_s.shape == (len(result.accounts), 16, 1)
    np.testing.assert_allclose(result.account_s.sum(axis=0), result.step_s)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "at least one sequence"),
        ([[1, 2]], "at least one sequence"),
        ([0, 5], r"in 1\.\.4096 .* got 0\.\.5"),
        ([-3], r"got -3\.\.-3"),
        ([5, 4097], r"got 5\.\.4097: chunk, truncate or drop"),
    ],
)
def test_bad_batches(lengths: list[int], message: str):
    with pytest.raises(UserInputError, match=message):
        simulate_step(small_setup(), lengths)


def test_parameters_sharded_by_layer_show_in_every_layer():
    static = simulate_step(small_setup(layout=Layout(sharding="zero3"), name="static"), LENGTHS)
    shown = dict(zip(static.accounts, static.account_s.mean(axis=(1, 2)).tolist(), strict=True))
    assert shown["layer_gather"] > 0
    assert shown["layer_reduce"] > 0
    assert shown["parameter_gather"] == shown["gradient_sync"] == 0


def test_gpus_that_do_not_divide():
    with pytest.raises(InfeasibleError, match="16 GPUs do not divide by tp x pp = 1 x 3"):
        simulate_step(small_setup(layout=Layout(pp=3)), LENGTHS)


def test_a_capacity_that_does_not_fit_is_out_of_memory():
    setup = small_setup(capacity=10_000_000, context=4096)
    with pytest.raises(
        OutOfMemoryError,
        match=r"^10000000 tokens per rank need .* \(activations .* lower layout\.rank_capacity",
    ):
        simulate_step(setup, LENGTHS)


@pytest.mark.parametrize(
    ("model", "degrees"), [("llama-3-70b", "tp, pp"), ("mixtral-8x22b", "tp, pp, layout.ep")]
)
def test_where_states_alone_do_not_fit_fewer_tokens_are_no_advice(model, degrees):
    setup = replace(small_setup(capacity=128, context=4096), model=catalog.model(model))
    with pytest.raises(
        OutOfMemoryError, match=rf"fewer tokens do not help: spread .* \({degrees}, layout.sharding, gpus"
    ):
        simulate_step(setup, LENGTHS)


def test_the_capacity_follows_from_memory_and_context():
    setup = small_setup()
    free = replace(setup, layout=Layout(tp=2), context_tokens=4095)
    assert capacity_tokens(free) == 4096  # the context in whole tokens per GPU
    long = replace(free, context_tokens=2**24)
    capacity = capacity_tokens(long)
    assert memory_of(long, capacity).fits
    assert capacity < 2**24
    more = replace(long, layout=long.layout.changed(rank_capacity_tokens=int(capacity * 1.1)))
    with pytest.raises(OutOfMemoryError):
        simulate_step(more, LENGTHS)


def data_s(**strategy: object) -> float:
    result = simulate_step(small_setup(**strategy), LENGTHS)
    rows = [result.accounts.index(name) for name in ("data", "planning")]
    return float(result.account_s[rows].sum(axis=0).max())


def test_prefetched_data_and_plans_take_no_time():
    assert data_s(name="static") == 0.0
    assert data_s(name="hdp-opt") == 0.0
    assert data_s(name="hdp-naive") == 0.0


def test_without_the_remote_loader_planning_and_loading_show():
    cost = micro_batch_cost(small_setup())
    expected_s = planning_s(cost, len(LENGTHS)) + loading_s(cost, int(LENGTHS.sum()))
    assert data_s(remote_data_loading=False) == pytest.approx(expected_s)
    assert data_s(name="static", remote_data_loading=False) == 0.0
    # 87,200 tokens at 5.6 million a second, and 50 sequences at 5 us, and messages over two nodes.
    assert loading_s(cost, 87_200) == pytest.approx(87_200 / 5.6e6)
    assert planning_s(cost, 50) > 50 * 5e-6 + 2 * 50 * 16 / 1e9


def test_planning_messages_grow_with_the_tree_of_nodes():
    few, many = (micro_batch_cost(small_setup(cluster=small_cluster(n, 64))) for n in (2, 64))
    # 2 x log2(nodes) hops of the same tier: 2 and 12.
    hops_s = [planning_s(cost, 0) for cost in (few, many)]
    assert hops_s[1] == pytest.approx(6 * hops_s[0])
    assert planning_s(micro_batch_cost(small_setup(cluster=small_cluster(1))), 0) == 0.0


def test_the_engine_counts_events_and_records_spans_on_request():
    engine = ExecutionOptions(executor="engine", spans=True)
    result = simulate_step(small_setup(execution=engine), LENGTHS)
    assert result.events > 0
    assert result.spans is not None
    assert result.spans.end_s.max() == pytest.approx(result.step_s)
    replay = simulate_step(small_setup(), LENGTHS)
    assert (replay.events, replay.spans) == (0, None)


def test_results_say_what_they_rest_on():
    result = simulate_step(small_setup(), LENGTHS)
    assert result.notes[0] == f"calibration {HOPPER.name}"
    assert result.strategy == "hdp-opt"
    assert result.rank_capacity_tokens == 1024
    assert result.largest_group >= 1
    assert result.planning_wall_s > 0
    assert result.memory.fits


def test_seeds_matter_only_with_noise():
    def step_s(seed: int, jitter: float) -> float:
        return simulate_step(
            small_setup(execution=ExecutionOptions(seed=seed, jitter=jitter)), LENGTHS
        ).step_s

    assert step_s(1, 0.0) == step_s(2, 0.0)
    assert step_s(1, 0.2) == step_s(1, 0.2) != step_s(2, 0.2)


def test_the_plan_does_not_depend_on_the_executor():
    replay, problem, _ = plan_batch(small_setup(), LENGTHS)
    engine, _, _ = plan_batch(small_setup(execution=ExecutionOptions(executor="engine")), LENGTHS)
    np.testing.assert_array_equal(replay.order, engine.order)
    assert problem.context_tokens == 4096
