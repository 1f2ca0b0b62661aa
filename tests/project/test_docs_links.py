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
JSON_KEYS = {
    ("memory", "total_bytes"),
    ("network", "contention_s"),
    ("summary", "by_doubt"),
    ("summary", "by_rules"),
}


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


def test_names_that_pages_find_in_modules_are_there() -> None:
    """`module.name` where a module of that name exists: it has the name, or a scenario has that key."""
    text: dict[str, str] = {}
    for folder in ("cost_models", "simulator", "experiments", "traces", "hdpsim"):
        for file in (ROOT / folder).rglob("*.py"):
            text[file.stem] = text.get(file.stem, "") + file.read_text(encoding="utf-8")
    keys = (ROOT / "docs" / "reference" / "scenarios.md").read_text(encoding="utf-8")
    named = {
        found
        for page in PAGES
        for found in re.findall(r"`(\w+)\.(?!parquet)([a-zA-Z_]\w{4,})`", page.read_text(encoding="utf-8"))
        if found[0] in text and found not in JSON_KEYS and ".".join(found) not in keys
    }
    assert not [found for found in named if not re.search(rf"\b{found[1]}\b", text[found[0]])]


def test_every_package_is_in_the_tables_of_the_architecture() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    packages = {
        file.parent.name
        for folder in ("experiments", "simulator", "cost_models")
        for file in (ROOT / folder).glob("*/__init__.py")
    }
    assert not [name for name in packages if f"`{name}`" not in page]
