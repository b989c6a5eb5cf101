"""The site is built from the pages without a warning, and has what a stranger looks for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


def rows(page: Path, head: str) -> list[str]:
    """The first table whose head begins with these words: its rows."""
    table = page.read_text().partition(f"\n{head}")[2].partition("\n\n")[0]
    return table.splitlines()[2:]


def test_the_front_page_is_short_and_its_table_is_that_of_the_sources() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 600
    short, long = (rows(page, "| | here | PyG |") for page in (ROOT / "README.md", ROOT / "docs/comparison.md"))
    cells = {row.split("|")[1].strip(): row.split("|")[2:] for row in long}
    assert len(short) > 5
    assert all(len(each) == 7 for each in cells.values())
    sources = rows(ROOT / "docs/comparison.md", "## Sources\n\n| | |")
    assert [row.split("|")[1].strip() for row in sources] == ["here", "PyG", "DGL", "GLT", "GraphStorm", "GiGL"]


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    made = ("README.md", "options.md", "decisions/")  # the guide, and those that are listed by packaging/site/hooks.py
    assert [page for page in pages if f" {page}\n" not in nav and not page.startswith(made)] == []


class Page(HTMLParser):
    """The links, anchors and pictures of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.without_alt: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {str(given[name]) for name in ("id", "name") if given.get(name)}
        if tag == "img" and not given.get("alt"):
            self.without_alt.append(str(given.get("src")))
        if (link := given.get("href" if tag in ("a", "link") else "src")) is not None:
            self.links.append(link)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the site needs pip install '.[site]'")
@pytest.mark.timeout(1200)
def test_the_site_is_built_without_a_warning_and_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    pages = {path: Page(path.read_text()) for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 80
    dead = []
    for path, page in pages.items():
        assert not page.without_alt, f"{path}: pictures without a text: {page.without_alt}"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.exists() or (
                parts.fragment and known is not None and unquote(parts.fragment) not in known.anchors
            ):
                dead.append(f"{path.relative_to(tmp_path)}: {link}")
    assert dead == []
    assert [str(path) for path in pages if re.search(r"<th[^>]*></th>", path.read_text())] == []
    api = "".join(path.read_text() for path in (tmp_path / "api").rglob("index.html"))
    index = json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    classes = [
        line
        for line in (ROOT / "tests/house/public_names.txt").read_text().splitlines()
        if line.count(".") == 1 and not line.endswith("__version__")  # a text, without a docstring
    ]
    assert [name for name in classes if f"{name}" not in api] == []
    assert any("resume" in each["title"].lower() for each in index)
    assert any(each["location"].startswith("options/") for each in index)
    assert all(each["boost"] < 1 for each in index if each["location"].startswith(("api/", "gallery/", "decisions/")))
