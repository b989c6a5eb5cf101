"""`DistGraph`: a partitioned graph with its data and the user's tensors, for scripts and for the modules of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import (
    ClusterOptions,
    DataError,
    DrawOptions,
    EdgeType,
    NodeType,
    TensorOptions,
    as_options,
    parse_fanouts,
)
from glt_lightning.kernels import ExcludedEdges, WalkRule, hop_key
from glt_lightning.sampling import WalkStart, fault_of, role_key, walk_through
from glt_lightning.tensors.dist_ranks import ranks_of_this_process
from glt_lightning.tensors.dist_servers import GraphSource, open_reader
from glt_lightning.tensors.dist_tensor import OPEN_GRAPHS, DistTensor, load_tensors, rows_of_index
from glt_lightning.tensors.home import LazyHomes, Reach
from glt_lightning.tensors.reader import GraphReader
from glt_lightning.tensors.row_data import RowData, TypesOfGraph
from glt_lightning.tensors.saved import save_tables
from glt_lightning.tensors.space import Homes, RowSpace
from glt_lightning.tensors.tables import SharedTables
from glt_lightning.workers import Ranks


class Neighbors(NamedTuple):
    """Sampled edges, in the order of the rows that they were drawn for.

    src, dst: int64 [E], rows of their types.  edge_row: int64 [E], rows of the edge type.
    """

    src: Tensor
    dst: Tensor
    edge_row: Tensor


class DistGraph:
    """A partitioned graph: its types, its data by row, neighbours of rows, and the user's tensors.

    Rows of a type are numbered from 0, by part; ``rows_of`` and ``user_ids`` convert the user's ids to rows and back. Every
    rank makes one at the same time. In a job ``trainer.strategy.graph`` or ``datamodule.dist_graph`` has it. Close it, or use
    it in a ``with`` block: that closes its tensors.

    Args:
        graph: The partition folder, of which this process maps all parts; or `ClusterOptions`, whose ``servers`` have the graph.
        ranks: This rank and its collective calls. None: those of torch's default process group, if there is one.
        options: Limit, storage and checks of tensors.
        seed: Seed of random first values.
        wait_s: Seconds that a write may wait for another rank's write.
        reach: The means to reach ranks of other hosts; strategies give it. None: all ranks run on one host.

    Attributes:
        node_types: Names of the node types.
        edge_types: (source, relation, destination) of the edge types.
        rank: Number of this process.
        world_size: Number of processes.
        nodes: By node type; ``graph.nodes["paper"].data`` maps names to tensors.
        edges: By edge type.

    Raises:
        PartitionError: For a folder that is missing or damaged.

    Example:
        >>> with DistGraph("parts") as graph:
        ...     rows = graph.rows_of([3, 0])
        ...     print(graph.num_nodes(), graph.num_edges(), graph.ndata["x"][rows])
        10 20 tensor([[ 9., 10., 11.],
                [ 0.,  1.,  2.]])
    """

    def __init__(
        self,
        graph: GraphSource,
        *,
        ranks: Ranks | None = None,
        options: TensorOptions | None = None,
        seed: int = 0,
        wait_s: float = 30.0,
        reach: Reach | None = None,
    ) -> None:
        self._closing = ExitStack()
        self.ranks = ranks_of_this_process() if ranks is None else ranks
        if isinstance(graph, ClusterOptions):
            options = graph.tensors if options is None else options
        self._reader = open_reader(graph, self.ranks.rank, self._closing)
        self.schema = self._reader.schema
        self._spaces = self._reader.spaces
        place = None if reach is None else reach.place
        homes = Homes.agree(self.ranks, self._reader.manifest.num_parts, self._reader.parts, place)
        remote = None
        if reach is not None and homes.num_hosts > 1:
            remote = LazyHomes(self.ranks, homes, replace(reach, link=replace(reach.link, graph=self.hash)))
            self._closing.callback(remote.close)
        self.tables = SharedTables(
            self.ranks,
            homes,
            self._reader.user_ids_of_part,
            seed=seed,
            options=as_options(TensorOptions, "tensors", {} if options is None else options),
            wait_s=wait_s,
            remote=remote,
        )
        self._closing.callback(self.tables.close)
        self.node_types, self.edge_types = list(self.schema.node_types), list(self.schema.edge_types)
        self.rank, self.world_size = self.ranks.rank, self.ranks.world_size
        self._named: dict[RowSpace, dict[str, DistTensor]] = {space: {} for space in self._spaces}
        self.nodes = TypesOfGraph(self, [space for space in self._spaces if space.kind == "node"])
        self.edges = TypesOfGraph(self, [space for space in self._spaces if space.kind == "edge"])
        OPEN_GRAPHS.add(self)

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self in OPEN_GRAPHS

    # Types and sizes

    @property
    def hash(self) -> str:
        """Hash of the input and the options from which the partition was made, the same for the same content."""
        return self._reader.manifest.options_hash

    @property
    def given_edge_types(self) -> list[EdgeType]:
        """The types of the user's edges, without those that ``undirected`` made of them."""
        return list(self._reader.manifest.given_edge_types)

    def num_nodes(self, node_type: NodeType | None = None) -> int:
        """Number of nodes of a type; None: of all types."""
        return self._count("node", node_type)

    def num_edges(self, edge_type: EdgeType | str | None = None) -> int:
        """Number of stored edges of a type; None: of all types."""
        return self._count("edge", edge_type)

    def _count(self, kind: str, of: Any) -> int:
        if of is None:
            return sum(space.num_rows for space in self._spaces if space.kind == kind)
        return self.space(of, kind).num_rows

    def space(self, of: Any, kind: str | None = None) -> RowSpace:
        """The rows of a type. of: a node type, an edge type, ``a__rel__b`` or a relation that one edge type alone has; None: the
        only type of ``kind``. Raises `DataError`, which lists the types, if none or several match."""
        able = [space for space in self._spaces if kind in (None, space.kind)]
        of = tuple(of) if isinstance(of, list) else of
        found = able if of is None else [space for space in able if of in (space.of, space.label)]
        if not found and isinstance(of, str):
            found = [space for space in able if space.kind == "edge" and space.of[1] == of]
        if len(found) != 1:
            raise DataError(f"type: expected one of {_labels(able)}; got {of!r:.100}.")
        return found[0]

    def space_of_rows(self, shape: tuple[int, ...], of: Any, where: str) -> RowSpace:
        """The type whose rows a tensor of ``shape`` has. Raises `DataError` unless ``of`` or one type alone has as many rows."""
        rows = shape[0] if shape and type(shape[0]) is int else None
        if rows is None:
            raise DataError(
                f"{where}: shape: expected [N, ...] with a row for each node or edge of a type; got {list(shape)}."
            )
        if of is not None:
            space = self.space(of)
            if space.num_rows != rows:
                raise DataError(f"{where}: shape: type {space.label!r} has {space.num_rows} rows, got {rows}.")
            return space
        found = [space for space in self._spaces if space.num_rows == rows]
        if len(found) != 1:
            sizes = ", ".join(f"{space.label!r}: {space.num_rows}" for space in self._spaces)
            which = f"{_labels(found)} have" if found else "no type has"
            raise DataError(f"{where}: of: {which} {rows} rows ({sizes}). Give of=, the type that the rows belong to.")
        return found[0]

    # Data

    @property
    def ndata(self) -> MutableMapping[str, DistTensor]:
        """Data of the nodes of a graph with one node type."""
        return RowData(self, self._only("node"))

    @property
    def edata(self) -> MutableMapping[str, DistTensor]:
        """Data of the edges of a graph with one edge type."""
        return RowData(self, self._only("edge"))

    def _only(self, kind: str) -> RowSpace:
        found = [space for space in self._spaces if space.kind == kind]
        if len(found) != 1:
            raise DataError(f"{kind[0]}data: the graph has the {kind} types {_labels(found)}; use {kind}s[type].data.")
        return found[0]

    def rows_of(self, user_ids: Any, node_type: NodeType | None = None) -> Tensor:
        """Returns int64 [n]: the rows of nodes by the user's ids."""
        space = self.space(node_type, "node")
        return torch.from_numpy(self._reader.rows_of(space, rows_of_index(user_ids, space.num_rows)))

    def deleted(self, node_type: NodeType | None = None) -> Tensor:
        """Returns int64 [n], ascending: the user's ids of deleted nodes. They have rows, but no edges."""
        return torch.from_numpy(np.array(self._reader.deleted(self.space(node_type, "node"))))

    def user_ids(self, rows: Any, of: NodeType | EdgeType | None = None) -> Tensor:
        """Returns int64 [n]: the user's ids of nodes, as ``n_id``; of edges the columns of the user's ``edge_index``, as
        ``e_id``."""
        space = self.space(of, "node" if of is None else None)
        return torch.from_numpy(self._reader.user_ids(space, rows_of_index(rows, space.num_rows)))

    # Neighbours

    def edges_into(self, space: RowSpace, part: int) -> np.ndarray | None:
        """Returns int64 [rows of the part]: edges of all types into each row of a node type; None where the part is not mapped
        here."""
        return self._reader.edges_into(space, part)

    def sample_neighbors(
        self,
        rows: Any,
        fanout: int,
        etype: EdgeType | str | None = None,
        replace: bool = False,
        prob: str | None = None,
        exclude_edges: tuple[Any, Any] | None = None,
        key: int = 0,
    ) -> Neighbors:
        """Samples neighbours of rows of the destination type: the edges of hop 0 of a batch of these seeds with this key, however
        the graph is partitioned.

        Args:
            rows: Rows of the destination type.
            fanout: Number of edges per row; -1: all.
            etype: The edge type. None: the only one.
            replace: Draw with replacement.
            prob: An attribute of ``partition.weights`` to draw by. None: all edges weigh the same.
            exclude_edges: (source rows, destination rows) of edges that are not drawn, with all their parallel copies.
            key: 64-bit key of the draws.

        Raises:
            DataError: For rows, an edge type or weights that do not exist.
        """
        space = self.space(etype, "edge")
        parse_fanouts([fanout], "fanout")
        source, target = (self.space(space.of[end], "node") for end in (0, 2))
        offsets = self._reader.manifest.offsets
        weights = tuple(prob if r == space.index else None for r in range(len(self.edge_types))) if prob else ()
        self._reader.manifest.require_weights(weights)
        excluded = None
        if exclude_edges is not None:
            ends = [rows_of_index(e, s.num_rows) for e, s in zip(exclude_edges, (source, target), strict=True)]
            src, dst = ends[0] + offsets[source.index], ends[1] + offsets[target.index]
            excluded = ExcludedEdges.of({space.index: (dst, src)})
        at = rows_of_index(rows, target.num_rows)
        draw = DrawOptions(replace=replace, with_edge=True, weights=weights)
        counts, gids, edge_rows = self._reader.neighbors(space.index, target, at, fanout, key, draw, excluded)
        found = gids - offsets[source.index], np.repeat(at, counts), edge_rows
        return Neighbors(*map(torch.from_numpy, found))

    def random_walk(
        self,
        rows: Any,
        length: int | None = None,
        *,
        metapath: Sequence[EdgeType | str] | None = None,
        walks: int = 1,
        restart: float = 0.0,
        stop: float = 0.0,
        prob: str | None = None,
        key: int = 0,
    ) -> Tensor:
        """Returns int64 [n, walks, length + 1]: the rows that random walks from ``rows`` [n] visit, the root first; -1 after the
        end of a walk.

        A step leads from a node to the source of one of the edges into it, as neighbours are sampled; at a node without one the
        walk ends. A walk depends on its root, its number and the key alone, however the graph is partitioned.

        Args:
            rows: Rows of the destination type of the first edge type.
            length: Steps of a walk. None: the metapath once.
            metapath: The edge types of the steps, repeated as often as ``length`` needs. None: the only edge type.
            walks: Number of walks from each row.
            restart: Probability with which a walk goes back to its root before a step that begins the metapath anew.
            stop: Probability with which it ends there instead.
            prob: An attribute of ``partition.weights`` to draw steps by, along the edge types that have it. None: all edges weigh
                the same.
            key: 64-bit key of the draws.

        Raises:
            DataError: For rows, edge types or weights that do not exist, and edge types that do not follow each other.

        Example:
            >>> with DistGraph("parts") as graph:
            ...     graph.random_walk(graph.rows_of([3, 0]), 2, restart=0.5).shape
            torch.Size([2, 1, 3])
        """
        return random_walks(self, rows, length, metapath, walks, {"restart": restart, "stop": stop}, prob=prob, key=key)

    # Ranks

    def barrier(self) -> None:
        """Waits for all ranks: after it each reads what all have written before it. A collective call. Raises `DataError` for
        rows that two ranks have written to since the last barrier, if ``tensors.check_conflicts`` is set."""
        self.tables.barrier()

    def save(self, folder: str | Path) -> None:
        """Writes all tensors that the user has named to a new folder, by the user's ids. A collective call.

        Raises `WriteError` if that fails, for instance since the folder exists; on other ranks `PeerError`.
        """
        save_tables(Path(folder), self.tables, self.tables.named, self._reader)

    def load(self, folder: str | Path) -> list[DistTensor]:
        """Reads the tensors that `save` has written, with any number of parts, ranks and hosts, into those of the same name or
        into new ones, and returns them. A collective call; each host reads the folder.

        Raises `DataError` for a folder that is damaged or of another graph; on other ranks `PeerError`.
        """
        return load_tensors(self, self._reader, Path(folder))

    @property
    def reader(self) -> GraphReader:
        """The reader of the stored graph."""
        return self._reader

    def renew(self, reader: GraphReader, seed: int) -> None:
        """Reads the same graph through another reader, and draws first values with another seed from now on."""
        self._reader.renew(reader)
        self.tables.seed = seed

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Makes `close` without effect within a ``with`` block."""
        closing, self._closing = self._closing.pop_all(), ExitStack()
        try:
            yield
        finally:
            self._closing = closing
            OPEN_GRAPHS.add(self)

    def close(self) -> None:
        """Closes the graph's tensors, and the partition if it was opened here. Safe to call twice."""
        OPEN_GRAPHS.discard(self)
        self._closing.close()

    def __enter__(self) -> DistGraph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _labels(spaces: list[RowSpace]) -> str:
    return ", ".join(repr(space.label) for space in spaces) or "none"


