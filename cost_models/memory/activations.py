"""Bytes of activations that a layer keeps for its backward, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hdpsim.cost_models.layer.adapters import kept_bytes
from hdpsim.cost_models.layer.recomputation import layout_of_kind, repeated_share
from hdpsim.cost_models.layer.small_kernels import residual_shards
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import RecomputeKind
from hdpsim.cost_models.memory.overheads import LEAN, MemoryOverheads, RotaryTables
from hdpsim.cost_models.transformer.layers import (
    as_layer,
    layer_counts,
    layer_linear_weights,
    layer_matrices,
    layer_shards,
    mlp_width,
    parts_of,
    routed_width,
)
from hdpsim.cost_models.transformer.model import Model

BF16_BYTES = 2.0
FP32_BYTES = 4.0
FP8_BYTES = 1.0
# Terms of micro_batch_cost that put out what is kept.
_OUTPUTS = ("gemm", "tp_communication", "small_kernels")
MASK_BYTES = 1.0  # a dropout mask is one byte per element: arXiv 2205.05198 section 4.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Bytes per token of a rank that one layer keeps on each GPU of the rank, by tensor.

    Attributes:
        norm_inputs: the residual stream before each norm.
        linear_inputs: the normalised inputs of attention and MLP (shared by the matrices that read them).
        queries_keys_values: what the attention kernel reads again.
        latents: low-rank queries, keys and values of latent attention, before they are unfolded.
        attention_output: output of attention, which is also the input of the output projection, and its log-sum-exp.
        mlp: input(s) of the activation function and its output, which the last matrix reads.
        experts: what mlp holds, of routed experts, with their dispatched inputs and outputs; router scores.
        dropout_masks: masks, where dropout is used.
        mamba: what a Mamba-2 layer's first matrix puts out, what its scan puts out, and what its last matrix reads.
    """

    norm_inputs: float
    linear_inputs: float
    queries_keys_values: float
    latents: float
    attention_output: float
    mlp: float
    experts: float
    dropout_masks: float
    mamba: float = 0.0

    @property
    def total(self) -> float:
        """All tensors."""
        return float(sum(getattr(self, name) for name in self.__slots__))


def activation_bytes_per_token_layer(
    model: Model,
    layout: Layout,
    recompute: RecomputeKind | None = None,
    *,
    moe: bool | None = None,
    overheads: MemoryOverheads | None = None,
) -> float:
    """Bytes per token of a rank that one layer keeps on each GPU between its forward and its backward.

        none:            every tensor of layer_activations
        selective, full: the layer's input, 2 h / t (2 h without sequence parallelism), and of every other tensor the
                         share that the backward does not compute again; see kept_outputs. Attention kernels that
                         never store scores make "selective" by itself, the recomputation of the scores, free: it
                         keeps as much as none

    Of a stack's *overheads* (None = lean) its copies of unfused operations, and selective_share and selective_keeps in
    place of what "selective" keeps.
    Per rank, not per GPU: tokens of the whole TP group. The default kind is the one most layers are.
    Source: arXiv 2205.05198 sections 4 and 5.
    """
    layout = layout if recompute is None else layout.changed(recompute=recompute)
    extra = overheads or LEAN
    wide = wide_stream_bytes(model, layout, extra)
    layer_input = layer_input_bytes(model, layout) + wide
    moe = bool(model.experts) if moe is None else moe
    unfused = overheads is not None and (extra.unfused_copies or not layout.kernels.fused)
    copies = unfused_copies(model, layout, moe=moe) if unfused else 0.0
    copies += norm_copies(model, layout, wide=extra.autocast) if extra.norms_in_32_bits else 0.0
    copies += (_stream_norms(model) - 1) * wide
    tensors = layer_activations(model, layout, moe=moe, dropout=model.dropout)
    if moe and layout.experts.weights == "activations":
        tensors = replace(tensors, experts=tensors.experts - expert_output_bytes(model, layout))
    discarded = discarded_bytes(model, layout, tensors, moe=moe)
    if layout.recompute.kind == "selective" and extra.selective_keeps is not None:
        kept_names = set(extra.selective_keeps)
        named = float(sum(getattr(tensors, name) for name in kept_names))
        named -= discarded if kept_names >= {"linear_inputs", "mlp", "experts"} else 0.0
        # The first norm reads the layer's input
        return named + (wide if "norm_inputs" in kept_names else layer_input)
    if layout.recompute.kind == "selective" and extra.selective_share is not None:
        kept = extra.selective_share
        return kept * (tensors.total + wide + copies) + (1.0 - kept) * layer_input
    if not any(repeated_share(layout, term) for term in _OUTPUTS) and not _repeated_attention_share(layout):
        return tensors.total + wide + copies - discarded
    rest = 1.0 - repeated_share(layout, "small_kernels")
    return layer_input + kept_outputs(model, layout, tensors, copies, moe=moe) - rest * discarded


