"""Time matrix products, attention and copies on this machine's GPU: a table as docs/how-to/measured.md has it.

    python tools/measure_kernels.py --gpu h100-80gb --out kernels.csv

Needs PyTorch with CUDA (2.9 or later for grouped products) and half a minute; nothing of hdpsim, so the file can be
copied to the GPU alone. A kernel runs back to back for --seconds, a third of them to come to the clocks that last, from
a CUDA graph, so that no launch shows (copies and backwards of attention without one). What this PyTorch cannot do is
left out, and said on stderr.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

COLUMNS = (
    "id", "kind", "gpu", "dtype", "m", "n", "k", "groups", "batch", "seq_len", "heads", "kv_heads", "head_dim",
    "causal", "value", "unit", "time_us", "source", "notes",
)  # fmt: skip
# Columns of a product's weights and its contraction: attention, MLP and head of Llama-3 8B, of 70B cut by 8, of GPT-3
WEIGHTS = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584),
    (128256, 4096), (12288, 6144),
)  # fmt: skip
ROWS = (512, 2048, 8192)
EXPERTS = (
    (8, 28672, 4096),
    (8, 4096, 14336),
    (64, 2816, 2048),
    (64, 2048, 1408),
)  # groups, columns, contraction
ATTENTION = ((32, 8, 128), (8, 1, 128), (16, 16, 64))  # heads of queries, of keys, their dimension
LENGTHS = (1024, 4096, 16384)
COPIED_BYTES = 1 << 30

Row = dict[str, Any]


class Clock:
    """Times kernels at the clocks that last."""

    def __init__(self, torch: Any, seconds: float) -> None:
        self._torch, self._seconds = torch, seconds

    def us(self, run: Callable[[], Any], *, graph: bool = True) -> float:
        """Microseconds of one of many runs, back to back; without a *graph* launched one by one."""
        cuda = self._torch.cuda
        cuda.synchronize()  # the operands are there
        side = cuda.Stream()
        with cuda.stream(side):  # graphs want a warm-up on a stream of their own
            for _ in range(3):
                run()
        cuda.synchronize()
        count = max(1, min(100, int(5e3 / self._us(run, 1, 3)))) if graph else 1
        again = self._captured(run, count) if graph else run
        times = max(2, int(self._seconds * 1e6 / self._us(again, 1, 3)))
        return self._us(again, times // 3, times) / count

    def _captured(self, run: Callable[[], Any], count: int) -> Callable[[], Any]:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(count):
                run()
        return graph.replay  # type: ignore[no-any-return]

    def _us(self, run: Callable[[], Any], skipped: int, times: int) -> float:
        """Mean of *times* runs but for the first *skipped*."""
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        for number in range(times):
            if number == skipped:
                begin.record()
            run()
        end.record()
        cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / (times - skipped)


def products(torch: Any, clock: Clock) -> Iterator[Row]:
    """Matrix products in BF16 and, where the GPU has it, FP8 with one scale per tensor."""
    eight_bit = torch.cuda.get_device_capability() >= (8, 9)
    for columns, inner in WEIGHTS:
        weights = torch.randn(columns, inner, device="cuda", dtype=torch.bfloat16)
        for rows in ROWS:
            inputs = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
            shape = {"kind": "gemm", "m": rows, "n": columns, "k": inner}
            yield {**shape, "dtype": "bf16", "time_us": clock.us(partial(torch.matmul, inputs, weights.t()))}
            if eight_bit:
                one = torch.ones((), device="cuda")
                pair = (inputs.to(torch.float8_e4m3fn), weights.to(torch.float8_e4m3fn).t())
                scaled = partial(
                    torch._scaled_mm, *pair, one, one, out_dtype=torch.bfloat16, use_fast_accum=True
                )
                yield {**shape, "dtype": "fp8", "time_us": clock.us(scaled)}


def grouped_products(torch: Any, clock: Clock) -> Iterator[Row]:
    """Experts in one kernel, each with as many tokens."""
    for groups, columns, inner in EXPERTS:
        weights = torch.randn(groups, columns, inner, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        for rows in (128, 1024):
            inputs = torch.randn(groups * rows, inner, device="cuda", dtype=torch.bfloat16)
            ends = torch.arange(rows, groups * rows + 1, rows, device="cuda", dtype=torch.int32)
            yield {
                "kind": "grouped_gemm", "dtype": "bf16", "groups": groups, "m": rows, "n": columns, "k": inner,
                "time_us": clock.us(partial(torch._grouped_mm, inputs, weights, offs=ends)),
            }  # fmt: skip


def attention(torch: Any, clock: Clock) -> Iterator[Row]:
    """Causal attention, forward and backward, by FlashAttention-2 and by cuDNN."""
    kernels = torch.nn.attention.SDPBackend
    for name, backend in (("cuDNN", kernels.CUDNN_ATTENTION), ("FlashAttention-2", kernels.FLASH_ATTENTION)):
        for heads, kv_heads, dim in ATTENTION:
            for length in LENGTHS:
                batch = max(1, 8192 // length)
                query, key, value = (
                    torch.randn(
                        batch, count, length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True
                    )
                    for count in (heads, kv_heads, kv_heads)
                )
                attend = partial(
                    torch.nn.functional.scaled_dot_product_attention,
                    query, key, value, is_causal=True, enable_gqa=heads != kv_heads,
                )  # fmt: skip
                with torch.nn.attention.sdpa_kernel(backend):
                    output = attend()
                    back = partial(
                        torch.autograd.grad,
                        output,
                        (query, key, value),
                        torch.randn_like(output),
                        retain_graph=True,
                    )
                    shape = {
                        "dtype": "bf16", "batch": batch, "seq_len": length, "heads": heads, "kv_heads": kv_heads,
                        "head_dim": dim, "causal": 1, "notes": name,
                    }  # fmt: skip
                    with torch.no_grad():
                        yield {**shape, "kind": "flash_fwd", "time_us": clock.us(attend)}
                    yield {**shape, "kind": "flash_bwd", "time_us": clock.us(back, graph=False)}


def copies(torch: Any, clock: Clock) -> Iterator[Row]:
    """A tensor of 1 GiB on the GPU (read and written), to it and from it."""
    here, there = (torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8) for _ in range(2))
    host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    for kind, target, source, moved, notes in (
        ("hbm_stream", there, here, 2 * COPIED_BYTES, "copy, read and written"),
        ("pcie_copy", here, host, COPIED_BYTES, "to the GPU"),
        ("pcie_copy", host, here, COPIED_BYTES, "to the host"),
    ):
        us = clock.us(partial(target.copy_, source, non_blocking=True), graph=False)
        yield {"kind": kind, "value": round(moved / us / 1e3, 1), "unit": "GB/s", "notes": notes}


def measured(torch: Any, gpu: str, source: str, seconds: float) -> Iterator[Row]:
    """Rows of all kinds; a kind that this PyTorch cannot run ends with a line on stderr."""
    clock, number = Clock(torch, seconds), 0
    for part in (copies, products, grouped_products, attention):
        try:
            for row in part(torch, clock):
                number += 1
                if "time_us" in row:
                    row["time_us"] = round(row["time_us"], 2)
                yield {"id": number, "gpu": gpu, "source": source, **row}
        except (RuntimeError, AttributeError) as error:
            print(f"{part.__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.empty_cache()


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", required=True, help="its name in hdpsim's catalog (hdpsim list gpus)")
    parser.add_argument("--out", help="file of the table (default: the screen)")
    parser.add_argument("--source", default="own", help="who measured: a word for the table")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long each kernel runs (default: 0.2)")
    options = parser.parse_args(arguments)
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("torch.nn.attention")
    except ImportError:
        sys.exit("measure_kernels needs PyTorch: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("measure_kernels needs a GPU that PyTorch sees (torch.cuda.is_available() is false)")
    rows = measured(torch, options.gpu, options.source, options.seconds)
    with open(options.out, "w", newline="") if options.out else sys.stdout as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
