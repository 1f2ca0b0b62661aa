"""What a cluster is made of: GPU, node, fabric, cluster.

Frozen values in base units (seconds, bytes, FLOP). Bandwidths are per direction and are *peak* figures
from datasheets; what a real transfer or kernel reaches of them is in the calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.reading.checked import (
    Amount,
    Bandwidth,
    Bytes,
    Checked,
    Count,
    Factor,
    FlopRate,
    Number,
    PositiveShare,
    Power,
    Ratio,
)
from hdpsim.errors import UserInputError
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

FabricKind = Literal["rail-optimised", "fat-tree"]
Routing = Literal["ideal", "ecmp"]
CongestionControl = Literal["ideal", "none", "dcqcn", "hybrid"]
Placement = Literal["grouped", "scattered"]
LinkKind = Literal[
    "gpu-out", "gpu-in", "pair", "pcie-out", "pcie-in", "nic-out", "nic-in", "leaf-up", "leaf-down", "spine-up",
    "spine-down", "host-out", "host-in", "host-both", "memory", "storage",
]  # fmt: skip
KINDS: tuple[LinkKind, ...] = LinkKind.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Checked):
    """One accelerator, as its datasheet describes it (dense rates, no sparsity)."""

    name: str
    bf16_flop_per_s: FlopRate
    fp8_flop_per_s: FlopRate | None
    hbm_bytes: Bytes
    hbm_bytes_per_s: Bandwidth
    sm_count: Count
    nvlink_bytes_per_s: Bandwidth
    """NVLink per GPU, per direction."""
    host_link_bytes_per_s: Bandwidth
    """PCIe or C2C between GPU and host memory, one direction at a time (measured where known)."""
    host_link_duplex_bytes_per_s: Bandwidth
    """PCIe or C2C between GPU and host memory, each way while both directions are busy."""
    tdp_w: Power
    calibration: str
    """Name of the calibration of this GPU's hardware generation (cost_models/data/calibration)."""
    fp4_flop_per_s: FlopRate | None = None
    tensor_boost: bool = False
    """Power is moved from the second-level cache to the tensor cores (nvidia-smi boost-slider --vboost 1)."""
    matrix_energy: Ratio = 1.0
    """Energy of a FLOP of products over that of the GPUs on which the generation's was fitted."""
    exponentials: Ratio = 1.0
    """Exponentials per SM and clock over those of the GPUs that the generation's attention was calibrated on."""
    idle_w: Power | None = None
    """Power of the board without work; None: a tenth of tdp_w."""
    prices: str = ""
    """Name of the GPU in lists of prices (prices.py); empty: none of them has it."""
    usd_per_hour: Annotated[float, RANGES["money"]] | None = None
    """What the user says that an hour costs; None: what the list says."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Checked):
    """One server: the GPUs that share NVLink, their NICs and the host memory."""

    name: str
    gpu: Gpu
    gpus: Count
    """GPUs of one NVLink domain: 8 in a DGX/HGX server, 72 in an NVL72 rack."""
    nics: Number
    nic_bytes_per_s: Bandwidth
    """Line rate of one NIC, per direction."""
    host_memory_bytes: Bytes
    host_link_gpus: Count = 1
    """GPUs behind one link to the host: they share its rate (a PCIe switch with one up-link)."""
    nvlink_sharp: bool = False
    """NVSwitch reduces in the network (NVLS), from Hopper on."""
    board_gpus: Annotated[int, RANGES["board_gpus"]] | None = None
    """GPUs of a board without NVSwitch: each one's links run in equal parts to the others; None = a switch."""
    nic_efficiency: PositiveShare | None = None
    """Share of the NICs' line rate that is payload; None = what the calibration says (InfiniBand, RoCE)."""
    collective_share: PositiveShare = 1.0
    """Share of that rate which collectives reach, where NCCL cannot use all of a node's NICs at once."""
    simple_only: bool = False
    """NCCL's protocol Simple alone may be used, as the NICs deliver packets out of order."""
    ring_step_s: Amount = 0.0
    """Least time of every step of a ring that leaves the node, what the NICs' transport adds."""
    all_to_all_share: PositiveShare = 1.0
    """Share of what NICs carry in rings that all-to-alls between nodes reach, where many meet at one receiver."""
    idle_gpus: Number = 0
    """GPUs beside them that train nothing, but are paid for and draw power: 8 where 64 of a rack of 72 are used."""
    host_time: Ratio = 1.0
    """Time of a launch on its processors over that on the H100 servers of the calibrations, as clocks say it."""
    arm_host: bool = False
    """Its processors are Arm's (Grace), which take longer than their clock says: a calibration's arm_host_factor."""
    server_ratio: Factor = 1.5
    """Power of the server over that of its GPUs, all at their limit.

    Source: Latif et al., arXiv 2412.08602: 8 H100 at most 8.4 kW, 1.5 x 5.6 (rated 10.2 kW, 1.82 x 5.6).
    """
    source: str = ""

    @property
    def paid_share(self) -> float:
        """GPUs that are paid for over those that train."""
        return (self.gpus + self.idle_gpus) / self.gpus

    @property
    def host_link_bytes_per_s_per_gpu(self) -> float:
        """What one GPU gets of its link to the host when all GPUs copy in one direction."""
        return self.gpu.host_link_bytes_per_s / min(self.host_link_gpus, self.gpus)

    @property
    def nic_bytes_per_s_per_gpu(self) -> float:
        """Share of the node's NICs that one GPU gets when all GPUs send at once."""
        return self.nics * self.nic_bytes_per_s / self.gpus

    def nvlink_share(self, gpus: int) -> float:
        """Share of a GPU's NVLink rate within a group of so many *gpus* of the node.

            (gpus - 1) / (GPUs of the board - 1) without a switch, otherwise 1

        Limits: the whole board, 1; a pair of four, 1/3.
        Source: HGX A100 and H100 4-GPU boards: 4 of 12, 6 of 18 links to each of the other three GPUs.
        """
        if self.board_gpus is None or gpus < 2:
            return 1.0
        return min(1.0, (gpus - 1) / (self.board_gpus - 1))