def usual_activation_bytes(model: Model, layout: Layout, overheads: MemoryOverheads | None = None) -> float:
    """activation_bytes_per_token_layer of the kind that most layers are; of a hybrid the mean of all layers."""
    if not model.layer_pattern:
        return activation_bytes_per_token_layer(model, layout, overheads=overheads)
    kept = 0.0
    for kind, count in layer_counts(model):
        (of_kind, moe), seen = as_layer(model, kind), layout_of_kind(layout, kind)
        kept += count * activation_bytes_per_token_layer(of_kind, seen, moe=moe, overheads=overheads)
    return kept / model.layers


def kept_outputs(
    model: Model, layout: Layout, tensors: LayerActivations, copies: float, *, moe: bool
) -> float:
    """Bytes of a layer's tensors, its input left out, that no backward computes again: what time does not repeat.

        1 - share repeated (repeated_share) of what the operation puts out:
        products      queries, keys, values, what Mamba-2 layers keep, inputs of the activation function,
                      without tensor parallelism the residual stream between attention and MLP; nothing reads what the
                      last product of a dense layer puts out, so the first FLOP that are not repeated are its own: they
                      keep nothing
        attention     its output and log-sum-exp
        collectives   the residual stream between attention and MLP, with tensor parallelism
        everything else of the layer: normalised inputs, the activation function's output, dispatched tokens, router,
                      masks, copies of unfused operations

    Ignored: which products a policy names (all put out the same share).
    Source: derivation.
    """
    rest = 1.0 - repeated_share(layout, "small_kernels")
    products = _kept_products(model, layout, moe=moe)
    between = 1.0 - repeated_share(layout, "tp_communication") if layout.parallel.tp > 1 else products
    width = mlp_width(model, moe=moe) / layout.parallel.tp
    read = _mlp(model, width, 0.0)  # inputs of the activation function
    experts_read = _mlp(model, routed_width(model, moe=moe) / layout.parallel.tp, 0.0)
    layer_input = layer_input_bytes(model, layout)
    return (
        between * max(0.0, tensors.norm_inputs - layer_input)
        + products * (tensors.queries_keys_values + tensors.latents + read + experts_read + tensors.mamba)
        + (1.0 - _repeated_attention_share(layout)) * tensors.attention_output
        + rest * (tensors.linear_inputs + tensors.mlp - read + tensors.experts - experts_read)
        + rest * (tensors.dropout_masks + copies)
    )


def discarded_bytes(model: Model, layout: Layout, tensors: LayerActivations, *, moe: bool) -> float:
    """What recompute_small_kernels drops after the forward: what norms and activation functions put out.

        2 x 2 h / t + 2 f / t (2 k f / t), in 16 bits

    With 8 bits the products' inputs are copies of their own, which the backward needs as they are: nothing.
    Source: Megatron-Core, recompute_modules layernorm and moe_act (CheckpointWithoutOutput).
    """
    recompute = layout.recompute
    if not (recompute.kind == "selective" and recompute.small_kernels) or layout.precision.products != "bf16":
        return 0.0
    width = mlp_width(model, moe=moe) + (routed_width(model, moe=moe) if moe else 0.0)
    return tensors.linear_inputs + BF16_BYTES * width / layout.parallel.tp


def expert_output_bytes(model: Model, layout: Layout) -> float:
    """Outputs of the routed experts per token of a rank: 2 k h etp / t; weighed by the router's scores when summed."""
    return BF16_BYTES * model.top_k * model.routed_hidden * layout.parallel.expert_cut / layout.parallel.tp


def _kept_products(model: Model, layout: Layout, *, moe: bool) -> float:
    """Share of what the products of a layer put out, and something reads, that is not computed again."""
    kept = 1.0 - repeated_share(layout, "gemm")
    if layout.recompute.products is None or moe:  # whole layers; sums of experts read all outputs
        return kept
    if not parts_of(model).mlp:
        return kept
    last = layer_matrices(model, moe=False)[-1].weights / layer_linear_weights(model, moe=False)
    return min(1.0, max(0.0, (kept - last) / (1.0 - last))) if kept < 1.0 else 1.0


def _repeated_attention_share(layout: Layout) -> float:
    """Share of the layers' attention whose *output* is computed again; scores alone are another matter."""
    if layout.recompute.kind == "selective" and layout.kernels.attention == "unfused":
        return repeated_share(layout.changed(attention_kernel="flash"), "attention")
    return repeated_share(layout, "attention")


