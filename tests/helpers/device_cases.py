"""What a device must do: random cases, each compared with the CPU op and the reference. `kernels` says on which device."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glt_lightning.base import DataError, DrawOptions, NativeError, PartitionError
from glt_lightning.kernels import (
    ENCODINGS,
    Among,
    Between,
    CudaKHopOp,
    CudaShards,
    DeviceExcluded,
    DeviceGraph,
    DeviceLids,
    DeviceSubgraph,
    DeviceWalks,
    EdgeTypeArrays,
    Encoding,
    GraphView,
    Kernels,
    KHopOp,
    LidEdges,
    NeighborRows,
    NeighborSums,
    RankedSet,
    Registered,
    RowsAt,
    Shards,
    Subgraph,
    Trees,
    WalkRule,
    Walks,
    relabel,
)
from glt_lightning.kernels.cuda import relabel as cuda_relabel
from glt_lightning.kernels.cuda.rows import CudaNeighborSums
from glt_lightning.kernels.cuda.sample import MODEST_ROOM, DeviceRowDraw, rooms_of
from glt_lightning.kernels.cuda.stream import raise_if
from tests.helpers.cuda_ranked_set import CudaRankedSet
from tests.helpers.graphs import HETERO, SINGLE, TypedGraph, cut, excluded_edges, random_excluded, random_seeds
from tests.helpers.rows import sample_rows
from tests.reference import ops as reference

ROOT = Path(__file__).parents[2]
WAYS = [MODEST_ROOM, 0]  # max_picks of the op: as one native call where that can be, and always hop by hop
FANOUTS = [-1, 1, 2, 3, 7, 17, 64, 65, 100]


def to(kernels: Kernels, array: np.ndarray) -> Tensor:
    return kernels.copy(np.ascontiguousarray(array))


def assert_same(got: Tensor | None, want: np.ndarray | None, name: str = "result") -> None:
    """name: of the field, which a failure says with the first index that differs."""
    assert (got is None) == (want is None), name
    if got is not None and want is not None:
        assert got.dtype == torch.int64, name
        np.testing.assert_array_equal(got.cpu().numpy(), want, name)


def assert_same_batch(got: DeviceSubgraph, want: Subgraph) -> None:
    for name in ("gid", "uid", "src", "dst", "edge_row"):
        for type_, (mine, theirs) in enumerate(zip(getattr(got, name), getattr(want, name), strict=True)):
            assert_same(mine, theirs, f"{name} of type {type_}")
    assert all(e.is_contiguous() for e in got.edge_index)
    for name in ("nodes_per_hop", "edges_per_hop"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), name)


def random_trees(seeds: Mapping[int, np.ndarray], rng: np.random.Generator) -> Trees:
    """One for each seed, or some for several seeds."""
    if rng.integers(2):
        return Trees().for_seeds(seeds)
    num_trees = int(rng.integers(1, 9))
    return Trees({t: rng.integers(0, num_trees, len(gids)).astype(np.int32) for t, gids in seeds.items()})


def with_times(view: GraphView, rng: np.random.Generator) -> GraphView:
    """The same with times of some edge types, which ascend in each row; ties are many."""
    arrays: list[EdgeTypeArrays | None] = []
    timed = rng.integers(0, 3, view.num_edge_types) > 0
    for r, each in enumerate(view._keep[0]):
        if each is not None and timed[r // view.num_parts]:
            row = np.repeat(np.arange(len(each.indptr) - 1), np.diff(each.indptr))
            times = rng.integers(-9, 9, len(row))
            each = replace(each, times=times[np.lexsort((times, row))])
        arrays.append(each)
    counts = np.diff(view.edge_bounds, axis=1)
    keys, ends = view.keys.tolist(), (view.src_types.tolist(), view.dst_types.tolist())
    return GraphView(view.bounds, arrays, view._keep[1], keys, *ends, counts, view.labor)


def check_windows(kernels: Kernels, seed: int) -> None:
    """Batches of trees that see a window of time each, of any strategy, with and without excluded edges and weights."""
    rng = np.random.default_rng(seed)
    edge_types = (SINGLE, HETERO)[rng.integers(2)]
    graph = TypedGraph.random(rng, edge_types)
    last = bool(rng.integers(2))
    if rng.integers(2) and not last:
        graph.weigh(rng)
    graph.labor = seed % 3 == 0 and not last
    pieces = cut(graph, int(rng.choice([1, 2, 5])), rng, (np.int32, np.int64)[rng.integers(2)])
    view = with_times(pieces.view, rng)
    fanouts = rng.choice([0, *FANOUTS], (int(rng.integers(1, 4)), len(edge_types))).tolist()
    gids = {t: pieces.gid_of[t][ids] for t, ids in random_seeds(graph, rng).items()}
    trees = Trees().for_seeds(gids)
    until, since = (rng.integers(-10, 11, trees.num_trees) for _ in range(2))
    bounds = ((until, None), (None, since), (until, until - rng.integers(0, 6, len(until))))[rng.integers(3)]
    trees = replace(trees, until=bounds[0], since=bounds[1])
    excluded = random_excluded(graph, rng) if rng.integers(2) else {}
    gone = excluded_edges(graph, excluded, pieces.gid_of).find(view)
    draw = DrawOptions(
        replace=bool(rng.integers(2)) and not last and not graph.labor,
        with_edge=bool(rng.integers(2)),
        timed=True,
        last=last,
    )
    key = int(rng.integers(0, 2**64, dtype=np.uint64))
    want = KHopOp(view, fanouts, draw, disjoint=True)(gids, key, gone, trees)
    away = DeviceExcluded(gone, len(edge_types), kernels) if excluded else None
    op = CudaKHopOp(DeviceGraph.from_view(view, kernels), fanouts, draw)
    assert_same_batch(op({t: to(kernels, ids) for t, ids in gids.items()}, key, away, trees), want)


def check_khop(kernels: Kernels, seed: int) -> None:
    """A whole batch of a random graph, cut at random, with random options."""
    rng = np.random.default_rng(seed)
    edge_types = (SINGLE, HETERO)[rng.integers(2)]
    graph = TypedGraph.random(rng, edge_types)
    if rng.integers(2):
        graph.weigh(rng)
    graph.labor = seed % 3 == 0
    pieces = cut(graph, int(rng.choice([1, 2, 5])), rng, (np.int32, np.int64)[rng.integers(2)])
    bounded = FANOUTS[1:] if rng.integers(2) else FANOUTS  # without -1
    fanouts = rng.choice([0, *bounded], (int(rng.integers(0, 4)), len(edge_types))).tolist()
    seeds = random_seeds(graph, rng)
    replace, with_edge = bool(rng.integers(2)) and not graph.labor, bool(rng.integers(2))
    key = int(rng.integers(0, 2**64, dtype=np.uint64))
    gids = {t: pieces.gid_of[t][ids] for t, ids in seeds.items()}
    excluded = random_excluded(graph, rng) if rng.integers(2) else {}
    gone = excluded_edges(graph, excluded, pieces.gid_of).find(pieces.view)
    draw = DrawOptions(replace=replace, with_edge=with_edge)
    want = KHopOp(pieces.view, fanouts, draw)(gids, key, gone)
    device_graph = DeviceGraph.from_view(pieces.view, kernels)
    away = DeviceExcluded(gone, len(edge_types), kernels) if excluded else None
    for max_picks in WAYS:
        op = CudaKHopOp(device_graph, fanouts, draw, max_picks=max_picks)
        got = op({t: to(kernels, ids) for t, ids in gids.items()}, key, away)
        assert_same_batch(got, want)
    trees = random_trees(gids, rng)
    in_trees = KHopOp(pieces.view, fanouts, draw, disjoint=True)(gids, key, gone, trees)
    found = op({t: to(kernels, ids) for t, ids in gids.items()}, key, away, trees)
    assert_same_batch(found, in_trees)
    assert found.tree is not None
    for mine, theirs in zip(found.tree, in_trees.tree, strict=True):
        assert mine.tolist() == theirs.tolist()
    oracle = reference.khop(
        graph.reference(),
        len(graph.num_nodes),
        {t: torch.from_numpy(ids) for t, ids in seeds.items()},
        fanouts,
        batch_key=key,
        replace=replace,
        excluded=excluded,
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
    device_graph = DeviceGraph.from_view(pieces.view, kernels)
    cpu = KHopOp(pieces.view, fanouts, DrawOptions(replace=replace, with_edge=True))
    for key, max_picks in enumerate(WAYS):
        op = CudaKHopOp(device_graph, fanouts, DrawOptions(replace=replace, with_edge=True), max_picks=max_picks)
        seeds = pieces.gid_of[0][rng.integers(0, n, 500)]
        assert_same_batch(op({0: to(kernels, seeds)}, key), cpu({0: seeds}, key))


def far_graph(first: int, n: int) -> GraphView:
    """A graph whose n nodes have the gids first .. first + n - 1: before them lies a type that is not here."""
    rng = np.random.default_rng(first % 1000)
    degrees = rng.integers(0, 9, n)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = first + rng.integers(0, n, indptr[-1])
    return GraphView(
        np.array([0, first, first + n]),
        [EdgeTypeArrays(indptr, indices)],
        [None, rng.permutation(n) + 2**40],
        [7],
        [1],
        [1],
        np.array([[len(indices)]]),
    )


def check_far_ids(kernels: Kernels, first: int, *, n: int = 50, num_seeds: int = 9) -> None:
    """Most of the graph's nodes are not here, so the lids are looked up in a hash table."""
    view = far_graph(first, n)
    device_graph, cpu = DeviceGraph.from_view(view, kernels), KHopOp(view, [[3], [3]], DrawOptions(with_edge=True))
    for key, max_picks in enumerate(WAYS):
        seeds = first + np.random.default_rng(key).integers(0, n, num_seeds)
        op = CudaKHopOp(device_graph, [[3], [3]], DrawOptions(with_edge=True), max_picks=max_picks)
        assert_same_batch(op({1: to(kernels, seeds)}, key), cpu({1: seeds}, key))


