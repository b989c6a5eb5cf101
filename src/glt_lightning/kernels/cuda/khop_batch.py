"""A k-hop batch on a CUDA device as one native call, in memory for the largest batch that its fan-outs allow.

``glt_cuda_khop`` queues a whole batch before any of its sizes is known. From the numbers of seeds, the fan-outs and the
sizes of the types it computes the largest number of rows and picks of each step (one edge type of one hop)
(``khop_room.h``) and launches kernels for that many. Each kernel reads the true number from a cell that an earlier
kernel wrote. Three memsets clear the sizes, the cells and the table; one kernel for each node type that has seeds
inserts them; then a step is three kernels:

1. **Count** (a scan): finds the row of each node of the frontier, stores its address and degree (16 bytes) and the
place of its first pick. 2. **Pick**: 8, 16 or 32 lanes a row, the least that has a lane for each pick. Each pick is
inserted into the table at once and stores 8 bytes: its slot and the lid of its row. 3. **Number** (a scan): a pick
whose order is still the one in its slot is a first occurrence. It takes the next lid, writes the node and its user id,
and writes its lid into the slot. The lid is no higher than the order was, so threads that read the slot meanwhile see
from either value that they are not the first.

When the table has all lids, one kernel per edge type turns slots into lids and writes ``edge_index`` [2, edges] of all
hops in one piece. With one edge type and three hops that is 11 kernels; with seeds of S node types and R edge types
that reach rows in each of H hops, S + R (3 H + 1).

* **Table** (``lids.h``): one 4-byte order for every node of the graph, written by an atomic minimum, if that takes no
  more memory than a hash table of the batch's nodes (up to twice as many nodes as that has slots). Else open addressing
  with 8-byte slots (id, order), twice as many as nodes can be found, written by one compare-and-swap or one minimum.
* **Scan** (``scan.cuh``): single pass with decoupled look-back [4], tiles of 1024. A tile takes its number when its
  block starts, so every tile that it waits for is running. ``place`` may run before later tiles are counted, so a body
  that changes an input of the count must say why that is safe.
* **Batches without a bound.** With more than 2^24 picks (``max_picks``), a fan-out of -1 that meets rows, or at least
  2^32 - 1 nodes, the batch is sampled hop by hop. The result is the same.
* **Threads and streams.** ``CudaKHopOp`` caches only the bounds for up to 64 numbers of seeds, so several threads may
  queue batches on several streams.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DrawOptions
from glt_lightning.kernels.cuda.graph import DeviceGraph
from glt_lightning.kernels.cuda.stream import HostCopy, raise_if
from glt_lightning.kernels.cuda.subgraph import DeviceExcluded, DeviceSubgraph

_WORTH_A_COPY = 1 << 17  # entries: 1 MiB


class _Shape(ctypes.Structure):
    """glt_khop_shape."""

    _fields_ = [
        ("num_hops", c_int32),
        ("replace", c_int32),
        ("with_edge", c_int32),
        ("reserved", c_int32),
        ("max_picks", c_int64),
        ("num_seeds", c_void_p),
        ("fanouts", c_void_p),
        ("src_type", c_void_p),
        ("dst_type", c_void_p),
        ("type_sizes", c_void_p),
    ]


class KHopRoom:
    """Upper bounds on the size of batches with given numbers of seeds by node type. Immutable, so batches may share it.

    nodes, edges: their largest numbers, by type and by edge type.  workspace: bytes; -1 if ``max_picks`` does not bound it.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        fanouts: Sequence[Sequence[int]],
        num_seeds: Sequence[int],
        draw: DrawOptions,
        *,
        max_picks: int,
    ) -> None:
        self.graph, self.draw, self.num_hops = graph, draw, len(fanouts)
        num, sizes = (np.array(values, dtype=np.int64) for values in (num_seeds, graph.type_sizes))
        short = [np.array(values, dtype=np.int32) for values in (fanouts, graph.src_types, graph.dst_types)]
        self._keep: list[np.ndarray] = [num, *short, sizes]
        addresses = [array.ctypes.data for array in self._keep]
        self._shape = _Shape(self.num_hops, draw.replace, draw.with_edge, 0, max_picks, *addresses)
        self.address = ctypes.addressof(self._shape)
        room = np.zeros(graph.num_types + graph.num_edge_types + 1, dtype=np.int64)
        parts = [room[: graph.num_types], room[graph.num_types : -1], room[-1:]]
        graph.kernels.ask("glt_cuda_khop_room", graph.address, self.address, *[part.ctypes.data for part in parts])
        self.nodes, self.edges, (self.workspace,) = (part.tolist() for part in parts)


class NativeBatch:
    """A batch that the constructor queues as a whole on the current stream; the host waits only in `result`."""

    def __init__(
        self, room: KHopRoom, seeds: Sequence[Tensor], batch_key: int, excluded: DeviceExcluded | None = None
    ) -> None:
        self._room, graph = room, room.graph
        kernels, empty = graph.kernels, graph.kernels.empty
        self._gid, self._uid = ([empty(n) for n in room.nodes] for _ in range(2))
        self._edge_index = [empty(2 * n) for n in room.edges]
        self._edge_row = [empty(n) for n in room.edges] if room.draw.with_edge else []
        lists = (seeds, self._gid, self._uid, self._edge_index, self._edge_row)
        at_seeds, *outputs = [(c_void_p * len(each))(*[t.data_ptr() for t in each]) for each in lists]
        sizes = empty(5 + (room.num_hops + 2) * graph.num_types + (room.num_hops + 1) * graph.num_edge_types)
        workspace = empty(room.workspace, dtype=torch.uint8)
        kernels.run(
            "glt_cuda_khop",
            graph.address,
            room.address,
            ctypes.addressof(at_seeds),
            batch_key,
            None if excluded is None else excluded.address(),
            workspace,
            room.workspace,
            *map(ctypes.addressof, outputs),
            sizes,
        )
        self._sizes = HostCopy(sizes, kernels)

    def result(self) -> DeviceSubgraph:
        """Returns the batch. Waits for its sizes. Raises as `CudaKHopOp.__call__`."""
        room, sizes = self._room, self._sizes.wait()
        raise_if(sizes[:5].tolist(), "sample")
        first_edge = 5 + (room.num_hops + 2) * room.graph.num_types
        nodes = np.maximum.accumulate(sizes[5:first_edge].reshape(room.num_hops + 2, -1))
        edges = np.maximum.accumulate(sizes[first_edge:].reshape(room.num_hops + 1, room.graph.num_edge_types))
        num_nodes, num_edges = nodes[-1].tolist(), edges[-1].tolist()
        return DeviceSubgraph(
            gid=list(map(_first, self._gid, num_nodes)),
            uid=list(map(_first, self._uid, num_nodes)),
            edge_index=[_first(ids, 2 * n).view(2, n) for ids, n in zip(self._edge_index, num_edges, strict=True)],
            edge_row=list(map(_first, self._edge_row, num_edges)) if room.draw.with_edge else [None] * len(num_edges),
            nodes_per_hop=np.diff(nodes, axis=0).T,
            edges_per_hop=np.diff(edges, axis=0).T,
        )


def _first(values: Tensor, n: int) -> Tensor:
    """Returns the first n values; copies them if that frees more memory than it takes."""
    return values[:n].clone() if len(values) > max(2 * n, _WORTH_A_COPY) else values[:n]
