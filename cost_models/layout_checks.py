"""Can this model be spread over these GPUs in this way? All reasons against it, in words: the one place that decides.

A scenario asks before anything is simulated (`reasons_against`), everything that prices or counts parameters asks again
(`check_layout`): both read the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.pipeline_cut import stages_of
from hdpsim.cost_models.layout.switches import Parallel
from hdpsim.cost_models.transformer.layers import LayerKind, kinds_of
from hdpsim.cost_models.transformer.model import Model, dense_width
from hdpsim.cost_models.transformer.stages import schedule_problems
from hdpsim.errors import InfeasibleError
from hdpsim.quoting import counted

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Cluster, Gpu


def reasons_against(model: Model, cluster: Cluster, layout: Layout, context_tokens: int) -> tuple[str, ...]:
    """Why the layout cannot run, each with its dotted key; empty when nothing speaks against it.

    Counted: what check_layout counts; GPUs that do not divide; learned positions; 8-bit support. Memory is
        not: it depends on the batch's micro-batches and is checked when the step is planned; nor is what single
        strategies refuse.
    """
    tp, pp = layout.parallel.tp, layout.parallel.pp
    ranks, rest = divmod(cluster.gpus, tp * pp)
    reasons = list(_reasons(model, layout, None if rest else ranks))
    if rest:
        divide = f"{cluster.gpus} GPUs do not divide by tp x pp = {tp} x {pp} = {tp * pp}"
        reasons.insert(0, f"gpus: {divide}; use a multiple of {tp * pp}")
    if len(cluster.kinds) > 1:
        reasons += _mixed(model, cluster, layout, divides=not rest)
    precision = (_precision(kind.gpu, layout) for kind in cluster.kinds)
    return tuple(filter(None, (*reasons, *precision, _positions(model, context_tokens))))


def check_layout(model: Model, layout: Layout, ranks: int | None = None) -> None:
    """Raise InfeasibleError, with every reason, when the model cannot be cut this way.

    Counted: heads, widths, layers, experts; where *ranks* is known, what has to divide them.
    """
    reasons = _reasons(model, layout, ranks)
    if reasons:
        raise InfeasibleError(f"{model.name}: " + "; ".join(reasons))


def rank_kinds(cluster: Cluster, parallel: Parallel) -> Ints:
    """[ranks]: the kind of node (its place in `cluster.kinds`) that the GPUs of every rank sit in.

    Raises:
        InfeasibleError: a rank would lie on nodes of several kinds.
    """
    ranks = parallel.ranks(cluster.gpus)
    if len(cluster.kinds) == 1:
        return np.zeros(ranks, dtype=np.int64)
    shape = (
        (parallel.pp, ranks, parallel.tp) if parallel.order == "tp-dp-pp" else (1, ranks, parallel.model_gpus)
    )
    kinds = cluster.gpu_kinds.reshape(shape).swapaxes(0, 1).reshape(ranks, parallel.model_gpus)
    torn = np.flatnonzero((kinds != kinds[:, :1]).any(axis=1))
    if len(torn):
        advice = "use layout.order = tp-pp-dp, which keeps its stages together, or other numbers of nodes"
        if parallel.pp == 1 or parallel.order != "tp-dp-pp":
            advice = "use numbers of nodes of each kind whose GPUs tp x pp divides"
        raise InfeasibleError(
            f"cluster.nodes: the {parallel.model_gpus} GPUs of a rank (tp x pp = {parallel.tp} x {parallel.pp}) must "
            f"be of one kind of node; {len(torn)} of {ranks} ranks, the first number {int(torn[0])}, would lie on "
            f"several: {advice}"
        )
    return np.ascontiguousarray(kinds[:, 0])


def check_mixed(model: Model, cluster: Cluster, layout: Layout) -> None:
    """Raise InfeasibleError, with every reason, for a layout that does not work on nodes of several kinds."""
    reasons = tuple(_mixed(model, cluster, layout, divides=True))
    if reasons:
        raise InfeasibleError(f"cluster {cluster.name}: " + "; ".join(reasons))


def _mixed(model: Model, cluster: Cluster, layout: Layout, *, divides: bool) -> Iterator[str]:
    """What does not work, or is not modelled, on nodes of several kinds."""
    if divides:
        try:
            rank_kinds(cluster, layout.parallel)
        except InfeasibleError as error:
            yield str(error)
    parallel, schedule = layout.parallel, layout.pipeline.schedule
    not_modelled = f"is not modelled on nodes of several kinds ({cluster.gpu_words})"
    if schedule not in ("1f1b", "interleaved"):
        yield f"layout.schedule: {schedule} {not_modelled}; use 1f1b or interleaved"
    if layout.sharding.kind == "zero3":
        yield f"layout.sharding: zero3, whose ranks meet in every layer, {not_modelled}; use zero1"
    if model.experts and parallel.expert_gpus > parallel.tp:
        yield f"layout.ep: an expert group across ranks {not_modelled}; ep x etp must not exceed tp"


def layer_units(model: Model, layout: Layout) -> int:
    """What is dealt to virtual stages: layers, and where they count as such embedding, prediction layers and head."""
    more = 2 + model.mtp_layers
    pp, pipeline = layout.parallel.pp, layout.pipeline
    room = (model.layers + more) // (pp * pipeline.vpp) > model.mtp_layers
    return model.layers + ((more if room else 2) if pipeline.embedding_layers and pp > 1 else 0)


def layout_notes(model: Model, cluster: Cluster, layout: Layout) -> tuple[str, ...]:
    """What is legal but deserves a word in the report."""
    notes = []
    tp, pp, vpp = layout.parallel.tp, layout.parallel.pp, layout.pipeline.vpp
    node_gpus = cluster.node_gpus
    if tp > node_gpus:
        wider = f"tp = {tp} is wider than a node ({node_gpus} GPUs)"
        notes.append(f"{wider}: tensor parallelism crosses the network")
    if layout.pipeline.cut is None and layer_units(model, layout) % (pp * vpp):
        counted = layout.changed(embedding_layers=True)
        uneven = layer_units(model, counted) % (pp * vpp)
        more = "" if uneven else "; with layout.embedding_layers they divide"
        cuts = f"pp x vpp = {pp} x {vpp}"
        notes.append(f"{model.layers} layers do not divide by {cuts}: stages are uneven{more}")
    if tp > model.kv_heads and model.latent_attention is None:
        notes.append(f"tp = {tp} exceeds the {model.kv_heads} key/value heads: they are replicated")
    return tuple(notes)


@lru_cache(maxsize=4096)
def _reasons(model: Model, layout: Layout, ranks: int | None) -> tuple[str, ...]:
    return (
        *_widths(model, layout.parallel),
        *_hybrid(model, layout),
        *_stages(model, layout),
        *_experts(model, layout.parallel, ranks),
        *(() if ranks is None else _ranks(model, layout, ranks)),
    )


def _widths(model: Model, parallel: Parallel) -> Iterator[str]:
    """What tensor parallelism cuts must divide."""
    tp = parallel.tp
    kinds = kinds_of(model)
    widths = {}
    if any(kind.attends for kind in kinds):
        widths[f"{model.heads} attention heads of {model.name} do"] = model.heads
    if LayerKind.DENSE in kinds or LayerKind.MLP in kinds:
        widths[f"the MLP width {dense_width(model)} of {model.name} does"] = dense_width(model)
    if model.shared_expert_ffn:
        what = f"the shared expert width {model.shared_expert_ffn} of {model.name} does"
        widths[what] = model.shared_expert_ffn
    if model.mamba is not None:
        widths[f"{model.mamba.heads} Mamba-2 heads of {model.name} do"] = model.mamba.heads
        widths[f"{model.mamba.groups} groups of Mamba-2 heads of {model.name} do"] = model.mamba.groups
    for what, width in widths.items():
        if width % tp:
            yield f"layout.tp: {what} not divide by tp = {tp}"
    if model.latent_attention is None and model.kv_heads % tp and tp % model.kv_heads:
        yield (
            f"layout.tp: {model.kv_heads} key/value heads of {model.name} can neither be divided by "
            f"nor replicated to tp = {tp}"
        )


def uneven_scan(model: Model, layout: Layout, cp: int) -> str:
    """Why a mesh cannot spread the heads of Mamba-2 layers over *cp* ranks; empty where it can.

    Source: Megatron-Core, ssm/mamba_context_parallel.py.
    """
    if model.mamba is None or cp == 1:
        return ""
    tp = layout.parallel.tp
    heads, groups = model.mamba.heads // tp, max(1, model.mamba.groups // tp)
    if heads % cp:
        return f"layout.cp: the {heads} Mamba-2 heads of a GPU of {model.name} do not divide by cp = {cp}"
    if groups % cp and cp % groups:
        return (
            f"layout.cp: the {groups} groups of Mamba-2 heads of a GPU of {model.name} can neither be divided by "
            f"nor replicated to cp = {cp}"
        )
    return ""


def _hybrid(model: Model, layout: Layout) -> Iterator[str]:
    """What does not work, or is not modelled, with Mamba-2 layers or with layers of one part each."""
    parallel = layout.parallel
    if parallel.cp is not None:
        yield from filter(None, [uneven_scan(model, layout, parallel.cp)])
    kinds = kinds_of(model)
    if layout.recompute.layers == "moe" and not any(kind.has_experts for kind in kinds):
        yield f"layout.recompute_layers: {model.name} has no layers with experts"
    if not model.layer_pattern:
        return
    why = f"is not modelled for hybrids, and {model.name} is one (layer_pattern)"
    if layout.experts.overlap and parallel.ep > 1:
        yield f"layout.ep_overlap: {why}"
    if layout.context.kind == "disaggregated":
        yield f"layout.cp_kind: disaggregated {why}"


def _stages(model: Model, layout: Layout) -> Iterator[str]:
    """Every virtual stage needs a layer, and schedules have wishes of their own."""
    pp, vpp = layout.parallel.pp, layout.pipeline.vpp
    for wrong in schedule_problems(layout):
        yield f"layout.schedule: {wrong}"
    if layout.defers_head_gradient and layout.pipeline.call is not None:
        yield "layout.deferred_head_gradient: it waits for the one drain of a step (schedule_micro_batches: all)"
    if vpp > 1 and pp == 1:
        yield f"layout.vpp: vpp = {vpp} needs a pipeline (pp > 1)"
    chunks = pp * vpp
    if pp > 1 and layout.pipeline.cut is not None:
        yield from _cut_by_hand(model, layout.pipeline.cut, chunks)
        return
    if layer_units(model, layout) < chunks:
        counted = ", embedding and head" if layout.pipeline.embedding_layers else ""
        yield (
            f"layout.pp: pp x vpp = {pp} x {vpp} = {chunks} stages are more than "
            f"the {model.layers} layers{counted} of {model.name}"
        )


def _cut_by_hand(model: Model, cut: str, chunks: int) -> Iterator[str]:
    """A cut must have as many stages as there are, and the parts of this model.

    One that says nothing of multi-token prediction leaves it with the output projection.
    """
    stages = stages_of(cut)
    if len(stages) != chunks:
        yield f"layout.pipeline_layout: {cut} has {counted(len(stages), 'stage')}, pp x vpp are {chunks}"
    layers, predicted = (sum(getattr(one, name) for one in stages) for name in ("layers", "mtp_layers"))
    for letter, which, held, wanted in (
        ("t", "", layers, model.layers),
        ("m", " of multi-token prediction", predicted, model.mtp_layers),
    ):
        if held != wanted and (held or letter == "t"):
            has = f"{cut} has {counted(held, 'layer')}{which} ({letter})"
            yield f"layout.pipeline_layout: {has}, {model.name} has {wanted}"


def _experts(model: Model, parallel: Parallel, ranks: int | None) -> Iterator[str]:
    """Experts are dealt to ep GPUs and cut over etp, or over what ep leaves of tp."""
    tp, ep, etp, gpus = parallel.tp, parallel.ep, parallel.etp, parallel.expert_gpus
    if not model.experts:
        for key, value in (("ep", ep), ("etp", etp or 1)):
            if value > 1:
                yield f"layout.{key}: {model.name} has no experts; {key} must be 1, not {value}"
        return
    if model.experts % ep:
        yield f"layout.ep: {model.experts} experts of {model.name} do not divide by ep = {ep}"
    width = f"the expert width {model.ffn_hidden} of {model.name} does not divide by"
    if etp is not None:
        if model.ffn_hidden % etp:
            yield f"layout.etp: {width} etp = {etp}"
    elif max(tp, ep) % min(tp, ep):
        yield f"layout.ep: of ep = {ep} and tp = {tp} one must divide the other"
    elif ep < tp and model.ffn_hidden % (tp // ep):
        yield f"layout.ep: {width} tp / ep = {tp // ep}"
    if gpus > tp and parallel.pp > 1 and parallel.order != "tp-dp-pp":
        yield f"layout.order: experts across ranks (on {gpus} GPUs, tp = {tp}) need tp-dp-pp"
    if ranks is not None and ranks * tp % gpus:
        degrees = f"ep = {ep}" if etp is None else f"ep x etp = {ep} x {etp}"
        yield f"layout.ep: the {ranks * tp} GPUs of a pipeline stage do not divide by {degrees}"


def _ranks(model: Model, layout: Layout, ranks: int) -> Iterator[str]:
    """What is dealt to ranks must divide them."""
    parallel = layout.parallel
    if parallel.cp is not None and ranks % parallel.cp:
        yield f"layout.cp: {ranks} ranks (gpus / (tp x pp)) do not divide by cp = {parallel.cp}"
    within = layout.sharding.ranks
    if within is None or layout.sharding.kind == "none":
        return
    copies = {"ranks": ranks}
    if model.experts and ranks * parallel.tp % parallel.expert_gpus == 0:
        copies["copies of an expert"] = ranks * parallel.tp // parallel.expert_gpus
    for what, members in copies.items():
        if within < members and members % within:
            yield f"layout.shard_ranks: {members} {what} do not divide by shard_ranks = {within}"


def _precision(gpu: Gpu, layout: Layout) -> str:
    name = layout.precision.products
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
