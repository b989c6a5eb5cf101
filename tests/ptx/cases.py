"""What runs on the emulated device: the cases of every device (`helpers.device_cases`), and numbers of items around the
borders of lanes, warps, blocks and tiles. A case is a function of the device's kernels and a seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from glt_lightning.base import DrawOptions
from glt_lightning.kernels import (
    ENCODINGS,
    CudaKHopOp,
    CudaShards,
    DeviceGraph,
    EdgeTypeArrays,
    GraphView,
    KHopOp,
    RankedSet,
    relabel,
)
from glt_lightning.kernels.cuda.relabel import relabel as device_relabel
from tests.helpers import aggregate_cases, device_cases as cases, subgraph_cases
from tests.helpers.cuda_ranked_set import CudaRankedSet
from tests.helpers.graphs import SINGLE, TypedGraph, cut
from tests.ptx.device import PtxKernels

BORDERS = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025]
WIDTHS = [1, 2, 3, 4, 8, 12, 15, 16, 17, 20, 31, 32, 33, 64, 100, 127, 128, 129, 144, 200, 400]
WIDTHS += [512, 528, 1000, 1024, 1028, 1040, 1537, 2064]
_FAR = 100_000  # nodes of another type, before those that are here
FANOUTS = [0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 90]


def khop(kernels: PtxKernels, seed: int) -> None:
    """Every kernel of a batch: both widths of ids, both tables, each number of lanes; around the borders of a warp."""
    rng = np.random.default_rng(seed)
    dtype, hashed = ((np.int32, np.int64)[seed % 2], seed // 2 % 2)
    fanouts = [int(rng.choice(some)) for some in ((1, 3, 8), (9, 16), (17, 32, 33, 64, 65, 90))]
    fanout = fanouts[seed // 4 % 3]
    n = int(rng.integers(90, 200))
    if hashed:  # most of the nodes are those of a type that is not here
        view, seed_type = _far_view(rng, n, dtype), 1
        gids = _FAR + rng.integers(0, n, 20)
    else:
        graph = TypedGraph.random(rng, SINGLE)
        graph.num_nodes, graph.edges = [n], [(rng.random((2, 30 * n)) ** 2 * n).astype(np.int64)]
        pieces = cut(graph, int(rng.choice([1, 3, 9])), rng, dtype)
        view, seed_type, gids = pieces.view, 0, pieces.gid_of[0][rng.integers(0, n, int(rng.choice(BORDERS[:14])))]
    options = {"replace": bool(rng.integers(2)), "with_edge": bool(rng.integers(2))}
    want = KHopOp(view, [[fanout], [2]], DrawOptions(**options))({seed_type: gids}, seed)
    device_graph = DeviceGraph.from_view(view, kernels)
    for max_picks in cases.WAYS:
        op = CudaKHopOp(device_graph, [[fanout], [2]], DrawOptions(**options), max_picks=max_picks)
        cases.assert_same_batch(op({seed_type: cases.to(kernels, gids)}, seed), want)


def _far_view(rng: np.random.Generator, n: int, dtype: type) -> GraphView:
    degrees = rng.integers(0, 120, n)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = (_FAR + rng.integers(0, n, indptr[-1])).astype(dtype)
    edges = np.array([[len(indices)]])
    user_ids = [None, rng.permutation(n).astype(dtype)]
    return GraphView(np.array([0, _FAR, _FAR + n]), [EdgeTypeArrays(indptr, indices)], user_ids, [7], [1], [1], edges)


def gather(kernels: PtxKernels, seed: int) -> None:
    """Bytes of any width from and to any address, in 1 to 20 shards."""
    rng = np.random.default_rng(seed)
    n, width = int(rng.choice(BORDERS)), WIDTHS[seed % len(WIDTHS)]
    rows = [1, *rng.integers(0, 200, int(rng.choice([0, 1, 7, 8, 19])))]
    arrays = [rng.integers(0, 256, (int(r), width), dtype=np.uint8) for r in rows]
    shards = []
    for array in arrays:
        shift = int(rng.choice([0, 0, 1, 2, 4, 8]))
        memory = kernels.empty(shift + array.size, dtype=torch.uint8)[shift:].view(array.shape)
        shards.append(memory.copy_(torch.from_numpy(array)))
    ids = rng.integers(0, sum(rows), n)
    shift = int(rng.choice([0, 0, 1, 2, 4, 8]))
    out = kernels.empty(shift + n * width, dtype=torch.uint8)[shift:].view(n, width)
    array = CudaShards(shards, kernels)
    array.gather(cases.to(kernels, ids), out)
    array.check()
    assert np.array_equal(out.numpy(), np.concatenate(arrays)[ids])


def rows(kernels: PtxKernels, seed: int) -> None:
    cases.check_gather(kernels, seed, place=torch.clone)


def decode(kernels: PtxKernels, seed: int) -> None:
    for name in sorted(ENCODINGS):
        cases.check_gather_decode(kernels, seed, name, place=torch.clone)


def registered(kernels: PtxKernels, seed: int) -> None:
    with ExitStack() as stack:
        place = cases.registered_place(kernels, stack.push)
        cases.check_gather(kernels, seed, place)
        cases.check_gather_decode(kernels, seed, "float16", place)


def random_relabel(kernels: PtxKernels, seed: int) -> None:
    cases.check_relabel(kernels, seed)


def relabel_at_borders(kernels: PtxKernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, span = BORDERS[seed % len(BORDERS)], int(rng.choice([1, 5, 100, 10_000, 2**40]))
    ids = rng.integers(0, span, n)
    known = np.unique(rng.integers(0, span, 1 + int(rng.choice(BORDERS[:12]))))
    want_unique, want_lids = relabel(ids, known)
    unique, lids = device_relabel(cases.to(kernels, ids), cases.to(kernels, known), kernels=kernels)
    assert unique.tolist() == want_unique.tolist()
    assert lids.tolist() == want_lids.tolist()


def rank(kernels: PtxKernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, num_ids = int(rng.choice([0, 7, 2**33])), int(rng.choice([1, 63, 64, 65, 191, 192, 193, 5000]))
    members = np.unique(rng.integers(first, first + num_ids, int(rng.integers(0, num_ids + 1))))
    ids = rng.integers(first - 5, first + num_ids + 5, BORDERS[seed % len(BORDERS)])
    words = np.empty(RankedSet.words_for(num_ids), dtype=np.uint64)
    want = RankedSet.build(members, first, num_ids, words).find(ids)
    got = CudaRankedSet(kernels.copy(words), first, num_ids, kernels).find(cases.to(kernels, ids))
    assert got.tolist() == want.tolist()


def sums(kernels: PtxKernels, seed: int) -> None:
    cases.check_neighbor_sums(kernels, seed)


def sample(kernels: PtxKernels, seed: int) -> None:
    cases.check_sample_rows(kernels, seed)


def random_khop(kernels: PtxKernels, seed: int) -> None:
    cases.check_khop(kernels, seed)


def windows(kernels: PtxKernels, seed: int) -> None:
    cases.check_windows(kernels, seed)


def induce(kernels: PtxKernels, seed: int) -> None:
    cases.check_induce(kernels, seed)
    if seed % 8 == 0:
        cases.check_induce_refuses(kernels)


def subgraphs(kernels: PtxKernels, seed: int) -> None:
    """Induced edges, and those of the other direction, of whole batches; some rows are those of owners."""
    with TemporaryDirectory() as folder:
        subgraph_cases.check_further_edges(kernels, Path(folder), seed + seed // 2)
    subgraph_cases.check_far_further_edges(kernels, (2**31 - 25, 2**32 - 25, 2**40)[seed % 3])


def walks(kernels: PtxKernels, seed: int) -> None:
    cases.check_walks(kernels, seed)
    if seed % 8 == 0:
        cases.check_walks_refuse(kernels)


def picks(kernels: PtxKernels, seed: int) -> None:
    """One row, around the borders of lanes and of shared memory."""
    rng = np.random.default_rng(seed)
    fanout = FANOUTS[seed % len(FANOUTS)]
    degree = max(0, fanout + int(rng.choice([-1, 0, 1, 2, 40, 300])))
    cases.check_every_way_of_picking(kernels, degree, fanout, bool(rng.integers(2)))


def aggregate(kernels: PtxKernels, seed: int) -> None:
    aggregate_cases.check_aggregate(kernels, seed)


def aggregate_special(kernels: PtxKernels, seed: int) -> None:
    aggregate_cases.check_nan_and_no_values(kernels, aggregate_cases.DTYPES[seed % 3])
    aggregate_cases.check_refused(kernels, seed)


def scan(kernels: PtxKernels, seed: int) -> None:
    """Up to more tiles than a warp looks back at, with fewer items than the launch was for."""
    rng = np.random.default_rng(seed)
    n = [*BORDERS, 2047, 2049, 4096, 5000, 36 * 1024 + 5][seed % 29]
    bound = n + int(rng.choice([0, 0, 1, 1024, 5000]))
    values = rng.integers(0, 2**21, n).astype(np.uint32)
    on_device = kernels.empty(n, dtype=torch.int32).copy_(torch.from_numpy(values.view(np.int32)))
    before, calls, total = kernels.empty(n), kernels.zeros(3), kernels.empty(1)
    kernels.scan(bound, n, on_device, before, calls, total, kernels.zeros(2 + bound // 1024))
    sums_of = np.cumsum(values, dtype=np.int64)
    assert calls.tolist() == [n, n, 1]  # of value, place and finish
    assert before.tolist() == (sums_of - values).tolist()
    assert total.tolist() == [sums_of[-1] if n else 0]


def ready(kernels: PtxKernels, seed: int) -> None:
    kernels.require_built_for_device()


# How many seeds of each: enough that every kernel runs with every kind of schedule (`test_kernels.py`).
CASES: dict[str, tuple[Callable[[PtxKernels, int], None], int]] = {
    "ready": (ready, 1),
    "khop": (khop, 96),
    "random_khop": (random_khop, 24),
    "windows": (windows, 24),
    "induce": (induce, 24),
    "subgraphs": (subgraphs, 8),
    "walks": (walks, 48),
    "picks": (picks, 32),
    "sample": (sample, 24),
    "gather": (gather, 100),
    "rows": (rows, 24),
    "registered": (registered, 8),
    "decode": (decode, 24),
    "relabel": (relabel_at_borders, 48),
    "random_relabel": (random_relabel, 24),
    "rank": (rank, 48),
    "sums": (sums, 24),
    "scan": (scan, 58),
    "aggregate": (aggregate, 72),
    "aggregate_special": (aggregate_special, 24),
}
