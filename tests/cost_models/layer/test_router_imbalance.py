"""What the busiest GPU of an expert-parallel group gets: by hand, in its limits, and against draws."""

from __future__ import annotations

from dataclasses import replace
from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layer.experts import SAME_WORD, busiest_over_mean, spread_of
from hdpsim.cost_models.transformer.model import Model

MIXTRAL = catalog.model("mixtral-8x7b")  # 8 experts, top 2
DEEPSEEK = catalog.model("deepseek-v3")  # 256 experts, top 8
HOPPER = calibration("hopper")


def of(experts: int, top_k: int) -> Model:
    return replace(MIXTRAL, experts=experts, top_k=top_k)


class TestByHand:
    def test_one_expert_per_gpu(self) -> None:
        # the largest of 8 normal numbers is 1.424 standard deviations; their sum is fixed: x sqrt(8 / 7)
        expected = 1 + 1.424 * 0.1 * sqrt(8 / 7)
        assert busiest_over_mean(MIXTRAL, 8, 0.1) == pytest.approx(expected, abs=1e-4)

    def test_many_experts_per_gpu_even_out(self) -> None:
        # 32 experts on each of 8 GPUs: sqrt(8 / 255) of the spread of one
        expected = 1 + 1.424 * 0.1 * sqrt(8 / 255)
        assert busiest_over_mean(DEEPSEEK, 8, 0.1) == pytest.approx(expected, abs=1e-3)

    def test_two_parts(self) -> None:
        # halves of two experts whose loads are 1 + d and 1 - d: the mean of |d| is sqrt(2 / pi) of its deviation
        assert busiest_over_mean(of(2, 1), 2, 0.1) == pytest.approx(1 + 0.1 * sqrt(2 / pi))

    def test_words_of_text_before_training(self) -> None:
        # 3 of 4 times another expert: 0.01 x (8 - 2) / 2
        assert spread_of("untrained", MIXTRAL, HOPPER) == pytest.approx(sqrt(0.03))
        assert spread_of("untrained", DEEPSEEK, HOPPER) == pytest.approx(sqrt(0.31))

    def test_what_keeps_them_balanced(self) -> None:
        even, bias, loss = (spread_of(name, DEEPSEEK, HOPPER) for name in ("even", "bias", "loss"))
        assert even == 0.0
        assert bias < loss == HOPPER.expert_load_spread < spread_of("untrained", DEEPSEEK, HOPPER)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Model, int, float]:
    experts = draw(st.sampled_from([2, 8, 16, 64, 128, 256]))
    ep = 2 ** draw(st.integers(0, experts.bit_length() - 1))
    top_k = draw(st.integers(1, min(experts, 8)))
    return of(experts, top_k), ep, draw(st.floats(0, 5))


@given(groups())
def test_between_the_mean_and_all_tokens(case: tuple[Model, int, float]) -> None:
    model, ep, spread = case
    ratio = busiest_over_mean(model, ep, spread)
    # one GPU meets at most every token, with all of its copies that it has experts for
    assert 1.0 <= ratio <= ep * min(model.top_k, model.experts // ep) / model.top_k + 1e-12
    assert busiest_over_mean(model, ep, spread / 2) <= ratio
    assert busiest_over_mean(model, 1, spread) == busiest_over_mean(model, ep, 0.0) == 1.0


@given(groups())
def test_the_more_gpus_share_the_experts_the_busier_is_one(case: tuple[Model, int, float]) -> None:
    model, ep, spread = case
    if ep < model.experts:
        assert busiest_over_mean(model, ep, spread) <= busiest_over_mean(model, 2 * ep, spread) + 1e-12


@pytest.mark.parametrize(("experts", "top_k", "ep"), [(8, 2, 8), (64, 8, 8), (128, 1, 16)])
def test_draws_of_words_agree(experts: int, top_k: int, ep: int) -> None:
    """100 equally frequent words (the same one with probability 1/100), each with k random experts."""
    assert SAME_WORD == 0.01
    rng = np.random.default_rng(7)
    busiest = []
    for _ in range(2000):
        chosen = rng.random((100, experts)).argsort(axis=1)[:, :top_k]
        loads = np.bincount(chosen.ravel() // (experts // ep), minlength=ep)
        busiest.append(loads.max() / loads.mean())
    model = of(experts, top_k)
    ratio = busiest_over_mean(model, ep, spread_of("untrained", model, HOPPER))
    assert ratio == pytest.approx(np.mean(busiest), rel=0.04)
