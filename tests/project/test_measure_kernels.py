"""tools/measure_kernels.py, on a PyTorch that does nothing: its table is one that hdpsim judges."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from hdpsim.experiments.validation.kernels import check

TOOL = Path(__file__).parents[2] / "tools/measure_kernels.py"
SPECIFICATION = importlib.util.spec_from_file_location("measure_kernels", TOOL)
assert SPECIFICATION is not None
assert SPECIFICATION.loader is not None
measure_kernels = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(measure_kernels)


def idle_torch(*, capability: tuple[int, int] = (9, 0)) -> MagicMock:
    """Every pair of events is 1 ms apart, however much lies between them."""
    torch = MagicMock()
    torch.cuda.get_device_capability.return_value = capability
    torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
    return torch


@pytest.mark.parametrize(("capability", "formats"), [((9, 0), {"bf16", "fp8"}), ((8, 0), {"bf16"})])
def test_every_row_of_the_table_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], formats: set[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", idle_torch(capability=capability))
    monkeypatch.setitem(sys.modules, "torch.nn.attention", MagicMock())
    table = tmp_path / "kernels.csv"
    measure_kernels.main(["--gpu", "h100-80gb", "--out", str(table), "--seconds", "0.001"])
    rows = check(table)
    assert [row.reason for row in rows if row.reason] == []
    assert {row.kind for row in rows} == {
        "gemm", "grouped_gemm", "flash_fwd", "flash_bwd", "hbm_stream", "pcie_copy",
    }  # fmt: skip
    assert {row.dtype for row in rows if row.kind == "gemm"} == formats


def test_a_run_of_a_graph_is_a_part_of_its_replay() -> None:
    # two runs of three take 1 ms, so ten fill the 5 ms of a graph; 3 ms hold six replays, of which two are skipped
    clock = measure_kernels.Clock(idle_torch(), seconds=0.003)
    assert clock.us(lambda: None) == pytest.approx(1000.0 / 4 / 10)
    assert clock.us(lambda: None, graph=False) == pytest.approx(1000.0 / 4)


def test_what_this_pytorch_cannot_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = idle_torch()
    torch.arange.side_effect = RuntimeError("no grouped products here")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn.attention", MagicMock())
    measure_kernels.main(["--gpu", "h100-80gb", "--out", str(tmp_path / "kernels.csv"), "--seconds", "0.001"])
    assert capsys.readouterr().err == "grouped_products: no grouped products here\n"
    assert {row.kind for row in check(tmp_path / "kernels.csv")} > {"gemm", "flash_bwd"}


def test_without_pytorch_or_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="pip install torch"):
        measure_kernels.main(["--gpu", "h100-80gb"])
    torch = idle_torch()
    torch.cuda.is_available.return_value = False
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn.attention", MagicMock())
    with pytest.raises(SystemExit, match="needs a GPU"):
        measure_kernels.main(["--gpu", "h100-80gb"])
