"""Calls, over any transport."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from glt_lightning.base import DataError, OptionError, PeerLostError, RefusedError, RemoteError
from glt_lightning.workers import DTYPES, Message
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.message import MOST_HEADER, WireError, pack
from tests.helpers.places import Desk, Place, pattern

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 7, 16 << 10, (16 << 10) + 1, 100_000, 5_000_003])
def test_header_and_body_come_back(place: Place, desk: Desk, nbytes: int, bulk: bool) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    header = {"text": "Größe ☃", "list": [1, -2, 3.5, None, True], "big": 2**64 - 1, "nested": {"a": {}}}
    reply = connection.call("echo", header, pattern(nbytes), bulk=bulk).result(10)
    assert reply.header == header
    assert np.array_equal(reply.body, pattern(nbytes))


def test_received_arrays_are_aligned_and_the_receivers_own(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    sent = {f"a{i}": np.arange(3 + 10_000 * i).astype(dtype) for i, dtype in enumerate(DTYPES)}
    arrays, body = pack(sent)
    reply = connection.call("echo", {"arrays": arrays}, body).result(10)
    found = reply.arrays()
    for name, array in sent.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].ctypes.data % array.itemsize == 0
        found[name][...] = 1  # writable
    assert np.array_equal(Message({"arrays": arrays}, body).arrays()["a11"], sent["a11"])


def test_body_may_be_any_buffer(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    for body in (b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), np.frombuffer(b"bytes", dtype=np.int8)):
        assert connection.call("echo", {}, body).result(10).body.tobytes() == b"bytes"


def test_replies_come_as_they_are_ready(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    slow = connection.call("wait", {"number": 0})
    assert desk.entered.acquire(timeout=10)
    assert connection.call("echo", {"number": 1}).result(10).header == {"number": 1}
    desk.release.set()
    assert slow.result(10).header == {"number": 0}


def test_bulk_calls_do_not_stop_small_ones(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    slow = [connection.call("wait", {"number": n}, bulk=True) for n in range(20)]
    assert desk.entered.acquire(timeout=10)
    for number in range(50):
        assert connection.call("echo", {"number": number}).result(10).header == {"number": number}
    desk.release.set()
    assert [pending.result(10).header["number"] for pending in slow] == list(range(20))


@pytest.mark.parametrize("bulk", [False, True])
def test_prompt_calls_are_answered_while_all_threads_work(place: Place, desk: Desk, bulk: bool) -> None:
    service = replace(desk.service(), prompt=frozenset({"echo"}))
    connection = place.connect(place.serve(service).address)
    slow = [connection.call("wait", {"number": n}, bulk=bulk) for n in range(20)]
    assert desk.entered.acquire(timeout=10)
    for number in range(50):
        assert connection.call("echo", {"number": number}, bulk=bulk).result(10).header == {"number": number}
    desk.release.set()
    assert [pending.result(10).header["number"] for pending in slow] == list(range(20))


def test_calls_from_many_threads(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)

    def ask(number: int) -> None:
        body = np.full(number * 100, number % 256, dtype=np.uint8)
        reply = connection.call("echo", {"number": number}, body, bulk=number % 3 == 0).result(20)
        assert reply.header == {"number": number}
        assert np.array_equal(reply.body, body)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(400)))


def test_no_more_calls_than_allowed_are_on_their_way(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    sent: list[object] = []

    def send() -> None:
        sent.extend(connection.call("wait", {"number": number}) for number in range(100))

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(4):
        assert desk.entered.acquire(timeout=10)
    # Whoever goes on sending is made to wait. (Of a call that waits nothing can be seen but that it has not returned.)
    sender.join(0.5)
    assert sender.is_alive()
    assert desk.waiting == 4
    desk.release.set()
    sender.join(20)
    assert [pending.result(10).header["number"] for pending in sent] == list(range(100))


def test_an_error_brings_its_kind_and_traceback(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    with pytest.raises(RemoteError, match="ValueError: a bad day") as caught:
        connection.call("boom", {"text": "a bad day"}).result(10)
    assert caught.value.kind == "ValueError"
    assert "in boom" in caught.value.traceback
    assert caught.value.traceback in str(caught.value)
    assert connection.call("echo", {}).result(10).header == {}


def test_an_error_meant_for_people_is_just_its_message(place: Place, desk: Desk) -> None:
    def refuse(_message: Message, _caller: object) -> Message:
        raise DataError("ids: expected int64, got a song.")

    connection = place.connect(place.serve(desk.service(refuse=refuse)).address)
    with pytest.raises(RemoteError) as caught:
        connection.call("refuse", {}).result(10)
    assert str(caught.value) == "refuse: ids: expected int64, got a song."
    assert caught.value.kind == "DataError"
    assert "in refuse" in caught.value.traceback


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00" * 100_000, "☃" * 100_000, "\ud800" * 10])
def test_an_error_of_any_length_arrives(place: Place, desk: Desk, text: str) -> None:
    def fail(_message: Message, _caller: object) -> Message:
        raise ValueError(text)

    connection = place.connect(place.serve(desk.service(fail=fail)).address)
    with pytest.raises(RemoteError) as caught:
        connection.call("fail", {}).result(10)
    assert caught.value.kind == "ValueError"


def test_unknown_operations_are_named(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    with pytest.raises(
        RemoteError, match=r"unknown operation 'eval'; this server offers: boom, echo, grow, wait, who"
    ) as caught:
        connection.call("eval", {}).result(10)
    assert caught.value.kind == "WireError"
    with pytest.raises(RemoteError, match="unknown operation 'count'"):  # that is a stream
        connection.call("count", {}).result(10)


@pytest.mark.parametrize(
    "reply",
    [
        Message({"x": float("nan")}),
        Message({"x": np.int64(3)}),
        Message({"x": "y" * MOST_HEADER}),
        None,
        Message({}, np.broadcast_to(np.uint8(0), (3 << 30,))),
        Message({"x": "y" * MOST_HEADER}, pattern(5_000_000)),
    ],
    ids=["nan", "numpy", "long", "none", "huge", "long and large"],
)
def test_a_reply_that_cannot_be_sent_is_an_error(place: Place, desk: Desk, reply: Message) -> None:
    connection = place.connect(place.serve(desk.service(odd=lambda m, c: reply)).address)
    with pytest.raises(RemoteError):
        connection.call("odd", {}).result(10)
    assert connection.call("echo", {}).result(10).header == {}


def test_a_request_that_cannot_be_sent_is_an_error_here(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    for header in ({"x": float("inf")}, {"x": {1, 2}}, {"x": "y" * MOST_HEADER}):
        with pytest.raises(WireError):
            connection.call("echo", header)
    assert connection.call("echo", {}).result(10).header == {}


def test_a_deadline_passes_and_the_reply_may_still_come(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    pending = connection.call("wait", {})
    with pytest.raises(PeerLostError, match=r"no answer to 'wait' within 0.05 s"):
        pending.result(0.05)
    desk.release.set()
    assert pending.result(10).header == {}
    assert pending.result(0).header == {}


def test_heard_of(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    before = time.monotonic()
    connection.call("echo", {}).result(10)
    assert before <= connection.heard_s <= time.monotonic()


def test_the_server_ends_in_the_middle_of_calls(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection = place.connect(server.address)
    pendings = [connection.call("wait", {}, bulk=bulk) for bulk in (False, True)]
    for _ in pendings:
        assert desk.entered.acquire(timeout=10)
    closing = threading.Thread(target=server.close)
    closing.start()
    for pending in pendings:
        with pytest.raises(PeerLostError):
            pending.result(10)
    with pytest.raises(PeerLostError):
        connection.call("echo", {}).result(10)
    desk.release.set()
    closing.join(10)
    assert not closing.is_alive()


def test_the_caller_leaves_in_the_middle_of_calls(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection, other = place.connect(server.address), place.connect(server.address)
    pending = connection.call("wait", {})
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            pending.result(20)
        except PeerLostError as error:
            failures.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert desk.entered.acquire(timeout=10)
    began = time.monotonic()
    connection.close()
    connection.close()
    waiting.join(10)
    assert time.monotonic() - began < 5
    assert len(failures) == 1
    with pytest.raises(PeerLostError):
        connection.call("echo", {})
    desk.release.set()
    assert other.call("echo", {"still": "here"}).result(10).header == {"still": "here"}


def test_a_closed_server_answers_nobody(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    server.close()
    server.close()
    with pytest.raises(PeerLostError, match="nothing listens at this address"):
        place.connect(server.address)


def test_an_address_serves_again_after_a_server_has_ended(place: Place, desk: Desk) -> None:
    address = "127.0.0.1:0"
    for number in range(3):
        server = place.serve(desk.service(number=lambda m, c, n=number: Message({"number": n})), address)
        address = server.address
        connection = place.connect(address)
        assert connection.call("number", {}).result(10).header == {"number": number}
        server.close()


def test_an_address_that_is_taken(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    with pytest.raises(OptionError, match=f"cannot listen at {server.address}: Address already in use"):
        place.serve(desk.service(), server.address)
    with pytest.raises(OptionError, match="expected addresses like"):
        place.serve(desk.service(), "nowhere")


def test_the_greeting(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection = place.connect(server.address, name="rank 3", job="a job")
    assert connection.welcome == {"welcome": "rank 3"}
    for bulk in (False, True):
        reply = connection.call("who", {}, bulk=bulk).result(10)
        assert reply.header == {"name": "rank 3", "hello": {"name": "rank 3", "job": "a job"}}


def test_nobody_gets_past_a_refusal(place: Place, desk: Desk) -> None:
    def greet(hello: object) -> dict[str, object]:
        raise RefusedError("another release is installed here: 1.2.3.")

    server = place.serve(desk.service(greet))
    with pytest.raises(RefusedError, match=r"another release is installed here: 1\.2\.3\."):
        place.connect(server.address)


def test_a_greeting_that_cannot_be_read_is_refused(place: Place, desk: Desk) -> None:
    server = place.serve(Service(lambda hello: {"version": hello["version"] + 1}, {}, {}))
    with pytest.raises(RefusedError, match=r"the greeting cannot be read: TypeError"):
        place.connect(server.address, version="one")
    assert place.connect(server.address, version=1).welcome == {"version": 2}
