"""What only Arrow Flight has: memory that is not copied, processes that end, a wire that strangers may write to."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from glt_lightning.base import DeadlineOptions, PeerLostError
from glt_lightning.workers import Caller, Message
from glt_lightning.workers.transport import flight_client, flight_common, frame
from glt_lightning.workers.transport.base import Connection
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_common import SCHEMA, flight
from glt_lightning.workers.transport.flight_transport import FlightTransport
from glt_lightning.workers.transport.frame import Kind
from glt_lightning.workers.transport.message import MOST_HEADER, WireError, pack
from tests.helpers.examples import examples
from tests.helpers.places import Desk, Place, pattern

pytestmark = pytest.mark.timeout(120)

TOKEN = "a secret of this test"


@pytest.mark.diagonal
@pytest.mark.parametrize("nbytes", [70_000, 200_000, 1_000_000, 3_000_001, 40_000_000])
@pytest.mark.parametrize("way", ["calls", "bulk", "stream", "request"])
def test_large_bodies_arrive_where_they_need_no_copy(flight_place: Place, desk: Desk, nbytes: int, way: str) -> None:
    """The padding of a frame is worked out for this version of Arrow."""
    addresses: list[int] = []

    def look(message: Message, _caller: Caller) -> Message:
        addresses.append(message.body.ctypes.data)
        return Message({})

    connection = flight_place.connect(flight_place.serve(desk.service(look=look)).address)
    for text in ("", "a", "ab", "abcdefg", "x" * 100, "x" * 127, "x" * 130, "x" * 16_500):
        if way == "request":
            connection.call("look", {"text": text}, pattern(nbytes)).result(10)
        elif way == "stream":
            addresses += [
                message.body.ctypes.data
                for message in connection.stream("count", {"count": 1, "nbytes": nbytes, "text": text})
            ]
        else:
            header = {"nbytes": nbytes, "text": text}
            addresses.append(connection.call("grow", header, bulk=way == "bulk").result(10).body.ctypes.data)
    assert [address % 16 for address in addresses] == [0] * 8


def test_a_body_that_is_not_aligned_is_copied(flight_place: Place, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_common, "_pad", lambda frame_bytes, body_bytes: 3)
    connection = flight_place.connect(flight_place.serve(desk.service()).address)
    for text in ("", "a", "ab", "abc"):
        body = connection.call("grow", {"nbytes": 200_000, "text": text}).result(10).body
        assert body.ctypes.data % 8 == 0
        assert np.array_equal(body, pattern(200_000))


@pytest.mark.parametrize("nbytes", [100, 200_000, 9_000_000])
def test_a_body_outlives_its_connection(flight_place: Place, desk: Desk, nbytes: int) -> None:
    server = flight_place.serve(desk.service())
    connection = flight_place.connect(server.address)
    views = [connection.call("grow", {"nbytes": nbytes}).result(10).body[10:] for _ in range(3)]
    views += [message.body[10:] for message in connection.stream("count", {"count": 3, "nbytes": nbytes})]
    connection.close()
    server.close()
    del connection, server
    gc.collect()
    assert all(np.array_equal(view, pattern(nbytes)[10:]) for view in views)


class Tracked:
    """Bodies, and how many of them are still alive."""

    def __init__(self) -> None:
        self.alive = 0
        self.total = 0

    def body(self, nbytes: int) -> np.ndarray:
        base = bytearray(nbytes)
        array = np.frombuffer(base, dtype=np.uint8)
        self.alive += 1
        self.total += 1
        weakref.finalize(array, self._gone).atexit = False
        return array

    def _gone(self) -> None:
        self.alive -= 1


@pytest.mark.diagonal
@pytest.mark.parametrize("nbytes", [10_000, 2_000_000])
@pytest.mark.parametrize("bulk", [False, True])
def test_nothing_keeps_a_reply_that_was_sent(flight_place: Place, desk: Desk, nbytes: int, bulk: bool) -> None:
    tracked = Tracked()
    gc.collect()
    gc.disable()  # not by the collector: memory is to be used again at once
    try:
        service = desk.service(tracked=lambda m, c: Message({}, tracked.body(nbytes)))
        connection = flight_place.connect(flight_place.serve(service).address)
        for _ in range(5):
            connection.call("tracked", {}, bulk=bulk).result(10)
            settle(lambda: tracked.alive == 0)
        assert tracked.total == 5
    finally:
        gc.enable()


@pytest.mark.parametrize("nbytes", [10_000, 2_000_000])
def test_nothing_keeps_a_message_of_a_stream_that_was_sent(flight_place: Place, desk: Desk, nbytes: int) -> None:
    tracked = Tracked()

    def news(_message: Message, caller: Caller) -> Iterator[Message]:
        yield Message({}, tracked.body(nbytes))
        while not caller.is_gone() and not desk.release.wait(0.02):
            pass
        yield Message({}, tracked.body(nbytes))

    service = desk.service()
    service.streams["news"] = news  # type: ignore[index]
    connection = flight_place.connect(flight_place.serve(service).address)
    gc.collect()
    gc.disable()
    try:
        stream = iter(connection.stream("news", {}))
        next(stream)
        settle(lambda: tracked.alive == 0)  # while the handler waits for something new
        desk.release.set()
        next(stream)
        settle(lambda: tracked.alive == 0)
        assert tracked.total == 2
    finally:
        gc.enable()


def test_a_request_is_let_go_when_it_is_answered(flight_place: Place, desk: Desk) -> None:
    tracked = Tracked()
    connection = flight_place.connect(flight_place.serve(desk.service()).address)
    gc.collect()
    gc.disable()
    try:
        connection.call("who", {}, tracked.body(2_000_000)).result(10)
        settle(lambda: tracked.alive == 0)
    finally:
        gc.enable()


def settle(fact: Any) -> None:
    """Waits for what another thread is about to do."""
    deadline = time.monotonic() + 10
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.005)


SERVER = """
import sys, time
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport
from glt_lightning.workers import Message
import numpy as np

