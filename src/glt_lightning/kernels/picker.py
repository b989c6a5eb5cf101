"""Pickers of neighbours, which users write (``sampling.picker``): their interface, and the rows that they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from glt_lightning.base import DataError, DrawOptions, PartitionError
from glt_lightning.kernels.excluded import ExcludedEntries
from glt_lightning.kernels.graph import GraphView, ReplacedRows
from glt_lightning.kernels.mix import draw, row_streams
from glt_lightning.kernels.rows import Shards, spread
from glt_lightning.kernels.trees import Trees


@dataclass(frozen=True, eq=False)
class RowView:
    """The rows of F nodes, of one edge type, whose neighbours are to be picked, in any order and number.

    The entries of a row are its edges in stored order, without the edges that the batch leaves out, such as the targets of a
    link task or edges of a later time.

    Attributes:
        edge_type: The edge type, as ``src__rel__dst``.
        hop: Number of the hop, from 0.
        uid: int64 [F], the user's ids of the nodes.
        degree: int64 [F], number of entries of each row.
        names: Names of the edge attributes.
        read: Reads an attribute of all entries.
        tree: int32 [F], in a disjoint batch the number of the seed in whose tree each node is; else None.
        since, until: int64 [F], with ``sampling.time_attr`` the bounds of each row in time; None without bounds.

    Example:
        >>> rows = RowView("a__to__b", 0, np.array([7, 3]), np.array([2, 1]), ["w"], lambda name: np.array([5, 6, 1]))
        >>> rows.attrs["w"][rows.begin[0] : rows.begin[1]]  # of the row of node 7
        array([5, 6])
    """

    edge_type: str
    hop: int
    uid: np.ndarray
    degree: np.ndarray
    names: Sequence[str] = ()
    read: Callable[[str], np.ndarray] = field(default=lambda name: np.empty(0), repr=False)
    tree: np.ndarray | None = None
    since: np.ndarray | None = None
    until: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.degree)

    @cached_property
    def begin(self) -> np.ndarray:
        """int64 [F + 1]: where the entries of each row begin in an attribute."""
        return np.append(0, np.cumsum(self.degree))

    @cached_property
    def attrs(self) -> Mapping[str, np.ndarray]:
        """Attributes of all entries, row after row: [sum of degrees, ...]. An attribute is read when it is first used."""
        return _Attributes(self.edge_type, self.names, self.read)

    def rows(self, which: np.ndarray) -> RowView:
        """Returns some of the rows, in the order of ``which``, int64 [n]."""
        entries = spread(self.begin[which], self.degree[which])
        of_rows = (None if a is None else a[which] for a in (self.tree, self.since, self.until))
        attrs, own = self.attrs, (self.uid[which], self.degree[which])
        return RowView(self.edge_type, self.hop, *own, self.names, lambda name: attrs[name][entries], *of_rows)


class Picker(Protocol):
    """Picks the neighbours of nodes, in place of the fan-out's uniform or weighted draw.

    A user's class with this method is named in ``sampling.picker``, by ``class_path`` and ``init_args``, and runs in every
    process that has rows of the graph. An attribute ``version``, any number or text, is compared between the processes.

    Example:
        >>> class First:  # the first neighbours of each row
        ...     def pick(self, rows, fanout, stream):
        ...         counts = np.minimum(rows.degree, fanout)
        ...         return counts, np.concatenate([np.arange(n) for n in counts])
        >>> rows = RowView("a__to__b", 0, np.array([7, 3]), np.array([5, 1]))
        >>> First().pick(rows, 2, np.array([11, 12], np.uint64))
        (array([2, 1]), array([0, 1, 0]))
    """

    def pick(self, rows: RowView, fanout: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Picks neighbours. Returns the number of picks of each row, int [F], and their positions among the entries of the row,
        int, row after row.

        fanout: that of the hop and edge type, 1 or more, or -1.  stream: uint64 [F], random bits of each row, derived from the
        batch's key, the hop, the edge type and the node (and the tree): use them for all random draws, as `pick_uniform` does.

        It must be a pure function, and the picks of a row must not depend on other rows.
        """


