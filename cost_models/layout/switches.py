"""The switches of a layout, group by group: what each part of the simulator asks about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from hdpsim.cost_models.layout.pipeline_cut import CUT_WORDS, is_cut
from hdpsim.cost_models.layout.switch_metadata import switch
from hdpsim.cost_models.reading.checked import Checked, Share, Text
from hdpsim.errors import InfeasibleError
from hdpsim.ranges import RANGES

from . import needs

PARTS = ("attention", "latent", "prediction")
PARTS_WORDS = f"parts of a model, each once and joined by +: {', '.join(PARTS)}; as in attention+latent"
Schedule = Literal["1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe"]
RecomputeLayers = Literal["all", "moe"]
RecomputeKind = Literal["none", "selective", "full"]
ProductPrecision = Literal["bf16", "fp8", "mxfp8", "nvfp4"]
RankOrder = Literal["tp-dp-pp", "tp-pp-dp"]
ShardingKind = Literal["none", "zero1", "zero2", "zero3"]
AttentionKernel = Literal["flash", "flash1", "flash2", "cudnn2025", "triton", "mxfp8", "unfused"]
Muon = Literal["none", "owners", "all"]
AdapterKernels = Literal["joined", "separate", "autocast", "wide"]
RingKernels = Literal["fused", "packed", "eager"]
ContextParallelKind = Literal[
    "ring", "all-gather", "gathered-ring", "double-ring", "ulysses", "hybrid", "disaggregated"
]
ContextSharding = Literal["document", "pack", "adaptive"]
ExpertDispatch = Literal["all-to-all", "fused"]
ExpertKernels = Literal["grouped", "separate", "modules", "indexed", "fused"]
ExpertRouting = Literal["loss", "bias", "even", "in-turn", "untrained"]
ExpertWeights = Literal["outputs", "activations"]
GraphScope = Literal["layers", "iteration"]
StageBalance = Literal["layers", "flop"]
Fp8Scaling = Literal["delayed", "tensor", "row", "block"]
TensorExchange = Literal["none", "gathers", "mlp"]
TensorChunks = Literal["streams", "sequence"]
GradientAccumulation = Literal["fused", "separate", "cast"]
ShardCopies = Literal["both", "buckets", "gradients", "none"]
LossAverage = Literal["step", "micro-batch"]


class Group(Checked):
    """Base of the groups: values that check their own fields."""

    __slots__: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(Group):
    """Degrees: over how many GPUs what is spread, and how GPUs are numbered.

    A *rank* is one model replica slice of tp x pp GPUs; there are gpus / (tp * pp) of them (d_hdp = d_dp x d_cp).
    GPU numbering is Megatron's: tensor parallel innermost, then rank, then pipeline stage (see `order`).
    """

    tp: Annotated[int, RANGES["tp"]] = switch(1, basic=True)
    """Tensor-parallel degree: GPUs over which every layer is cut."""
    pp: Annotated[int, RANGES["pp"]] = switch(1, basic=True)
    """Pipeline-parallel degree: stages over which the layers are dealt."""
    cp: Annotated[int, RANGES["cp"]] | None = switch(None, none="auto", basic=True)
    """Context-parallel degree of the static mesh; None = the fastest that supports the context."""
    ep: Annotated[int, RANGES["ep"]] = switch(1, basic=True)
    """Expert-parallel degree. Up to tp the experts live inside the rank's own TP group."""
    etp: Annotated[int, RANGES["tp"]] | None = switch(None, none="auto")
    """GPUs over which each expert is cut; None = tp / ep, at least 1."""
    order: RankOrder = switch("tp-dp-pp", needs=(needs.SEVERAL_STAGES,))
    """Which GPUs are numbered next to each other after a TP group: those of its data-parallel group (Megatron), or
    those of its pipeline."""

    @property
    def expert_cut(self) -> int:
        """GPUs over which each expert is cut: etp as given or meant."""
        return max(1, self.tp // self.ep) if self.etp is None else self.etp

    @property
    def expert_gpus(self) -> int:
        """GPUs of a pipeline stage that hold one copy of its experts."""
        return self.ep * self.expert_cut

    @property
    def expert_ranks(self) -> int:
        """Neighbouring ranks that hold one copy of a stage's experts; 1: they live inside a rank's own TP group."""
        return max(1, math.lcm(self.expert_gpus, self.tp) // self.tp) if self.expert_gpus > self.tp else 1

    @property
    def experts_cut_like_dense(self) -> bool:
        """Whether every expert is cut over the tensor-parallel group, as a dense MLP is."""
        return self.ep == 1 and self.expert_cut == self.tp

    @property
    def model_gpus(self) -> int:
        """GPUs of a rank: all its stages."""
        return self.tp * self.pp

    def ranks(self, gpus: int) -> int:
        """Number of ranks on *gpus* GPUs."""
        if gpus % self.model_gpus:
            product = f"{self.tp} x {self.pp} = {self.model_gpus}"
            raise InfeasibleError(f"{gpus} GPUs do not divide by tp x pp = {product}")
        return gpus // self.model_gpus

    @property
    def rank_stride(self) -> int:
        """GPUs from a rank's first GPU of a stage to that of the next rank."""
        return self.tp if self.order == "tp-dp-pp" else self.model_gpus

    def stage_stride(self, ranks: int) -> int:
        """GPUs from a stage's first GPU to that of the next stage of the same rank."""
        return self.tp * ranks if self.order == "tp-dp-pp" else self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Group):
    """How layers are dealt to pipeline stages, and in which order these work."""

    vpp: Annotated[int, RANGES["vpp"]] = switch(1, basic=True)
    """Model chunks a pipeline stage holds: 1, more when interleaved, 2 in ZB-V."""
    schedule: Schedule = switch("1f1b", basic=True)
    """The order in which a stage runs the forwards and backwards of its micro-batches; dualpipe: static strategy
    only."""
    embedding_layers: bool = switch(False, needs=(needs.SEVERAL_STAGES,))
    """Embedding, output projection and layers of multi-token prediction count as a layer each when layers are dealt to
    the stages."""
    balance: StageBalance = switch("layers", name="stage_balance", needs=(needs.SEVERAL_STAGES,))
    """How layers are dealt to pipeline stages: as many on each, or so that the output projection's FLOP count too."""
    cut: Annotated[str, Text(is_cut, CUT_WORDS)] | None = switch(
        None, name="pipeline_layout", none="auto", needs=(needs.SEVERAL_STAGES,)
    )
    """What every virtual stage holds, in Megatron-Core's words: E the embedding, t a layer, m a layer of multi-token
    prediction (none: all are with L), L output projection and loss, | between stages: Et*3|(tt|)*29m|L."""
    overlap: bool = switch(True, name="pp_overlap", needs=(needs.SEVERAL_STAGES,))
    """Transfers between stages run beside computation; off: they hold the sending and the receiving stage."""
    call: Annotated[int, RANGES["schedule_micro_batches"]] | None = switch(
        None, name="schedule_micro_batches", none="all", needs=(needs.SEVERAL_STAGES,)
    )
    """Micro-batches of a rank after which the pipeline drains and its schedule begins anew: those of one local batch,
    where a step accumulates gradients of several (torchtitan, NeMo AutoModel); None = all of a step."""
    deferred_head_gradient: bool = switch(False, needs=(needs.DRAIN,))
    """1f1b, interleaved: weight gradients of the output projection wait until the pipeline drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor(Group):
    """How the GPUs of a tensor-parallel group exchange what each of them holds a part of."""

    sequence_parallel: bool = switch(True, basic=True, needs=(needs.CUT_LAYERS,))
    """Activations outside of what tensor parallelism cuts are split along the sequence."""
    overlap: bool = switch(False, name="tp_overlap", needs=(needs.CUT_LAYERS,))
    """Tensor-parallel collectives run beside the GEMMs that need or feed them, cut into chunks."""
    exchange: TensorExchange = switch("none", name="tp_exchange", needs=(needs.CUT_LAYERS, needs.CHUNKS))
    """With tp_overlap: gathers feed products as chunks that neighbours copy to each other, each GPU's own chunk first;
    mlp: what the MLP sends out is reduced that way, too."""
    chunks: TensorChunks = switch("streams", name="tp_chunks", needs=(needs.CUT_LAYERS, needs.CHUNKS))
    """With tp_overlap: a product's chunks run on several streams (Transformer Engine), or in sequence; the backward's
    reduction then goes with chunks of the input gradient (MegaScale)."""
    batch_first: bool = switch(
        False, name="tp_batch_first", needs=(needs.CUT_LAYERS, needs.SEQUENCE_PARALLEL)
    )
    """Tensors are [batch, sequence, hidden] (DTensor): chunks of tensor-parallel collectives are put together and taken
    apart by copies, and the backward gathers inputs no second time; sequence parallelism only."""
    gathered_logits: bool = switch(False, needs=(needs.CUT_LAYERS,))
    """Every GPU gathers the logits of the whole vocabulary and computes all of the loss (PyTorch's and Hugging Face's
    plans); off: each has its part of both."""
    asynchronous: bool = switch(False, name="tp_asynchronous", needs=(needs.CUT_LAYERS, needs.NO_CHUNKS))
    """Tensor-parallel collectives are called asynchronously: they run beside whole products that do not need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(Group):
    """What data-parallel ranks hold only a part of, and how gradients and parameters get about."""

    kind: ShardingKind = switch("zero1", name="sharding", basic=True)
    """What ranks hold a part of: nothing, optimizer states (zero1), gradients, too (zero2), or parameters, too (zero3,
    FSDP)."""
    ranks: Annotated[int, RANGES["shard_ranks"]] | None = switch(
        None, name="shard_ranks", none="all", needs=(needs.SHARED,)
    )
    """Neighbouring ranks, a divisor of all, that share one copy of what is sharded: of the parameters (zero3: HSDP), of
    the optimizer's states (zero1, zero2); None = all ranks."""
    overlap: bool = switch(True, name="dp_overlap")
    """Gradient reduction and parameter gather run beside compute; off: nothing of them is hidden."""
    gather_overlap: bool = switch(True, needs=(needs.ZERO_1_OR_2, needs.BESIDE_COMPUTE))
    """zero1, zero2: parameters are gathered beside the next forward; off: all of them right after the update."""
    gradient_overlap: bool = switch(True, needs=(needs.SUMS_OF_ALL, needs.BESIDE_COMPUTE))
    """Gradients are summed beside the last backward; off: all of them after it (FSDP in PyTorch's pipelines)."""
    prefetch_gather: bool = switch(True, needs=(needs.ZERO_1_OR_2, needs.BESIDE_COMPUTE))
    """The step's first parameter gather runs while data is loaded, as far as that takes as long; off: the first forward
    waits for a bucket."""
    gather_lists: bool = switch(False, needs=(needs.ZERO_3,))
    """zero3: every matrix is gathered and reduced by a collective of its own that takes a list of all ranks' pieces,
    whose copies the host launches one by one while the GPU waits (DeepSpeed before 2022)."""
    module_hooks: bool = switch(False, needs=(needs.ZERO_3,))
    """zero3: hooks in Python gather every matrix before its module and give it back after it, so the host needs
    module_hook_s of the calibration for each (DeepSpeed); off: for no matrix."""
    copies: ShardCopies = switch("both", name="shard_copies", needs=(needs.ZERO_3,))
    """zero3: what is copied between a collective's buffer and the tensors: gathered parameters and gradients, these
    through a bucket (DeepSpeed since 2022), these alone (parameters are views of the buffer: PyTorch's first FSDP), or
    nothing (XLA with double-buffered loops)."""
    reuse_parameters: Annotated[float, RANGES["reuse_parameters"]] | None = switch(
        None, none="all", needs=(needs.ZERO_3, needs.REPEATED_WHOLE)
    )
    """zero3, layers repeated: a matrix is given back between its layer's repeated forward and its backward, and
    gathered again, where others of so many parameters are used in between (DeepSpeed); None = the layer stays."""
    owner_broadcasts: bool = switch(False, needs=(needs.ZERO_1_OR_2,))
    """zero1, zero2: whole tensors belong to ranks, which broadcast them one after the other, instead of one gather."""
    sum_every_micro_batch: bool = switch(False, needs=(needs.ZERO_2,))
    """zero2: gradients are summed over ranks in every backward, not in a step's last alone (DeepSpeed)."""
    whole_gradients: bool = switch(False, needs=(needs.ZERO_3,))
    """zero3: gradients of micro-batches add up whole on every GPU and are summed over ranks in a step's last backward
    alone (PyTorch's FSDP under no_sync: Hugging Face's trainers); off: in every backward."""
    gradient_all_reduce: bool = switch(False, needs=(needs.ZERO_1_OR_2,))
    """zero1, zero2: every rank gets all sums of gradients (an all-reduce over all ranks), not its states' alone."""
    bucket_parameters: Annotated[float, RANGES["bucket_parameters"]] | None = switch(
        None, none="auto", needs=(needs.BUCKETS,)
    )
    """Parameters of a bucket of gradients; None = Megatron-Core's rule (40 million, a million per rank)."""
    loss_average: LossAverage = switch("step", needs=(needs.ONE_WAY,))
    """When ranks average the loss that is shown: once a step, or after the forward of every micro-batch, where all of
    them wait for the last one (Megatron-LM and NeMo up to spring 2025)."""
    muon: Muon = "none"
    """Muon updates the matrices of layers, Adam the rest: each matrix is made orthogonal on one rank's GPU (owners), or
    on all of them alike (all). optimizer_bytes says what states there are (32-bit weights and one moment are 8)."""
    optimizer_offload: bool = False
    """Optimizer states in host memory, updated by the CPU: gradients go there, parameters come back."""

    @property
    def all_reduces(self) -> bool:
        """Whether every rank gets all sums of gradients."""
        return self.kind == "none" or (self.kind != "zero3" and self.gradient_all_reduce)

    @property
    def sums_layers(self) -> bool:
        """Whether every backward sums gradients over ranks layer by layer, so that only sums of shards add up."""
        every = not self.whole_gradients if self.kind == "zero3" else self.sum_every_micro_batch
        return self.kind in ("zero2", "zero3") and every

    @property
    def by_layer(self) -> bool:
        """Whether ranks gather or sum layer by layer in the passes of every micro-batch."""
        return self.kind == "zero3" or self.sums_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute(Group):
    """What of a layer's forward is repeated in the backward instead of kept."""

    kind: RecomputeKind = switch("none", name="recompute", basic=True)
    """Activations computed again in the backward: none, those that are large and cheap, or all of a layer."""
    share: Share = switch(0.0, name="recompute_share", needs=(needs.SELECTIVE,))
    """Selective recomputation: share of a layer's forward repeated in the backward (every other layer: 0.5), beside
    unfused attention."""
    products: Share | None = switch(None, name="recompute_products", none="rest", needs=(needs.RECOMPUTED,))
    """Recomputation, full or selective: share of the matrix products repeated, where a policy keeps some outputs or
    nothing needs the last one; None = as the rest of the layer."""
    attention: Share | None = switch(None, name="recompute_attention", none="rest", needs=(needs.RECOMPUTED,))
    """Recomputation: share of flash attention repeated, whose output policies by operation keep; None = as the rest."""
    collectives: Share | None = switch(
        None, name="recompute_collectives", none="rest", needs=(needs.RECOMPUTED, needs.CUT_LAYERS)
    )
    """Recomputation: share of the tensor-parallel collectives repeated; None = as the rest."""
    layers: RecomputeLayers = switch("all", name="recompute_layers", needs=(needs.RECOMPUTED,))
    """Recomputation: of which layers anything is repeated: of all, or of those with routed experts alone (what
    Megatron-Core's module moe is in a hybrid)."""
    small_kernels: bool = switch(False, name="recompute_small_kernels", needs=(needs.SELECTIVE,))
    """Selective recomputation: norms and activation functions run again in the backward, and what they put out is not
    kept (8 bits: their casts are)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Group):
    """In which formats numbers are multiplied and summed."""

    products: ProductPrecision = switch("bf16", name="precision", basic=True)
    """Operands of the layers' matrix products; attention scores, router, embedding and output head stay BF16. fp8: a
    scale for each tensor (Hopper on); mxfp8, nvfp4: block scales (Blackwell)."""
    fp8_scaling: Fp8Scaling = switch("delayed", needs=(needs.FP8,))
    """Scales of fp8: of earlier steps, of the tensor itself, of its rows and columns (tensor-parallel gathers then
    carry 16 bits, and every GPU casts all it gathered), or of blocks (1 x 128 of activations and gradients, 128 x 128
    of weights: DeepSeek-V3's recipe)."""
    separate_scale_updates: bool = switch(False, needs=(needs.DELAYED_SCALES,))
    """Delayed scales of fp8 are updated in every pass of a layer, module by module, by an operation per kernel
    (Transformer Engine before 1.4)."""
    blocking_maxima: bool = switch(False, needs=(needs.DELAYED_SCALES,))
    """Delayed scales of fp8: after every pass of a stage's layers all its GPUs agree on the largest elements that it
    saw, and work waits for it (Transformer Engine's default); off: once a step, or beside the work."""
    bf16_layers: Share = switch(0.0, needs=(needs.NARROW,))
    """Share of the layers whose products stay in BF16, as recipes keep the first or last ones; a layer of each kind
    takes the mean of both."""
    bf16_parts: Annotated[str, Text(is_parts, PARTS_WORDS)] | None = switch(
        None, none="none", needs=(needs.NARROW,)
    )
    """Parts whose products stay in BF16 in every layer, joined by +: attention, latent (projections around latent
    experts), prediction (layers of multi-token prediction, all of them)."""
    gradient_bytes: Literal[2, 4] = 4
    """Bytes of a gradient when it is summed over micro-batches and reduced: 4 (fp32) or 2 (bf16)."""
    optimizer_bytes: Annotated[float, RANGES["stack_bytes"]] = 12.0
    """Bytes per parameter of the optimizer's states, in memory, in the update and in checkpoints: 32-bit weights and
    both moments of Adam are 12; with moments in 16 bits 8. With 4 or less there are no 32-bit weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Group):
    """How tokens get to their experts, and how these compute."""

    dispatch: ExpertDispatch = switch("all-to-all", name="expert_dispatch")
    """fused: one kernel permutes and sends, a token once to each node and GPU (DeepEP, Hybrid-EP)."""
    overlap: bool = switch(False, name="ep_overlap", needs=(needs.ALL_TO_ALL,))
    """The expert all-to-all of a micro-batch runs beside the compute of another."""
    kernels: ExpertKernels = switch("grouped", name="expert_kernels")
    """separate: the host launches one product (and cast) per expert on several streams (Transformer Engine); modules:
    one MLP after the other (Megatron-Core's SequentialMLP); indexed: the same, but each takes its tokens out of all and
    adds to their outputs (transformers before release 5); grouped: one kernel for all; fused: such kernels that clamp,
    weigh and add biases, too."""
    imbalance: Annotated[float, RANGES["expert_imbalance"]] | None = switch(
        None, name="expert_imbalance", none="auto", needs=(needs.BUSIEST,)
    )
    """Rows of the busiest GPU of an expert-parallel group over the mean, at least 1; None = expert_routing tells."""
    routing: ExpertRouting = switch("loss", name="expert_routing", needs=(needs.BUSIEST, needs.NO_IMBALANCE))
    """What keeps experts equally busy. loss: an auxiliary loss; bias: a bias per expert (DeepSeek-V3); even: they are
    (forced, or tokens beyond a capacity factor of 1 dropped); in-turn: no router, every token gets the experts behind
    those of the token before (stand-ins for a router); untrained: nothing yet, as in the first steps on text."""
    padding: bool = switch(False, name="expert_padding", needs=(needs.NARROW,))
    """With 8 and 4 bits every expert's rows are copied to a multiple of what the products take, and back
    (Megatron-Core without HybridEP)."""
    weights: ExpertWeights = switch("outputs", name="expert_weights")
    """What the router's scores weigh: experts' outputs, which are then kept for the backward, or what their activation
    function puts out (Megatron-Core since 0.13); where it is gated, the scores' gradients read everything again."""

    @property
    def in_turn(self) -> bool:
        """Whether a token's experts are neighbours."""
        return self.routing == "in-turn" and self.imbalance is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels(Group):
    """Which operations are one kernel and which are several."""

    attention: AttentionKernel = switch("flash", name="attention_kernel")
    """flash: the best kernel of the GPU's generation; flash1, flash2: FlashAttention of 2022 and 2023; cudnn2025: cuDNN
    before 9.18.1 with latent attention on Blackwell; triton: that of 2022 in Triton; mxfp8: operands in MXFP8
    (Transformer Engine, fp8_dot_product_attention, on Blackwell); unfused: the scores go to memory and back."""
    fused: bool = switch(True, name="fused_kernels")
    """Norms, biases, activation, rotary embedding, dropout and softmax as one kernel each, not one per operation."""
    fused_norms: bool = switch(False, needs=(needs.SEPARATE_KERNELS,))
    """Norms are one kernel where other operations are one each (PyTorch's RMSNorm since 2.9)."""
    matrices_apart: bool = switch(False, needs=(needs.SEPARATE_KERNELS,))
    """Queries, keys and values come from a matrix each, and so do gate and up projection, whose gradients of the common
    input are then summed by kernels; off: from one matrix."""
    lean_gradients: bool = switch(False, needs=(needs.FUSED,))
    """Gradients of norms, activation and rotary embedding read only what they need, as Transformer Engine's kernels
    do; off: twice what the forward reads and writes."""
    joined_block: bool = False
    """Products of a parallel block that read the same input are one product, and those whose outputs are summed (PaLM);
    off: attention and MLP have products of their own (GPT-NeoX)."""
    fused_loss: bool = switch(True, needs=(needs.LOSS_BY_KERNELS,))
    """Cross-entropy as one kernel over fp32 logits; off: one per operation, or Megatron-Core's own fusion, which moves
    as much. Without fused_kernels it never is one."""
    loss_bytes: Annotated[float, RANGES["stack_bytes"]] | None = switch(None, none="auto")
    """HBM traffic of the cross-entropy and its gradient, bytes per logit: PyTorch's own on logits copied to 32 bits 36,
    flash-attention's on 16 bits in place 6; auto: 12 as one kernel, 52 as several (fused_loss)."""
    loss_metrics: Annotated[int, RANGES["loss_metrics"]] = 0
    """Metrics of training that compute the cross-entropy of every micro-batch once more each, by PyTorch's kernels."""
    gradient_accumulation: GradientAccumulation = switch("fused", needs=(needs.SUMS_OF_ALL,))
    """How gradients of micro-batches add up: in the products of weight gradients, in kernels of their own, or in such
    kernels after a copy to the precision of the sum."""
    adapters: AdapterKernels = switch("joined", name="adapter_kernels")
    """Adapters of frozen models. joined: in 16 bits, one for queries, keys and values, one for gate and up (Megatron);
    separate: one for each matrix. Those of PEFT have weights of 32 bits: autocast, what they read is copied to 32 bits
    and back for products in 16; wide, without autocast, they also multiply, scale and add in 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Group):
    """What the host does, and waits for, while the GPU works."""

    cuda_graphs: bool = False
    """Kernels of a layer are replayed from a graph: the host launches none of them."""
    cuda_graph_scope: GraphScope = switch("layers", needs=(needs.GRAPHS,))
    """With graphs: one for every layer; iteration: one for all passes of a step, whose replay leaves the host free."""
    cuda_graph_experts: bool = switch(True, needs=(needs.GRAPHS,))
    """With graphs: the experts are part of them; off: token counts are known too late, the host launches theirs."""
    launch_blocking: bool = False
    """The host waits for every kernel before it goes on (CUDA_LAUNCH_BLOCKING=1): no launch hides behind a kernel."""
    untuned_for_arm: bool = False
    """Launches take as long on Arm processors (Grace) as in summer 2025, before software was tuned for them."""
    checked_collectives: bool = False
    """The hosts of a group check with each other before every collective (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Group):
    """How many tokens a rank holds, and how ranks share a sequence."""

    kind: ContextParallelKind = switch("ring", name="cp_kind")
    """How a group shares a sequence: keys and values go round, are gathered first, are gathered beside the first of the
    steps of a ring (PyTorch), go round within nodes and between them (double-ring), heads are spread (Ulysses), within
    nodes between which keys and values go round (hybrid, USP), or attention alone is dealt to the ranks by its work
    (disaggregated, DistCA)."""
    ring_kernels: RingKernels = switch("fused", name="cp_ring_kernels")
    """What a step of a ring launches besides attention: fused merges and one message (Transformer Engine), what packs
    of several documents need beside (packed: its thd format), or eager operations and a message for every tensor."""
    sharding: ContextSharding | None = switch(None, name="cp_sharding", none="auto")
    """What a group cuts into two chunks a rank, one from either end (zig-zag): every document, which gives all ranks
    the same attention; the pack as a whole, which does not (WLB-LLM's per-sequence sharding); or pack by pack what
    takes less (adaptive). None = document, but adaptive for the strategies wlb-llm and hdp-opt."""
    keep_gathered: bool = switch(False, name="cp_keep_gathered", needs=(needs.GATHERED,))
    """all-gather: keys and values stay in memory as they were gathered, so that the backward gathers none again, as in
    the re-implementation of WLB-LLM beside DistCA."""
    tolerance: Share = switch(0.1, name="cp_tolerance", needs=(needs.DEALT,))
    """disaggregated: ranks may attend so much less than the mean before they get more (DistCA's tolerance_factor)."""
    rank_capacity_tokens: Annotated[int, RANGES["rank_capacity_tokens"]] | None = switch(
        None, none="auto", basic=True
    )
    """Tokens one rank holds per micro-batch (C); None = what memory allows, and of hdp-naive and hdp-balance the
    fastest of the context over 1, 2, 3, 4, 6, 8, ... up to that."""


def is_parts(text: str) -> bool:
    """Whether *text* names parts, each once."""
    parts = text.split("+")
    return set(parts) <= set(PARTS) and len(set(parts)) == len(parts)


def parts_of_text(text: str | None) -> frozenset[str]:
    """The parts that a checked *text* names."""
    return frozenset(text.split("+")) if text else frozenset()
