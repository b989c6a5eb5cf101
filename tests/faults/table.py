"""The fault matrix as text."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.faults.run_cell import Row

_HEAD = ("mode", "fault", "point", "expected", "outcome", "exits", "s", "weights", "lost/twice", "left", "verdict")


def row_texts(row: Row) -> list[str]:
    cell = row.cell
    weights = {True: "equal", False: "DIFFER", None: "-"}[row.weights_equal]
    seeds = "/".join("-" if count is None else str(count) for count in (row.lost, row.doubled))
    left = str(len(row.leftovers)) if row.leftovers else "nothing"
    verdict = "holds" if not row.complaints else "FAILS: " + "; ".join(row.complaints)
    shown = [cell.mode, cell.fault, cell.point or "-", str(cell.expected), row.outcome, " ".join(row.statuses)]
    return [*shown, f"{row.seconds:.1f}", weights, seeds, left, verdict]


@dataclass
class Matrix:
    """rows: of the cells that were run.  skipped: names of the others, and why."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def lines(self) -> list[str]:
        table = [list(_HEAD), *map(row_texts, self.rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(_HEAD) - 1)]
        said = ["  ".join([*map(str.ljust, line, widths), line[-1]]) for line in table]
        said += [f"not run: {name}: {reason}" for name, reason in self.skipped]
        held = sum(not row.complaints for row in self.rows)
        return [*said, f"{held} of {len(self.rows)} cells hold, {len(self.skipped)} are not run"]
