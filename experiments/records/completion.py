"""Cells that a record leaves empty and that follow from others: the shape of a known model, degrees, the batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from hdpsim.experiments.records.memory import fits
from hdpsim.experiments.software.facts import Run, interleaves
from hdpsim.experiments.software.model_of_run import named_model
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import SHAPE, RematPolicy, RunConfig

_EXPERTS = ("n_experts", "topk", "shared_expert_ffn")
_BATCH_OF_A_RANK = re.compile(r"(?i)(?:local batch(?: size)?|batch size per DP(?: rank)?) (\d+)\b")
MOST_STAGES = 64
USUAL_HEAD_DIM = 128
MULTIPLE = 256  # Llama: 2/3 of 4 x hidden, rounded up to a multiple of 256 (arXiv 2302.13971)


def completed(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """The record with empty cells filled in where something sensible follows, and the words of every assumption.

    Filled in: the shape of the catalog's model of that name where cells of it are empty and none contradicts it; sizes
    that follow from others; as many key and value heads as heads; degrees that the others leave no choice, else the
    fewest GPUs that hold a replica; a batch of the size that the notes give a rank, else one micro-batch on each; full
    recomputation where the run would not fit without; no chunks of layers where assumed ones would not fit; the fewest
    servers that hold a set of shards where it says only that groups of GPUs share them; of the framework's policies of
    selective recomputation the one that keeps most and fits.
    """
    said: list[str] = []
    for fill in (_shape, _sizes, _heads, _degrees, _replica, _batch, _recompute, _chunks, _shards_and_policy):
        more, words = fill(config)
        if more:
            config = replace(config, **more)
            said.append(words)
    return config, tuple(said)


Filled = tuple[dict[str, Any], str]
NOTHING: Filled = ({}, "")


def _shape(config: RunConfig) -> Filled:
    known = named_model(config)
    if known is None:
        return NOTHING
    pairs = [(column, getattr(config, column), getattr(known, field)) for column, field in SHAPE.items()]
    if any(stated is not None and stated != value for column, stated, value in pairs if column != "layers"):
        return NOTHING
    more = {
        column: value
        for column, stated, value in pairs
        if stated is None and (value or column not in _EXPERTS)
    }
    if known.latent_attention is not None:  # its heads are told apart by having no column
        more.pop("head_dim", None)
    elif config.kv_heads is None:
        more["kv_heads"] = known.kv_heads
    return more, f"shape of {known.name}"


def _sizes(config: RunConfig) -> Filled:
    """Heads, their width and the model's: two of them give the third; the usual MLP of GPT or of Llama."""
    more: dict[str, Any] = {}
    hidden, heads = config.hidden, config.heads
    if hidden is None and heads is not None and config.head_dim is not None:
        more["hidden"] = hidden = heads * config.head_dim
    if hidden is None:
        return NOTHING
    if heads is None:
        more["heads"] = max(1, hidden // (config.head_dim or USUAL_HEAD_DIM))
    if config.ffn_hidden is None and not config.n_experts:
        gated = config.gated_mlp is not False
        more["ffn_hidden"] = -(-8 * hidden // 3 // MULTIPLE) * MULTIPLE if gated else 4 * hidden
    return more, ", ".join(f"{column} {value}" for column, value in more.items())


def _heads(config: RunConfig) -> Filled:
    known = named_model(config)
    if config.kv_heads is not None or config.heads is None:
        return NOTHING
    same = known is not None and (known.hidden, known.heads) == (config.hidden, config.heads)
    if same and known is not None and known.latent_attention is not None:
        return NOTHING
    if same and known is not None:
        return {"kv_heads": known.kv_heads}, f"key and value heads of {known.name}"
    return {"kv_heads": config.heads}, "as many key and value heads as heads"


def _degrees(config: RunConfig) -> Filled:
    """The one degree that the record does not state, from the others."""
    empty = [column for column in ("tp", "pp", "cp") if getattr(config, column) is None]
    if config.n_gpus is None or config.dp is None or not empty:
        return NOTHING
    stated = config.replica_gpus * config.dp
    left = config.n_gpus // stated
    if config.n_gpus % stated or (len(empty) > 1 and left > 1):
        return NOTHING  # contradicts itself, or leaves a choice
    return dict.fromkeys(empty, left), f"{', '.join(empty)} = {left} (what the other degrees leave)"


def _replica(config: RunConfig) -> Filled:
    """The smallest tp, up to a server, and then the smallest pp with which the replica fits into memory."""
    if (config.tp is not None and config.pp is not None) or config.n_gpus is None:
        return NOTHING
    widest = config.tp or min(config.gpus_per_node or 8, config.heads or 8)
    widths = [config.tp] if config.tp else [2**n for n in range(widest.bit_length()) if 2**n <= widest]
    stages = [config.pp] if config.pp else [1, *(n for n in range(2, MOST_STAGES + 1) if _divides(config, n))]
    tried = [(tp, stages[0]) for tp in widths] + [(widths[-1], pp) for pp in stages[1:]]
    for tp, pp in tried:
        degrees: dict[str, Any] = {"tp": tp, "pp": pp, "dp": None}
        filled = _batch(replace(config, **degrees))[0]
        candidate = replace(config, **{**degrees, **filled})
        if fits(candidate):
            return degrees, f"tp {tp}, pp {pp}: the fewest GPUs that hold a replica"
    return NOTHING


def _divides(config: RunConfig, stages: int) -> bool:
    """Whether stages come out even, embedding and head perhaps counted as layers."""
    layers = config.layers or 1
    return not (layers % stages and (layers + 2) % stages) and not (config.n_gpus or 1) % stages


def _batch(config: RunConfig) -> Filled:
    if config.global_batch_seqs is not None or config.grad_accum is not None:
        return NOTHING
    stated = _BATCH_OF_A_RANK.search(config.notes)
    if stated is None:
        return {"grad_accum": 1}, "one micro-batch a step on every rank"
    ranks = max(1, (config.n_gpus or 1) // config.replica_gpus)
    return {"global_batch_seqs": int(stated[1]) * ranks}, f"{stated[1]} sequences a step on every rank"


def _recompute(config: RunConfig) -> Filled:
    """Full recomputation where nothing is said and a run, which exists, would not fit without.

    Recipes of experts repeat single modules of a layer, which none of the columns holds; PyTorch's FSDP wraps layers.
    """
    if config.recompute is not None:
        return NOTHING
    said = setting_of(Run(config), "recompute")
    if said is not None and said.stack == "record":
        return {"recompute": said.value}, said.words
    if config.n_experts and "FSDP" not in config.framework:
        return NOTHING
    if fits(config) is not False or not fits(replace(config, recompute="full")):
        return NOTHING
    return {"recompute": "full"}, "full recomputation: without it the run would not fit"


def _chunks(config: RunConfig) -> Filled:
    """No chunks of layers on a stage where none are printed and the usual ones do not fit: they hold more in flight."""
    if config.vpp is not None or dict(config.switches).get("schedule") or not interleaves(Run(config)):
        return NOTHING
    if fits(config) is not False:
        return NOTHING
    return {"vpp": 1}, "vpp 1: chunks would not fit into memory"


def _shards_and_policy(config: RunConfig) -> Filled:
    """Among how many GPUs parameters are shared and what recomputation keeps, as notes would say it.

    Nothing where the record says it or the stack has one way.

    The smallest group of GPUs that can share the parameters, and of the framework's policies of selective
    recomputation the one that keeps most: the first pair that fits into memory. A larger group costs traffic across
    servers, a policy that keeps less costs work, so nobody takes more of either than memory asks for. Where no pair
    fits, the last: the run exists.
    """
    groups, policies = tuple(_groups(config)), _policies(config)
    if len(groups) * len(policies) == 1:
        return NOTHING
    group, policy = next(
        (pair for pair in product(groups, policies) if fits(_with_notes(config, *pair))),
        (groups[-1], policies[-1]),
    )
    words = [f"parameters sharded over {group} GPUs: fewer cannot hold them"] if group else []
    words += [f"policy {policy}: of those that fit the one that keeps most"] if policy else []
    chosen = _with_notes(config, group, policy)
    return (
        ({"notes": chosen.notes, "remat_policy": chosen.remat_policy}, "; ".join(words)) if words else NOTHING
    )


def _with_notes(config: RunConfig, group: int, policy: RematPolicy | None) -> RunConfig:
    """The record with the group in its notes, where rules read it, and the policy; 0 and None say nothing."""
    clauses = [config.notes] if config.notes else []
    clauses += [f"FSDP axis {group}"] if group else []
    return replace(config, notes="; ".join(clauses), remat_policy=policy or config.remat_policy)


def _groups(config: RunConfig) -> Iterator[int]:
    """A server's GPUs (0: as the rules have it), then twice as many, up to all ranks."""
    yield 0
    said = setting_of(Run(config), "shard_ranks")
    if said is None or said.kind != "inferred" or config.n_gpus is None:
        return
    ranks = config.n_gpus // config.replica_gpus
    group = 2 * int(str(said.value))
    while group <= ranks:
        if ranks % group == 0:
            yield group
        group *= 2


def _policies(config: RunConfig) -> tuple[RematPolicy | None, ...]:
    """Names of the framework's policies from what keeps most; None alone where nothing is to be chosen."""
    usual = setting_of(Run(config), "usual_policies")
    return usual.value if usual is not None and isinstance(usual.value, tuple) else (None,)
