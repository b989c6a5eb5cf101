"""Worker mode over several hosts: ranks that map different parts yield the batches of ranks that map all."""

import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

from glt_lightning.base import DataError, DeadlineOptions, PartitionError, RefusedError, SamplingOptions
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import HostsGraph, Link, Ranks
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks

TOKEN = "a-secret-of-this-test"
SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
ALL = LoaderSpec(name="all", num_neighbors=[3, -1], batch_size=32, exact=True)


def link(rank, **changes):
    deadlines = DeadlineOptions(call_s=20, reconnect_s=20)
    return Link(
        **{"job": "test", "role": "worker", "name": f"rank {rank}", "token": TOKEN, "deadlines": deadlines} | changes
    )


def open_rank(partition, rank, count, exchange, options, **changes):
    parts = [p for p in range(partition.manifest.num_parts) if p % count == rank]
    graph = HostsGraph(LocalPartition.open(partition.directory, parts=parts), link(rank, **changes), "127.0.0.1")
    return Session(graph, options, seed=3, ranks=Ranks(rank, count, exchange))


def contents_of(context, specs, epochs=2):
    found = []
    for spec in specs:
        loader = context.make_loader(spec)
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            found += [contents(batch) for batch in loader]
    return found


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    ("count", "workers"), [(2, 2), (4, 0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 0), (4, 2)))]
)
def test_same_batches(tmp_path, make, count, workers):
    whole = partitioned(make(), tmp_path, 4, undirected=True)
    options = SamplingOptions(num_workers=workers, with_edge=True, concurrency=3)
    seeds = LoaderSpec(name="own", seeds=np.arange(40), num_neighbors=[2, 2], batch_size=8, node_type=None)
    if make is small_hetero:
        seeds = LoaderSpec(name="own", seeds=np.arange(40), num_neighbors=[2, 2], batch_size=8, node_type="author")
    specs = [
        SPEC,
        seeds,
        LoaderSpec(name="all", num_neighbors=[3, -1], batch_size=64, exact=True, node_type=seeds.node_type),
    ]

    def remote(rank, exchange):
        with open_rank(whole, rank, count, exchange, options) as context:
            found = contents_of(context, specs)
            exchange("all done")
            return found

    found = run_ranks(count, remote)
    for rank in range(count):
        with Session(whole, SamplingOptions(with_edge=True), seed=3, ranks=Ranks(rank, count)) as context:
            assert found[rank] == contents_of(context, specs)


def test_ranks_need_not_call_in_step(tmp_path):
    """One rank iterates thrice and in another order while the others wait for nobody."""
    whole = partitioned(small_graph(), tmp_path, 2)

    def remote(rank, exchange):
        with open_rank(whole, rank, 2, exchange, SamplingOptions(num_workers=1)) as context:
            specs = [SPEC, ALL] if rank else [ALL, SPEC, ALL, SPEC]
            found = contents_of(context, specs, epochs=1 + 2 * rank)
            exchange("all done")
            return found

    found = run_ranks(2, remote)
    for rank, specs, epochs in ((0, [ALL, SPEC, ALL, SPEC], 1), (1, [SPEC, ALL], 3)):
        with Session(whole, seed=3, ranks=Ranks(rank, 2)) as context:
            assert found[rank] == contents_of(context, specs, epochs)


def test_a_sampler_of_a_peer_is_killed(tmp_path):
    """It comes back at its address, what was asked of it is asked again, and the batches are the same."""
    whole = partitioned(small_graph(600), tmp_path, 2)
    options = SamplingOptions(num_workers=1, concurrency=2)

    def remote(rank, exchange):
        with open_rank(whole, rank, 2, exchange, options) as context:
            found = []
            for number, batch in enumerate(context.make_loader(SPEC)):
                found.append(contents(batch))
                if rank == 0 and number in (1, 5):
                    os.kill(context._producer.pids[0], signal.SIGKILL)
            exchange("all done")
            assert context._producer.restarts == (2 if rank == 0 else 0)
            return found

    found = run_ranks(2, remote)
    for rank in range(2):
        with Session(whole, seed=3, ranks=Ranks(rank, 2)) as context:
            assert found[rank] == contents_of(context, [SPEC], 1)


def test_own_seeds_out_of_range(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)

    def remote(rank, exchange):
        with open_rank(whole, rank, 2, exchange, SamplingOptions()) as context:
            with pytest.raises(DataError, match="400 at position 1"):
                context.make_loader(LoaderSpec(name="own", seeds=np.array([1, 400]), num_neighbors=[2], batch_size=4))
            exchange("all done")

    run_ranks(2, remote)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_partition_on_one_host(tmp_path, workers):
    folders = [tmp_path / "a", tmp_path / "b"]
    wholes = [partitioned(small_graph(300 + rank), folder, 2) for rank, folder in enumerate(folders)]

    def remote(rank, exchange):
        with (
            pytest.raises(PartitionError, match=r"rank \d and rank \d have different partitions: options_hash"),
            open_rank(wholes[rank], rank, 2, exchange, SamplingOptions(num_workers=workers)),
        ):
            raise AssertionError("a context with two graphs")

    run_ranks(2, remote)


def test_other_files_with_the_same_options_on_one_host(tmp_path):
    """As where somebody changed a file on one of two hosts, and its checksum with it."""
    whole = partitioned(small_graph(), tmp_path / "a", 2)
    shutil.copytree(whole.directory, tmp_path / "b")
    manifest = Manifest.load(tmp_path / "b")
    path, entry = next(iter(manifest.arrays.items()))
    replace(manifest, arrays={**manifest.arrays, path: replace(entry, crc32=entry.crc32 ^ 1)}).save(tmp_path / "b")
    wholes = [whole, LocalPartition.open(tmp_path / "b")]

    def remote(rank, exchange):
        with (
            pytest.raises(PartitionError, match=r"different partitions: .*same options, and their files differ"),
            open_rank(wholes[rank], rank, 2, exchange, SamplingOptions()),
        ):
            raise AssertionError("a context with two graphs")

    run_ranks(2, remote)


def test_a_part_that_nobody_has(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 4)

    def remote(rank, exchange):
        nobody = pytest.raises(PartitionError, match=r"no process serves part [12] of 4")
        with nobody, open_rank(whole, 3 * rank, 4, exchange, SamplingOptions()):
            raise AssertionError("a context without part 1")

    run_ranks(2, remote)


@pytest.mark.parametrize(
    ("change", "reason"), [({"token": "another-secret-of-it"}, "token"), ({"job": "other"}, "another job")]
)
def test_a_stranger_is_refused(tmp_path, change, reason):
    whole = partitioned(small_graph(), tmp_path, 2)

    def remote(rank, exchange):
        with open_rank(whole, rank, 2, exchange, SamplingOptions(), **(change if rank else {})) as context:
            with pytest.raises(RefusedError, match=reason):
                next(iter(context.make_loader(SPEC)))
            exchange("all done")

    run_ranks(2, remote)


def test_a_peer_that_is_gone_is_named(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    short = {"deadlines": DeadlineOptions(call_s=2, connect_s=2, reconnect_s=1), "retry": Retry(most_s=0.2)}

    def remote(rank, exchange):
        with open_rank(whole, rank, 2, exchange, SamplingOptions(), **short) as context:
            if rank == 0:
                exchange("the other is gone")
                with pytest.raises(Exception, match="rank 1") as caught:
                    list(context.make_loader(SPEC))
                assert "reconnect_s" in str(caught.value)
        if rank == 1:
            exchange("I am gone")

    run_ranks(2, remote)
