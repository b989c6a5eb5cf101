"""Streams of replies, over any transport."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from glt_lightning.base import PeerLostError, RemoteError
from tests.helpers.places import Desk, Place, pattern

pytestmark = pytest.mark.timeout(60)  # a close that waited for a stream would wait until then


@pytest.mark.parametrize("nbytes", [0, 100, 100_000])
def test_messages_come_in_order_and_end(place: Place, desk: Desk, nbytes: int) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    found = list(connection.stream("count", {"count": 20, "nbytes": nbytes}))
    assert [message.header["number"] for message in found] == list(range(20))
    assert all(np.array_equal(message.body, pattern(nbytes)) for message in found)
    found[0].body[...] = 1  # writable, and of its own
    assert np.array_equal(found[1].body, pattern(nbytes))


def test_several_at_once_and_calls_beside_them(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    streams = [iter(connection.stream("count", {"count": 10, "nbytes": 50_000})) for _ in range(5)]
    for number in range(10):
        for stream in streams:
            assert next(stream).header["number"] == number
        assert connection.call("echo", {"number": number}).result(10).header["number"] == number


def test_an_error_ends_it(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    stream = iter(connection.stream("count", {"count": 2, "error": "no more"}))
    assert [next(stream).header["number"] for _ in range(2)] == [0, 1]
    with pytest.raises(RemoteError, match="ValueError: no more") as caught:
        next(stream)
    assert caught.value.kind == "ValueError"
    assert "in count" in caught.value.traceback


@pytest.mark.parametrize("op", ["nothing", "echo"])
def test_unknown_streams_are_named(place: Place, desk: Desk, op: str) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    with pytest.raises(RemoteError, match=f"unknown operation '{op}'; this server offers: count, news"):
        list(connection.stream(op, {}))


def test_the_handler_ends_when_its_reader_leaves(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    stream = connection.stream("news", {})
    assert next(iter(stream)).header == {"number": 0}
    assert desk.entered.acquire(timeout=10)
    stream.close()
    stream.close()
    assert desk.ended.wait(10)
    assert list(stream) == []


def test_a_reader_that_waits_can_be_sent_away(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    stream = connection.stream("news", {})
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(stream))
    reader.start()
    assert desk.entered.acquire(timeout=10)
    stream.close()
    reader.join(10)
    assert not reader.is_alive()
    assert len(found) <= 1


def test_a_connection_takes_its_streams_along(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    stream = iter(connection.stream("news", {}))
    next(stream)
    assert desk.entered.acquire(timeout=10)
    connection.close()
    assert desk.ended.wait(10)
    with pytest.raises((PeerLostError, StopIteration)):
        next(stream)


def test_the_server_ends_in_the_middle(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection = place.connect(server.address)
    stream = iter(connection.stream("news", {}))
    next(stream)
    assert desk.entered.acquire(timeout=10)
    server.close()
    with pytest.raises(PeerLostError):
        next(stream)
    assert desk.ended.wait(10)


def test_what_nobody_reads_does_not_pile_up(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection = place.connect(server.address)
    stream = connection.stream("count", {"count": 500, "nbytes": 1_000_000})
    assert next(iter(stream)).header["number"] == 0
    made = -1
    while desk.made != made:  # until the handler is made to wait
        made = desk.made
        time.sleep(0.3)
    assert made < 50
    assert connection.call("echo", {}).result(10).header == {}
    server.close()  # nor does it keep a server from ending
    assert desk.ended.wait(10)


def test_a_slow_reader_gets_all(place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    numbers = []
    for message in connection.stream("count", {"count": 30, "nbytes": 500_000}):
        time.sleep(0.005)
        assert np.array_equal(message.body, pattern(500_000))
        numbers.append(message.header["number"])
    assert numbers == list(range(30))
