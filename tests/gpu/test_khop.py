"""Whole batches on a CUDA device equal those of the CPU and the reference."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, DrawOptions, PartitionError
from glt_lightning.kernels import CudaKHopOp, DeviceGraph, DeviceSubgraph, KHopOp
from glt_lightning.kernels.cuda import stream as cuda_stream
from tests.helpers import device_cases as cases
from tests.helpers.graphs import TypedGraph, cut

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(kernels, seed):
    cases.check_khop(kernels, seed)


@pytest.mark.parametrize("seed", range(80))
def test_windows_of_time(kernels, seed):
    cases.check_windows(kernels, seed)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[[5], [4], [3]], [[-1], [3]], [[70], [2]]])
def test_larger_batches(kernels, fanouts, replace):
    cases.check_larger_khop(kernels, replace, fanouts)


@pytest.mark.parametrize("first", [2**31 - 25, 2**31, 2**32 - 25, 2**40])
def test_far_ids(kernels, first):
    cases.check_far_ids(kernels, first)


def test_a_side_stream_serves_as_well(kernels):
    rng = np.random.default_rng(2)
    pieces = cut(TypedGraph.random(rng), 2, rng)
    op, cpu = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[3], [3]]), KHopOp(pieces.view, [[3], [3]])
    seeds = pieces.gid_of[0][:4]
    on_device = cases.to(kernels, seeds)
    stream = torch.cuda.Stream(kernels.device)
    stream.wait_stream(torch.cuda.current_stream(kernels.device))
    with torch.cuda.stream(stream):
        kept = [op({0: on_device}, key) for key in range(20)]
    stream.synchronize()
    for key, batch in enumerate(kept):
        cases.assert_same_batch(batch, cpu({0: seeds}, key))


def test_the_host_waits_once_a_batch(kernels, monkeypatch):
    """torch raises at every wait that it makes, our kernels make none, and an event is waited for in one place."""
    rng = np.random.default_rng(9)
    pieces = cut(TypedGraph.random(rng), 2, rng)
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[3], [3]], DrawOptions(with_edge=True))
    seeds = cases.to(kernels, pieces.gid_of[0][:4])
    op({0: seeds}, 0)
    waits = []
    wait = cuda_stream.HostCopy.wait
    monkeypatch.setattr(cuda_stream.HostCopy, "wait", lambda self: waits.append(self) or wait(self))
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [op.start({0: seeds}, key) for key in range(4)]
        assert waits == []
        for batch in batches:
            batch.result()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 4


def test_a_batch_of_many_tiles(kernels):
    """Scans over hundreds of blocks, which wait for each other."""
    rng = np.random.default_rng(11)
    n = 200_000
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [n], [(rng.random((2, 12 * n)) ** 1.5 * n).astype(np.int64)]
    pieces = cut(graph, 2, rng)
    device_graph = DeviceGraph.from_view(pieces.view, kernels)
    cpu = KHopOp(pieces.view, [[15], [10], [5]], DrawOptions(with_edge=True))
    for key, max_picks in enumerate(cases.WAYS * 5):
        op = CudaKHopOp(device_graph, [[15], [10], [5]], DrawOptions(with_edge=True), max_picks=max_picks)
        seeds = pieces.gid_of[0][rng.integers(0, n, 1024)]
        cases.assert_same_batch(op({0: cases.to(kernels, seeds)}, key), cpu({0: seeds}, key))


def test_batches_of_several_threads_and_streams(kernels):
    rng = np.random.default_rng(12)
    n = 3000
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [n], [rng.integers(0, n, (2, 20 * n))]
    pieces = cut(graph, 2, rng)
    op, cpu = (
        CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[9], [7], [5]]),
        KHopOp(pieces.view, [[9], [7], [5]]),
    )
    seeds = pieces.gid_of[0][rng.integers(0, n, 64)]
    on_device = cases.to(kernels, seeds)
    torch.cuda.synchronize(kernels.device)

    def sample(first: int) -> list[DeviceSubgraph]:
        stream = torch.cuda.Stream(kernels.device)
        with torch.cuda.stream(stream):
            pending = [op.start({0: on_device}, key) for key in range(first, first + 10)]
            batches = [batch.result() for batch in pending]
        stream.synchronize()
        return batches

    with ThreadPoolExecutor(4) as threads:
        found = [batch for batches in threads.map(sample, range(0, 40, 10)) for batch in batches]
    for key, batch in enumerate(found):
        cases.assert_same_batch(batch, cpu({0: seeds}, key))


def test_many_ids_in_a_hash_table(kernels):
    cases.check_far_ids(kernels, 2**31, n=20_000, num_seeds=4000)


@pytest.mark.parametrize("max_picks", cases.WAYS)
@pytest.mark.parametrize("bad", [-1, 1 << 40])
def test_a_seed_outside_the_graph_is_refused(kernels, bad, max_picks):
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    op = CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[2]], max_picks=max_picks)
    with pytest.raises(DataError, match=f"id {bad} at position 1"):
        op({0: cases.to(kernels, np.array([0, bad]))}, 0)


@pytest.mark.parametrize("max_picks", cases.WAYS)
def test_a_damaged_row_is_refused(kernels, max_picks):
    rng = np.random.default_rng(3)
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [4], [np.array([[0, 1, 2, 3], [1, 2, 3, 0]])]
    pieces = cut(graph, 1, rng)
    edge_type, seeds = pieces.view._keep[0][0], cases.to(kernels, np.arange(4))
    edge_type.indices[0] = 77
    with pytest.raises(PartitionError, match="names neighbour 77"):
        CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[5], [2]], max_picks=max_picks)({0: seeds}, 0)
    edge_type.indices[0] = 0
    edge_type.indptr[1] = 1000
    with pytest.raises(PartitionError, match="1000"):
        CudaKHopOp(DeviceGraph.from_view(pieces.view, kernels), [[5]], max_picks=max_picks)({0: seeds}, 0)
