"""ByteScale's small figures: each is computed by the simulator, beside what the paper published."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.experiments.papers.bytescale import PAPER
from hdpsim.experiments.papers.bytescale_figures.activity import ActivityJob, _by_bin
from hdpsim.experiments.papers.bytescale_figures.bubbles import STAGES, _one_heavier, amplification
from hdpsim.experiments.papers.bytescale_figures.kernels import layer_by_length, loss
from hdpsim.experiments.papers.bytescale_figures.lengths import pack_flop
from hdpsim.experiments.papers.bytescale_figures.offload import MACHINES, SETTING, _job
from hdpsim.experiments.papers.bytescale_steps import BATCH_TOKENS, FOLDER, case_job
from hdpsim.experiments.papers.figures import asked_figures, compared, figures_part
from hdpsim.experiments.papers.folder import AboutFigure
from hdpsim.experiments.papers.paper import Results, reproduce
from hdpsim.simulator.setup import StrategyOptions

NOTHING = Results(records=[], outcomes={}, batches=1)


def test_a_value_is_compared_or_says_why_not() -> None:
    assert compared(6, "a", "ms", 2.0, 3.0)["error"] == 0.5
    assert compared(6, "a", "ms", None, 3.0)["error"] is None
    bound = compared(5, "a", "%", 30.0, 31.0, "a bound")
    assert (bound["error"], bound["reason"]) == (None, "a bound")


def test_the_table_of_all_figures_counts_by_figure() -> None:
    rows = [
        compared(6, "a", "ms", 2.0, 3.0),
        compared(5, "b", "%", 1.0, 1.0, "a bound"),
        compared(6, "c", "s", 4, 3),
    ]
    about = {
        5: AboutFigure(shows="five", basis="input", why_off="nobody knows"),
        6: AboutFigure(shows="six", basis="prediction", why_off="half of it is missing"),
        7: AboutFigure(shows="seven", basis="prediction"),
    }
    part = figures_part(about, rows)
    assert [(row["figure"], row["values"], row["count"]) for row in part.value["summary"]] == [
        (5, 1, 0),
        (6, 2, 2),
    ]
    assert part.value["summary"][1]["median_abs_error"] == pytest.approx(0.375)
    # Nothing of figure 5 is compared, so nothing of it is off.
    assert part.tables[0].notes == (
        "Figure 6 is off by up to 50%: half of it is missing.",
        "Figure 5, not compared: a bound.",
    )
    assert [row["figure"] for row in part.value["records"]] == [5, 6, 6]


def test_figures_are_asked_for_by_number() -> None:
    assert asked_figures({4, 6}, (), "Tiny") == {4, 6}
    assert asked_figures({4, 6}, (6,), "Tiny") == {6}
    with pytest.raises(UserInputError, match="Tiny: figure 5 is not reproduced; there are 4, 6"):
        asked_figures({4, 6}, (6, 5), "Tiny")
    with pytest.raises(UserInputError, match="it has none by number"):
        asked_figures((), (5,), "Tiny")


def test_every_figure_has_a_section_and_published_values() -> None:
    of_sections = {section.figure for section in PAPER.sections}
    assert of_sections == set(FOLDER.figures)
    assert FOLDER.main_figure in FOLDER.figures
    assert {f"figure_{number}" for number in (4, 5, 6, 16, 19, 21)} <= set(FOLDER.published)


def test_one_figure_is_reproduced_without_the_cells(tmp_path: Path) -> None:
    found = reproduce(PAPER, batches=1, workers=1, figures=(6, 16))
    write_document(str(tmp_path / "out"), found)
    document = json.loads(json.dumps(found.data(), allow_nan=False))
    assert document["records"] == []
    assert [row["figure"] for row in document["figures"]["summary"]] == [6, 16]
    with (tmp_path / "out/figures.csv").open() as file:
        assert {row["figure"] for row in csv.DictReader(file)} == {"6", "16"}
    assert {"figures.png", "layer_by_length.csv", "packs.csv", "loss.csv"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    with pytest.raises(UserInputError, match="are about Figure 17"):
        reproduce(PAPER, str(FOLDER.path / "cells.csv"), batches=1, figures=(6,))


def test_the_command_takes_figures() -> None:
    done = CliRunner().invoke(cli, ["reproduce", "bytescale", "--figure", "16", "--batches", "1"])
    assert done.exit_code == 0, done.output
    assert "separate over fused" in done.output
    refused = CliRunner().invoke(cli, ["reproduce", "bytescale", "--figure", "7"])
    assert refused.exit_code == 2
    assert "figure 7 is not reproduced; there are 4, 5, 6, 16, 17" in refused.stderr


def test_attention_of_a_layer_grows_with_the_square_of_the_length() -> None:
    rows = layer_by_length(NOTHING).value
    attention = {row["tokens"]: row["attention_ms"] for row in rows}
    mlp = {row["tokens"]: row["mlp_ms"] for row in rows}
    assert attention[2**17] / attention[2**16] == pytest.approx(3.6, abs=0.2)  # 175.5 over 48.2 in the paper
    assert mlp[2**17] / mlp[2**16] == pytest.approx(2.0, rel=0.01)
    # 2 w s^2 FLOP, w = 4096 / 8 heads' width of a GPU, at 0.74 of 148e12 FLOP/s
    assert attention[2**17] > 1e3 * 2 * 512 * 2.0**34 / (0.74 * 148e12)


def test_the_loss_is_its_passes_over_the_logits() -> None:
    fused, separate, times, memory = (row["predicted"] for row in loss(NOTHING).value)
    logits = 8192 * 131072 / 2
    assert fused == pytest.approx(1e3 * 12 * logits / (0.9 * 4e12), rel=1e-3)
    assert times == pytest.approx(separate / fused) == pytest.approx(52 / 12, rel=1e-3)
    assert memory == 16.0  # 4 B x 2^18 x 2^17 / 8


def test_a_pack_of_one_sequence_has_the_most_flop() -> None:
    work = pack_flop(catalog.model("llama-7b"), "github", 2**15, 1)
    # (1 + 2.5) x 4 x 4096 x 32768^2: the 62e12 of the figure
    assert work.max() == pytest.approx(3.5 * 4 * 4096 * 2.0**30)
    assert work.min() > 0


def test_a_gap_is_amplified_by_about_the_stages() -> None:
    factor = amplification(_one_heavier().run())
    assert STAGES - 1 < factor <= STAGES + 1e-9


def test_amounts_are_spread_over_bins() -> None:
    # 6 from 0 to 3, 4 from 2 to 4, in bins of 2
    found = _by_bin(
        np.array([0.0, 2.0]), np.array([3.0, 4.0]), np.array([6.0, 4.0]), np.array([0.0, 2.0, 4.0])
    )
    assert found.tolist() == pytest.approx([4.0, 6.0])


def test_activity_is_the_steps_flop_over_the_peak() -> None:
    steps = case_job(StrategyOptions(name="hdp-balance"), 1)
    found, step = ActivityJob(steps=steps).run(), steps.run()
    widths = np.full(len(found.tensor), 20.0)
    widths[-1] = step.total_s - 20.0 * (len(widths) - 1)
    tensor_s = float((found.tensor * widths).sum())
    # Kernels do 3.5 forwards of attention where model FLOP count 3: a little more, and no padding.
    assert step.mfu < tensor_s / step.total_s < 3.5 / 3.0 * step.mfu
    assert BATCH_TOKENS / step.tokens == 1.0


def test_offloading_leaves_memory_and_costs_time_only_when_links_are_slow() -> None:
    kept, gone = (_job(*MACHINES[SETTING["compared"]], "64K", ratio).run() for ratio in (0.0, 1.0))
    # 8K tokens x 30 of 32 layers x (12 h + 4 h / 4 + 6 f = 119,296 B, and log-sum-exps of 32 heads)
    moved = 8192 * 30 * (12 * 4096 + 4096 + 6 * 11008 + 4 * 32)
    assert kept.memory_bytes - gone.memory_bytes == pytest.approx(1.05 * moved, rel=0.01)  # and fragments
    assert gone.step_s > kept.step_s
