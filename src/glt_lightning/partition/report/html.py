"""The report as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from html import escape

from glt_lightning.partition.report import numbers
from glt_lightning.partition.report.contents import Contents
from glt_lightning.partition.report.plots import Series, bars, lines
from glt_lightning.partition.report.report import Report
from glt_lightning.partition.report.tables import (
    Table,
    cache_tables,
    contents_tables,
    facts,
    mean_hit_rate,
    traffic_table,
)
from glt_lightning.partition.report.traffic import Traffic

_MANY = 6  # parts from which on a plot shows the means alone
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
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; }
figure { margin: 0; flex: 1 1 24rem; max-width: 34rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); } .grid { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0; font-size: .85rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.line { fill: none !important; stroke-width: 1.5; } .line.thick { stroke-width: 3.5; }
""" + "".join(f".s{n} {{ fill: var(--s{n}); stroke: var(--s{n}); background: var(--s{n}); }}\n" for n in range(6))


def report_html(report: Report) -> str:
    """A whole HTML page."""
    name = escape(str(report.contents.made_by.get("source", "partition")))
    title = f"{name}: {report.contents.num_parts} parts"
    said = "".join(f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in facts(report))
    body = [f"<h1>{title}</h1>", f"<dl>{said}</dl>", _contents_plots(report.contents)]
    body += map(_table, contents_tables(report.contents))
    for traffic in report.traffic:
        body += [_table(traffic_table(traffic)), _traffic_plots(traffic), *map(_table, cache_tables(traffic))]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    shown = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<h2>{escape(table.title)}</h2>{shown}{note}"


def _plots(figures: dict[str, str]) -> str:
    shown = [f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>" for title, svg in figures.items()]
    return f'<div class="plots">{"".join(shown)}</div>'


def _contents_plots(contents: Contents) -> str:
    labels = [str(p) for p in range(contents.num_parts)]
    even = []
    for kind in ("nodes", "edges", "seeds"):
        of_kind = [c.parts for c in contents.counts if c.kind == kind]
        if total := sum(map(sum, of_kind)):
            sums = [sum(each) for each in zip(*of_kind, strict=True)]
            even.append(Series(kind, tuple(n * contents.num_parts / total for n in sums)))
    memory = Series("memory", tuple(each.total / 1e6 for each in contents.memory))
    return _plots(
        {
            "Nodes, edges and seeds of each part, by the mean of all parts": bars(labels, even, "1 = even"),
            "Mapped files of each part": bars(labels, [memory], "MB"),
        }
    )


def _traffic_plots(traffic: Traffic) -> str:
    labels = [str(part.part) for part in traffic.parts]
    asked = [Series("bytes per batch", tuple(part.bytes.mean / 1e6 for part in traffic.parts))]
    figures = {"Bytes per batch of the rank of each part": bars(labels, asked, "MB")}
    for policy in dict.fromkeys(cache.policy for cache in traffic.parts[0].caches):
        per_part = [[cache for cache in part.caches if cache.policy == policy] for part in traffic.parts]
        sizes = [numbers.ratio(cache.ratio) for cache in per_part[0]]
        curves = [Series(f"part {p}", tuple(_share(c.hit_rate) for c in each)) for p, each in enumerate(per_part)]
        means = tuple(_share(mean_hit_rate([c.hit_rate for c in each])) for each in zip(*per_part, strict=True))
        curves = [*(curves if len(curves) < _MANY else []), Series("mean", means)]
        figures[f"Hit rate by size of the cache ({policy})"] = lines(sizes, curves, "%")
    return _plots(figures)


def _share(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate
