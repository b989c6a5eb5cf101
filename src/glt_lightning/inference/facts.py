"""Facts of the graph that a run needs before the first layer: numbers of edges, degrees, and the remote rows that are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt_lightning.graph import SharedArrays
from glt_lightning.inference.protocol import DegreeSpec
from glt_lightning.inference.states import chunks_of, halo_of, share_of
from glt_lightning.loader import RowSpec
from glt_lightning.tensors import DistGraph, RowSpace, SharedTable, SharedTables, TableSpec

_UNKNOWN = 256  # rows of a batch while the numbers of their edges are not known
_KNOWN = 1 << 16  # rows of a batch where these are known, and chunks are cut by them
Loaders = Callable[[RowSpec], Any]


@dataclass(eq=False)
class Facts:
    """Numbers about the graph by which a run is planned.

    counts: pairs (first row, edges into each row) of the parts of this host, by node type.  degrees: the degrees that a
    module asks for, in homogeneous graphs.  halos: int64 [n], remote rows that this host reads, by node type.
    """

    counts: dict[str, list[tuple[int, np.ndarray]]] = field(default_factory=dict)
    degrees: SharedTable | None = None
    halos: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reading:
    """Finds the `Facts` of a graph, by one pass over its edges. Without a pass if the graph's parts are mapped here, all rows lie
    on this host, and the module asks for no degrees.

    tables: hold what the ranks of a host share.  degrees: the degrees that the module asks for.  weight_attr: as in loaders.
    most_edges: edges of a chunk.  beat: called with text for each batch, see `Marks.beat`.
    """

    graph: DistGraph
    tables: SharedTables
    make_loader: Loaders
    degrees: DegreeSpec | None
    weight_attr: Any
    most_edges: int
    beat: Callable[[str], object]

    def find(self) -> Facts:
        """Reads the graph. A collective call."""
        spaces = [self.graph.space(t, "node") for t in self.graph.node_types]
        several, facts = self.tables.homes.num_hosts > 1, Facts()
        needed = self._shared_masks(spaces) if several else None
        try:
            for space in spaces:
                self._read(space, facts, needed)
            for space in spaces:
                own = self.tables.homes.parts_at(self.tables.homes.host)
                rows = (
                    np.empty(0, np.int64) if needed is None else halo_of(needed.arrays[space.label], space.bounds, own)
                )
                facts.halos[space.label] = rows
            if several:
                self.tables.barrier()  # the masks close with their maker
        finally:
            if needed is not None:
                needed.close()
        return facts

    def _read(self, space: RowSpace, facts: Facts, needed: SharedArrays | None) -> None:
        """Counts the edges of one type's rows, sums their degrees, and marks their sources in ``needed``."""
        mapped = self._mapped_counts(space)
        known = all(json.loads(text) for text in self.tables.ranks.exchange(json.dumps(mapped is not None)))
        count = self.tables.create(TableSpec(space, "int64", (), f"layerwise/edges/{space.label}"))
        if known:
            count.own[:] = mapped  # every rank of the host stores the same
        if self.degrees is not None:
            facts.degrees = self.tables.create(TableSpec(space, "float32", (), "layerwise/degrees"))
        if not known or needed is not None or self.degrees is not None:
            chunks = chunks_of(_parts(count), _KNOWN if known else _UNKNOWN, self.most_edges)
            for batch in self._batches(space, chunks):
                self._take(space, batch, count, facts.degrees, needed)
                self.beat("reading edges")
        self.tables.barrier()
        facts.counts[space.label] = [(first, counts.copy()) for first, counts in _parts(count)]
        count.close()

    def _batches(self, space: RowSpace, chunks: np.ndarray) -> Iterator[Any]:
        """Yields batches of this rank's share of the chunks."""
        homes = self.tables.homes
        ranks = homes.ranks_of(homes.host)
        mine = share_of(chunks, ranks.index(homes.rank), len(ranks))
        if not len(mine):
            return
        spec = RowSpec(
            name=f"layerwise/facts/{space.label}",
            node_type=space.index,
            chunks=mine,
            node_attrs=False,
            edge_attrs=self.degrees is not None and self.degrees.weight is not None,
            weight_attr=self.weight_attr,
        )
        with closing(self.make_loader(spec)) as loader:
            yield from loader

    def _take(
        self, space: RowSpace, batch: Any, count: SharedTable, table: SharedTable | None, needed: SharedArrays | None
    ) -> None:
        typed = not self.graph.schema.homogeneous
        store = batch[space.label] if typed else batch
        seeds = int(store.batch_size)
        at = count.position(store.row[:seeds].cpu().numpy())
        counts = np.zeros(seeds, dtype=np.int64)
        for edge_type in self.graph.edge_types:
            if edge_type[2] == space.of:
                edges = batch[edge_type].edge_index if typed else batch.edge_index
                counts += np.bincount(edges[1].cpu().numpy(), minlength=seeds)[:seeds]
        count.own[at] = counts
        if table is not None and self.degrees is not None:
            table.own[at] = self.degrees.of(batch, len(store.row))[:seeds].numpy()
        for node_type in self.graph.node_types if needed is not None else ():
            rows = (batch[node_type] if typed else batch).row.cpu().numpy()
            needed.arrays[node_type][rows] = 1  # type: ignore[union-attr]  # no lock: all ranks store the same value

    def _mapped_counts(self, space: RowSpace) -> np.ndarray | None:
        """Returns int64 [n]: edges of all types into each row of this host; None if this process does not map all its parts."""
        pieces = [np.empty(0, dtype=np.int64)]
        for part in self.tables.homes.parts_at(self.tables.homes.host):
            found = self.graph.edges_into(space, part)
            if found is None:
                return None
            pieces.append(found)
        return np.concatenate(pieces)

    def _shared_masks(self, spaces: list[RowSpace]) -> SharedArrays:
        """Makes a mask over the rows of each type, shared by the ranks of this host."""
        made: list[SharedArrays] = []

        def make(_sharing: int) -> str:
            made.append(SharedArrays.create({s.label: (np.dtype(np.uint8), (s.num_rows,)) for s in spaces}, {}))
            made[0].finish()
            return made[0].path

        homes = self.tables.homes
        path = self.tables.ranks.once_per_host(homes.parts_at(homes.host), make)
        return made[0] if made else SharedArrays.open(path, writable=True)


def _parts(count: SharedTable) -> list[tuple[int, np.ndarray]]:
    """Pairs (first row, int64 [n] edges into each row) of the parts of this host."""
    return [(each.first, count.own[each.begin : each.begin + each.count]) for each in count.own_parts]
