"""What happens to jobs that have run for longer than every deadline: nothing that would not happen to young ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from glt_lightning.base import DeadlineOptions, PeerError, PeerLostError, SamplerError
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers import Caller, Message, Peer, ServerPlan, ServerProcess
from glt_lightning.workers.server import client_session, process as server_process
from glt_lightning.workers.server.client_session import ClientSession, Outage
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.transport.base import Service
from tests.helpers.clock import Clock
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.servers import DEADLINES, RETRY, cluster, until

CONFIG = SamplerConfig(0, ((1,),))
DAY_S = 24 * 3600.0
TIMEOUT_S = 60.0


def question(number: int) -> Question:
    return Question(1, CONFIG, BatchRequest(number, number, np.arange(2), np.arange(2)))


class Scripted:
    """A graph server that answers a batch when the test says so. asked: numbers of batches, in the order they came."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.streams = self.renewals = 0
        self.lease_s = 60.0
        self._state = threading.Condition()
        self._ready: list[int] = []

    def service(self) -> Service:
        calls = {
            "open": lambda m, c: Message({"lease_s": self.lease_s, "handover": ""}),
            "make": self._make,
            "renew": self._renew,
            **{op: lambda m, c: Message({}) for op in ("drop", "close")},
        }
        return Service(lambda hello: {}, calls, {"batches": self._batches})

    def finish(self, number: int) -> None:
        with self._state:
            self._ready.append(number)
            self._state.notify_all()

    def _make(self, message: Message, _caller: Caller) -> Message:
        self.asked.append(message.header["number"])
        return Message({})

    def _renew(self, _message: Message, _caller: Caller) -> Message:
        self.renewals += 1
        return Message({})

    def _batches(self, _message: Message, caller: Caller) -> Iterator[Message]:
        with self._state:
            self.streams += 1
            stream = self.streams
        while not caller.is_gone():
            with self._state:
                self._state.wait_for(lambda: self._ready, 0.01)
                if stream != self.streams:  # it was cut off and has not noticed: the next one takes what is ready
                    return
                ready, self._ready = self._ready, []
            for number in ready:
                yield Message({"run": 1, "number": number})


class Client:
    """A client of a scripted server, on a clock that the test sets."""

    def __init__(self, network: InProcessNetwork) -> None:
        self.clock, self.server, self.network = Clock(), Scripted(), network
        self.address = network.serve("127.0.0.1:0", self.server.service()).address
        self.peer = Peer("server 0", [self.address], network, {}, DEADLINES, RETRY, self.clock)
        self.batches = ClientSession(self.peer, DEADLINES, 3, TIMEOUT_S, handover=False, clock=self.clock)
        self._send_all, self._sending = self.batches._send_all, False
        self.batches._send_all = self._send_and_say_so

    def _send_and_say_so(self, waiting: list) -> None:
        self._sending = True
        try:
            self._send_all(waiting)
        finally:
            self._sending = False

    def take(self, number: int) -> int:
        self.batches.ask(question(number))
        until(lambda: number in self.server.asked)
        self.server.finish(number)
        found = self.batches.answer((1, number)).header["number"]
        # A call that is still in flight when the server is cut off is tried again, and the time that the test lets pass
        # would be counted as one attempt.
        until(lambda: not self._sending)
        return found

    def restart_server(self) -> None:
        """As its client sees it."""
        streams = self.server.streams
        self.network.cut(self.address)
        self.network.heal(self.address)
        # the client, too, has the new stream: until then the time that the test lets pass is an outage
        back = lambda: self.server.streams > streams and self.batches._stream is not None  # noqa: E731
        until(lambda: back() or self.batches._error is not None)


@pytest.fixture
def client() -> Iterator[Client]:
    with InProcessNetwork() as network:
        client = Client(network)
        try:
            yield client
        finally:
            client.batches.close()
            client.peer.close()


