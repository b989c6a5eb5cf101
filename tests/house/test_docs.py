"""Pages lead somewhere: links and their anchors exist, and the glossary names modules and words of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs/options.md"  # by `make docs`, not in git
PAGES = [*sorted(ROOT.glob("*.md")), *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != MADE)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A page, `of` ours\n[x](#a-page-of-ours) [y](b.md) [z](#none) [u](https://a.b/c.md)"
    )
    assert dead_links(tmp_path / "a.md") == ["b.md", "#none"]


def test_the_glossary_names_code() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \| `([\w/]+\.py)` \|$", (ROOT / "docs/glossary.md").read_text(), re.M)
    assert len(rows) > 40
    for word, meaning, module in rows:
        path = ROOT / "src/glt_lightning" / module
        assert path.is_file(), f"{word}: there is no {module}"
        named = re.findall(r"`(\w+)`", word) + re.findall(r"`([A-Z]\w+)`(?=\s*$)", meaning)
        missing = [each for each in named if each not in path.read_text()]
        assert not missing, f"{module} does not name {missing}"


def test_all_pages_together_have_few_words() -> None:
    """As `wc -w` counts them. Cut elsewhere what a page adds: what is said twice, what is history, what the API says."""
    words = {page: len(page.read_text().split()) for page in PAGES if page.parent != ROOT}
    assert sum(words.values()) <= 40_000, f"the longest are {sorted(words, key=lambda page: -words[page])[:5]}"


def test_every_page_is_listed() -> None:
    listed = (ROOT / "docs/README.md").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md") if page != MADE]
    assert [page for page in pages if f"({page})" not in listed and not page.startswith(("README", "decisions/"))] == []
