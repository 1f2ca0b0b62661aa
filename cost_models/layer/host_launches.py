"""How many kernels the host launches for a layer: what bounds small micro-batches in eager frameworks."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.kernels.casts import scale_update_launches
from hdpsim.cost_models.layer.adapters import adapted_matrices, step_tensors
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Host, Kernels, Parallel
from hdpsim.cost_models.network.collectives import GroupShape
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import layer_matrices, parts_of
from hdpsim.cost_models.transformer.model import Model

BACKWARD_LAUNCHES = 2.0  # two gradients of every product, an operation and its accumulation elsewhere
# A collective of PyTorch: the buffer, the NCCL call, events between its stream and the compute stream.
LAUNCHES_OF_A_COLLECTIVE = 3.0
ROUTER_LAUNCHES = 7.0  # beside its product
PERMUTATION_LAUNCHES = 12.0  # permutation and its inverse 8, counting and sorting 4
# Of an expert's input or gradient: the cast, and the tensors of its two copies and their scales.
NARROW_CASTS = 2.0
AMAX_LAUNCHES = 1.0  # before it where the scale is the tensor's own: the largest element
# Of an expert that takes its tokens by index, beside its products: its tokens are looked up (for which the host waits)
# and taken, an activation, scores taken and multiplied, outputs added to the common ones; a gate is a product and a
# multiplication more. Source: transformers 4, models/mixtral, models/qwen3_moe (SparseMoeBlock.forward).
INDEXED_LAUNCHES = 6.0
INDEXED_GATE_LAUNCHES = 2.0
PADDING_LAUNCHES = 2.0  # rows of all experts into a padded buffer, and out of one
EXPERT_BIAS_LAUNCHES = 2.0  # of an expert: times the routing weights, added
CLAMP_LAUNCHES = 3.0
# Of rotary embeddings that no fused kernel does, a third of forward and backward: of queries and of keys cosine and
# sine scaled and cast 6, turned 6, backward 10; latent ones also even and odd elements apart 1 and 6, parts put
# together 3 and 3.
SCALED_ROTARY_LAUNCHES = (2 * 12 + 2 * 10) / 3
LATENT_ROTARY_LAUNCHES = (2 * 13 + 3 + 2 * 16 + 3) / 3
ONE_KERNEL = ("grouped", "fused")  # of expert_kernels: a product of all experts is one kernel
EXPERT_MODULES = ("modules", "indexed")  # an expert is a module of its own
# Of the hooks around a matrix, which take module_hook_s forward: gathers for the backward, gradients into buckets,
# reductions. Measured with module_hook_s, beside what the operations themselves take: 1.0 where all gradients share a
# bucket, 1.3 where two matrices do (Hugging Face's automatic size for an expert), 1.5 to 2.3 where each has its own.
# Which of these a run has is rarely known, so it is the geometric mean of the least and the most.
HOOKS_BACKWARD = 1.5
ADAPTER_LAUNCHES = 4.0  # two products, the scale, the sum
# Copies of what an adapter reads and puts out, of its two factors.
ADAPTER_COPIES = {"joined": 0.0, "separate": 0.0, "autocast": 2.0 + 2.0, "wide": 2.0}
ADAPTER_PRODUCTS = 2.0
# Between the products of a Mamba-2 layer: convolution; steps and their sums, states, state passing, scores, outputs of
# the scan; gated norm (state-spaces/mamba, ops/triton/ssd_combined.py). The backward has the first five again (what
# they put out is not kept) and ten of gradients: about twice as many.
MAMBA_KERNELS = 7.0


def forward_launches(model: Model, layout: Layout, *, moe: bool) -> float:
    """Operations that the host issues for a layer's forward; CUDA graphs issue none.

        fused     2 norms + products + 2 copies + attention + rotary 1 + 2 adds + activation
        scaled    rotary 15, of latent attention 21
        separate  6 per norm (1 with fused_norms), rotary 8, activation 2 (+ 1 per bias and dropout), unfused softmax 5
        experts   router 8 (one product), permutation and its inverse 8, sorting 4 (fused dispatch: router only);
                  modules: for every expert of a GPU a product each of 2 matrices, with 8 and 4 bits 2 more for the
                  cast of what it reads (3 with scales of the tensor itself); padding of all rows 2; indexed: for every
                  expert 10 (8 without a gate), and no permutation
                  separate kernels: none here, see expert_loops
        Mamba-2   norm, 2 products, 7 kernels between them, add; of a hybrid's layers each has what its one part needs
        adapters  4 of every adapted matrix (+ 4 copies under autocast, 2 in 32 bits, 1 for dropout), and with tensor
                  parallelism a gather of their narrow output
        scales    6 with separate updates of delayed 8-bit scales
        + 3 per collective: 4 with tensor parallelism (2 in a parallel block), 2 all-to-alls, 2 of cut experts

    Graphs without the experts (cuda_graph_experts off) hold everything up to the router.
    Counted: operations with a kernel of their own.  Ignored: hooks of sharded parameters, Python between operations
    (both are part of the calibrated time per launch); pieces of overlapped all-to-alls (see HostTime).
    Source: the operations of Megatron-Core's and nanotron's transformer layers.
    """
    experts = _expert_launches(model, layout) if moe else 0.0
    if layout.host.cuda_graphs:
        return 0.0 if layout.host.cuda_graph_experts else experts
    parts = parts_of(model)
    norms = 1 if model.parallel_block else parts.blocks
    if layout.kernels.fused:
        count = float(norms + norms + parts.mlp)
    else:
        extras = norms * (int(model.biases) + int(model.dropout))
        of_a_norm = 1 if layout.kernels.fused_norms else 6
        count = of_a_norm * norms + norms + extras + (2 + int(model.biases)) * parts.mlp
    count += _products(model, layout.kernels, moe=moe)
    if parts.attention:
        count += 2 + _attention_launches(layout.kernels)
        count += _rotary_launches(model, layout.kernels) + (2 if model.qk_norm else 0)
    if parts.mamba:
        count += MAMBA_KERNELS
    adapted = len(adapted_matrices(model, layout, moe=moe))
    collectives = _collectives_around_products(model, layout, moe=moe)
    of_an_adapter = ADAPTER_LAUNCHES + ADAPTER_COPIES[layout.kernels.adapters] + model.adapter_dropout
    return (
        count
        + (ROUTER_LAUNCHES if moe else 0.0)
        + LAUNCHES_OF_A_COLLECTIVE * collectives
        + of_an_adapter * adapted
        + experts
        + scale_update_launches(layout)
    )


def small_kernels(model: Model, layout: Layout, *, moe: bool) -> float:
    """Kernels of a layer's forward that are neither products nor attention, whether the host or a graph launches them.

    Counted: the operations of forward_launches without products, attention and collectives. Updates of scales are
    priced apart (scale_updates).
    """
    eager = layout.changed(cuda_graphs=False, separate_scale_updates=False)
    others = float(_products(model, eager.kernels, moe=moe))
    others += _attention_launches(eager.kernels) * parts_of(model).attention
    others += ADAPTER_PRODUCTS * len(adapted_matrices(model, eager, moe=moe))
    collectives = _collectives_around_products(model, eager, moe=moe)
    if moe:
        others += _expert_matrices(model) * _experts_apart(model, eager)[0]
        loops, kernels = expert_loops(model, eager, backward=False)
        others -= kernels - loops * _experts_of_a_gpu(model, eager)
        collectives += _expert_collectives(eager.parallel)
    return forward_launches(model, eager, moe=moe) - others - LAUNCHES_OF_A_COLLECTIVE * collectives


def _rotary_launches(model: Model, kernels: Kernels) -> float:
    if model.learned_positions:
        return 0.0
    if model.scaled_rotary:
        return LATENT_ROTARY_LAUNCHES if model.latent_attention else SCALED_ROTARY_LAUNCHES
    return 1.0 if kernels.fused else 8.0


def _attention_launches(kernels: Kernels) -> int:
    return (4 if kernels.fused else 8) if kernels.attention == "unfused" else 1


def _collectives_around_products(model: Model, layout: Layout, *, moe: bool) -> int:
    adapted = len(adapted_matrices(model, layout, moe=moe)) if layout.parallel.tp > 1 else 0
    return tensor_collectives(model, layout, moe=moe) + adapted


def _expert_collectives(parallel: Parallel) -> int:
    joined = parallel.expert_cut > 1 and not parallel.experts_cut_like_dense
    return (2 if parallel.ep > 1 else 0) + (2 if joined else 0)


def _products(model: Model, kernels: Kernels, *, moe: bool) -> int:
    """Matrix products of a layer without those of routed experts; a joined parallel block has two pairs less."""
    blocks = [matrix.block for matrix in layer_matrices(model, moe=moe) if matrix.block != "experts"]
    joins = model.parallel_block and kernels.joined_block and not moe and blocks.count("attention") == 2
    return len(blocks) - (2 if joins else 0)


def _expert_matrices(model: Model) -> int:
    return sum(matrix.block == "experts" for matrix in layer_matrices(model, moe=True))


def backward_launches(model: Model, layout: Layout, *, moe: bool) -> float:
    """Kernels of a layer's backward: twice those of its forward, but an expert's gradient is cast once for both.

    Frozen weights have one product there instead of two; scales are updated once.
    """
    twice = BACKWARD_LAUNCHES * forward_launches(model, layout, moe=moe)
    if not layout.host.cuda_graphs:
        products = _products(model, layout.kernels, moe=moe) if model.frozen else 0
        twice -= scale_update_launches(layout) + products
    if not moe or _graphed(layout) or layout.experts.kernels in ONE_KERNEL:
        return twice
    experts, _ = _experts_apart(model, layout)
    return twice - _expert_matrices(model) * experts * _casts_of_an_expert(layout)


def expert_loops(model: Model, layout: Layout, *, backward: bool) -> tuple[float, float]:
    """Loops over the experts of a GPU in a layer, one for each of their products, and kernels launched from them.

        loops    2 matrices forward, twice that backward
        kernels  matrices x experts of a GPU x (1 product, 2 backward, + casts of what it reads)

    Counted: experts whose kernels are separate. A loop runs in C++, without Python, dispatcher and autograd between two
    kernels; what those take before and behind it is the loop's own time, whatever the experts.
    Source: Transformer Engine's GroupedLinear (multi-stream cuBLAS, NVIDIA/TransformerEngine pull request 853, issue
    1499; pytorch/module/grouped_linear.py: one call casts all inputs, one runs all products).
    """
    if layout.experts.kernels != "separate" or _graphed(layout):
        return 0.0, 0.0
    products = BACKWARD_LAUNCHES if backward else 1.0
    matrices = _expert_matrices(model)
    kernels = _experts_of_a_gpu(model, layout) * (products + _casts_of_an_expert(layout))
    return matrices * products, matrices * kernels


def _loops_s(model: Model, layout: Layout, cal: Calibration, *, backward: bool) -> float:
    loops, kernels = expert_loops(model, layout, backward=backward)
    return loops * cal.expert_loop_s + kernels * cal.expert_launch_s


def behind_counts_s(model: Model, layout: Layout, cal: Calibration) -> float:
    """Time of a forward's launches for which the host must know how many tokens each expert got.

    It reads the counts when dispatch is done, and nothing is queued behind: experts start one launch after the
    other. Overlapped all-to-alls leave another micro-batch's kernels in the queue.
    """
    if layout.experts.kernels in ONE_KERNEL or _overlapped(layout) or _graphed(layout):
        return 0.0
    experts, per_expert = _experts_apart(model, layout)
    launches_s = _expert_matrices(model) * per_expert * experts * cal.launch_s
    hooks_s = hooked_matrices(model, layout, moe=True, of_experts=True) * cal.module_hook_s
    return launches_s + hooks_s + _loops_s(model, layout, cal, backward=False)


def hooked_matrices(model: Model, layout: Layout, *, moe: bool, of_experts: bool = False) -> float:
    """Matrices of a layer around whose modules hooks of Python gather parameters; *of_experts*: routed ones alone.

        parts that stock models keep apart (queries, keys, values; gate, up), of every expert that is a module
        grouped experts: a matrix of all of them counts once

    Counted: modules without parameters beside an expert's (its activation, itself) are in the time of its matrices.
    Ignored: norms, whose few parameters stay whole on every GPU; the collectives themselves (layer_gather).
    Source: DeepSpeed, runtime/zero/parameter_offload.py (_register_deepspeed_module: hooks of every module, forward and
    backward), partitioned_param_coordinator.py (fetch_sub_module, release_sub_module).
    """
    hooks = layout.sharding.kind == "zero3" and layout.sharding.module_hooks
    if not hooks or layout.host.cuda_graphs:
        return 0.0
    modules = _experts_of_a_gpu(model, layout) if layout.experts.kernels in EXPERT_MODULES else 0.0
    count = 0.0
    for matrix in layer_matrices(model, moe=moe):
        if matrix.block == "experts":
            count += modules * len(matrix.parts) if modules else 1.0
        elif not of_experts:
            count += len(matrix.parts)
    return count


def _graphed(layout: Layout) -> bool:
    """Whether graphs hold the experts, too."""
    return layout.host.cuda_graphs and layout.host.cuda_graph_experts


def _overlapped(layout: Layout) -> bool:
    """Whether there are all-to-alls that run beside another micro-batch: experts on one GPU have none."""
    return layout.experts.overlap and layout.parallel.ep > 1


def _experts_apart(model: Model, layout: Layout) -> tuple[float, float]:
    """Experts whose products Python issues one by one, and launches of each of their matrices; grouped: one of one."""
    if layout.experts.kernels in ONE_KERNEL:
        return 1.0, 1.0
    casts = _casts_of_an_expert(layout)
    match layout.experts.kernels:
        case "modules":
            return _experts_of_a_gpu(model, layout), 1.0 + casts
        case "indexed":
            others = INDEXED_LAUNCHES + INDEXED_GATE_LAUNCHES * model.gated_mlp
            return _experts_of_a_gpu(model, layout), 1.0 + others / _expert_matrices(model) + casts
        case _:
            return 0.0, 1.0 + casts


def _experts_of_a_gpu(model: Model, layout: Layout) -> float:
    return float(max(1, model.experts // layout.parallel.ep))


def _casts_of_an_expert(layout: Layout) -> float:
    if layout.precision.products == "bf16":
        return 0.0
    own_scale = layout.precision.products == "fp8" and layout.precision.fp8_scaling == "tensor"
    return NARROW_CASTS + AMAX_LAUNCHES * own_scale


def _expert_launches(model: Model, layout: Layout) -> float:
    """Everything behind the router: the way to the routed experts, their products, the way back."""
    unsorted = layout.experts.dispatch == "fused" or layout.experts.kernels == "indexed"
    count = 0.0 if unsorted else PERMUTATION_LAUNCHES
    experts, per_expert = _experts_apart(model, layout)
    count += _expert_matrices(model) * per_expert * experts
    if layout.experts.kernels != "fused":
        biased = 1.0 if layout.experts.kernels in ONE_KERNEL else _experts_of_a_gpu(model, layout)
        count += EXPERT_BIAS_LAUNCHES * biased if model.expert_biases else 0.0
        count += CLAMP_LAUNCHES if model.clamped_activation else 0.0
    count += PADDING_LAUNCHES if layout.experts.padding and layout.precision.products != "bf16" else 0.0
    return count + LAUNCHES_OF_A_COLLECTIVE * _expert_collectives(layout.parallel)


def tensor_collectives(model: Model, layout: Layout, *, moe: bool) -> int:
    """Collectives of the tensor-parallel group in a layer's forward: around attention and around what is cut by tp.

    A parallel block has one pair around both. Of experts that are cut or spread otherwise only a shared one has a pair.
    """
    if layout.parallel.tp == 1:
        return 0
    per_pair = 2 if layout.tensor.sequence_parallel else 1
    blocks = parts_of(model).blocks
    if moe and not layout.parallel.experts_cut_like_dense:
        return per_pair * (blocks if model.shared_expert_ffn else blocks - 1)
    return per_pair * (1 if model.parallel_block else blocks)


# Of the six passes over a layer's tensors that step_layer_s stands for, those behind the gradients' norm, for which the
# host waits: clipped, updated, copied. Before it: zeroed, copied to fp32, unscaled.
BEHIND_NORM_SHARE = 0.5


@priced("host")
def check_s(group: GroupShape, network: NetworkCalibration) -> float:
    """Time a host spends before it may launch one collective of *group*.

        t = ranks on a node x local + ranks on other nodes x remote          0 for a group of one

    Counted: one exchange per rank, one after the other (a monitored barrier of Gloo).
    Ignored: hosts that arrive late; other groups that check at the same time.
    Source: PyTorch, ProcessGroupWrapper.cpp (runCollectiveChecks) and ProcessGroupGloo.cpp (monitoredBarrier).
    """
    if group.ranks == 1:
        return 0.0
    local = min(group.ranks, group.ranks_per_node)
    return local * network.check_local_s + (group.ranks - local) * network.check_remote_s


RING_LAUNCHES = {
    # forward: attention, merging, (halves); backward: attention's three kernels, sums of the three gradients, (halves)
    "fused": (1.0 + 2.0, 3.0 + 3.0),
    "packed": (1.0 + 2.0 + 4.0, 3.0 + 3.0 + 3.0),
    "eager": (1.0 + 10.0 + 3.0, 3.0 + 3.0 + 4.0),
}
"""Kernels of one step of a ring, forward and backward. Eager: the output and its normaliser take a cast and nine
operations; gradients are added. Half of the steps take half of the keys and values (2 copies; their gradients are read
and written back, 4), half of them half of the queries (output and normaliser are read and written back, 4; back their
gradient, 2).

