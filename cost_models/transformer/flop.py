"""FLOP of training: what a token and what a sequence costs, model FLOP and hardware FLOP.

Conventions: one multiply-add is 2 FLOP. *Model* FLOP are forward + backward (3 x forward), no recomputation; of frozen
weights 2 x forward (attention, which has none, 3 x), and adapters beside them are not counted.
*Hardware* FLOP add what activation recomputation repeats. *Causal* counts the half of the attention scores that a
causal mask keeps (s^2 / 2 pairs per sequence); *full* counts all s^2, as most published MFU figures do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.switches import RecomputeKind
from hdpsim.cost_models.transformer.layers import (
    LayerKind,
    as_layer,
    layer_counts,
    layer_linear_weights,
    prediction_counts,
    prediction_matrix,
    vocabulary_matrix,
)
from hdpsim.cost_models.transformer.model import Model

FLOP_PER_MULTIPLY_ADD = 2
# The backward computes two products (input and weight gradient) for each of the forward
FORWARD_AND_BACKWARD = 3
FORWARD_AND_INPUT_GRADIENT = 2  # frozen weights have no weight gradient
SCAN_FLOP = 7  # of a Mamba layer, per element of its heads and of its state: NVIDIA-NeMo/Megatron-Bridge, flop_utils.py


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFlop:
    """FLOP of one token by part.

    Attributes:
        linear: matrix products of the layers (and of multi-token prediction), scans of Mamba layers.
        head: the output projection.
        attention: attention scores and their product with the values.
    """

    linear: float
    head: float
    attention: float

    @property
    def total(self) -> float:
        """All parts."""
        return self.linear + self.head + self.attention


def forward_flop(model: Model) -> TokenFlop:
    """Forward FLOP of one token; `attention` is per attended key, all layers together.

        linear    = 2 x (weights of every matrix a token meets: top_k experts, the shared one, router)
        head      = 2 h V                     (once more per multi-token-prediction layer)
        attention = 2 a (d_qk + d_v) per layer and attended key
        scan      = 7 H P N per Mamba-2 layer, part of linear (H heads of width P, state N)

    The scan's own matrix products are 2 L (G N + H P) + 4 H P N in chunks of L tokens: 6.1 H P N where L = N = 128 and
    G N = H P / 16.
    Counted: matrix products only.  Ignored: norms, activations, softmax, rotary embedding, convolution of a Mamba-2
    layer, embedding look-up, loss.
    Source: arXiv 2205.05198 appendix A; arXiv 2204.02311 appendix B; for hybrids NVIDIA-NeMo/Megatron-Bridge,
    training/utils/flop_utils.py (hybrid_flops), which takes H P for twice the hidden size where it is not.
    """
    mtp = model.mtp_layers
    layers = [*layer_counts(model), *((kind, mtp * count) for kind, count in prediction_counts(model) if mtp)]
    weights = mtp * prediction_matrix(model).weights
    attending = scanned = 0
    for kind, count in layers:
        of_kind, moe = as_layer(model, kind)
        weights += count * layer_linear_weights(of_kind, moe=moe)
        attending += count * kind.attends
        if kind is LayerKind.MAMBA and model.mamba is not None:
            scanned += count * model.mamba.inner * model.mamba.state
    of_a_key = model.heads * (model.query_dim + model.value_dim)
    return TokenFlop(
        linear=float(FLOP_PER_MULTIPLY_ADD * weights + SCAN_FLOP * scanned),
        head=float(FLOP_PER_MULTIPLY_ADD * vocabulary_matrix(model).weights * (1 + mtp)),
        attention=float(FLOP_PER_MULTIPLY_ADD * of_a_key * attending),
    )


def attention_pairs(
    lengths: ArrayLike, *, causal: bool = True, window: int | None = None, chunked: bool = False
) -> Floats:
    """Query-key pairs of each sequence that are counted.

        causal: s^2 / 2, and with a window w < s: s w - w^2 / 2
        full:   s min(s, w)
        chunks: as many sequences of w tokens and the rest

    Ignored: the diagonal (causal is s (s + 1) / 2 exactly; 0.02 % at 4K).
    """
    s = np.asarray(lengths, dtype=np.float64)
    if window is not None and chunked:
        full_windows = np.floor(s / window)
        rest = s - full_windows * window
        return np.asarray((full_windows * float(window) ** 2 + rest**2) * (0.5 if causal else 1.0))
    reach = s if window is None else np.minimum(s, float(window))
    return s * reach - reach * reach / 2 if causal else s * reach


def layer_pairs(model: Model, lengths: ArrayLike, *, causal: bool = True) -> Floats:
    """Query-key pairs of each sequence, mean over the attention: some reach everything, some a window."""
    window, every = model.sliding_window, model.full_attention_every
    near = attention_pairs(lengths, causal=causal, window=window, chunked=model.chunked_attention)
    if window is None or not every:
        return near
    return near + (attention_pairs(lengths, causal=causal) - near) / every


def model_flop_per_token(
    model: Model, length_tokens: float, *, causal: bool = True, recompute: RecomputeKind = "none"
) -> TokenFlop:
    """Forward + backward FLOP of a token in a sequence of that length; hardware FLOP when *recompute* is given.

        model:    3 x forward
        full:     4 x forward for the layers (their forward runs twice), 3 x for the head
        selective: 4 x forward for attention (scores and values are computed twice)
        frozen:   one less for layers and head

    Counted and ignored as in forward_flop. Source: arXiv 2205.05198 section 5 and appendix A.
    """
    forward = forward_flop(model)
    keys = float(layer_pairs(model, length_tokens, causal=causal)) / length_tokens
    linear, head, attention = _passes(model, recompute)
    return TokenFlop(
        linear=linear * forward.linear,
        head=head * forward.head,
        attention=attention * forward.attention * keys,
    )


def _passes(model: Model, recompute: RecomputeKind) -> tuple[int, int, int]:
    """How many forwards' FLOP a step does of the layers' matrices, of the head and of attention."""
    weights = FORWARD_AND_INPUT_GRADIENT if model.frozen else FORWARD_AND_BACKWARD
    repeats_all = recompute == "full"
    return weights + repeats_all, weights, FORWARD_AND_BACKWARD + (repeats_all or recompute == "selective")


def sequence_flop(
    model: Model, lengths: ArrayLike, *, causal: bool = True, recompute: RecomputeKind = "none"
) -> Floats:
    """Model FLOP (forward + backward) of each sequence; hardware FLOP when *recompute* is given.

        3 x [ (linear + head) s + attention x pairs(s) ]  =  6 N s + 6 l a d s^2  (causal, plain attention)

    Attention never crosses sequences, however they are packed. Counted and ignored as in forward_flop, recomputation
    as in model_flop_per_token.
    """
    forward = forward_flop(model)
    s = np.asarray(lengths, dtype=np.float64)
    linear, head, attention = _passes(model, recompute)
    weights = linear * forward.linear + head * forward.head
    return weights * s + attention * forward.attention * layer_pairs(model, s, causal=causal)


def sequence_model_flop(
    model: Model, lengths: ArrayLike, causal: bool = True, recompute: RecomputeKind = "none"
) -> float:
    """FLOP of all the sequences together (see sequence_flop)."""
    return float(sequence_flop(model, lengths, causal=causal, recompute=recompute).sum())
