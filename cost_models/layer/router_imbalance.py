"""How unevenly a router spreads tokens: what the busiest GPU of an expert-parallel group gets, over the mean."""

from __future__ import annotations

from math import sqrt

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.layout.switches import ExpertRouting
from hdpsim.cost_models.slowest_of_many import expected_largest
from hdpsim.cost_models.transformer.model import Model

# A router of random weights sends equal words to the same experts: two tokens of English text are the same word with
# this probability, the sum of squared frequencies. Source: counts of the Brown corpus (Kucera and Francis, 1967): "the"
# 69,971 of 1,014,232 words, "of" 36,411, "and" 28,852, ...
SAME_WORD = 0.01
# Experts steered by a bias: the fullest of 64 has 1.04 times the mean over a validation set, 2.34 standard deviations.
# Source: arXiv 2408.15664, table 2 (MaxVio_global 0.04, models of 1 and 3 billion parameters).
BIASED_SPREAD = 0.04 / 2.34


def busiest_over_mean(model: Model, ep: int, spread: float) -> float:
    """Expected largest number of routed tokens on a GPU of an expert-parallel group, over the mean.

        ratio = min( 1 + z(ep) x spread x sqrt( ep / (E - 1) ),  ep x min(E / ep, k) / k )

    *spread* is the coefficient of variation of the experts' tokens. E experts in ep equal parts whose sum is fixed: a
    part of E / ep has the variance spread^2 (ep - 1) / (E - 1), and its correlation with another one is -1 / (ep - 1),
    which widens the largest of them by ep / (ep - 1). z(ep) is the largest of so many normal numbers. At most all
    tokens choose this GPU's experts.
    Limits: 1 with ep = 1 or equal experts; 1 + z(E) x spread with one expert per GPU, E large; many experts on a GPU
    even out with the root of their number.
    Counted: the mean of a layer's largest, which is what a layer waits for, over layers and micro-batches.
    Ignored: chance (a uniform router deviates by 1 % at 4,096 tokens per GPU), experts that are busy together.
    """
    if ep == 1:
        return 1.0
    uneven = 1.0 + expected_largest(ep) * spread * sqrt(ep / (model.experts - 1))
    return min(uneven, ep * min(model.experts / ep, model.top_k) / model.top_k)


def spread_of(routing: ExpertRouting, model: Model, cal: Calibration) -> float:
    """Coefficient of variation of tokens among a layer's experts, by what keeps the router balanced.

        even, in-turn: 0.  loss: the calibration's.  bias: 0.017
        untrained: sqrt( P(same word) (E - k) / k ): a word's k experts are any k of E

    Source: see the constants; random routing: sampling k of E without putting back, once for every word.
    """
    match routing:
        case "even" | "in-turn":
            return 0.0
        case "bias":
            return BIASED_SPREAD
        case "untrained":
            return sqrt(SAME_WORD * (model.experts - model.top_k) / model.top_k)
        case "loss":
            return cal.expert_load_spread
