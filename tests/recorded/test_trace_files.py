"""Recorded jobs from files: every way in which trace and degrees can be wrong ends in one clear message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from recorded_jobs import Shape, record

from hdpsim.errors import UserInputError
from hdpsim.experiments.recorded_jobs.trace import read_recorded_job

Files = Callable[[Shape], tuple[Path, Path]]
SHAPE = Shape(stages=2, steps=1)


def test_csv_and_parquet_hold_the_same(files: Files, tmp_path: Path) -> None:
    trace, meta = files(SHAPE)
    table = tmp_path / "trace.csv.gz"
    pd.read_parquet(trace).to_csv(table, index=False)
    one, other = read_recorded_job(trace, meta), read_recorded_job(table, meta)
    np.testing.assert_array_equal(one.kind, other.kind)
    np.testing.assert_allclose(one.start_s, other.start_s)
    assert one.gpus == 2 * 2 * 2  # dp x pp x dsp
    assert one.steps.tolist() == [3]


def test_only_differences_of_time_matter(files: Files) -> None:
    trace, meta = files(SHAPE)
    table = pd.read_parquet(trace)
    table["start_ts"] += 1.7e9  # seconds since 1970
    table.to_parquet(trace)
    job = read_recorded_job(trace, meta)
    assert job.start_s.min() == 0.0
    assert job.step_s()[0] < 10


def test_narrow_types_and_categories_are_read(files: Files) -> None:
    trace, meta = files(SHAPE)
    table = pd.read_parquet(trace)
    small = table.astype({"dp_rank": "int8", "stage": "int8", "gmc": "int16", "optype": "category"})
    small.to_parquet(trace)
    assert len(read_recorded_job(trace, meta)) == len(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns=["seq_id", "mc"]), r"no column seq_id, mc; the columns are dp_rank"),
        (lambda t: t.iloc[:0], "holds no operations"),
        (
            lambda t: t.assign(optype="forward-computer"),
            r"row 1: optype 'forward-computer' is not known \(did you",
        ),
        (lambda t: t.assign(duration=-1.0), r"row 1: duration is -1; expected 0 to"),
        (lambda t: t.assign(duration=np.nan), r"row 1: duration is .*nan.*; expected a finite number"),
        (lambda t: t.assign(start_ts="soon"), r"row 1: start_ts is 'soon'; expected a finite number"),
        (lambda t: t.assign(stage=0.5), r"row 1: stage is 0.5; expected a whole number"),
        (lambda t: t.assign(stage=t.stage + 1), r"stage is 2, but pp_size is 2"),
        (lambda t: t.assign(dp_rank=0), r"no operation has dp_rank 1, but dp_size is 2"),
        (lambda t: t.assign(gmc=t.gmc.where(t.gmc < 0, 1 - t.gmc)), r"gmc \d does not lie on stage"),
        (lambda t: t.assign(mc=t.mc.where(t.mc < 0, 1)), r"mc is 1, but vpp_size is 1"),
        (lambda t: pd.concat([t, t.iloc[:1]]), r"row \d+: a second "),
        (
            lambda t: t[(t.optype != "backward-compute") | (t.dp_rank == 0) | (t.stage == 0)],
            r"step 3 has no backward-compute of dp_rank 1 stage 1",
        ),
    ],
)
def test_an_unusable_trace_is_named(
    files: Files, change: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    trace, meta = files(SHAPE)
    change(pd.read_parquet(trace)).to_parquet(trace)
    with pytest.raises(UserInputError, match=message) as raised:
        read_recorded_job(trace, meta)
    assert str(trace) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dp_size": None}, "dp_size: is required"),
        ({"pp_size": 0}, "pp_size: expected a whole number of at least 1, got 0"),
        ({"vpp_size": "two"}, "vpp_size: expected a whole number"),
        ({"vp_size": 2}, r"vp_size: is not a known key \(did you mean 'vpp_size'\?\)"),
        ({"world_size": 9}, "world_size: is 9, but dp_size x pp_size x tp_size x dsp_size is 8"),
        ({"dp_size": 4, "world_size": 16}, "no operation has dp_rank 2, but dp_size is 4"),
        ({"pp_size": 4, "world_size": 16}, "no operation has stage 2, but pp_size is 4"),
        ({"vpp_size": 2}, "no operation has gmc 2, but pp_size x vpp_size is 4"),
    ],
)
def test_unusable_degrees_are_named(files: Files, change: dict[str, object], message: str) -> None:
    trace, meta = files(SHAPE)
    meta.write_text(yaml.safe_dump({**SHAPE.meta(), **change}))
    with pytest.raises(UserInputError, match=message) as raised:
        read_recorded_job(trace, meta)
    assert str(meta) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.parquet", None, "no such file"),
        ("trace.txt", b"1", "expected a name that ends in"),
        ("broken.parquet", b"not parquet", "cannot be read"),
        ("empty.csv", b"", "cannot be read"),
        ("broken.csv.gz", b"not gzip", "cannot be read"),
    ],
)
def test_an_unreadable_file_is_named(
    files: Files, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    _, meta = files(SHAPE)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserInputError, match=message):
        read_recorded_job(tmp_path / name, meta)


def test_the_fixture_is_a_trace_of_the_published_schema() -> None:
    assert set(record(SHAPE)["optype"]) >= {"params-all-gather", "forward-send", "optimizer"}
