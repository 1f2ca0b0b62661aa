"""Make the shipped calibrations from measured kernels and the shipped runs, and put what they rest on into the docs.

    python tools/calibrations.py [KERNELS.csv ...]   # cost_models/data/calibration and two pages of the docs

Without tables of kernels the constants that these decided stay, and only the runs are fitted on.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hdpsim.cost_models.calibration.calibration import load_calibration
from hdpsim.experiments.calibration.report import known_before
from hdpsim.experiments.calibration.run import calibrate
from hdpsim.experiments.output.document import Column, Table
from hdpsim.experiments.validation.kernels import check

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "cost_models" / "data" / "calibration"
CONSTANTS = ROOT / "docs" / "explanation" / "calibration.md"
TABLES = ROOT / "docs" / "reference" / "calibration_tables.md"
GPUS = {"ampere": "a100-80gb", "hopper": "h100", "blackwell": "b200"}
_UNITS = {"": 1.0, "W": 1.0, "pJ": 1e-12, "us": 1e-6, "ms": 1e-3, "GB/s": 1e9, "M": 1e6, "T": 1e12}
_CELL = re.compile(r"([\d.]+) ?([A-Za-z/]*)")
_KINDS = {"gemm": "GEMM", "grouped_gemm": "grouped GEMM", "flash_fwd": "attention forward"} | {
    "flash_bwd": "attention backward", "flash_fwd_bwd": "attention forward + backward", "allreduce": "all-reduce",
    "allgather": "all-gather", "reducescatter": "reduce-scatter", "alltoall": "all-to-all", "p2p": "send/recv",
    "hbm_stream": "HBM copies",
}  # fmt: skip
_TOGETHER = {
    kind: "products" if "gemm" in kind else "attention" if "flash" in kind else "copies of HBM" if kind == "hbm_stream"
    else "collectives and transfers" for kind in _KINDS
}  # fmt: skip
_BITS = (("fp4", 4), ("nvfp4", 4), ("fp8", 8), ("mxfp8", 8))
_BLOCK = re.compile(r"(<!-- calibrations:(\w+) -->\n)(.*?)(<!-- calibrations end -->)", re.DOTALL)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(half_width: float) -> str:
    return f"+- {half_width:.2g}"


def constants_table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """What was known of every constant, what was fitted, and what its file says."""
    columns: tuple[Column[Any], ...] = (
        Column("Calibration"),
        Column("name", heading="Constant", format="`{}`".format, left=True),
        Column("prior", lambda row: known_before(row) or None, heading="Known before"),
        Column("fitted", heading="Fitted", format=".3g"),
        Column("half_width", heading="95 %", format=_signed),
        Column("value", heading="In the file", format=".3g"),
    )
    rows = [{"Calibration": name, **row} for name, stage in stages.items() for row in stage["constants"]]
    return f"{Table(columns=columns, rows=rows).markdown()}\n"


def sources_table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """Errors of every source at the start, fitted, and left out of the fit, in %."""
    columns: tuple[Column[Any], ...] = (
        Column("Calibration"),
        Column("left_out", heading="Source", left=True),
        Column("records", heading="Count", format=","),
        Column("median_abs_error_at_start", heading="At the start", format=_percent),
        Column("median_abs_error_fitted", heading="Fitted", format=_percent),
        Column("median_abs_error", heading="Left out", format=_percent),
        Column("largest_shift", heading="Moves another by", format=_percent),
        Column("shifted", heading=""),
    )
    rows = [
        {"Calibration": name, **row} for name, stage in stages.items() for row in stage["left_out_one_by_one"]
    ]
    return f"{Table(columns=columns, rows=rows).markdown()}\n"


def summary(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """Errors of all, by calibration."""
    return "".join(
        f"* `{name}`: {stage['records']:,} of {len(stage['sources'])} sources; median and p90 error at the start "
        f"{_errors(stage['error_at_start'])}, fitted {_errors(stage['error_fitted'])}, "
        f"cross-validated {_errors(stage['error_cross_validated'])}"
        f"{'' if stage['taken'] or not stage['constants'] else ': not taken, the start stays'}\n"
        for name, stage in stages.items()
    )


def _errors(found: Mapping[str, float]) -> str:
    return f"{100 * found['median_abs_error']:.1f} and {100 * found['p90_abs_error']:.1f} %"


def block(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """One section of the page."""
    return f"\n{constants_table(stages)}\n{sources_table(stages)}\n{summary(stages)}\n"


def with_values(page: str) -> str:
    """The page with the values of the shipped files in its tables of constants; cells keep their unit."""
    shipped = [load_calibration(FOLDER / f"{name}.yaml") for name in GPUS]
    lines = page.split("\n")
    for place, line in enumerate(lines):
        cells = line.split(" | ")
        name = cells[0].strip("|` ")
        if len(cells) <= len(GPUS) or not hasattr(shipped[0], name):
            continue
        for column, cal in enumerate(shipped, start=1):
            shown = _CELL.fullmatch(cells[column])
            if shown and shown[2] in _UNITS:
                cells[column] = (
                    f"{float(f'{getattr(cal, name) / _UNITS[shown[2]]:.3g}'):g} {shown[2]}".strip()
                )
        lines[place] = " | ".join(cells)
    return "\n".join(lines)


def kernel_errors(paths: Sequence[str]) -> str:
    """Every kernel of the tables, predicted with the shipped files: errors by kind and GPU."""
    groups: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    together: dict[str, list[float]] = defaultdict(list)
    for row in (row for path in paths for row in check(path)):
        if row.error is not None and row.kind in _KINDS:
            bits = next((bits for start, bits in _BITS if row.dtype.lower().startswith(start)), 16)
            kind = f"GEMM {bits}-bit" if row.kind == "gemm" else _KINDS[row.kind]
            groups[tuple(_KINDS).index(row.kind), kind, row.gpu].append(row.error)
            together[_TOGETHER[row.kind]].append(row.error)
    medians = ", ".join(
        f"{words} {100 * np.median(np.abs(together[words])):.1f} %"
        for words in dict.fromkeys(_TOGETHER.values())
        if together[words]
    )
    columns: tuple[Column[Any], ...] = (
        Column("kernels", lambda group: group[0][1]),
        Column("GPU", lambda group: group[0][2], left=True),
        Column("count", lambda group: len(group[1]), format=","),
        Column(
            "",
            lambda group: 100 * np.median(np.abs(group[1])),
            heading="median abs. error",
            format="{:.1f} %".format,
        ),
        Column(
            "", lambda group: 100 * np.median(group[1]), heading="median error", format="{:+.1f} %".format
        ),
        Column(
            "",
            lambda group: 100 * np.percentile(np.abs(group[1]), 90),
            heading="90 % within",
            format="{:.1f} %".format,
        ),
    )
    groups_table = Table(columns=columns, rows=sorted(groups.items()))
    return f"Median absolute errors: {medians}.\n\n{groups_table.markdown()}\n"


def main() -> None:
    """Fit, write the files, fill the page."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNELS.csv", help="tables of measured kernels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=tuple(GPUS), action="append", help="this generation; pages stay")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {"kernels": {}, "runs": {}}
    for name, gpu in GPUS.items():
        if options.only and name not in options.only:
            continue
        print(name, flush=True)
        out = str(FOLDER / f"{name}.yaml")
        document = calibrate(None, gpu, out, kernels=options.kernels, workers=options.workers).data()
        found["runs"][name] = document
        if document["kernels"]:
            found["kernels"][name] = document["kernels"]
        print(summary({name: document}), flush=True)
    if options.only:
        return
    texts = {kind: block(stages) for kind, stages in found.items() if stages}
    if options.kernels:
        texts["errors"] = f"\n{kernel_errors(options.kernels)}\n"
    page = TABLES.read_text(encoding="utf-8")
    page = _BLOCK.sub(lambda m: f"{m[1]}{texts[m[2]]}{m[4]}" if m[2] in texts else m[0], page)
    TABLES.write_text(page, encoding="utf-8")
    CONSTANTS.write_text(with_values(CONSTANTS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
