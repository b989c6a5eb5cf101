"""The cost of batches: the places that their rows came from, and the time of their samplers by activity."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from glt_lightning.kernels import DiskRead

_log = logging.getLogger(__name__)
_warned = False  # of invalid counters, once in a process


@dataclass
class Counters:
    """The counters of one batch, or of many added up. Rows are rows of node and edge attributes, each counted once per batch;
    bytes are as stored, so for remote rows they are the bytes on the network, without headers and compression.

    Attributes:
        local_rows, local_bytes: Read from memory that this host maps.
        cached_rows, cached_bytes: Rows of other parts, read from a cache on this host.
        remote_rows, remote_bytes: Requested from owners.
        disk_rows, disk_bytes: Read from a disk of this host: rows that `CacheOptions.memory` left there; bytes of whole pages.
        frontier_rows: Nodes whose neighbours were drawn.
        cached_frontier_rows, remote_frontier_rows: Frontier rows whose neighbour lists were cached, or at their owners.
        sample_s: Seconds spent drawing neighbours and relabelling.
        remote_s: Seconds spent waiting for owners.
        disk_s: Seconds spent waiting for the disk.
        gather_s: Seconds spent copying rows into the batch.
        device_rows, device_bytes: Rows on the training device already (`CacheOptions.device`), so left out of the batch.
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
        """Adds the counts of ``other``."""
        mine, more = vars(self), vars(other)  # a quarter of the time of attributes by name
        for name in _KINDS:
            mine[name] += more[name]

    def add_rows(self, place: str, rows: int, row_bytes: int) -> None:
        """Adds rows that come from ``local``, ``cached``, ``remote`` or ``device``."""
        if rows:
            for name, more in ((f"{place}_rows", rows), (f"{place}_bytes", rows * row_bytes)):
                setattr(self, name, getattr(self, name) + more)

    def since(self, before: Counters) -> Counters:
        """Returns the difference to an earlier state."""
        return Counters(**{name: getattr(self, name) - getattr(before, name) for name in _KINDS})

    @property
    def rows(self) -> int:
        """Number of rows from all places."""
        return self.local_rows + self.cached_rows + self.remote_rows + self.disk_rows + self.device_rows

    def to_list(self) -> list[int | float]:
        """Returns the fields in order, for a message."""
        return [getattr(self, name) for name in _KINDS]

    @classmethod
    def from_list(cls, values: Any) -> Counters:
        """Decodes counters: the inverse of `to_list`. No batch depends on counters, so an invalid number is no error: it counts
        as 0, with a warning the first time."""
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
    """Adds the disk reads of one node or edge type to a batch's counters.

    A row counts as one on disk if any of its attributes is. The host tier keeps rows of each attribute in one order, from
    the first on, so that the rows on disk of the attribute with the most include the rows on disk of every other.
    once: the counters have a row that the batch has several times once.
    """

    def __init__(self, counters: Counters, *, once: bool = False) -> None:
        self._counters, self._once, self._rows = counters, once, 0
        self._by_attribute: dict[str, int] = {}

    def of(self, attribute: str) -> Callable[[DiskRead], None]:
        """Returns a function that notes reads of an attribute. Rows that are read twice, for sums and for the batch itself, are
        counted once."""
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
