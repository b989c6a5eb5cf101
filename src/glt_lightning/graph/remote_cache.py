"""The remote cache of a host: rows and neighbour lists of parts that other hosts own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from glt_lightning.graph.manifest import Manifest
from glt_lightning.graph.row_cache import RowCache, stored_rows
from glt_lightning.graph.topology_cache import TopologyCache
from glt_lightning.kernels import DynamicCache


@dataclass(frozen=True)
class RemoteCache:
    """rows: attributes of nodes.  topology: neighbour lists.  dynamic: for each node type the dynamic cache of this process, or
    None. Close it."""

    rows: RowCache | None = None
    topology: TopologyCache | None = None
    dynamic: Sequence[DynamicCache | None] = ()

    @classmethod
    def from_handle(cls, handle: Mapping[str, Any], manifest: Manifest) -> RemoteCache:
        """Maps the cache of a `cache_handle`. Raises `DataError` for one that is damaged or was built with different options."""
        with ExitStack() as opened:
            rows = topology = None
            if handle["rows"] is not None:
                rows = RowCache.from_handle(handle["rows"], manifest)
                opened.callback(rows.close)
            if handle["topology"] is not None:
                topology = TopologyCache.from_handle(handle["topology"], manifest)
            opened.pop_all()
        return cls(rows, topology, _dynamic_caches(handle["capacity"], manifest))

    def close(self) -> None:
        for each in (self.rows, self.topology):
            if each is not None:
                each.close()


def cache_handle(rows: RowCache | None, topology: TopologyCache | None, capacity: Sequence[int] = ()) -> dict[str, Any]:
    """What the processes of a host need to open its cache, for JSON. capacity: rows of each node type for which the dynamic
    cache of a process has room."""
    return {
        "rows": None if rows is None else rows.handle,
        "topology": None if topology is None else topology.handle,
        "capacity": list(capacity),
    }


def _dynamic_caches(capacity: Sequence[int], manifest: Manifest) -> list[DynamicCache | None]:
    return [
        DynamicCache(rows, list(stored_rows(manifest, t).values())) if rows else None for t, rows in enumerate(capacity)
    ]
