"""What a record says of its pipeline: chunks of layers on each stage."""

from __future__ import annotations

import re

from experiments.record_frameworks import SPLIT_SCHEDULE, is_nemo
from experiments.records import RunConfig

__all__ = ["interleaves", "virtual_stages"]

INTERLEAVED_YEAR = 2021  # the schedule's own: arXiv 2104.04473
MICRO_BATCHES_PER_STAGE = 2  # (p - 1) / (m + p - 1) is then a third
_INTERLEAVED = re.compile(r"1F1B-I|(?i:(?<!not )(?<!non-)\binterleav)")
_NAMED = re.compile(rf"1F1B|GPipe|(?i:not interleaved|no interleav)|{SPLIT_SCHEDULE.pattern}")
_V_SHAPED = re.compile(r"\b(?:ZB-?V(?:ZeroBubble)?|DualPipeV)\b")
_OTHER_RELEASES = re.compile(r"releases of the same recipe print VP (\d+)")


def interleaves(config: RunConfig) -> bool:
    """Whether stages hold several chunks; where nothing is printed, NeMo's pipelines of dense models do.

    So do pipelines that could not fill their stages otherwise (see _short), and Megatron-Core's of mixture-of-experts
    models: its guide to them interleaves whatever has stages.
    Source: NeMo-Framework-Launcher, conf/training (llama/llama2_13b, llama2_70b, nemotron/nemotron4_340b), and
    dgxc-benchmarking (llama3/finetuning): every recipe of a dense model with stages sets
    virtual_pipeline_model_parallel_size. Megatron-LM of 2024 and 2025, megatron/core/transformer/moe/README.md
    ("Enable Communication Overlap"; reference mappings: 32 layers on PP 4 x VP 8, 56 layers on PP 8 x VP 7).
    """
    if (config.pp or 1) == 1:
        return False
    if config.vpp is not None:
        return config.vpp > 1
    text = f"{config.framework} {config.notes}"
    if _INTERLEAVED.search(text) or _OTHER_RELEASES.search(config.notes):
        return True
    guided = config.framework.startswith("Megatron-Core") if config.n_experts else is_nemo(config)
    return guided or (not _NAMED.search(text) and _short(config))


def _short(config: RunConfig) -> bool:
    """Whether so few sequences pass a pipeline that without chunks it would idle for a third of the step and more.

    Runs since 2022 are taken not to: Llama 3, arXiv 2407.21783, section 3.3.2 (16 stages, 16 to 32 sequences, chunks).
    """
    if config.year is None or config.year <= INTERLEAVED_YEAR:
        return False
    if not config.global_batch_seqs or not config.n_gpus:
        return False
    pp = config.pp or 1
    ranks = max(1, config.n_gpus // ((config.tp or 1) * pp * (config.cp or 1)))
    return config.global_batch_seqs / ranks / (config.micro_batch or 1) <= MICRO_BATCHES_PER_STAGE * pp


def virtual_stages(config: RunConfig, dealt_layers: int) -> tuple[int, str]:
    """Chunks of a stage and the words of an assumption.

    As printed, by this release or another of the same recipe; where only interleaving is known one of the
    *dealt_layers* to a chunk, as most recipes have it (NeMo's of 13 to 340 billion parameters, Megatron-Core's).
    """
    pp = config.pp or 1
    if pp > 1 and config.vpp in (None, 1) and _V_SHAPED.search(f"{config.framework} {config.notes}"):
        return 2, "two chunks on every stage (V-shaped schedules)"
    if config.vpp is not None:
        if config.vpp > 1 and pp == 1:
            return 1, f"vpp {config.vpp} ignored: there is no pipeline"
        return config.vpp, ""
    if pp == 1:
        return 1, ""
    stated = _OTHER_RELEASES.search(config.notes)
    if stated:
        return int(stated[1]), f"vpp {stated[1]} of the recipe's other releases"
    chunks = max(1, dealt_layers // pp) if interleaves(config) else 1
    return chunks, f"vpp {chunks}"
