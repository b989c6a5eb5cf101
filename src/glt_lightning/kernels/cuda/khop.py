"""Whole k-hop batches on a CUDA device."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from glt_lightning.base import DEFAULT_DRAW, DrawOptions
from glt_lightning.kernels.cuda.graph import DeviceGraph
from glt_lightning.kernels.cuda.khop_batch import KHopRoom, NativeBatch
from glt_lightning.kernels.cuda.khop_steps import DeviceHops, Frontier
from glt_lightning.kernels.cuda.merge import Piece
from glt_lightning.kernels.cuda.sample import MODEST_ROOM, DeviceRowDraw, rooms_of
from glt_lightning.kernels.cuda.stream import Kernels
from glt_lightning.kernels.cuda.subgraph import DeviceExcluded, DeviceSubgraph, PendingBatch
from glt_lightning.kernels.graph import per_type
from glt_lightning.kernels.hops import run_hops
from glt_lightning.kernels.routing import Drawn
from glt_lightning.kernels.trees import Trees, TreesStruct

_CACHED_ROOMS = 64  # numbers of seeds whose bounds are cached; a loader of nodes has two, clients of a server have more


class CudaKHopOp:
    """Samples batches from a graph on a device. Threads and streams may share it: between batches it keeps bounds alone.

    fanouts: [H][R], per hop and edge type; -1 all, 0 none.
    max_picks: a batch that can find at most so many edges is queued as one native call, in memory for all of them, and the
    host waits once, in `PendingBatch.result`. Other batches, those with a fan-out of -1, and graphs of 2^32 nodes are sampled
    hop by hop, with the same results, and the host waits in `start`, once or twice a hop.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        fanouts: Sequence[Sequence[int]],
        draw: DrawOptions = DEFAULT_DRAW,
        *,
        max_picks: int = MODEST_ROOM,
    ) -> None:
        self.graph, self.fanouts = graph, [list(hop) for hop in fanouts]
        self.draw, self.max_picks = draw, max_picks
        self._rooms: dict[tuple[int, ...], KHopRoom] = {}

    def __call__(
        self,
        seeds: Mapping[int, Tensor],
        batch_key: int,
        excluded: DeviceExcluded | None = None,
        trees: Trees | None = None,
    ) -> DeviceSubgraph:
        """Samples one batch. seeds: by node type int64 [S] gids on the device; a seed that comes twice has two rows.
        excluded: entries of rows to leave out.  trees: the trees of all seeds, on the host, in a disjoint batch, which is
        sampled hop by hop.

        Raises `DataError` for a seed outside its type, `PartitionError` for damaged rows.
        """
        return self.start(seeds, batch_key, excluded, trees).result()

    def start(
        self,
        seeds: Mapping[int, Tensor],
        batch_key: int,
        excluded: DeviceExcluded | None = None,
        trees: Trees | None = None,
    ) -> PendingBatch:
        """Queues a batch on the current stream. Call its ``result`` later, with the same stream current."""
        kernels = self.graph.kernels
        ids = {t: kernels.require_ids(gids, "seeds") for t, gids in seeds.items()}
        each = per_type(ids, self.graph.num_types, kernels.empty(0))
        if trees is None and (room := self._room(tuple(map(len, each)))).workspace >= 0:
            return NativeBatch(room, each, batch_key, excluded)
        batch = DeviceHops(self.graph, each, self.draw, trees=trees)
        run_hops(self, batch, batch_key, self.fanouts, (excluded, excluded))
        return batch

    def expand(
        self,
        key: int,
        hop: int,
        fanouts: Sequence[int],
        frontier: Sequence[Frontier],
        *,
        new: bool = True,
        excluded: DeviceExcluded | None = None,
        trees: Trees | None = None,
    ) -> Mapping[int, Drawn]:
        """Draws neighbours of the local nodes of a frontier. The host waits only if fan-outs do not bound the picks. trees: has
        the bounds of the trees; the tree of each row is in the frontier."""
        graph, draw = self.graph, self.draw
        asked = [(frontier[graph.dst_types[r]], r, fanout) for r, fanout in enumerate(fanouts) if fanout]
        asked = [each for each in asked if len(each[0].gids)]
        bounds = None if trees is None else DeviceTrees(trees, draw.last, graph.kernels)
        draws = [
            DeviceRowDraw(
                *(graph, r, fanout, draw, nodes.gids, nodes.uids, nodes.error, excluded),
                None if bounds is None else bounds.struct(nodes.local_trees),
            )
            for nodes, r, fanout in asked
        ]
        drawn = {}
        for (nodes, r, _), rows, room in zip(asked, draws, rooms_of(draws), strict=True):
            neighbors, row, edges = rows.pick(room, key, hop)
            drawn[r] = Drawn([Piece(nodes.local, rows.counts, neighbors, row, edges, rows.offsets)])
        return drawn

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Does nothing, as `reached_nodes`: there are no owners to ask."""

    def reached_nodes(self, frontier: Sequence[Frontier]) -> None: ...

    def _room(self, num_seeds: tuple[int, ...]) -> KHopRoom:
        room = self._rooms.get(num_seeds)
        if room is None:
            room = KHopRoom(self.graph, self.fanouts, num_seeds, self.draw, max_picks=self.max_picks)
            if len(self._rooms) < _CACHED_ROOMS:
                self._rooms[num_seeds] = room
        return room


# The trees of a disjoint batch, in a device's memory.


class DeviceTrees:
    """The bounds of `kernels.trees.Trees`, copied for the current stream, for calls that are queued on it while this object
    lives.

    last: draw the latest entries instead of random ones.
    """

    def __init__(self, trees: Trees, last: bool, kernels: Kernels) -> None:
        self._num_trees, self._last = trees.num_trees, last
        self._bounds = [None if bound is None else kernels.put(bound) for bound in (trees.since, trees.until)]

    def struct(self, tree: Tensor) -> ctypes.Structure:
        """Makes the struct for a native call. tree: int32 [F], the tree of each row, which has to live as long."""
        table = np.array([tree.data_ptr()], dtype=np.int64)
        bounds = [None if bound is None else bound.data_ptr() for bound in self._bounds]
        struct = TreesStruct(self._num_trees, table.ctypes.data, *bounds, self._last)
        struct.keep = (self, table, tree)
        return struct
