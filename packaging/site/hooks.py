"""Pages of the site that are not in docs/, and links to files of the repository (mkdocs.yml, `make docs`).

A page knows the file that its text comes from. Links are resolved against that file, as on a forge; a link to a file that is no
page, such as a configuration, leads to a page that shows it.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import inspect
import posixpath
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jupytext
import nbclient
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
# Pages by their file in the repository, where the place differs from that below docs/.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "guide.md",
    "docs/decisions": "decisions/index.md",
    "examples/notebooks": "tutorials/index.md",
    "examples/gallery": "gallery/index.md",
    "docs/options.md": "options.md",
    **{
        f"{name}.md": f"project/{name.lower()}.md"
        for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")
    },
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|<)([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".j2": "jinja",
    ".toml": "toml",
    ".cpp": "cpp",
    ".h": "cpp",
}
# Who searches wants to do something: guides come before the API, programs and reasons.
_BOOSTS = {"api": 0.15, "options.md": 0.3, "gallery": 0.4, "project": 0.15, "decisions": 0.1}
_NOT_SEARCHED = "---\nsearch: {exclude: true}\n---\n"

_origins: dict[str, str] = {}  # page -> its file in the repository
_tracked: set[str] = set()


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    _tracked.update(subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines())
    _origins.update({file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()})
    for page in ("README.md", "options.md"):
        if (found := files.get_file_from_path(page)) is not None:
            files.remove(found)
    made = {**_own_pages(), **dict(_tutorials()), **dict(_gallery(files, config)), **dict(_api())}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for page in _shown(files, made):
        files.append(File.generated(config, _page_of(page), content=_file_page(page)))
        _origins[_page_of(page)] = page
    for name in ("extra.css", "extra.js"):
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(HERE / name)))
    for folder in ("api/", "decisions/", "gallery/"):
        found = [file.src_uri for file in files.documentation_pages() if file.src_uri.startswith(folder)]
        pages = sorted(found, key=lambda page: page.removesuffix(".md"))
        config.nav = _with_pages(config.nav, f"{folder}index.md", pages)
    return files


def _with_pages(nav: Any, index: str, pages: list[str]) -> Any:
    """The navigation, with the pages of a folder below its index."""
    if isinstance(nav, list):
        return [_with_pages(each, index, pages) for each in nav]
    if isinstance(nav, dict):
        below = [index, *(page for page in pages if page != index)]
        return {title: below if each == index else _with_pages(each, index, pages) for title, each in nav.items()}
    return nav


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Has links lead to pages."""
    origin, here = _origins.get(page.file.src_uri), page.file.src_uri
    if (boost := _BOOSTS.get(here.partition("/")[0])) is not None:
        page.meta["search"] = {"boost": boost}
    if origin is None:
        return markdown

    def lead(found: re.Match[str]) -> str:
        target = _target(origin, found[1])
        if target is None:
            return found[0]
        return posixpath.relpath(_page_of(target), posixpath.dirname(here) or ".") + (found[2] or "")

    return _LINK.sub(lead, markdown)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """For screen readers: names the search, which the theme does not, and has no heads of tables without a word."""
    output = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    return re.sub(r"<th( [^>]*)?></th>", r"<td\1></td>", output)


def _target(origin: str, link: str) -> str | None:
    """The path in the repository that a link of a file names; None if it is not there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return path if path in MOVED or (ROOT / path).exists() else None


def _page_of(path: str) -> str:
    """The page of a path of the repository."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    for folder, pages in (("examples/notebooks/", "tutorials"), ("examples/gallery/", "gallery")):
        if path.startswith(folder):
            return f"{pages}/{Path(path).stem}.md"
    return f"files/{path}.md"


def _shown(files: Files, made: Mapping[str, str]) -> list[str]:
    """Files of the repository that pages link to, and those in folders that they link to."""
    found: set[str] = set()
    for file in files.documentation_pages():
        origin = _origins.get(file.src_uri)
        if origin is None:
            continue
        text = made.get(file.src_uri) or (ROOT / origin).read_text()
        targets = (_target(origin, link) for link, _ in _LINK.findall(text))
        found |= {each for each in targets if each is not None and _page_of(each).startswith("files/")}
    for folder in [each for each in found if (ROOT / each).is_dir()]:
        found |= {name for name in _tracked if name.startswith(f"{folder}/")}
    return sorted(found)


def _file_page(path: str) -> str:
    """A page that shows a file, or the names in a folder."""
    if (ROOT / path).is_dir():
        names = sorted(name for name in _tracked if name.startswith(f"{path}/"))
        return "\n".join(
            [
                _NOT_SEARCHED,
                f"# {path}",
                "",
                *(f"- [{name}]({posixpath.relpath(name, posixpath.dirname(path))})" for name in names),
            ]
        )
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"{_NOT_SEARCHED}\n# {path}\n\n````{language}\n{(ROOT / path).read_text()}````\n"