def _may_be_link(glob: str) -> bool:
    """Whether links of some kind may have a name of this pattern: `leaf-up:0.*`, `nic-*`."""
    kind, colon, _ = glob.partition(":")
    return any(fnmatchcase(one, kind) for one in KINDS) if colon else any(map(glob.__contains__, "*?["))


def degraded_links(text: str) -> dict[str, float]:
    """What is left of which links, from "nic-out:3.*=0.5; leaf-up:0.1.7=0".

    Raises:
        UserInputError: a part that is not NAME=FACTOR with a factor from 0 to 1, or a name that no link has.
    """
    factors = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, factor = (word.strip() for word in part.partition("="))
        try:
            factors[name] = float(factor)
        except ValueError:
            factors[name] = math.nan
        if not name or not 0.0 <= factors[name] <= 1.0:
            wanted = "expected NAME=FACTOR; ... with factors from 0 (cut) to 1"
            raise UserInputError(f"{wanted}, got {quoted(part)}")
        if not _may_be_link(name):
            raise UserInputError(f"no link is called {name!r}; names begin with {':, '.join(KINDS)}:")
    return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Checked):
    """The network between nodes: a leaf/spine/core Clos, rail-optimised or plain.

    Attributes:
        kind: rail-optimised (NIC i of every node of a block meets at leaf i) or fat-tree (a node's NICs
            all go to the same leaf).
        nodes_per_block: nodes below one set of leaves (a rail-connected block, "scalable unit").
        blocks_per_pod: blocks below one set of spines.
        leaf_oversubscription: down-link over up-link bandwidth at the leaf; 1 = non-blocking.
        spine_oversubscription: down-link over up-link bandwidth at the spine (between pods); 1 = non-blocking.
        hop_latency_s: one switch hop, cable included.
        routing: ideal (flows spread evenly over up-links) or ecmp (by a hash, see cost_models/network/congestion.py).
        uplinks: up-links of one leaf (and of one spine): the bins of the hash.
        port_split: up-link over down-link rate: 2 where a 400G port serves two 200G NICs (MegaScale section 3.6).
        flows_per_connection: flows a NIC's traffic is cut into, each hashed on its own (queue pairs).
        congestion_control: what happens on a link that more flows meet than it carries.
        placement: grouped (a job's nodes follow the blocks: neighbours share leaf switches) or scattered (any node
            anywhere).
        ecmp_seed: seed of the hash: another number, other up-links. Only flows know links (execution.network).
        degraded_links: share of their rate that links have left, "nic-out:3.*=0.5; leaf-up:0.1.7=0" (0: cut). Only
            flows know links (execution.network).
    """

    kind: FabricKind = "rail-optimised"
    nodes_per_block: Count = 32
    blocks_per_pod: Count = 16
    leaf_oversubscription: Factor = 1.0
    spine_oversubscription: Factor = 1.0
    hop_latency_s: Amount = 0.5e-6
    routing: Routing = "ideal"
    uplinks: Count = 32
    port_split: Count = 1
    flows_per_connection: Count = 1
    congestion_control: CongestionControl = "ideal"
    placement: Placement = "grouped"
    ecmp_seed: Number = 0
    degraded_links: str = ""

    def contradictions(self) -> tuple[tuple[str, str], ...]:
        """Degraded links that are not written as such."""
        try:
            degraded_links(self.degraded_links)
        except UserInputError as error:
            return (("degraded_links", str(error)),)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Checked):
    """Identical nodes on one fabric; of several kinds of nodes see MixedCluster."""

    name: str
    node: Node
    nodes: Count
    fabric: Fabric = Fabric()
    source: str = ""

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.node.gpus

    @property
    def gpu(self) -> Gpu:
        """The GPU every node carries."""
        return self.node.gpu

    @property
    def node_gpus(self) -> int:
        """GPUs of every node."""
        return self.node.gpus

    @property
    def kinds(self) -> tuple[Cluster, ...]:
        """The cluster as if all its nodes were of one kind, for every kind of node: itself."""
        return (self,)

    @property
    def gpu_kinds(self) -> Ints:
        """[gpus]: the kind (place in `kinds`) of every GPU's node."""
        return np.zeros(self.gpus, dtype=np.int64)

    @property
    def bf16_flop_per_s(self) -> float:
        """Dense peak of all GPUs together."""
        return self.gpus * self.gpu.bf16_flop_per_s

    @property
    def gpu_words(self) -> str:
        """How many of which GPU."""
        return f"{self.gpus:,} x {self.gpu.name}"
