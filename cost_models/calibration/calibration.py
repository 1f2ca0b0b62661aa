"""The calibration of one GPU generation: what real kernels and links reach of their datasheet peaks.

One readable YAML file per generation in data/calibration; every entry carries its value, its meaning, its source
and the records it was fitted on. Nothing here knows a model, a data set, a strategy or a record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.reading.checked import Calibrated, Checked, MisfitError, Ratio
from hdpsim.cost_models.reading.fields import Fields, Problems
from hdpsim.cost_models.reading.shipped import known_file, names_in, shipped
from hdpsim.cost_models.reading.values import boolean, number
from hdpsim.cost_models.slowest_of_many import expected_largest
from hdpsim.cost_models.tracing import shared
from hdpsim.cost_models.values_read import changed
from hdpsim.quoting import LONGEST_NAME, shortened
from hdpsim.ranges import Range, constant_range
from hdpsim.yaml_loader import load_document


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationEntry:
    """One constant and where it comes from.

    Attributes:
        value: what is used.
        meaning: what it says.
        source: where it comes from.
        fitted_on: the measurements that decided it.
        kernels: what measured kernels alone say of it, as `hdpsim calibrate` found.
        runs: what records of whole runs add, as `hdpsim calibrate` found.
        prior: what is known of it without runs; None: the value.
        doubt: standard deviation of that knowledge; None: as for every generation.
    """

    value: float | bool
    meaning: str
    source: str
    fitted_on: str = ""
    kernels: str = ""
    runs: str = ""
    prior: float | None = None
    doubt: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Checked):
    """Constants of one hardware generation with its software stack. Fractions are of datasheet peaks."""

    name: str
    gemm_efficiency: Calibrated
    """Large dense BF16 GEMM, full waves, full clock: fraction of the peak tensor rate."""
    fp8_gemm_efficiency: Calibrated
    """Large dense GEMM with 8-bit operands: fraction of the FP8 peak (casts apart)."""
    fp4_gemm_efficiency: Calibrated
    """Large dense GEMM with 4-bit operands: fraction of the FP4 peak."""
    static_w: Calibrated
    """Power that does not depend on the clock of the tensor cores: leakage, HBM, links."""
    tensor_boost_w: Calibrated
    """Power that the boost slider moves to the tensor cores."""
    power_exponent: Calibrated
    """Slowdown for a lack of power: 1 = the voltage no longer falls with the clock, 1/3 = as fast as the clock."""
    bf16_joule_per_flop: Calibrated
    """Energy of a 16-bit tensor FLOP (products, attention) at full clock; 0 = power never limits."""
    fp8_joule_per_flop: Calibrated
    """Energy of an 8-bit tensor FLOP at full clock."""
    fp4_joule_per_flop: Calibrated
    """Energy of a 4-bit tensor FLOP at full clock."""
    burst_power_share: Calibrated
    """Part of the slowdown for a lack of power, as its exponent, that runs of some milliseconds show already."""
    gemm_half_k: Calibrated
    """Contraction length at which a GEMM reaches half of its large-size rate (prologue and epilogue of a tile)."""
    tile_sides: Calibrated
    """Lengths that a side of an output tile may have; 0: the few tiles of libraries up to Ampere."""
    tile_operand_share: Calibrated
    """Share of the largest output tile's time that grows with the operand bytes that a FLOP loads."""
    stream_k_fixup: Calibrated
    """Contraction steps that adding up partial tiles takes where tiles are cut along the contraction."""
    roofline_power: Calibrated
    """Roundness of the roofline's corner: 1 = work and traffic add up, large = the longer hides the other."""
    grouped_gemm_efficiency: Calibrated
    """Grouped (expert) GEMM relative to a dense one of the same shape."""
    grouped_gemm_overlap: Calibrated
    """Share of its matrix work and HBM traffic that a grouped GEMM overlaps as a dense one does; the rest adds up."""
    weight_gradient_efficiency: Calibrated
    """Weight-gradient GEMM relative to the forward one, traffic of its fp32 accumulator apart."""
    accumulate_overlap: Calibrated
    """Share of matrix work and traffic that a weight-gradient GEMM overlaps where it adds to a sum."""
    fp8_gradient_efficiency: Calibrated
    """8-bit products of the backward relative to the forward's: partial sums promoted to fp32 on the way."""
    attention_forward_efficiency: Calibrated
    """Flash attention forward on long sequences: fraction of the peak tensor rate (causal FLOP)."""
    attention_backward_efficiency: Calibrated
    """Flash attention backward on long sequences: fraction of the peak (2.5 times the forward's FLOP)."""
    flash1_rate: Calibrated
    """FlashAttention of 2022 over the generation's best attention kernel."""
    flash2_rate: Calibrated
    """FlashAttention-2 (2023, written for A100) over the generation's best attention kernel."""
    mxfp8_attention_rate: Calibrated
    """Forward of attention in MXFP8 over that of the generation's best attention kernel."""
    mxfp8_attention_backward_rate: Calibrated
    """Backward of attention in MXFP8 over that of the generation's best attention kernel."""
    cudnn2025_rate: Calibrated
    """The backward of heads of 192 and 128 by cuDNN before 9.18.1 over the generation's best."""
    attention_half_tokens: Calibrated
    """Sequence length at which attention reaches half of its long-sequence rate."""
    attention_block_half_tokens: Calibrated
    """Block length at which the unmasked blocks of ring attention reach half of their rate."""
    attention_backward_ramp: Calibrated
    """Both half lengths of the backward over the forward's."""
    attention_forward_tail: Calibrated
    """Share of a longest tile that SMs idle at the end of a forward."""
    attention_backward_tail: Calibrated
    """Share of a longest tile that SMs idle at the end of a causal backward."""
    attention_backward_tail_factor: Calibrated
    """The backward's tail is at most so many times 1 - tiles of a head / (2 SMs): of many tiles the last are short."""
    empty_block_forward_s: Calibrated
    """Life of a block of a forward over sequences of several lengths that finds nothing to do."""
    empty_block_backward_s: Calibrated
    """Life of such an empty block of a backward."""
    attention_half_head_dim: Calibrated
    """Head dimension at which exponentials take as long as the matrix work; efficiencies are for dimension 128."""
    attention_tile_tokens: Calibrated
    """Rows a flash-attention tile covers: shorter pieces cost as much as one tile."""
    hbm_efficiency: Calibrated
    """Memory-bound kernels: fraction of the peak HBM rate."""
    cast_factor: Calibrated
    """Kernels that change the type of gradients over copies of as many bytes."""
    scan_flop_per_sm: Calibrated
    """FLOP per second of one SM in the kernels of a Mamba-2 scan, beside the time of their traffic."""
    convolution_sm_s: Calibrated
    """Seconds of one SM for an element of a Mamba-2 layer's convolution, beside the time of its traffic."""
    convolution_backward_sm_s: Calibrated
    """Seconds of one SM for an element of the convolution's gradients, beside the time of its traffic."""
    gated_norm_backward_sm_s: Calibrated
    """Seconds of one SM for an element of the gated norm's gradients; its forward takes its traffic alone."""
    merge_bytes_per_element: Calibrated
    """HBM traffic of merging one ring-attention step's output into the running one, per output element."""
    ring_delay_s: Calibrated
    """Mean random delay of one ring hop across nodes (congestion, rendezvous); the slowest of a ring sets its pace."""
    ring_overlap: Calibrated
    """Share of its rate that the transfer of a ring step keeps beside work."""
    small_kernel_passes: Calibrated
    """HBM traffic of norms, rotary embedding, residuals and activation relative to the fully fused minimum."""
    kernel_tail_s: Calibrated
    """Start-up and drain of one matrix kernel on the device."""
    launch_s: Calibrated
    """Host time per kernel launch of an eager framework: a layer cannot run faster than its launches."""
    expert_launch_s: Calibrated
    """The same of a kernel of one expert, launched from a loop in C++ over the experts of a GPU."""
    expert_loop_s: Calibrated
    """Host time of one such loop beside its kernels, however many experts there are."""
    module_hook_s: Calibrated
    """Host time of the hooks around one matrix in a forward that gather it and give it back (DeepSpeed's ZeRO-3)."""
    arm_host_factor: Calibrated
    """Host time of launches on Arm processors over that of x86 ones of their clock."""
    arm_untuned_factor: Calibrated
    """The same by software that was not tuned for such processors, over that by software that was."""
    overlap_launches: Calibrated
    """Launches that cutting a layer's forward into pieces takes, whose all-to-alls run beside another micro-batch."""
    gpu_spread: Calibrated
    """Coefficient of variation of the rate at which equal GPUs do matrix work."""
    expert_load_spread: Calibrated
    """Coefficient of variation of tokens among the experts of a router that an auxiliary loss keeps balanced."""
    overlap_slowdown: Calibrated
    """Share of its rate that compute loses while a data-parallel collective runs beside it."""
    step_fixed_s: Calibrated
    """Host work of a step that nothing hides, whatever the model: logging, learning rate, synchronisations."""
    step_layer_s: Calibrated
    """The same per layer that a GPU holds: each of its tensors is zeroed, unscaled, clipped, updated and copied."""
    micro_batch_fixed_s: Calibrated
    """Host work per micro-batch and pipeline stage, forward and backward together."""
    planner_s_per_sequence: Calibrated
    """Time the central planner needs per sequence of the batch."""
    metadata_bytes_per_s: Calibrated
    """Rate at which the planner gathers sequence metadata from all loaders and sends plans back."""
    loader_tokens_per_s: Calibrated
    """Tokens one node reads and preprocesses per second."""
    host_memory_bytes_per_s: Calibrated
    """Rate at which the processors of a node stream memory in an optimizer update."""
    allocator_bytes_per_s: Calibrated
    """Rate at which an allocator short of memory gives blocks back to the driver and gets them again."""
    host_link_efficiency: Calibrated
    """Activation offload: fraction of the measured host-link rate while training traffic is running."""
    slowest_gpu: Ratio = 1.0
    """Not a constant: matrix work of the slowest GPU of a job over the mean GPU's, see of_job."""
    network: NetworkCalibration = field(default_factory=NetworkCalibration)
    generation: str = ""
    """Name of the shipped calibration that this one stands in for; empty: for any GPU."""
    gpus: tuple[str, ...] = ()
    """GPUs whose runs it was fitted on, where it says nothing of others; empty: all of its generation."""
    entries: tuple[tuple[str, CalibrationEntry], ...] = ()

    @property
    def fitted_on(self) -> frozenset[str]:
        """Words of the training runs that decided a constant, in small letters; their sources are among them.

        What `hdpsim calibrate` found counts where it was taken: not where runs leave a constant open or it stays.
        Measured kernels are no runs.
        """
        texts = [
            text
            for _, entry in self.entries
            for text in (entry.fitted_on, entry.runs)
            if not text.startswith("left open") and not text.endswith("stays")
        ]
        words = (re.findall(r"[a-z][a-z0-9-]*", text.lower()) for text in texts)
        return frozenset(word for text in words if not _OF_RUNS.isdisjoint(text) for word in text)

    def why_not_of(self, gpu: Gpu) -> str:
        """What speaks against these constants for *gpu*, as a sentence; empty: nothing known."""
        if self.generation not in ("", gpu.calibration):
            return (
                f"calibration {self.name} is of generation {self.generation}, {gpu.name} of "
                f"{gpu.calibration}: rates and overheads are another GPU's"
            )
        if self.gpus and gpu.name not in self.gpus:
            return (
                f"calibration {self.name} was fitted on {', '.join(self.gpus)} only, not on {gpu.name}: "
                "rates and overheads are another GPU's"
            )
        return ""

    def of_job(self, gpus: int) -> Calibration:
        """The calibration of the slowest of *gpus* GPUs, for which all others of a synchronous job wait.

            slowest = 1 + spread x z(n)        z(n): the largest of n standard normal numbers, expected

        1 for one GPU; 1.028, 1.047, 1.065 and 1.077 for 8, 64, 1,024 and 10,240 with a spread of 0.02.
        Counted: spread of matrix work (silicon, cooling: clocks under the power limit) that lasts. Every collective
        waits for the slowest GPU of its group, a pipeline for its slowest stage, gradients for the slowest pipeline.
        Ignored: memory-bound kernels vary less, and not at all here; where in the job the slowest GPU sits.
        Source: order statistics (expected_largest); spread of GPUs: Sinha et al., "Not all GPUs are created equal",
            SC 2022.
        """
        return _of_job(self, gpus)


