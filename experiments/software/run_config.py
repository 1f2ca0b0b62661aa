"""What was run: the columns that a prediction of a record may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hdpsim.cost_models.hardware.parts import Node
from hdpsim.cost_models.transformer.model import Model

Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
Recompute = Literal["none", "selective", "full"]
RematPolicy = Literal[
    "save_out_proj", "save_qkv_proj", "save_dot_except_mlp", "save_dot_except_mlpwi", "minimal",
    "save_dot_with_context_except_mlp", "minimal_flash", "minimal_with_context", "save_dot_with_no_batch_dim",
]  # fmt: skip
Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "tf32", "fp32"]
"""Of matrix products; the last two are no formats of the model, so that such a run has a reason instead of a time."""
Task = Literal["pretrain", "sft", "lora"]


SHAPE = {
    "layers": "layers", "hidden": "hidden", "ffn_hidden": "ffn_hidden", "heads": "heads", "head_dim": "head_dim",
    "vocab": "vocab", "gated_mlp": "gated_mlp", "n_experts": "experts", "topk": "top_k",
    "shared_expert_ffn": "shared_expert_ffn",
}  # fmt: skip
"""Columns of a shape -> fields of Model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What was run. None: the source does not say. Names are those of the columns.

    Attributes:
        gpus_per_node: GPUs of one server or, in a rack-scale system, of one tray.
        ffn_hidden: width of the MLP; of one expert in mixture-of-experts models.
        cp: context-parallel degree, of whatever kind.
        grad_accum: micro-batches of a step on one data-parallel rank (instead of global_batch_seqs).
        remat_policy: what selective recomputation keeps, by its name in MaxText or Paxml.
        notes: free text; statements about the model that no column can hold are looked for here.
        switches: what columns `layout.*`, `memory.*` and `cluster.node` say: switches that no rule decides any more.
        model, node: no columns. A scenario knows them, whatever their names and changed keys; of a record, None.
    """

    gpu: str
    n_gpus: int | None = None
    gpus_per_node: int | None = None
    nic_gbps_per_gpu: float | None = None
    year: int | None = None
    framework: str = ""
    model_name: str = ""
    layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    gated_mlp: bool | None = None
    n_experts: int | None = None
    topk: int | None = None
    shared_expert_ffn: int | None = None
    seq_len: int | None = None
    global_batch_seqs: int | None = None
    grad_accum: int | None = None
    micro_batch: int | None = None
    task: Task | None = None
    tp: int | None = None
    sp: bool | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    zero_stage: Sharding | None = None
    recompute: Recompute | None = None
    remat_policy: RematPolicy | None = None
    precision: Precision | None = None
    attention: str = ""
    family: str = ""
    notes: str = ""
    switches: tuple[tuple[str, object], ...] = ()
    model: Model | None = None
    node: Node | None = None

    @property
    def words(self) -> str:
        """The notes, and the policy as notes would say it."""
        return f"{self.notes}; remat_policy: {self.remat_policy}" if self.remat_policy else self.notes

    @property
    def replica_gpus(self) -> int:
        """GPUs of one model replica; a degree that nobody states is 1."""
        return (self.tp or 1) * (self.pp or 1) * (self.cp or 1)
