"""The report as one HTML page."""

from __future__ import annotations

from typing import Any

from glt_lightning.base import numbers
from glt_lightning.cli.partition_report.contents import Contents
from glt_lightning.cli.partition_report.report import Report
from glt_lightning.cli.partition_report.tables import cache_tables, contents_tables, facts, mean_hit_rate, traffic_table
from glt_lightning.cli.partition_report.traffic import ExpectedTraffic
from glt_lightning.lightning import Series, bars, lines, render

_MANY = 6  # parts from which on a plot shows the means alone


def report_html(report: Report) -> str:
    """Writes a report as a complete HTML page. Needs jinja2 and matplotlib."""
    contents = report.contents
    values: dict[str, Any] = {
        "title": f"{contents.made_by.get('source', 'partition')}: {numbers.counted(contents.num_parts, 'part')}",
        "facts": facts(report),
        "plots": _contents_plots(contents),
        "tables": contents_tables(contents),
        "traffic": [
            {"table": traffic_table(each), "plots": _traffic_plots(each), "caches": cache_tables(each)}
            for each in report.traffic
        ],
    }
    return render("partition.html", **values)


def _contents_plots(contents: Contents) -> dict[str, str]:
    labels = [str(p) for p in range(contents.num_parts)]
    even = []
    for kind in ("nodes", "edges", "seeds"):
        of_kind = [c.parts for c in contents.counts if c.kind == kind]
        if total := sum(map(sum, of_kind)):
            sums = [sum(each) for each in zip(*of_kind, strict=True)]
            even.append(Series(kind, tuple(n * contents.num_parts / total for n in sums)))
    memory = Series("memory", tuple(each.total / 1e6 for each in contents.memory))
    return {
        "Nodes, edges and seeds of each part, by the mean of all parts": bars(labels, even, "1 = even"),
        "Mapped files of each part": bars(labels, [memory], "MB"),
    }


def _traffic_plots(traffic: ExpectedTraffic) -> dict[str, str]:
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
    return figures


def _share(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate
