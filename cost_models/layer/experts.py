"""Routed experts on one GPU: their products, the way of tokens to them and back, what hides it; uneven routers."""

from __future__ import annotations

from math import comb, gcd, sqrt

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layer.tensor_parallel import beside_s
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ExpertRouting
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.slowest_of_many import expected_largest
from hdpsim.cost_models.tracing import note, priced
from hdpsim.cost_models.transformer.model import Model

# SMs that dispatch and combine keep while they run beside compute: DeepEP's default (deepseek-ai/DeepEP, set_num_sms).
DISPATCH_SMS = 20
# GPUs of an NVLink domain that DeepEP's kernels know (deepseek-ai/DeepEP, kernels/configs.cuh, NUM_MAX_NVL_PEERS): what
# dispatches in larger ones is Hybrid-EP.
DEEPEP_DOMAIN = 8


class ExpertParallel:
    """The experts of a layer under a layout.

    ep x etp GPUs hold one copy, each 1/etp of experts / ep of them, whatever tp is (MoE parallel folding); an expert's
    GPUs are neighbours, an expert-parallel group takes every etp-th GPU. Without an etp given the experts live on
    max(tp, ep) GPUs: etp is 1 where ep >= tp, tp / ep otherwise.
    A GPU routes its tokens / tp of a rank's tokens.
    Source: Megatron-Core (expert_tensor_parallel_size); arXiv 2504.14960, section 3.
    """

    def __init__(self, model: Model, layout: Layout, cal: Calibration, collectives: Collectives) -> None:
        self._model, self._layout, self._cal, self._collectives = model, layout, cal, collectives
        self._group = collectives.group(layout.parallel.ep, stride=layout.parallel.expert_cut)
        self._cut_group = collectives.group(layout.parallel.expert_cut)

    @property
    def rows_share(self) -> float:
        """Rows of the experts' products over a rank's tokens: a GPU meets those of all GPUs that share its experts."""
        parallel = self._layout.parallel
        return self._model.top_k / parallel.tp * self._imbalance * parallel.expert_cut

    @property
    def _imbalance(self) -> float:
        """Rows of the busiest GPU over the mean; one that holds all experts meets every token, however it is routed."""
        if self._layout.parallel.ep == 1:
            return 1.0
        experts, model = self._layout.experts, self._model
        if experts.imbalance is not None:
            return experts.imbalance
        spread = spread_of(experts.routing, model, self._cal)
        return busiest_over_mean(model, self._layout.parallel.ep, spread)

    def _routed_bytes(self, tokens: Floats) -> Floats:
        """Routed copies of the tokens of one GPU."""
        model = self._model
        routed = BF16_BYTES * model.routed_hidden * model.top_k * self._imbalance * tokens
        return routed / self._layout.parallel.tp

    @priced("expert_all_to_all")
    def all_to_all_s(self, tokens: Floats) -> Floats:
        """Dispatch and combine of the routed tokens (the same volume forward and backward).

            bytes per GPU and direction = tokens / tp * top_k * h * 2 B * imbalance
            fused: between nodes tokens / tp * (other nodes a token visits) * h * 2 B * imbalance,
                   over NVLink tokens / tp * (other GPUs a token visits) * h * 2 B * imbalance

        h: of latent experts the latent width.
        Counted: both all-to-alls, BF16; fused kernels send a token once to each node, forward it over NVLink once to
        each GPU, and sum the outputs of a GPU's experts before they send them back; in the forward Hybrid-EP's maps,
        half of them in each direction.
        Ignored: routing limited to some nodes.  Source: DeepEP (deepseek-ai), Hybrid-EP (Megatron-Core).
        """
        if self._layout.parallel.ep == 1:
            return np.zeros_like(tokens)
        volume = self._routed_bytes(tokens)
        if self._layout.experts.dispatch == "all-to-all":
            return np.asarray(2 * self._collectives.all_to_all_s(volume, self._group))
        return np.asarray(2 * self._fused_s(volume) + self._routing_maps_s(tokens) / 2)

    def _routing_maps_s(self, tokens: Floats) -> Floats:
        """What Hybrid-EP does before it dispatches: every GPU gets the routing map of all, and reads it.

            t = map / NVLink rate + map / HBM rate        map = GPUs of the group x tokens / tp x experts x 1 B

        Counted: racks, whose domains are larger than what DeepEP knows; several racks gather over NCCL.
        Ignored: Hybrid-EP in servers of 8 GPUs.
        Source: deepseek-ai/DeepEP, branch hybrid-ep, executor.cu (allgather_routing_map: bool, tokens x experts) and
        hybrid_ep.cu (metadata_preprocessing; enable_custom_allgather); Megatron-Core has sent maps of indices since
        September 2026 (pull request 6614).
        """
        group = self._group
        if self._collectives.fabric.cluster.node.gpus <= DEEPEP_DOMAIN:
            return np.zeros_like(tokens)
        map_bytes = group.ranks * self._model.experts * tokens / self._layout.parallel.tp
        read_s = memory_bound_s(map_bytes, self._collectives.fabric.cluster.gpu, self._cal)
        if group.nodes > 1:
            return self._collectives.all_gather_s(map_bytes, group) + read_s
        rate = self._collectives.wires(group).p2p_nvlink_bytes_per_s
        return np.asarray(map_bytes * (1.0 - 1.0 / group.ranks) / rate + read_s)

    def sent(self, tokens: Floats, exposed_s: Floats) -> SentTimes | None:
        """What a GPU sends to other nodes in one direction (*exposed_s* of it shows); None: experts are on one node."""
        group, model = self._group, self._model
        if group.nodes == 1:
            return None
        volume = 2.0 * self._routed_bytes(tokens) * (1.0 - group.ranks_per_node / group.ranks)
        if self._layout.experts.dispatch != "all-to-all":
            volume = volume * self._parts_of_a_token(group.nodes) / model.top_k
        rate = min(network for _, network in self._collectives.wires(group).remote)
        return SentTimes.of_collective(self.all_to_all_s(tokens), volume, rate, exposed_s=exposed_s)

    def _fused_s(self, volume: Floats) -> Floats:
        """One way of a fused dispatch: NVLink and NICs at once, no copy into place, one launch."""
        wires, group = self._collectives.wires(self._group), self._group
        cal = wires.calibration
        model = self._model
        nodes, gpus = (self._parts_of_a_token(parts) for parts in (group.nodes, group.ranks))
        # of a token's copies, 1 - 1/nodes leave the node one by one; fused, one per other node that it visits
        distinct = nodes / model.top_k
        note(nodes_of_a_token=nodes, gpus_of_a_token=gpus)
        local = (gpus / model.top_k * (1.0 - 1.0 / group.ranks_per_node), wires.p2p_nvlink_bytes_per_s)
        routes = [local, *((share * distinct, rate) for share, rate in wires.remote)]
        wire_s = volume * max(share / rate for share, rate in routes)
        latency_s = cal.p2p_intra_latency_s
        if group.nodes > 1:
            latency_s += cal.p2p_inter_latency_s + wires.propagation_s
        return np.asarray(latency_s + wire_s)

    def _parts_of_a_token(self, parts: int) -> float:
        return parts_of_a_token(self._model, parts, in_turn=self._layout.experts.in_turn)

    @priced("tp_communication")
    def cut_experts_s(self, tokens: Floats) -> Floats:
        """All-gather of the routed tokens over the GPUs that share an expert, and reduce-scatter of its outputs.

            bytes = etp * tokens / tp * top_k * h * 2 B * imbalance, the same in the backward
            ep = 1: etp * tokens / tp * h * 2 B

        With ep = 1 a GPU has a part of every expert: tokens are gathered once, copied for their experts there, and
        their outputs summed before they are scattered. Where the GPUs are the tensor-parallel group, this is its own
        gather and scatter around the MLP, as of dense layers (tensor_parallel), and nothing is left here.
        Source: Megatron-Core, MoEAlltoAllTokenDispatcher (tp_extended), MoEAllGatherTokenDispatcher.
        """
        layout = self._layout
        if layout.parallel.expert_cut == 1 or layout.parallel.experts_cut_like_dense:
            return np.zeros_like(tokens)
        copies = self._model.top_k if layout.parallel.ep == 1 else 1
        volume = layout.parallel.expert_cut * self._routed_bytes(tokens) / copies
        gather = self._collectives.all_gather_s(volume, self._cut_group)
        return np.asarray(gather + self._collectives.reduce_scatter_s(volume, self._cut_group))