def layer_input_bytes(model: Model, layout: Layout) -> float:
    """A layer's input per token of a rank, on each of its GPUs: what every kind of recomputation keeps."""
    return BF16_BYTES * model.hidden / residual_shards(layout)


def wide_stream_bytes(model: Model, layout: Layout, overheads: MemoryOverheads) -> float:
    """What the residual stream takes on top in 32 bits, per token of a rank and on each GPU, each time it is kept."""
    more = FP32_BYTES - BF16_BYTES if overheads.autocast else 0.0
    return more * model.hidden / residual_shards(layout)


def kept_keys_values_bytes(model: Model, layout: Layout, overheads: MemoryOverheads) -> float:
    """Keys and values that stay though a layer's products are computed again: 2 x 2 g d / t, of the share that is.

    Source: huggingface/transformers 4.31 to 4.35, models/llama/modeling_llama.py (LlamaModel.forward:
    next_decoder_cache, unless its own gradient_checkpointing is on).
    """
    if not overheads.keys_values_kept or not parts_of(model).attention:
        return 0.0
    width = max(1.0, model.kv_heads / layout.parallel.tp) * model.head_dim
    return 2 * BF16_BYTES * width * repeated_share(layout, "gemm")


def _stream_norms(model: Model) -> int:
    return 1 if model.parallel_block else parts_of(model).blocks


def layer_activations(model: Model, layout: Layout, *, moe: bool, dropout: bool = False) -> LayerActivations:
    """The tensors one layer keeps, in bytes per token on each GPU of the rank (h hidden, t = tp, f MLP width).

        norm inputs            2 x 2 h / t   (one norm in a parallel block)
        attention, MLP inputs  2 x 2 h / t   (1 B each in fp8)
        q, k, v                2 (a + 2 g) d / t        latent: 2 a (2 (n + r) + v) / t
        latents                4 (q + c) + 2 r, over t with sequence parallelism
        attention output       2 a d / t + 4 a / t (log-sum-exp); + 1 B per element in fp8 (the cast copy)
        MLP                    2 x 3 f / t with a gate (gate, up, product), 2 x 2 f / t without
        experts                2 x 2 k h etp / t + 2 x 3 k f / t, router 8 E / t     latent: l for h, + 2 x 2 l / t
        Mamba-2                2 (2 i + 2 G N + H) / t + 2 i / t (scan) + 2 i / t (gated; 1 B in fp8)

    Frozen weights keep no input for their gradient; what an adapter reads is kept for its own, in 16 bits, and copies
    of it in other types (adapters.kept_bytes). bf16_layers of a model in 8 bits are kept in 16: the mean is given.
    Without sequence parallelism the norm and linear inputs are whole on every GPU. With a gate, g/a KV groups, no
    dropout: 12 h + 4 h g/a + 6 f per token over t; GPT (f = 4 h, masks): 34 h over t; without sequence
    parallelism 10 h + 24 h / t.
    Counted: tensors kept by flash attention and fused norms.  Ignored: rotary tables, norm statistics (4 B per
    token), expert imbalance (tokens spread evenly), second copies that unfused frameworks keep, bf16_parts.
    Source: arXiv 2205.05198 section 4 (GPT); for gates, grouped queries and experts the same derivation.
    """
    tp, hidden = layout.parallel.tp, model.hidden
    sharded = residual_shards(layout)
    fp8 = layout.precision.products != "bf16" and not model.frozen
    parts = parts_of(model)
    inputs = 1 if model.parallel_block else parts.blocks
    cast = 1.0 - layout.precision.bf16_layers if fp8 else 0.0
    gemm_input_bytes = BF16_BYTES - cast * (BF16_BYTES - FP8_BYTES)
    read = 1 if model.frozen and (model.adapter_targets != "all" or moe) else inputs
    product_bytes = 0.0 if model.frozen and model.adapter_targets != "all" else gemm_input_bytes
    output = model.heads * model.value_dim / tp * parts.attention
    log_sums = FP32_BYTES * model.heads / tp * parts.attention
    return LayerActivations(
        norm_inputs=inputs * BF16_BYTES * hidden / sharded,
        linear_inputs=read * gemm_input_bytes * hidden / sharded + kept_bytes(model, layout, moe=moe),
        queries_keys_values=_queries_keys_values(model, layout),
        latents=_latents(model, layout),
        attention_output=output * (BF16_BYTES + cast * FP8_BYTES) + log_sums,
        mlp=_mlp(model, mlp_width(model, moe=moe) / tp, product_bytes),
        experts=_experts(model, layout, 0.0 if model.frozen else gemm_input_bytes) if moe else 0.0,
        dropout_masks=parts.blocks * MASK_BYTES * hidden / sharded if dropout else 0.0,
        mamba=_mamba(model, layout, gemm_input_bytes),
    )