def news(message, caller):
    yield Message({})
    while not caller.is_gone():
        time.sleep(0.05)

def size(message, caller):
    return Message({"n": int(message.body.nbytes)})

service = Service(lambda hello: {}, {"size": size, "sleep": lambda m, c: time.sleep(m.header["s"])}, {"news": news})
server = FlightTransport(Credentials()).serve(sys.argv[1], service)
print(server.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process() -> Iterator[Any]:
    """Starts a server in a process of its own; returns it and its address."""
    started: list[subprocess.Popen[str]] = []

    def start(address: str = "127.0.0.1:0") -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def test_a_killed_server_is_noticed_at_once(flight_place: Place, other_process: Any) -> None:
    process, address = other_process()
    place = Place("flight", FlightTransport(Credentials()))
    connection = place.connect(address)
    stream = iter(connection.stream("news", {}))
    next(stream)
    pending = connection.call("sleep", {"s": 30})
    process.kill()
    began = time.monotonic()
    with pytest.raises(PeerLostError):
        pending.result(20)
    with pytest.raises(PeerLostError):
        next(stream)
    assert time.monotonic() - began < 5
    peer = place.peer(address)
    answer = peer.ask("size")
    other_process(address)
    assert answer.result().header == {"n": 0}
    place.close()


def test_a_server_that_stands_still_is_noticed(other_process: Any) -> None:
    """Stopped, as one that is cut off: the connection stays, and nothing comes."""
    process, address = other_process()
    place = Place("flight", FlightTransport(Credentials(), DeadlineOptions(call_s=1)))
    connection = place.connect(address)
    stream = iter(connection.stream("news", {}))
    next(stream)
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(PeerLostError, match="the peer answered no ping for 1 s"):
        next(stream)
    assert 0.9 < time.monotonic() - began < 10
    with pytest.raises(PeerLostError, match="no answer"):
        connection.call("size", {}).result(0.2)
    began = time.monotonic()
    place.close()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("what", ["request", "stream"])
def test_leaving_a_server_that_stands_still(other_process: Any, what: str) -> None:
    """Neither a request that it does not take nor a stream that it does not open keeps anybody."""
    process, address = other_process()
    place = Place("flight", FlightTransport(Credentials(), DeadlineOptions(call_s=60)))
    connection = place.connect(address)
    process.send_signal(signal.SIGSTOP)
    failures: list[str] = []

    def ask() -> None:
        try:
            if what == "stream":
                connection.stream("news", {})
            else:
                for _ in range(5):
                    connection.call("size", {}, pattern(30 << 20))
        except PeerLostError as error:
            failures.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.5)
    assert asking.is_alive()
    began = time.monotonic()
    place.close()
    assert time.monotonic() - began < 4
    asking.join(5)
    assert not asking.is_alive()
    assert len(failures) == 1


