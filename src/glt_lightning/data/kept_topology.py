"""Neighbour lists of nodes that other hosts own, kept here. One copy for all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.data.manifest import Manifest
from glt_lightning.data.shared_arrays import SharedArrays
from glt_lightning.errors import DataError
from glt_lightning.ops.graph import GraphView, RelationArrays
from glt_lightning.ops.merge import Picks
from glt_lightning.ops.ranked_set import RankedSet
from glt_lightning.ops.sample import sample_rows
from glt_lightning.types import edge_type_key


@dataclass(frozen=True)
class Lists:
    """Whole neighbour lists of one edge type, for nodes in ascending order.

    counts: [K].  neighbors: [sum of counts] gids, in stored order.  first_edge: int64 [K], edge row of each list's first.
    """

    counts: np.ndarray
    neighbors: np.ndarray
    first_edge: np.ndarray


class KeptTopology:
    """Draws neighbours of the kept nodes as their owners would.

    Attributes:
        members: For each node type the kept nodes, or None.
        arrays: The memory that holds them.
    """

    def __init__(self, arrays: SharedArrays, manifest: Manifest) -> None:
        self.arrays, found = arrays, arrays.arrays
        schema, offsets = manifest.schema, manifest.offsets
        types, relations = range(len(schema.node_types)), range(len(schema.edge_types))
        self.members = [
            RankedSet(found[f"members/{t}"], offsets[t], manifest.num_nodes[t]) if f"members/{t}" in found else None
            for t in types
        ]
        empty = np.empty(0, dtype=manifest.id_dtype)
        user_ids = [found.get(f"n_id/{t}", empty) for t in types]
        # The kept nodes of a type are a type of their own behind those of the graph; neighbours keep their gids.
        self._first = np.cumsum([manifest.total_nodes, *(len(ids) for ids in user_ids)])
        dst = schema.destination_types()
        lists = [
            RelationArrays(found[f"indptr/{r}"], found[f"indices/{r}"])
            if f"indptr/{r}" in found
            else RelationArrays(np.zeros(1, dtype=np.int64), empty)
            for r in relations
        ]
        self._view = GraphView(
            np.array([*offsets[:-1], *self._first], dtype=np.int64),
            lists,
            [*(None for _ in types), *user_ids],
            [edge_type_key(e) for e in schema.edge_types],
            schema.source_types(),
            [len(types) + t for t in dst],
            np.array([[len(each.indices)] for each in lists], dtype=np.int64).reshape(len(lists), 1),
        )
        self._lists, self._first_edge = lists, [found.get(f"first_edge/{r}") for r in relations]
        self._dst = dst

    @classmethod
    def create(
        cls,
        manifest: Manifest,
        gids: Sequence[np.ndarray],
        user_ids: Sequence[np.ndarray],
        lists: Sequence[Lists | None],
        made_by: Mapping[str, Any],
    ) -> KeptTopology:
        """Of these nodes, ascending, for each node type (int64 [K]), with their user's ids and the lists of all edge types
        that lead to them. Raises MemoryError where there is no room."""
        id_dtype = np.dtype(manifest.id_dtype)
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for t, members in enumerate(gids):
            if len(members):
                shapes[f"members/{t}"] = (np.dtype(np.uint64), (RankedSet.words_for(manifest.num_nodes[t]),))
                shapes[f"n_id/{t}"] = (id_dtype, (len(members),))
        for r, each in enumerate(lists):
            if each is not None:
                shapes[f"indptr/{r}"] = (np.dtype(np.int64), (len(each.counts) + 1,))
                shapes[f"first_edge/{r}"] = (np.dtype(np.int64), (len(each.counts),))
                shapes[f"indices/{r}"] = (id_dtype, (len(each.neighbors),))
        made = SharedArrays.create(shapes, {"made_by": dict(made_by)})
        arrays = made.arrays
        for t, members in enumerate(gids):
            if len(members):
                RankedSet.build(members, manifest.offsets[t], manifest.num_nodes[t], arrays[f"members/{t}"])
                arrays[f"n_id/{t}"][:] = user_ids[t]
        for r, each in enumerate(lists):
            if each is not None:
                np.cumsum(each.counts, out=arrays[f"indptr/{r}"][1:])
                arrays[f"first_edge/{r}"][:] = each.first_edge
                arrays[f"indices/{r}"][:] = each.neighbors
        made.finish()
        return cls(made, manifest)

    @property
    def ticket(self) -> dict[str, Any]:
        """With what other processes of the host open it, as JSON can say it."""
        return {"path": self.arrays.path, "made_by": self.arrays.meta["made_by"]}

    @classmethod
    def of_ticket(cls, ticket: Mapping[str, Any], manifest: Manifest) -> KeptTopology:
        """Those of a `ticket`, mapped here. Raises `DataError` for what is damaged or was made otherwise."""
        arrays = SharedArrays.open(ticket["path"])
        if arrays.meta.get("made_by") != ticket["made_by"]:
            arrays.close()
            raise DataError(f"{ticket['path']}: holds neighbour lists that were made otherwise.")
        return cls(arrays, manifest)

    def sample(
        self,
        relation: int,
        ranks: np.ndarray,
        fanout: int,
        *,
        batch_key: int,
        hop: int,
        replace: bool,
        with_edge: bool,
        threads: int,
    ) -> Picks:
        """The picks for kept nodes of the relation's destination type, by rank (int [n])."""
        ranks = ranks.astype(np.int64)
        rows = ranks + self._first[self._dst[relation]]
        counts, neighbors, edges = sample_rows(
            self._view,
            relation,
            rows,
            fanout,
            batch_key=batch_key,
            hop=hop,
            replace=replace,
            with_edge=with_edge,
            threads=threads,
        )
        if edges is not None:
            first = self._first_edge[relation]
            assert first is not None
            edges += np.repeat(first[ranks] - self._lists[relation].indptr[ranks], counts)
        return Picks(counts, neighbors, edges)

    @property
    def num_nodes(self) -> int:
        return int(self._first[-1] - self._first[0])

    @property
    def nbytes(self) -> int:
        return self.arrays.nbytes

    def close(self) -> None:
        self.arrays.close()
