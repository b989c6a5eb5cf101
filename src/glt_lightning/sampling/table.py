"""The places of a batch's rows: in mapped parts, in the remote cache, in the answers of owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from glt_lightning.base import PeerError
from glt_lightning.graph import DeviceIndex, LocalPartition, Manifest
from glt_lightning.kernels import RankedSet, Route, Router, Shards, relabel
from glt_lightning.sampling.counters import Counters
from glt_lightning.sampling.questions.gather import AskedRows, Gather
from glt_lightning.sampling.questions.has_edges import KnowsEdges
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.source import Arrays, RemoteRows, RowsQuestion
from glt_lightning.sampling.walks import LocalWalks

A = TypeVar("A")
_NO_IDS = np.empty(0, dtype=np.int64)


class CachedTable(Protocol):
    """Remote rows of one table that are cached on this host: `CachedRows`, `CachedEdges`."""

    @property
    def rows(self) -> Mapping[str, np.ndarray]: ...

    def __len__(self) -> int: ...

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: the row of each id in the cache, or -1."""


@dataclass(frozen=True)
class Answer:
    """Rows that an owner was asked for, placed from ``place`` on. gathered: waits for the answer.  index: number of the table in
    it."""

    place: int
    count: int
    gathered: Callable[[], Sequence[Arrays]]
    index: int


