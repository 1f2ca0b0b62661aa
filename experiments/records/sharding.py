"""Among how many GPUs parameters are shared and what recomputation keeps, where a record leaves both to its stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from hdpsim.experiments.records.memory import fits
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.seen_columns import RunConfig


def shards_and_policy(config: RunConfig) -> tuple[dict[str, Any], str]:
    """What the notes would say of both, and its words; nothing where the record says it or the stack has one way.

    The smallest group of GPUs that can share the parameters, and of the framework's policies of selective
    recomputation the one that keeps most: the first pair that fits into memory. A larger group costs traffic across
    servers, a policy that keeps less costs work, so nobody takes more of either than memory asks for. Where no pair
    fits, the last: the run exists.
    """
    groups, policies = tuple(_groups(config)), _policies(config)
    if len(groups) * len(policies) == 1:
        return {}, ""
    group, policy = next(
        (pair for pair in product(groups, policies) if fits(_told(config, *pair))),
        (groups[-1], policies[-1]),
    )
    words = [f"parameters sharded over {group} GPUs: fewer cannot hold them"] if group else []
    words += [f"policy {policy}: of those that fit the one that keeps most"] if policy else []
    return ({"notes": _told(config, group, policy).notes}, "; ".join(words)) if words else ({}, "")


def _told(config: RunConfig, group: int, policy: str) -> RunConfig:
    """The record with both in its notes, where rules read them; 0 and an empty name say nothing."""
    clauses = [config.notes] if config.notes else []
    clauses += [f"FSDP axis {group}"] if group else []
    clauses += [f"remat_policy: {policy}"] if policy else []
    return replace(config, notes="; ".join(clauses))


def _groups(config: RunConfig) -> Iterator[int]:
    """A server's GPUs (0: as the rules have it), then twice as many, up to all ranks."""
    yield 0
    said = setting_of(Run(config), "shard_ranks")
    if said is None or said.kind != "inferred" or config.n_gpus is None:
        return
    ranks = config.n_gpus // ((config.tp or 1) * (config.pp or 1) * (config.cp or 1))
    group = 2 * int(str(said.value))
    while group <= ranks:
        if ranks % group == 0:
            yield group
        group *= 2


def _policies(config: RunConfig) -> tuple[str, ...]:
    """Names of the framework's policies from what keeps most; one without a name where nothing is to be chosen."""
    usual = setting_of(Run(config), "usual_policies")
    return usual.value if usual is not None and isinstance(usual.value, tuple) else ("",)
