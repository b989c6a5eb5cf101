"""Batches handed over within a host: whose memory it is, and when it is used again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from glt_lightning.base import PeerError, SamplingOptions
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.server.handover import _check_user, _HandoverConnection, place_identity
from glt_lightning.workers.server.sessions import Finished
from glt_lightning.workers.slots import SharedSlot, receive, send
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.run import started
from tests.helpers.servers import Farm, open_farm, until

CONFIG = SamplerConfig(0, ((3,), (3,)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 1)


@pytest.fixture
def farm() -> Iterator[Farm]:
    with open_farm("handover") as farm:
        yield farm


def requests(count: int) -> Iterator[BatchRequest]:
    return (BatchRequest(n, n, np.arange(n, n + 20), np.arange(20)) for n in range(count))


def slots(server) -> int:
    """Slots that the server has, free or in use."""
    return len(server._scheduler._slots._slots)


def test_memory_is_shared_and_comes_back(farm, whole):
    server = farm.serve(whole)
    producer = farm.producer(farm.peer(server.address))
    for sample in producer.stream(CONFIG, requests(200)):
        assert sample.arrays["input_id"].tolist() == list(range(20))
        del sample
    assert producer.fresh_slots == 0
    assert slots(server) <= 16
    until(lambda: len(server._scheduler._slots._free) == slots(server))


def test_kept_batches_are_copied_and_their_slots_used_again(farm, whole):
    server = farm.serve(whole)
    producer = farm.producer(farm.peer(server.address))
    with pytest.warns(UserWarning, match="the program references many batches"):
        kept = list(producer.stream(CONFIG, requests(100)))
    assert producer.fresh_slots >= 80
    assert slots(server) <= 30
    want = list(farm.producer(farm.peer(server.address), handover=False).stream(CONFIG, requests(100)))
    for mine, theirs in zip(kept, want, strict=True):
        for name, array in theirs.arrays.items():
            assert np.array_equal(mine.arrays[name], array)


def test_batches_in_use_outlive_the_producer(farm, whole):
    """Nobody writes into memory that a client still reads, although it has left."""
    server = farm.serve(whole)
    producer = farm.producer(farm.peer(server.address))
    stream = producer.stream(CONFIG, requests(3))
    kept = [next(stream), next(stream)]
    before = [{name: array.copy() for name, array in sample.arrays.items()} for sample in kept]
    del stream
    producer.close()
    until(lambda: not server.status()["clients"])
    assert len(list(farm.producer(farm.peer(server.address)).stream(CONFIG, requests(50)))) == 50
    for sample, copy in zip(kept, before, strict=True):
        for name, array in copy.items():
            assert np.array_equal(sample.arrays[name], array)
    until(lambda: slots(server) == len(server._scheduler._slots._free))


CLIENT = """
import sys
import numpy as np
from glt_lightning.workers import Link
from glt_lightning.base import (ClusterOptions, SamplingOptions)
from glt_lightning.workers.server.served import RemoteProducer
from glt_lightning.sampling import (BatchRequest, SamplerConfig)
link = Link(job="test", role="client", name="the client")
producer = RemoteProducer(link.peer("server 0", [sys.argv[1]], link.open_transport()), ClusterOptions(), SamplingOptions())
requests = (BatchRequest(n, n, np.arange(20), np.arange(20)) for n in range(10**9))
kept = []
for sample in producer.stream(SamplerConfig(0, ((3,), (3,))), requests):
    kept = [*kept[-1:], sample]
    if sample.number == 5:
        print("has some", flush=True)