Packed: lengths of queries and of keys on this rank (2), halves of keys and values or of queries (1), once for all steps
padded lengths and zeros (3); back halves of keys and values or of queries, outputs and their gradient (2), once
normalisers and what is behind the last document (4). Of 4 ranks, whichever kernel attends (Transformer Engine,
context_parallel.py, AttnFuncWithCPAndKVP2P). Not counted: what cuDNN's call adds (transposed normalisers, offsets,
zeros), padding within a document's part, waits for lengths that the host reads."""
RING_MESSAGES = {"fused": (2.0, 2.0), "packed": (2.0, 2.0), "eager": (4.0, 8.0)}
"""Sends and receives of one step: keys and values (and their gradients) in one tensor, or each on its own."""


def ring_step_host_s(layout: Layout, cal: Calibration, *, backward: bool) -> float:
    """Time the host needs to launch one step of a ring, which is the least such a step takes.

        t = (kernels + 3 x messages) x time of one launch          0 in a CUDA graph

    Counted: a message like a collective: buffer, call, events.
    Ignored: steps without a message (the last), waiting on requests; that one document alone has views for halves; the
    halves of Transformer Engine, one copy in a step (counted where it packs documents); what packs need on one rank.
    Source: the operations of zhuzilin/ring-flash-attention (eager) and of Transformer Engine's ring (fused).
    """
    if layout.host.cuda_graphs:
        return 0.0
    kernels, messages = RING_LAUNCHES[layout.context.ring_kernels], RING_MESSAGES[layout.context.ring_kernels]
    return (kernels[backward] + LAUNCHES_OF_A_COLLECTIVE * messages[backward]) * cal.launch_s


