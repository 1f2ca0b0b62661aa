"""Send/recv between two GPUs, and all-to-alls, which are many of them at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.network.algorithms import LL, LL_CHANNEL_BYTES, SIMPLE, Wires, fill_s
from hdpsim.cost_models.tracing import priced

_LL_BYTES = 16 * 1024  # NCCL_P2P_LL_THRESHOLD
_LL_CHANNELS = 32  # NCCL's log: "32 p2p channels per peer" in a node
_LL_TURNS = 2.0  # a message with LL takes so many times its time on the wire more


def message_start_s(message_bytes: ArrayLike, wire_s: ArrayLike, calibration: NetworkCalibration) -> Floats:
    """What send/recvs over NVLink take longer than those of a few bytes, beside their time on the wire.

        up to 16 KiB, LL on one channel:     max(0, bytes / 4 KiB - 1) x LL step x factor
        where LL may be longer, on several:  twice its time on the wire
        above, Simple:                       difference of the bases x factor + difference of a step x factor

    Counted: one channel sends a short message, 8 B by each of 512 threads at a time; LL reaches a third of NVLink.
    Ignored: start-up of the channels of a long one.
    Source: NCCL's p2p threshold of LL (NCCL_P2P_LL_THRESHOLD, 16 KiB) and the latencies of tuning.cc. 16 KiB messages
        among 2, 4 and 8 H100s take 2.3 to 2.9 us more than those of 4 KiB (by this formula 2.4), longer ones 5 to 6 us
        (aiconfigurator). A third: 8 H200s, 256 and 512 KiB a message (apex_plus).
    """
    sizes = np.asarray(message_bytes, dtype=np.float64)
    step_s = LL.ring_nvlink_step_s * calibration.intra_latency_factor
    later_s = (SIMPLE.ring_base_s - LL.ring_base_s) * calibration.base_latency_factor
    later_s += (SIMPLE.ring_nvlink_step_s - LL.ring_nvlink_step_s) * calibration.intra_latency_factor
    if calibration.p2p_ll_by_channel:
        return np.where(sizes > _LL_CHANNELS * _LL_BYTES, later_s, _LL_TURNS * np.asarray(wire_s))
    return np.where(sizes > _LL_BYTES, later_s, np.maximum(0.0, sizes / LL_CHANNEL_BYTES - 1.0) * step_s)


@priced()
def all_to_all_s(bytes_total: ArrayLike, wires: Wires) -> Floats:
    """Every rank sends an equal part of *bytes_total* to every rank: grouped send/recv.

        t = launch + peers x time per peer
            + max(bytes to the own node / NVLink, bytes leaving node, block, pod / rate there)
            + max(pipeline fill, start of Simple) + bytes / n / copy rate

    Counted: NVLink and NIC work at the same time; oversubscribed layers carry only what crosses them; the protocol
    for long messages, which starts later, and short ones on one channel (message_start_s).
    Ignored: imbalance between peers (multiply the bytes by max/mean), forwarding over NVLink (PXN).
    Source: NCCL's grouped send/recv; latencies from NetworkCalibration.
    """
    calibration, sizes = wires.calibration, np.asarray(bytes_total, dtype=np.float64)
    local_peers = min(wires.ranks, wires.ranks_per_node) - 1
    remote_peers = wires.ranks - 1 - local_peers
    latency_s = calibration.p2p_intra_latency_s + local_peers * calibration.all_to_all_peer_latency_s
    if remote_peers:
        latency_s += calibration.p2p_inter_latency_s - calibration.p2p_intra_latency_s + wires.propagation_s
        latency_s += remote_peers * calibration.all_to_all_remote_peer_latency_s
    remote = ((share, rate * wires.all_to_all_share) for share, rate in wires.remote)
    routes = ((local_peers / wires.ranks, wires.p2p_nvlink_bytes_per_s), *remote)
    share, bytes_per_s = max(((share, rate) for share, rate in routes), key=lambda route: route[0] / route[1])
    wire_s = sizes * share / bytes_per_s
    fill = fill_s(wire_s, calibration.all_to_all_fill_s)
    start_s = np.maximum(fill, message_start_s(sizes / wires.ranks, wire_s, calibration))
    copy_s = sizes / wires.ranks / calibration.all_to_all_copy_bytes_per_s
    return np.asarray(latency_s + wire_s + start_s + copy_s)
