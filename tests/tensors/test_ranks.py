"""Several ranks of a host: one memory, whole rows, and mistakes that every rank hears of."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError, OptionError, PeerError, TensorOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.tensors import GraphReader, SharedTables, TableSpec
from glt_lightning.tensors.space import Homes, row_spaces
from glt_lightning.tensors.table import WriteLock
from glt_lightning.workers import Ranks
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks

Exchange = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> LocalPartition:
    return partitioned(small_graph(), tmp_path_factory.mktemp("ranks"), 3)


def opened(partition: LocalPartition, rank: int, exchange: Exchange, world: int = 2, **options: object) -> SharedTables:
    ranks = Ranks(rank, world, exchange)
    homes = Homes.agree(ranks, 3, partition.parts)
    reader = GraphReader(partition, partition)
    return SharedTables(ranks, homes, reader.user_ids_of_part, options=TensorOptions(**options))


def described(partition: LocalPartition, name: str | None = "h", width: int = 4, **further: object) -> TableSpec:
    return TableSpec(row_spaces(partition.manifest)[0], "float32", (width,), name, **further)


def on_two(partition: LocalPartition, body: Callable[[SharedTables, int], object], **options: object) -> list:
    def run(rank: int, exchange: Exchange) -> object:
        tables = opened(partition, rank, exchange, **options)
        try:
            return body(tables, rank)
        finally:
            tables.close()

    return run_ranks(2, run)


def test_the_ranks_of_a_host_have_one_memory(partition: LocalPartition) -> None:
    def body(tables: SharedTables, rank: int) -> tuple:
        table = tables.create(described(partition, init=("uniform", 0, 1)))
        applied = table.home_of(np.arange(300))
        mine = np.flatnonzero(applied == rank)
        table.own[table.position(mine)] = rank + 10  # as an optimizer does: its own rows, without the lock
        tables.barrier()
        return table.read(np.arange(300)), applied, os.fstat(table.memory.fileno()).st_ino

    (first, applied, inode), (second, theirs, other) = on_two(partition, body)
    assert np.array_equal(first, second)
    assert np.array_equal(applied, theirs)
    assert np.array_equal(applied, np.arange(300) % 2)
    assert np.array_equal(first[:, 0], applied + 10)
    assert inode == other


def test_rows_are_never_a_mixture_of_two_writes(partition: LocalPartition) -> None:
    def body(tables: SharedTables, rank: int) -> np.ndarray:
        table, rows = tables.create(described(partition, width=256)), np.arange(300)
        for _ in range(30):
            table.write(rows, np.full((300, 256), rank + 1, dtype=np.float32))
        tables.barrier()
        return table.read(rows)

    for found in on_two(partition, body):
        assert (found == found[:, :1]).all()
        assert set(np.unique(found)) <= {1, 2}


def test_sums_of_all_ranks_are_whole(partition: LocalPartition) -> None:
    def body(tables: SharedTables, rank: int) -> np.ndarray:
        table, rows = tables.create(described(partition)), np.zeros(50, dtype=np.int64)
        for _ in range(40):
            table.add(rows, np.ones((50, 4), dtype=np.float32))
        tables.barrier()
        return table.read(np.arange(2))

    for found in on_two(partition, body):
        assert found[0].tolist() == [4000] * 4
        assert not found[1].any()


def test_a_conflict_is_found_on_every_rank(partition: LocalPartition) -> None:
    def body(tables: SharedTables, rank: int) -> str:
        table = tables.create(described(partition))
        for rows in ([2 * rank, 2 * rank + 1], [rank, 3 - rank]):  # the second time with rows of the first
            table.write(np.array(rows), np.ones((2, 4), dtype=np.float32))
            if rows[0] == 2 * rank and rows[1] == 2 * rank + 1:
                tables.barrier()
        table.write(np.array([250]), np.ones((1, 4), dtype=np.float32))
        with pytest.raises(DataError) as error:
            tables.barrier()
        tables.barrier()  # it is said once
        return str(error.value)

    first, second = on_two(partition, body, check_conflicts=True)
    assert first == second
    assert "tensor 'h': rank " in first
    assert "wrote to row 250 between two barriers" in first


@pytest.mark.parametrize("name", ["h", None])
def test_different_tensors_are_an_error_on_all_ranks(partition: LocalPartition, name: str | None) -> None:
    def body(tables: SharedTables, rank: int) -> str:
        with pytest.raises(DataError) as error:
            tables.create(described(partition, name, width=4 + rank))
        return str(error.value)

    first, second = on_two(partition, body)
    assert first == second
    called = repr(name or "anonymous-0")
    assert (
        f"rank 0: {called} of node, float32 rows [4], zeros; rank 1: {called} of node, float32 rows [5], zeros" in first
    )


def mistaken(partition: LocalPartition, **further: object) -> TableSpec:
    return described(partition, **{"name": "h", **further})


MISTAKES = {
    "first values": ({"init": "random"}, "tensor 'h': init: expected zeros, ones, "),
    "name": ({"name": "h\n"}, "tensor: name: expected 1 to 200 printable characters"),
    "shape": ({"width": 0}, "tensor 'h': shape: expected [N, ...] with integers >= 1, got rows of [0]"),
    "nameless": ({"name": None, "persistent": True}, "tensor: persistent: checkpoints find a tensor by its name"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_one_rank_is_an_error_on_all(partition: LocalPartition, mistake: str) -> None:
    """The same line on each rank, which names the one that was wrong; none where all are."""
    given, text = MISTAKES[mistake]

    def body(tables: SharedTables, rank: int) -> list[str]:
        found = []
        for wrong in ([1], [0], [0, 1]):
            with pytest.raises((DataError, PeerError)) as error:
                tables.create(mistaken(partition, **given) if rank in wrong else described(partition))
            assert error.value.on_all_ranks
            assert list(tables) == []
            found.append(str(error.value))
        return found

    first, second = on_two(partition, body)
    assert first == second
    assert [each.partition(text)[0] for each in first] == ["rank 1: ", "rank 0: ", ""]
    assert all("\n" not in each for each in first)


def test_a_name_twice_is_an_error_on_all_ranks(partition: LocalPartition) -> None:
    """By all ranks with another description, or by one alone."""

    def body(tables: SharedTables, rank: int) -> list[str]:
        there = tables.create(described(partition))
        assert tables.create(described(partition)) is there
        with pytest.raises(DataError) as other:
            tables.create(described(partition, width=5))
        with pytest.raises(DataError) as alone:
            tables.create(described(partition, "h" if rank else "g"))
        return [str(other.value), str(alone.value)]

    first, second = on_two(partition, body)
    assert first == second
    assert "float32 rows [5], zeros: the name is taken by 'h' of node, float32 rows [4], zeros." in first[0]
    assert (
        "rank 0: 'g' of node, float32 rows [4], zeros; rank 1: 'h' of node, float32 rows [4], zeros, again" in first[1]
    )


def test_other_calls_are_an_error_on_all_ranks(partition: LocalPartition) -> None:
    def body(tables: SharedTables, rank: int) -> str:
        with pytest.raises(DataError) as error:
            tables.barrier() if rank else tables.create(described(partition))
        return str(error.value)

    first, second = on_two(partition, body)
    assert first == second
    assert "rank 0: create a tensor; rank 1: barrier" in first


def test_too_little_room_on_one_rank_is_an_error_on_all(partition: LocalPartition) -> None:
    def run(rank: int, exchange: Exchange) -> str:
        tables = opened(partition, rank, exchange, limit="auto" if rank else "1kB")
        with pytest.raises((OptionError, PeerError)) as error:
            tables.create(described(partition))
        assert list(tables) == []
        return str(error.value)

    first, second = run_ranks(2, run)
    assert first == second
    assert first.startswith("rank 0: tensor 'h' takes 4.8 kB on this host")


def test_an_error_of_first_values_is_one_on_all_ranks(partition: LocalPartition) -> None:
    def fail(shape: tuple, dtype: object) -> np.ndarray:
        raise ZeroDivisionError("of the user")

    def body(tables: SharedTables, rank: int) -> str:
        with pytest.raises((ZeroDivisionError, PeerError)) as error:
            tables.create(described(partition, init=fail))
        return str(error.value)

    assert on_two(partition, body) == ["of the user", "rank 0: of the user"]


def test_several_hosts_that_cannot_reach_each_other_are_refused(partition: LocalPartition) -> None:
    tables = SharedTables(Ranks(), Homes(0, (0, 1), (0, 1, 0)), lambda space, part: np.empty(0))
    with pytest.raises(
        OptionError, match="the ranks run on 2 hosts, which reach each other's rows under the strategies"
    ):
        tables.create(described(partition))


def test_tables_apart_outlive_the_others_and_count_against_one_limit(partition: LocalPartition) -> None:
    tables = opened(partition, 0, lambda text: [text], 1, limit="20kB")
    apart = tables.apart()
    kept = apart.create(described(partition))
    tables.create(described(partition))
    with pytest.raises(OptionError, match=r"with those that are there \('h' 12.3 kB, 'h' 12.3 kB\)"):
        apart.apart().create(described(partition, "more"))
    tables.close()
    kept.write(np.array([3]), np.ones((1, 4), dtype=np.float32))
    assert kept.count_nonzero() == 4
    apart.close()


def test_a_closed_or_forgotten_table_frees_its_memory(partition: LocalPartition) -> None:
    tables = opened(partition, 0, lambda text: [text], 1, check_conflicts=True)
    for name in ("closed", "forgotten"):
        table = tables.create(described(partition, name))
        memory, fd = weakref.ref(table.memory), table.memory.fileno()
        if name == "closed":
            table.close()
        else:
            del tables._open[name], table
        gc.collect()
        assert memory() is None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_parts_have_their_home_where_they_are_mapped() -> None:
    mapped = [("a", [0, 2]), ("a", [0, 2]), ("b", [1, 2]), ("b", [1, 2])]

    def run(rank: int, exchange: Exchange) -> Homes:
        place, parts = mapped[rank]
        return Homes.agree(Ranks(rank, 4, exchange), 3, parts, place)

    for rank, homes in enumerate(run_ranks(4, run)):
        assert (homes.host_of_rank, homes.host_of_part) == ((0, 0, 1, 1), (0, 1, 0))
        assert homes.host == rank // 2
        assert homes.parts_at(homes.host) == [[0, 2], [1]][rank // 2]


def test_a_writer_that_does_not_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(b"x")
    fds = [os.open(tmp_path / "memory", os.O_RDWR) for _ in range(2)]
    try:
        fcntl.flock(fds[0], fcntl.LOCK_EX)
        lock = WriteLock(fds[1], "h", 0.05)
        with (
            pytest.raises(
                PeerError, match=f"tensor 'h': pid {os.getpid()} has been writing to it for more than 0.05 s"
            ),
            lock.held(),
        ):
            pass
        fcntl.flock(fds[0], fcntl.LOCK_UN)
        with lock.held():
            done = threading.Event()

            def wait() -> None:
                with pytest.raises(PeerError, match="another thread of this process"), lock.held():
                    pass
                done.set()

            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(30)
        assert done.is_set()
    finally:
        for fd in fds:
            os.close(fd)
