"""What batches took: where their rows came from, and where the time of their samplers went."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from glt_lightning.kernels import DiskRead

_log = logging.getLogger(__name__)
_warned = False  # of counts that cannot be true


@dataclass
class Counters:
    """Of one batch, or of many added up. Rows are those of node and edge attributes, each counted once per batch; bytes
    are as stored, so those of remote rows are what travels, without headers and compression.

    Attributes:
        local_rows, local_bytes: Read from memory that this host maps.
        cached_rows, cached_bytes: Rows of other parts, read from a cache on this host.
        remote_rows, remote_bytes: Asked of owners.
        disk_rows, disk_bytes: Read from a disk of this host: rows that `CacheOptions.memory` left there, and whole pages.
        frontier_rows: Nodes whose neighbours were drawn.
        cached_frontier_rows, remote_frontier_rows: Those of them whose neighbour lists were cached, or at their owners.
        sample_s: Seconds spent drawing neighbours and relabelling.
        remote_s: Seconds spent waiting for owners.
        disk_s: Seconds spent waiting for the disk.
        gather_s: Seconds spent copying rows into the batch.
        device_rows, device_bytes: On the training device already (`CacheOptions.device`), so left out of the batch.
    """

    local_rows: int = 0
    local_bytes: int = 0
    cached_rows: int = 0
    cached_bytes: int = 0
    remote_rows: int = 0
    remote_bytes: int = 0
    disk_rows: int = 0
    disk_bytes: int = 0
    frontier_rows: int = 0
    cached_frontier_rows: int = 0
    remote_frontier_rows: int = 0
    sample_s: float = 0.0
    remote_s: float = 0.0
    disk_s: float = 0.0
    gather_s: float = 0.0
    device_rows: int = 0
    device_bytes: int = 0

    def add(self, other: Counters) -> None:
        """Adds another's to these."""
        for name in _KINDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_rows(self, place: str, rows: int, row_bytes: int) -> None:
        """Adds rows that come from ``local``, ``cached``, ``remote`` or ``device``."""
        if rows:
            for name, more in ((f"{place}_rows", rows), (f"{place}_bytes", rows * row_bytes)):
                setattr(self, name, getattr(self, name) + more)

    def since(self, before: Counters) -> Counters:
        """What came on top of an earlier state."""
        return Counters(**{name: getattr(self, name) - getattr(before, name) for name in _KINDS})

    @property
    def rows(self) -> int:
        """Rows from everywhere."""
        return self.local_rows + self.cached_rows + self.remote_rows + self.disk_rows + self.device_rows

    def to_list(self) -> list[int | float]:
        """The fields in order, for a message."""
        return [getattr(self, name) for name in _KINDS]

    @classmethod
    def from_list(cls, values: Any) -> Counters:
        """What `to_list` gave. Counts are of no consequence for a batch, so one that cannot be true ends no run: it counts as
        0, and the first of the process is warned of."""
        global _warned
        given = values if isinstance(values, (list, tuple)) and len(values) == len(_KINDS) else [None] * len(_KINDS)
        possible = [_is_total(value, kind) for value, kind in zip(given, _KINDS.values(), strict=True)]
        if not all(possible) and not _warned:
            _warned = True
            _log.warning(
                "counters: expected %d counts and seconds, got %.200r: those that cannot be true count as 0 in metrics and "
                "reports. Batches are not affected.",
                len(_KINDS),
                values,
            )
        totals = zip(_KINDS.values(), given, possible, strict=True)
        return cls(*(kind(value) if is_possible else kind() for kind, value, is_possible in totals))


_KINDS: dict[str, type] = {f.name: type(f.default) for f in fields(Counters)}


class DiskUse:
    """Notes in a batch's counters what the gathers of one node or edge type read from disk.

    A row of which some attribute is on disk counts as one on disk. Rows are kept in an order and from the first on, so
    that the rows on disk of the attribute with the most include those of every other attribute. once: the counters have a
    row that the batch names several times once, not as often as it is named.
    """

    def __init__(self, counters: Counters, *, once: bool = False) -> None:
        self._counters, self._once, self._rows = counters, once, 0
        self._by_attribute: dict[str, int] = {}

    def of(self, attribute: str) -> Callable[[DiskRead], None]:
        """Notes each read of an attribute. What is read of it twice, for sums and as it is, has been counted once."""
        return partial(self._note, attribute)

    def _note(self, attribute: str, read: DiskRead) -> None:
        counters, rows = self._counters, read.rows if self._once else read.places
        more, before = max(0, rows - self._rows), self._by_attribute.get(attribute, 0)
        self._rows += more
        self._by_attribute[attribute] = max(rows, before)
        counters.disk_rows += more
        counters.local_rows -= more
        counters.disk_bytes += read.page_bytes
        counters.local_bytes -= max(0, rows - before) * read.row_bytes
        counters.disk_s += read.seconds
        counters.gather_s -= read.seconds  # is within the time of the gather


def _is_total(value: Any, kind: type) -> bool:
    return type(value) in (int, kind) and 0 <= value < 1 << 63  # no NaN, nothing infinite
