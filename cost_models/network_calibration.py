"""What a real network reaches of its datasheet: efficiencies, latencies, and where each number comes from.

One frozen value per hardware generation. The defaults describe a healthy H100 cluster on NDR InfiniBand;
a cluster whose network is slower gets a smaller `nic_efficiency` (the first A100 clouds: 0.64).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from hdpsim.errors import CatalogError

__all__ = ["AMPERE_NETWORK", "BLACKWELL_NETWORK", "HOPPER_NETWORK", "NetworkCalibration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCalibration:
    """Efficiencies (share of the peak rate) and latencies of NVLink, NICs and NCCL's algorithms on them."""

    nvlink_efficiency: float = 0.824
    """Share of the NVLink peak a ring of NCCL reaches. Source: NCCL topo.h, 20.6 GB/s usable per 25 GB/s link
    (370.8 of 450 GB/s); an 8-GPU H200 ring all-reduce measures 367 GB/s (stas00/ml-engineering)."""
    nvls_efficiency: float = 0.83
    """Share of the usable NVLink rate the in-switch reduction reaches. Source: NCCL tuning.cc 0.85 x (ch-1)/ch;
    8 H100s measure 480 GB/s bus bandwidth (dgxc-benchmarking) = 308 GB/s on the wire = 0.83 of 370.8."""
    p2p_nvlink_efficiency: float = 0.81
    """Share of the NVLink peak one NCCL send/recv reaches. Source: apex_plus H100 sendrecv, 364 of 450 GB/s."""
    nic_efficiency: float = 0.97
    """Share of the NIC line rate that is payload. Source: SimAI, 48.5 of 50 GB/s (ConnectX-7);
    NVIDIA's guidance for NDR is 46-48 GB/s (nccl-tests issue 290)."""
    base_latency_factor: float = 1.0
    """Multiplies NCCL's fixed latency per collective (6.6 us for a ring with LL: kernel launch, set-up)."""
    intra_latency_factor: float = 1.0
    """Multiplies NCCL's latency per step over NVLink (0.6 / 1.9 / 3.4 us for LL / LL128 / Simple on a ring)."""
    inter_latency_factor: float = 1.0
    """Multiplies NCCL's latency per step over the network (2.7 / 4 / 14 us). Old A100 clouds need about 2:
    NDv4 all-reduces of 8-64 KiB take 1.8-2.8 times as long as with NCCL's own constants (Echo logs)."""
    nic_latency_s: float = 0.5e-6
    """One NIC, GPU memory to wire or back. Source: SimAI's link model, 500 ns."""
    nvswitch_latency_s: float = 25e-9
    """One NVSwitch. Source: SimAI's link model, 25 ns."""
    p2p_intra_latency_s: float = 6e-6
    """One send/recv over NVLink, kernel launch included. Source: apex_plus H100 sendrecv, 6 us at 1 KiB."""
    p2p_inter_latency_s: float = 12e-6
    """One send/recv over the network without wire and switches: launch, proxy thread, rendezvous.
    Source: NCCL's base (6.6 us) plus twice its LL network step (2.7 us): one step each for data and credit."""
    all_to_all_peer_latency_s: float = 0.3e-6
    """What each further NVLink peer adds to an all-to-all. Source: 2, 4, 8 H100s take 6.3, 6.7, 7.3 us
    at 512 B (aiconfigurator, NCCL 2.29)."""
    all_to_all_remote_peer_latency_s: float = 1.0e-6
    """The same for each peer across the network. Source: NCCL's network overhead per message, 1 us."""
    pipeline_fill_bytes: float = 48e6
    """Data in flight on a ring's buffers: a long transfer pays for it once as start-up and drain.
    Source: NCCL, 24 channels x one chunk of 4 x 512 KiB; 8 H100s gather 512 MiB at 336 GB/s, 8 GiB at 368."""
    nvls: bool = True
    """The in-switch reduction is used where the node has it (nodes without NVLink SHARP never do)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_efficiency"):
                if not 0.0 < value <= 1.0:
                    raise CatalogError(f"network.{field.name} must be in (0, 1], got {value}")
            elif not isinstance(value, bool) and not 0.0 <= value < float("inf"):
                raise CatalogError(f"network.{field.name} must be a number >= 0, got {value}")


HOPPER_NETWORK = NetworkCalibration()

AMPERE_NETWORK = NetworkCalibration(
    nvlink_efficiency=0.80,  # NCCL topo.h: 20 of 25 GB/s per link, 240 of 300 GB/s
    p2p_nvlink_efficiency=0.86,  # vidur A100 send_recv, 258 of 300 GB/s
    nic_efficiency=0.94,  # SimAI: 23.5 of 25 GB/s (ConnectX-6)
    p2p_intra_latency_s=8e-6,  # vidur A100 send_recv at 2 KiB
    nvls=False,  # third-generation NVSwitch (Hopper) introduced it
)

BLACKWELL_NETWORK = NetworkCalibration(
    nvlink_efficiency=0.80,  # NCCL topo.h: 40.1 of 50 GB/s per link, 722 of 900 GB/s
    nvls_efficiency=0.747,  # 8 B200s: 838 GB/s bus = 539 on the wire of 722 (stas00/ml-engineering); NCCL: 0.74
    p2p_nvlink_efficiency=0.77,  # aiconfigurator B300 all-to-all, 8 GPUs, ramping to about 690 of 900 GB/s
)