def _mamba(model: Model, layout: Layout, gemm_input_bytes: float) -> float:
    """Per token of a rank and on each GPU. The scan keeps nothing else: its backward computes states and scores again.

    Source: state-spaces/mamba, ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn, ctx.save_for_backward).
    """
    mamba = model.mamba
    if mamba is None or not parts_of(model).mamba:
        return 0.0
    put_out = mamba.inner + mamba.convolved + mamba.heads
    return (BF16_BYTES * (put_out + mamba.inner) + gemm_input_bytes * mamba.inner) / layout.parallel.tp


def unfused_copies(model: Model, layout: Layout, *, moe: bool) -> float:
    """What a layer keeps on top when its small operations run one by one, per token of a rank and on each GPU.

        activated gate  2 f / t          (the product with the other branch reads it again; without a gate: none)
        keys, values    2 x 2 a d / t    before the rotation, where they share one buffer with the queries (g = a)

    Counted: eager PyTorch with a fused norm and flash attention; separate norms: norm_copies.
    Source: derivation; huggingface/nanotron, CausalSelfAttention and GLUActivation.
    """
    width = mlp_width(model, moe=moe) + routed_width(model, moe=moe)
    gate = BF16_BYTES * width / layout.parallel.tp if model.gated_mlp else 0.0
    attends = parts_of(model).attention
    shared_buffer = attends and model.latent_attention is None and model.kv_heads == model.heads
    return gate + shared_buffer * 2 * BF16_BYTES * model.heads * model.head_dim / layout.parallel.tp


def norm_copies(model: Model, layout: Layout, *, wide: bool = False) -> float:
    """What norms in 32 bits keep on top, per token of a rank and on each GPU.

        4 h / t a norm of the residual stream  (4 for 2 B of its input, which nothing else keeps, and 2 of what it put
                                               out before its weight)
        6 (a + g) d / t  where queries and keys are normalised: nothing else keeps these inputs

    Of frozen norms 2 less each, for only the gradient of the weight reads what it multiplies. Of a *wide* stream, which
    has 32 bits, no copy is made, and what is put out has as many.
    Counted: norms by root mean squares.  Ignored: the root itself (4 B a token).
    Source: huggingface/transformers, models/llama/modeling_llama.py (LlamaRMSNorm.forward: to(float32), pow, times the
    root, to(input_dtype), times the weight), models/qwen3/modeling_qwen3.py (q_norm, k_norm); what autograd saves.
    """
    if model.norm != "rms":
        return 0.0
    parts = parts_of(model)
    of_heads = model.qk_norm and parts.attention
    normalised = (model.heads + model.kv_heads) * model.head_dim * of_heads / layout.parallel.tp
    put_out = 0.0 if model.frozen else BF16_BYTES  # read for the gradient of its weight alone
    stream = _stream_norms(model) * model.hidden / residual_shards(layout)
    of_stream = 2.0 * put_out if wide else FP32_BYTES - BF16_BYTES + put_out
    return of_stream * stream + (FP32_BYTES + put_out) * normalised


def score_bytes_per_token(model: Model, layout: Layout, sequence_tokens: float) -> float:
    """What attention before flash attention keeps of its scores, per token of a rank and on each GPU.

        2 a s / t (the softmax); with dropout 5 a s / t (its mask 1, its output 2)

    The whole square: a causal mask saves nothing.  Counted: 16-bit softmax.  Source: arXiv 2205.05198 section 4.1.
    """
    if layout.kernels.attention != "unfused":
        return 0.0
    per_score = 2 * BF16_BYTES + MASK_BYTES if model.dropout else BF16_BYTES
    return per_score * model.heads / layout.parallel.tp * sequence_tokens


def tensor_parallel_transients(model: Model, layout: Layout) -> float:
    """Short-lived whole tensors of one layer's forward that a communication stream reads, per token of a rank.

        2 x 2 h (1 - 1 / t): the outputs of attention and MLP before they are summed and scattered

    Source: derivation (arXiv 2205.05198 section 4.2.2).
    """
    return 2 * BF16_BYTES * model.hidden * (1.0 - 1.0 / layout.parallel.tp)


