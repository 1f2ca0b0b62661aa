"""The layers of a model: which kinds it has, each kind as a model of its own, and the weight matrices of one layer.

A plain transformer has layers of attention and an MLP, or of attention and experts. A layer of a hybrid has one part
alone: Mamba-2, attention, an MLP or experts. Whatever counts, cuts or prices one layer is asked about one kind:
*as_layer* gives the model whose only layer is of that kind, *layer_matrices* the one list that everything which counts,
cuts or multiplies its matrices reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache, partial
from typing import Literal, NamedTuple, assert_never

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.model import Model, dense_layer_count, dense_width
from hdpsim.errors import InfeasibleError

Block = Literal[
    "attention", "mamba", "mlp", "experts", "shared", "latent", "router", "prediction", "vocabulary"
]
Cut = Literal["outputs", "inputs", "none"]


class LayerKind(IntEnum):
    """What a layer consists of. The first two, of plain transformers, are equal to whether the layer has experts."""

    DENSE = 0
    MOE = 1
    MAMBA = 2
    ATTENTION = 3
    MLP = 4
    EXPERTS = 5

    @property
    def attends(self) -> bool:
        """Whether the layer has attention."""
        return self in (LayerKind.DENSE, LayerKind.MOE, LayerKind.ATTENTION)

    @property
    def has_experts(self) -> bool:
        """Whether the layer has routed experts."""
        return self in (LayerKind.MOE, LayerKind.EXPERTS)


KIND_OF = {"M": LayerKind.MAMBA, "*": LayerKind.ATTENTION, "-": LayerKind.MLP, "E": LayerKind.EXPERTS}
LETTER_OF = {kind: letter for letter, kind in KIND_OF.items()}

KindCounts = tuple[tuple[LayerKind, int], ...]
"""How many layers of each kind that occurs."""


class LayerParts(NamedTuple):
    """What one layer has."""

    attention: bool
    mamba: bool
    mlp: bool
    """Or experts."""

    @property
    def blocks(self) -> int:
        """Parts that read a norm's output and add to the residual stream, each by itself."""
        return self.attention + self.mamba + self.mlp


def parts_of(model: Model) -> LayerParts:
    """What a layer of a model has whose layers are all alike, experts apart.

    Raises:
        InfeasibleError: they are not: whoever asks was not taught about hybrids.
    """
    if not model.layer_pattern:
        return LayerParts(attention=True, mamba=False, mlp=True)
    if len(model.layer_pattern) > 1:
        raise InfeasibleError(
            f"{model.name} is a hybrid (layer_pattern): what this needs of a layer is modelled for models whose "
            "layers are all alike"
        )
    letter = model.layer_pattern
    return LayerParts(attention=letter == "*", mamba=letter == "M", mlp=letter in "-E")


@lru_cache(maxsize=1024)
def layers_in_order(model: Model) -> tuple[LayerKind, ...]:
    """The kind of every layer of a model, multi-token prediction apart; of a plain one dense layers come first."""
    if model.layer_pattern:
        return tuple(KIND_OF[letter] for letter in model.layer_pattern)
    dense = dense_layer_count(model)
    return (LayerKind.DENSE,) * dense + (LayerKind.MOE,) * (model.layers - dense)


@lru_cache(maxsize=1024)
def layer_counts(model: Model) -> KindCounts:
    """The layers of a model by kind, multi-token prediction apart."""
    return counted(layers_in_order(model))


@lru_cache(maxsize=1024)
def prediction_counts(model: Model) -> KindCounts:
    """The layers of one multi-token-prediction layer by kind: one of the usual kind, or those of mtp_pattern."""
    if model.layer_pattern:
        return counted(KIND_OF[letter] for letter in model.mtp_pattern)
    return ((LayerKind(bool(model.experts)), 1),)


def counted(kinds: Iterable[LayerKind]) -> KindCounts:
    """How many layers there are of each kind."""
    return tuple(sorted(Counter(kinds).items()))


def attention_layers(model: Model) -> int:
    """Layers with attention, multi-token prediction apart."""
    return sum(count for kind, count in layer_counts(model) if kind.attends)


def kinds_of(model: Model) -> tuple[LayerKind, ...]:
    """The kinds that occur in the layers or in multi-token prediction."""
    predicted = prediction_counts(model) if model.mtp_layers else ()
    return tuple(sorted({kind for kind, _ in (*layer_counts(model), *predicted)}))


@lru_cache(maxsize=1024)
def as_layer(model: Model, kind: LayerKind) -> tuple[Model, bool]:
    """The model whose layers are all of that kind, and whether they have experts.

    Of a plain transformer the model itself. Of a hybrid what the other kinds are made of is left out, so that nothing
    can be read by mistake.
    """
    if not model.layer_pattern:
        return model, kind.has_experts
    kept: dict[str, object] = {
        "layer_pattern": LETTER_OF[kind],
        "layers": 1,
        "mtp_layers": 0,
        "mtp_pattern": "",
    }
    if kind is not LayerKind.EXPERTS:
        kept |= {"experts": 0, "top_k": 0, "shared_expert_ffn": 0, "expert_latent": 0}
    if kind is not LayerKind.MAMBA:
        kept["mamba"] = None
    of_kind = replace(model, **kept)  # type: ignore[arg-type]
    return of_kind, kind.has_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix of *inputs* rows; of routed experts the equal ones of all of them."""

    name: str
    block: Block
    inputs: int
    parts: tuple[int, ...]
    """Columns of each matrix that stock models keep apart and one product joins: queries, keys, values; gate, up."""
    cut: Cut = "none"
    """Which side the GPUs of a tensor-parallel group (of experts: those that share one) divide; none: all have all."""
    head_outputs: int = 1
    """Columns that stay together, a head's: key and value heads fewer than the GPUs are repeated."""
    experts: int = 1
    experts_per_token: int = 1
    biases: bool = False
    adapter_rank: int = 0
    """Rank of the trained adapter beside the frozen weights; 0 = none."""

    @property
    def outputs(self) -> int:
        """Columns of all parts."""
        return sum(self.parts)

    @property
    def weights(self) -> int:
        """Weights of one expert's matrix, or of the only one."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Weights and biases of all experts."""
        return self.experts * (self.weights + (self.outputs if self.biases else 0))

    @property
    def tensors(self) -> int:
        """Tensors in which stacks store it: queries, keys and values in one, gate and up in two."""
        return 1 if self.block in ("attention", "mamba") else len(self.parts)

    def shard(self, gpus: int) -> tuple[int, int]:
        """Inputs and outputs on each of the GPUs that share the matrix; the vocabulary is rounded up."""
        match self.cut:
            case "none":
                return self.inputs, self.outputs
            case "inputs":
                return -(-self.inputs // gpus), self.outputs
            case "outputs":
                return self.inputs, sum(max(self.head_outputs, -(-part // gpus)) for part in self.parts)
            case _:
                assert_never(self.cut)


class MatrixShard(NamedTuple):
    """What one GPU of a layout holds of a matrix."""

    matrix: Matrix
    inputs: int
    outputs: int
    experts: int

    @property
    def weights(self) -> int:
        """Weights of all experts on the GPU."""
        return self.experts * self.inputs * self.outputs


def matrices_apart(shard: MatrixShard, gpus: int) -> tuple[MatrixShard, ...]:
    """The matrices that stock models keep apart, as each of the *gpus* that cut them holds them."""
    matrix = shard.matrix
    if len(matrix.parts) == 1:
        return (shard,)
    alone = [
        replace(matrix, name=f"{matrix.name}_{number}", parts=(part,))
        for number, part in enumerate(matrix.parts, 1)
    ]
    return tuple(MatrixShard(one, *one.shard(gpus), shard.experts) for one in alone)


@lru_cache(maxsize=256)
def layer_matrices(model: Model, *, moe: bool) -> tuple[Matrix, ...]:
    """The matrices of one layer in the order of the forward; the router comes last.

        grouped-query  qkv h x (a + 2 g) d, output a d x h          (a heads, g KV heads, d head_dim, h hidden)
        latent         queries h x q and q x a (n + r), or h x a (n + r) without q; keys and values h x (c + r)
                       and c x a (n + v); output a v x h            (q, c ranks; n, r, v head dims: no-position,
                       rotary, value)
        Mamba-2        in h x (2 i + 2 G N + H), out i x h          (i = H heads x their width, G groups, N state)
        MLP            h x 2 f with a gate (h x f without), f x h; experts and shared experts likewise
        latent experts h x l before and l x h behind them, whose own h is l
        router         h x E

    A layer of a hybrid has one of these parts.

    Source: arXiv 1706.03762, 2305.13245 (grouped-query), 2405.04434 section 2.1 (latent), 1909.08053 section 3 (cuts),
    2405.21060 section 7 (Mamba-2);
    Megatron-Core (low-rank input projections of latent attention, those around latent experts and the router are on
    every GPU; ssm/mamba_mixer.py: in_proj is cut by columns, out_proj by rows).
    """
    parts = parts_of(model)
    mixer = _attention(model) if parts.attention else _mamba(model) if parts.mamba else ()
    if not parts.mlp:
        return mixer
    if not moe:
        return (*mixer, *_mlp(model, "mlp", dense_width(model)))
    if not model.experts:
        raise InfeasibleError(f"{model.name} has no mixture-of-experts layers")
    shared = _mlp(model, "shared", model.shared_expert_ffn) if model.shared_expert_ffn else ()
    router = Matrix(name="router", block="router", inputs=model.hidden, parts=(model.experts,))
    return (*mixer, *_mlp(model, "experts", model.ffn_hidden), *_latent_projections(model), *shared, router)


def layer_linear_weights(model: Model, *, moe: bool) -> int:
    """Weights of one layer that a token is multiplied with (biases and norms apart)."""
    return sum(matrix.weights * matrix.experts_per_token for matrix in layer_matrices(model, moe=moe))


@lru_cache(maxsize=1024)
def layer_shards(model: Model, layout: Layout, *, moe: bool) -> tuple[MatrixShard, ...]:
    """What one GPU holds of each matrix of a layer."""
    held = []
    for matrix in layer_matrices(model, moe=moe):
        routed = matrix.block == "experts"
        experts = max(1, matrix.experts // layout.parallel.ep)
        shard = matrix.shard(layout.parallel.expert_cut if routed else layout.parallel.tp)
        held.append(MatrixShard(matrix, *shard, experts))
    return tuple(held)


def layer_tensors(model: Model, layout: Layout, *, moe: bool) -> int:
    """Tensors in which a GPU holds the matrices of a layer."""
    return sum(shard.experts * shard.matrix.tensors for shard in layer_shards(model, layout, moe=moe))


def mlp_width(model: Model, *, moe: bool) -> int:
    """Width of the part of the MLP that every token passes: of a shared expert, or of all of a dense layer's MLP."""
    if not parts_of(model).mlp:
        return 0
    return model.shared_expert_ffn if moe else dense_width(model)


def routed_width(model: Model, *, moe: bool) -> int:
    """Width of all the routed experts that a token passes."""
    return model.top_k * model.ffn_hidden if moe else 0


def vocabulary_matrix(model: Model) -> Matrix:
    """The output projection; the embedding table has its shape."""
    return Matrix(name="logits", block="vocabulary", inputs=model.hidden, parts=(model.vocab,), cut="outputs")


def prediction_matrix(model: Model) -> Matrix:
    """What a multi-token-prediction layer reads: the hidden state beside the embedding of the next token.

    Source: arXiv 2412.19437 section 2.2.
    """
    hidden = model.hidden
    return Matrix(name="prediction_in", block="prediction", inputs=2 * hidden, parts=(hidden,), cut="outputs")


def _attention(model: Model) -> tuple[Matrix, ...]:
    latent, hidden, heads = model.latent_attention, model.hidden, model.heads
    matrix = partial(Matrix, block="attention", adapter_rank=model.adapter_rank)
    output = matrix(
        name="attention_out",
        inputs=heads * model.value_dim,
        parts=(hidden,),
        cut="inputs",
        biases=model.biases,
        adapter_rank=0 if model.adapter_targets == "qkv" else model.adapter_rank,
    )
    if latent is None:
        keys = model.kv_heads * model.head_dim
        qkv = matrix(
            name="qkv",
            inputs=hidden,
            parts=(heads * model.head_dim, keys, keys),
            cut="outputs",
            head_outputs=model.head_dim,
            biases=model.biases or model.qkv_biases,
        )
        return qkv, output
    queries, rank, kv_rank = heads * model.query_dim, latent.q_lora_rank, latent.kv_lora_rank
    keys_values = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    of_queries = [matrix(name="query", inputs=hidden, parts=(queries,), cut="outputs")]
    if rank:
        of_queries = [
            matrix(name="query_down", inputs=hidden, parts=(rank,)),
            matrix(name="query_up", inputs=rank, parts=(queries,), cut="outputs"),
        ]
    return (
        *of_queries,
        matrix(name="kv_down", inputs=hidden, parts=(kv_rank + latent.qk_rope_head_dim,)),
        matrix(name="kv_up", inputs=kv_rank, parts=(keys_values,), cut="outputs"),
        output,
    )


def _mamba(model: Model) -> tuple[Matrix, ...]:
    """Of a Mamba-2 layer: gate, input, B, C and step width in one product; the output."""
    mamba, hidden = model.mamba, model.hidden
    assert mamba is not None
    columns = mamba.inner + mamba.convolved + mamba.heads
    return (
        Matrix(name="mamba_in", block="mamba", inputs=hidden, parts=(columns,), cut="outputs"),
        Matrix(name="mamba_out", block="mamba", inputs=mamba.inner, parts=(hidden,), cut="inputs"),
    )


def _latent_projections(model: Model) -> tuple[Matrix, ...]:
    """The projections to the width in which tokens travel to their experts, and back."""
    latent = model.expert_latent
    if not latent:
        return ()
    return (
        Matrix(name="latent_down", block="latent", inputs=model.hidden, parts=(latent,)),
        Matrix(name="latent_up", block="latent", inputs=latent, parts=(model.hidden,)),
    )


def mamba_vectors(model: Model) -> int:
    """Parameters of a Mamba-2 layer that are no matrices: convolution with bias, A, D, bias of the step, gated norm.

    (w + 1) (i + 2 G N) + 3 H + i                                                          w tokens of convolution
    """
    mamba = model.mamba
    if mamba is None or not parts_of(model).mamba:
        return 0
    return (mamba.conv + 1) * mamba.convolved + 3 * mamba.heads + mamba.inner


def _mlp(model: Model, block: Block, width: int) -> tuple[Matrix, ...]:
    prefix = {"experts": "expert_", "shared": "shared_"}.get(block, "")
    routed = block == "experts"
    matrix = partial(
        Matrix,
        block=block,
        experts=model.experts if routed else 1,
        experts_per_token=model.top_k if routed else 1,
        biases=model.biases or (routed and model.expert_biases),
        adapter_rank=model.adapter_rank if block == "mlp" and model.adapter_targets == "all" else 0,
    )
    parts = (width, width) if model.gated_mlp else (width,)
    outer = model.routed_hidden if routed else model.hidden
    return (
        matrix(name=prefix + "mlp_up", inputs=outer, parts=parts, cut="outputs"),
        matrix(name=prefix + "mlp_down", inputs=width, parts=(outer,), cut="inputs"),
    )
