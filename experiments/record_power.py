"""What a record says of the power of its GPUs."""

from __future__ import annotations

import re

from experiments.records import RunConfig

__all__ = ["tensor_boost"]

_ROUND = re.compile(r"MLPerf v4\.[01]\b")
BOOSTED_SEQUENCES = 128


def tensor_boost(config: RunConfig) -> str | None:
    """The boost slider, where power was moved to the tensor cores: an assumption's words ("" = stated); None = not.

    Source: NVIDIA's submissions to MLPerf Training v4.0 and v4.1 (the same in other submitters' copies): GPT-3,
    config_DGXH100_*_mbs2.sh, VBOOST_VALUE=1 where a data-parallel replica has 128 sequences; llama2_70b_lora,
    config_DGXH100_*.sh, always. Llama 3.1 405B of v5.0 does not set it.
    """
    if re.search(r"\bvboost\b", config.notes):
        return ""
    if not _ROUND.search(config.framework):
        return None
    replica = (config.tp or 1) * (config.pp or 1) * (config.cp or 1)
    sequences = (config.global_batch_seqs or 0) * replica / config.n_gpus if config.n_gpus else 0.0
    submitted = config.task == "lora" or (config.micro_batch == 2 and sequences == BOOSTED_SEQUENCES)
    return "power moved to the tensor cores (the benchmark's configurations)" if submitted else None
