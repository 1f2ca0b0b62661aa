"""Candidates of the table of checks that have to be worked out: changes of scenario keys."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from .observed import halves

if TYPE_CHECKING:
    from .observed import Observed
    from .trials import Changes


def more_chunks(observed: Observed) -> Iterator[Changes]:
    """Interleaved chunks that divide the layers."""
    pp, layers = observed.setup.layout.parallel.pp, observed.setup.model.layers
    for chunks in (2, 3, 4, 5, 6, 8, 10, 12):
        if layers % (pp * chunks) == 0:
            yield {"layout.vpp": chunks, "layout.schedule": "interleaved"}


def fewer_stages(observed: Observed) -> Iterator[Changes]:
    """Half of the stages and so on, also with two chunks each."""
    for fewer in halves(observed.setup.layout.parallel.pp):
        yield observed.degrees_of(pp=fewer)
        if observed.setup.model.layers % (2 * fewer) == 0 and fewer > 1:
            yield {"layout.pp": fewer, "layout.vpp": 2, "layout.schedule": "interleaved"}


def dividing_stages(observed: Observed) -> Iterator[Changes]:
    """Other numbers of stages that divide the layers."""
    pp = observed.setup.layout.parallel.pp
    for degree in (*halves(pp), 2 * pp):
        if observed.setup.model.layers % degree == 0:
            yield observed.degrees_of(pp=degree)


def dividing_chunks(observed: Observed) -> Iterator[Changes]:
    """Chunks that divide the layers, with embedding and head counted as such or not."""
    pp, layers = observed.setup.layout.parallel.pp, observed.setup.model.layers
    for chunks, embedding in product((2, 3, 4, 6, 8), (False, True)):
        if (layers + 2 * embedding) % (pp * chunks) == 0:
            yield {
                "layout.vpp": chunks, "layout.schedule": "interleaved", "layout.embedding_layers": embedding,
            }  # fmt: skip


def less_tensor_parallel(observed: Observed) -> Iterator[Changes]:
    """Fewer GPUs to cut a layer over, with stages or smaller micro-batches instead."""
    tp, pp = observed.tp, observed.setup.layout.parallel.pp
    for fewer in halves(tp):
        yield {"layout.tp": fewer}
        yield from ({"layout.tp": fewer, **capacity} for capacity in observed.capacities(fewer / tp))
        yield observed.degrees_of(tp=fewer, pp=pp * tp // fewer)


def faster_nics(observed: Observed) -> Iterator[Changes]:
    """Twice the rate."""
    yield {"cluster.node.nic": f"{2 * observed.node.nic_bytes_per_s * 8 / 1e9:g}Gbps"}


def shared_within(observed: Observed) -> Iterator[Changes]:
    """States shared by fewer ranks: of a server, or a part of all."""
    ranks = observed.setup.ranks
    for members in {
        max(1, observed.node.gpus // observed.tp),
        *(ranks // part for part in (2, 4, 8, 16) if ranks % part == 0),
    }:
        if 1 < members < ranks:
            yield {"layout.shard_ranks": members}


def shared_within_blocks(observed: Observed) -> Iterator[Changes]:
    """States shared by as many ranks as a block has nodes."""
    yield {"layout.shard_ranks": observed.fabric.nodes_per_block}


def other_meshes(observed: Observed) -> Iterator[Changes]:
    """Other context-parallel degrees, and with them other numbers of groups."""
    yield from ({"layout.cp": cp} for cp in (1, 2, 4, 8, 16, 32, 64) if observed.setup.ranks % cp == 0)


def longer_packs(observed: Observed) -> Iterator[Changes]:
    """More sequences of stated lengths in a pack."""
    lengths = observed.trials.scenario.data.lengths_tokens
    for count in (2, 4, 8) if lengths is not None else ():
        yield {"data.context": f"{max(lengths or ()) * count} tokens"}


def more_flows(observed: Observed) -> Iterator[Changes]:
    """Smaller ones."""
    flows = observed.fabric.flows_per_connection
    yield from ({"cluster.fabric.flows_per_connection": flows * more} for more in (2, 4, 8))


def a_head_for_every_gpu(observed: Observed) -> Iterator[Changes]:
    """As much tensor parallelism as there are key and value heads."""
    yield {"layout.tp": observed.setup.model.kv_heads}