"""


def test_a_client_is_killed(whole, tmp_path):
    """Its session ends with its lease; what it held is given up at once."""
    with open_farm("flight") as farm:
        server = farm.serve(whole, deadlines=farm.deadlines(lease_s=1.0))
        script = tmp_path / "client.py"
        script.write_text(CLIENT)
        with started([sys.executable, str(script), server.address]) as run:
            until(lambda: "has some" in run.output)
            assert [client["client"] for client in server.status()["clients"]] == ["the client"]
            run.popen.send_signal(signal.SIGKILL)
            until(lambda: server._handover.num_clients == 0)
            until(lambda: not server.status()["clients"])
            until(lambda: len(server._scheduler._slots._free) == slots(server))
        assert len(list(farm.producer(farm.peer(server.address)).stream(CONFIG, requests(9)))) == 9


def test_slots_that_are_gone_are_forgotten_by_who_had_them(farm, whole):
    """Clients that come and go do not make one that stays collect the memory that was theirs."""
    server = farm.serve(whole, concurrency=1)
    stays = farm.producer(farm.peer(server.address, name="stays"), prefetch=6)
    stream = stays.stream(CONFIG, requests(10**6))
    for _ in range(5):
        for _ in range(20):
            next(stream)
        guest = farm.producer(farm.peer(server.address, name="guest"), prefetch=20)
        assert len(list(guest.stream(CONFIG, requests(100)))) == 100
        guest.close()
        until(lambda: len(server.status()["clients"]) == 1)
    for _ in range(20):
        next(stream)
    assert server._scheduler._slots._made > 15  # how many depends on who was faster
    mapped = stays._client_session._stream._slots
    assert len(mapped) <= slots(server) + 8


def test_a_slot_that_is_made_anew_is_sent_anew():
    ours, theirs = socket.socketpair()
    connection, slot = _HandoverConnection(ours), SharedSlot(1)
    item = Finished((1, 1), {}, slot=slot)
    received = []
    for gone in (False, False, True):
        if gone:
            connection.gone.append(1)
        connection.hand_over(item, lambda _: None)
        header, _, fds = receive(theirs)
        received.append((header["gone"], len(fds)))
        for fd in fds:
            os.close(fd)
    assert received == [([], 1), ([], 0), ([1], 1)]
    for each in (ours, theirs, slot):
        each.close()


def test_batches_that_a_client_has_leave_its_room_at_the_server(farm, whole):
    server = farm.serve(whole, channel_size=1)
    producer = farm.producer(farm.peer(server.address), SamplingOptions(timeout_s=5.0))
    assert len(list(producer.stream(CONFIG, requests(4)))) == 4  # the list has them all


def test_a_stranger_gets_nothing(farm, whole):
    server = farm.serve(whole)
    farm.peer(server.address).ask("open", {"session": "s" * 20, "max_restarts": 1, "timeout_s": 60}).result()
    for said in ({"session": "t" * 20, "talk": 1}, {"session": None}, {}):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(b"\0" + server._handover.name.encode())
            send(sock, said)
            assert receive(sock)[0]["kind"] == "SessionLostError"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(b"\0" + server._handover.name.encode())
        sock.sendall(b"\xff" * 64)
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    assert len(list(farm.producer(farm.peer(server.address)).stream(CONFIG, requests(9)))) == 9


def test_only_a_client_of_this_host_is_offered_a_socket(farm, whole):
    server = farm.serve(whole)
    peer = farm.peer(server.address)
    for place, offered in ((place_identity(), True), ("elsewhere", False), ("", False), (None, False)):
        asked = {"session": f"{place!s:>20}", "max_restarts": 1, "timeout_s": 60, "place": place}
        assert bool(peer.ask("open", asked).result().header["handover"]) == offered


def test_the_server_is_killed_under_a_client(farm, whole):
    """A server that leaves is away, as with any connection; the next one is found by its address."""
    servers = [farm.serve(whole)]
    producer = farm.producer(farm.peer(servers[0].address))
    numbers = []
    for sample in producer.stream(CONFIG, requests(60)):
        numbers.append(sample.number)
        if sample.number in (5, 30):
            servers[-1].close()
            servers.append(farm.serve(whole, servers[0].address))
    assert numbers == list(range(60))
    assert os.getpid() not in servers[-1].status()["samplers"]["pids"]


def test_processes_of_another_user_are_refused(monkeypatch):
    """Batches lie in memory that only their user may map."""
    mine, (here, there) = os.getuid(), socket.socketpair()
    with here, there:
        _check_user(here, "the client")
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
        with pytest.raises(PeerError, match=f"the client runs as user {mine}, this process as {mine + 1}"):
            _check_user(here, "the client")
