"""What ranks that share a sequence hold of each other's keys and values, and of attention to them."""

from __future__ import annotations

from hdpsim.cost_models.layer.attention.ulysses_and_gather import AttentionHeads
from hdpsim.cost_models.layer.recomputation import repeated_share
from hdpsim.cost_models.layer.small_kernels import residual_shards
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.activations import BF16_BYTES, FP32_BYTES, layer_activations
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.transformer.layers import parts_of
from hdpsim.cost_models.transformer.model import Model


def grows_with_groups(layout: Layout, overheads: MemoryOverheads) -> bool:
    """Whether a token takes more memory the more ranks share its sequence."""
    kept = gathers_once(layout) or (overheads.ring_steps_kept and layout.context.kind == "ring")
    return kept and layout.parallel.cp != 1


def gathers_once(layout: Layout) -> bool:
    """Whether keys and values stay as a group gathered them; where the whole layer is computed again they do not."""
    context = layout.context
    return context.keep_gathered and context.kind == "all-gather" and layout.recompute.kind != "full"


def gathered_bytes_per_token(model: Model, layout: Layout) -> float:
    """Keys and values of one other rank that a layer keeps for its backward, per token of a rank: 2 B x kv width.

    Times the other ranks of a group: as much as the whole sequence has.  Counted: on the GPU, whatever is offloaded.
    Source: hao-ai-lab/distca, baseline/wlbllm_original/wlbllm/per_doc_cp_attn.py (save_for_backward of k_global and
    v_global; its copies for either chunk are not counted).
    """
    return BF16_BYTES * AttentionHeads.of(model, layout).kv_width if gathers_once(layout) else 0.0


def ring_bytes_per_token(model: Model, layout: Layout) -> float:
    """Buffers of a ring of ranks that share a sequence: K and V in flight, twice, and their fp32 gradients.

        2 x 2 x g d x (2 B + 4 B) / t per token of a rank

    Source: zhuzilin/ring-flash-attention (double buffer; gradients of K and V travel in fp32).
    """
    if model.latent_attention is not None:
        latent = model.latent_attention
        per_head = 2 * latent.v_head_dim + latent.qk_rope_head_dim
        return 2 * model.heads * per_head * (BF16_BYTES + FP32_BYTES) / layout.parallel.tp
    kv_heads = max(1.0, model.kv_heads / layout.parallel.tp)
    return 2 * 2 * kv_heads * model.head_dim * (BF16_BYTES + FP32_BYTES)


def ring_step_bytes_per_token(model: Model, layout: Layout) -> float:
    """What a ring's forward holds of one of its steps until the last has ended, per token of a rank.

        2 B x 2 g d / t (keys and values as received) + 2 B x a v / t (the step's output) + 4 B x a / t (log-sum-exp)

    Of a group of d ranks d times as much: the outputs are corrected when all log-sum-exps are known. Latent
    attention sends keys and values of all heads.
    Counted: the last rank of a causal ring, whose queries all attend in every step (of the others, later steps
    have half of the queries); it is the fullest.  Ignored: copies of half the keys for kernels that want them in one
    piece; log-sum-exps in 64 bits (2024); steps in 8 bits.
    Source: NVIDIA/TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py,
    AttnFuncWithCPAndKVP2P.forward (p2p_comm_buffers, out_per_step, softmax_lse_per_step); pull requests 951, 1208 and
    3411 of 2024 to 2026, which would free the buffers.
    """
    heads = AttentionHeads.of(model, layout)
    per_head = heads.query_dim + heads.value_dim  # of one key and one value
    output = heads.output_width * BF16_BYTES + heads.heads * FP32_BYTES
    return BF16_BYTES * heads.kv_heads * per_head + output


def bytes_at_attention(model: Model, layout: Layout, kept: float, *, moe: bool) -> float:
    """What a layer holds while its attention runs forward beyond the *kept* bytes, per token of a rank; often negative.

        layer's input + input, queries, keys, values (latents) and output of attention - kept

    When the backward computes attention again, the gradient of the layer's output is there, too: 2 h / t.
    Source: derivation.
    """
    tensors = layer_activations(model, layout, moe=moe)
    halves = 1 if model.parallel_block else parts_of(model).blocks
    stream = BF16_BYTES * model.hidden / residual_shards(layout)
    attention = tensors.queries_keys_values + tensors.latents + tensors.attention_output
    repeated_bytes = stream if repeated_share(layout, "attention") else 0.0
    return stream + tensors.linear_inputs / halves + attention + repeated_bytes - kept
