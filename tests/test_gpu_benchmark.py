"""The GPU benchmark's pieces on the CPU: the graph it makes, what it measures and compares, the table. No figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks import gpu_graph, gpu_loader, gpu_ops
from benchmarks.gpu import MEMORIES, Benchmark, notes
from benchmarks.gpu_measure import HostClock, Limits, Rounds, Spread
from benchmarks.gpu_ops import Different
from benchmarks.gpu_rows import Row, markdown
from glt_lightning import LocalPartition, SamplingOptions, Session
from glt_lightning.base import GpuBudgets
from glt_lightning.graph import BatchArrays, DeviceStore
from glt_lightning.kernels import Kernels, KHopOp
from glt_lightning.workers.producer import on_gpu

CPU = torch.device("cpu")
QUICK = Rounds(warmup=1, rounds=2)
SCALE = 0.0004


class OtherDraws(KHopOp):
    def __call__(self, seeds, batch_key):
        return super().__call__(seeds, batch_key + 1)


class Ticks:
    """A clock by which everything takes a quarter of a second."""

    def seconds(self, work):
        work()
        return 0.25


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    return gpu_graph.make(tmp_path_factory.mktemp("graph"), SCALE, CPU)


@pytest.fixture
def store(kernels, partition):
    store = DeviceStore.open(
        BatchArrays(partition, edges=False), kernels, topology="device", features="device", budgets=GpuBudgets()
    )
    yield store
    store.close()


@pytest.fixture
def gpu_in_place(kernels, monkeypatch):
    """The CPU counts as a GPU."""
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    return kernels


def test_the_graph_has_both_directions_once_and_is_in_order(partition):
    nodes, edges = int(gpu_graph.NODES * SCALE), int(gpu_graph.EDGES * SCALE)
    assert partition.manifest.num_nodes == (nodes,)
    assert partition.manifest.num_edges == (2 * edges,)
    arrays, n_id = partition.view._keep[0][0], np.asarray(partition.mapped_user_ids(0)[0])
    degrees = np.diff(arrays.indptr)
    assert (degrees[:-1] >= degrees[1:]).all()  # hottest first
    assert np.array_equal(np.sort(n_id), np.arange(nodes))
    rows = np.repeat(np.arange(nodes), degrees)
    pairs = rows * nodes + arrays.indices
    assert len(np.unique(pairs)) == len(pairs)
    assert np.array_equal(np.unique(pairs), np.unique(arrays.indices * np.int64(nodes) + rows))
    assert not (rows == arrays.indices).any()
    by_user = rows * nodes + n_id[arrays.indices]
    assert (np.diff(by_user) > 0).all()  # within a row by the user's id
    LocalPartition.open(partition.directory, verify=True)


def test_the_graph_is_heavy_tailed_and_has_communities(partition):
    arrays = partition.view._keep[0][0]
    degrees = np.diff(arrays.indptr)
    label = partition.node_shards(0, "y").gather(np.arange(len(degrees)))
    assert degrees.max() > 4 * degrees.mean()
    inside = label[np.repeat(np.arange(len(degrees)), degrees)] == label[arrays.indices]
    assert 0.3 < inside.mean() < 0.95
    assert len(partition.split("train").gids) > 10


def test_the_same_seed_draws_the_same_graph():
    one, other = (gpu_graph.draw(0.0002, CPU) for _ in range(2))
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.n_id, other.n_id)


def test_amounts_are_divided_by_time():
    seen = []
    spread = Rounds(warmup=3, rounds=4).rate(Ticks(), lambda: seen.append(1) or 10.0)
    assert spread == Spread(40.0, 40.0, 40.0)
    assert len(seen) == 7


def test_sampling_counts_edges(store, partition):
    found = gpu_ops.sampling(store, partition, Ticks(), QUICK, batches=2, batch_size=8)
    assert 4 * 2 * 8 * 15 * 0.5 < found.median < 4 * 2 * 8 * 15 * 11 * 6


def test_gather_queues_several_and_counts_bytes_once(store, partition, kernels, monkeypatch):
    rows, shards, queued = np.asarray(gpu_ops.stored(partition, "part0/nodes/0/x.npy")), store.node_shards(0, "x"), []
    run = kernels.run
    monkeypatch.setattr(store.kernels, "run", lambda *given: queued.append(given[0]) or run(*given))
    found = gpu_ops.gather(shards, rows, kernels, Ticks(), QUICK, count=100)
    rounds = QUICK.warmup + QUICK.rounds
    assert queued == ["glt_cuda_gather"] * (1 + rounds * gpu_ops.QUEUED)
    assert found.median == 4 * gpu_ops.QUEUED * 100 * 400


def test_wrong_results_are_not_timed(store, partition, kernels, monkeypatch):
    rows = np.array(gpu_ops.stored(partition, "part0/nodes/0/x.npy"))
    with pytest.raises(Different, match="gather"):
        gpu_ops.gather(store.node_shards(0, "x"), rows + 1, kernels, Ticks(), QUICK, count=100)
    monkeypatch.setattr(gpu_ops, "KHopOp", OtherDraws)
    with pytest.raises(Different, match="sampling"):
        gpu_ops.sampling(store, partition, Ticks(), QUICK, batches=2, batch_size=8)


def test_wrong_batches_are_not_timed(partition):
    options = SamplingOptions()
    with (
        Session(partition, options, seed=gpu_loader.SEED + 1) as context,
        pytest.raises(Different, match="loader"),
    ):
        gpu_loader.loading(context, partition, Ticks(), QUICK, batches=1, batch_size=16)


def test_every_measure(partition, gpu_in_place):
    """The whole benchmark on a graph of a thousand nodes; its figures mean nothing here."""
    benchmark = Benchmark(
        partition,
        gpu_in_place,
        HostClock(),
        open_session=lambda memory: gpu_loader.open_session(partition, memory, CPU),
        accelerator="cpu",
        rounds=QUICK,
        aims=False,
    )
    rows = benchmark.all()
    assert benchmark.failed == []
    assert len(rows) == 12
    assert all(row.found.median >= 0 and row.reached is None for row in rows)
    assert all(row.limit > 0 for row in rows if "training" not in row.what)
    assert {memory for row in rows for memory in MEMORIES if memory in row.what} == set(MEMORIES)
    assert json.loads(json.dumps([row.to_json() for row in rows]))
    assert "plain torch is the peer" in notes(partition, []) or "can be imported" in notes(partition, [])


def test_a_measure_that_fails_is_named_and_the_others_go_on(partition, gpu_in_place, monkeypatch, capsys):
    monkeypatch.setattr(gpu_ops, "KHopOp", OtherDraws)
    monkeypatch.setattr(Benchmark, "_training", lambda self, memory: None)

    def opened(memory):
        return gpu_loader.open_session(partition, memory, CPU)

    benchmark = Benchmark(partition, gpu_in_place, HostClock(), open_session=opened, rounds=QUICK)
    rows = benchmark.all()
    assert [line.partition(":")[0] for line in benchmark.failed] == ["ops, device", "ops, uva"]
    assert any("loader" in row.what for row in rows)
    assert "FAILED: ops, device: Different" in notes(partition, benchmark.failed)


@pytest.mark.parametrize(
    ("options", "reached", "cell"),
    [
        ({"target": 2.0}, True, ">= 2: yes"),
        ({"target": 4.0}, False, ">= 4: NO"),
        ({"target": 4.0, "aims": False}, None, ">= 4"),
        ({"target": 0.25, "by_limit": True, "limit": 10.0}, True, ">= 25% of it: yes"),
        ({"target": 0.85, "by_limit": True, "limit": 10.0}, False, ">= 85% of it: NO"),
        ({"target": 2.0, "at_most": True}, False, "< 2: NO"),
        ({}, None, ""),
    ],
)
def test_what_is_reached(options, reached, cell):
    row = Row(what="x", unit="y", found=Spread(3.0, 2.0, 4.0), **options)
    assert row.reached is reached
    assert row.cells()[-1] == cell
    assert row.cells()[1] == "3 (2-4)"
    assert markdown([row]).count("\n") == 2


def test_limits_are_of_the_same_machine():
    limits = Limits.measure(CPU, Ticks(), QUICK, nbytes=1024, numbers=100)
    assert (limits.copy_bytes, limits.bus_bytes, limits.reads, limits.bus_reads) == (4096.0, 4096.0, 400.0, 128.0)
