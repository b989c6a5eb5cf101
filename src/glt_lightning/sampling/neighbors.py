"""A source of neighbours and attributes: what samplers are functions over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from glt_lightning.kernels import ExcludedEdges, Expands, GraphView, OnDisk, Route, Trees, Walks
from glt_lightning.sampling.counters import Counters
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.sample import Field
from glt_lightning.sampling.source import EdgeOwners, RowsQuestion
from glt_lightning.sampling.table import RowTable
from glt_lightning.sampling.walks import RoutedWalks, Visiting, WalkStart

A = TypeVar("A")
Found = Any  # `kernels.khop.Subgraph`, or on a device `kernels.cuda.subgraph.DeviceSubgraph`


class NeighborSource(Expands, Protocol):
    """Neighbours and attributes of a graph, for one thread and one batch at a time. T node types, R edge types.

    A sampler is a function over a source: it calls `begin`, finds nodes and edges (`khop`; or `LocalSource.start`, and
    `expand` for each hop), and gives them to `assemble.assemble`. A frontier is a list over node types: of gids (int64
    [F]), or on a device of `kernels.cuda.khop_steps.Frontier`.

    Attributes:
        view: The graph's types, and where its parts begin.
        nodes, edges: A table for each node type, and each edge type.
        local: The source of the mapped parts, in whose memory batches grow and lie: this one, or the one behind it.
    """

    config: SamplerConfig
    view: GraphView
    nodes: list[RowTable]
    edges: list[RowTable]

    @property
    def local(self) -> LocalSource: ...

    def begin(self) -> None:
        """Forgets the batch before."""

    def khop(
        self,
        seeds: Mapping[int, np.ndarray],
        key: int,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Found | None:
        """The nodes and edges of a whole batch in one native call; None where that cannot be. Arguments as for `hops.k_hop`."""

    def ask(self, question: RowsQuestion[A]) -> Callable[[], A]:
        """Asks a question about rows of the stored edges, such as `HasEdges`; what it returns waits for the answer.

        Owners of remote rows are asked once, and at once. The CPU answers from the mapped files also where a GPU samples. Asking
        and waiting raise `DataError` for ids that the graph does not have."""

    def has_edges(self, edge_type: int, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
        """Asks `HasEdges` by the weights of the config, as `questions.has_edges.KnowsEdges`."""

    def walk(self, start: WalkStart) -> Walks:
        """Walks to their ends, along the stored edges and by the weights of the config. Owners are asked for those that come to
        their rows, once in a round. The CPU walks through the mapped files also where a GPU samples."""

    def most_visited(self, asked: Visiting, frontier: Any, trees: np.ndarray | None) -> Any:
        """The neighbours that walks find for the nodes of one type of a frontier, with the numbers of visits as edge rows:
        `Picks`, on a device a `kernels.cuda.merge.Piece`. A GPU that samples walks through the mapped parts itself.

        trees: int32 [n] of the nodes that `LocalSource.routed` gives, in a disjoint batch. Raises as `walk`.
        """

    def complete(self, found: Found, excluded: ExcludedEdges | None) -> Found | None:
        """A batch with the edges that ``config.subgraph`` asks for, found where the batch lies; None where that cannot be: then
        `subgraph.complete_edges` asks for them. excluded: edges that are not there."""

    def read_targets(self, edge_type: int, edges: np.ndarray) -> dict[str, np.ndarray]:
        """``e_id`` and the attributes of some edges, int64 [n] edge rows, of an edge type whose `LinkTask` asks for them. Owners
        are asked once, and waited for."""

    def settle(self, found: Found) -> None:
        """Waits for all that was asked for, and notes in the tables where the rows of the batch lie."""


class LocalSource(NeighborSource, Protocol):
    """The source of the mapped parts: all of a graph, or the rows of a `routed_source.RoutedSource` that are its own; and
    the place where batches grow.

    Attributes:
        counters: Of the batch.
        targets: As of `table.MappedTables`.
        stored_view: The stored edges, which are those of ``view`` unless walks find the neighbours.
    """

    targets: dict[int, RowTable]
    stored_view: GraphView

    @property
    def counters(self) -> Counters: ...

    def most_visited(
        self, asked: Visiting, frontier: Any, trees: np.ndarray | None, remote: RoutedWalks | None = None
    ) -> Any:
        """The same. remote: takes walks on that come to parts that are not mapped."""

    def start(self, seeds: Mapping[int, np.ndarray], trees: Trees | None = None) -> Any:
        """A batch that has its seeds, by node type (`kernels.hops.Growing`), whose ``result`` gives its nodes and edges."""

    def routed(self, frontier: Sequence[Any]) -> Sequence[np.ndarray]:
        """Per node type int64 [n]: the gids of a frontier that have to be routed to their owners."""

    def own(self, frontier: Sequence[Any], routes: Sequence[Route]) -> Sequence[Any]:
        """The part of a frontier that is drawn here. routes: of the gids that `routed` gave."""

    def complete(self, found: Found, excluded: ExcludedEdges | None, owners: EdgeOwners | None = None) -> Found | None:
        """owners: of the parts that are not mapped; None: all are."""

    def put(self, name: str, values: np.ndarray) -> Field:
        """An array of the host, where the batch lies."""

    def edge_index(self, name: str, found: Found, edge_type: int) -> Field:
        """int64 [2, E]: lids of neighbours, and of the nodes that they were drawn for, which ascend."""

    def column_pointers(self, name: str, found: Found, edge_type: int) -> Field:
        """int64 [N_dst + 1]: where the edges into each node begin."""

    def by_source(self, name: str, found: Found, edge_type: int) -> Field:
        """int64 [N_src + 1 + 2 E]: the edges in the order of sources, as `kernels.build.by_source` writes them."""

    def visits(self, found: Found, edge_type: int) -> list[Field]:
        """Of the edges of a type that walks found: ``visits``, int64 [E], and ``edge_weight``, float32 [E], their share of the
        visits of all edges into the node."""

    def tree_of(self, name: str, found: Found, node_type: int, examples: np.ndarray | None) -> Field:
        """int64 [n], the tree of each node of a disjoint batch, or its entry of ``examples``, int64 [number of trees]."""

    def row_numbers(self, name: str, found: Found, node_type: int) -> Field:
        """int64 [n]: the number of each node in its type: its gid less those of the types before."""

    def rows(self, name: str, table: RowTable, public: str, on_disk: OnDisk) -> Field:
        """An attribute of the table, or its ids, by its name in a batch. on_disk: hears what is read from a disk."""