def pick_uniform(degree: np.ndarray, counts: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Draws positions without replacement: from each row ``counts`` of them, or all if it has no more.

    The draws are equal to the built-in sampler's. A picker returns ``np.minimum(counts, degree)`` and these positions.

    Args:
        degree: int [F], entries of each row, less than 2^31.
        counts: int [F], 0 or more.
        stream: uint64 [F], the argument of `Picker.pick`.

    Returns:
        int64 [sum of the picks of each row], ascending in each row.

    Example:
        >>> pick_uniform(np.array([3, 9]), np.array([4, 2]), np.array([1, 2], np.uint64))
        array([0, 1, 2, 4, 6])
    """
    taken = np.minimum(counts, degree).astype(np.int64)
    begin = np.cumsum(taken) - taken
    found = spread(np.zeros_like(taken), taken)  # right where the whole row is taken
    some = np.flatnonzero(taken < degree)
    some = some[np.argsort(-taken[some], kind="stable")]
    for i in range(int(taken[some].max(initial=0))):
        some = some[: np.searchsorted(-taken[some], -i, side="left")]
        j = degree[some] - taken[some] + i
        q = draw(stream[some], i, j + 1)
        before = found[begin[some][:, None] + np.arange(i)]
        found[begin[some] + i] = np.where((before == q[:, None]).any(axis=1), j, q)
    rows = np.repeat(np.arange(len(taken)), taken)
    return found[np.lexsort((found, rows))]


class _Attributes(Mapping[str, np.ndarray]):
    def __init__(self, edge_type: str, names: Sequence[str], read: Callable[[str], np.ndarray]) -> None:
        self._edge_type, self._names, self._read = edge_type, names, read
        self._found: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            known = ", ".join(self._names) or "none"
            raise KeyError(f"edges of type {self._edge_type} have no attribute {name!r}; they have {known}")
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# Rows that a picker picks from, out of the mapped parts of a graph.


# Every so many rows one is picked twice; of the first rows of a source every other one, so that a short run finds out as well.
_TWICE = 1000
_FIRST_ROWS = 128
ReadEdges = Callable[[int, str, np.ndarray], np.ndarray]  # edge type, attribute, edge rows -> values


class PickableRows:
    """The rows of a graph in the form of pickers. Thread-safe.

    names: names of the edge types.  attrs: names of the edge attributes of each edge type.  read: reads an attribute.
    """

    def __init__(
        self, view: GraphView, names: Sequence[str], attrs: Sequence[Sequence[str]], read: ReadEdges, picker: Picker
    ) -> None:
        self.view, self._names, self._attrs, self._read = view, names, attrs, read
        self.picker, self.is_first = picker, True
        self._tables: dict[int, _Rows] = {}

    def table(self, edge_type: int) -> _Rows:
        if edge_type not in self._tables:
            self._tables[edge_type] = _Rows.of(self.view, edge_type)
        return self._tables[edge_type]

    def rows(
        self,
        edge_type: int,
        gids: np.ndarray,
        hop: int,
        excluded: ExcludedEntries | None,
        trees: Trees | None,
    ) -> tuple[RowView, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
        """Returns the rows of nodes, and a function that maps (counts, positions among the entries) to edge rows."""
        table, tree = self.table(edge_type), None
        first, degree = table.find(gids)
        bounds: list[np.ndarray | None] = [None, None]
        if trees is not None:
            tree = trees.of[int(self.view.dst_types[edge_type])]
            bounds = [None if bound is None else bound[tree] for bound in (trees.since, trees.until)]
        left = table.entries_left(gids, first, degree, excluded, *bounds)
        entries = None if left is None else left[0]
        degree = degree if left is None else left[1]

        def read(name: str) -> np.ndarray:
            return self._read(edge_type, name, spread(first, degree) if entries is None else entries)

        def edge_rows(counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
            begin = first if entries is None else np.cumsum(degree) - degree
            at: np.ndarray = np.repeat(begin, counts) + positions
            return at if entries is None else entries[at]

        ends = (tree, *bounds)
        uid = table.user_ids.gather(gids).astype(np.int64)
        return RowView(self._names[edge_type], hop, uid, degree, tuple(self._attrs[edge_type]), read, *ends), edge_rows


@dataclass(frozen=True)
class _Rows:
    """The rows of one edge type: their begin and end, by gid; user ids, by gid; neighbours and times, by edge row."""

    begin: Shards
    end: Shards
    user_ids: Shards
    neighbors: Shards
    times: Shards | None
    num_edges: np.ndarray  # int64 [P]
    edge_bounds: np.ndarray  # int64 [P + 1]
    replaced: ReplacedRows | None = None
    pointers: Sequence[np.ndarray | None] = ()  # of each part

    @classmethod
    def of(cls, view: GraphView, edge_type: int) -> _Rows:
        parts, t = range(view.num_parts), int(view.dst_types[edge_type])
        arrays = [view.arrays(edge_type, p) for p in parts]
        nodes = view.bounds[t * view.num_parts : (t + 1) * view.num_parts + 1]
        edges = view.edge_bounds[edge_type]
        times = [None if a is None else a.times for a in arrays]
        return cls(
            begin=Shards([None if a is None else a.indptr[:-1] for a in arrays], bounds=nodes),
            end=Shards([None if a is None else a.indptr[1:] for a in arrays], bounds=nodes),
            user_ids=Shards([view.user_ids(t, p) for p in parts], bounds=nodes),
            neighbors=Shards([None if a is None else a.indices for a in arrays], bounds=edges),
            times=None if all(a is None for a in times) else Shards(times, bounds=edges),
            num_edges=np.diff(edges),
            edge_bounds=edges,
            replaced=None if view.overlaid is None else view.overlaid.replaced[edge_type],
            pointers=[None if a is None else a.indptr for a in arrays],
        )

    def find(self, gids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds (edge row of the first entry, number of entries) of each node. Raises `DataError` for a node that is not mapped
        here, `PartitionError` for a damaged row."""
        begin, end = self.begin.gather(gids), self.end.gather(gids)
        part = np.searchsorted(self.begin.bounds, gids, side="right") - 1
        if self.replaced is not None:
            at, parts, rows = self.replaced.find(gids)
            part[at] = parts
            for i, p, row in zip(at.tolist(), parts.tolist(), rows.tolist(), strict=True):
                pointers = self.pointers[p]
                assert pointers is not None  # mapped with the part that it is laid over
                begin[i], end[i] = pointers[row : row + 2]
        bad = np.flatnonzero((begin < 0) | (end < begin) | (end > self.num_edges[part]))
        if len(bad):
            raise PartitionError(
                f"sample: the row of node {gids[bad[0]]} is damaged: it goes from {begin[bad[0]]} to {end[bad[0]]}. Delete the "
                "partition folder and partition again."
            )
        return begin + self.edge_bounds[part], end - begin

    def entries_left(
        self,
        gids: np.ndarray,
        first: np.ndarray,
        degree: np.ndarray,
        excluded: ExcludedEntries | None,
        since: np.ndarray | None,
        until: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the edge rows of the entries that the batch does not leave out, and their number in each row; None if it leaves
        out none."""
        timed = self.times is not None and (since is not None or until is not None)
        at = np.empty(0, np.int64) if excluded is None else np.searchsorted(excluded.gids, gids)
        hit = np.zeros(len(gids), dtype=np.bool_)
        if excluded is not None and len(excluded.gids):
            hit = excluded.gids[np.minimum(at, len(excluded.gids) - 1)] == gids
        if not timed and not hit.any():
            return None
        rows, row_of = spread(first, degree), np.repeat(np.arange(len(gids)), degree)
        kept = np.ones(len(rows), dtype=np.bool_)
        if excluded is not None and hit.any():
            begin, count = excluded.begin[at[hit]], np.diff(excluded.begin)[at[hit]]
            offset = (np.cumsum(degree) - degree)[hit]
            kept[np.repeat(offset, count) + excluded.positions[spread(begin, count)]] = False
        if timed:
            assert self.times is not None
            times = self.times.gather(rows)
            kept &= np.ones_like(kept) if since is None else times >= since[row_of]
            kept &= np.ones_like(kept) if until is None else times <= until[row_of]
        return rows[kept], np.bincount(row_of[kept], minlength=len(gids))


@dataclass(frozen=True, eq=False)
class PickerDraw:
    """The picks of a picker for rows of one edge type; the fields and methods are those of `sample.RowDraw`."""

    rows: PickableRows
    edge_type: int
    gids: np.ndarray
    fanout: int
    batch_key: int
    hop: int
    draw: DrawOptions
    excluded: ExcludedEntries | None = None
    trees: Trees | None = None

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        """The picks: (counts int64 [F], edge rows)."""
        view, edge_rows = self.rows.rows(self.edge_type, self.gids, self.hop, self.excluded, self.trees)
        key = int(self.rows.view.keys[self.edge_type])
        stream = row_streams(self.batch_key, self.hop, key, view.uid, view.tree)
        asked = self.rows.picker, str(self.draw.picker), view, self.fanout, stream
        counts, positions = picked(*asked)
        some = np.flatnonzero(stream % _TWICE == 0)
        if self.rows.is_first:
            some = np.arange(0, min(len(view), _FIRST_ROWS), 2)
        if len(some):
            require_pure(*asked, (counts, positions), some)
            self.rows.is_first = False
        return counts, edge_rows(counts, positions)

    def count(self) -> np.ndarray:
        """Returns int64 [F]: the number of picks of each row. Raises `DataError` for an invalid result of the picker."""
        return self._found[0]

    def pick(
        self,
        counts: np.ndarray,
        first: int,
        neighbors: np.ndarray,
        edge_rows: np.ndarray | None = None,
        *,
        threads: int = 1,
    ) -> None:
        """Writes picks ``first`` on of all rows' picks, in row order, into neighbors and edge_rows (int64 [n])."""
        rows = self._found[1][first : first + len(neighbors)]
        table, view = self.rows.table(self.edge_type), self.rows.view
        neighbors[:] = table.neighbors.gather(rows, threads=threads)
        if view.overlaid is not None:
            neighbors += view.overlaid.source_shift[self.edge_type]
        if len(neighbors) and not 0 <= int(neighbors.min()) <= int(neighbors.max()) < view.num_nodes:
            raise PartitionError(
                f"sample: edges of {self.edge_type} lead to {int(neighbors.max())}, which is no node. Partition again."
            )
        if edge_rows is not None:
            edge_rows[:] = rows

    def picks(
        self, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the picks, as `sample.RowDraw.picks`."""
        counts = self.count()
        total = int(counts.sum())
        require_room(total * 8 * len(self.draw.columns))
        neighbors = np.empty(total, dtype=np.int64)
        edge_rows = np.empty_like(neighbors) if "edge_rows" in self.draw.columns else None
        self.pick(counts, 0, neighbors, edge_rows, threads=self.draw.threads)
        return counts, neighbors, edge_rows


def probe(picker: Picker, name: str, rows: RowView, fanout: int, stream: np.ndarray) -> bytes | None:
    """Returns the picks from rows in one piece, to be compared between processes; None if the picker fails on them. Raises
    `DataError` for one that is not pure."""
    asked = picker, name, rows, fanout, stream
    try:
        picks = picked(*asked)
    except DataError:
        return None
    require_pure(*asked, picks, np.arange(0, len(rows), 2))
    return b"".join(array.tobytes() for array in picks)


def require_pure(
    picker: Picker,
    name: str,
    rows: RowView,
    fanout: int,
    stream: np.ndarray,
    picks: tuple[np.ndarray, np.ndarray],
    some: np.ndarray,
) -> None:
    """Raises `DataError` unless the picker returns the same ``picks`` again for ``some`` rows, int64 [n], alone and in another
    order."""
    counts, positions = picks
    some = some[::-1]
    begin = np.cumsum(counts) - counts
    before = counts[some], positions[spread(begin[some], counts[some])]
    again = picked(picker, name, rows.rows(some), fanout, stream[some])
    if not all(np.array_equal(a, b) for a, b in zip(before, again, strict=True)):
        raise DataError(
            f"sampling.picker: {name} is not a pure function: asked twice, it picked different neighbours of the same rows. "
            "Draw from stream alone, keep nothing between calls, and let no row depend on the other rows of a call."
        )


def picked(picker: Picker, name: str, rows: RowView, fanout: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Calls a picker and checks its result. Returns (counts int64 [F], positions int64). Raises `DataError`, with its name, if it
    fails or returns anything else."""
    try:
        counts, positions = (np.asarray(a) for a in picker.pick(rows, fanout, stream))
    except Exception as error:  # the user's code may raise anything
        raise DataError(f"sampling.picker: {name} failed ({type(error).__name__}: {error}).") from error
    whole = counts.shape == (len(rows),) and positions.ndim == 1
    integers = all(a.dtype.kind in "iu" or not a.size for a in (counts, positions))
    if not whole or not integers or counts.min(initial=0) < 0 or int(counts.sum()) != len(positions):
        raise DataError(
            f"sampling.picker: {name} returned {counts.dtype} {list(counts.shape)} and {positions.dtype} "
            f"{list(positions.shape)}; expected counts, int [{len(rows)}], not negative, and as many positions as they add up to."
        )
    counts, positions = counts.astype(np.int64), positions.astype(np.int64)
    bad = np.flatnonzero((positions < 0) | (positions >= np.repeat(rows.degree, counts)))
    if len(bad):
        row = int(np.searchsorted(np.cumsum(counts), bad[0], side="right"))
        raise DataError(
            f"sampling.picker: {name} picked position {positions[bad[0]]} of a row with {rows.degree[row]} entries (node "
            f"{rows.uid[row]}); expected 0 to {rows.degree[row] - 1}."
        )
    return counts, positions
