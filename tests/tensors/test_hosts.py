"""Ranks on several hosts: each row has one home, which applies each write once and turns strangers away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import (
    DataError,
    DeadlineOptions,
    LimitOptions,
    PeerError,
    PeerLostError,
    RefusedError,
    RemoteError,
)
from glt_lightning.graph import LocalPartition
from glt_lightning.tensors import SharedTables, TableSpec
from glt_lightning.tensors.space import row_spaces
from glt_lightning.workers import Message
from glt_lightning.workers.transport.dispatch import caller_is
from glt_lightning.workers.transport.message import pack
from tests.helpers.homes import link_of, open_tables
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.network_faults import Faults
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> LocalPartition:
    return partitioned(small_graph(), tmp_path_factory.mktemp("hosts"), 3)


@pytest.fixture
def network() -> Iterator[InProcessNetwork]:
    with InProcessNetwork() as network:
        yield network


def described(partition: LocalPartition, **further: Any) -> TableSpec:
    return TableSpec(row_spaces(partition.manifest)[0], "float32", (4,), "h", **further)


def on_two_hosts(
    partition: LocalPartition,
    network: Any,
    body: Callable[[SharedTables, int], Any],
    link: dict[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    def run(rank: int, exchange: Callable[[str], list[str]]) -> Any:
        own = link_of(rank, **(link or {}))
        tables, closing = open_tables(partition, rank, exchange, 2, hosts=2, network=network, link=own, **options)
        try:
            found = body(tables, rank)
            exchange("done with the rows of other hosts")
            return found
        finally:
            closing.close()

    return run_ranks(2, run)


ROWS = np.arange(300)


def test_first_values_are_those_of_one_host(partition: LocalPartition, network: InProcessNetwork) -> None:
    def body(tables: SharedTables, rank: int) -> tuple:
        table = tables.create(described(partition, init=("normal", 0, 1)))
        return table.read(ROWS), len(table.own), table.home_of(ROWS)

    (first, own, homes), (second, others, _) = on_two_hosts(partition, network, body)
    (expected, whole, _), *_ = run_ranks(
        1, lambda rank, exchange: body(open_tables(partition, rank, exchange, 1)[0], rank)
    )
    assert np.array_equal(first, expected)
    assert np.array_equal(second, expected)
    assert (own, others, whole) == (200, 100, 300)  # of three parts two have their home on host 0
    assert np.array_equal(homes, [0, 1, 0] @ (np.arange(3)[:, None] == ROWS // 100))


FAULTS = [
    Faults(seed=1, lose_reply=0.3, ops=["put"]),
    Faults(seed=2, duplicate=0.5, delay_s=(0.0, 0.01), ops=["put"]),
    Faults(seed=3, lose_request=0.2, lose_reply=0.2, duplicate=0.3, reorder=0.4, ops=["put", "rows"]),
]


@pytest.mark.parametrize("faults", FAULTS)
def test_each_write_is_applied_once(partition: LocalPartition, network: InProcessNetwork, faults: Faults) -> None:
    network.faults = faults

    def body(tables: SharedTables, rank: int) -> np.ndarray:
        table = tables.create(described(partition))
        for n in range(40):
            table.add(np.array([n, 150, 150, 299 - n]), np.ones((4, 4), dtype=np.float32))
        tables.barrier()
        return table.read(ROWS)

    quick = {"deadlines": DeadlineOptions(call_s=0.05, reconnect_s=30)}
    expected = np.zeros(300)
    expected[:40] += 2
    expected[260:] += 2
    expected[150] += 160
    for found in on_two_hosts(partition, network, body, quick):
        assert np.array_equal(found, np.repeat(expected[:, None], 4, axis=1))


def test_large_answers_and_writes_come_in_pieces(
    partition: LocalPartition, network: InProcessNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glt_lightning.tensors.home._MOST_BYTES", 100)
    values = np.random.default_rng(0).random((300, 4), dtype=np.float32)

    def body(tables: SharedTables, rank: int) -> np.ndarray:
        wide = TableSpec(row_spaces(partition.manifest)[0], "float32", (4000,), "wide")  # 16 kB a row, 64 kB a reply
        table, many = tables.create(described(partition)), tables.create(wide)
        if rank == 0:
            table.write(ROWS, values)
            many.write(ROWS[99:110], np.repeat(values[99:110], 1000, axis=1))
        tables.barrier()
        assert np.array_equal(many.read(ROWS[99:110])[:, ::1000], values[99:110])
        return table.read(ROWS[::-1])

    for found in on_two_hosts(partition, network, body, {"limits": LimitOptions(reply_size="64KiB")}):
        assert np.array_equal(found, values[::-1])


def test_read_later_asks_at_once(partition: LocalPartition, network: InProcessNetwork) -> None:
    def body(tables: SharedTables, rank: int) -> None:
        table = tables.create(described(partition))
        table.write(ROWS[rank::2], np.full((150, 4), 1.0 + rank, dtype=np.float32))
        tables.barrier()
        home, asked = tables._remote.open()[1 - rank], []
        ask = home._peer.ask
        home._peer.ask = lambda op, *rest, **more: (asked.append(op), ask(op, *rest, **more))[1]
        wait = table.read_later(ROWS[::-1])
        assert asked == ["rows"]
        assert np.array_equal(wait(), np.repeat(1.0 + ROWS[::-1, None] % 2, 4, axis=1))
        assert asked == ["rows"]
        with pytest.raises(DataError, match="rows: 300 at position 1 is no row"):
            table.read_later(np.array([0, 300]))
        wait = table.read_later(ROWS)
        tables.barrier()
        table.close()
        with pytest.raises(DataError, match="closed"):
            wait()

    on_two_hosts(partition, network, body)


def test_a_conflict_of_two_hosts_is_found(partition: LocalPartition, network: InProcessNetwork) -> None:
    def body(tables: SharedTables, rank: int) -> str:
        table = tables.create(described(partition))
        one = np.ones((1, 4), dtype=np.float32)
        table.write(np.array([rank]), one)
        tables.barrier()
        table.write(np.array([1 - rank]), one)  # after the barrier: no conflict
        tables.barrier()
        table.write(np.array([150]), one)
        with pytest.raises(DataError) as error:
            tables.barrier()
        return str(error.value)

    first, second = on_two_hosts(partition, network, body, check_conflicts=True)
    assert first == second
    assert "wrote to row 150 between two barriers" in first
    assert "rank 0" in first
    assert "rank 1" in first


def test_a_table_that_outlives_its_graph_is_adopted(partition: LocalPartition, network: InProcessNetwork) -> None:
    def run(rank: int, exchange: Callable[[str], list[str]]) -> np.ndarray:
        tables, closing = open_tables(partition, rank, exchange, 2, hosts=2, network=network)
        kept = tables.apart().create(described(partition, init="ones"))
        exchange("done with the rows of other hosts")
        closing.close()
        later, closing = open_tables(partition, rank, exchange, 2, hosts=2, network=network)
        later.adopt(kept)
        kept.add(ROWS, np.ones((300, 4), dtype=np.float32))
        later.barrier()
        found = kept.read(ROWS)
        exchange("done with the rows of other hosts")
        kept.close()
        closing.close()
        return found

    for found in run_ranks(2, run):
        assert (found == 3).all()


def _ask(network: InProcessNetwork, address: str, op: str, hello: dict[str, Any], body: Any, **header: Any) -> Any:
    peer = link_of(7, **hello).peer("home", [address], network)
    entries, packed = pack(body)
    try:
        return peer.ask(op, {**header, "arrays": entries}, packed).result()
    finally:
        peer.close()


ONE, VALUES = np.array([150]), np.ones((1, 4), dtype=np.float32)
PUT = {"how": "add", "writer": 16 * "w", "seq": 1, "rank": 0, "epoch": 0}


@pytest.mark.parametrize(
    ("op", "hello", "header", "body", "complaint"),
    [
        ("put", {"role": "tool"}, PUT, {"rows": ONE, "values": VALUES}, "rows of a job are for its own ranks"),
        ("rows", {"role": "server"}, {}, {"rows": ONE}, "rows of a job are for its own ranks"),
        ("rows", {"job": "other"}, {}, {"rows": ONE}, "belongs to another job"),
        ("rows", {}, {"tensor": "x"}, {"rows": ONE}, "has no tensor 'x'"),
        ("rows", {}, {"tensor": 7}, {"rows": ONE}, "has no tensor 7"),
        ("rows", {}, {}, {}, r"rows: expected int64 \[n\], got nothing"),
        ("rows", {}, {}, {"rows": ONE.astype(np.int32)}, "got int32"),
        ("rows", {}, {}, {"rows": np.array([300])}, "rows: 300 at position 0 is no row"),
        ("rows", {}, {}, {"rows": np.array([-1])}, "rows: -1 at position 0 is no row"),
        ("rows", {}, {}, {"rows": np.array([3])}, "row 3 lies on another host"),
        ("put", {}, PUT | {"how": "drop"}, {"rows": ONE, "values": VALUES}, "how: expected set, add, fill, got 'drop'"),
        ("put", {}, PUT | {"seq": 2}, {"rows": ONE, "values": VALUES}, "seq: expected 1, .*got 2"),
        ("put", {}, PUT | {"seq": 0}, {"rows": ONE, "values": VALUES}, "seq: expected an integer"),
        ("put", {}, PUT | {"rank": 2}, {"rows": ONE, "values": VALUES}, "rank: expected an integer from 0 to 1"),
        ("put", {}, PUT | {"writer": "w"}, {"rows": ONE, "values": VALUES}, "writer: expected 16 to 100 characters"),
        ("put", {}, PUT, {"rows": ONE}, r"values: expected float32 \[1, 4\], got nothing"),
        ("put", {}, PUT, {"rows": ONE, "values": VALUES.astype("f8")}, "got float64"),
        ("put", {}, PUT, {"rows": ONE, "values": VALUES[:, :3]}, r"got float32 \[1, 3\]"),
        ("put", {}, PUT, {"rows": np.array([3]), "values": VALUES}, "row 3 lies on another host"),
        ("put", {}, PUT | {"how": "fill"}, {"values": VALUES}, r"values: expected float32 \[4\], got float32 \[1, 4\]"),
    ],
)
def test_strangers_and_nonsense_are_refused(
    partition: LocalPartition,
    network: InProcessNetwork,
    op: str,
    hello: dict[str, Any],
    header: dict[str, Any],
    body: dict[str, Any],
    complaint: str,
) -> None:
    def run(tables: SharedTables, rank: int) -> None:
        table = tables.create(described(partition))
        if rank == 1:
            home = tables._remote.open().served
            with pytest.raises((DataError, RefusedError, RemoteError, PeerError), match=complaint):
                _ask(network, home.address, op, hello, body, **{"tensor": table.id, **header})
        tables.barrier()
        assert table.count_nonzero() == 0  # nothing was written, and the homes answer
        tables.barrier()
        table.add(ONE, VALUES)

    on_two_hosts(partition, network, run)


def test_rows_are_looked_for_after_their_memory_is_reserved(
    partition: LocalPartition, network: InProcessNetwork
) -> None:
    def working(nbytes: int) -> Any:
        raise PeerError(f"{nbytes} bytes for it")

    def run(tables: SharedTables, rank: int) -> None:
        table = tables.create(described(partition))
        if rank == 1:
            home = tables._remote.open().served
            caller = caller_is({"role": "worker", "job": home._link.job}, lambda: False, working=working)
            arrays, body = pack({"rows": np.array([150, 3])})  # the second lies on another host
            with pytest.raises(PeerError, match=r"^160 bytes for it$"):
                home._rows(Message({"tensor": table.id, "arrays": arrays}, body), caller)
        tables.barrier()

    on_two_hosts(partition, network, run)


def test_a_home_that_is_gone_is_named(partition: LocalPartition, network: InProcessNetwork) -> None:
    def run(tables: SharedTables, rank: int) -> None:
        table = tables.create(described(partition))
        tables.barrier()
        if rank == 1:
            tables._remote.open().served.close()
        tables.barrier()
        if rank == 0:
            with pytest.raises(PeerLostError, match=r"rank 1 \(host1:\d+\): .*Gave up after"):
                table.read(ONE)
            with pytest.raises(PeerLostError, match=r"rank 1 .*Gave up after"):
                table.add(ONE, VALUES)
            with pytest.raises(PeerError, match="Whether that write was applied is not known"):
                table.add(ONE, VALUES)

    on_two_hosts(partition, network, run, {"deadlines": DeadlineOptions(call_s=0.1, reconnect_s=0.2)})


def test_over_flight(partition: LocalPartition) -> None:
    """The same over the real transport, within this host."""
    token = 32 * "t"

    def run(rank: int, exchange: Callable[[str], list[str]]) -> np.ndarray:
        link = link_of(rank, token=token)
        transport = link.open_transport()

        class OnLoopback:
            connect = staticmethod(transport.connect)

            @staticmethod
            def serve(address: str, service: Any) -> Any:
                return transport.serve("127.0.0.1:0", service)

        tables, closing = open_tables(partition, rank, exchange, 2, hosts=2, network=OnLoopback(), link=link)
        table = tables.create(described(partition))
        table.add(ROWS, np.repeat(ROWS[:, None], 4, axis=1).astype(np.float32))
        tables.barrier()
        found = table.read(ROWS)
        exchange("done with the rows of other hosts")
        closing.close()
        return found

    for found in run_ranks(2, run):
        assert np.array_equal(found[:, 3], 2 * ROWS)
