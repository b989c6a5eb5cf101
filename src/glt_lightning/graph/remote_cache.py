"""The remote cache of a host: rows and neighbour lists of parts that other hosts own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from glt_lightning.graph.manifest import Manifest
from glt_lightning.graph.row_cache import RowCache
from glt_lightning.graph.topology_cache import TopologyCache


@dataclass(frozen=True)
class RemoteCache:
    """The cached rows and neighbour lists of remote parts. rows: attributes of nodes.  topology: neighbour lists. Close it."""

    rows: RowCache | None = None
    topology: TopologyCache | None = None

    @classmethod
    def from_handle(cls, handle: Mapping[str, Any], manifest: Manifest) -> RemoteCache:
        """Maps the cache of a `cache_handle`. Raises `DataError` for one that is damaged."""
        with ExitStack() as opened:
            rows = topology = None
            if handle["rows"] is not None:
                rows = RowCache.open(handle["rows"], manifest)
                opened.callback(rows.close)
            if handle["topology"] is not None:
                topology = TopologyCache.open(handle["topology"], manifest)
            opened.pop_all()
        return cls(rows, topology)

    def close(self) -> None:
        for each in (self.rows, self.topology):
            if each is not None:
                each.close()


def cache_handle(rows: RowCache | None, topology: TopologyCache | None) -> dict[str, Any]:
    """Returns the handle with which the processes of a host open its cache, as JSON values."""
    return {
        "rows": None if rows is None else rows.arrays.path,
        "topology": None if topology is None else topology.arrays.path,
    }
