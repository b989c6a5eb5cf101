"""What a device must do: random cases, each compared with the CPU op and the reference. `kernels` says on which device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from glt_lightning.ops import cuda_khop, reference
from glt_lightning.ops.assign import NeighborRows, NeighborSums
from glt_lightning.ops.cuda import Kernels
from glt_lightning.ops.cuda_gather import CudaShards
from glt_lightning.ops.cuda_graph import DeviceGraph
from glt_lightning.ops.cuda_khop import CudaKHopOp, DeviceSubgraph
from glt_lightning.ops.cuda_sums import CudaNeighborSums
from glt_lightning.ops.gather import Shards
from glt_lightning.ops.graph import GraphView, RelationArrays
from glt_lightning.ops.khop import KHopOp, Subgraph
from glt_lightning.ops.relabel import relabel
from glt_lightning.ops.sample import sample_rows
from tests.helpers.graphs import HETERO, SINGLE, TypedGraph, cut

FANOUTS = [-1, 1, 2, 3, 7, 17, 64, 65, 100]


def to(kernels: Kernels, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.copy()).to(kernels.device)


def assert_same(got: Tensor | None, want: np.ndarray | None) -> None:
    assert (got is None) == (want is None)
    if got is not None and want is not None:
        assert got.dtype == torch.int64
        assert np.array_equal(got.cpu().numpy(), want)


def assert_same_batch(got: DeviceSubgraph, want: Subgraph) -> None:
    for name in ("gid", "uid", "src", "dst", "edge_row"):
        for mine, theirs in zip(getattr(got, name), getattr(want, name), strict=True):
            assert_same(mine, theirs)
    assert np.array_equal(got.nodes_per_hop, want.nodes_per_hop)
    assert np.array_equal(got.edges_per_hop, want.edges_per_hop)


def check_khop(kernels: Kernels, seed: int) -> None:
    """A whole batch of a random graph, cut at random, with random options."""
    rng = np.random.default_rng(seed)
    edge_types = (SINGLE, HETERO)[rng.integers(2)]
    graph = TypedGraph.random(rng, edge_types)
    pieces = cut(graph, int(rng.choice([1, 2, 5])), rng, (np.int32, np.int64)[rng.integers(2)])
    fanouts = rng.choice([0, *FANOUTS], (int(rng.integers(0, 4)), len(edge_types))).tolist()
    seed_type = int(rng.integers(len(graph.num_nodes)))
    seeds = rng.integers(0, graph.num_nodes[seed_type], int(rng.integers(0, 12)))  # none, few, repeated
    replace, with_edge = bool(rng.integers(2)), bool(rng.integers(2))
    key = int(rng.integers(0, 2**64, dtype=np.uint64))
    gids = pieces.gid_of[seed_type][seeds]
    want = KHopOp(pieces.view, fanouts, replace=replace, with_edge=with_edge)(gids, seed_type, key)
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), fanouts, replace=replace, with_edge=with_edge)
    got = op(to(kernels, gids), seed_type, key)
    assert_same_batch(got, want)
    oracle = reference.khop(
        graph.reference(),
        len(graph.num_nodes),
        torch.from_numpy(seeds),
        seed_type,
        fanouts,
        batch_key=key,
        replace=replace,
    )
    for t, n_id in enumerate(oracle.n_id):
        assert got.uid[t].tolist() == n_id.tolist()
    for r, edge_index in enumerate(oracle.edge_index):
        assert torch.stack([got.src[r], got.dst[r]]).tolist() == edge_index.tolist()
        edge_rows = got.edge_row[r]
        if edge_rows is not None:
            assert pieces.edge_ids[r][edge_rows.cpu().numpy()].tolist() == oracle.e_id[r].tolist()


def check_larger_khop(kernels: Kernels, replace: bool, fanouts: list[list[int]]) -> None:
    """Many rows, many collisions in the table, the table rebuilt from hop to hop."""
    rng = np.random.default_rng(5)
    n = 3000
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [n], [(rng.random((2, 20 * n)) ** 2 * n).astype(np.int64)]
    pieces = cut(graph, 3, rng)
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), fanouts, replace=replace, with_edge=True)
    cpu = KHopOp(pieces.view, fanouts, replace=replace, with_edge=True)
    for key in range(3):
        seeds = pieces.gid_of[0][rng.integers(0, n, 500)]
        assert_same_batch(op(to(kernels, seeds), 0, key), cpu(seeds, 0, key))


def far_graph(first: int, n: int = 50) -> tuple[GraphView, np.ndarray]:
    """A graph whose n nodes have the gids first .. first + n - 1: before them lies a type that is not here."""
    rng = np.random.default_rng(first % 1000)
    degrees = rng.integers(0, 9, n)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = first + rng.integers(0, n, indptr[-1])
    view = GraphView(
        np.array([0, first, first + n]),
        [RelationArrays(indptr, indices)],
        [None, rng.permutation(n) + 2**40],
        [7],
        [1],
        [1],
        np.array([[len(indices)]]),
    )
    return view, first + rng.integers(0, n, 9)


def check_far_ids(kernels: Kernels, first: int) -> None:
    view, seeds = far_graph(first)
    want = KHopOp(view, [[3], [3]], with_edge=True)(seeds, 1, 5)
    got = CudaKHopOp(DeviceGraph.from_view(view, kernels), [[3], [3]], with_edge=True)(to(kernels, seeds), 1, 5)
    assert_same_batch(got, want)


def check_every_way_of_picking(kernels: Kernels, degree: int, fanout: int, replace: bool) -> None:
    """One row of this degree."""
    graph = TypedGraph.random(np.random.default_rng(0))
    graph.num_nodes, graph.edges = [degree + 1], [np.stack([np.arange(degree), np.full(degree, degree)])]
    pieces = cut(graph, 1, np.random.default_rng(1))
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[fanout]], replace=replace, with_edge=True)
    cpu = KHopOp(pieces.view, [[fanout]], replace=replace, with_edge=True)
    for key in (0, 2**64 - 1):
        seeds = pieces.gid_of[0][[degree]]
        assert_same_batch(op(to(kernels, seeds), 0, key), cpu(seeds, 0, key))


def check_sample_rows(kernels: Kernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO)
    pieces = cut(graph, int(rng.choice([1, 4])), rng, (np.int32, np.int64)[rng.integers(2)])
    device_graph = DeviceGraph.from_view(pieces.view, kernels)
    options = {
        "batch_key": int(rng.integers(0, 2**64, dtype=np.uint64)),
        "hop": int(rng.integers(6)),
        "replace": bool(rng.integers(2)),
        "with_edge": bool(rng.integers(2)),
    }
    for r, destination in enumerate(graph.schema.destination_types()):
        rows = pieces.gid_of[destination][rng.integers(0, graph.num_nodes[destination], int(rng.integers(0, 90)))]
        fanout = int(rng.choice(FANOUTS))
        want = sample_rows(pieces.view, r, rows, fanout, **options)
        got = cuda_khop.sample_rows(device_graph, r, to(kernels, rows), fanout, **options)
        for mine, theirs in zip(got, want, strict=True):
            assert_same(mine, theirs)


def check_relabel(kernels: Kernels, seed: int) -> None:
    """Few different ids or many, far and near, some known before, some of those twice."""
    rng = np.random.default_rng(seed)
    offset, spread = int(rng.choice([0, 2**31 - 30, 2**32 - 70, 2**62])), int(rng.choice([1, 60, 5000]))
    ids, known = (offset + rng.integers(0, spread, int(rng.integers(0, most))) for most in (900, 40))
    unique, lids = cuda_khop.relabel(to(kernels, ids), to(kernels, known), kernels=kernels)
    for want_unique, want_lids in (
        relabel(ids, known),
        reference.relabel(torch.from_numpy(ids), torch.from_numpy(known)),
    ):
        assert unique.tolist() == want_unique.tolist()
        assert lids.tolist() == want_lids.tolist()


def check_gather(kernels: Kernels, seed: int, place: Callable[[Tensor], Tensor]) -> None:
    """Rows of any width at any address. place: puts a shard into the memory it is read from."""
    rng = np.random.default_rng(seed)
    dtype = [torch.float32, torch.float16, torch.int64, torch.int8, torch.bool, torch.float64][rng.integers(6)]
    row_shape = [(), (1,), (3,), (4,), (17,), (32,), (100,), (2, 5)][rng.integers(8)]
    start, width = int(rng.choice([0, 2**31 - 3, 2**40])), int(np.prod(row_shape, dtype=np.int64))
    shards = []
    for _ in range(rng.integers(1, 12)):
        rows, shift = int(rng.integers(0, 9)), int(rng.integers(0, 4))  # shift: not all shards begin at a round address
        values = torch.from_numpy(rng.integers(0, 100, shift + rows * width)).to(dtype)
        shards.append(place(values)[shift:].view(rows, *row_shape))
    total = sum(map(len, shards))
    rows = rng.integers(0, total, int(rng.integers(0, 300))) if total else np.empty(0, dtype=np.int64)
    got = CudaShards(shards, kernels, start=start).gather(to(kernels, rows + start))
    on_host = [s.cpu() for s in shards]
    assert torch.equal(
        got.cpu(), torch.from_numpy(Shards([s.numpy() for s in on_host], start=start).gather(rows + start))
    )
    assert torch.equal(got.cpu(), reference.gather(on_host, torch.from_numpy(rows)))


def check_neighbor_sums(kernels: Kernels, seed: int) -> None:
    """Random rows in chunks, with hubs that many threads add to at once."""
    rng = np.random.default_rng(seed)
    num_nodes, width = int(rng.integers(1, 60)), int(rng.integers(1, 9))
    mine, theirs = CudaNeighborSums(num_nodes, width, kernels), NeighborSums(num_nodes, width)
    for _ in range(int(rng.integers(0, 4))):
        first = int(rng.integers(0, num_nodes))
        degrees = rng.integers(0, int(rng.choice([2, 40, 200])), int(rng.integers(0, num_nodes - first + 1)))
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        dtype = (np.int32, np.int64)[rng.integers(2)]
        rows = NeighborRows(first, indptr, (num_nodes * rng.random(indptr[-1]) ** 3).astype(dtype), num_nodes)
        values = rng.integers(0, int(rng.choice([2, 2**40])), (len(rows), width))
        mine.add(rows, values)
        theirs.add(rows, values)
    assert np.array_equal(mine.result(), theirs.result())
