"""The rows of a node type or an edge type, as tables address them, and which ranks have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError, edge_type_str
from glt_lightning.graph import Manifest
from glt_lightning.sampling import permutation
from glt_lightning.workers import Ranks


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The rows of one node type or one edge type.

    of: its name; the rows of a type are numbered from 0, those of part p are ``bounds[p]`` to ``bounds[p + 1] - 1``: new
    numbers of nodes, or edge rows.  kind: ``node`` or ``edge``.  index: of the type in the schema.  bounds: int64 [P + 1].
    """

    of: NodeType | EdgeType
    kind: str
    index: int
    bounds: np.ndarray

    @property
    def num_rows(self) -> int:
        return int(self.bounds[-1])

    @property
    def num_parts(self) -> int:
        return len(self.bounds) - 1

    @property
    def label(self) -> str:
        """``paper``, or ``author__writes__paper``."""
        return self.of if isinstance(self.of, str) else edge_type_str(self.of)

    @property
    def id_name(self) -> str:
        """The stored array with the user's ids of the rows."""
        return "n_id" if self.kind == "node" else "edge_ids"

    def parts_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the part of each row. Raises `DataError` for a row that does not exist."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.num_rows):
            bad = np.flatnonzero((rows < 0) | (rows >= self.num_rows))
            kind = "nodes" if self.kind == "node" else "edges"
            raise DataError(
                f"rows: {rows[bad[0]]} at position {bad[0]} is no row of the {kind} of type {self.label!r}, which has the rows "
                f"0 to {self.num_rows - 1}."
            )
        if self.num_parts == 1:
            return np.zeros(len(rows), np.int64)
        return np.searchsorted(self.bounds, rows, side="right") - 1


def row_spaces(manifest: Manifest) -> list[RowSpace]:
    """The row spaces of all node types, then of all edge types."""
    nodes = [
        RowSpace(name, "node", t, np.array(manifest.bounds[t], dtype=np.int64))
        for t, name in enumerate(manifest.schema.node_types)
    ]
    edges = [
        RowSpace(name, "edge", r, np.asarray(manifest.edge_bounds(r), dtype=np.int64))
        for r, name in enumerate(manifest.schema.edge_types)
    ]
    return nodes + edges


@dataclass(frozen=True, eq=False)
class OwnPart:
    """A part whose rows lie on this host: rows ``first`` to ``first + count - 1``, at ``begin`` in `SharedTable.own`."""

    part: int
    first: int
    begin: int
    count: int


@dataclass(frozen=True, eq=False)
class Homes:
    """The hosts that have the rows of each part in their memory. The same on all ranks, but for ``rank``.

    host_of_rank: int [ranks].  host_of_part: int [P].  Hosts are numbered in the order of their first ranks.
    """

    rank: int
    host_of_rank: tuple[int, ...]
    host_of_part: tuple[int, ...]

    @classmethod
    def agree(cls, ranks: Ranks, num_parts: int, mapped: Sequence[int] | None, place: str | None = None) -> Homes:
        """Assigns the parts to hosts. A collective call.

        A part's rows lie on a host that maps the part; where several do, or none, parts are assigned to these, or to all hosts,
        in turn.  mapped: parts of the graph that this rank maps; None: the graph is at servers.
        place: name of this host; None: `host_identity`.
        """
        mine = json.dumps([Ranks.host_identity() if place is None else place, None if mapped is None else list(mapped)])
        everyone = [json.loads(text) for text in ranks.exchange(mine)]
        names = list(dict.fromkeys(host for host, _ in everyone))
        homes = []
        for part in range(num_parts):
            with_part = [host for host, parts in everyone if parts is None or part in parts]
            able = list(dict.fromkeys(with_part)) or names
            homes.append(names.index(able[part % len(able)]))
        return cls(ranks.rank, tuple(names.index(host) for host, _ in everyone), tuple(homes))

    @property
    def host(self) -> int:
        """Number of this rank's host."""
        return self.host_of_rank[self.rank]

    @property
    def is_first(self) -> bool:
        """True if this rank is the first one of its host."""
        return self.ranks_of(self.host)[0] == self.rank

    @cached_property
    def num_hosts(self) -> int:
        return max(self.host_of_rank) + 1

    def ranks_of(self, host: int) -> list[int]:
        return [rank for rank, theirs in enumerate(self.host_of_rank) if theirs == host]

    def parts_at(self, host: int) -> list[int]:
        return [part for part, theirs in enumerate(self.host_of_part) if theirs == host]

    def own_parts(self, space: RowSpace) -> list[OwnPart]:
        """The parts of this rank's host, with their positions in its memory."""
        found, begin = [], 0
        for part in self.parts_at(self.host):
            first, end = int(space.bounds[part]), int(space.bounds[part + 1])
            found.append(OwnPart(part, first, begin, end - first))
            begin += end - first
        return found

    def hosts_of(self, space: RowSpace, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the host that has each row. Raises `DataError` for a row that does not exist."""
        return np.asarray(np.array(self.host_of_part, dtype=np.int64)[space.parts_of(rows)])

    def appliers(self, space: RowSpace, rows: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: the rank that applies updates of each row: of the host that has it, rank (row mod ranks of the
        host), since rows lie hottest first and a contiguous range for each rank would give one of them most of the work."""
        if len(self.host_of_rank) == 1:
            return np.zeros(len(rows), dtype=np.int32)
        hosts = self.hosts_of(space, rows)
        found = np.empty(len(rows), dtype=np.int32)
        for host in range(self.num_hosts):
            here, theirs = hosts == host, np.array(self.ranks_of(host), dtype=np.int32)
            found[here] = theirs[rows[here] % len(theirs)]
        return found


# Dividing selected rows among ranks: evenly, and so that most rows lie on the host of the rank that gets them.


def split_rows(
    selected: np.ndarray, space: RowSpace, homes: Homes, rank: int, key: int, *, force_even: bool
) -> np.ndarray:
    """Returns int64 [n], ascending: the rows of one rank. selected: int64, ascending, each once.  key: 64 bits, of the shuffle
    of a host's rows before they are divided among its ranks; it depends on the host, not on the rank.

    force_even: the rows are sorted by (host, part, row) and cut evenly for the hosts, then for their ranks, so sizes differ by
    at most 1. Sorted by row alone, half of the rows would be remote with more parts than hosts, since part p lies on host
    p mod hosts. Without force_even each host keeps its own rows.
    Raises `OptionError` for an even split where hosts have different numbers of ranks.
    """
    host, ranks = homes.host_of_rank[rank], homes.ranks_of(homes.host_of_rank[rank])
    hosts = homes.hosts_of(space, selected)
    if force_even:
        counts = [len(homes.ranks_of(h)) for h in range(homes.num_hosts)]
        if len(set(counts)) > 1:
            raise OptionError(
                f"split: force_even: hosts have {', '.join(map(str, counts))} ranks. Run as many on each host, or use "
                f"force_even=False."
            )
        in_order = selected[np.argsort(hosts, kind="stable")]
        mine = np.array_split(in_order, homes.num_hosts)[host]
    else:
        mine = selected[hosts == host]
    order = permutation(len(mine), key)
    share = np.array_split(mine[order], len(ranks))[ranks.index(rank)]
    share.sort()
    return share


def local_share(rows: np.ndarray, space: RowSpace, homes: Homes, rank: int) -> float:
    """Share of rows that lie on the host of a rank; 1 without rows."""
    hosts = homes.hosts_of(space, rows)
    return float((hosts == homes.host_of_rank[rank]).mean()) if len(rows) else 1.0