def test_a_stream_older_than_reconnect_s_breaks(client: Client) -> None:
    """A week of one restart a day, of a server that is busy and of one that nobody asks anything."""
    for number in range(7):
        assert client.take(number) == number
        client.clock.ahead_s += DAY_S
        client.restart_server()
        client.clock.ahead_s += DAY_S
        client.restart_server()
    assert client.take(7) == 7
    assert client.batches.reopened == 14


def test_a_client_that_asks_nothing_renews_its_lease(client: Client) -> None:
    client.server.lease_s = 0.04
    assert client.take(0) == 0
    until(lambda: client.server.renewals > 1)


def test_a_late_answer_about_an_older_session_does_not_end_the_present_one(client: Client) -> None:
    assert client.take(0) == 0
    client.batches._lose("one before a restart")
    assert client.take(1) == 1
    assert client.batches.reopened == 0


def test_a_server_that_stays_away_is_given_up_after_reconnect_s_and_not_before(client: Client) -> None:
    assert client.take(0) == 0
    client.clock.ahead_s += DAY_S
    client.network.cut(client.address)
    until(lambda: client.peer._losses > 3)
    client.clock.ahead_s += DEADLINES.reconnect_s - 10
    losses = client.peer._losses
    until(lambda: client.peer._losses > losses + 3)
    assert client.batches._error is None
    client.clock.ahead_s += 10
    with pytest.raises(
        PeerLostError, match=r"server 0 .*Gave up after 2\d\.\d s of attempts\..* raise cluster.deadlines.reconnect_s"
    ):
        client.batches.ask(question(1))
        client.batches.answer((1, 1))


def test_the_time_of_a_batch_begins_again_when_its_server_comes_back(client: Client) -> None:
    """The server breaks when the time for a batch is nearly over, and comes back after that."""
    assert client.take(0) == 0
    client.batches.ask(question(1))
    until(lambda: 1 in client.server.asked)
    found: list[object] = []
    waiting = _waiting(client, 1, found)
    client.clock.ahead_s += TIMEOUT_S - 5
    client.network.cut(client.address)
    until(lambda: client.batches._stream is None)
    client.clock.ahead_s += DEADLINES.reconnect_s - 5
    _wake(client)
    asked = client.server.asked.count(1)
    client.network.heal(client.address)
    until(lambda: client.server.asked.count(1) > asked)
    client.clock.ahead_s += TIMEOUT_S - 5
    _wake(client)
    client.server.finish(1)
    waiting.join(20)
    assert found == [1]


def test_the_time_of_a_batch_begins_again_when_its_client_stood_still(client: Client, monkeypatch) -> None:
    assert client.take(0) == 0
    client.batches.ask(question(1))
    found: list[object] = []
    waiting = _waiting(client, 1, found)
    monkeypatch.setattr(client_session.StandStill, "happened", lambda _: True)
    client.clock.ahead_s += 2 * TIMEOUT_S
    _wake(client)
    until(lambda: found or client.batches._state._waiters)  # it has looked
    client.server.finish(1)
    waiting.join(20)
    assert found == [1]


def test_a_batch_that_ends_every_server_is_given_up(client: Client) -> None:
    """The latest time for it is counted from when the first server broke."""
    assert client.take(0) == 0
    client.batches.ask(question(1))
    found: list[object] = []
    waiting = _waiting(client, 1, found)
    while not found:
        client.restart_server()
        client.clock.ahead_s += DEADLINES.reconnect_s / 2
        _wake(client)
    waiting.join(20)
    assert len(found) == 1
    assert "no answer with batch 1 within sampling.timeout_s = 60.0 s" in str(found[0])


def _waiting(client: Client, number: int, found: list[object]) -> threading.Thread:
    """Waits for a batch on a thread, which has begun to wait when this returns."""

    def wait() -> None:
        try:
            found.append(client.batches.answer((1, number)).header["number"])
        except (SamplerError, PeerError) as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: bool(client.batches._state._waiters))
    return thread


def _wake(client: Client) -> None:
    """Whoever waits looks at the clock again."""
    with client.batches._state:
        client.batches._state.notify_all()