def test_a_stream_that_is_not_opened_in_time(other_process: Any) -> None:
    process, address = other_process()
    place = Place("flight", FlightTransport(Credentials(), DeadlineOptions(call_s=0.3)))
    connection = place.connect(address)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(PeerLostError, match=r"no answer to the opening of a stream within 0.3 s"):
        connection.stream("news", {})
    place.close()


def test_a_slow_stream_is_no_dead_one(flight_place: Place, desk: Desk) -> None:
    place = Place("flight", FlightTransport(Credentials(TOKEN), DeadlineOptions(call_s=0.4)))
    connection = place.connect(flight_place.serve(desk.service()).address)
    stream = iter(connection.stream("news", {}))
    next(stream)
    threading.Timer(1.5, desk.release.set).start()
    assert list(stream) == []  # it ended, after four times the deadline of a call
    place.close()


@pytest.mark.parametrize("how", ["return", "raise", "exit"])
def test_a_process_that_closes_nothing_ends(how: str) -> None:
    code = (
        SERVER.replace("sys.stdin.read()", "")
        + f"""
connection = FlightTransport(Credentials()).connect(server.address, {{"name": "itself"}}, 5)
pending = connection.call("sleep", {{"s": 1}})
stream = connection.stream("news", {{}})
next(iter(stream))
print("ready", flush=True)
if {how!r} == "raise":
    raise ValueError("an end")
if {how!r} == "exit":
    sys.exit(3)
"""
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "127.0.0.1:0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == {"return": 0, "raise": 1, "exit": 3}[how], done.stderr
    assert "ready" in done.stdout
    assert done.stderr == "" or how == "raise"
    assert "Fatal" not in done.stderr
    assert time.monotonic() - began < 30


def test_a_connection_that_is_dropped_ends(flight_place: Place, desk: Desk) -> None:
    server = flight_place.serve(desk.service())
    connection = flight_place.transport.connect(server.address, {"name": "a test"}, 5)
    stream = connection.stream("news", {})
    next(iter(stream))
    threads = [thread for thread in threading.enumerate() if thread.name in ("glt-calls", "glt-pulse")]
    assert threads
    del connection, stream
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert desk.ended.wait(10)


def test_descriptors_are_given_back(flight_place: Place, desk: Desk) -> None:
    def once() -> None:
        server = flight_place.transport.serve("127.0.0.1:0", desk.service())
        connection = flight_place.transport.connect(server.address, {"name": "a test"}, 5)
        connection.call("echo", {}, bulk=True).result(5)
        connection.close()
        server.close()

    once()
    process = psutil.Process()
    settle_fds = process.num_fds()
    for _ in range(5):
        once()
    settle(lambda: process.num_fds() <= settle_fds + 2)


def test_importing_the_package_does_not_import_flight() -> None:
    code = "import sys, glt_lightning.workers.transport.peer, tests.helpers.in_process; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_using_flight_leaves_the_environment_alone() -> None:
    imported = "glt_lightning.workers.transport.flight_transport"
    code = f"import os; a = dict(os.environ); import {imported}; print(a == dict(os.environ))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


# What strangers may send. They have got past certificates and secret; the operations are still closed to them.


class Stranger:
    """A Flight client that keeps to no protocol."""

    def __init__(self, address: str) -> None:
        self.client = flight.FlightClient(f"grpc+tcp://{address}")
        self.options = flight.FlightCallOptions(headers=[(b"glt-token", TOKEN.encode())], timeout=10)

    def exchange(self, command: bytes, sends: list[Any], schema: pa.Schema = SCHEMA) -> list[bytes]:
        """Sends batches, frames, or both as pairs; returns the frames that come back."""
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(command), self.options)
        found: list[bytes] = []
        with suppress(pa.ArrowException, OSError):
            writer.begin(schema)
            for batch, data in sends:
                if batch is None:
                    writer.write_metadata(data)
                elif data is None:
                    writer.write_batch(batch)
                else:
                    writer.write_with_metadata(batch, data)
            writer.done_writing()
        with suppress(pa.ArrowException, OSError, StopIteration):
            while True:
                found.append(bytes(reader.read_chunk().app_metadata))
        reader.cancel()
        with suppress(pa.ArrowException, OSError):
            writer.close()
        return found

    def get(self, ticket: bytes) -> list[bytes]:
        found: list[bytes] = []
        with suppress(pa.ArrowException, OSError, StopIteration):
            reader = self.client.do_get(flight.Ticket(ticket), self.options)
            while True:
                found.append(bytes(reader.read_chunk().app_metadata))
        return found


HELLO = json.dumps({"lane": "calls", "hello": {"name": "a stranger"}}).encode()


@pytest.fixture(scope="module")
def open_server() -> Iterator[tuple[Connection, Stranger]]:
    """A connection that keeps to the rules, and one that does not, to the same server."""
    desk = Desk()
    desk.release.set()
    place = Place("flight", FlightTransport(Credentials(TOKEN)))
    address = place.serve(desk.service()).address
    stranger = Stranger(address)
    connection = place.connect(address)
    for _ in range(8):
        still_well(connection)  # all threads are there before the first test
    yield connection, stranger
    stranger.client.close()
    place.close()


def still_well(connection: Connection) -> None:
    arrays, body = pack({"a": np.arange(3)})
    assert connection.call("echo", {"arrays": arrays}, body).result(10).body.tobytes() == body.tobytes()


live = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@live
@given(st.binary(max_size=200) | st.sampled_from([b"{}", b"[]", b'{"lane":"calls"}', b'{"lane":"x","hello":{}}']))
def test_any_opening(open_server: tuple[Connection, Stranger], command: bytes) -> None:
    connection, stranger = open_server
    assert all(frame.decode(each).kind == Kind.REFUSED for each in stranger.exchange(command, []))
    # a ticket may happen to hold an introduction; it still names no operation
    kinds = [frame.decode(each).kind for each in stranger.get(command)]
    assert kinds in ([Kind.REFUSED], [Kind.WELCOME, Kind.FAULT])
    still_well(connection)


@live
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4))
def test_any_frames(open_server: tuple[Connection, Stranger], frames: list[bytes]) -> None:
    connection, stranger = open_server
    found = [frame.decode(data) for data in stranger.exchange(HELLO, [(None, data) for data in frames])]
    assert all(each.kind in (Kind.WELCOME, Kind.FAULT, Kind.PONG) for each in found)
    still_well(connection)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["op", "header"]), v, max_size=3)
    ),
    max_leaves=8,
)


@live
@given(_values, st.sampled_from(Kind), st.integers(0, 2**64 - 1))
def test_any_json_in_a_frame(open_server: tuple[Connection, Stranger], value: Any, kind: Kind, id_: int) -> None:
    connection, stranger = open_server
    text = json.dumps(value).encode()
    data = frame.encode(kind, id_, {})[:4] + len(text).to_bytes(4, "little") + id_.to_bytes(8, "little") + text
    found = [frame.decode(each) for each in stranger.exchange(HELLO, [(None, data)])]
    assert all(each.kind in (Kind.WELCOME, Kind.FAULT, Kind.PONG) for each in found)
    if kind == Kind.REQUEST:
        assert [each.id for each in found[1:]] == [id_]
    still_well(connection)


@live
@given(st.data())
def test_damaged_messages(open_server: tuple[Connection, Stranger], data: st.DataObject) -> None:
    connection, stranger = open_server
    arrays, body = pack({"a": np.arange(40), "b": np.ones((3, 3), dtype=np.float32)})
    good = bytearray(frame.encode(Kind.REQUEST, 5, {"op": "echo", "header": {"arrays": arrays}}, body))
    for _ in range(data.draw(st.integers(1, 5))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    stranger.exchange(HELLO, [(None, bytes(good[: data.draw(st.integers(0, len(good)))]))])
    still_well(connection)


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (pa.schema([("body", pa.utf8())]), pa.array(["x"] * 1000)),
        (pa.schema([("body", pa.int64())]), pa.array(range(1000))),
        (pa.schema([("other", pa.uint8())]), pa.array([1] * 1000, pa.uint8())),
        (pa.schema([("body", pa.uint8())]), pa.array([1, None] * 500, pa.uint8())),
        (pa.schema([("body", pa.list_(pa.uint8()))]), pa.array([[1, 2]] * 1000, pa.list_(pa.uint8()))),
        (pa.schema([("body", pa.dictionary(pa.int8(), pa.utf8()))]), pa.array(["a"] * 9).dictionary_encode()),
    ],
    ids=["text", "int64", "name", "nulls", "lists", "dictionary"],
)
@pytest.mark.parametrize("with_frame", [False, True])
def test_bodies_of_other_kinds(
    open_server: tuple[Connection, Stranger], schema: pa.Schema, column: pa.Array, with_frame: bool
) -> None:
    connection, stranger = open_server
    if column.type.id == pa.types.lib.Type_DICTIONARY:
        column = column.cast(schema.field(0).type)
    batch = pa.RecordBatch.from_arrays([column], schema=schema)
    data = frame.encode(Kind.REQUEST, 1, {"op": "echo", "header": {}}) if with_frame else None
    found = stranger.exchange(HELLO, [(batch, data)], schema)
    kinds = [frame.decode(each).kind for each in found]
    assert kinds == [Kind.WELCOME, Kind.REPLY] if schema.names == ["other"] and with_frame else [Kind.WELCOME]
    still_well(connection)


