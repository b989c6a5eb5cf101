"""A report as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from glt_lightning.page.table import Table

_STYLE = """
:root { color-scheme: light dark; --fg: #1d2430; --bg: #fff; --soft: #667085; --line: #d5dae2; --band: #f4f6f9;
  --s0: #2563eb; --s1: #d97706; --s2: #059669; --s3: #c026d3; --s4: #dc2626; --s5: #0891b2; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e4e8ee; --bg: #14181f; --soft: #98a2b3; --line: #39414e; --band: #1d232d;
    --s0: #60a5fa; --s1: #fbbf24; --s2: #34d399; --s3: #e879f9; --s4: #f87171; --s5: #22d3ee; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } figcaption, .note { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } tbody tr:nth-child(even) { background: var(--band); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre { background: var(--band); padding: .7rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.4; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; }
figure { margin: 0; flex: 1 1 24rem; max-width: 34rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); } .grid { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0; font-size: .85rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.line { fill: none !important; stroke-width: 1.5; } .line.thick { stroke-width: 3.5; }
""" + "".join(f".s{n} {{ fill: var(--s{n}); stroke: var(--s{n}); background: var(--s{n}); }}\n" for n in range(6))


_HEAD = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'


def may_be_replaced(path: Path) -> bool:
    """Whether nothing is there, or a page of `whole_page`. Raises OSError."""
    if not os.path.lexists(path):
        return True
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:  # of a pipe: no wait
        return stream.read(len(_HEAD)) == _HEAD.encode()


def whole_page(title: str, body: Iterable[str]) -> str:
    """A whole HTML page. body: pieces that the functions below made."""
    name = escape(title)
    return (
        f"{_HEAD}{name}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n<h1>{name}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """A list of (what, value)."""
    return f"<dl>{''.join(f'<dt>{escape(what)}</dt><dd>{escape(value)}</dd>' for what, value in facts)}</dl>"


def table_html(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    shown = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<h2>{escape(table.title)}</h2>{shown}{note}"


def plots_html(figures: Mapping[str, str]) -> str:
    """SVG plots by their captions, beside each other where there is room."""
    shown = [f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>" for title, svg in figures.items()]
    return f'<div class="plots">{"".join(shown)}</div>'


def note_html(text: str) -> str:
    """A paragraph of explanation."""
    return f'<p class="note">{escape(text)}</p>'


def text_html(title: str, text: str) -> str:
    """A text as it stands, such as a file."""
    return f"<h2>{escape(title)}</h2><pre>{escape(text)}</pre>"
