"""Candidates that may help against what checks find: changes of scenario keys, each of which is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from .observed import halves

if TYPE_CHECKING:
    from .observed import Observed
    from .trials import Changes


def switches(key: str, *values: object) -> list[Changes]:
    """One change for each value of a key."""
    return [{key: value} for value in values]


def other_pipelines(observed: Observed) -> Iterator[Changes]:
    """Other schedules, more chunks, fewer stages, smaller micro-batches."""
    pp, layers = observed.setup.layout.parallel.pp, observed.setup.model.layers
    for chunks in (2, 3, 4, 5, 6, 8, 10, 12):
        if layers % (pp * chunks) == 0:
            yield {"layout.vpp": chunks, "layout.schedule": "interleaved"}
    for schedule in ("1f1b", "zb-h1", "zb-h2"):
        yield {"layout.vpp": 1, "layout.schedule": schedule}
    yield {"layout.vpp": 2, "layout.schedule": "zb-v"}
    yield {"layout.pp_overlap": True}
    for fewer in halves(pp):
        yield observed.degrees(pp=fewer)
        if layers % (2 * fewer) == 0 and fewer > 1:
            yield {"layout.pp": fewer, "layout.vpp": 2, "layout.schedule": "interleaved"}
    if not observed.is_static:
        yield from observed.capacities(0.5, 0.25)


def other_stages(observed: Observed) -> Iterator[Changes]:
    """Layers dealt otherwise, or other numbers of stages that divide them."""
    pp, layers = observed.setup.layout.parallel.pp, observed.setup.model.layers
    yield {"layout.embedding_layers": True}
    yield {"layout.stage_balance": "flop"}
    for degree in (*halves(pp), 2 * pp):
        if layers % degree == 0:
            yield observed.degrees(pp=degree)
    for chunks, embedding in product((2, 3, 4, 6, 8), (False, True)):
        if (layers + 2 * embedding) % (pp * chunks) == 0:
            yield {
                "layout.vpp": chunks, "layout.schedule": "interleaved", "layout.embedding_layers": embedding,
            }  # fmt: skip


def less_tensor_parallel(observed: Observed) -> Iterator[Changes]:
    """Overlap, or fewer GPUs to cut a layer over, with stages or smaller micro-batches instead."""
    tp, pp = observed.setup.layout.parallel.tp, observed.setup.layout.parallel.pp
    yield {"layout.tp_overlap": True}
    yield from ({"layout.tp_overlap": True, "layout.tp_exchange": kind} for kind in ("gathers", "mlp"))
    yield {"layout.sequence_parallel": True}
    yield {"layout.tp_batch_first": False}
    for fewer in halves(tp):
        yield {"layout.tp": fewer}
        yield from ({"layout.tp": fewer, **capacity} for capacity in observed.capacities(fewer / tp))
        yield observed.degrees(tp=fewer, pp=pp * tp // fewer)


def shorter_rings(observed: Observed) -> Iterator[Changes]:
    """Other ways to share a sequence, smaller groups, faster NICs."""
    yield from switches("layout.cp_kind", "ring", "all-gather", "gathered-ring", "ulysses")
    yield from switches("strategy.name", "hdp-opt", "hdp-naive")
    yield from observed.capacities(2, 4)
    yield {"layout.rank_capacity": "auto"}
    if observed.is_static and observed.value("layout.cp") is not None:
        yield {"layout.cp": "auto"}
        yield from switches("layout.cp", *halves(observed.value("layout.cp")))
    yield {"cluster.node.nic": f"{2 * observed.node.nic_bytes_per_s * 8 / 1e9:g}Gbps"}


def experts_elsewhere(observed: Observed) -> Iterator[Changes]:
    """Overlap, a fused dispatch, experts on fewer GPUs."""
    yield {"layout.ep_overlap": True}
    yield {"layout.expert_dispatch": "fused"}
    yield {"layout.ep_overlap": True, "layout.expert_dispatch": "fused"}
    yield {"layout.etp": 1}
    yield from switches("layout.ep", *halves(observed.setup.layout.parallel.ep))


def cheaper_gradients(observed: Observed) -> Iterator[Changes]:
    """Reduction beside the backward, of sums alone, within fewer ranks."""
    yield {"layout.dp_overlap": True}
    yield {"layout.dp_overlap": True, "layout.sharding": "zero1"}
    yield {"layout.sharding": "zero1"}
    yield {"layout.gradient_all_reduce": False}
    yield from shared_within(observed)


def cheaper_gathers(observed: Observed) -> Iterator[Changes]:
    """Gathers beside data loading and the next forward, within fewer ranks."""
    yield {"layout.dp_overlap": True, "layout.gather_overlap": True}
    yield {"layout.prefetch_gather": True}
    yield {"layout.dp_overlap": True, "layout.gather_overlap": True, "layout.prefetch_gather": True}
    yield {"layout.owner_broadcasts": False}
    yield {"layout.sharding": "none"}
    yield from shared_within(observed)


def shared_within(observed: Observed) -> Iterator[Changes]:
    """States shared by fewer ranks: of a server, or a part of all."""
    ranks = observed.setup.ranks
    tp = observed.setup.layout.parallel.tp
    for members in {
        max(1, observed.node.gpus // tp),
        *(ranks // part for part in (2, 4, 8, 16) if ranks % part == 0),
    }:
        if 1 < members < ranks:
            yield {"layout.shard_ranks": members}


def cheaper_layer_gathers(observed: Observed) -> Iterator[Changes]:
    """Parameters shared within fewer ranks, or not at all."""
    yield from shared_within(observed)
    yield from switches("layout.sharding", "zero1", "zero2")
    yield {"layout.dp_overlap": True}
    yield {"layout.gather_lists": False}
    yield {"layout.shard_copies": "none"}


def better_balance(observed: Observed) -> Iterator[Changes]:
    """Other strategies and packers, other micro-batches."""
    yield from switches("strategy.name", "hdp-opt", "hdp-naive")
    yield from switches("strategy.balancing", *of_hdp(observed))
    yield from switches("strategy.dynamic_groups", *of_hdp(observed))
    if observed.is_static:
        yield from switches("strategy.packing", "best-fit", "first-fit")
    else:
        yield from observed.capacities(0.5, 0.25)
        yield {"layout.rank_capacity": "auto"}
    yield {"layout.shard_ranks": "all"}


def of_hdp(observed: Observed) -> tuple[object, ...]:
    """The values of a switch to turn on that only HDP has."""
    return () if observed.is_static else (True,)


def tighter_packs(observed: Observed) -> Iterator[Changes]:
    """Every packer that keeps sequences whole, with padding and without; strategies without packs."""
    for packing, padding in product(("in-order", "best-fit", "first-fit"), (True, False)):
        yield {"strategy.packing": packing, "strategy.padding": padding}
    yield from switches("strategy.name", "hdp-opt", "hdp-naive")


def other_meshes(observed: Observed) -> Iterator[Changes]:
    """Other context-parallel degrees, and with them other numbers of groups."""
    ranks = observed.setup.ranks
    yield {"layout.cp": "auto"}
    yield from switches("layout.cp", *(cp for cp in (1, 2, 4, 8, 16, 32, 64) if ranks % cp == 0))
    yield from tighter_packs(observed)


def less_recomputation(observed: Observed) -> Iterator[Changes]:
    """Less of it, with the smaller micro-batches that may need."""
    for kind in ("none", "selective"):
        yield {"layout.recompute": kind}
        yield {"layout.recompute": kind, "layout.rank_capacity": "auto"}
        yield from ({"layout.recompute": kind, **capacity} for capacity in observed.capacities(0.5, 0.25))
        yield {"layout.recompute": kind, "layout.sharding": "zero2"}


def fewer_launches(observed: Observed) -> Iterator[Changes]:
    """CUDA graphs, fewer or larger kernels, a host that waits for nothing."""
    yield {"layout.cuda_graphs": True}
    yield {"layout.cuda_graphs": True, "layout.cuda_graph_scope": "iteration"}
    yield from switches("layout.launch_blocking", False)
    yield from switches("layout.checked_collectives", False)
    yield {"layout.fused_kernels": True}
    yield {"layout.expert_kernels": "grouped"}
    yield {"memory.host_run_ahead": False}
    yield from observed.capacities(2, 4)
    yield from switches("layout.tp", *halves(observed.setup.layout.parallel.tp))


def larger_micro_batches(observed: Observed) -> Iterator[Changes]:
    """More tokens on a rank; of sequences of stated lengths more in a pack."""
    data = observed.trials.scenario.data
    if data.lengths_tokens is not None:
        longest = max(data.lengths_tokens)
        yield from switches("data.context", *(f"{longest * count} tokens" for count in (2, 4, 8)))
    if not observed.is_static:
        yield from observed.capacities(2, 4, 8)
        yield {"layout.rank_capacity": "auto"}


def newer_kernels(observed: Observed) -> Iterator[Changes]:
    """The kernels that are the default."""
    yield {"layout.attention_kernel": "flash"}
    yield {"layout.fused_kernels": True, "layout.fused_loss": True}
    yield {"layout.attention_kernel": "flash", "layout.fused_kernels": True, "layout.fused_loss": True}
    yield {"layout.gradient_accumulation": "fused"}
    if observed.setup.model.experts:
        yield {"layout.expert_kernels": "grouped"}


def cheaper_optimizer(observed: Observed) -> Iterator[Changes]:
    """States on the GPU, and shared."""
    yield {"layout.optimizer_offload": False}
    yield from switches("layout.sharding", "zero1", "zero2")
    yield {"layout.shard_ranks": "all"}


def earlier_data(observed: Observed) -> Iterator[Changes]:
    """Batches and plans that get ready while the step before trains."""
    yield {"data.asynchronous_loading": True}
    yield {"data.loader": "shared"}
    yield {"data.asynchronous_loading": True, "data.loader": "shared"}
    yield from switches("data.prefetch_steps", 2, 4)
    yield from switches("strategy.remote_data_loading", *of_hdp(observed))


def even_tiers(observed: Observed) -> Changes:
    """A network with as much bandwidth above its switches as below."""
    return {"cluster.fabric.leaf_oversubscription": 1, "cluster.fabric.spine_oversubscription": 1}


def closer_nodes(observed: Observed) -> Iterator[Changes]:
    """Neighbours that share switches, less traffic between blocks, and at last an even network."""
    yield {"cluster.fabric.placement": "grouped"}
    yield from switches("layout.order", "tp-dp-pp", "tp-pp-dp")
    yield from switches("layout.shard_ranks", observed.setup.cluster.fabric.nodes_per_block)
    yield from cheaper_gradients(observed)
    yield even_tiers(observed)


def fewer_collisions(observed: Observed) -> Iterator[Changes]:
    """More and smaller flows, other ports and control of congestion, and at last even routing."""
    flows = observed.setup.cluster.fabric.flows_per_connection
    yield from switches("cluster.fabric.flows_per_connection", *(flows * more for more in (2, 4, 8)))
    yield from switches("cluster.fabric.port_split", 2)
    yield from switches("cluster.fabric.congestion_control", "hybrid")
    yield {"cluster.fabric.placement": "grouped"}
    yield {"cluster.fabric.routing": "ideal"}
