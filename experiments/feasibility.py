"""Can this model be spread over this cluster in this way? All reasons against it, in words."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.hardware import Cluster
from cost_models.layout import Layout
from cost_models.model import Model
from cost_models.pipeline import schedule_problems
from cost_models.scale_updates import delayed_scales

__all__ = ["layout_notes", "reasons_against"]


def reasons_against(model: Model, cluster: Cluster, layout: Layout, context_tokens: int) -> tuple[str, ...]:
    """Why the layout cannot run, each with its dotted key; empty when nothing speaks against it.

    Counted: divisibility of GPUs, heads, experts and ranks; stages without a layer; learned positions; 8-bit
        support. Memory is not: it depends on the batch's micro-batches and is checked when the step is planned.
    """
    return tuple(
        reason
        for reason in (
            _gpus(cluster, layout),
            _heads(model, layout),
            _stages(model, layout),
            _experts(model, cluster, layout),
            _context_parallel(cluster, layout),
            _precision(cluster, layout),
            _positions(model, context_tokens),
        )
        if reason
    )


def layout_notes(model: Model, cluster: Cluster, layout: Layout) -> tuple[str, ...]:
    """What is legal but deserves a word in the report."""
    notes = []
    node_gpus = cluster.node.gpus
    if layout.tp > node_gpus:
        notes.append(
            f"tp = {layout.tp} is wider than a node ({node_gpus} GPUs): tensor parallelism crosses the network"
        )
    if (model.layers + (2 if layout.embedding_layers else 0)) % (layout.pp * layout.vpp):
        notes.append(
            f"{model.layers} layers do not divide by pp x vpp = {layout.pp} x {layout.vpp}: stages are uneven"
        )
    if layout.tp > model.kv_heads and model.latent_attention is None:
        notes.append(f"tp = {layout.tp} exceeds the {model.kv_heads} key/value heads: they are replicated")
    notes += [f"{what} changes nothing: {why}" for what, why in _without_effect(model, layout)]
    return tuple(notes)


def _without_effect(model: Model, layout: Layout) -> Iterator[tuple[str, str]]:
    """Settings that change nothing because of another one, and why."""
    sharding = f"sharding is {layout.sharding}"
    if layout.shard_ranks is not None and layout.sharding == "none":
        yield f"shard_ranks = {layout.shard_ranks}", sharding
    once_a_step = layout.sharding in ("zero1", "zero2")
    for name, plain in (
        ("owner_broadcasts", False),
        ("gradient_all_reduce", False),
        ("gather_overlap", True),
    ):
        if getattr(layout, name) != plain and not once_a_step:
            yield f"{name} = {str(not plain).lower()}", f"{sharding}, neither zero1 nor zero2"
    if layout.gather_lists and layout.sharding != "zero3":
        yield "gather_lists = true", f"{sharding}, not zero3"
    if layout.shard_copies != "both" and layout.sharding != "zero3":
        yield f"shard_copies = {layout.shard_copies}", f"{sharding}, not zero3"
    if layout.recompute_share and layout.recompute != "selective":
        yield (
            f"recompute_share = {layout.recompute_share:g}",
            f"recompute is {layout.recompute}, not selective",
        )
    for name in ("recompute_products", "recompute_attention", "recompute_collectives"):
        share = getattr(layout, name)
        if share is not None and layout.recompute == "none":
            yield f"{name} = {share:g}", "recompute is none"
    if layout.fp8_scaling != "delayed" and layout.precision != "fp8":
        yield f"fp8_scaling = {layout.fp8_scaling}", f"precision is {layout.precision}, not fp8"
    for name in ("separate_scale_updates", "blocking_maxima"):
        if getattr(layout, name) and not delayed_scales(layout):
            yield (
                f"{name} = true",
                f"it needs fp8 with delayed scales; precision is {layout.precision}, fp8_scaling {layout.fp8_scaling}",
            )
    if layout.expert_imbalance is not None and layout.ep == 1:
        yield (
            f"expert_imbalance = {layout.expert_imbalance:g}",
            "ep is 1, every GPU meets all tokens" if model.experts else f"{model.name} has no experts",
        )
    if layout.expert_padding and (not model.experts or layout.precision == "bf16"):
        yield (
            "expert_padding = true",
            "precision is bf16" if model.experts else f"{model.name} has no experts",
        )
    if layout.tp_batch_first and (layout.tp == 1 or not layout.sequence_parallel):
        yield "tp_batch_first = true", "tp is 1" if layout.tp == 1 else "sequence_parallel is false"
    if layout.deferred_head_gradient and not layout.defers_head_gradient:
        yield "deferred_head_gradient = true", f"pp is {layout.pp}, schedule is {layout.schedule}"
    if layout.cuda_graph_scope != "layers" and not layout.cuda_graphs:
        yield f"cuda_graph_scope = {layout.cuda_graph_scope}", "cuda_graphs is false"
    if model.adapter_targets != "attention" and not model.frozen:
        yield f"adapter_targets = {model.adapter_targets}", "adapter_rank is 0"


def _gpus(cluster: Cluster, layout: Layout) -> str:
    model_gpus = layout.tp * layout.pp
    if cluster.gpus % model_gpus == 0:
        return ""
    return (
        f"gpus: {cluster.gpus} GPUs do not divide by tp x pp = {layout.tp} x {layout.pp} = {model_gpus}; "
        f"use a multiple of {model_gpus}"
    )


def _heads(model: Model, layout: Layout) -> str:
    if model.heads % layout.tp:
        return f"layout.tp: {model.heads} attention heads of {model.name} do not divide by tp = {layout.tp}"
    if model.latent_attention is None and model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        return (
            f"layout.tp: {model.kv_heads} key/value heads of {model.name} can neither be divided by "
            f"nor replicated to tp = {layout.tp}"
        )
    return ""


def _stages(model: Model, layout: Layout) -> str:
    wrong = schedule_problems(layout)
    if wrong:
        return f"layout.schedule: {'; '.join(wrong)}"
    chunks = layout.pp * layout.vpp
    if chunks <= model.layers + (2 if layout.embedding_layers else 0):
        return ""
    return (
        f"layout.pp: pp x vpp = {layout.pp} x {layout.vpp} = {chunks} stages are more than "
        f"the {model.layers} layers of {model.name}"
    )


def _experts(model: Model, cluster: Cluster, layout: Layout) -> str:
    ep, etp = layout.ep, layout.etp
    if ep == 1 and etp is None:
        return ""
    if model.experts == 0:
        if ep == 1 and etp == 1:
            return ""
        key, value = ("ep", ep) if ep > 1 else ("etp", etp)
        return f"layout.{key}: {model.name} has no experts; {key} must be 1, not {value}"
    if model.experts % ep:
        return f"layout.ep: {model.experts} experts of {model.name} do not divide by ep = {ep}"
    if etp is not None and model.ffn_hidden % etp:
        return (
            f"layout.etp: the expert width {model.ffn_hidden} of {model.name} does not divide by etp = {etp}"
        )
    if layout.expert_gpus > layout.tp and layout.order != "tp-dp-pp":
        return f"layout.order: experts across ranks (on {layout.expert_gpus} GPUs, tp = {layout.tp}) need tp-dp-pp"
    if etp is None and ep <= layout.tp:
        return "" if layout.tp % ep == 0 else f"layout.ep: ep = {ep} does not divide tp = {layout.tp}"
    spread = cluster.gpus // layout.pp
    if spread % layout.expert_gpus:
        degrees = f"ep = {ep}" if etp is None else f"ep x etp = {ep} x {etp}"
        return f"layout.ep: the {spread} GPUs of a pipeline stage do not divide by {degrees}"
    return ""


def _context_parallel(cluster: Cluster, layout: Layout) -> str:
    ranks, rest = divmod(cluster.gpus, layout.tp * layout.pp)
    if layout.cp is None or rest or ranks % layout.cp == 0:
        return ""
    return f"layout.cp: {ranks} ranks (gpus / (tp x pp)) do not divide by cp = {layout.cp}"


def _precision(cluster: Cluster, layout: Layout) -> str:
    gpu, name = cluster.gpu, layout.precision
    if name == "bf16":
        return ""
    blocks = name != "fp8"
    if (gpu.fp4_flop_per_s if blocks else gpu.fp8_flop_per_s) is not None:
        return ""
    units = f"tensor cores for {name} (Blackwell has)" if blocks else "FP8 tensor cores"
    return f"layout.precision: {gpu.name} has no {units}; use bf16"


def _positions(model: Model, context_tokens: int) -> str:
    if not model.learned_positions or context_tokens <= model.learned_positions:
        return ""
    return (
        f"data.context: {context_tokens} tokens are more than the {model.learned_positions} learned "
        f"positions of {model.name}"
    )