def _own_pages() -> dict[str, str]:
    pages = {}
    for origin, page in MOVED.items():
        if (ROOT / origin).is_file() and origin not in ("README.md", "docs/options.md"):
            pages[page], _origins[page] = (ROOT / origin).read_text(), origin
    pages["index.md"], _origins["index.md"] = (HERE / "index.md").read_text(), "README.md"
    pages["options.md"] = _options_page()
    lines = [
        "# Decisions",
        "",
        "Why things are as they are: the question, what was decided, the price, and when to look again.",
        "",
    ]
    for path in sorted((ROOT / "docs/decisions").glob("*.md")):
        lines.append(f"- [{path.read_text().partition(chr(10))[0].lstrip('# ')}]({path.name})")
    pages["decisions/index.md"] = "\n".join(lines)
    return pages


def _options_page() -> str:
    """The page that docs/options_page.py makes of the options classes."""
    spec = importlib.util.spec_from_file_location("options_page", ROOT / "docs/options_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _origins["options.md"] = "docs/options.md"
    return str(module.page())


def _tutorials() -> Iterator[tuple[str, str]]:
    """The notebooks, as pages."""
    titles = []
    for path in sorted((ROOT / "examples/notebooks").glob("*.py")):
        notebook = jupytext.read(path)
        notebook.metadata.clear()
        text = jupytext.writes(notebook, fmt="md").replace("```\n```python", "```\n\n```python")
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S).strip()
        page = f"tutorials/{path.stem}.md"
        _origins[page] = f"examples/notebooks/{path.name}"
        titles.append(f"- [{text.partition(chr(10))[0].lstrip('# ')}]({path.stem}.md)")
        yield page, f"{text}\n\nThe notebook: `examples/notebooks/{path.name}`; jupytext opens it in Jupyter.\n"
    head = (
        "# Tutorials\n\nEach is a notebook that tests run. Before the first, the [demo](../configuration.md#commands) takes a "
        "minute.\n\n- Begin here: [From two CSV files to an endpoint](../gallery/01_nodes_from_csv.md), in 15 minutes"
    )
    yield "tutorials/index.md", "\n".join([head, *titles])


def _gallery(files: Files, config: MkDocsConfig) -> Iterator[tuple[str, str]]:
    """The notebooks of the gallery, executed, with what they print and draw; and a page with their pictures."""
    shown = ["# Gallery", "", "Whole programs to copy. Each was run when this page was built.", ""]
    for path in sorted((ROOT / "examples/gallery").glob("*.py")):
        notebook = jupytext.read(path)
        with tempfile.TemporaryDirectory() as folder:
            place = {"metadata": {"path": folder}}
            nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
        cells = [cell for cell in notebook.cells if cell.cell_type != "raw"]  # the header of jupytext is one
        title = cells[0].source.partition("\n")[0].lstrip("# ")
        parts = []
        for cell in cells:
            parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
            for output in cell.get("outputs", ()):
                if output.output_type == "stream" and output.name == "stdout":
                    parts.append(f"```text\n{output.text.strip()}\n```")
                if (picture := output.get("data", {}).get("image/png")) is not None:
                    files.append(File.generated(config, f"gallery/{path.stem}.png", content=base64.b64decode(picture)))
                    parts.append(f"![{title}: the picture that the last cell draws]({path.stem}.png)")
        page = f"gallery/{path.stem}.md"
        _origins[page] = f"examples/gallery/{path.name}"
        shown += [f"## [{title}]({path.stem}.md)", "", f"![{title}]({path.stem}.png)", ""]
        yield page, "\n\n".join([*parts, f"The notebook: `examples/gallery/{path.name}`.\n"])
    yield "gallery/index.md", "\n".join(shown)


def _api() -> Iterator[tuple[str, str]]:
    """A page for each face: its docstring, and the public names that no page before it has."""
    seen: set[object] = set()
    rows = [
        "# API",
        "",
        "Public names, by the package that they are imported from ([what is promised about them](../stability.md)).",
        "",
    ]
    for module in _faces():
        face = importlib.import_module(module)
        entries = [entry for name in face.__all__ if (entry := _entry(module, name, getattr(face, name), seen))]
        if not entries:
            continue
        first = (inspect.getdoc(face) or module).partition("\n\n")[0].replace("\n", " ")
        yield f"api/{module}.md", "\n\n".join([f"# {module}", first, *entries]) + "\n"
        rows.append(f"- [`{module}`]({module}.md): {len(entries)} names. {first}")
    yield "api/index.md", "\n".join(rows) + "\n"


def _faces() -> list[str]:
    """The package, the packages right below it, and those of compat: those that say what is public."""
    package = ROOT / "src/glt_lightning"
    names = [
        ".".join(("glt_lightning", *init.parent.relative_to(package).parts))
        for init in sorted(package.rglob("__init__.py"))
    ]
    below = [name for name in names if name.count(".") < 2 or name.startswith("glt_lightning.compat.")]
    return [name for name in below if getattr(importlib.import_module(name), "__all__", None)]


def _entry(module: str, name: str, value: Any, seen: set[object]) -> str | None:
    """What mkdocstrings expands to the page of one name; None for a package, and for what has been shown."""
    home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if inspect.ismodule(value) or own is None or not str(home).startswith("glt_lightning"):
        return None
    if (home, own) in seen:
        return None
    seen.add((home, own))
    return f"::: {home}.{own}\n    options:\n      heading: {module}.{name}\n      toc_label: {name}"