# Random walks from rows of a `DistGraph`.


_AT_ONCE = 1 << 20  # walks that are made together, which bounds the memory of their traces


def random_walks(
    graph: DistGraph,
    rows: Any,
    length: int | None,
    metapath: Sequence[Any] | None,
    walks: int,
    chances: Mapping[str, float],
    *,
    prob: str | None,
    key: int,
) -> Tensor:
    """`DistGraph.random_walk`. chances: ``restart`` and ``stop``."""
    spaces = [graph.space(each, "edge") for each in ([None] if metapath is None else metapath)]
    if not spaces:
        raise DataError("random_walk: metapath: expected edge types, got none. Leave it out for the only edge type.")
    length = len(spaces) if length is None and metapath is not None else length
    _require_counts(length, walks)
    assert length is not None
    rule = WalkRule(edge_types=tuple(space.index for space in spaces), length=length, **_restarts(chances))
    schema = graph.schema
    if fault := fault_of([schema.edge_types[space.index] for space in spaces], length > len(spaces)):
        raise DataError(f"random_walk: metapath: {fault}")
    manifest = graph.reader.manifest
    having = [prob if prob in manifest.weights(r) else None for r in range(len(schema.edge_types))]
    weights = tuple(having) if prob is not None else ()
    if prob is not None and not any(weights[space.index] for space in spaces):
        manifest.require_weights(tuple(prob if r == spaces[0].index else None for r in range(len(having))))
    root = graph.space(spaces[0].of[2], "node")
    at = rows_of_index(rows, root.num_rows)
    root.parts_of(at)  # raises for a row that does not exist
    types = np.array([root.index, *(schema.source_types()[spaces[j % len(spaces)].index] for j in range(length))])
    first = np.array(manifest.offsets)[types]
    role = hop_key(role_key(key, "walk"), 0, manifest.schema.node_type_keys()[root.index])
    found = np.empty((len(at), walks, length + 1), dtype=np.int64)
    found[:, :, 0] = at[:, None]
    step = max(1, _AT_ONCE // walks)
    for begin in range(0, len(at), step):
        gids = at[begin : begin + step] + manifest.offsets[root.index]
        start = WalkStart(rule=rule, roots=gids, walks=walks, key=role)
        trace = walk_through(manifest, *graph.reader.places, start, weights).trace.reshape(len(gids), walks, length)
        found[begin : begin + step, :, 1:] = np.where(trace < 0, -1, trace - first[1:])
    return torch.from_numpy(found)


def _require_counts(length: Any, walks: Any) -> None:
    for name, value in (("length", length), ("walks", walks)):
        if type(value) is not int or value < 1:
            raise DataError(f"random_walk: {name}: expected an integer >= 1, got {value!r:.50}.")
    if length * walks > WalkRule.MOST_STEPS:
        raise DataError(
            f"random_walk: {walks} walks of {length} steps: expected at most {WalkRule.MOST_STEPS} steps from one row. Call it "
            "several times with other keys."
        )


def _restarts(chances: Mapping[str, float]) -> dict[str, Any]:
    """``restart`` and ``ends`` of a `WalkRule`."""
    for name, value in chances.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            raise DataError(f"random_walk: {name}: expected a probability, 0 to 1; got {value!r:.50}.")
    if all(chances.values()):
        raise DataError("random_walk: stop: excludes restart: a walk ends, or goes back to its root. Give one of them.")
    ends = bool(chances["stop"])
    return {"restart": WalkRule.threshold(chances["stop" if ends else "restart"]), "ends": ends}