class HostTime:
    """Least time of layers of one layout: what the host needs to launch them."""

    def __init__(self, model: Model, layout: Layout, group: GroupShape, cal: Calibration) -> None:
        self._model, self._layout, self._cal = model, layout, cal
        self._check_s = check_s(group, cal.network) if layout.host.checked_collectives else 0.0

    @priced("host")
    def layer_s(self, *, moe: bool, backward: bool) -> float:
        """Forward or backward of one layer.

            t = (launches + pieces) x time of one + expert loops + hooks + collectives x check

        hooks: matrices x module_hook_s, in the backward HOOKS_BACKWARD times that

        Counted: a layer is cut into five pieces where its all-to-alls run beside another micro-batch (attention,
        dispatch, experts, combine, what follows), each with a stream to switch to, two events, detached inputs and a
        backward of its own: overlap_launches, twice that backward. With sequence parallelism the backward gathers its
        input once more: 3 collectives for 2.
        Source: see launches, expert_loops, hooked_matrices and check_s.
        """
        count = (backward_launches if backward else forward_launches)(self._model, self._layout, moe=moe)
        if moe and _overlapped(self._layout) and not _graphed(self._layout):
            count += self._cal.overlap_launches * (BACKWARD_LAUNCHES if backward else 1.0)
        launches_s = count * self._cal.launch_s
        if moe:
            launches_s += _loops_s(self._model, self._layout, self._cal, backward=backward)
        hooks = hooked_matrices(self._model, self._layout, moe=moe) * (HOOKS_BACKWARD if backward else 1.0)
        launches_s += hooks * self._cal.module_hook_s
        repeats = 1.5 if backward and self._layout.tensor.sequence_parallel else 1.0
        return launches_s + repeats * tensor_collectives(self._model, self._layout, moe=moe) * self._check_s


