"""Pages to forward: complete without a network, safe whatever names are in them, the same from a run directory."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output.document import Column, Document, OutputFile, Table
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.experiments.output.page.charts import account_bars, candidate_dots, rank_strips
from hdpsim.experiments.output.page.html import page
from hdpsim.experiments.output.page.lanes import MOST_PASSES, WIDTH, pass_lanes
from hdpsim.experiments.output.page.view import STORED, loaded, view_of
from hdpsim.experiments.output.plots.style import ACCOUNT_SHADES, account_colours, account_group

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
LARGEST_BYTES = 5_000_000
EVIL = '<script>alert("x")</script>'


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def document() -> Document:
    accounts = [
        {"strategy": "static", "account": "gemm", "group": "compute", "seconds": 6.0, "share": 0.75},
        {
            "strategy": "static",
            "account": "ring_wait",
            "group": "communication",
            "seconds": 2.0,
            "share": 0.25,
        },
        {"strategy": EVIL, "account": "gemm", "group": "compute", "seconds": 6.0, "share": 1.0},
    ]
    table = Table(
        title="Steps",
        columns=(Column("strategy"), Column("step_s", unit="s", format=".1f")),
        rows=[{"strategy": f"{EVIL} {number}", "step_s": 8.0} for number in range(9)],
    )
    return Document(
        kind="compare",
        payload={},
        head=f"tiny on 8 GPUs {EVIL}",
        blocks=(table, "hdp-opt is 1.33 times as fast.\n- Waits.\n- Bubbles."),
        notes=("bands are wide",),
        files=(OutputFile("accounts.csv", lambda: accounts, "Seconds by account."),),
    )


class Tags(HTMLParser):
    """What a page loads, and which tags are open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.scripts = 0
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.sources += [value or "" for name, value in attrs if name in ("src", "srcset", "data", "action")]
        self.sources += [value or "" for name, value in attrs if name == "href" and tag != "a"]
        if tag not in ("meta", "img", "input", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "img", "input", "link", "br"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_says_all_and_loads_nothing() -> None:
    text = page(view_of(document(), "hdpsim compare tiny"))
    found = Tags(text)
    assert not found.open, "every tag is closed"
    assert all(source.startswith("data:") for source in found.sources)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", text)
    assert "default-src 'none'" in text
    for words in ("hdp-opt is 1.33 times as fast.", "bands are wide", "hdpsim compare tiny", "8.0", "8 s"):
        assert words in text, words
    assert text.index("1.33 times") < text.index("<table"), "the answer comes first"


def test_findings_are_one_list() -> None:
    assert "as fast.</p><ul><li>Waits.</li><li>Bubbles.</li></ul>" in re.sub(
        r">\s+<", "><", page(view_of(document(), ""))
    )


def test_names_of_others_are_no_code() -> None:
    text = page(view_of(document(), ""))
    assert Tags(text).scripts == 1, "its own"
    assert EVIL not in text
    assert "&lt;script&gt;" in text


def test_pieces_of_a_bar_are_as_long_as_their_seconds() -> None:
    text = account_bars(
        [
            {"strategy": "a", "account": "gemm", "group": "compute", "seconds": "6.0"},
            {"strategy": "a", "account": "wait_group", "group": "waiting", "seconds": "3.0"},
            {"strategy": "b", "account": "gemm", "group": "compute", "seconds": "4.5"},
        ]
    )
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', text)]
    assert widths == pytest.approx([2 * widths[1], widths[1], 1.5 * widths[1]], abs=0.2)
    assert 'aria-label="a, GEMM (compute): 6 s, 66.7%"' in text
    assert account_bars([]) == ""


def test_candidates_lie_where_their_figures_say() -> None:
    rows = [{"layout": f"TP {n}", "memory_gib": 20.0 * n, "tokens_per_s": 1000.0 * n} for n in (1, 2)]
    text = candidate_dots(rows)
    (x1, y1), (x2, y2) = (map(float, found) for found in re.findall(r'cx="([0-9.]+)" cy="([0-9.]+)"', text))
    assert x2 - 96 == pytest.approx(2 * (x1 - 96), abs=0.2)
    assert 334 - y2 == pytest.approx(2 * (334 - y1), abs=0.2)
    assert candidate_dots(rows[:1]) == ""


def test_cells_of_a_sweep_have_bars_of_their_own() -> None:
    rows = [
        {
            "cell": cell,
            "gpus": 8 << cell,
            "strategy.name": "static",
            "account": "gemm",
            "group": "compute",
            "seconds": 2.0,
        }
        for cell in range(30)
    ]
    text = account_bars(rows[:2])
    assert 'aria-label="8, static, GEMM (compute): 2 s, 100.0%"' in text
    assert ">16, static</text>" in text
    assert account_bars(rows) == "", "too many to tell apart"


def test_strips_are_as_high_as_the_seconds_of_their_ranks() -> None:
    # A step of 8 s of two ranks with two stages each; compute of rank 0: (6 + 4) / 2 = 5 s, of rank 1: 8 s.
    seconds = {(0, 0): 6.0, (0, 1): 4.0, (1, 0): 8.0, (1, 1): 8.0}
    rows = [
        {"strategy": "a", "rank": rank, "stage": stage, "gemm_s": work, "wait_group_s": 8.0 - work}
        for (rank, stage), work in seconds.items()
    ]
    text = rank_strips(rows)
    assert 'aria-label="a, rank 0: compute 5 s, communication 0 s, overhead 0 s, waiting 3 s"' in text
    heights = [float(height) for height in re.findall(r'class="strip" [^>]*height="([0-9.]+)"', text)]
    assert heights == pytest.approx([110 * 5 / 8, 0, 0, 110 * 3 / 8, 110, 0, 0, 0], abs=0.01)
    assert rank_strips([]) == ""


def test_many_ranks_share_columns() -> None:
    rows = [{"strategy": "a", "rank": rank, "stage": 0, "gemm_s": 1.0} for rank in range(1000)]
    text = rank_strips(rows)  # 1000 / 64 = 15.6: 16 ranks a column, 63 columns
    assert text.count('class="piece"') == 63
    assert "a, ranks 0 to 15: compute 1 s" in text


def one_pass(kind: str, start_s: float, end_s: float, **others: object) -> dict[str, object]:
    return {
        "strategy": EVIL, "rank": 3, "chosen": "waits least", "stage": 0, "lane": 0, "pass": kind,
        "micro_batch": 7, "tokens": 8192, "sequences": 2, "group_size": 4, "start_s": start_s, "end_s": end_s,
        "compute_s": end_s - start_s, "communication_s": 0.0, "overhead_s": 0.0, "waiting_s": 0.0, **others,
    }  # fmt: skip


def test_passes_lie_where_their_seconds_are() -> None:
    rows = [
        one_pass("forward", 0.0, 2.0),
        one_pass("backward", 4.0, 8.0, compute_s=3.0, communication_s=1.0),
        one_pass("optimizer", 9.0, 10.0, micro_batch="", tokens="", sequences="", group_size=""),
    ]
    text = pass_lanes(rows)
    assert EVIL not in text
    assert "backward of micro-batch 7 (8,192 tokens in 2 sequences, on 4 ranks), 4 to 8 s" in text
    assert "communication 1 s" in text
    drawn = [
        (float(x), float(width))
        for x, width in re.findall(r'<rect x="([\d.]+)" y="26" width="([\d.]+)"', text)
    ]
    boxes = sorted(set(drawn))  # a marked box is drawn twice
    (forward, _), (backward, long), (exposed, short), _ = boxes
    second = long / 3.0
    assert backward - forward == pytest.approx(4.0 * second, abs=0.05)
    assert (exposed - backward, short) == pytest.approx((3.0 * second, second), abs=0.05)
    assert max(x + width for x, width in drawn) <= WIDTH
    assert pass_lanes([]) == ""


def test_a_page_has_no_more_passes_than_it_can_hold() -> None:
    rows = [
        one_pass("forward", number, number + 1.0, stage=stage) for stage in range(16) for number in range(800)
    ]
    text = pass_lanes(rows)
    lanes = re.findall(r'<text class="name"[^>]*>stage (\d+)<', text)
    assert 2 <= len(lanes) <= MOST_PASSES // 800
    assert (lanes[0], lanes[-1]) == ("0", "15")
    assert len(text) < LARGEST_BYTES / 2


def test_an_account_has_one_colour_everywhere() -> None:
    few, many = account_colours(["gemm"]), account_colours(["attention", "gemm", "wait_group", "unheard_of"])
    assert few["gemm"] == many["gemm"]
    assert len(set(many.values())) == 4
    assert all(colour in ACCOUNT_SHADES[account_group(name)] for name, colour in many.items())


def test_a_run_directory_gives_the_same_page(tmp_path: Path) -> None:
    out = tmp_path / "run"
    write_document(str(out), document(), command="hdpsim compare tiny")
    assert page(loaded(out)) == page(view_of(document(), "hdpsim compare tiny"))
    assert run("report", str(out)).exit_code == 0
    assert (tmp_path / "run.html").read_text() == page(loaded(out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "nothing"), "is not a run directory"),
        (("report", "run", "-o", "page.txt"), "ends with .html"),
        (("simulate", "quickstart-8gpu", "--report", "page.txt"), "ends with .html"),
        (("report", "old"), "made by an older hdpsim"),
        (("report", "broken"), "cannot be read"),
    ],
)
def test_wrong_use_is_one_message(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "broken"):
        write_document(name, document(), command="")
    (tmp_path / "old" / STORED).unlink()
    (tmp_path / "broken" / STORED).write_text('{"blocks": 3}')
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.slow
def test_a_real_page_in_a_browser(tmp_path: Path) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    target = tmp_path / "page.html"
    done = run("simulate", "quickstart-8gpu", "--batches", "1", "--report", str(target))
    assert done.exit_code == 0, done.stderr
    assert target.stat().st_size < LARGEST_BYTES
    probe = """<script>
      const say = (what) => { document.title += " | " + what; };
      window.addEventListener("load", () => {
        const piece = document.querySelector(".piece");
        piece.dispatchEvent(new MouseEvent("mousemove", {clientX: 5, clientY: 5}));
        const strip = document.querySelector(".strip").parentNode;
        strip.focus();
        say("strip " + document.getElementById("tip").textContent.includes("rank"));
        piece.dispatchEvent(new MouseEvent("mousemove", {clientX: 5, clientY: 5}));
        const choice = document.querySelector(".choice"), ranks = [...document.querySelectorAll(".rank")];
        choice.selectedIndex = 2; choice.dispatchEvent(new Event("change"));
        say("ranks " + ranks.filter((rank) => !rank.hidden).map((rank) => ranks.indexOf(rank)).join());
        const lane = ranks[1].querySelector(".lane");
        const key = (name) => lane.dispatchEvent(new KeyboardEvent("keydown", {key: name}));
        lane.focus(); key("ArrowRight"); key("ArrowRight"); key("ArrowLeft"); key("ArrowRight");
        const passes = [...lane.querySelectorAll(".piece")];
        say("pass " + passes.indexOf(document.activeElement));
        piece.dispatchEvent(new MouseEvent("mousemove", {clientX: 5, clientY: 5}));
        say("tip " + (!document.getElementById("tip").hidden && document.getElementById("tip").textContent.length > 5));
        const box = [...document.querySelectorAll(".filter")].pop(), rows = [...box.nextSibling.tBodies[0].rows];
        box.value = "gemm"; box.dispatchEvent(new Event("input"));
        say("rows " + rows.filter((row) => !row.hidden).length);
        say("loads " + performance.getEntriesByType("resource").filter((one) => !one.name.startsWith("data:")).length);
      });
    </script></body>"""
    target.write_text(target.read_text().replace("</body>", probe))
    browser = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         "--virtual-time-budget=3000", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", target.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", browser.stdout, re.DOTALL)
    assert title is not None, browser.stderr[-500:]
    assert title[1].endswith("| strip true | ranks 1 | pass 1 | tip true | rows 1 | loads 0")
    assert "CONSOLE" not in browser.stderr
