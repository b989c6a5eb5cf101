"""The network within a process fails as it is told to, and peers get along with that."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from glt_lightning.base import DeadlineOptions, OptionError, PeerLostError
from glt_lightning.workers import Caller, Message
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.network_faults import Clock, Faults
from tests.helpers.places import Desk, Place, pattern

pytestmark = pytest.mark.timeout(60)

QUICK = DeadlineOptions(connect_s=0.3, call_s=0.1, reconnect_s=20)
ALL = Faults(delay_s=(0.0, 0.003), reorder=0.3, duplicate=0.2, lose_request=0.1, lose_reply=0.1)


@pytest.fixture
def network() -> Iterator[InProcessNetwork]:
    with InProcessNetwork() as network:
        yield network


@pytest.fixture
def place(network: InProcessNetwork) -> Iterator[Place]:
    place = Place("in process", network, QUICK)
    yield place
    place.close()


@pytest.mark.parametrize("seed", range(3))
def test_every_question_is_answered_once_whatever_happens(
    network: InProcessNetwork, place: Place, desk: Desk, seed: int
) -> None:
    asked: Counter[int] = Counter()

    def double(message: Message, _caller: Caller) -> Message:
        asked[message.header["n"]] += 1
        return Message({"n": message.header["n"]}, message.body * 2)

    peer = place.peer(place.serve(desk.service(double=double)).address)
    network.faults = Faults(**{**vars(ALL), "seed": seed})
    answers = [peer.ask("double", {"n": n}, np.full(9, n, dtype=np.uint8), bulk=n % 2 == 0) for n in range(100)]
    for n, answer in enumerate(answers):
        reply = answer.result()
        assert reply.header == {"n": n}
        np.testing.assert_array_equal(reply.body, 2 * n)
    assert set(asked) == set(range(100))
    assert max(asked.values()) > 1  # some were repeated
    assert peer.stats.retries > 0  # and some lost


def test_the_same_seed_does_the_same() -> None:
    faults = Faults(**{**vars(ALL), "seed": 5})
    drawn = [faults.arrivals(way, "op", n) for way in ("request", "reply") for n in range(500)]
    assert drawn == [faults.arrivals(way, "op", n) for way in ("request", "reply") for n in range(500)]
    assert drawn != [Faults(**{**vars(ALL), "seed": 6}).arrivals("request", "op", n) for n in range(1000)]
    sizes = Counter(map(len, drawn))
    assert set(sizes) == {0, 1, 2}
    assert 50 < sizes[0] < 150
    assert 100 < sizes[2] < 280


def test_only_some_operations_and_servers_are_hit(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    first, second = place.serve(desk.service()), place.serve(desk.service())
    network.faults = Faults(lose_request=1.0, ops={"echo"}, addresses={first.address})
    one, two = place.connect(first.address), place.connect(second.address)
    with pytest.raises(PeerLostError):
        one.call("echo", {}).result(0.05)
    assert one.call("who", {}).result(5).header["name"] == "a test"
    assert two.call("echo", {}).result(5).header == {}
    network.faults = None
    assert one.call("echo", {}).result(5).header == {}


def test_a_lost_reply_is_one_whose_work_was_done(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    desk.release.set()
    connection = place.connect(place.serve(desk.service()).address)
    for faults, runs in ((Faults(lose_request=1.0), 0), (Faults(lose_reply=1.0), 1)):
        network.faults = faults
        with pytest.raises(PeerLostError):
            connection.call("wait", {}).result(0.1)
        assert desk.waiting == runs
    network.faults = Faults(duplicate=1.0)
    assert connection.call("wait", {}).result(5).header == {}
    for _ in range(3):
        assert desk.entered.acquire(timeout=5)
    assert desk.waiting == 3


def test_delays_let_later_calls_come_first(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    order: list[int] = []

    def note(message: Message, _caller: Caller) -> Message:
        order.append(message.header["n"])
        return Message({})

    connection = place.connect(place.serve(desk.service(note=note)).address)
    network.faults = Faults(reorder=0.5)
    for pending in [connection.call("note", {"n": n}) for n in range(40)]:
        pending.result(5)
    assert sorted(order) == list(range(40))
    assert order != sorted(order)


def test_a_cut_is_noticed_and_heals(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection, peer = place.connect(server.address), place.peer(server.address)
    pending, stream = connection.call("wait", {}), iter(connection.stream("news", {}))
    next(stream)
    assert desk.entered.acquire(timeout=5)
    network.cut(server.address)
    with pytest.raises(PeerLostError):
        pending.result(5)
    with pytest.raises(PeerLostError):
        next(stream)
    with pytest.raises(PeerLostError, match="nothing listens at this address"):
        place.connect(server.address)
    answer = peer.ask("echo", {"after": "the cut"})
    network.heal(server.address)
    assert answer.result().header == {"after": "the cut"}


def test_a_silent_cut_is_told_by_nobody(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    connection, peer = place.connect(server.address), place.peer(server.address)
    stream = iter(connection.stream("count", {"count": 3}))
    assert next(stream).header == {"number": 0}
    network.cut(server.address, silent=True)
    with pytest.raises(PeerLostError, match="no answer to 'echo'"):
        connection.call("echo", {}).result(0.05)
    with pytest.raises(PeerLostError, match="no answer to the greeting"):
        place.connect(server.address, timeout_s=0.05)
    answer = peer.ask("echo", {"after": "the cut"})
    threading.Timer(0.3, network.heal, (server.address,)).start()
    assert next(stream).header == {"number": 1}  # what was under way comes late
    assert answer.result().header == {"after": "the cut"}


def test_streams_break(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    connection = place.connect(place.serve(desk.service()).address)
    network.faults = Faults(cut_stream=0.2, seed=1)
    lengths = []
    for _ in range(10):
        found = []
        with pytest.raises(PeerLostError):
            found.extend(connection.stream("count", {"count": 100}))
        lengths.append(len(found))
    network.faults = None
    assert len(list(connection.stream("count", {"count": 100}))) == 100


def test_nothing_is_shared_between_the_ends(place: Place, desk: Desk) -> None:
    seen: list[np.ndarray] = []

    def keep(message: Message, _caller: Caller) -> Message:
        seen.append(message.body)
        return message

    connection = place.connect(place.serve(desk.service(keep=keep)).address)
    body = pattern(10)
    reply = connection.call("keep", {}, body).result(5).body
    assert not np.shares_memory(seen[0], body)
    assert not np.shares_memory(seen[0], reply)


def test_addresses(network: InProcessNetwork, place: Place, desk: Desk) -> None:
    assert place.serve(desk.service(), "node7:1234").address == "node7:1234"
    with pytest.raises(OptionError, match="Address already in use"):
        place.serve(desk.service(), "node7:1234")
    assert place.serve(desk.service(), "node7:0").address != place.serve(desk.service(), "node7:0").address


def test_the_clock_keeps_to_the_times() -> None:
    clock, order, done = Clock(), [], threading.Event()
    began = time.monotonic()
    clock.after(0.1, lambda: (order.append("late"), done.set()))
    clock.after(0.02, lambda: order.append("early"))
    assert done.wait(5)
    assert time.monotonic() - began >= 0.1
    assert order == ["early", "late"]
    clock.after(60, done.clear)
    clock.close()
    clock.after(0, done.clear)
    assert done.is_set()
