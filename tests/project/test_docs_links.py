"""Links between pages of the documentation lead somewhere, every page is in its index, modules that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")

OTHERS = {
    "arguments.py",
    "p2p_communication.py",
    "optimizer/distrib_optimizer.py",
    "experiments/papers/NAME.py",
}
"""Files that pages name and that are Megatron-LM's, or for the reader to write."""


def anchors(page: Path) -> set[str]:
    """The anchors that headings of *page* make, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for page in PAGES:
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {
        (index.parent / target).resolve() for target, _ in LINK.findall(index.read_text(encoding="utf-8"))
    }
    pages = set((ROOT / "docs").rglob("*.md")) - {index}
    assert pages <= listed


def test_modules_that_pages_name_exist() -> None:
    folders = (
        "cost_models",
        "simulator",
        "experiments",
        "traces",
        "hdpsim",
        "tests",
        "tools",
        "benchmarks",
        "docs",
    )
    modules = [f"/{file.relative_to(ROOT)}" for folder in folders for file in (ROOT / folder).rglob("*.py")]
    named = {
        (name, page.name)
        for page in PAGES
        for name in re.findall(r"`([\w/.-]+\.py)`", page.read_text(encoding="utf-8"))
    }
    named |= {
        (name, file.name)
        for folder in folders[:5]
        for file in (ROOT / folder).rglob("*.*")
        if file.suffix in {".py", ".yaml"}
        for name in re.findall(
            rf"(?<![\w/.-])(?:{'|'.join(folders[:5])})/[\w/.-]+\.py", file.read_text(encoding="utf-8")
        )
    }
    assert not [
        (name, page)
        for name, page in named
        if name not in OTHERS and not any(module.endswith(f"/{name}") for module in modules)
    ]
