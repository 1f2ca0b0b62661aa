import numpy as np
from simulator_plans import make_plan

from hdpsim.simulator.play.noise import draw_noise
from hdpsim.simulator.setup import ExecutionOptions


def plan(ranks: int, slots: int):
    return make_plan([list(range(r * slots, (r + 1) * slots)) for r in range(ranks)])


def test_nothing_asked_nothing_drawn():
    assert (
        draw_noise(plan(2, 3), stages=2, chunks=1, tp=1, gpus_per_node=8, options=ExecutionOptions()) is None
    )


def test_jitter_has_mean_one_and_the_deviation_asked_for():
    options = ExecutionOptions(jitter=0.1, seed=3)
    noise = draw_noise(plan(20, 50), stages=10, chunks=5, tp=1, gpus_per_node=8, options=options)
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
    options = ExecutionOptions(slow_node_share=0.25, slow_node_factor=1.5)
    noise = draw_noise(plan(4, 1), stages=2, chunks=1, tp=4, gpus_per_node=8, options=options)
    assert noise is not None
    assert noise.forward is None
    slow = noise.rank_stage
    assert slow is not None
    assert slow.shape == (4, 2)
    by_node = slow.T.reshape(4, 2)
    assert sorted(by_node.mean(axis=1).tolist()) == [1.0, 1.0, 1.0, 1.5]


def test_a_stage_over_several_nodes_is_as_slow_as_any_of_them():
    options = ExecutionOptions(slow_node_share=0.5, slow_node_factor=2.0)
    noise = draw_noise(plan(2, 1), stages=1, chunks=1, tp=16, gpus_per_node=8, options=options)
    assert noise is not None
    assert noise.rank_stage is not None
    assert noise.rank_stage.max() == 2.0


def test_streams_are_independent_and_repeatable():
    def draw(**options: float):
        noise = draw_noise(
            plan(16, 2),
            stages=2,
            chunks=1,
            tp=1,
            gpus_per_node=4,
            options=ExecutionOptions(seed=7, **options),
        )
        assert noise is not None
        return noise

    alone = draw(jitter=0.2)
    both = draw(jitter=0.2, slow_node_share=0.25)
    np.testing.assert_array_equal(alone.forward, both.forward)
    np.testing.assert_array_equal(both.rank_stage, draw(slow_node_share=0.25).rank_stage)
    assert np.all(draw(slow_node_share=0.5).rank_stage >= both.rank_stage)
