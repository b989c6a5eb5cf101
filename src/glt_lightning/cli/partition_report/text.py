"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from glt_lightning.cli.partition_report.report import Report
from glt_lightning.cli.partition_report.tables import cache_tables, contents_tables, facts, traffic_table
from glt_lightning.lightning import Table

_COLUMNS = 11  # of a table beside each other; more parts go below


def report_text(report: Report) -> str:
    """Writes a report as facts and aligned tables."""
    tables = contents_tables(report.contents)
    for traffic in report.traffic:
        tables += [traffic_table(traffic), *cache_tables(traffic)]
    return page_text(facts(report), tables)


def page_text(rows: Sequence[tuple[str, str]], tables: Sequence[Table]) -> str:
    """Writes facts (name, value), and aligned tables below them."""
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
    for table in tables:
        lines += ["", *_table(table)]
    return "\n".join(_printable(line) for line in lines)


def _table(table: Table) -> list[str]:
    lines = [table.title]
    for begin in range(1, len(table.head), _COLUMNS):
        columns = [0, *range(begin, min(begin + _COLUMNS, len(table.head)))]
        lines += _aligned([[row[c] for c in columns] for row in (table.head, *table.rows)])
    return [*lines, f"({table.note})"] if table.note else lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns a table: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _printable(line: str) -> str:
    """Replaces control characters, which names of types and data sets may contain."""
    return "".join(c if c.isprintable() else "?" for c in line)