def test_a_batch_that_claims_more_than_it_brings() -> None:
    """Arrow takes the length of a column from the message without a look at its memory."""
    honest = pa.RecordBatch.from_arrays([pa.array(pattern(12_345))], schema=SCHEMA)
    data = bytes(honest.serialize())
    true, claimed = (12_345).to_bytes(8, "little"), (100_000_000).to_bytes(8, "little")
    places = [at for at in range(len(data) - 8) if data[at : at + 8] == true]
    caught = 0
    for spared in places:  # the length of the batch, of the column, of its buffer: one of them stays
        forged = bytearray(data)
        for at in set(places) - {spared}:
            forged[at : at + 8] = claimed
        with suppress(pa.ArrowException, OSError):
            batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(forged)), SCHEMA)
            if len(batch.column(0)) > batch.column(0).buffers()[1].size:
                caught += 1
                chunk = SimpleNamespace(data=batch, app_metadata=frame.encode(Kind.REPLY, 1, {}))
                with pytest.raises(WireError, match="exceeds its buffer"):
                    flight_common.open_chunk(chunk)
    assert caught > 0


def test_a_header_beyond_its_limit(open_server: tuple[Connection, Stranger]) -> None:
    connection, stranger = open_server
    text = b'{"op":"' + b"x" * (2 * MOST_HEADER) + b'"}'
    data = frame.encode(Kind.REQUEST, 1, {})[:4] + len(text).to_bytes(4, "little") + bytes(8) + text
    assert len(stranger.exchange(HELLO, [(None, data)])) == 1
    opening = json.dumps({"lane": "calls", "hello": {"name": "x" * (2 * MOST_HEADER)}}).encode()
    for found in (stranger.exchange(opening, []), stranger.get(opening)):
        assert [frame.decode(each).kind for each in found] == [Kind.REFUSED]
    still_well(connection)


def test_requests_do_not_pile_up_in_a_server(flight_place: Place, desk: Desk) -> None:
    """A peer that sends without waiting for answers is made to wait by TCP."""
    server = flight_place.serve(desk.service())
    stranger = Stranger(server.address)
    writer, reader = stranger.client.do_exchange(flight.FlightDescriptor.for_command(HELLO), stranger.options)
    writer.begin(SCHEMA)
    sent = 0

    def send() -> None:
        nonlocal sent
        body = np.zeros(1 << 20, dtype=np.uint8)
        with suppress(pa.ArrowException, OSError):
            for number in range(400):
                flight_common.write(writer, Kind.REQUEST, number, {"op": "wait", "header": {}}, body)
                sent = number

    sender = threading.Thread(target=send)
    sender.start()
    settle(lambda: sent >= 60)
    before = -1
    while sent != before:
        before = sent
        time.sleep(0.5)
    # The server takes 64; more lie in the windows of HTTP/2, which gRPC widens as it estimates the link (126 were seen).
    assert sent < 200
    reader.cancel()
    sender.join(10)
    assert not sender.is_alive()
    with suppress(pa.ArrowException, OSError):
        writer.close()
    stranger.client.close()
    desk.release.set()
    assert flight_place.connect(server.address).call("echo", {}).result(10).header == {}


def test_memory_stays_bounded(other_process: Any) -> None:
    """Thousands of refused and accepted messages, large and small, leave a server as it was."""
    process, address = other_process()
    memory = psutil.Process(process.pid).memory_info
    stranger = Stranger(address)
    place = Place("flight", FlightTransport(Credentials()))
    connection = place.connect(address)

    def batter() -> None:
        for number in range(150):
            stranger.exchange(HELLO, [(None, os.urandom(50_000)), (None, b"\x01")])
            stranger.get(os.urandom(1000))
            connection.call("size", {"n": number}, pattern(400_000), bulk=number % 2 == 0).result(10)

    batter()
    before = memory().rss
    batter()
    assert memory().rss - before < 24 << 20
    stranger.client.close()
    place.close()


def test_limits_of_both_ends_agree() -> None:
    assert flight_client._MOST_IN_FLIGHT == 64