def test_an_outage_is_the_time_without_a_stream() -> None:
    now_s = [0.0]
    outage = Outage(120.0, lambda: now_s[0])

    def attempt(*, opening_s: float = 0.0, stood_s: float | None = None, heard: bool = False) -> float:
        outage.begin_attempt()
        now_s[0] += opening_s
        if stood_s is not None:
            outage.opened()
            now_s[0] += stood_s
            if heard:
                outage.heard()
        return outage.broke()

    assert attempt(opening_s=100) == 100  # the first: counted from when it was tried
    assert attempt(stood_s=500, heard=True) == 0
    assert attempt(opening_s=70) == 70
    assert attempt(stood_s=60) == 70  # it stood, and delivered nothing
    assert attempt(opening_s=70) == 140  # is given up
    assert attempt(stood_s=DAY_S) == 0
    assert [attempt(opening_s=30, stood_s=0.0) for _ in range(5)] == [30, 60, 90, 120, 150]


def test_a_peer_that_nobody_wanted_for_long_is_tried_anew() -> None:
    """It broke long ago, came back, and is away again for a moment just when it is asked something."""
    clock, deadlines = Clock(), DeadlineOptions(connect_s=2, call_s=2, reconnect_s=4)
    with InProcessNetwork() as network:
        service = Service(lambda hello: {}, {"here": lambda m, c: Message({})}, {})
        address = network.serve("127.0.0.1:0", service).address
        peer = Peer("server 0", [address], network, {}, deadlines, RETRY, clock)
        peer.ask("here").result()
        network.cut(address)
        assert peer.ask("here") is not None  # is tried once; nobody waits for what comes of it
        clock.ahead_s += DAY_S
        threading.Timer(0.3, network.heal, [address]).start()
        peer.ask("here").result()
        network.cut(address)
        peer.ask("here")
        clock.ahead_s += 3.9  # not long enough to call it anew: what was in vain counts for the next question
        with pytest.raises(PeerLostError, match=r"Gave up after [45]\.\d s"):
            peer.ask("here").result()
        peer.close()


_CHILD = """
import socket, sys
from glt_lightning.workers.slots import (receive, send)
sock = socket.socket(fileno=int(sys.argv[1]))
receive(sock)
send(sock, {"address": "127.0.0.1:1"})
receive(sock)
"""


class _Starter:
    die_at_start = 0  # so many of the next ones

    def start(self, _module: str, sock: socket.socket) -> subprocess.Popen[bytes]:
        code = "raise SystemExit(3)" if self.die_at_start > 0 else _CHILD
        self.die_at_start -= 1
        return subprocess.Popen([sys.executable, "-c", code, str(sock.fileno())], pass_fds=[sock.fileno()])

    def close(self) -> None:
        pass


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ServerProcess]]:
    """Makes a `ServerProcess` whose child serves nothing."""
    monkeypatch.setattr(server_process, "Starter", _Starter)
    opened: list[ServerProcess] = []

    def make(*args: object) -> ServerProcess:
        plan = ServerPlan(directory="/", cluster=cluster(), address="127.0.0.1:0", token="")
        opened.append(ServerProcess(plan, *args))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_a_run_starts_its_server_again_each_day_and_not_for_ever_in_a_row(own_server) -> None:
    clock, reasons = Clock(), []
    server = own_server(1, reasons.append, clock)

    def kill() -> None:
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: reasons or server.pid != pid)

    for _ in range(3):
        clock.ahead_s += DAY_S
        kill()
        until(lambda: reasons or server._ready_s > clock() - DAY_S / 2)
    assert reasons == []
    kill()
    assert "after 1 restarts in a row, the limit of sampling.max_restarts" in reasons[0]


def test_a_server_that_dies_while_it_is_started_again_is_one_more_in_the_row(own_server) -> None:
    reasons: list[str] = []
    server = own_server(3, reasons.append, Clock())
    began_s = server._ready_s
    server._starter.die_at_start = 2
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: reasons or server._ready_s > began_s)
    assert (reasons, server._in_a_row) == ([], 3)
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: reasons)
    assert "was killed by SIGKILL, after 3 restarts in a row, the limit of sampling.max_restarts" in reasons[0]
