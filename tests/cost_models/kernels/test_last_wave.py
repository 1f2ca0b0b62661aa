"""What few heads of short sequences leave idle at the end of an attention kernel."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.attention import attention_s, with_last_wave
from hdpsim.cost_models.step.layer_prices import TERMS
from tests.cost_models.ideal import GPU, IDEAL, ideal_cost, micro_batches

A100 = catalog.gpu("a100-80gb")
AMPERE = calibration("ampere")


@pytest.mark.parametrize(
    ("heads", "factor"),
    [
        # pairs 16 x 2048^2 / 2 = 33.6e6; a longest tile on each of 108 SMs: 108 x 128 x 2048 = 28.3e6; half of it
        (16, 1.422),
        (128, 1.053),
        # 2 heads: 4.2e6 pairs with 14.2e6 beside them are less than the longest tile that one SM works on
        (2, 28.3 / 4.19),
    ],
)
def test_heads_of_one_sequence_on_108_sms(heads: int, factor: float) -> None:
    pairs = heads * 2048**2 / 2
    found = with_last_wave(pairs, 2048, 2048, A100, AMPERE, backward=False, causal=True) / pairs
    assert found == pytest.approx(factor, rel=1e-3)


def test_blackwell_deals_the_longest_tiles_of_a_causal_backward_first() -> None:
    gpu, cal = catalog.gpu("b200"), calibration("blackwell")
    causal, blocks = with_last_wave(
        [1e9, 1e9], 4096, 4096, gpu, cal, backward=True, causal=np.array([True, False])
    ).tolist()
    longest = gpu.sm_count * 128 * 4096
    assert (causal, blocks) == pytest.approx((1e9 + 0.1 * longest, 1e9 + 0.5 * longest))


@pytest.mark.parametrize("sms", [108, 132])
@pytest.mark.parametrize("heads", [4, 64])
@pytest.mark.parametrize("tiles", [32, 64, 128, 192, 256, 1024])
def test_a_causal_backward_idles_as_its_list_of_tiles_does(tiles: int, heads: int, sms: int) -> None:
    # block i of the keys meets the queries from it on: longest first in every head, one head after the other
    lengths = [tiles - block - 0.5 for block in range(tiles)] * heads
    if sum(lengths) < 1.5 * sms * tiles:
        return  # few tiles for every SM: whether they fit is luck
    ends = [0.0] * sms
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    played = max(ends) - sum(lengths) / sms
    gpu, tokens, pairs = replace(A100, sm_count=sms), 128 * tiles, 128**2 * sum(lengths)
    found = float(with_last_wave(pairs, tokens, tokens, gpu, AMPERE, backward=True, causal=True)) - pairs
    luck = 0.3 if 0.9 < tiles / sms < 1.2 else 0.1  # one tile for every SM of every head fits, or does not
    assert found / 128**2 / sms == pytest.approx(played, abs=luck * tiles)


@given(st.integers(1, 64), st.floats(0, 1e12), st.floats(1, 1e6), st.booleans(), st.booleans())
def test_more_work_or_longer_rows_never_end_sooner(
    heads: int, more: float, row: float, backward: bool, causal: bool
) -> None:
    def ends(pairs: float, tokens: float) -> float:
        return float(with_last_wave(pairs, tokens, tokens, A100, AMPERE, backward=backward, causal=causal))

    own = 0.5 * heads * row**2
    assert own <= ends(own, row) <= min(ends(own + more, row), ends(4.0 * own, 2.0 * row)) * (1.0 + 1e-12)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("tokens", [[2048], [2048] * 8, [16384]])
def test_a_step_prices_a_kernel_as_a_benchmark_does(tokens: list[int], backward: bool) -> None:
    cal = replace(IDEAL, attention_tile_tokens=128, attention_forward_tail=0.5, attention_backward_tail=0.2)
    cost = ideal_cost(calibration=cal)
    layers, heads = cost.model.layers, cost.model.heads
    term = cost.terms_s(micro_batches([tokens]), backward=backward)[TERMS.index("attention")].sum()
    alone = attention_s(len(tokens), tokens[0], heads, cost.model.head_dim, GPU, cal, backward=backward)
    assert term == pytest.approx(layers * float(alone), rel=1e-6)


def test_a_window_shortens_the_longest_row() -> None:
    cal = replace(IDEAL, attention_tile_tokens=128, attention_forward_tail=0.5)
    whole = ideal_cost(calibration=cal)
    window = ideal_cost(calibration=cal, model=replace(whole.model, sliding_window=512))
    bare = ideal_cost(calibration=IDEAL, model=window.model)
    batch, row = micro_batches([[2048]]), TERMS.index("attention")
    idle = [
        float((cost.terms_s(batch, backward=False)[row] - without.terms_s(batch, backward=False)[row]).sum())
        for cost, without in ((whole, ideal_cost()), (window, bare))
    ]
    # seconds of a pair are the same, the longest row has 512 keys instead of 2,048
    assert idle[1] == pytest.approx(idle[0] / 4, rel=1e-3)