def working_set_bytes_per_token(model: Model, layout: Layout, *, moe: bool) -> float:
    """Short-lived tensors while one layer runs backward, per token of a rank and on each GPU.

        gradients of the MLP's inner tensors 2 x 3 f / t (2 x 2 f without gate; k f for experts)
        + gathered input and its gradient 2 x 2 h (whole with sequence parallelism: Megatron gathers again)
        Mamba-2: what the backward's scan puts out again, and gradients: 2 x (3 i + 2 G N) + 4 x 2 i N / L over t
    What recomputation computes again is there as well: memory_report adds it.
    Ignored: overlap of these with tensors freed in the same backward.  Source: derivation.
    """
    width = mlp_width(model, moe=moe) + routed_width(model, moe=moe)
    gradients = BF16_BYTES * (3 if model.gated_mlp else 2) * width / layout.parallel.tp
    if parts_of(model).mamba and model.mamba is not None:
        mamba = model.mamba
        states = 2.0 * FP32_BYTES * mamba.inner * mamba.state / mamba.chunk
        gradients = (BF16_BYTES * (2 * mamba.inner + mamba.convolved) + states) / layout.parallel.tp
    return gradients + 2 * BF16_BYTES * model.hidden


def rotary_table_bytes(model: Model, tables: RotaryTables, layers: int, sequence_tokens: int) -> float:
    """Sines and cosines of every position of a sequence that a GPU keeps, of so many *layers* with attention.

        layers    layers x s x 2 tables x d / 2 x 2 B
        shared    s x 2 tables x d x 2 B: every angle twice, once for either half of a head

    Counted: 16-bit tables of the whole sequence, however many ranks share it. Models with learned positions have none.
    Source: InternLM/InternEvo, internlm/model/modules/embedding.py (RotaryEmbedding) and mha.py: one module a layer,
    whose tables reach up to the largest position that it meets; thunlp/BurstEngine, cpm/layers/position_embedding.py
    (RotaryEmbeddingESM) and attention.py (max_length): one module of the model.
    """
    if model.learned_positions or tables == "none":
        return 0.0
    latent = model.latent_attention
    dim = model.head_dim if latent is None else latent.qk_rope_head_dim
    return (layers if tables == "layers" else 2) * sequence_tokens * dim * BF16_BYTES


def head_activation_bytes_per_token(model: Model, layout: Layout, logit_bytes: float) -> float:
    """Final norm, output projection and loss on the last stage, per token of a rank and on each GPU.

        2 x 2 h / t + logit_bytes x V / t, for the model's head and each multi-token-prediction head in turn
        (gathered_logits: logit_bytes x V)

    Counted: logits of one head at a time (prediction heads run one after the other).
    Source: arXiv 2205.05198 section 4.3 (4 s b h (1 + V / h) / t with fp32 logits: logit_bytes = 4).
    """
    inputs = 2 * BF16_BYTES * model.hidden / residual_shards(layout) * (1 + model.mtp_layers)
    return inputs + logit_bytes * logits_per_token(model, layout)


def logits_per_token(model: Model, layout: Layout) -> int:
    """Entries of the vocabulary whose logits a GPU of the last stage holds."""
    return -(-model.vocab // (1 if layout.tensor.gathered_logits else layout.parallel.tp))


def _queries_keys_values(model: Model, layout: Layout) -> float:
    if not parts_of(model).attention:
        return 0.0
    if model.latent_attention is None:
        return BF16_BYTES * layer_shards(model, layout, moe=False)[0].outputs
    return BF16_BYTES * model.heads * (2 * model.query_dim + model.value_dim) / layout.parallel.tp


def _latents(model: Model, layout: Layout) -> float:
    """Low-rank queries, keys and values before and after their norms, and the rotary part of the keys."""
    latent = model.latent_attention
    if latent is None or not parts_of(model).attention:
        return 0.0
    ranks = latent.q_lora_rank + latent.kv_lora_rank
    return BF16_BYTES * (2 * ranks + latent.qk_rope_head_dim) / residual_shards(layout)


def _mlp(model: Model, width: float, gemm_input_bytes: float) -> float:
    """Inputs of the activation function (one, or gate and up) and its output."""
    return width * ((2 if model.gated_mlp else 1) * BF16_BYTES + gemm_input_bytes)


def _experts(model: Model, layout: Layout, gemm_input_bytes: float) -> float:
    spread = layout.parallel.tp / layout.parallel.expert_cut
    dispatched = model.top_k * model.routed_hidden * (gemm_input_bytes + BF16_BYTES) / spread
    dispatched += 2 * BF16_BYTES * model.expert_latent / residual_shards(layout)
    router = 2 * FP32_BYTES * model.experts / residual_shards(layout)
    return (
        dispatched
        + _mlp(model, routed_width(model, moe=True) / layout.parallel.tp, gemm_input_bytes)
        + router
    )
