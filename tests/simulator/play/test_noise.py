import numpy as np
from simulator_plans import make_costs, make_plan

from hdpsim.simulator.play.noise import draw_noise
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
    slow = noise.rank_stage
    assert slow is not None
    assert slow.shape == (4, 2)
    by_node = slow.T.reshape(4, 2)
    assert sorted(by_node.mean(axis=1).tolist()) == [1.0, 1.0, 1.0, 1.5]


def test_a_stage_over_several_nodes_is_as_slow_as_any_of_them():
    noise = drawn(2, 1, tp=16, slow_node_share=0.5, slow_node_factor=2.0)
    assert noise is not None
    assert noise.rank_stage is not None
    assert noise.rank_stage.max() == 2.0


def test_streams_are_independent_and_repeatable():
    def draw(**options: float):
        noise = drawn(32, 2, stages=2, seed=7, **options)
        assert noise is not None
        return noise

    alone = draw(jitter=0.2)
    both = draw(jitter=0.2, slow_node_share=0.25)
    np.testing.assert_array_equal(alone.forward, both.forward)
    np.testing.assert_array_equal(both.rank_stage, draw(slow_node_share=0.25).rank_stage)
    assert np.all(draw(slow_node_share=0.5).rank_stage >= both.rank_stage)
