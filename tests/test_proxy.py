"""What a real TCP connection may do to batches from elsewhere: they are the same, or an error names the peer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from glt_lightning.base import DeadlineOptions, PeerLostError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers import HostsGraph, Link, Ranks
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.proxy import Proxy
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import Farm, open_farm, until

pytestmark = pytest.mark.timeout(60)

CONFIG = SamplerConfig(0, ((2,), (2,)))
SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
# What ends, and what does not end by itself.
BREAKS: dict[str, Callable[[Proxy], None]] = {"cut": Proxy.cut, "half open": Proxy.swallow, "refused": Proxy.refuse}


@pytest.fixture
def farm() -> Iterator[Farm]:
    with open_farm("flight") as farm:
        yield farm


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LocalPartition:
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


def requests(count: int) -> Iterator[BatchRequest]:
    return (BatchRequest(n, n, np.arange(4), np.arange(4)) for n in range(count))


def said_by(sample: object) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in sample.arrays.items()}  # type: ignore[attr-defined]


# The proxy itself


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of one that says what it is told, connection by connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                worker = threading.Thread(target=answer, args=(sock,))
                worker.start()
                stack.callback(worker.join, 10)

        def answer(sock: socket.socket) -> None:
            with sock:
                try:
                    while said := sock.recv(1 << 16):
                        sock.sendall(said)
                except OSError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def call(proxy: Proxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def hear(sock: socket.socket, said: bytes) -> bytes:
    sock.sendall(said)
    found = b""
    while len(found) < len(said):
        found += sock.recv(1 << 16)
    return found


def test_passes_everything_on(echo: str) -> None:
    said = bytes(range(256)) * 4096
    with Proxy(echo) as proxy, call(proxy) as sock:
        writer = threading.Thread(target=sock.sendall, args=(said,))
        writer.start()
        found = b""
        while len(found) < len(said):
            found += sock.recv(1 << 16)
        writer.join(5)
        assert found == said
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""  # an end is passed on as well


def test_holds_up_each_chunk(echo: str) -> None:
    with Proxy(echo, delay_s=0.05) as proxy, call(proxy) as sock:
        for _ in range(2):
            begun_s = time.monotonic()
            assert hear(sock, b"x") == b"x"
            assert time.monotonic() - begun_s >= 0.1  # there and back


def test_resets_what_is_cut(echo: str) -> None:
    with Proxy(echo) as proxy, call(proxy) as sock:
        assert hear(sock, b"x") == b"x"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        with call(proxy) as other:
            assert hear(other, b"y") == b"y"


def test_swallows_for_good(echo: str) -> None:
    """Also what is said to connections that are made meanwhile; those made after it work."""
    with Proxy(echo) as proxy, call(proxy) as old:
        assert hear(old, b"x") == b"x"
        proxy.swallow()
        with call(proxy) as sock:
            for each in (old, sock):
                each.sendall(b"lost")
            until(lambda: proxy.swallowed == 8)
            proxy.heal()
            for each in (old, sock):
                each.settimeout(0.1)
                each.sendall(b"late")
                with pytest.raises(TimeoutError):
                    each.recv(1)
        with call(proxy) as sock:
            assert hear(sock, b"y") == b"y"


def test_refuses_until_it_is_healed(echo: str) -> None:
    with Proxy(echo) as proxy, call(proxy) as sock:
        assert hear(sock, b"x") == b"x"
        address = proxy.address
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        with pytest.raises(ConnectionRefusedError):
            call(proxy)
        proxy.heal()
        assert proxy.address == address
        with call(proxy) as sock:
            assert hear(sock, b"y") == b"y"


def test_nobody_behind_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with Proxy(address) as proxy, pytest.raises(ConnectionResetError), call(proxy) as sock:
        sock.recv(1)


# Batches of a graph server


def test_late_batches_of_a_server(farm: Farm, whole: LocalPartition) -> None:
    server = farm.serve(whole)
    want = [said_by(s) for s in farm.producer(farm.peer(server.address)).stream(CONFIG, requests(20))]
    with Proxy(server.address, delay_s=0.01) as proxy:
        producer = farm.producer(farm.peer(proxy.address))
        assert [said_by(sample) for sample in producer.stream(CONFIG, requests(20))] == want
        assert producer.reconnects == 0
        producer.close()


@pytest.mark.parametrize("fault", BREAKS)
def test_same_batches_of_a_server_after_it_is_healed(farm: Farm, whole: LocalPartition, fault: str) -> None:
    server = farm.serve(whole, deadlines=farm.deadlines(lease_s=2))
    want = [said_by(s) for s in farm.producer(farm.peer(server.address)).stream(CONFIG, requests(30))]
    with Proxy(server.address) as proxy:
        producer = farm.producer(farm.peer(proxy.address, call_s=1, connect_s=1))
        stream = producer.stream(CONFIG, requests(30))
        found = [said_by(next(stream)) for _ in range(5)]
        before = proxy.connections
        BREAKS[fault](proxy)
        healing = threading.Timer(0.3, proxy.heal)
        healing.start()
        found += [said_by(sample) for sample in stream]
        healing.join()
        assert found == want
        assert proxy.connections > before
        assert producer.reconnects > 0
        producer.close()


@pytest.mark.parametrize("fault", ["half open", "refused"])
def test_server_that_stays_away_is_named(farm: Farm, whole: LocalPartition, fault: str) -> None:
    server = farm.serve(whole, deadlines=farm.deadlines(lease_s=1))
    with Proxy(server.address) as proxy:
        producer = farm.producer(farm.peer(proxy.address, call_s=0.5, connect_s=0.5, reconnect_s=1))
        stream = producer.stream(CONFIG, requests(30))
        next(stream)
        BREAKS[fault](proxy)
        with pytest.raises(PeerLostError, match=r"server 0\b"):
            list(stream)
        producer.close()


# Rows that the samplers of ranks ask of each other


def rank_producer(
    whole: LocalPartition, rank: int, exchange: Callable[[str], list[str]], deadlines: DeadlineOptions
) -> Session:
    retry = Retry(first_s=0.01, most_s=0.1)
    link = Link(job="test", role="worker", name=f"rank {rank}", deadlines=deadlines, retry=retry)
    graph = HostsGraph(LocalPartition.open(whole.directory, parts=[rank]), link, "127.0.0.1")
    return Session(graph, SamplingOptions(), seed=3, ranks=Ranks(rank, 2, exchange))


def through(proxies: ExitStack, opened: list[Proxy], exchange: Callable[[str], list[str]]) -> Callable[..., list[str]]:
    """An exchange of addresses after which rank 0 reaches the others through proxies."""

    def replaced(text: str) -> list[str]:
        mine, *others = [json.loads(said) for said in exchange(text)]
        for other in others:
            if "addresses" not in other:  # another exchange
                continue
            for i, address in enumerate(other["addresses"]):
                opened.append(proxies.enter_context(Proxy(address)))
                other["addresses"][i] = opened[-1].address
        return [json.dumps(said) for said in (mine, *others)]

    return replaced


def expected(whole: LocalPartition, rank: int) -> list[str]:
    with Session(whole, SamplingOptions(), seed=3, ranks=Ranks(rank, 2)) as context:
        return [contents(batch) for batch in context.make_loader(SPEC)]


@pytest.mark.parametrize("fault", BREAKS)
def test_same_batches_of_ranks_after_the_line_is_healed(whole: LocalPartition, fault: str) -> None:
    deadlines = DeadlineOptions(connect_s=1, call_s=1, reconnect_s=20)
    with ExitStack() as proxies:
        opened: list[Proxy] = []

        def work(rank: int, exchange: Callable[[str], list[str]]) -> list[str]:
            mine = through(proxies, opened, exchange) if rank == 0 else exchange
            with rank_producer(whole, rank, mine, deadlines) as context:
                batches = iter(context.make_loader(SPEC))
                found = [contents(next(batches))]
                if rank == 0:
                    (proxy,) = opened
                    before = proxy.connections
                    BREAKS[fault](proxy)
                    healing = threading.Timer(0.3, proxy.heal)
                    healing.start()
                    found += [contents(batch) for batch in batches]
                    healing.join()
                    assert proxy.connections > before
                else:
                    found += [contents(batch) for batch in batches]
                exchange("all done")
                return found

        found = run_ranks(2, work)
    assert found == [expected(whole, rank) for rank in range(2)]


@pytest.mark.parametrize("fault", ["half open", "refused"])
def test_rank_that_stays_away_is_named(whole: LocalPartition, fault: str) -> None:
    deadlines = DeadlineOptions(connect_s=0.5, call_s=0.5, reconnect_s=1)
    with ExitStack() as proxies:
        opened: list[Proxy] = []

        def work(rank: int, exchange: Callable[[str], list[str]]) -> None:
            mine = through(proxies, opened, exchange) if rank == 0 else exchange
            with rank_producer(whole, rank, mine, deadlines) as context:
                batches = iter(context.make_loader(SPEC))
                next(batches)
                if rank == 0:
                    BREAKS[fault](opened[0])
                    with pytest.raises(PeerLostError, match=rf"rank 1 \({opened[0].address}\)"):
                        list(batches)
                exchange("all done")

        run_ranks(2, work)