def parts_of_a_token(model: Model, parts: int, *, in_turn: bool) -> float:
    """Expected number of parts (nodes, GPUs) on which a token's experts sit, E / parts = e of them on each.

        all choices alike   parts x (1 - C(E - e, k) / C(E, k))
        in turn             mean of ceil((s + k) / e), at most parts, over s = 0, g, 2 g, ... < e, g = gcd(k, e)

    In turn, token i has the k experts from number i k on, modulo E: neighbours, which begin at s on their first part.
    8 of 256 experts on 64 GPUs in turn: on 2 GPUs of one node; all choices alike: on 7.7 GPUs of 5.3 nodes.
    Source: in turn, NVIDIA-NeMo/Automodel, components/moe/layers.py (FakeBalancedGate).
    """
    experts, top_k, experts_of_part = model.experts, model.top_k, model.experts // parts
    if in_turn:
        starts = range(0, experts_of_part, gcd(top_k, experts_of_part))
        return sum(min(parts, -(-(start + top_k) // experts_of_part)) for start in starts) / len(starts)
    return parts * (1.0 - comb(experts - experts_of_part, top_k) / comb(experts, top_k))


def beside_the_other_micro_batch_s(
    forward_s: Floats, backward_s: Floats, compute_s: Floats, sm_count: int
) -> tuple[Floats, Floats]:
    """Exposed all-to-all of a layer when the forward of one micro-batch runs beside the backward of another.

        exposed = max( SMs kept / SMs x all-to-all, all-to-all - compute ), forward and backward together

    *compute_s*: both directions of the layer. Each direction carries its share of what is exposed.
    Ignored: first and last micro-batches of a pipeline, which have no partner.
    Source: DeepSeek-V3, arXiv 2412.19437, section 3.2.1 (DualPipe); Megatron-Core, moe_a2a_overlap (1F1B).
    """
    total = forward_s + backward_s
    exposed = beside_s(total, compute_s, DISPATCH_SMS / sm_count)
    share = np.divide(exposed, total, out=np.zeros_like(total), where=total > 0)
    return forward_s * share, backward_s * share


# A router of random weights sends equal words to the same experts: two tokens of English text are the same word with
# this probability, the sum of squared frequencies. Source: counts of the Brown corpus (Kucera and Francis, 1967): "the"
# 69,971 of 1,014,232 words, "of" 36,411, "and" 28,852, ...
SAME_WORD = 0.01
# Experts steered by a bias: the fullest of 64 has 1.04 times the mean over a validation set, 2.34 standard deviations.
# Source: arXiv 2408.15664, table 2 (MaxVio_global 0.04, models of 1 and 3 billion parameters).
BIASED_SPREAD = 0.04 / 2.34


def busiest_over_mean(model: Model, ep: int, spread: float) -> float:
    """Expected largest number of routed tokens on a GPU of an expert-parallel group, over the mean.

        ratio = min( 1 + z(ep) x spread x sqrt( ep / (E - 1) ),  ep x min(E / ep, k) / k )

    *spread* is the coefficient of variation of the experts' tokens. E experts in ep equal parts whose sum is fixed: a
    part of E / ep has the variance spread^2 (ep - 1) / (E - 1), and its correlation with another one is -1 / (ep - 1),
    which widens the largest of them by ep / (ep - 1). z(ep) is the largest of so many normal numbers. At most all
    tokens choose this GPU's experts.
    Limits: 1 with ep = 1 or equal experts; 1 + z(E) x spread with one expert per GPU, E large; many experts on a GPU
    even out with the root of their number.
    Counted: the mean of a layer's largest, which is what a layer waits for, over layers and micro-batches.
    Ignored: chance (a uniform router deviates by 1 % at 4,096 tokens per GPU), experts that are busy together.
    """
    if ep == 1:
        return 1.0
    uneven = 1.0 + expected_largest(ep) * spread * sqrt(ep / (model.experts - 1))
    return min(uneven, ep * min(model.experts / ep, model.top_k) / model.top_k)


def spread_of(routing: ExpertRouting, model: Model, cal: Calibration) -> float:
    """Coefficient of variation of tokens among a layer's experts, by what keeps the router balanced.

        even, in-turn: 0.  loss: the calibration's.  bias: 0.017
        untrained: sqrt( P(same word) (E - k) / k ): a word's k experts are any k of E

    Source: see the constants; random routing: sampling k of E without putting back, once for every word.
    """
    match routing:
        case "even" | "in-turn":
            return 0.0
        case "bias":
            return BIASED_SPREAD
        case "untrained":
            return sqrt(SAME_WORD * (model.experts - model.top_k) / model.top_k)
        case "loss":
            return cal.expert_load_spread
