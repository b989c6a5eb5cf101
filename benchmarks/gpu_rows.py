"""The table of the GPU benchmark: each measure with its limit, their ratio, and what it is to reach on an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu_measure import Spread


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measure, in its unit.

    limit: what the machine could do at best, measured in this run; ``limited_by`` says how.  by_limit: the target is a
    share of the limit.  at_most: less is better.  aims: whether the target is meant for this device and this graph.
    """

    what: str
    unit: str
    found: Spread
    scale: float = 1.0
    limit: float | None = None
    limited_by: str = ""
    target: float | None = None
    by_limit: bool = False
    at_most: bool = False
    aims: bool = True

    @property
    def ratio(self) -> float | None:
        return None if not self.limit else self.found.median / self.limit

    @property
    def reached(self) -> bool | None:
        """None where there is nothing to reach here."""
        value = self.ratio if self.by_limit else self.found.median
        if self.target is None or value is None or not self.aims:
            return None
        return value <= self.target if self.at_most else value >= self.target

    def cells(self) -> list[str]:
        spread = f"{self._number(self.found.median)} ({self._number(self.found.low)}-{self._number(self.found.high)})"
        limit = "-" if self.limit is None else f"{self._number(self.limit)}, {self.limited_by}"
        ratio = "-" if self.ratio is None else f"{self.ratio:.0%}"
        return [f"{self.what}: {self.unit}", spread, limit, ratio, self._target()]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "reached": self.reached}

    def _number(self, value: float) -> str:
        return f"{value / self.scale:.4g}"

    def _target(self) -> str:
        if self.target is None:
            return ""
        sign = "<" if self.at_most else ">="
        text = f"{sign} {self.target:.0%} of it" if self.by_limit else f"{sign} {self._number(self.target)}"
        return text + {True: ": yes", False: ": NO", None: ""}[self.reached]


def markdown(rows: Sequence[Row]) -> str:
    head = ["measure", "found (smallest-largest)", "limit", "of the limit", "to reach on an H200"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *(row.cells() for row in rows))]
    return "\n".join(lines)