def check_every_way_of_picking(kernels: Kernels, degree: int, fanout: int, replace: bool) -> None:
    """One row of this degree, whole and without a third of its entries, also by LABOR."""
    for labor in (False,) if replace else (False, True):
        _check_picks(kernels, degree, fanout, replace, labor)


def _check_picks(kernels: Kernels, degree: int, fanout: int, replace: bool, labor: bool) -> None:
    graph = TypedGraph.random(np.random.default_rng(0))
    graph.num_nodes, graph.edges = [degree + 1], [np.stack([np.arange(degree), np.full(degree, degree)])]
    graph.labor = labor
    pieces = cut(graph, 1, np.random.default_rng(1))
    device_graph = DeviceGraph.from_view(pieces.view, kernels)
    cpu = KHopOp(pieces.view, [[fanout]], DrawOptions(replace=replace, with_edge=True))
    for key, max_picks in zip((0, 2**64 - 1), WAYS, strict=True):
        op = CudaKHopOp(device_graph, [[fanout]], DrawOptions(replace=replace, with_edge=True), max_picks=max_picks)
        seeds = pieces.gid_of[0][[degree]]
        assert_same_batch(op({0: to(kernels, seeds)}, key), cpu({0: seeds}, key))
        some = np.random.default_rng(2).permutation(degree)[: degree // 3].tolist()
        gone = excluded_edges(graph, {0: {(degree, src) for src in some}}, pieces.gid_of).find(pieces.view)
        away = DeviceExcluded(gone, 1, kernels)
        assert_same_batch(op({0: to(kernels, seeds)}, key, away), cpu({0: seeds}, key, gone))


def sample_rows_on(
    graph: DeviceGraph, edge_type: int, gids: Tensor, fanout: int, *, batch_key: int, hop: int, **draw
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`sample_rows` on a device: gids int64 [F] there, and so are the results."""
    kernels = graph.kernels
    gids = kernels.require_ids(gids, "gids")
    error, uids, count = kernels.new_error(), kernels.empty(len(gids)), kernels.zeros(1).fill_(len(gids))
    kernels.run("glt_cuda_user_ids", graph.address, graph.dst_types[edge_type], gids, 0, len(gids), count, uids, error)
    rows = DeviceRowDraw(graph, edge_type, fanout, DrawOptions(**draw), gids, uids, error)
    (room,) = rooms_of([rows])
    neighbors, _, edge_rows = rows.pick(room, batch_key, hop)
    *values, total = Kernels.read(error, rows.total)
    raise_if(values, "sample")
    return rows.counts, neighbors[:total], None if edge_rows is None else edge_rows[:total]


def check_sample_rows(kernels: Kernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO).weigh(rng)
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
        got = sample_rows_on(device_graph, r, to(kernels, rows), fanout, **options)
        for mine, theirs in zip(got, want, strict=True):
            assert_same(mine, theirs)


def check_relabel(kernels: Kernels, seed: int) -> None:
    """Few different ids or many, far and near, some known before, some of those twice."""
    rng = np.random.default_rng(seed)
    offset, spread = int(rng.choice([0, 2**31 - 30, 2**32 - 70, 2**62])), int(rng.choice([1, 60, 5000]))
    ids, known = (offset + rng.integers(0, spread, int(rng.integers(0, most))) for most in (900, 40))
    unique, lids = cuda_relabel.relabel(to(kernels, ids), to(kernels, known), kernels=kernels)
    for want_unique, want_lids in (
        relabel(ids, known),
        reference.relabel(torch.from_numpy(ids), torch.from_numpy(known)),
    ):
        assert unique.tolist() == want_unique.tolist()
        assert lids.tolist() == want_lids.tolist()


Place = Callable[[Tensor], Tensor | RowsAt]  # puts values [n] into the memory that they are read from


def registered_place(kernels: Kernels, close: Callable[[Registered], object]) -> Place:
    """Into pages of the host that are registered one shard at a time. close: is told whom to close."""

    def place(values: Tensor) -> RowsAt:
        pages = -(-max(1, values.nbytes) // mmap.PAGESIZE)
        memory = np.frombuffer(mmap.mmap(-1, pages * mmap.PAGESIZE), dtype=np.uint8)
        memory[: values.nbytes].view(values.numpy().dtype)[:] = values.numpy()
        registered = Registered(kernels, memory)
        close(registered)
        address = registered.address_of(memory)
        return RowsAt(address=address, rows=len(values), dtype=values.dtype, row_shape=(), keep=memory)

    return place


def laid(
    place: Place, values: Tensor, rng: np.random.Generator, rows: int, row_shape: tuple[int, ...]
) -> Tensor | RowsAt:
    """Rows of values, some values behind the beginning of their memory, in half of the cases with others between them."""
    width, size = int(np.prod(row_shape, dtype=np.int64)), values.dtype.itemsize
    shift, padding = int(rng.integers(0, 4)), int(rng.choice([0, 0, 1, 28]))
    memory = torch.full((shift + rows * (width + padding),), 99, dtype=values.dtype)
    memory[shift:].view(rows, width + padding)[:, :width] = values.view(rows, width)
    placed = place(memory)
    if isinstance(placed, Tensor):
        if not padding:
            return placed[shift:].view(rows, *row_shape)
        placed = RowsAt(address=placed.data_ptr(), rows=0, dtype=placed.dtype, row_shape=(), keep=placed)
    stride = (width + padding) * size if padding else None
    return replace(placed, address=placed.address + shift * size, rows=rows, row_shape=row_shape, stride=stride)


def room_for(kernels: Kernels, array: CudaShards, n: int, rng: np.random.Generator) -> Tensor | None:
    """Memory to gather into, at any address; None: the op's own."""
    shift = int(rng.integers(0, 5))
    if shift == 4:
        return None
    values = n * int(np.prod(array.row_shape, dtype=np.int64))
    return kernels.empty(shift + values, dtype=array.dtype)[shift:].view(n, *array.row_shape)


def check_gather(kernels: Kernels, seed: int, place: Place) -> None:
    """Rows of any width at any address and any distance."""
    rng = np.random.default_rng(seed)
    dtype = [torch.float32, torch.float16, torch.int64, torch.int8, torch.bool, torch.float64][rng.integers(6)]
    row_shape = [(), (1,), (3,), (4,), (17,), (32,), (100,), (2, 5), (260,)][rng.integers(9)]
    start, shards, on_host = int(rng.choice([0, 2**31 - 3, 2**40])), [], []
    for _ in range(rng.integers(1, 12)):
        rows = int(rng.integers(0, 9))
        values = torch.from_numpy(rng.integers(0, 100, (rows, *row_shape))).to(dtype)
        shards.append(laid(place, values, rng, rows, row_shape))
        on_host.append(values)
    total = sum(map(len, on_host))
    rows = rng.integers(0, total, int(rng.integers(0, 300))) if total else np.empty(0, dtype=np.int64)
    array = CudaShards(shards, kernels, start=start)
    assert (array.dtype, array.row_shape, len(array)) == (dtype, row_shape, total)
    got = array.gather(to(kernels, rows + start), room_for(kernels, array, len(rows), rng))
    assert torch.equal(
        got.cpu(), torch.from_numpy(Shards([s.numpy() for s in on_host], start=start).gather(rows + start))
    )
    assert torch.equal(got.cpu(), reference.gather(on_host, torch.from_numpy(rows)))


def any_stored(rng: np.random.Generator, encoding: Encoding, rows: int, row_shape: tuple[int, ...]) -> np.ndarray:
    """Stored rows with bits of all kinds: NaN, infinity and numbers below the normal ones are among the halves."""
    shape = (rows, *encoding.stored_shape(row_shape))
    stored = rng.integers(0, 256, (*shape, encoding.dtype.itemsize), dtype=np.uint8).view(encoding.dtype).reshape(shape)
    if encoding.head and rows:
        scales = np.array([0, 1e-45, 1e-39, 0.1, 1, 3.7, 2e36], dtype=np.float32)[rng.integers(0, 7, (rows, 1))]
        stored[:, : encoding.head] = scales.view(np.uint8)
    return stored


def check_gather_decode(kernels: Kernels, seed: int, name: str, place: Place) -> None:
    """Rows of any width at any address that a value of it may have, bit for bit."""
    rng, encoding = np.random.default_rng(seed), ENCODINGS[name]
    shapes = [(int(rng.integers(0, 71)),), (4 * int(rng.integers(0, 40)),), (), (2, 5), (3, 4)]
    row_shape = shapes[rng.integers(2 if encoding.head else 5)]
    start = int(rng.choice([0, 2**31 - 3, 2**40]))
    shards, on_host = [], []
    for _ in range(rng.integers(1, 12)):
        stored = any_stored(rng, encoding, int(rng.integers(0, 9)), row_shape)
        carried = torch.from_numpy(stored.view(np.int16) if name == "bfloat16" else stored)
        shards.append(laid(place, carried, rng, len(stored), stored.shape[1:]))
        on_host.append(stored)
    total = sum(map(len, on_host))
    rows = rng.integers(0, total, int(rng.integers(0, 300))) if total else np.empty(0, dtype=np.int64)
    array, cpu = (
        CudaShards(shards, kernels, start=start, encoding=encoding),
        Shards(on_host, start=start, encoding=encoding),
    )
    assert (array.dtype, array.row_shape, array.row_bytes) == (torch.float32, row_shape, cpu.row_bytes)
    got = array.gather(to(kernels, rows + start), room_for(kernels, array, len(rows), rng))
    want = cpu.gather(rows + start)
    assert np.array_equal(got.cpu().numpy().view(np.uint32), want.view(np.uint32))
    raw = array.raw.gather(to(kernels, rows + start))
    assert raw.dtype == array.stored_dtype
    assert np.array_equal(raw.cpu().numpy().view(np.uint8), cpu.raw.gather(rows + start).view(np.uint8))


def check_rank_find(kernels: Kernels, seed: int) -> None:
    """Sets of any density; ids inside and outside the range."""
    rng = np.random.default_rng(seed)
    first, num_ids = int(rng.choice([0, -5, 2**31 - 3, 2**40])), int(rng.choice([1, 191, 192, 193, 3000]))
    members = first + np.flatnonzero(rng.random(num_ids) < rng.choice([0, 0.01, 0.5, 1]))
    words = np.empty(RankedSet.words_for(num_ids), dtype=np.uint64)
    cpu = RankedSet.build(members, first, num_ids, words)
    ids = rng.integers(first - 100, first + num_ids + 100, int(rng.integers(0, 2000)))
    on_device = kernels.copy(words)
    for where in (on_device, on_device.data_ptr()):
        got = CudaRankedSet(where, first, num_ids, kernels).find(to(kernels, ids))
        assert got.dtype == torch.int32
        assert got.tolist() == cpu.find(ids).tolist()


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


def check_induce(kernels: Kernels, seed: int) -> None:
    """The edges among nodes, of trees or not, with and without weights; a hub's row is read in several pieces."""
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, (SINGLE, HETERO)[seed % 2], most=int(rng.choice([5, 40, 300])))
    for edges in graph.edges:
        edges[1] = np.where(rng.random(edges.shape[1]) < rng.choice([0, 0.3]), 0, edges[1])
    if rng.integers(2):
        graph.weigh(rng)
    pieces = cut(graph, int(rng.choice([1, 2, 5])), rng, (np.int32, np.int64)[rng.integers(2)])
    device_graph, asked, want = DeviceGraph.from_view(pieces.view, kernels), [], []
    num_trees = int(rng.choice([0, 1, 3]))
    for r, (source, destination) in enumerate(zip(device_graph.src_types, device_graph.dst_types, strict=True)):
        rows = pieces.gid_of[destination][
            rng.integers(0, graph.num_nodes[destination], int(rng.choice([0, 1, 33, 300])))
        ]
        kept = np.sort(pieces.gid_of[source][rng.random(graph.num_nodes[source]) < rng.choice([0, 0.3, 1])])
        among = Among.of(pieces.view, r, rows, kept, None).find(pieces.view)
        row_of, tree = np.repeat(np.arange(len(rows)), among.counts), rng.integers(0, max(1, num_trees), len(rows))
        tree_of = rng.integers(0, max(1, num_trees), len(kept))  # a node is in one tree
        mine = tree_of[among.neighbors] == tree[row_of]
        want.append((among.neighbors[mine], row_of[mine], among.edge_rows[mine]))
        many, bases = device_graph.num_nodes, None if num_trees == 0 else to(kernels, tree * device_graph.num_nodes)
        known = DeviceLids.of([to(kernels, kept + tree_of * many)], kernels, kernels.new_error())
        asked.append(Between(device_graph, r, to(kernels, rows), known, bases))
    for got, (src, row, edge_rows) in zip(LidEdges.between(asked), want, strict=True):
        assert_same(got.ends, np.stack([src, row]).astype(np.int64), "ends")
        assert_same(got.edge_row, edge_rows, "edge_row")


def check_induce_refuses(kernels: Kernels) -> None:
    arrays = EdgeTypeArrays(np.array([0, 40, 41, 41]), np.zeros(41, np.int32))
    view = GraphView(np.array([0, 3]), [arrays], [np.arange(3, dtype=np.int32)], [7], [0], [0], np.array([[41]]))
    known = DeviceLids.of([to(kernels, np.arange(3))], kernels, kernels.new_error())

    def ask(rows: list[int], limit: int | None) -> int:
        between = Between(DeviceGraph.from_view(view, kernels), 0, to(kernels, np.array(rows)), known, limit=limit)
        return len(LidEdges.between([between])[0].edge_row)

    assert ask([1, 0], 40) == 41
    with pytest.raises(DataError, match=r"induced_limit: node 0 .* has 40 edges of edge type 0, more than 39. Raise"):
        ask([1, 0], 39)
    with pytest.raises(DataError, match="id 3 at position 1 is not in the graph"):
        ask([1, 3], None)
    with pytest.raises(DataError, match="no room"):
        LidEdges.between(
            [Between(DeviceGraph.from_view(view, kernels), 0, to(kernels, np.arange(3)), known)], require_room=_refuse
        )
    arrays.indptr[2] = 99
    with pytest.raises(PartitionError, match="edge type 0 node 1 points to 40:99, outside its array"):
        ask([1], None)


def _refuse(nbytes: int) -> None:
    raise DataError(f"no room for {nbytes} bytes")


def check_walks(kernels: Kernels, seed: int) -> None:
    """Walks of any rule, by weight or not, through parts of which some are elsewhere; and what they visit most."""
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, (SINGLE, HETERO)[seed % 2])
    if rng.integers(2):
        graph.weigh(rng)
    pieces = cut(graph, int(rng.choice([1, 2, 5])), rng, (np.int32, np.int64)[rng.integers(2)])
    view = without_some_parts(pieces.view, rng)
    paths = [(0, 1), (1, 0), (2,), (2, 2, 0, 1)] if seed % 2 else [(0,), (0, 0)]
    path, restart = paths[rng.integers(len(paths))], WalkRule.threshold(float(rng.choice([0, 0.4, 1])))
    rule = WalkRule(edge_types=path, length=int(rng.integers(1, 9)), restart=restart, ends=bool(rng.integers(2)))
    node_type, walks, key = int(view.dst_types[path[0]]), int(rng.integers(1, 7)), int(rng.integers(2**63))
    uids = rng.integers(0, graph.num_nodes[node_type], int(rng.choice([0, 1, 33, 90])))
    gids, trees = pieces.gid_of[node_type][uids], (rng.integers(0, 9, len(uids)).astype(np.int32), None)[seed // 2 % 2]
    want = Walks.begin(rule, gids, uids, walks, key, trees)
    tree_of = None if trees is None else to(kernels, trees)
    got = DeviceWalks.begin(rule, to(kernels, gids), to(kernels, uids), walks, key, tree_of, kernels)
    error = kernels.new_error()
    gone = excluded_edges(graph, random_excluded(graph, rng), pieces.gid_of).find(pieces.view) if seed % 3 else {}
    away = DeviceExcluded(gone, view.num_edge_types, kernels) if gone else None
    for stage in (view, pieces.view):  # the second time they end
        got.advance(DeviceGraph.from_view(stage, kernels), error, away)
        want.advance(stage, excluded=gone)
        raise_if(error.tolist(), "walk")
        for name in ("at", "step", "trace", "streams"):
            mine, theirs = getattr(got, name).cpu().numpy(), getattr(want, name)
            np.testing.assert_array_equal(mine.view(theirs.dtype), theirs, name)
        left = np.flatnonzero(want.step < rule.length)
        assert got.under_way().tolist() == left.tolist()
    for every, most, roots in ((1, -1, None), (len(path), 2, gids), (1, 1, gids), (1, 4, None)):
        if rule.length < every:
            continue
        picks = want.visits(walks, every, most, roots)
        own = None if roots is None else to(kernels, roots)
        found = got.visits(walks, every, most, own).piece(None)
        total = int(found.begins[-1])
        assert_same(found.counts, picks.counts, "counts")
        assert_same(found.neighbors[:total], picks.neighbors, "nodes")
        assert_same(found.edges[:total], picks.edge_rows, "visits")
        assert_same(found.row[:total], np.repeat(np.arange(len(gids)), picks.counts), "rows")


def without_some_parts(view: GraphView, rng: np.random.Generator) -> GraphView:
    """The same of which other processes have some parts."""
    here = rng.random(view.num_parts) < rng.choice([0.3, 1])
    arrays = [each if here[k % view.num_parts] else None for k, each in enumerate(view._keep[0])]
    counts = np.diff(view.edge_bounds, axis=1)
    ends = view.src_types.tolist(), view.dst_types.tolist()
    return GraphView(view.bounds, arrays, view._keep[1], view.keys.tolist(), *ends, counts)


def check_walks_refuse(kernels: Kernels) -> None:
    """Of several faults any one is said, and the other walks go on."""
    arrays = EdgeTypeArrays(np.array([0, 2, 3, 4]), np.array([1, 1, 7, 0], np.int32))
    view = GraphView(np.array([0, 3]), [arrays], [np.arange(3, dtype=np.int32)], [7], [0], [0], np.array([[4]]))

    def ask(roots: list[int], edge_types: tuple[int, ...] = (0,)) -> list[list[int]]:
        rule, at = WalkRule(edge_types=edge_types, length=2), to(kernels, np.array(roots))
        walks, error = DeviceWalks.begin(rule, at, at, 1, 5, None, kernels), kernels.new_error()
        walks.advance(DeviceGraph.from_view(view, kernels), error)
        said.append(error.tolist())
        raise_if(said[-1], "walk")
        return walks.trace.tolist()

    said: list[list[int]] = []
    with pytest.raises(PartitionError, match="names neighbour 7, which is no node"):
        ask([2, 0, 1])
    with pytest.raises(DataError, match="id 3 at position 1 is not in the graph"):
        ask([2, 3])
    with pytest.raises(NativeError, match="walk"):
        ask([2], (0, 1))
    arrays.indptr[3] = 99
    with pytest.raises(PartitionError, match="edge type 0 node 2 points to 3:99, outside its array"):
        ask([2])
    arrays.indptr[3], arrays.indices[2] = 4, 2
    assert ask([2, 1]) == [[0, 1], [2, 0]]
    assert [each[0] for each in said] == [3, 2, 4, 3, 0]