def pass_host_s(layout: Layout, cal: Calibration) -> float:
    """Host work around the layers of one pass, forward or backward, of a micro-batch: schedule and hooks."""
    if _iteration_is_one_graph(layout.host):
        return 0.0
    return cal.micro_batch_fixed_s / 2.0 / layout.pipeline.vpp


@priced("optimizer")
def step_host_s(model: Model, layout: Layout, layers: Ints, cal: Calibration) -> Floats:
    """Host work of a step that nothing hides, on stages of so many *layers*.

        t = fixed + layers x time per layer          graph of the whole iteration: fixed + layers x time / 2

    Counted: adapters have fewer tensors than a layer that is trained whole. While the GPU replays the passes of a step
    from one graph the host queues what it does for every tensor before it needs the norm of the gradients: half.
    Source: calibration (step_fixed_s, step_layer_s); Megatron-Core, full_cuda_graph.py (FullCudaGraphWrapper holds the
    passes of all micro-batches, the optimizer stays outside).
    """
    layer_s = cal.step_layer_s * step_tensors(model, layout)
    if _iteration_is_one_graph(layout.host):
        layer_s *= BEHIND_NORM_SHARE
    return np.asarray(cal.step_fixed_s + layer_s * layers)


def _iteration_is_one_graph(host: Host) -> bool:
    return host.cuda_graphs and host.cuda_graph_scope == "iteration"


@priced("host")
def step_checks_s(group: GroupShape, host: Host, network: NetworkCalibration) -> float:
    """Checks of what the ranks of a data-parallel *group* do once a step beside reducing gradients: loss and norm.

    Source: Megatron-LM and nanotron (mean loss, norm of gradients); gathering parameters is checked with its traffic.
    """
    return 2.0 * check_s(group, network) if host.checked_collectives else 0.0
