"""What a GPU and its server draw while they train, by what they do."""

from __future__ import annotations

from dataclasses import dataclass

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu, Node
from hdpsim.cost_models.kernels.number_formats import matrix_unit
from hdpsim.cost_models.layout.switches import ProductPrecision

IDLE_SHARE = 0.1
"""Power of a board without work over its limit, where nobody measured it: 0.09 to 0.14 of A100 to GB200 (listings)."""

MEMORY_BOUND_SHARE = 0.6
"""Power of kernels that HBM limits, over the board's limit.

Source: token generation draws 0.5 to 0.6 of what a board may (Patel et al., arXiv 2308.12908). The figure was not
checked against the paper's text: take it as assumed.
"""

COMMUNICATION_SHARE = 0.5
"""Power while a GPU communicates and computes nothing, over the board's limit.

Source: GPT-NeoX when its workers synchronise (arXiv 2308.12908, A100). The figure was not checked against the paper's
text: take it as assumed.
"""

WAITING_SHARE = 0.3
"""Power of a GPU that waits inside a kernel, at full clock, over the board's limit.

Source: between the trough of an idle board (0.2) and that of communication (0.5) in arXiv 2308.12908; assumed.
"""

FIXED_SHARE = 0.5
"""Part of what a server draws beside its GPUs that does not follow their load: processors, memory, NICs, switches.

The rest are fans and losses of conversion. Source: assumed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWork:
    """What a GPU does in a step, mean over all GPUs.

    Attributes:
        matrix_s: products and attention.
        memory_s: kernels that HBM limits, the optimizer among them.
        communication_s: communication that nothing hides.
        waiting_s: waiting for other GPUs, for the host, for data.
        product_flop: FLOP of matrix products, recomputation included.
        attention_flop: FLOP of attention, recomputation included.
    """

    matrix_s: float
    memory_s: float
    communication_s: float
    waiting_s: float
    product_flop: float
    attention_flop: float

    @property
    def step_s(self) -> float:
        """The seconds of all kinds of work together."""
        return self.matrix_s + self.memory_s + self.communication_s + self.waiting_s


def idle_w(gpu: Gpu) -> float:
    """Power of a board without work."""
    return IDLE_SHARE * gpu.tdp_w if gpu.idle_w is None else gpu.idle_w


def gpu_w(work: GpuWork, gpu: Gpu, cal: Calibration, precision: ProductPrecision) -> float:
    """Mean power of a GPU in a step.

        P step = E(matrix) + (0.6 t_memory + 0.5 t_communication) limit + max(0.3 limit, idle) t_waiting
        E(matrix) = min( static t_matrix + J_product F_product + J_attention F_attention,  limit t_matrix )

    J: energy of a FLOP in the number format, static: power that does not follow the clock, both from the calibration
    by whose constants matrix work slows down at the limit (formats.power_slowdown). Where it has no energy of a FLOP,
    matrix work draws the limit.
    Counted: every second of the step once. Limits: nothing but products, at most the limit; nothing but waiting, 0.3.
    Ignored: what hidden communication adds to compute; power follows neither temperature nor the values of operands.
    Source: the constants above and those of the calibration.
    """
    limit = gpu.tdp_w
    product_j = matrix_unit(gpu, cal, precision).joule_per_flop
    attention_j = cal.bf16_joule_per_flop
    matrix_j = limit * work.matrix_s
    if product_j and attention_j:
        dynamic_j = product_j * work.product_flop + attention_j * work.attention_flop
        matrix_j = min(matrix_j, cal.static_w * work.matrix_s + dynamic_j)
    shared_s = MEMORY_BOUND_SHARE * work.memory_s + COMMUNICATION_SHARE * work.communication_s
    return (matrix_j + limit * shared_s + waiting_w(gpu) * work.waiting_s) / work.step_s


def waiting_w(gpu: Gpu) -> float:
    """Power of a GPU that waits for others, ready to go on."""
    return max(WAITING_SHARE * gpu.tdp_w, idle_w(gpu))


def node_w(node: Node, mean_gpu_w: float) -> float:
    """Power of a server whose GPUs draw so much on average.

        P = n gpu + (ratio - 1) n limit (f + (1 - f) gpu / limit),    f = 0.5

    and the same for its GPUs that train nothing, at what they draw without work.

    Limits: GPUs at their limit, ratio x n x limit.
    Source: Node.server_ratio, FIXED_SHARE.
    """
    idle = 0.0 if not node.idle_gpus else node.idle_gpus * _with_its_server_w(node, idle_w(node.gpu))
    return node.gpus * _with_its_server_w(node, mean_gpu_w) + idle


def _with_its_server_w(node: Node, mean_gpu_w: float) -> float:
    """A GPU and its part of the rest of the server."""
    load = mean_gpu_w / node.gpu.tdp_w
    rest_w = (node.server_ratio - 1.0) * node.gpu.tdp_w * (FIXED_SHARE + (1.0 - FIXED_SHARE) * load)
    return mean_gpu_w + rest_w
