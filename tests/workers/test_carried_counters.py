"""What batches took reaches the loader, whoever makes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import fields

import numpy as np
import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec, LoaderStats, Session
from glt_lightning.sampling import BatchRequest, Counters, SamplerConfig
from glt_lightning.workers.server.scheduler import Scheduler
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.workers.test_group import open_rank

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
TIMES = ("sample_s", "remote_s", "disk_s", "gather_s")
GOOD = Counters(local_rows=3, sample_s=0.5).to_list()
GARBAGE: list[object] = [None, [], 7, {"local_rows": 1}, GOOD[:-1], [*GOOD, 0]]
GARBAGE += [[bad, *GOOD[1:]] for bad in ("1", -1, True, 1.5, 1 << 63, [])]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


def run(context: Session) -> tuple[LoaderStats, list[int], list[int]]:
    """Totals after an epoch, and by hand: the batches' nodes and edges."""
    with closing(context):
        loader = context.make_loader(SPEC)
        sizes = [(batch.num_nodes, batch.num_edges) for batch in loader]
        return loader.stats(), *map(list, zip(*sizes, strict=True))


def counted(stats: LoaderStats) -> dict[str, int]:
    """All but the times."""
    return {f.name: getattr(stats.counters, f.name) for f in fields(Counters) if f.name not in TIMES}


@pytest.fixture(scope="module")
def by_hand(whole) -> LoaderStats:
    """Made in this process: a node has its id, 3 floats and a label, an edge its id and 2 floats."""
    stats, nodes, edges = run(Session(whole, SamplingOptions(with_edge=True), seed=3))
    wanted = Counters(local_rows=sum(nodes) + sum(edges), local_bytes=sum(nodes) * (4 + 12 + 8) + sum(edges) * (4 + 8))
    for name in ("local_rows", "local_bytes"):
        assert getattr(stats.counters, name) == getattr(wanted, name), name
    assert stats.counters.rows == wanted.rows
    assert stats.counters.sample_s > 0
    assert stats.counters.gather_s > 0
    assert (stats.nodes, stats.edges) == (sum(nodes), sum(edges))
    assert stats.deduplicated == stats.seeds + sum(edges) - sum(nodes) > 0
    return stats


@pytest.mark.parametrize("workers", [1, 2])
def test_of_sampler_processes(whole, by_hand, workers: int) -> None:
    stats, _, _ = run(Session(whole, SamplingOptions(num_workers=workers, with_edge=True), seed=3))
    assert counted(stats) == counted(by_hand)
    assert min(stats.counters.sample_s, stats.counters.gather_s) > 0


@pytest.mark.parametrize("kind", ["in process", "flight", "handover"])
def test_of_graph_servers(whole, by_hand, kind: str) -> None:
    with open_farm(kind) as farm:
        stats, _, _ = run(farm.context(farm.serve(whole).address, sampling=SamplingOptions(with_edge=True)))
    assert counted(stats) == counted(by_hand)
    assert min(stats.counters.sample_s, stats.counters.gather_s) > 0


def test_of_ranks_with_a_part_each(whole) -> None:
    """Made by the ranks themselves or by their sampler processes."""

    def count(workers: int) -> list[dict[str, int]]:
        options = SamplingOptions(num_workers=workers, with_edge=True)

        def rank_main(rank, exchange):
            with open_rank(whole, rank, 2, exchange, options) as context:
                loader = context.make_loader(SPEC)
                rows = sum(batch.num_nodes + batch.num_edges for batch in loader)
                exchange("all done")
                assert loader.stats().counters.rows == rows
                assert loader.stats().counters.remote_s > 0
                return counted(loader.stats())

        return run_ranks(2, rank_main)

    inline = count(0)
    assert count(2) == inline
    assert all(min(found["local_rows"], found["remote_rows"], found["remote_frontier_rows"]) > 0 for found in inline)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Has servers say something else of their batches."""
    inner = Scheduler._finished

    def say(counters: object) -> None:
        monkeypatch.setattr(
            Scheduler,
            "_finished",
            lambda self, job, nbytes, reply: inner(self, job, nbytes, {**reply, "counters": counters}),
        )

    return say


@pytest.mark.parametrize("kind", ["in process", "handover"])
def test_garbage_from_a_server_ends_no_run(whole, say, kind: str) -> None:
    with open_farm(kind) as farm:
        producer = farm.producer(farm.peer(farm.serve(whole).address))
        for said in GARBAGE:
            say(said)
            requests = iter([BatchRequest(5, 0, np.arange(4), np.arange(4))])
            sample = next(producer.stream(SamplerConfig(0, ((3,),)), requests))
            assert sample.number == 5
            assert sample.counters.local_rows == 0
            del sample
