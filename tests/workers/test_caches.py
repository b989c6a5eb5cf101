"""Caches of ranks and servers: one copy for each host, and the same batches."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from glt_lightning.base import CacheOptions, OptionError, PeerError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import HostedServer, HostsGraph, Ranks, ServerPlan
from glt_lightning.workers.producer import group as shared_tiers, host_parts, mapped
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import DEADLINES, cluster, inline, open_farm
from tests.helpers.wide import wide_graph
from tests.lightning.serving import free_addresses
from tests.workers.test_group import link

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
OPTIONS = SamplingOptions(num_workers=2, concurrency=2)


def open_rank(partition, rank, count, exchange, parts, cache, options=OPTIONS):
    graph = HostsGraph(LocalPartition.open(partition.directory, parts=parts), link(rank), "127.0.0.1")
    return Session(graph, options, seed=3, ranks=Ranks(rank, count, exchange), cache=cache)


def contents_of(context, epochs=2):
    loader = context.make_loader(SPEC)
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += [contents(batch) for batch in loader]
    return found, loader.stats().counters


@pytest.mark.parametrize("make", [small_graph, pytest.param(small_hetero, marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks_of_a_host_share_one_copy(tmp_path, make, workers, monkeypatch):
    whole = partitioned(make(), tmp_path, 4, undirected=True)
    options = SamplingOptions(num_workers=workers, concurrency=2)
    count, parts, opened = 4, [[0, 1], [2, 3], [0, 1], [2, 3]], {}

    class Recorded(mapped.WorkerGroup):
        def __init__(self, graph, producer, link, *given):
            super().__init__(graph, producer, link, *given)
            opened[link.name] = self

    monkeypatch.setattr(mapped, "WorkerGroup", Recorded)

    def rank_of(ratio):
        def run(rank, exchange):
            cache = CacheOptions(ratio=ratio)
            with open_rank(whole, rank, count, exchange, parts[rank], cache, options) as context:
                found = contents_of(context)
                group = opened[f"rank {rank}"]
                handle = None if group.cache is None else group.cache.handle
                exchange("all done")
                return *found, handle

        return run

    expected = []
    for rank in range(count):
        with Session(whole, SamplingOptions(), seed=3, ranks=Ranks(rank, count)) as context:
            expected.append(contents_of(context)[0])
    without = run_ranks(count, rank_of(0.0))
    found = run_ranks(count, rank_of(0.1))
    for rank in range(count):
        assert found[rank][0] == without[rank][0] == expected[rank]
        before, after = without[rank][1], found[rank][1]
        assert 0 < after.cached_rows < before.remote_rows
        assert after.cached_rows + after.remote_rows == before.remote_rows
    handles = [each[2] for each in found]
    assert handles[0] == handles[2] != handles[1] == handles[3]


def test_a_sampler_that_is_restarted_keeps_the_cache(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)

    def run(rank, exchange):
        with open_rank(whole, rank, 2, exchange, [rank], CacheOptions(ratio=1.0)) as context:
            first = contents_of(context)
            for pid in context._producer.pids:
                os.kill(pid, signal.SIGKILL)
            second = contents_of(context)
            exchange("all done")
            return first, second

    for (first, before), (second, after) in run_ranks(2, run):
        assert first == second
        assert before.cached_rows == after.cached_rows > 0


def test_all_ranks_hear_of_options_that_do_not_fit(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    options = SamplingOptions()

    def run(rank, exchange):
        with pytest.raises((OptionError, PeerError)) as raised:
            open_rank(whole, rank, 2, exchange, [rank], CacheOptions(policy="vip", ratio=0.1), options)
        return str(raised.value)

    for said in run_ranks(2, run):
        assert "has no ranking of remote rows by vip" in said


def _wait(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_servers_fill_theirs_while_they_serve(tmp_path):
    """The first of two servers is asked for batches when the other one is not there yet."""
    whole = partitioned(small_graph(), tmp_path, 2)
    where, cache = cluster(servers=free_addresses(2)), CacheOptions(ratio=1.0)

    def hosted(rank):
        address = where.servers[rank]
        plan = ServerPlan(directory=str(whole.directory), cluster=where, address=address, rank=rank, cache=cache)
        server = HostedServer(plan)
        stack.callback(server.close)
        return server

    with open_farm("flight") as farm, ExitStack() as stack:
        first = hosted(0)
        context = farm.context(first.address, rank=0, world_size=2)
        hosted(1)
        found, _ = contents_of(context)
        plain = inline(whole, SPEC, epochs=2, rank=0, world_size=2)
        assert found == plain

        def reads_its_cache() -> bool:
            again, counters = contents_of(context)
            assert again == plain
            return counters.cached_rows > 0

        _wait(reads_its_cache)


def test_a_server_that_cannot_have_its_cache_does_not_start(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    where = cluster(servers=free_addresses(2))
    cache = CacheOptions(policy="vip", ratio=0.1)
    with pytest.raises(OptionError, match="has no ranking of remote rows by vip"):
        HostedServer(ServerPlan(directory=str(whole.directory), cluster=where, address=where.servers[0], cache=cache))


def test_a_server_ends_while_it_waits_for_another(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    waits_long = replace(DEADLINES, connect_s=600, call_s=600, reconnect_s=3600)
    where = cluster(servers=free_addresses(2), deadlines=waits_long)
    plan = ServerPlan(
        directory=str(whole.directory), cluster=where, address=where.servers[0], cache=CacheOptions(ratio=0.5)
    )
    HostedServer(plan).close()


MEMORY = CacheOptions(memory=6000)


def test_ranks_of_a_host_share_the_hottest_rows_of_their_parts(tmp_path, monkeypatch):
    whole = partitioned(small_graph(), tmp_path, 2)
    options, paths = SamplingOptions(num_workers=1), {}

    def recorded(partition, cache, ranks):
        tier = shared_tiers.shared_host_tier(partition, cache, ranks)
        if tier is not None:
            paths[ranks.rank] = tier.path
        return tier

    monkeypatch.setattr(host_parts, "shared_host_tier", recorded)

    def run(rank, exchange):
        with Session(whole, options, seed=3, ranks=Ranks(rank, 2, exchange), cache=MEMORY) as context:
            found = contents_of(context)
            exchange("all done")
        return *found, paths[rank]

    found = run_ranks(2, run)
    assert found[0][2] == found[1][2]
    for rank in range(2):
        assert found[rank][0] == inline(whole, SPEC, epochs=2, rank=rank, world_size=2)
        assert found[rank][1].disk_rows > 0 < found[rank][1].local_rows


def test_ranks_that_map_other_parts_share_the_memory_of_a_host(tmp_path, monkeypatch):
    """The part of each would fit alone."""
    whole = partitioned(wide_graph(), tmp_path, 2)
    sizes = {path: entry.bytes for path, entry in whole.manifest.arrays.items()}
    free = 64 * max(sum(size for path, size in sizes.items() if f"part{p}/" in path) for p in (0, 1)) // 63 + 64
    monkeypatch.setattr(shared_tiers, "available_memory", lambda: free)
    monkeypatch.setattr("glt_lightning.graph.host_tier._LEAST", 0)  # the graph is small

    def run(rank, exchange):
        part = LocalPartition.open(whole.directory, parts=[rank])
        alone = shared_tiers.shared_host_tier(part, CacheOptions(), Ranks())
        tier = shared_tiers.shared_host_tier(part, CacheOptions(), Ranks(rank, 2, exchange))
        tier.close()
        return alone, tier.nbytes

    (first, mine), (second, others) = run_ranks(2, run)
    assert first is second is None
    assert 0 < mine < mine + others < free


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_others_and_rows_on_disk(tmp_path, workers):
    """Each rank reads the colder rows of its parts from disk, also for the other one."""
    whole = partitioned(small_graph(), tmp_path, 2, undirected=True)
    options, cache = SamplingOptions(num_workers=workers), CacheOptions(memory=6000, ratio=0.1)

    def run(rank, exchange):
        with open_rank(whole, rank, 2, exchange, [rank], cache, options) as context:
            found = contents_of(context)
            exchange("all done")
        return found

    for rank, (batches, counters) in enumerate(run_ranks(2, run)):
        assert batches == inline(whole, SPEC, epochs=2, rank=rank, world_size=2)
        assert min(counters.disk_rows, counters.local_rows, counters.cached_rows, counters.remote_rows) > 0


def test_servers_read_from_disk(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    where = cluster(servers=free_addresses(2))
    with open_farm("flight") as farm, ExitStack() as stack:
        for rank, address in enumerate(where.servers):
            plan = ServerPlan(directory=str(whole.directory), cluster=where, address=address, rank=rank, cache=MEMORY)
            stack.callback(HostedServer(plan).close)
        found, counters = contents_of(farm.context(where.servers[0], rank=0, world_size=2))
        assert found == inline(whole, SPEC, epochs=2, rank=0, world_size=2)
        assert counters.disk_rows > 0


def test_all_ranks_hear_of_too_much_memory(tmp_path, monkeypatch):
    whole = partitioned(small_graph(), tmp_path, 2)
    monkeypatch.setattr("glt_lightning.graph.host_memory.available_memory", lambda: 1000)

    def run(rank, exchange):
        with pytest.raises((OptionError, PeerError), match=r"cache.memory: .*Lower cache.memory"):
            Session(whole, seed=3, ranks=Ranks(rank, 2, exchange), cache=MEMORY)

    run_ranks(2, run)


def test_where_all_parts_are_here_one_line_says_so(tmp_path, caplog):
    whole = partitioned(small_graph(), tmp_path, 2)
    plan = ServerPlan(
        directory=str(whole.directory), cluster=cluster(), address="127.0.0.1:0", cache=CacheOptions(ratio=0.1)
    )
    with caplog.at_level("INFO", "glt_lightning"):
        Session(whole, cache=CacheOptions(ratio=0.1)).close()
        HostedServer(plan).close()
    said = (
        "cache: all parts are mapped here, so no row is remote, and cache.ratio and cache.bytes have no effect. Remove them, "
        "or give hosts different parts (cluster.placement)."
    )
    assert [text for text in caplog.messages if text.startswith("cache")] == [said, said]
