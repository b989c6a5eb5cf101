"""The interface between samplers and graphs: a source of neighbours and attributes."""

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
        """Begins a batch: clears the state of the batch before."""

    def khop(
        self,
        seeds: Mapping[int, np.ndarray],
        key: int,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Found | None:
        """Samples the nodes and edges of a whole batch in one native call; None if that is not possible. Arguments as for
        `khop.k_hop`."""

    def ask(self, question: RowsQuestion[A]) -> Callable[[], A]:
        """Asks a question about rows of the stored edges, such as `HasEdges`. Returns a function that waits for the answer.

        Owners of remote rows are asked once, and at once. The CPU answers from the mapped files, also if a GPU samples. Asking
        and waiting raise `DataError` for ids that the graph does not have."""

    def has_edges(self, edge_type: int, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
        """Asks `HasEdges` with the weights of the config, as `questions.has_edges.KnowsEdges` does."""

    def walk(self, start: WalkStart) -> Walks:
        """Takes walks to their ends, along the stored edges and by the weights of the config. Owners continue the walks that
        reach their rows, and are asked once in a round. The CPU walks through the mapped files, also if a GPU samples."""

    def most_visited(self, asked: Visiting, frontier: Any, trees: np.ndarray | None) -> Any:
        """Finds by walks the neighbours of the nodes of one type of a frontier. Returns `Picks` with the numbers of visits as
        edge rows, on a device a `kernels.cuda.merge.Piece`. A GPU that samples walks through the mapped parts itself.

        trees: int32 [n], in a disjoint batch the trees of the nodes that `LocalSource.routed` returns. Raises as `walk`.
        """

    def complete(self, found: Found, excluded: ExcludedEdges | None) -> Found | None:
        """Returns the batch with the edges of ``config.subgraph``, found where the batch lies; None if that is not possible: then
        `subgraph.complete_edges` asks for them. excluded: edges to leave out."""

    def read_targets(self, edge_type: int, edges: np.ndarray) -> dict[str, np.ndarray]:
        """Reads ``e_id`` and the attributes of edges to predict, by name. edges: int64 [n] edge rows of an edge type whose
        `LinkTask` has ``attrs``. Asks owners once, and waits for them."""

    def settle(self, found: Found) -> None:
        """Waits for all answers of owners, and notes in the tables where the rows of the batch lie."""


class LocalSource(NeighborSource, Protocol):
    """The source of the mapped parts, in whose memory batches grow: the whole graph, or the local part of a `RoutedSource`.

    Attributes:
        counters: The counters of the batch.
        targets: As in `table.MappedTables`.
        stored_view: The stored edges, which are those of ``view`` unless walks find the neighbours.
    """

    targets: dict[int, RowTable]
    stored_view: GraphView

    @property
    def counters(self) -> Counters: ...

    def most_visited(
        self, asked: Visiting, frontier: Any, trees: np.ndarray | None, remote: RoutedWalks | None = None
    ) -> Any:
        """Finds neighbours by walks, as `NeighborSource.most_visited`. remote: continues walks in parts that are not mapped."""

    def start(self, seeds: Mapping[int, np.ndarray], trees: Trees | None = None) -> Any:
        """Begins a batch with its seeds, by node type. Returns a `kernels.hops.Growing`, whose ``result`` returns the nodes and
        edges."""

    def routed(self, frontier: Sequence[Any]) -> Sequence[np.ndarray]:
        """Returns per node type int64 [n]: the gids of a frontier that have to be routed to their owners."""

    def own(self, frontier: Sequence[Any], routes: Sequence[Route]) -> Sequence[Any]:
        """Returns the part of a frontier that is drawn here. routes: the routes of the gids of `routed`."""

    def complete(self, found: Found, excluded: ExcludedEdges | None, owners: EdgeOwners | None = None) -> Found | None:
        """Adds the edges of ``config.subgraph``, as `NeighborSource.complete`. owners: those of the parts that are not mapped;
        None: all are mapped."""

    def put(self, name: str, values: np.ndarray) -> Field:
        """Makes a field of an array of the host, in the memory where the batch lies."""

    def edge_index(self, name: str, found: Found, edge_type: int) -> Field:
        """Makes the field of the edges, int64 [2, E]: lids of neighbours, and of the nodes that they were drawn for, which
        ascend."""

    def column_pointers(self, name: str, found: Found, edge_type: int) -> Field:
        """Makes the field of the column pointers, int64 [N_dst + 1]: where the edges into each node begin."""

    def by_source(self, name: str, found: Found, edge_type: int) -> Field:
        """Makes the field of the edges in the order of sources, int64 [N_src + 1 + 2 E], as `kernels.build.by_source` writes
        them."""

    def visits(self, found: Found, edge_type: int) -> list[Field]:
        """Makes the fields of edges that walks found: ``visits``, int64 [E], and ``edge_weight``, float32 [E], their share of
        the visits of all edges into the node."""

    def tree_of(self, name: str, found: Found, node_type: int, examples: np.ndarray | None) -> Field:
        """Makes the field of the tree of each node of a disjoint batch, int64 [n], or of the tree's entry in ``examples``, int64
        [number of trees]."""

    def row_numbers(self, name: str, found: Found, node_type: int) -> Field:
        """Makes the field of the number of each node in its type, int64 [n]: its gid less the number of nodes of the types
        before."""

    def rows(self, name: str, table: RowTable, public: str, on_disk: OnDisk) -> Field:
        """Makes the field of an attribute of the table, or of its ids, by the name in a batch. on_disk: called with each read
        from a disk."""
