"""A k-hop batch on a CUDA device hop by hop: if fan-outs do not bound it, or some parts of the graph are remote.

If some parts are not mapped here, a GPU samples hop by hop (``kernels/cuda/khop_steps.py``). The device knows where
each part begins and divides the new nodes of a hop into remote and local ones; the remote ids are copied to the host
with the sizes of the hop, in its only wait. While the owners answer (or cached lists are read), the device counts and
picks for the local nodes. Then the remote picks are copied to the device, owner by owner. A scan of all counts gives
each row's place; local and remote picks are scattered to their places and relabelled. A hop that finds more than 65,536
remote nodes of one type waits once more for the rest. Attributes of remote rows are gathered into pinned memory as they
are stored, copied in one piece, and appended to the mapped parts under ids of their own, so that one gather (and
decode) reads all. That takes about 70 launches a hop with one edge type, most of them torch's; several threads with a
stream each hide them, as they hide the wait for other hosts.

Further edges of subgraphs (``subgraph_type``, ``sampling/device_subgraph.py``): the destinations in remote parts and
the sources of the edges to find are copied to the host, and owners are asked for the edges between them
(``induce``). Meanwhile the kernels of ``induce.cu`` read the rows that are here. The answers are copied to the device,
which looks up their sources in the batch, or in the tree of each row, by a binary search, and sorts both by row. Of the
edges that are left, the numbers of the remote ones go back to the host, which asks owners for their attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, DrawOptions
from glt_lightning.kernels.cuda.graph import DeviceGraph
from glt_lightning.kernels.cuda.merge import Merged, Piece, RemoteSplit, merge
from glt_lightning.kernels.cuda.relabel import DeviceLids
from glt_lightning.kernels.cuda.stream import HostCopy, Kernels, raise_if
from glt_lightning.kernels.cuda.subgraph import DeviceSubgraph
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.khop import first_of
from glt_lightning.kernels.routing import Drawn, Picks, require_fit
from glt_lightning.kernels.trees import Trees

# Remote nodes of one type that are read together with a hop's sizes; a hop that finds more waits twice.
_READ_WITH_SIZES = 1 << 16
_NONE = np.empty(0, dtype=np.int64)
_Ids = TypeVar("_Ids", np.ndarray, Tensor)


class RemoteParts:
    """The remote parts of a graph, and the bounds of valid answers of their owners.

    is_remote: bool [P].  edge_ends: per edge type, the first number behind its edge rows: remote edges are numbered from
    there on.
    """

    def __init__(self, view: GraphView, is_remote: np.ndarray, kernels: Kernels) -> None:
        parts = view.num_parts
        self._inner_bounds = [view.bounds[t * parts + 1 : (t + 1) * parts] for t in range(view.num_types)]
        self._is_remote, on_device = is_remote, torch.from_numpy(is_remote).to(kernels.device)
        self.splits = [RemoteSplit(kernels.copy(inner), on_device) for inner in self._inner_bounds]
        self.edge_splits = [RemoteSplit(kernels.copy(bounds[1:-1]), on_device) for bounds in view.edge_bounds]
        self.edge_ends = view.edge_bounds[:, -1].tolist()
        self._sources = [(int(view.type_offsets[t]), int(view.type_offsets[t + 1])) for t in view.src_types.tolist()]

    def find(self, node_type: int, gids: np.ndarray) -> np.ndarray:
        """Returns bool [n], on the host: True for remote nodes."""
        return self._is_remote[np.searchsorted(self._inner_bounds[node_type], gids, side="right")]

    def join(self, edge_type: int, drawn: Drawn, columns: Sequence[str]) -> Picks:
        """Joins the picks of the owners, owner after owner. Raises `DataError` for an answer that does not fit its question:
        kernels would write it outside the memory of the batch."""
        assert drawn.owner is not None
        for owner, picks in enumerate(drawn.picks[1:], 1):
            rows = int(np.count_nonzero(drawn.owner == owner))
            require_fit(picks, edge_type, rows, self._sources[edge_type], columns)
        return Picks(**{n: np.concatenate([getattr(p, n) for p in drawn.picks[1:]]) for n in ("counts", *columns)})


@dataclass(frozen=True)
class Frontier:
    """New nodes of one type. All tensors are int64 on the device.

    first: lid of the first node.  gids, uids: ids of the local nodes.  local, remote: the positions of local and remote nodes
    behind ``first``; None if all are local.  remote_gids: gids of the remote nodes, on the host.  error: [5], a status that
    kernels write and that is read at the end of the hop.  tree: int64, the trees of all nodes, in a disjoint batch.
    """

    first: int
    gids: Tensor
    uids: Tensor
    error: Tensor
    remote_gids: np.ndarray
    local: Tensor | None = None
    remote: Tensor | None = None
    tree: Tensor | None = None

    @property
    def local_trees(self) -> Tensor:
        """The trees of the local nodes, int32."""
        assert self.tree is not None
        return (self.tree if self.local is None else self.tree.index_select(0, self.local)).to(torch.int32)

    def __len__(self) -> int:
        return len(self.gids) + len(self.remote_gids)


class DeviceHops:
    """Builds one batch on a device, as `kernels.routing.BatchBuilder` does on the host, on the current stream. The host waits for
    the device once a hop, and once more in a hop that finds very many remote nodes.

    seeds: by node type, int64 [S] gids, on the device.  remote: the remote parts; None: there are none.  host_seeds: the seeds
    on the host, needed with ``remote``.  trees: the trees of the seeds, in a disjoint batch, in whose table the key of a node is
    tree * number of nodes + gid.

    Attributes:
        frontier: Per node type, the nodes that the last hop found first.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        seeds: Sequence[Tensor],
        draw: DrawOptions,
        *,
        remote: RemoteParts | None = None,
        host_seeds: Sequence[np.ndarray] = (),
        trees: Trees | None = None,
    ) -> None:
        kernels = graph.kernels
        self._trees, self._num_ids = trees, graph.num_nodes
        if trees is not None:
            self._num_ids *= max(1, trees.num_trees)
            if self._num_ids >= 2**63:
                raise DataError(
                    f"trees: {trees.num_trees} trees of a graph of {graph.num_nodes} nodes have too many ids."
                )
            bases = [trees.of.get(t, _NONE).astype(np.int64) * graph.num_nodes for t in range(graph.num_types)]
            seeds = [gids + kernels.put(base) for gids, base in zip(seeds, bases, strict=True)]
            host_seeds = [gids + base for gids, base in zip(host_seeds, bases, strict=False)]
        self._graph, self._kernels, self._columns, self._remote = graph, kernels, draw.columns, remote
        types, edge_types = range(graph.num_types), range(graph.num_edge_types)
        self._error = kernels.new_error()
        self._lids = DeviceLids(kernels, self._error)
        self._ids = [ids.clone() for ids in seeds]  # gids, or with trees the keys of nodes in the table
        self._uid = [kernels.empty(len(ids)) for ids in self._ids]
        self._num_nodes = [len(ids) for ids in self._ids]
        # on the device: ahead of `_num_nodes` while a hop is made
        self._counts = kernels.put(np.array(self._num_nodes))
        self._src, self._dst, self._edge_row = ([[kernels.empty(0)] for _ in edge_types] for _ in range(3))
        self._num_remote_edges = [0 for _ in edge_types]
        self._remote_lids = [[kernels.empty(0)] for _ in types]
        self._nodes_per_hop: list[list[int]] = []
        self._edges_per_hop: list[list[int]] = []
        self.frontier: list[Frontier] = []
        split = {}
        if remote is None:
            self._look_up([0 for _ in types])
        else:
            for t, ids in enumerate(host_seeds):
                away = remote.find(t, self._gids_of(ids))
                split[t] = kernels.put(np.argsort(~away, kind="stable")), ids[away]
        self._begin([0 for _ in types], split)

    def stitch(self, drawn: Mapping[int, Drawn]) -> dict[int, np.ndarray]:
        """Queues the addition of a hop's edges. Returns the edge rows of the remote edges."""
        pieces: dict[int, list[Piece]] = {}
        edge_rows = {}
        for r in sorted(drawn):
            pieces[r] = [piece for piece in drawn[r].picks[:1] if piece is not None]
            if self._remote is not None and drawn[r].owner is not None and len(self._frontier(r).remote_gids):
                picks = self._remote.join(r, drawn[r], self._columns)
                pieces[r].append(self._piece(r, drawn[r], picks))
                if picks.edge_rows is not None:
                    edge_rows[r] = picks.edge_rows.astype(np.int64)
        pieces = {r: each for r, each in pieces.items() if each}
        self._bounds = self._make_room(pieces)
        self._found: dict[int, tuple[Merged, Tensor]] = {}
        for r, each in pieces.items():
            source = self._graph.src_types[r]
            merged = merge(len(self._frontier(r)), each)
            unique = (self._ids[source], self._counts[source : source + 1])
            self._found[r] = merged, self._lids.number(self._ids_of(r, merged), merged.total, *unique)
        return edge_rows

    def end_hop(self) -> None:
        """Reads the hop's sizes and its remote nodes, and makes the nodes that it found the next frontier."""
        before, splits, heads = self._num_nodes, {}, []
        if self._remote is None:
            self._look_up(before)
        else:
            grown = {t: self._ids[t][before[t] : before[t] + more] for t, more in enumerate(self._bounds) if more}
            splits = {
                t: self._remote.splits[t](self._gids_of(ids), self._counts[t] - before[t]) for t, ids in grown.items()
            }
            # How many of these are remote is known only after the read below: some are read with it, which saves a second wait
            heads = [ids.index_select(0, splits[t][0][:_READ_WITH_SIZES]) for t, ids in grown.items()]
        none = self._error[:0]
        error, counts, totals, remote, *found = _read(
            self._kernels,
            self._error,
            self._counts,
            torch.cat([none, *(merged.total for merged, _ in self._found.values())]),
            torch.cat([none, *(number for _, number in splits.values())]),
            *heads,
        )
        raise_if(error.tolist(), "sample")
        self._num_nodes, new = counts.tolist(), {}
        for t, k, head in zip(splits, remote.tolist(), found, strict=True):
            order, ids = splits[t][0], head[:k]
            if k > len(head):
                ids = np.concatenate([head, *_read(self._kernels, grown[t].index_select(0, order[len(head) : k]))])
            new[t] = order, ids
        self._append_edges(totals.tolist())
        self._begin(before, new)

    def result(self) -> DeviceSubgraph:
        """Returns the batch. Raises as `khop.CudaKHopOp.__call__`."""
        if not self._edges_per_hop:  # no hop has looked at the seeds' errors
            raise_if(_read(self._kernels, self._error)[0].tolist(), "sample")
        hops = len(self._edges_per_hop)
        ids = first_of(self._ids, self._num_nodes)
        return DeviceSubgraph(
            gid=[self._gids_of(each) for each in ids],
            uid=first_of(self._uid, self._num_nodes),
            edge_index=[torch.cat([*src, *dst]).view(2, -1) for src, dst in zip(self._src, self._dst, strict=True)],
            edge_row=[torch.cat(rows) if "edge_rows" in self._columns else None for rows in self._edge_row],
            nodes_per_hop=np.array(self._nodes_per_hop, dtype=np.int64).reshape(hops + 1, -1).T,
            edges_per_hop=np.array(self._edges_per_hop, dtype=np.int64).reshape(hops, self._graph.num_edge_types).T,
            remote=None if self._remote is None else [torch.cat(lids) for lids in self._remote_lids],
            tree=None if self._trees is None else [each // self._graph.num_nodes for each in ids],
        )

    @property
    def trees(self) -> Trees | None:
        """The trees of the remote nodes of the frontier, for their owners; the trees of local nodes are on the device."""
        return None if self._trees is None else self._trees.of_rows(self._remote_trees)

    def _gids_of(self, ids: _Ids) -> _Ids:
        return ids if self._trees is None else ids % self._graph.num_nodes

    def _ids_of(self, edge_type: int, merged: Merged) -> Tensor:
        """Returns the keys of the picks in the table. Values behind the last pick are arbitrary."""
        tree = self._frontier(edge_type).tree
        if tree is None:
            return merged.neighbors
        rows = merged.row.clamp(0, len(tree) - 1)
        return merged.neighbors + self._graph.num_nodes * tree.index_select(0, rows)

    def _frontier(self, edge_type: int) -> Frontier:
        return self.frontier[self._graph.dst_types[edge_type]]

    def _begin(self, first: Sequence[int], split: Mapping[int, tuple[Tensor, np.ndarray]]) -> None:
        """Sets the next frontier: the nodes from ``first`` (per type) on. split: type -> the order of `RemoteSplit`, and the keys
        of the remote nodes in the table."""
        self.frontier, self._remote_trees = [], {}
        nothing, num_gids = (self._kernels.empty(0), _NONE), self._graph.num_nodes
        for t, (begin, end) in enumerate(zip(first, self._num_nodes, strict=True)):
            ids, uids = self._ids[t][begin:end], self._uid[t][begin:end]
            gids, tree = self._gids_of(ids), None if self._trees is None else ids // num_gids
            if self._remote is None:
                self.frontier.append(Frontier(begin, gids, uids, self._error, _NONE, tree=tree))
                continue
            order, remote_ids = split.get(t, nothing)
            remote_gids, self._remote_trees[t] = self._gids_of(remote_ids), (remote_ids // num_gids).astype(np.int32)
            remote, local = order[: len(remote_gids)], order[len(remote_gids) : end - begin]
            gids, found = gids.index_select(0, local), self._kernels.empty(len(local))
            self._user_ids(t, gids, 0, found)  # of no more nodes than the type has by now
            uids.index_copy_(0, local, found)
            self._remote_lids[t].append(remote + begin)
            self.frontier.append(Frontier(begin, gids, found, self._error, remote_gids, local, remote, tree))
        self._nodes_per_hop.append([len(each) for each in self.frontier])

    def _look_up(self, begin: Sequence[int]) -> None:
        """Queues the lookup of the user ids of the nodes from ``begin`` (per type) on, whose number only the device knows."""
        for t, (ids, uid) in enumerate(zip(self._ids, self._uid, strict=True)):
            self._user_ids(t, self._gids_of(ids), begin[t], uid)

    def _user_ids(self, node_type: int, gids: Tensor, begin: int, out: Tensor) -> None:
        arguments = (node_type, gids, begin, len(gids), self._counts[node_type:], out, self._error)
        self._kernels.run("glt_cuda_user_ids", self._graph.address, *arguments)

    def _piece(self, edge_type: int, drawn: Drawn, picks: Picks) -> Piece:
        """Copies remote picks to the device. Their edges get numbers behind the edge rows."""
        frontier, n = self._frontier(edge_type), len(picks.neighbors)
        assert self._remote is not None
        assert drawn.owner is not None
        assert frontier.remote is not None
        order = np.argsort(drawn.owner, kind="stable")
        sent = (order, picks.counts, picks.neighbors)  # copied as narrow as they are, and widened on the device
        rows, counts, neighbors = (self._kernels.put(values).to(torch.int64) for values in sent)
        row, edges = torch.repeat_interleave(counts, output_size=n), None
        if picks.edge_rows is not None:
            first = self._remote.edge_ends[edge_type] + self._num_remote_edges[edge_type]
            edges = torch.arange(first, first + n, device=self._kernels.device)
            self._num_remote_edges[edge_type] += n
        return Piece(frontier.remote.index_select(0, rows), counts, neighbors, row, edges)

    def _make_room(self, pieces: Mapping[int, Sequence[Piece]]) -> list[int]:
        """Makes space for all nodes that the hop can find. Returns their largest number per type, at most all nodes of the
        type."""
        graph = self._graph
        extra = [0] * graph.num_types
        for r, each in pieces.items():
            extra[graph.src_types[r]] += sum(len(piece.neighbors) for piece in each)
        trees = self._num_ids // max(1, graph.num_nodes)
        bounds = [min(more, size * trees) for more, size in zip(extra, graph.type_sizes, strict=True)]
        known = first_of(self._ids, self._num_nodes)
        for t, (n, more) in enumerate(zip(self._num_nodes, bounds, strict=True)):
            if n + more > len(self._ids[t]):
                for lists in (self._ids, self._uid):
                    lists[t] = torch.cat([lists[t][:n], self._kernels.empty(more)])
        self._lids.make_room(min(sum(map(len, self._ids)), self._num_ids), known)
        return bounds

    def _append_edges(self, totals: Sequence[int]) -> None:
        edges = [0] * self._graph.num_edge_types
        for (r, (merged, src)), total in zip(self._found.items(), totals, strict=True):
            edges[r] = total
            self._src[r].append(src[:total])
            self._dst[r].append(merged.row[:total] + self._frontier(r).first)
            if merged.edges is not None:
                self._edge_row[r].append(merged.edges[:total])
        self._edges_per_hop.append(edges)


def _read(kernels: Kernels, *tensors: Tensor) -> list[np.ndarray]:
    """Returns the values of tensors on the host. Waits for the device."""
    values = HostCopy(torch.cat(tensors), kernels).wait()
    return np.split(values, np.cumsum([len(each) for each in tensors])[:-1])
