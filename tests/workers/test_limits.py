"""One client cannot take what others need: streams, threads, memory of replies that nobody reads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from glt_lightning.base import DeadlineOptions, FullError, LimitOptions, OptionError, PeerLostError
from glt_lightning.workers import Message
from glt_lightning.workers.transport.admission import Admission, ClientConnection, LaneUsage
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.dispatch import caller_is
from glt_lightning.workers.transport.flight_common import SCHEMA, flight, to_json
from glt_lightning.workers.transport.flight_server import _Call
from glt_lightning.workers.transport.flight_transport import FlightTransport
from glt_lightning.workers.transport.frame import Kind, encode
from glt_lightning.workers.transport.message import EMPTY
from tests.helpers.clock import Clock
from tests.helpers.places import DEADLINES, Desk, Place
from tests.helpers.servers import until

pytestmark = pytest.mark.timeout(60)

MB = 1 << 20


def some(**limits: Any) -> LimitOptions:
    """These limits, also those that are no options of a user."""
    options = {each.name for each in fields(LimitOptions)} & limits.keys()
    kind = type("Limits", (LimitOptions,), {name: limits[name] for name in limits.keys() - options})
    return cast(LimitOptions, kind(**{name: limits[name] for name in options}))


@pytest.fixture
def limited() -> Iterator[Any]:
    """Makes a place whose servers have these limits."""
    with ExitStack() as stack:

        def make(**limits: Any) -> Place:
            place = Place("flight", FlightTransport(Credentials(), DEADLINES, some(**limits)))
            stack.callback(place.close)
            return place

        yield make


class Greedy:
    """A Flight client that opens lanes, asks, and reads nothing but the welcome."""

    def __init__(self, address: str) -> None:
        self.client = flight.FlightClient(f"grpc+tcp://{address}")
        self.lanes: list[tuple[Any, Any]] = []

    def open(self, **begin: Any) -> None:
        command = to_json({"lane": "calls", "hello": {"name": "greedy"}})
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(command))
        writer.begin(SCHEMA, **begin)
        self.lanes.append((writer, reader))
        assert reader.read_chunk().app_metadata[1] == Kind.WELCOME

    def ask(self, op: str, count: int = 1, **header: Any) -> None:
        for id_ in range(count):
            self.lanes[-1][0].write_metadata(encode(Kind.REQUEST, id_ + 1, {"op": op, "header": header}))

    def close(self) -> None:
        for writer, reader in self.lanes:
            reader.cancel()
            with suppress(pa.ArrowException, OSError):
                writer.close()
        self.client.close()


@pytest.fixture
def greedy() -> Iterator[Any]:
    opened: list[Greedy] = []

    def make(address: str) -> Greedy:
        opened.append(Greedy(address))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_idle_lanes_of_one_client_do_not_shut_others_out(limited: Any, greedy: Any, desk: Desk) -> None:
    place = limited(streams=12, streams_per_host=12)
    address = place.serve(desk.service()).address
    held = place.connect(address, name="healthy")
    waiting = held.call("wait", {"n": 1})
    assert desk.entered.acquire(timeout=10)
    taker = greedy(address)
    for _ in range(11):
        taker.open()
    for number in range(3):  # others come all the same, and who waits for an answer is not the one who goes
        assert place.connect(address, name=f"late {number}").call("echo", {}).result(10).header == {}
    with pytest.raises((pa.ArrowException, OSError)):
        taker.open()
        taker.lanes[0][1].read_chunk()
    desk.release.set()
    assert waiting.result(10).header == {"n": 1}


def test_who_finds_a_server_full_tries_again(limited: Any, desk: Desk) -> None:
    place = limited(streams=1)
    address = place.serve(desk.service()).address
    busy = place.connect(address)
    waiting = busy.call("wait", {})
    assert desk.entered.acquire(timeout=10)
    with pytest.raises(FullError, match=r"has 1 streams open, the limit of cluster.limits.streams"):
        place.connect(address)
    impatient = DeadlineOptions(connect_s=5, call_s=5, reconnect_s=0.1)
    with pytest.raises(PeerLostError, match=r"server 0 .*has 1 streams open.*reconnect_s"):
        place.peer(address, deadlines=impatient).ask("echo").result()
    desk.release.set()
    waiting.result(10)
    answer = place.peer(address).ask("echo", {"n": 2})
    threading.Timer(0.5, busy.close).start()
    assert answer.result().header == {"n": 2}


def test_an_operation_that_has_no_room_is_asked_again(place: Place, desk: Desk) -> None:
    calls: list[int] = []

    def full(_message: Message, _caller: object) -> Message:
        calls.append(1)
        if len(calls) < 4:
            raise FullError("no room")
        return Message({"room": True})

    peer = place.peer(place.serve(desk.service(full=full)).address)
    assert peer.ask("full").result().header == {"room": True}
    assert len(calls) == 4
    assert peer.stats.reconnects == 0


def test_replies_that_nobody_reads_are_bounded(limited: Any, greedy: Any, desk: Desk) -> None:
    """Of one client by its usage; of many by ending the one that has the most and reads nothing."""
    place = limited(unread_bytes=40_000_000, unread_total_size="100MB")
    made: list[str] = []

    def grow(message: Message, caller: Any) -> Message:
        made.append(caller.name)
        return Message({}, np.zeros(message.header["nbytes"], np.uint8))

    server = place.serve(desk.service(grow=grow))
    address = server.address
    taker = greedy(address)
    taker.open()
    taker.ask("grow", nbytes=30 * MB)
    until(lambda: server._flight._admission._held >= 30 * MB)  # from then on its lane is known for large replies
    taker.ask("grow", 20, nbytes=30 * MB)
    other = place.connect(address, name="other")
    assert other.call("grow", {"nbytes": 30 * MB}, bulk=True).result(20).body.nbytes == 30 * MB
    assert made.count("greedy") == 1
    crowd = [greedy(address) for _ in range(4)]
    for each in crowd:
        each.open()
        each.ask("grow", nbytes=30 * MB)
    # with 120 MB unread, somebody has to go; who reads is served
    assert other.call("grow", {"nbytes": 30 * MB}, bulk=True).result(30).body.nbytes == 30 * MB


def test_compressed_bodies_are_refused(limited: Any, greedy: Any, desk: Desk) -> None:
    """Ours never are. Arrow expands one before it can be looked at; its memory does not stay, and nothing is done with it."""
    echoed: list[int] = []

    def echo(message: Message, _caller: Any) -> Message:
        echoed.append(message.body.nbytes)
        return Message({})

    address = limited().serve(desk.service(echo=echo)).address
    batch = pa.RecordBatch.from_arrays([pa.array(np.zeros(50 * MB, np.uint8))], schema=SCHEMA)
    for codec in ("lz4", "zstd", None):
        before = pa.total_allocated_bytes()
        taker = greedy(address)
        taker.open(options=pa.ipc.IpcWriteOptions(compression=codec))
        taker.lanes[0][0].write_with_metadata(batch, encode(Kind.REQUEST, 1, {"op": "echo", "header": {}}))
        if codec is None:
            assert taker.lanes[0][1].read_chunk().app_metadata[1] == Kind.REPLY
        else:
            with pytest.raises(StopIteration):
                taker.lanes[0][1].read_chunk()
            until(lambda before=before: pa.total_allocated_bytes() - before < MB)
    assert echoed == [50 * MB]


def enter(admission: Admission, stack: ExitStack, peer: str) -> None:
    stack.enter_context(admission.stream(peer))


def test_whose_connection_makes_room() -> None:
    clock, severed = Clock(), []

    with ExitStack() as stack:
        rooms: dict[str, ExitStack] = {}

        def sever(peer: str) -> None:
            severed.append(peer)
            rooms.pop(peer).close()

        def come(peer: str, times: int = 1) -> None:
            clock.ahead_s += 1.0
            for _ in range(times):
                enter(admission, rooms.setdefault(peer, stack.enter_context(ExitStack())), peer)

        admission = Admission(LimitOptions(streams=8), sever, clock)
        come("ipv4:10.0.0.1:1", 2)
        come("ipv4:10.0.0.2:1")
        come("ipv4:10.0.0.2:2", 3)
        come("ipv4:10.0.0.1:2", 2)
        come("ipv4:10.0.0.3:1")  # the 9th: of those with 4 streams each, the connection with the most
        assert severed == ["ipv4:10.0.0.2:2"]
        come("ipv4:10.0.0.1:3", 2)
        come("ipv4:10.0.0.1:4")  # the 7th of an address: its own, and of equals the one that was idle longest
        assert severed == ["ipv4:10.0.0.2:2", "ipv4:10.0.0.1:1"]
        client = admission._clients["ipv4:10.0.0.1:2"]
        with admission.busy(client):
            come("ipv4:10.0.0.1:4", 2)
            assert severed[2:] == ["ipv4:10.0.0.1:3"]
            assert client.peer in rooms


def test_an_address_that_has_less_does_not_make_room() -> None:
    severed: list[str] = []
    admission = Admission(some(streams=3, streams_per_host=3), severed.append, Clock())
    with ExitStack() as stack:
        enter(admission, stack, "ipv4:10.0.0.2:1")
        enter(admission, stack, "ipv4:10.0.0.1:1")
        enter(admission, stack, "ipv4:10.0.0.1:1")
        with pytest.raises(FullError, match="this server has 3 streams open"):
            enter(admission, stack, "ipv4:10.0.0.1:1")
    assert severed == []
    assert not admission._clients


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"streams": 0}, "cluster.limits.streams: expected an integer >= 1, got 0"),
        ({"unread_total_size": "lots"}, "cluster.limits.unread_total_size: expected bytes"),
    ],
)
def test_limits_are_checked(limits: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        LimitOptions(**limits)


def test_a_lane_that_is_not_read_is_one_whatever_else_its_client_reads() -> None:
    clock, severed = Clock(), []
    admission = Admission(some(unread_bytes=1000, unread_total_size=10), severed.append, clock)
    with ExitStack() as stack:
        greedy, other = stack.enter_context(admission.stream("a:1")), stack.enter_context(admission.stream("b:1"))
        stuck, lively, newcomer = (
            LaneUsage(admission, greedy),
            LaneUsage(admission, greedy),
            LaneUsage(admission, other),
        )
        left = iter([False, True])

        def send_stuck(_reply: Message) -> None:
            admission.made(lively, 0, 0)  # a small reply on its other lane, which it reads
            admission.has_read(lively)
            clock.ahead_s += 60.0
            newcomer.answer(lambda: pytest.fail("there is no room yet"), lambda _: None, lambda: next(left))
            assert severed == ["a:1"]

        stuck.answer(lambda: Message({}, np.zeros(50, np.uint8)), send_stuck, lambda: False)
        sent: list[Message] = []
        newcomer.answer(lambda: Message({"room": True}), sent.append, lambda: False)
        assert len(sent) == 1
        assert admission._held == greedy.held == other.held == stuck.unread == 0


def test_calls_at_work_take_what_the_limits_give() -> None:
    """Of one client, and of all in the order in which they come; one that is larger than the limit works alone."""
    admission = Admission(some(unread_bytes=100, unread_total_size=150), lambda peer: None)
    with ExitStack() as stack:
        one, other = (stack.enter_context(admission.stream(peer)) for peer in ("a:1", "b:1"))

        def refused(client, nbytes: int) -> None:
            with pytest.raises(PeerLostError), admission.working(client, nbytes, lambda: True):
                pytest.fail("there is no memory for it")

        with admission.working(one, 80, lambda: True):
            refused(one, 21)
            refused(other, 71)
            with admission.working(one, 20, lambda: True), admission.working(other, 50, lambda: True):
                refused(other, 1)
            refused(other, 1000)
        with admission.working(other, 1000, lambda: True):
            refused(one, 1)
        assert admission._working == one.working == other.working == 0
        assert not admission._queue


def test_a_large_call_has_its_turn_before_later_ones() -> None:
    admission, order = Admission(some(unread_bytes=100, unread_total_size=150), lambda peer: None), []

    def work(client, nbytes: int) -> None:
        with admission.working(client, nbytes, lambda: False):
            order.append(nbytes)

    with ExitStack() as stack:
        clients = [stack.enter_context(admission.stream(f"{n}:1")) for n in range(3)]
        with admission.working(clients[0], 100, lambda: True):
            threads = []
            for client, nbytes in ((clients[1], 150), (clients[2], 10)):
                threads.append(threading.Thread(target=work, args=(client, nbytes)))
                threads[-1].start()
                while len(admission._queue) < len(threads):
                    threads[-1].join(0.01)
        for thread in threads:
            thread.join()
    assert order == [150, 10]


def test_a_client_at_its_limit_keeps_nobody_waiting() -> None:
    admission = Admission(some(unread_bytes=100, unread_total_size=100), lambda peer: None)

    def work(client, nbytes: int, until: threading.Event) -> None:
        with admission.working(client, nbytes, lambda: False):
            assert until.wait(30)

    with ExitStack() as stack:
        first, greedy, other = (stack.enter_context(admission.stream(f"{n}:1")) for n in range(3))
        never = threading.Event()
        with admission.working(first, 100, lambda: True):
            threads = [threading.Thread(target=work, args=(greedy, 60, never)) for _ in range(2)]
            for number, thread in enumerate(threads, 1):
                thread.start()
                while len(admission._queue) < number:
                    thread.join(0.01)
        with admission.working(other, 40, lambda: False):  # beside one of the two, before the other
            never.set()
        for thread in threads:
            thread.join()


def test_a_call_that_waits_keeps_its_header_as_text() -> None:
    """The values of a header take many times the memory of its text, and 64 calls of a lane may wait."""

    class Values(dict):
        """A dictionary that can be referred to weakly."""

    made: list[weakref.ref] = []

    def decode() -> Values:
        values = Values(op="echo", header={"a": 1})
        made.append(weakref.ref(values))
        return values

    sent: list[Message] = []
    frame = SimpleNamespace(id=1, decode=decode)
    service = Service(lambda hello: {}, {"echo": lambda message, caller: message}, {})
    client = ClientConnection("a:1", 0.0)
    usage = LaneUsage(Admission(LimitOptions(), lambda peer: None), client)
    replies = SimpleNamespace(send=lambda kind, id_, message: sent.append(message))
    in_flight = SimpleNamespace(leave=lambda nbytes: None)
    call = _Call(service, frame, EMPTY, caller_is({}, lambda: False), replies, in_flight, usage)
    assert made
    assert all(values() is None for values in made)
    call()
    assert [message.header for message in sent] == [{"a": 1}]
    assert all(values() is None for values in made)
