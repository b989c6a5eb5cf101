"""Ranks of a host share one copy of what their GPUs read there."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from glt_lightning.base import GpuBudgets, OptionError, PeerError
from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition, host_memory as free_memory
from glt_lightning.workers import Ranks
from glt_lightning.workers.producer import group as shared_uva
from glt_lightning.workers.producer.group import share_uva
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.stores import check_attributes, check_batches


@pytest.fixture
def copies(monkeypatch):
    """What was copied: (parts, what)."""
    made, plain = [], shared_uva.copy_for_uva

    def counted(batch, what):
        made.append((batch.partition.parts, list(what)))
        return plain(batch, what)

    monkeypatch.setattr(shared_uva, "copy_for_uva", counted)
    return made


def stores_of(folder, kernels, modes, parts=None, free_bytes=None, lists=3000):
    """A store on each rank; topology and features of each rank as ``modes`` says. All are checked, then closed."""
    budgets = GpuBudgets(topology=lists, features=3000)
    nbytes = [None] * len(modes)

    def run(rank, exchange):
        partition = LocalPartition.open(folder, parts=None if parts is None else parts[rank])
        topology, features = modes[rank]
        share = share_uva(BatchArrays(partition), Ranks(rank, exchange=exchange))
        free = None if free_bytes is None else lambda: free_bytes[rank]
        store = DeviceStore.open(
            BatchArrays(partition),
            kernels,
            topology=topology,
            features=features,
            budgets=budgets,
            share=share,
            free_bytes=free,
        )
        with closing(store):
            exchange("all have theirs")
            nbytes[rank] = dict(store.nbytes)
            if parts is None:
                check_batches(store, partition)
            if store.feature_memory != "cpu":
                check_attributes(store, partition)
            exchange("all have read")
            return store.graph_memory, store.feature_memory

    return run_ranks(len(modes), run), nbytes


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("mode", ["uva", "hybrid"])
def test_one_copy_for_four_ranks(tmp_path, kernels, copies, make, mode):
    folder = partitioned(make(), tmp_path, 2).directory
    found, nbytes = stores_of(folder, kernels, [(mode, mode)] * 4)
    assert found == [(mode, mode)] * 4
    assert copies == [((0, 1), ["features", "topology"])]
    assert len({n["uva"] for n in nbytes}) == 1


def test_a_copy_for_each_set_of_parts(tmp_path, kernels, copies):
    folder = partitioned(small_graph(), tmp_path, 3).directory
    stores_of(folder, kernels, [("uva", "uva")] * 4, parts=[[0], [1, 2], [0], [1, 2]])
    assert sorted(parts for parts, _ in copies) == [(0,), (1, 2)]


def test_ranks_that_need_different_things(tmp_path, kernels, copies):
    """What any of them needs is copied, and a rank registers nothing for what it has on its device."""
    folder = partitioned(small_graph(), tmp_path, 2).directory
    modes = [("device", "device"), ("uva", "device"), ("device", "hybrid"), ("device", "cpu")]
    found, nbytes = stores_of(folder, kernels, modes)
    assert found == modes
    assert copies == [((0, 1), ["features", "topology"])]
    assert [n["uva"] > 0 for n in nbytes] == [False, True, True, False]


def test_nothing_is_copied_that_nobody_needs(tmp_path, kernels, copies):
    stores_of(partitioned(small_graph(), tmp_path, 2).directory, kernels, [("device", "cpu")] * 2)
    assert copies == []


def test_gpus_with_different_room(tmp_path, kernels, copies):
    """auto is each rank's own affair."""
    partition = partitioned(small_graph(), tmp_path, 2)
    need = BatchArrays(partition).need
    free = [None, 2 * need.topology - 2]
    found, _ = stores_of(partition.directory, kernels, [("auto", "cpu")] * 2, free_bytes=free, lists=None)
    assert found == [("device", "cpu"), ("hybrid", "cpu")]
    assert copies == [((0, 1), ["topology"])]


def test_ranks_of_other_hosts_have_their_own(tmp_path, kernels, copies, monkeypatch):
    hosts = iter(["a", "b"] * 50)
    names = threading.local()

    def name():
        if not hasattr(names, "host"):
            names.host = next(hosts)
        return names.host

    monkeypatch.setattr(Ranks, "host_identity", staticmethod(name))
    stores_of(partitioned(small_graph(), tmp_path, 2).directory, kernels, [("uva", "cpu")] * 4)
    assert copies == [((0, 1), ["topology"])] * 2


def test_all_ranks_hear_of_too_little_memory(tmp_path, kernels, monkeypatch):
    folder = partitioned(small_graph(), tmp_path, 2).directory
    monkeypatch.setattr(free_memory, "available_memory", lambda: 1 << 20)
    errors = []

    def run(rank, exchange):
        partition = LocalPartition.open(folder)
        share = share_uva(BatchArrays(partition), Ranks(rank, exchange=exchange))
        with pytest.raises((OptionError, PeerError), match="not enough host memory") as raised:
            DeviceStore.open(
                BatchArrays(partition), kernels, topology="uva", features="cpu", budgets=GpuBudgets(), share=share
            )
        errors.append((rank, type(raised.value)))

    run_ranks(3, run)
    assert sorted(errors) == [(0, OptionError), (1, PeerError), (2, PeerError)]


def test_a_rank_that_cannot_open_it_leaves_nothing_behind(tmp_path, kernels, monkeypatch):
    """The leak police looks for the memfd."""
    folder = partitioned(small_graph(), tmp_path, 2).directory

    def refuse(*_):
        raise PermissionError("not yours")

    monkeypatch.setattr(shared_uva, "open_uva", refuse)
    with pytest.raises(PermissionError):
        stores_of(folder, kernels, [("uva", "cpu")] * 2)


def test_the_memory_goes_with_the_last_store(tmp_path, kernels):
    partition = partitioned(small_graph(2000), tmp_path, 1)
    before = shared_bytes()
    store = DeviceStore.open(BatchArrays(partition), kernels, topology="uva", features="uva", budgets=GpuBudgets())
    assert shared_bytes() - before >= store.nbytes["uva"]
    store.close()
    assert shared_bytes() == before


def shared_bytes():
    """Of memfds that this process maps."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:glt-arrays" in line:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            total += end - begin
    return total
