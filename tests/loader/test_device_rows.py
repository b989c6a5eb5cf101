"""With rows on the training device, completed batches are those of samplers that bring every row."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glt_lightning.base import CacheOptions, ClusterOptions, OptionError, SamplerError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.loader.device_rows import _complete
from glt_lightning.workers import HostsGraph, Ranks, ServedGraph
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.loader.test_stored_attributes import every_dtype
from tests.workers.test_group import link

CPU = torch.device("cpu")
TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)
MODULE = "glt_lightning.loader.device_rows"


@pytest.fixture
def apart(monkeypatch):
    """The CPU counts as a device with memory of its own."""
    monkeypatch.setattr(f"{MODULE}.is_apart", lambda device: True)


def batches(context):
    """Digests of completed batches, and where their rows came from."""
    loader, rows = context.make_loader(TRAIN), context.device_rows
    found = [contents(batch if rows is None else rows.complete(batch)) for batch in loader]
    return found, loader.stats().counters


def of_whole(graph, device=None, workers=0, memory=None, **options):
    sampling, cache = SamplingOptions(num_workers=workers, **options), CacheOptions(device=device, memory=memory)
    with Session(graph, sampling, seed=7, cache=cache, device=CPU) as context:
        return batches(context)


@pytest.mark.parametrize(("make", "parts"), [(small_graph, 3), (small_hetero, 1)])
def test_same_batches(tmp_path, apart, make, parts):
    """A row takes 28 bytes on the device, or 8 of an author."""
    graph = partitioned(make(), tmp_path, parts)
    expected, plain = of_whole(graph)
    before = 0
    for budget, workers, with_edge in ((1, 0, False), (300, 0, False), (3000, 2, False), ("1MB", 1, False)):
        found, counters = of_whole(graph, budget, workers, with_edge=with_edge)
        assert found == expected
        assert counters.device_rows + counters.local_rows == plain.local_rows
        assert counters.device_bytes + counters.local_bytes == plain.local_bytes
        assert counters.device_rows > before or budget == 1
        before = counters.device_rows
    assert counters.device_rows == nodes_of(graph)


def nodes_of(graph):
    with Session(graph, seed=7) as context:
        return sum(batch.num_nodes for batch in context.make_loader(TRAIN))


@pytest.mark.parametrize("storage", [{}, {"x": "float16"}, {"x": "int8"}, {"x": "bfloat16"}])
def test_every_dtype_and_storage(tmp_path, apart, storage):
    data = every_dtype()
    if storage:
        data.x = data.x.float() / data.x.float().max()
    graph = partitioned(data, tmp_path, 2, storage=storage)
    expected, plain = of_whole(graph)
    for budget in (20_000, "1MB"):
        found, counters = of_whole(graph, budget)
        assert found == expected
        assert 0 < counters.device_rows <= plain.rows
    assert counters.device_rows == nodes_of(graph)
    stored = {"feature_dtype": "stored"}
    assert of_whole(graph, "1MB", **stored)[0] == of_whole(graph, **stored)[0]


def test_rows_of_a_limited_memory(tmp_path, apart):
    graph = partitioned(small_graph(), tmp_path, 2)
    found, counters = of_whole(graph, 3000, workers=1, memory=2000)
    assert found == of_whole(graph)[0]
    assert min(counters.device_rows, counters.disk_rows, counters.local_rows) > 0


@pytest.mark.parametrize(
    ("make", "policy", "memory", "workers"),
    [
        (small_graph, "none", None, 0),
        pytest.param(small_hetero, "degree", None, 0, marks=pytest.mark.slow),
        (small_hetero, "degree", None, 1),
        (small_graph, "none", 2000, 0),
    ],
)
def test_a_part_for_each_rank(tmp_path, apart, make, policy, memory, workers):
    whole = partitioned(make(), tmp_path, 2, undirected=True)
    sampling = SamplingOptions(num_workers=workers, concurrency=2, with_edge=True)

    def rank_of(device):
        options = CacheOptions(policy=policy, ratio=0.3, memory=memory, device=device)

        def run(rank, exchange):
            graph = HostsGraph(LocalPartition.open(whole.directory, parts=[rank]), link(rank), "127.0.0.1")
            ranks = Ranks(rank, 2, exchange)
            with Session(graph, sampling, seed=7, ranks=ranks, cache=options, device=CPU) as context:
                found = batches(context)
                exchange("all done")
                return found

        return run

    plain = run_ranks(2, rank_of(None))
    for budget in (2500, "1MB"):
        for (found, counters), (expected, before) in zip(run_ranks(2, rank_of(budget)), plain, strict=True):
            assert found == expected
            assert counters.rows == before.rows
            assert counters.device_rows > 0
            assert counters.remote_rows + counters.cached_rows < before.remote_rows + before.cached_rows
            assert counters.frontier_rows == before.frontier_rows
            assert counters.remote_frontier_rows == before.remote_frontier_rows


def test_a_sampler_that_is_started_again(tmp_path, apart):
    graph = partitioned(small_graph(), tmp_path)
    options = SamplingOptions(num_workers=1)
    with Session(graph, options, seed=7, cache=CacheOptions(device=3000), device=CPU) as context:
        first = batches(context)
        os.kill(context._producer.pids[0], 9)
        second = batches(context)
        assert context._producer.restarts == 1
    assert first[0] == second[0] == of_whole(graph)[0]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.bool_])
def test_types_that_torch_can_hardly_copy(dtype):
    everything = np.array([7, 6, 5, 4]).astype(dtype)
    kept, brought = (torch.from_numpy(everything[rows]) for rows in ([1, 3], [2, 0]))
    ranks = torch.tensor([-1, 1, 0, 1, -1], dtype=torch.int32)
    store = {"n_id": torch.tensor([2, 0]), "x": brought}
    signed = {np.uint16: torch.int16, np.uint32: torch.int32, np.uint64: torch.int64}.get(dtype, kept.dtype)
    _complete({"n_id": torch.tensor([1, 3]), "x": kept.view(signed)}, store, ranks)
    assert store["n_id"].tolist() == [2, 3, 1, 3, 0]
    assert store["x"].dtype == brought.dtype
    assert np.array_equal(store["x"].numpy(), everything[[2, 3, 1, 3, 0]])


def test_no_effect_on_the_cpu(tmp_path, caplog):
    graph = partitioned(small_graph(), tmp_path)
    with caplog.at_level(logging.INFO):
        found, counters = of_whole(graph, "1MB")
    assert found == of_whole(graph)[0]
    assert counters.device_rows == 0
    assert "cache.device: training on cpu, so it has no effect. Remove it, or train on a GPU." in caplog.messages
    assert {each.levelname for each in caplog.records if "no effect" in each.getMessage()} == {"WARNING"}


def test_says_what_is_there(tmp_path, apart, caplog):
    with caplog.at_level(logging.INFO):
        of_whole(partitioned(small_graph(), tmp_path), 2800)
    assert "cache.device: 100 rows (33.3% of all nodes) on cpu, 0.0 MB." in caplog.messages


def test_more_than_the_device_has(tmp_path, apart, monkeypatch):
    graph = partitioned(small_graph(), tmp_path)
    monkeypatch.setattr(f"{MODULE}.DeviceStore.free_bytes", lambda device: 2000)
    with pytest.raises(OptionError, match=r"rows take 2,996 bytes, and cpu has 2,000 free\. Lower cache\.device"):
        of_whole(graph, 3000)
    found, counters = of_whole(graph, 1900)
    assert found == of_whole(graph)[0]
    assert counters.device_rows > 0


def test_servers_make_whole_batches():
    with pytest.raises(OptionError, match="the training process must map the graph"):
        Session(ServedGraph(SimpleNamespace(), ClusterOptions()), cache=CacheOptions(device="1GiB"))


def test_an_attribute_of_a_reserved_name(tmp_path, apart):
    data = small_graph()
    data.device_rows = torch.zeros(300)
    with pytest.raises(OptionError, match="have an attribute 'device_rows'"):
        of_whole(partitioned(data, tmp_path), 3000)


def test_a_batch_that_comes_too_late(tmp_path, apart):
    graph = partitioned(small_graph(), tmp_path)
    with Session(graph, seed=7, cache=CacheOptions(device=3000), device=CPU) as context:
        batch = next(iter(context.make_loader(TRAIN)))
    with pytest.raises(SamplerError, match="its Session is closed"):
        context.device_rows.complete(batch)


@pytest.mark.parametrize("given", [0, -1, "many"])
def test_no_number_of_bytes(given):
    with pytest.raises(OptionError, match=r"^cache\.device: expected bytes"):
        CacheOptions(device=given)


@pytest.mark.gpu
def test_nothing_waits_for_a_gpu(tmp_path):
    graph, device = partitioned(every_dtype(), tmp_path), torch.device("cuda", 0)
    found = []
    cache = CacheOptions(device=20_000)
    on_cpu = SamplingOptions(topology="cpu")
    with Session(graph, on_cpu, seed=7, cache=cache, device=device) as context:
        for batch in context.make_loader(TRAIN):
            moved = context.in_flight.copy(batch, device)
            torch.cuda.set_sync_debug_mode("error")
            try:
                context.device_rows.complete(moved)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            found.append(contents(moved.to("cpu")))
            del batch
        torch.cuda.synchronize(device)
    assert found == of_whole(graph)[0]
