import numpy as np
from simulator_plans import make_costs, make_plan

from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.randomness.noise import draw_noise
from hdpsim.simulator.play.randomness.slow_machines import Places, log_normal
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.setup import ExecutionOptions


def drawn(ranks: int, slots: int, *, stages: int = 1, chunks: int = 1, tp: int = 1, **options: float):
    """Noise of a plan whose ranks share nothing, on nodes of 8 GPUs."""
    plan = make_plan([list(range(r * slots, (r + 1) * slots)) for r in range(ranks)])
    costs = make_costs([1.0] * ranks * slots, [1.0] * ranks * slots, stages=stages, chunks=chunks)
    return draw_noise(plan, costs, ExecutionOptions(**options), tp=tp, gpus_per_node=8)


def test_nothing_asked_nothing_drawn():
    assert drawn(2, 3, stages=2) is None


def test_jitter_has_mean_one_and_the_deviation_asked_for():
    noise = drawn(20, 50, stages=10, chunks=5, jitter=0.1, seed=3)
    assert noise is not None
    assert noise.rank_stage is None
    for factors in (noise.forward, noise.backward):
        assert factors is not None
        assert factors.shape == (1000, 10, 5)
        # 50,000 draws: the mean is off by 0.1 / sqrt(50,000) = 0.00045, the deviation by about as much.
        assert abs(factors.mean() - 1) < 4 * 0.00045
        assert abs(factors.std() - 0.1) < 0.002
    assert not np.array_equal(noise.forward, noise.backward)


def test_slow_nodes_slow_the_stages_on_them():
    # 4 ranks x 2 stages x tp 4 = 32 GPUs on 4 nodes of 8; one node in four holds 2 neighbouring ranks of one stage.
    noise = drawn(4, 1, stages=2, tp=4, slow_node_share=0.25, slow_node_factor=1.5)
    assert noise is not None
    assert noise.forward is None
    assert noise.rank_stage is None  # backwards are as fast as elsewhere
    slow = noise.forward_stage
    assert slow is not None
    assert slow.shape == (4, 2)
    by_node = slow.T.reshape(4, 2)
    assert sorted(by_node.mean(axis=1).tolist()) == [1.0, 1.0, 1.0, 1.5]


def test_a_stage_over_several_nodes_is_as_slow_as_any_of_them():
    noise = drawn(2, 1, tp=16, slow_node_share=0.5, slow_node_factor=2.0)
    assert noise is not None
    assert noise.forward_stage is not None
    assert noise.forward_stage.max() == 2.0


def test_streams_are_independent_and_repeatable():
    def draw(**options: float):
        noise = drawn(32, 2, stages=2, seed=7, **options)
        assert noise is not None
        return noise

    alone = draw(jitter=0.2)
    both = draw(jitter=0.2, slow_node_share=0.25)
    np.testing.assert_array_equal(alone.forward, both.forward)
    np.testing.assert_array_equal(both.forward_stage, draw(slow_node_share=0.25).forward_stage)
    assert np.all(draw(slow_node_share=0.5).forward_stage >= both.forward_stage)


def test_machines_are_the_same_under_every_layout():
    # 32 GPUs on 4 nodes: a stage is as slow as the slowest of its GPUs, whichever rank and stage they serve.
    by_gpu = log_normal(np.random.default_rng(1), 0.1, 32)
    for ranks, stages, tp, order in (
        (4, 2, 4, "tp-dp-pp"),
        (4, 2, 4, "tp-pp-dp"),
        (32, 1, 1, "tp-dp-pp"),
        (1, 4, 8, "tp-pp-dp"),
    ):
        places = Places(ranks=ranks, stages=stages, tp=tp, gpus_per_node=8, order=order)
        found = places.slowest_gpu(by_gpu)
        for rank, stage in np.ndindex(ranks, stages):
            first = (stage * ranks + rank if order == "tp-dp-pp" else rank * stages + stage) * tp
            assert found[rank, stage] == by_gpu[first : first + tp].max()
        # the node of a job's slowest GPU is the same for all of them
        assert found.max() == by_gpu.max()


def test_a_slow_node_holds_up_forwards_alone():
    # one rank, three micro-batches of 1 s forward and 2 s backward: 10 % longer forwards make 9.3 s of 9 s
    plan = make_plan([[0, 1, 2]])
    costs = make_costs([1.0] * 3, [2.0] * 3)
    options = ExecutionOptions(slow_node_share=1.0, slow_node_factor=1.1)
    noise = draw_noise(plan, costs, options, tp=1, gpus_per_node=8)
    for play in (run_replay, run_engine):
        assert abs(play(plan, costs, noise).step_s - 9.3) < 1e-9
