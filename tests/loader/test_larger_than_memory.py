"""With cache.memory, batches are those of mapped files, wherever their rows come from."""

from __future__ import annotations

import gc
import logging
import os
from dataclasses import replace

import numpy as np
import pytest
from torch_geometric.data import Data

from glt_lightning.base import CacheOptions, OptionError, PartitionError, SamplerError, SamplingOptions
from glt_lightning.graph import HostTier, LocalPartition, node_path
from glt_lightning.loader import LoaderSpec, NeighborLoader, Session
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
from tests.helpers.contents import Contents, contents
from tests.helpers.owners import DirectRows
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.wide import wide_graph, wide_hetero

TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)


def contents_of(graph: LocalPartition, memory: int | None, workers: int = 0, **options: object) -> list[Contents]:
    sampling = SamplingOptions(num_workers=workers, with_edge=True, **options)
    with Session(graph, sampling, seed=7, cache=CacheOptions(memory=memory)) as context:
        return [contents(batch) for batch in context.make_loader(TRAIN)]


@pytest.mark.diagonal
@pytest.mark.parametrize(
    ("make", "total"), [(wide_graph, 4_700_000), (wide_hetero, 1_150_000), (small_graph, 26_000), (small_hetero, 4_000)]
)
@pytest.mark.parametrize("parts", [1, 3])
def test_same_batches(tmp_path, make, total, parts):
    graph = partitioned(make(), tmp_path, parts)
    expected = contents_of(graph, None)
    for memory in (1, total // 2, 1 << 30):
        assert contents_of(graph, memory) == expected
    assert contents_of(graph, total // 3, workers=2, concurrency=3) == expected
    assert contents_of(graph, 1, num_threads=3) == expected


@pytest.mark.parametrize("storage", ["float16", "bfloat16", "int8"])
def test_same_batches_of_encoded_rows(tmp_path, storage):
    data = small_graph()
    data.x = data.x / data.x.max()
    graph = partitioned(data, tmp_path, 2, storage={"x": storage})
    expected = contents_of(graph, None)
    assert contents_of(graph, 3000) == contents_of(graph, 3000, workers=1) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_automatic(tmp_path, monkeypatch, caplog, workers):
    """A graph that does not fit has a host tier, with one line in the log; others have none."""
    graph = partitioned(wide_graph(), tmp_path, 2)
    monkeypatch.setattr("glt_lightning.graph.host_tier._LEAST", 0)
    found, disk_rows = [], []
    for available in (1 << 30, 2_000_000):
        monkeypatch.setattr("glt_lightning.workers.producer.group.available_memory", lambda free=available: free)
        with (
            caplog.at_level(logging.INFO, logger="glt_lightning"),
            Session(graph, SamplingOptions(num_workers=workers, with_edge=True), seed=7) as context,
        ):
            loader = context.make_loader(TRAIN)
            found.append([contents(batch) for batch in loader])
            disk_rows.append(loader.stats().counters.disk_rows)
        lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("cache.memory: auto: ")]
        assert len(lines) == (available == 2_000_000)
    assert found[0] == found[1]
    assert disk_rows[0] == 0 < disk_rows[1]


def test_automatic_of_a_graph_in_memory(monkeypatch):
    """It is in memory already."""
    monkeypatch.setattr("glt_lightning.workers.producer.group.available_memory", lambda: 1)
    data = small_graph()
    loader = NeighborLoader(data, [4, 3], input_nodes=data.train_mask, batch_size=16)
    assert sum(batch.batch_size for batch in loader) == int(data.train_mask.sum())


def test_sampler_that_is_killed(tmp_path):
    """The process that takes its place opens the same memory."""
    graph = partitioned(wide_graph(), tmp_path)
    spec = replace(TRAIN, batch_size=4)  # more batches than are in hand when it dies
    with Session(graph, SamplingOptions(num_workers=1), seed=7, cache=CacheOptions(memory=1 << 20)) as context:
        found = []
        for number, batch in enumerate(context.make_loader(spec)):
            found.append(contents(batch))
            if number == 1:
                os.kill(context._producer.pids[0], 9)
        assert context._producer.restarts == 1
    with Session(graph, seed=7) as context:
        assert found == [contents(batch) for batch in context.make_loader(spec)]


@pytest.mark.parametrize("workers", [0, 1])
def test_counters(tmp_path, workers):
    graph = partitioned(wide_graph(), tmp_path, 2)
    totals = []
    for memory in (None, 1, 1_500_000, 1 << 30):
        options = SamplingOptions(num_workers=workers, with_edge=True)
        with Session(graph, options, seed=7, cache=CacheOptions(memory=memory)) as context:
            loader = context.make_loader(TRAIN)
            assert all(True for _ in loader)
            totals.append(loader.stats().counters)
    mapped, nothing, some, everything = totals
    assert mapped.disk_rows == everything.disk_rows == everything.disk_bytes == everything.disk_s == 0
    assert mapped.local_rows == everything.local_rows == nothing.disk_rows + nothing.local_rows
    assert nothing.local_rows == 0
    assert nothing.local_bytes > 0  # ids are mapped
    assert 0 < some.disk_rows < nothing.disk_rows
    assert some.disk_rows + some.local_rows == mapped.local_rows
    assert 4096 * some.disk_rows // 100 < some.disk_bytes < nothing.disk_bytes
    assert some.disk_bytes % 4096 == 0
    assert mapped.local_bytes > some.local_bytes > nothing.local_bytes
    assert min(some.disk_s, some.gather_s) > 0


def test_rows_that_are_summed_and_given_are_counted_once(tmp_path):
    """The rows of inner hops are read for their neighbours' sums and for themselves."""
    graph = partitioned(Data(**{name: small_graph()[name] for name in ("x", "edge_index", "train_mask")}), tmp_path)
    totals = []
    for memory in (None, 1):
        options = SamplingOptions(num_workers=1, aggregate_first="mean")
        with Session(graph, options, seed=7, cache=CacheOptions(memory=memory)) as context:
            loader = context.make_loader(TRAIN)
            assert all(True for _ in loader)
            totals.append(loader.stats().counters)
    mapped, stored = totals
    assert stored.disk_rows == mapped.local_rows > 0
    assert stored.local_rows == 0
    assert stored.local_bytes >= 0


@pytest.mark.parametrize("memory", [1, 500])
def test_rows_of_several_trees_are_counted_once(tmp_path, memory):
    """Where parts are remote, a row that several trees have is routed once."""
    whole = partitioned(small_graph(), tmp_path, 2)
    part = LocalPartition.open(whole.directory, parts=[0])
    tier = HostTier.create(part, memory)
    part = LocalPartition.open(whole.directory, parts=[0], memory=tier)
    remote = DirectRows(2, [LocalPartition.open(whole.directory, parts=[1])])
    config = SamplerConfig(0, ((4,), (3,)), with_edge=True, disjoint=True)
    request = BatchRequest(0, 99, np.ascontiguousarray(whole.split("train").gids[:16]), np.arange(16))
    found = []
    for partition in (LocalPartition.open(whole.directory, parts=[0]), part):
        draft = KHopSampler(partition, config, remote=remote).draft(request)
        draft.write(np.empty(draft.nbytes, np.uint8))
        found.append(draft.counters)
    mapped, stored = found
    assert stored.disk_rows > 0
    assert stored.local_rows + stored.disk_rows == mapped.local_rows
    assert min(stored.to_list()) >= 0
    tier.close()


def test_more_memory_than_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr("glt_lightning.graph.host_memory.available_memory", lambda: 64 << 20)
    with pytest.raises(OptionError, match=r"^cache\.memory: "):
        Session(partitioned(wide_graph(), tmp_path), cache=CacheOptions(memory=1 << 30))


@pytest.mark.parametrize(("workers", "error"), [(0, PartitionError), (1, SamplerError)])
def test_a_file_is_cut_off(tmp_path, workers, error):
    graph = partitioned(wide_graph(), tmp_path)
    options = SamplingOptions(num_workers=workers, max_restarts=0)
    with Session(graph, options, seed=7, cache=CacheOptions(memory=1 << 20)) as context:
        loader = context.make_loader(TRAIN)
        batches = iter(loader)
        next(batches)
        os.truncate(graph.directory / node_path(0, 0, "x"), 50_000)
        with pytest.raises(error, match=r"nodes/0/x\.npy: damaged: it (was truncated to 50,000 bytes|has 50000 b)"):
            list(batches)


def test_files_are_closed(tmp_path):
    graph = partitioned(wide_graph(), tmp_path)
    contents_of(graph, 1 << 20)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        contents_of(graph, 1 << 20)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [wide_graph, wide_hetero])
