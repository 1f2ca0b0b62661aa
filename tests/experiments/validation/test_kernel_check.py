"""Tables of measured kernels: every row is predicted or says why not."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.errors import CatalogError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.validation import kernel_sources
from hdpsim.experiments.validation.kernel_sources import Instrument, gpu_of, instrument_of
from hdpsim.experiments.validation.kernels import check, group_errors, run

COLUMNS = (
    "id,kind,gpu,dtype,size_bytes,m,n,k,groups,batch,seq_len,heads,kv_heads,head_dim,causal,direction,n_ranks,"
    "ranks_per_node,n_nodes,value,unit,time_us,busbw_gbs,tflops,source,notes"
)
# Published figures: Azure/AI-benchmarking-guide, FlashAttention-2 and -3 figures, dgxc-benchmarking, stas00.
ROWS = (
    {"id": "gemm", "kind": "gemm", "gpu": "H100-SXM-80G", "dtype": "fp8", "m": 16384, "n": 16384, "k": 16384,
     "tflops": 1377.3, "source": "Azure:ND_H100_v5"},
    {"id": "attention", "kind": "flash_fwd", "gpu": "H100-SXM-80G", "dtype": "fp16", "batch": 1, "seq_len": 16384,
     "heads": 16, "head_dim": 128, "causal": 1, "tflops": 616, "source": "FlashAttention-3 Fig. 5",
     "notes": "FlashAttention-3; FLOPs 4*S^2*H*D"},
    {"id": "older", "kind": "flash_fwd", "gpu": "H100-SXM-80G", "batch": 1, "seq_len": 16384, "heads": 16,
     "head_dim": 128, "causal": 1, "tflops": 300, "notes": "Triton; FLOPs 4*S^2*H*D"},
    {"id": "all-reduce", "kind": "allreduce", "gpu": "H100-SXM-80G", "size_bytes": 2**30, "n_ranks": 8,
     "ranks_per_node": 8, "n_nodes": 1, "busbw_gbs": 466, "source": "NVIDIA/dgxc-benchmarking"},
    {"id": "p4de", "kind": "allreduce", "gpu": "A100-80G-SXM", "size_bytes": 2**30, "n_ranks": 16, "ranks_per_node": 8,
     "n_nodes": 2, "time_us": 26217, "source": "aws-samples", "notes": "2x p4de.24xlarge; EFA 400Gb/s per node"},
    {"id": "old-cloud", "kind": "allreduce", "gpu": "A100-40G-SXM", "size_bytes": 2**30, "n_ranks": 32,
     "ranks_per_node": 8, "n_nodes": 4, "time_us": 16562, "source": "NetX-lab/Echo",
     "notes": "Azure ND A100 v4; 200Gb/s IB per GPU"},
    {"id": "serial", "kind": "allreduce", "gpu": "A100-40G-SXM", "size_bytes": 8, "n_ranks": 8, "ranks_per_node": 8,
     "n_nodes": 1, "time_us": 31.4, "source": "NetX-lab/Echo:nccl-test-log/nccl_8.log"},
    {"id": "lone", "kind": "allreduce", "gpu": "B200-SXM-180G", "size_bytes": 2**16, "n_ranks": 8, "ranks_per_node": 8,
     "n_nodes": 1, "time_us": 52.9, "source": "stas00/ml-engineering", "notes": "P6-B200; 1 node"},
    {"id": "prescribed", "kind": "allreduce", "gpu": "H100-SXM-80G", "size_bytes": 1024, "n_ranks": 8,
     "ranks_per_node": 8, "n_nodes": 1, "time_us": 25.6, "source": "Azure/AI-benchmarking-guide:ND_H100_v5"},
    {"id": "from-python", "kind": "alltoall", "gpu": "H100-SXM-80G", "size_bytes": 4096, "n_ranks": 8,
     "ranks_per_node": 8, "n_nodes": 1, "time_us": 15.5, "source": "microsoft/apex_plus"},
    {"id": "send", "kind": "p2p", "gpu": "H100-SXM-80G", "size_bytes": 131072, "n_ranks": 2, "ranks_per_node": 8,
     "n_nodes": 1, "time_us": 10, "source": "microsoft/apex_plus:profile/comm/H100-SXM-80GB/sendrecv.csv"},
    {"id": "ring", "kind": "allreduce", "gpu": "H200-SXM-141G", "size_bytes": 2**33, "n_ranks": 7, "ranks_per_node": 8,
     "n_nodes": 1, "time_us": 40267, "source": "stas00/ml-engineering", "notes": "NVLS off (Ring)"},
    {"id": "in-c", "kind": "alltoall", "gpu": "H100-SXM-80G", "size_bytes": 4096, "n_ranks": 8,
     "ranks_per_node": 8, "n_nodes": 1, "time_us": 8.1, "source": "ai-dynamo/aiconfigurator"},
    {"id": "hbm", "kind": "hbm_stream", "gpu": "H100-SXM-80G", "value": 2970, "unit": "GB/s"},
    {"id": "no-gpu", "kind": "gemm", "gpu": "TPUv4", "m": 1, "n": 1, "k": 1, "time_us": 1},
    {"id": "integers", "kind": "gemm", "gpu": "H100-SXM-80G", "dtype": "int8", "m": 8, "n": 8, "k": 8, "time_us": 1},
    {"id": "no-shape", "kind": "gemm", "gpu": "H100-SXM-80G", "m": 1, "time_us": 1},
    {"id": "no-time", "kind": "gemm", "gpu": "H100-SXM-80G", "dtype": "bf16", "m": 1, "n": 1, "k": 1},
    {"id": "words", "kind": "gemm", "gpu": "H100-SXM-80G", "m": "many", "n": 8, "k": 8, "time_us": 1},
    {"id": "endless", "kind": "gemm", "gpu": "H100-SXM-80G", "m": "inf", "n": 8, "k": 8, "time_us": 1},
    {"id": "backwards", "kind": "gemm", "gpu": "H100-SXM-80G", "m": 8, "n": 8, "k": 8, "time_us": -1},
    {"id": "nothing", "kind": "gemm", "gpu": "H100-SXM-80G", "m": 0, "n": 8, "k": 8, "time_us": 1},
    {"id": "half-a-gpu", "kind": "allreduce", "gpu": "H100-SXM-80G", "size_bytes": 8, "n_ranks": 1.5,
     "ranks_per_node": 8, "n_nodes": 1, "time_us": 9},
    {"id": "odd-head", "kind": "flash_fwd", "gpu": "H100-SXM-80G", "seq_len": 64, "heads": 1, "head_dim": "x",
     "time_us": 1},
    {"id": "other", "kind": "layernorm", "gpu": "A100-SXM", "time_us": 1},
)  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    names = COLUMNS.split(",")
    lines = [COLUMNS, *(",".join(str(row.get(name, "")) for name in names) for row in ROWS)]
    path = tmp_path / "kernels.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_published_kernels_are_predicted(table: Path) -> None:
    rows = {row.id: row for row in check(table)}
    for name in ("gemm", "attention", "all-reduce", "p4de", "old-cloud", "serial", "lone", "prescribed", "from-python",
                 "in-c", "send", "ring", "hbm"):  # fmt: skip
        assert rows[name].reason == ""
        assert rows[name].error == pytest.approx(0.0, abs=0.1), name
    gpu = catalog.gpu("h100")
    # 6 us + 5.1 until Simple starts + 128 KiB at 364.5 GB/s; half a microsecond is cut off in the mean
    assert rows["send"].predicted_s == pytest.approx(6e-6 + 5.06e-6 + 131072 / 364.5e9 - 0.5e-6, abs=2e-8)
    expected = gemm_s(16384, 16384, 16384, gpu, calibration("hopper"), precision="fp8")
    assert rows["gemm"].predicted_s == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("older", "attention by Triton"),
        ("no-gpu", "TPUv4"),
        ("integers", "matrix products in int8 are not modelled"),
        ("no-shape", "n, k not stated"),
        ("no-time", "neither time_us, tflops nor busbw_gbs is stated"),
        ("other", "layernorm"),
        ("words", "m: expected a number of at least 0 or nothing, got 'many'"),
        ("endless", "got 'inf'"),
        ("backwards", "time_us: expected a number of at least 0 or nothing, got '-1'"),
        ("nothing", "m: expected a positive number, got '0'"),
        ("half-a-gpu", "n_ranks: expected a whole number, got '1.5'"),
        ("odd-head", "head_dim: expected a positive number"),
    ],
)
def test_what_cannot_be_predicted_says_why(table: Path, name: str, reason: str) -> None:
    row = next(row for row in check(table) if row.id == name)
    assert row.error is None
    assert reason in row.reason


def test_tiles_of_a_library_that_does_not_cut_along_k_go_through_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(
        "kind,gpu,dtype,m,n,k,time_us\n"
        + "".join(
            f"gemm,H800-SXM-80G,{dtype},{m},128,65536,84\n"
            for dtype in ("fp8", "fp8 (DeepGEMM)")
            for m in (512, 1024)
        )
    )
    cut, cut_twice, whole, whole_twice = (row.predicted_s for row in check(path))
    assert None not in (cut, cut_twice, whole, whole_twice)
    assert cut_twice > 1.5 * cut  # type: ignore[operator]
    assert whole_twice == pytest.approx(whole, rel=0.1)  # twice the tiles, on SMs that were idle
    assert whole > 2 * cut_twice  # type: ignore[operator]


def test_a_mask_may_be_a_word(tmp_path: Path) -> None:
    head = "kind,gpu,seq_len,heads,head_dim,causal,time_us\n"
    cells = "".join(f"flash_fwd,h100,4096,16,128,{word},500\n" for word in ("1", "True", "0", "false", ""))
    path = tmp_path / "kernels.csv"
    path.write_text("\ufeff" + head + cells)
    times = [row.predicted_s for row in check(path)]
    assert times[0] == times[1]
    assert times[2] == times[3] == times[4]
    assert times[0] is not None
    assert times[2] is not None
    assert times[0] < times[2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "missing columns kind, gpu"),
        (b"kind,gpu\n", "holds no kernels below its header"),
        (b"kind,gpu\ngemm\n", "row 2: 1 fields, but the header has 2 columns"),
        (b"kind;gpu;m\ngemm;h100;8\n", "separated by semicolons; expected commas"),
        (b"kind,gpu\n\xff,h100\n", "is not a CSV file in UTF-8"),
        (gzip.compress(b"kind,gpu\ngemm,h100\n", mtime=0)[:-9], "the gzip compression is damaged"),
    ],
)
def test_a_damaged_table_is_one_message(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "kernels.csv"
    path.write_bytes(content)
    with pytest.raises(UserInputError, match=words):
        check(path)


def test_a_calibration_counts_for_its_own_generation(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text("kind,gpu,m,n,k,time_us\ngemm,h100,8192,8192,8192,1500\ngemm,b200,8192,8192,8192,700\n")
    slow = replace(calibration("hopper"), gemm_efficiency=0.4)
    shipped, own, nameless = (
        check(path, cal) for cal in (None, replace(slow, generation="hopper"), replace(slow, generation=""))
    )
    for number, changed in ((0, (own, nameless)), (1, (nameless,))):
        for rows in (own, nameless):
            assert (rows[number].predicted_s != shipped[number].predicted_s) == (rows in changed)


def test_long_loops_see_the_clocks_that_last_and_some_boards_have_less_power(tmp_path: Path) -> None:
    path, gpu, cal = tmp_path / "kernels.csv", catalog.gpu("b200"), calibration("blackwell")
    kernels = [  # nine of 2.8 ms are a burst, nine of 30 ms are not; 775 of 1000 W
        ("ai-dynamo/aiconfigurator:b200_sxm", 8192, gpu, True),
        ("ai-dynamo/aiconfigurator:b200_sxm", 65536, gpu, False),
        ("MooreThreads/SimuMax:configs/system/b200.json", 8192, replace(gpu, tdp_w=775.0), False),
    ]
    rows = [f"gemm,b200,bf16,{m},16384,16384,9000,{source}" for source, m, _, _ in kernels]
    path.write_text("\n".join(["kind,gpu,dtype,m,n,k,time_us,source", *rows]))
    for row, (_, m, board, burst) in zip(check(path), kernels, strict=True):
        assert row.predicted_s == float(gemm_s(m, 16384, 16384, board, cal, burst=burst))


def test_groups(table: Path) -> None:
    groups = group_errors(check(table), "kind", "gpu")
    assert [(group["kind"], group["count"]) for group in groups] == [
        ("allreduce", 2), ("allreduce", 1), ("allreduce", 1), ("allreduce", 2), ("allreduce", 1), ("alltoall", 2),
        ("flash_fwd", 1), ("gemm", 1), ("hbm_stream", 1), ("p2p", 1),
    ]  # fmt: skip
    assert all(group["median_abs_error"] <= group["p90_abs_error"] for group in groups)


def test_engines_that_scale_their_inputs_start_more_kernels(tmp_path: Path) -> None:
    # ai-dynamo/aiconfigurator, TensorRT-LLM 1.3.0rc20: m x 4096 x 4096, us
    measured = {
        ("H100-SXM-80G", 256): 21.835, ("H200-SXM-141G", 256): 20.635, ("H200-SXM-141G", 512): 26.548,
        ("B200-SXM-180G", 256): 22.176, ("B200-SXM-180G", 512): 26.786, ("GB200-NVL72", 512): 25.308,
        ("B300-SXM", 512): 24.572, ("GB300-NVL72", 256): 20.869,
    }  # fmt: skip
    path = tmp_path / "casts.csv"
    lines = [
        f"{gpu}-{m},gemm,{gpu},fp8 per-tensor,{m},4096,4096,{us},ai-dynamo/aiconfigurator:gemm_perf"
        for (gpu, m), us in measured.items()
    ]
    path.write_text("\n".join(["id,kind,gpu,dtype,m,n,k,time_us,source", *lines]))
    for row in check(path):
        assert row.error == pytest.approx(0.0, abs=0.15), row.id


@pytest.mark.parametrize(
    ("cells", "facts"),
    [
        ({}, Instrument()),
        (
            {"source": "bench/vllm/log"},
            Instrument(key_value_passes=3.2, least_head_width=128.0, token_bytes=3200.0),
        ),
        ({"notes": "FA2", "kind": "flash_bwd"}, Instrument(attention="flash2")),
        ({"notes": "FA2", "kind": "gemm"}, Instrument()),
        (
            {
                "source": "MooreThreads/SimuMax:configs/system/b200.json",
                "kind": "flash_bwd",
                "head_dim": "192/128",
            },
            Instrument(attention="cudnn2025", burst=True, loop=30, tdp_w=775),
        ),
        (
            {
                "source": "MooreThreads/SimuMax:configs/system/b200.json",
                "kind": "flash_bwd",
                "head_dim": "128",
            },
            Instrument(burst=True, loop=30, tdp_w=775),
        ),
        (
            {"kind": "flash_fwd", "notes": "Triton; FLOPs 4*S^2*H*D"},
            Instrument(refused="attention by Triton is not calibrated"),
        ),
        (
            {"kind": "gemm", "notes": "BEST shape", "dtype": "fp8 1x128"},
            Instrument(burst=True, splits_k=False, not_fitted="the best of a search, not one shape"),
        ),
        (
            {"kind": "allreduce", "notes": "Azure ND A100 v4", "n_nodes": "2"},
            Instrument(network={"nic_efficiency": 0.64, "nccl_before_2_18": True}),
        ),
    ],
)
def test_what_a_source_timed_along_is_read_from_the_table_of_sources(
    cells: dict[str, str], facts: Instrument
) -> None:
    assert instrument_of(cells) == facts


def test_latencies_of_one_source_are_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"where": {"notes": "x"}, "because": "it fits", "network": {"inter_latency_factor": 1.5}}
    monkeypatch.setattr(kernel_sources, "load_yaml", lambda _: {"entries": [entry]})
    with pytest.raises(CatalogError, match="entry 1: of a network"):
        kernel_sources._entries.__wrapped__()


@pytest.mark.parametrize("name", ["A100-PCIE", "A100-SXM", "H800-SXM-80G"])
def test_boards_are_of_the_catalog(name: str) -> None:
    assert gpu_of(name).hbm_bytes > 0


@pytest.mark.parametrize("column", ["measured_s", "time", "tflops_per_gpu"])
def test_a_table_of_which_nothing_can_be_judged_is_no_success(tmp_path: Path, column: str) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(f"kind,gpu,m,n,k,{column}\ngemm,h100,8192,8192,8192,1500\n")
    done = CliRunner().invoke(cli, ["validate", "--kernels", str(path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 3
    assert "none of 1 kernels can be judged" in done.stderr
    assert "1 x neither time_us, tflops nor busbw_gbs is stated" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_directory_holds_every_kernel(table: Path, tmp_path: Path) -> None:
    result = hdpsim.validate(kernels=table)
    frame = result.to_frame()
    assert len(frame) == len(ROWS)
    judged = frame[frame["error"].notna()]
    assert (judged["predicted_s"] / judged["measured_s"] - 1.0).tolist() == pytest.approx(
        judged["error"].tolist()
    )
    assert {path.name for path in result.save(tmp_path / "out").iterdir()} >= {
        "kernels.csv",
        "groups.csv",
        "README.md",
    }
    assert result.plot("measured_against_predicted").axes


def test_an_h100_that_no_rate_was_fitted_on_is_predicted() -> None:
    rows = check(Path(__file__).parents[3] / "docs/how-to/files/kernels.csv")
    assert [row.reason for row in rows if row.reason] == []
    limits = {
        "gemm": 0.15,
        "grouped_gemm": 0.25,
        "flash_fwd": 0.2,
        "flash_bwd": 0.2,
        "hbm_stream": 0.05,
        "pcie_copy": 0.05,
    }
    p90 = {group["kind"]: group["p90_abs_error"] for group in group_errors(rows, "kind")}
    assert p90.keys() == limits.keys()
    assert {kind: error for kind, error in p90.items() if error > limits[kind]} == {}


def test_a_warp_copies_a_head_of_keys_whatever_its_width(tmp_path: Path) -> None:
    # 8 heads of keys and of values, each as wide as 128: 3.2 passes of 4,096 B a token and 3,200 B, at 0.9 of 3.35 TB/s
    path = tmp_path / "caches.csv"
    path.write_text(
        "id,kind,gpu,batch,seq_len,heads,kv_heads,head_dim,causal,time_us,source\n"
        + "".join(
            f"{dim},flash_fwd,H100-SXM-80G,4,2048,32,8,{dim},1,100,{source}\n"
            for dim in (64, 128)
            for source in ("engine/vllm/log", "own")
        )
    )
    engine, alone, engine_wide, alone_wide = (row.predicted_s for row in check(path))
    assert None not in (engine, alone, engine_wide, alone_wide)
    for with_cache, without in ((engine, alone), (engine_wide, alone_wide)):
        assert with_cache - without == pytest.approx(8192 * (3.2 * 4096 + 3200) / (0.9 * 3.35e12), rel=1e-6)  # type: ignore[operator]


def test_products_listed_twice_add_to_sums_of_32_bits_then_of_16(tmp_path: Path) -> None:
    # 64 groups of 4,096 x 7,168 sums: 8 B each, then 4 B, at 0.9 of 7.7 TB/s; nothing of it hides on Blackwell.
    path = tmp_path / "groups.csv"
    file, own = "MooreThreads/SimuMax:configs/system/b200_bf16_ceperm.json", "own"
    listed = [(file, ""), (own, ""), (file, ""), (own, ""), (own, "out bf16")]
    path.write_text(
        "kind,gpu,m,n,k,groups,direction,time_us,source,notes\n"
        + "".join(
            f"grouped_gemm,B200-SXM-180G,512,4096,7168,64,bwd_grad_w,3000,{source},accumulate True {notes}\n"
            for source, notes in listed
        )
    )
    unlimited = replace(
        calibration("blackwell"), bf16_joule_per_flop=0.0
    )  # the file's boards have less power
    seconds = [row.predicted_s or 0.0 for row in check(path, unlimited)]
    saved_s = 64 * 4096 * 7168 * 4 / (0.9 * 7.7e12)
    assert [seconds[0] - one_s for one_s in seconds] == pytest.approx([0.0, 0.0, saved_s, 0.0, saved_s])


def test_a_rank_s_share_of_a_document_is_timed_with_the_keys_before_both_its_pieces(tmp_path: Path) -> None:
    # 8 heads of 128, 2 ranks: keys and values up to the ends of a head and a tail piece are 5/4 of a document's, 4 KiB
    # a token, outputs half of it, 2 KiB; 3.3 passes at 0.9 of 3.35 TB/s. 65,536 tokens are a call of their own. The
    # host takes 11.5 us for each of two kernels, and only the second's go beside the first.
    path = tmp_path / "shares.csv"
    source = "hao-ai-lab/DistCA:distca/profiling/data/compute-attn-H100.csv"
    path.write_text(
        "kind,gpu,seq_len,heads,head_dim,causal,time_us,source,notes\n"
        + "".join(
            f"flash_fwd,H100-SXM-80G,{tokens},8,128,1,100,{of},cp 2 (balanced share); FA2-like\n"
            for tokens, of in ((65536, source), (65536, "own"), (64, source))
        )
    )
    timed_along, alone, short = (row.predicted_s or 0.0 for row in check(path))
    copied = 3.3 * 65536 * (1.25 * 4096 + 0.5 * 2048)
    assert timed_along - alone == pytest.approx(copied / (0.9 * 3.35e12) + 11.5e-6, rel=1e-6)
    assert 23e-6 < short < 24e-6


def test_a_time_in_another_unit_is_named(tmp_path: Path) -> None:
    product = "gemm,h100-80gb,4096,4096,4096"  # 137 GFLOP in 0.2 ms
    path = tmp_path / "kernels.csv"
    path.write_text(f"kind,gpu,m,n,k,time_us\n{product},200\n{product},200000\n")
    (line,) = run(str(path)).notes
    assert line.startswith("1 x measured over predicted beyond all sense")
    assert run(str(path)).data()["notes"] == [line]
