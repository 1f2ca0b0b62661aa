"""What a real network reaches of its datasheet: efficiencies, latencies, and where each number comes from.

The defaults describe a healthy H100 cluster on NDR InfiniBand; the calibration file of a generation says in what its
network differs. A cluster whose network is slower gets a smaller `nic_efficiency` (the first A100 clouds: 0.64).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from hdpsim.cost_models.reading.checked import Calibrated, Checked, PositiveShare
from hdpsim.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCalibration(Checked):
    """Efficiencies (share of the peak rate) and latencies of NVLink, NICs and NCCL's algorithms on them."""

    nvlink_efficiency: PositiveShare = 0.824
    """Share of the NVLink peak a ring of NCCL reaches. Source: NCCL topo.h, 20.6 GB/s usable per 25 GB/s link
    (370.8 of 450 GB/s); an 8-GPU H200 ring all-reduce measures 367 GB/s (stas00/ml-engineering)."""
    nvls_efficiency: PositiveShare = 0.83
    """Share of the usable NVLink rate the in-switch reduction reaches. Source: NCCL tuning.cc 0.85 x (ch-1)/ch;
    8 H100s measure 480 GB/s bus bandwidth (dgxc-benchmarking) = 308 GB/s on the wire = 0.83 of 370.8."""
    nvls_rack_efficiency: PositiveShare = 0.625
    """The same for groups over the switch trays of a rack. Source: 72 GB200s reduce at 839 GB/s bus bandwidth = 431
    on the wire of 690 (coreweave/nccl-tests)."""
    p2p_nvlink_efficiency: PositiveShare = 0.81
    """Share of the NVLink peak one NCCL send/recv reaches. Source: apex_plus H100 sendrecv, 364 of 450 GB/s."""
    nic_efficiency: PositiveShare = 0.97
    """Share of the NIC line rate that is payload. Source: SimAI, 48.5 of 50 GB/s (ConnectX-7);
    NVIDIA's guidance for NDR is 46-48 GB/s (nccl-tests issue 290)."""
    base_latency_factor: Calibrated = 0.7
    """Multiplies NCCL's fixed latency per collective (6.6 us for a ring with LL: kernel launch, set-up).
    Source: ring steps of 2, 4, 8 H100s at 512 B (aiconfigurator): 4.4 us + 0.85 us per step."""
    intra_latency_factor: Calibrated = 1.35
    """Multiplies NCCL's latency per step over NVLink (0.6 / 1.9 us for LL / LL128 on a ring).
    Source: the same measurement."""
    simple_base_factor: Calibrated = 1.44
    """Multiplies NCCL's fixed latency of a ring with Simple (8.4 us). Source: fitted with the next one and
    pipeline_fill_s on 244 gathers, reduce-scatters and all-reduces of 2 to 8 H100s and H200s from 2 MiB on
    (aiconfigurator, apex_plus, DistCA); either of the first two left out moves it by 1.5 us."""
    simple_step_factor: Calibrated = 0.21
    """Multiplies NCCL's latency per step of a ring with Simple over NVLink (3.4 us). Source: the same fit."""
    nvls_latency_factor: Calibrated = 1.09
    """Multiplies NCCL's latency of the in-switch reduction (25 us). Source: 8 H100s, 2 to 8 MiB, 27 us
    (dgxc-benchmarking, Azure's benchmarking guide, apex_plus; 26 to 28 with one of them left out)."""
    inter_latency_factor: Calibrated = 1.0
    """Multiplies NCCL's latency per step over the network (2.7 / 4 / 14 us). Old A100 clouds need about 2:
    NDv4 all-reduces of 8-64 KiB take 1.8-2.8 times as long as with NCCL's own constants (Echo logs)."""
    nic_latency_s: Calibrated = 0.5e-6
    """One NIC, GPU memory to wire or back. Source: SimAI's link model, 500 ns."""
    nvswitch_latency_s: Calibrated = 25e-9
    """One NVSwitch. Source: SimAI's link model, 25 ns."""
    p2p_intra_latency_s: Calibrated = 6e-6
    """One send/recv over NVLink, kernel launch included. Source: apex_plus H100 sendrecv, 6 us at 1 KiB."""
    p2p_inter_latency_s: Calibrated = 12e-6
    """One send/recv over the network without wire and switches: launch, proxy thread, rendezvous.
    Source: NCCL's base (6.6 us) plus twice its LL network step (2.7 us): one step each for data and credit."""
    p2p_ll_by_channel: bool = False
    """Sends over NVLink go with LL up to 16 KiB on each of 32 channels, not up to 16 KiB in all. Source: NVIDIA/nccl,
    src/enqueue.cc of 2.22 and some releases after it (thresholdLL, NCCL_P2P_LL_THRESHOLD)."""
    all_to_all_peer_latency_s: Calibrated = 0.3e-6
    """What each further NVLink peer adds to an all-to-all. Source: 2, 4, 8 H100s take 6.3, 6.7, 7.3 us
    at 512 B (aiconfigurator, NCCL 2.29)."""
    all_to_all_remote_peer_latency_s: Calibrated = 1.0e-6
    """The same for each peer across the network. Source: NCCL's network overhead per message, 1 us."""
    channels_rank_s: Calibrated = 0.35e-6
    """What an LL message takes longer, per rank on a node, once it is too long for one channel (4 KiB per rank on a
    ring, 4 KiB on a tree: NCCL's thread threshold, 8 B x 512 threads). Source: gathers of 2 and 8 H100s take 0.9 and
    2.7 us more from 8 and 32 KiB on, all-reduces of 2 and 4 GB200s 0.7 and 1.5 us (aiconfigurator; apex_plus alike)."""
    pipeline_fill_s: Calibrated = 22e-6
    """Start-up and drain of a long transfer on a ring: what its buffers hold at the channel's speed.
    Source: fitted with simple_base_factor."""
    all_to_all_fill_s: Calibrated = 30e-6
    """The same of an all-to-all. Source: 2, 4, 8 H100s, 16 MiB and more (aiconfigurator)."""
    nvls_fill_s: Calibrated = 100e-6
    """The same for the in-switch reduction. Source: 8 H100s, 16 MiB to 1 GiB (dgxc-benchmarking)."""
    copy_bytes_per_s: Annotated[float, Range(1e3, sys.float_info.max)] = 1.06e12
    """Rate at which a rank copies its own shard when the result is a new buffer (all-gather,
    reduce-scatter, all-to-all). Source: 2, 4, 8 H100s between 256 and 512 MiB (aiconfigurator) solve to
    368 GB/s on the wire and 1.06 TB/s for the copy."""
    all_to_all_copy_bytes_per_s: Annotated[float, Range(1e3, sys.float_info.max)] = 1.06e12
    """The same of an all-to-all, whose send to itself takes the channels of the other sends. Source: as of a gather."""
    check_local_s: Calibrated = 212e-6
    """Where hosts check with each other before every collective: per rank on the own node. Source: fitted, layers
    that wait for the host with 2, 4, 8 tensor-parallel ranks (8.8, 13.5, 22 ms forward and backward; nanotron)."""
    check_remote_s: Calibrated = 327e-6
    """The same per rank on other nodes. Source: gathers and reductions of 1 GiB over 64 to 512 ranks of such jobs
    (315 to 328 us per rank, whatever the collective); layers of 16 ranks on two nodes agree (49 ms)."""
    nccl_picks: bool = True
    """NCCL's own tables pick the algorithm and protocol of a collective; without, the fastest is taken."""
    nccl_before_2_18: bool = False
    """They are the tables of NCCL 2.8 to 2.17 (2020 to early 2023), not those of 2.27 and later."""
    nvls: bool = True
    """The in-switch reduction is used where the node has it (nodes without NVLink SHARP never do)."""
