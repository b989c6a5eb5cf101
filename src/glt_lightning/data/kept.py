"""What a host keeps of the parts of others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from glt_lightning.data.kept_topology import KeptTopology
from glt_lightning.data.manifest import Manifest
from glt_lightning.data.row_cache import RowCache


@dataclass(frozen=True)
class Kept:
    """rows: attributes of nodes.  topology: neighbour lists. Close it."""

    rows: RowCache | None = None
    topology: KeptTopology | None = None

    @property
    def ticket(self) -> dict[str, Any]:
        """With what other processes of the host open it, as JSON can say it."""
        return {
            "rows": None if self.rows is None else self.rows.ticket,
            "topology": None if self.topology is None else self.topology.ticket,
        }

    @classmethod
    def of_ticket(cls, ticket: Mapping[str, Any], manifest: Manifest) -> Kept:
        """What a `ticket` is for, mapped here. Raises `DataError` for what is damaged or was made otherwise."""
        with ExitStack() as opened:
            rows = topology = None
            if ticket["rows"] is not None:
                rows = RowCache.of_ticket(ticket["rows"], manifest)
                opened.callback(rows.close)
            if ticket["topology"] is not None:
                topology = KeptTopology.of_ticket(ticket["topology"], manifest)
            opened.pop_all()
        return cls(rows, topology)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.rows, self.topology) if each is not None)

    def close(self) -> None:
        for each in (self.rows, self.topology):
            if each is not None:
                each.close()