@shared(most=64)
def _of_job(cal: Calibration, gpus: int) -> Calibration:
    """Slow a calibration down for a job; the same job gets the same object, by which prices are looked up."""
    return changed(cal, slowest_gpu=1.0 + cal.gpu_spread * expected_largest(gpus))


_OTHER_FIELDS = {"name", "network", "generation", "gpus", "entries", "slowest_gpu"}
_SCALARS = tuple(f.name for f in fields(Calibration) if f.name not in _OTHER_FIELDS)
_NETWORK = tuple(f.name for f in fields(NetworkCalibration))
_SWITCHES = {f.name for f in fields(NetworkCalibration) if isinstance(f.default, bool)}
_OF_RUNS = frozenset({"runs", "grid", "cells", "steps", "configurations"})
"""Words for what was measured where it was no kernel."""
_KNOWN_BEFORE = number(Range(0.0, 1e18))  # the widest range of a constant


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; every constant must be there, nothing else may be.

    Raises:
        UserInputError: unreadable, or a ScenarioError with every problem.
    """
    document = load_document(Path(path))
    problems = Problems(shortened(str(path), LONGEST_NAME), document.where)
    file = Fields(document.data, problems)
    name = file.text("name", default=Path(path).stem)
    generation = file.text("generation", default=name if name in calibration_names() else "")
    gpus = file.texts("gpus")
    network = file.mapping("network")
    constants, links = _entries(file.mapping("constants"), _SCALARS, generation), _entries(network, _NETWORK)
    file.finish()
    settings: dict[str, Any] = {key: entry.value for key, entry in links.items()}
    values = NetworkCalibration()
    try:
        values = NetworkCalibration(**settings)
    except MisfitError as error:
        for key, text in error.problems:
            problems.add(network.dotted(key), text)
    problems.raise_if_any()
    return Calibration(
        name=name,
        **{key: entry.value for key, entry in constants.items()},
        network=values,
        generation=generation,
        gpus=gpus,
        entries=(*constants.items(), *((f"network.{key}", entry) for key, entry in links.items())),
    )


def _entries(
    section: Fields, known: Sequence[str], generation: str | None = None
) -> dict[str, CalibrationEntry]:
    """The entries of the constants that are *known*, in the order of the file; of a *generation* all must be there."""
    missing = [key for key in known if generation is not None and not section.has(key)]
    if missing:
        like = SHIPPED / f"{generation if generation in calibration_names() else 'hopper'}.yaml"
        remedy = f"a file of another version of hdpsim? Copy them from {like}, or `hdpsim calibrate` makes it again"
        section.problems.add(section.key, f"missing {', '.join(missing)}; {remedy}")
    section.take(*known)
    read = [key for key in section.given if key in known and key not in missing]
    entries = {key: _entry(section.mapping(key), key) for key in read}
    section.finish()
    return entries


def _entry(fields: Fields, key: str) -> CalibrationEntry:
    """The entry of constant *key*."""
    parse = boolean if key in _SWITCHES else number(constant_range(key))
    entry = CalibrationEntry(
        value=fields.value("value", parse),
        prior=fields.value("prior", _KNOWN_BEFORE, None),
        doubt=fields.value("doubt", _KNOWN_BEFORE, None),
        meaning=fields.text("meaning"),
        source=fields.text("source"),
        **{name: fields.text(name, default="") for name in ("fitted_on", "kernels", "runs")},
    )
    fields.finish()
    return entry


SHIPPED = shipped("cost_models/data/calibration")


@cache
def calibration_names() -> tuple[str, ...]:
    """Names of the shipped calibrations."""
    return names_in(SHIPPED)


@cache
def calibration(name: str) -> Calibration:
    """A shipped calibration by name; raises CatalogError."""
    return load_calibration(known_file(name, SHIPPED, "calibration", "default"))