@pytest.mark.parametrize("with_edge", [False, True])
def test_parts_of_others(tmp_path, make, with_edge):
    """Own rows and those that owners answer come from disk, too."""
    whole = partitioned(make(), tmp_path, 3, undirected=True)
    tiers = []
    for parts, memory in (([1], 200_000), ([0], 1), ([2], 1_000_000)):
        part = LocalPartition.open(whole.directory, parts=parts)
        tiers.append(HostTier.create(part, memory))
    opened = [LocalPartition.open(whole.directory, parts=[p], memory=t) for p, t in zip((1, 0, 2), tiers, strict=True)]
    remote = DirectRows(3, opened[1:])
    seeds, edge_types = whole.split("train"), len(whole.schema.edge_types)
    config = SamplerConfig(seeds.node_type, ((4,) * edge_types, (3,) * edge_types), with_edge=with_edge)
    sampler, expected = KHopSampler(opened[0], config, remote=remote), KHopSampler(whole, config)
    for number in range(3):
        gids = np.ascontiguousarray(seeds.gids[number * 7 : number * 7 + 16])
        drafts = [s.draft(BatchRequest(number, 99 + number, gids, np.arange(16))) for s in (sampler, expected)]
        found, want = (d.write(np.full(d.nbytes, fill, np.uint8)) for d, fill in zip(drafts, (1, 2), strict=True))
        assert all(np.array_equal(found[name], array) for name, array in want.items())
        counters = drafts[0].counters
        assert counters.rows == drafts[1].counters.rows
        assert min(counters.disk_rows, counters.remote_rows) > 0
    for tier in tiers:
        tier.close()
