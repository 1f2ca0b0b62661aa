"""Step times that were put together from parts are told from measured ones."""

from __future__ import annotations

import csv
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hdpsim.experiments.records.columns import shipped_records
from hdpsim.experiments.validation.computed_step_times import computed
from hdpsim.experiments.validation.run import run


def grid(steps_s: dict[int, float], **columns: object) -> list[dict[str, object]]:
    return [
        {"id": f"{batch}", "gpu": "A100", "tp": 2, "global_batch_seqs": batch, "measured_step_s": step_s}
        | columns
        for batch, step_s in steps_s.items()
    ]


def test_steps_of_sixteen_milliseconds_and_forty_a_micro_batch() -> None:
    """As a published grid has them: 12.750 + 44.851 n ms for 4, 8, 16 and 64 sequences on four ranks."""
    line = {n * 4: 0.012750 + 0.044851 * n for n in (1, 2, 4, 16)}
    assert computed(grid(line)) == [True] * 4
    assert computed(grid({batch: line[batch] for batch in (4, 8, 16)})) == [False] * 3, (
        "three lie on lines by chance"
    )
    assert computed(grid(line) + grid({4: 0.061, 8: 0.105}, tp=4)) == [True] * 4 + [False] * 2
    assert computed(grid(line | {16: line[16] * 1.001})) == [False] * 4, "0.1 % off is a measurement"


def test_what_says_no_time_is_not_asked() -> None:
    assert (
        computed([{"gpu": "A100", "tp": 2}, {"measured_step_s": 1.0}, {"global_batch_seqs": 4}])
        == [False] * 3
    )


@given(st.floats(1e-3, 1e2), st.lists(st.integers(1, 2**14), min_size=4, max_size=9, unique=True))
def test_the_same_rate_at_every_batch_is_a_rounded_rate_and_no_line(per_s: float, batches: list[int]) -> None:
    assert not any(computed(grid({batch: batch / per_s for batch in batches})))


@given(
    st.floats(1e-3, 10.0),
    st.floats(1e-3, 10.0),
    st.lists(st.integers(1, 256), min_size=4, max_size=9, unique=True),
    st.floats(1e-3, 0.3),
    st.randoms(use_true_random=False),
)
def test_a_step_that_is_off_by_a_thousandth_saves_its_set(
    fixed_s: float, each_s: float, batches: list[int], off: float, random: object
) -> None:
    """The longest way off a line that one outlier cannot tilt away: at the second of four or more batches."""
    ordered = sorted(batches)
    steps_s = {batch: fixed_s + each_s * batch for batch in ordered}
    shortest_s = steps_s[ordered[0]]
    share = fixed_s / shortest_s
    assert all(computed(grid(steps_s))) == (share > 1e-4)
    steps_s[ordered[1]] *= 1.0 + off
    leverage = (ordered[2] - ordered[1]) / (ordered[-1] - ordered[0])
    if leverage > 0.1:
        assert not any(computed(grid(steps_s)))


def test_no_published_run_was_computed() -> None:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        assert not any(computed(list(csv.DictReader(file))))


def test_validate_names_them_and_counts_them_nowhere(tmp_path: Path) -> None:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        shown = next(row for row in csv.DictReader(file) if row["id"] == "megatron-lm-0001")
    shown |= {"complete": "1", "suspect": "", "dp": "", "grad_accum": "", "measured_tokens_per_s_per_gpu": "",
              "measured_tflops_per_gpu": "", "measured_mfu_pct": ""}  # fmt: skip
    batch = int(float(shown["global_batch_seqs"]))
    for name, off in (("lines.csv", 0.0), ("clock.csv", 0.002)):
        rows = [
            shown | {"id": f"r{n}", "global_batch_seqs": str(batch * n), "measured_step_s": f"{step_s:.7f}"}
            for n, step_s in ((1, 2.0), (2, 3.0), (3, 4.0 + off), (4, 5.0))
        ]
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(shown))
            writer.writeheader()
            writer.writerows(rows)
        document = run(str(tmp_path / name))
        data = document.data()
        assert [row["computed"] for row in data["records"]] == [off == 0.0] * 4
        assert data["summary"]["complete_pretraining"]["count"] == (0 if off == 0.0 else 4)
        assert any("put together from parts" in line for line in document.notes) == (off == 0.0)