@dataclass
class RowTable:
    """The places of a batch's rows of one table: the nodes of one type, or the edges of one edge type.

    A place is a row of `shards`, which puts one behind the other: the mapped parts, by id; from ``end`` on the cached rows;
    behind these the answers of owners, in the order of the questions.

    names: name in a batch -> name in the partition.  local: the attributes in the mapped parts, by name in the partition.
    on_device: nodes whose attributes the trainer's device has, so that batches leave them out.

    Attributes:
        once: A row that a batch has several times is routed, and counted, once.
    """

    kind: str
    type: int
    names: Mapping[str, str]
    local: dict[str, Shards]
    on_device: RankedSet | None = None

    def __post_init__(self) -> None:
        self.stored = tuple(self.names.values())
        self.row_bytes = sum(shards.row_bytes for shards in self.local.values())
        self.router: Router | None = None  # None: all rows are mapped here
        self.cached: CachedTable | None = None
        self.end = self._first_answer = 0
        self.once = False
        self.clear()

    def clear(self) -> None:
        """Clears the rows of the batch before."""
        # The lists have one array for each step of the batch: they are joined once, when the batch is complete.
        self.next_place = self._first_answer
        self.places: list[np.ndarray] = []  # int64
        self.answers: list[Answer] = []  # in the order of their places
        self.ranks: list[np.ndarray] = []  # int32, on the device
        self.routed: list[np.ndarray] = []  # edge rows
        self.counts = [0, 0, 0]  # rows that are local, cached, remote
        self.at_hand: Mapping[str, np.ndarray] = {}  # ids that are known already, by name in a batch
        self._distinct = _NO_IDS
        self._copies: list[np.ndarray] = []  # int32, which of the distinct rows each is

    def route_by(self, router: Router, cached: CachedTable | None = None, *, repeats: bool = False) -> None:
        """Routes the rows of batches to their owners from now on, except for cached rows. repeats: a batch may have a row several
        times; it is routed once."""
        self.router, self.cached, self.once = router, cached, repeats
        self.end = self._first_answer = end = int(router.bounds[-1])
        self._owners = np.arange(router.num_owners, dtype=np.int64)
        if cached is not None:
            self._first_answer += len(cached)
            rows = cached.rows
            self.local = {n: a.extended([(end, rows[n])], self._first_answer) for n, a in self.local.items()}
        self.clear()

    def place(self, ids: np.ndarray, at_hand: Mapping[str, np.ndarray]) -> None:
        """Takes all rows of a batch from the mapped parts. ids: int64 [n]."""
        if self.on_device is not None:
            self.ranks.append(self.on_device.find(ids))
            left = self.ranks[-1] < 0
            ids, at_hand = ids[left], {name: values[left] for name, values in at_hand.items()}
        self.places.append(ids)
        self.at_hand = at_hand
        self.counts[0] += len(ids)

    def route(self, ids: np.ndarray) -> Route:
        """Assigns each new row of the batch to its owner and to a place. Skips rows on the device, and rows placed before."""
        assert self.router is not None
        if self.kind == "edge":
            self.routed.append(ids)
        if self.on_device is not None:
            self.ranks.append(self.on_device.find(ids))
            ids = ids[self.ranks[-1] < 0]
        if self.once:
            before = len(self._distinct)
            self._distinct, copies = relabel(ids, self._distinct)
            self._copies.append(copies)
            ids = self._distinct[before:]
        cached = None if self.cached is None else self.cached.find(ids)
        # Places of owner k begin where those of k - 1 would end if it had all rows: so the answers have places before it is
        # known how many rows each owner has. Owner 0 needs none, its rows lie at their ids.
        first = self.next_place + len(ids) * (self._owners - 1)
        route = self.router(ids, first if cached is None else np.append(first, self.end), cached)
        self.next_place += len(ids) * (self.router.num_owners - 1)
        self.places.append(route.place)
        asked = route.begin[self.router.num_owners] - route.begin[1]
        for i, n in enumerate((route.begin[1], len(ids) - route.begin[1] - asked, asked)):
            self.counts[i] += n
        return route

    @property
    def distinct_places(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The places of the distinct rows, int64 [d], and for each row of the batch its number among these, int32 [n], or None if
        rows and places are one to one."""
        if len(self.places) != 1:
            self.places = [np.concatenate(self.places) if self.places else _NO_IDS]
        if not self._copies:
            return self.places[0], None
        self._copies = [np.concatenate(self._copies)]
        return self.places[0], self._copies[0]

    @property
    def all_places(self) -> np.ndarray:
        """The places of all rows of the batch in `shards`, int64 [n], when all were placed or routed."""
        places, copies = self.distinct_places
        if copies is not None:
            self.places, self._copies = [places[copies]], []
        return self.places[0]

    def keep(self, count: int) -> None:
        """Drops all but the batch's first ``count`` rows."""
        self.places = [self.all_places[:count]]
        self.at_hand = {name: values[:count] for name, values in self.at_hand.items()}

    @property
    def num_routed(self) -> int:
        """Number of the edges that were routed."""
        return sum(map(len, self.routed))

    @property
    def all_ranks(self) -> np.ndarray:
        """The row of each node of the batch on the device, int32 [n], or -1."""
        return np.concatenate(self.ranks)

    def count(self, counters: Counters) -> None:
        """Adds the batch's rows to the counters, by the places that they come from."""
        if not self.names:
            return
        left_out = sum(int(np.count_nonzero(ranks >= 0)) for ranks in self.ranks)
        for kind, rows in zip(("local", "cached", "remote", "device"), (*self.counts, left_out), strict=True):
            counters.add_rows(kind, rows, self.row_bytes)

    def shards(self, name: str) -> Shards:
        """Returns an attribute's rows in the mapped parts, in the cache and in the answers of owners. Waits for the answers."""
        local = self.local[name]
        remote = [(answer.place, self._checked(answer, name)) for answer in self.answers]
        return local.extended(remote, self.next_place)

    def gathered(self, threads: int) -> dict[str, np.ndarray]:
        """Reads all rows that were placed or routed, by name in a batch."""
        return {
            public: self.shards(name).gather(self.all_places, threads=threads) for public, name in self.names.items()
        }

    def _checked(self, answer: Answer, name: str) -> np.ndarray:
        given, rows = answer.gathered()[answer.index], answer.count
        array = given.get(name) if isinstance(given, dict) else None
        local = self.local[name]
        if array is None or array.dtype != local.stored_dtype or array.shape != (rows, *local.stored_row_shape):
            got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise PeerError(f"an owner returned {got} for {rows} rows of {self.kind} attribute {name!r}.")
        return array


def ask_owners(remote: RemoteRows, routed: Sequence[tuple[RowTable, Route]]) -> None:
    """Requests rows that were just routed from their owners, with one question per owner."""
    for owner in range(1, remote.num_owners):
        asked = [(table, route, ids) for table, route in routed if len(ids := route.of(owner))]
        if asked:
            tables = [AskedRows(t.kind, t.type, t.stored, ids) for t, _, ids in asked]
            answer = remote.ask(owner, Gather(tables))
            for index, (table, route, ids) in enumerate(asked):
                table.answers.append(Answer(int(route.first[owner]), len(ids), answer, index))


def node_names(manifest: Manifest) -> list[tuple[str, ...]]:
    """Returns per node type the attributes of nodes in a batch, without ``n_id``."""
    return [tuple(manifest.node_attrs(t)) for t in range(len(manifest.schema.node_types))]


def edge_names(manifest: Manifest, config: SamplerConfig) -> list[dict[str, str]]:
    """Returns per edge type the attributes of edges: name in the batch -> name in the partition."""
    attributes = [manifest.edge_attrs(r) for r in range(len(manifest.schema.edge_types))]
    return [
        {"e_id": "edge_ids"} | {name: name for name in names} if config.has_edge_rows else {} for names in attributes
    ]


class MappedTables(LocalWalks, KnowsEdges):
    """The tables of a batch's rows in the mapped parts: the half of a `LocalSource` that is the same on the CPU and on a device.
    on_device: nodes whose attributes the trainer's device has.

    Attributes:
        nodes: A table for each node type, with ``n_id`` and the attributes of nodes.
        edges: A table for each edge type, with ``e_id`` and the attributes of edges, if batches have these.
        targets: A table for each edge type of which batches have the attributes of the edges to predict.
    """

    def __init__(self, partition: LocalPartition, config: SamplerConfig, on_device: DeviceIndex | None = None) -> None:
        self.config, self.counters = config, Counters()
        self.view = partition.drawn_by(config.weights, config.timed, config.labor)
        stored = partition.with_stored_edges
        self._unweighted = stored.drawn_by((), config.timed)
        self.stored_view = stored.weighted(config.weights)
        self._edges_view = self.view if stored is partition else self.stored_view
        self.nodes: list[RowTable] = []
        self.edges: list[RowTable] = []
        partition = partition.as_stored if config.stored else partition
        for t, attributes in enumerate(node_names(partition.manifest)):
            wanted = ("n_id", *attributes) if config.node_attrs else ()
            shards = {name: partition.node_shards(t, name) for name in wanted}
            members = on_device.tables[t] if on_device is not None and wanted else None
            self.nodes.append(RowTable("node", t, {name: name for name in shards}, shards, members))
        for r, names in enumerate(edge_names(partition.manifest, config)):
            shards = {name: partition.edge_shards(r, name) for name in names.values()}
            self.edges.append(RowTable("edge", r, names, shards))

        stored = partition.with_stored_edges
        attrs = stored.manifest.edge_attrs
        self.targets: dict[int, RowTable] = {}
        for r in (task.edge_type for task in config.links if task.attrs):
            names = {"e_id": "edge_ids"} | {name: name for name in attrs(r)}
            self.targets[r] = RowTable("edge", r, names, {n: stored.edge_shards(r, n) for n in names.values()})

    def read_targets(self, edge_type: int, edges: np.ndarray) -> dict[str, np.ndarray]:
        table = self.targets[edge_type]
        table.clear()
        table.place(edges, {})
        return table.gathered(self.config.threads)

    def ask(self, question: RowsQuestion[A]) -> Callable[[], A]:
        view = self._edges_view if any(question.weights) else self._unweighted
        return partial(question.answer, view, self.config.threads, self.config.require_room)

    def begin(self) -> None:
        """Begins a batch: clears the counters and tables of the batch before."""
        self.counters = Counters()
        for table in (*self.nodes, *self.edges):
            table.clear()
