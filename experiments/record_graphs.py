"""What a record says of CUDA graphs, and of what recipes that it does not print set with them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_models import catalog
from experiments.records import RunConfig
from hdpsim.errors import CatalogError

__all__ = [
    "cuda_graphs",
    "deferred_head_gradient",
    "expert_dispatch",
    "expert_overlap",
    "graph_scope",
    "graphed_experts",
    "padding_dispatch",
    "tokens_dropped",
]

Finding = tuple[object, str] | None

_STATED = re.compile(r"cuda_graph=(?!None|none)|_cg(?:_|\b)|CUDA graph")
_WHOLE = re.compile(r"cuda_graph=(?:full_iteration|local)")
_PRINTED = re.compile(r"perf recipe \w+|cuda_graph=")
_RELEASE = re.compile(r"Megatron-Bridge (\d+)\.(\d+)")
_ROUND = re.compile(r"MLPerf v(\d+)\.(\d+)")
_WHOLE_SINCE_ROUND = (5, 1)
_DEFERS_SINCE_ROUND = (4, 1)
_WORDS = "(the release's other recipes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What Megatron-Bridge's recipes of mixture-of-experts models on Blackwell set since a release."""

    since: tuple[int, int]
    whole_iteration: bool
    fused_dispatch: bool
    overlap: bool
    racks: bool
    """NVL72 racks only; else any Blackwell, with tokens dropped (shapes are fixed then)."""


# Megatron-Bridge, scripts/performance/configs (deepseek, gpt_oss, qwen): v0.1 (25.09) cuda_graph_impl = local with the
# scope full_iteration where tokens are dropped; v0.2 (25.11) moe_flex_dispatcher_backend = hybridep and
# cuda_graph_impl = transformer_engine; v0.5 (26.06) full_iteration and moe_a2a_overlap = True.
_RECIPES = (
    _Recipe(since=(26, 6), whole_iteration=True, fused_dispatch=True, overlap=True, racks=True),
    _Recipe(since=(25, 11), whole_iteration=False, fused_dispatch=True, overlap=False, racks=True),
    _Recipe(since=(25, 9), whole_iteration=True, fused_dispatch=False, overlap=False, racks=False),
)


def _unprinted(config: RunConfig) -> _Recipe | None:
    """The recipe of a record that prints none of it: of its release, for mixtures of experts on Blackwell."""
    release = _RELEASE.search(config.framework)
    if not config.n_experts or release is None or _PRINTED.search(config.notes):
        return None
    number = (int(release[1]), int(release[2]))
    recipe = next((recipe for recipe in _RECIPES if number >= recipe.since), None)
    if recipe is None:
        return None
    try:
        gpu = catalog.gpu(config.gpu)
    except CatalogError:
        return None
    fits = (
        gpu.name.startswith("gb")
        if recipe.racks
        else gpu.calibration == "blackwell" and tokens_dropped(config)
    )
    return recipe if fits else None


def tokens_dropped(config: RunConfig) -> bool:
    """Tokens beyond the experts' capacity are dropped, missing ones padded: shapes are fixed."""
    return re.search(r"capacity factor|token.drop(?!less)", config.notes) is not None


def _benchmark_graphs(config: RunConfig) -> bool:
    """Rounds since MLPerf v5.1 replay Llama's pretraining, and since v5.0 LoRA, from graphs.

    Source: training_results_v5.1, NVIDIA, llama31_8b (every config reads config_common_cg.sh); NVIDIA, CUDA Graph Best
    Practice for PyTorch, examples Llama 3.1 405B and Llama 2 70B LoRA.
    """
    played = _ROUND.search(config.framework)
    if played is None:
        return False
    number = (int(played[1]), int(played[2]))
    if config.task == "lora":
        return number >= (5, 0)
    return number >= _WHOLE_SINCE_ROUND and re.search(r"config \w+_8b", config.notes) is not None


def cuda_graphs(config: RunConfig) -> Finding:
    """Whether kernels are replayed from graphs: as stated, as the benchmark does, as the release's recipes do."""
    if _STATED.search(config.notes):
        return True, ""
    if _benchmark_graphs(config):
        return True, "CUDA graphs (the benchmark's configurations)"
    return (True, f"CUDA graphs {_WORDS}") if _unprinted(config) else None


def graph_scope(config: RunConfig) -> Finding:
    """One graph for all passes of a step: as stated, in MLPerf's rounds since v5.1 (but LoRA), in late recipes.

    Source: NVIDIA, CUDA Graph Best Practice for PyTorch, example Llama 3.1 405B (MLPerf Training v5.1:
    FULL_CUDA_GRAPH=1); Megatron-Bridge (cuda_graph_impl = local with the scope full_iteration).
    """
    if _WHOLE.search(config.notes):
        return "iteration", ""
    recipe = _unprinted(config)
    if recipe is not None:
        return ("iteration", "") if recipe.whole_iteration else None
    played = _ROUND.search(config.framework)
    whole = played is not None and (int(played[1]), int(played[2])) >= _WHOLE_SINCE_ROUND
    return ("iteration", "") if whole and config.task != "lora" and cuda_graphs(config) else None


def deferred_head_gradient(config: RunConfig) -> Finding:
    """NVIDIA's submissions to MLPerf put off weight gradients of the output projection since round v4.1.

    Source: mlcommons/training_results_v4.1 (gpt3, config_DGXH100_*_mbs2.sh) and v5.0 (llama31_405b, config_common.sh):
    DEFER_EMBEDDING_WGRAD_COMPUTE=True; v4.0's configurations do not have it.
    """
    played = _ROUND.search(config.framework)
    since = played is not None and (int(played[1]), int(played[2])) >= _DEFERS_SINCE_ROUND
    if not since or (config.pp or 1) == 1 or config.task == "lora":
        return None
    return (
        True,
        "weight gradients of the output projection while the pipeline drains (the benchmark's configurations)",
    )


def graphed_experts(config: RunConfig) -> Finding:
    """Graphs of Transformer Engine hold layers of fixed shapes: no experts that take whatever is routed to them."""
    recipe = _unprinted(config)
    partial_graphs = re.search(r"cuda_graph=transformer_engine", config.notes) or (
        recipe is not None and not recipe.whole_iteration
    )
    return (False, "") if config.n_experts and partial_graphs and not tokens_dropped(config) else None


def expert_dispatch(config: RunConfig) -> Finding:
    """Fused dispatch (DeepEP, Hybrid-EP): as stated, or as the release's recipes have it."""
    if re.search(r"(?i)\b(?:deepep|hybridep)\b", config.notes):
        return "fused", ""
    recipe = _unprinted(config)
    return ("fused", f"fused dispatch {_WORDS}") if recipe and recipe.fused_dispatch else None


def padding_dispatch(config: RunConfig) -> bool:
    """Whether tokens are sent by HybridEP, which pads every expert's rows on the way: stated, or in the recipes."""
    recipe = _unprinted(config)
    stated = re.search(r"(?i)dispatcher[ =]hybridep", config.notes) is not None
    return stated or (recipe is not None and recipe.fused_dispatch)


def expert_overlap(config: RunConfig) -> Finding:
    """All-to-alls beside another micro-batch's compute: as stated, or as the release's recipes have it."""
    if re.search(r"a2a overlap on|moe_a2a_overlap=True", config.notes):
        return True, ""
    recipe = _unprinted(config)
    return (True, f"all-to-alls overlapped {_WORDS}") if recipe and recipe.overlap else None
