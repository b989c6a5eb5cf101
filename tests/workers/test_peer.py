"""A peer that goes away and comes back, over any transport."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from glt_lightning.base import DeadlineOptions, PeerLostError, RefusedError, RemoteError
from glt_lightning.workers import Message
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.message import WireError
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.places import Desk, Place, pattern

pytestmark = pytest.mark.timeout(60)

IMPATIENT = DeadlineOptions(connect_s=2, call_s=2, reconnect_s=0.3)


def test_it_connects_when_it_is_needed(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    peer = place.peer(server.address, name="rank 1")
    assert peer.name == "server 0"
    assert peer.stats.calls == peer.stats.reconnects == 0
    assert peer.welcome == {"welcome": "rank 1"}
    reply = peer.ask("echo", {"a": 1}, pattern(1000)).result()
    assert reply.header == {"a": 1}
    assert peer.ask("echo").result().header == {}
    stats = peer.stats
    assert (stats.calls, stats.bytes_out, stats.bytes_in, stats.retries, stats.reconnects) == (2, 1000, 1000, 0, 0)


def test_questions_are_on_their_way_before_anybody_waits(place: Place, desk: Desk) -> None:
    peer = place.peer(place.serve(desk.service()).address)
    answer = peer.ask("wait", {"number": 7})
    assert desk.entered.acquire(timeout=10)
    desk.release.set()
    assert answer.result().header == {"number": 7}
    assert answer.result().header == {"number": 7}


def test_it_goes_on_after_a_restart(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    peer = place.peer(server.address)
    assert peer.ask("echo", {"n": 0}).result().header == {"n": 0}
    answers = [peer.ask("wait", {"n": n}, pattern(30_000), bulk=n % 2 == 1) for n in range(6)]
    assert desk.entered.acquire(timeout=10)
    closing = threading.Thread(target=server.close)
    closing.start()
    other = Desk()
    other.release.set()
    threading.Timer(0.3, lambda: place.serve(other.service(), server.address)).start()
    assert [answer.result().header["n"] for answer in answers] == list(range(6))
    assert peer.stats.retries >= 6  # each once, and once more where the server that closes took it again
    assert peer.stats.reconnects >= 1  # a server that is about to close may have taken one
    desk.release.set()
    closing.join(10)


def test_one_thread_reconnects_for_all(place: Place, desk: Desk) -> None:
    greeted: list[object] = []

    def greet(hello: object) -> dict[str, object]:
        greeted.append(hello)
        return {}

    server = place.serve(desk.service(greet))
    peer = place.peer(server.address)
    with ThreadPoolExecutor(16) as threads:
        assert all(r.header == {} for r in threads.map(lambda _: peer.ask("echo").result(), range(16)))
        assert len(greeted) == 1
        server.close()
        answers = [threads.submit(lambda: peer.ask("echo").result()) for _ in range(16)]
        time.sleep(0.1)
        place.serve(desk.service(greet), server.address)
        assert all(answer.result(20).header == {} for answer in answers)
    assert len(greeted) == 2
    assert peer.stats.reconnects >= 1  # a server that is about to close may have taken one


def test_the_next_address_answers_when_one_is_gone(place: Place, desk: Desk) -> None:
    first = place.serve(desk.service(number=lambda m, c: Message({"n": 1})))
    second = place.serve(desk.service(number=lambda m, c: Message({"n": 2})))
    peer = place.peer(first.address, second.address)
    assert peer.ask("number").result().header == {"n": 1}
    first.close()
    assert peer.ask("number").result().header == {"n": 2}
    place.serve(desk.service(number=lambda m, c: Message({"n": 3})), first.address)
    second.close()
    assert peer.ask("number").result().header == {"n": 3}


def test_one_that_stays_away_is_named(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    server.close()
    peer = place.peer(server.address, deadlines=IMPATIENT)
    began = time.monotonic()
    answer = peer.ask("echo")  # does not raise
    with pytest.raises(PeerLostError) as caught:
        answer.result()
    assert 0.3 <= time.monotonic() - began < 5
    for part in (
        "server 0",
        server.address,
        "nothing listens at this address",
        "cluster.deadlines.reconnect_s (now 0.3 s)",
    ):
        assert part in str(caught.value)
    with pytest.raises(PeerLostError, match=r"server 0 \("):
        peer.stream("count", {"count": 1})
    with pytest.raises(PeerLostError, match="reconnect_s"):
        _ = peer.welcome
    place.serve(desk.service(), server.address)  # and is welcome when it comes back
    assert peer.ask("echo").result().header == {}


def test_one_that_says_nothing_is_given_up(place: Place, desk: Desk) -> None:
    peer = place.peer(
        place.serve(desk.service()).address, deadlines=DeadlineOptions(connect_s=2, call_s=0.2, reconnect_s=0.5)
    )
    began = time.monotonic()
    with pytest.raises(PeerLostError, match=r"server 0 .*no answer to 'wait' within 0.2 s.*reconnect_s"):
        peer.ask("wait").result()
    assert 0.5 <= time.monotonic() - began < 5
    assert peer.stats.retries >= 1
    desk.release.set()


def test_an_answer_that_is_late_does_not_end_the_others(place: Place, desk: Desk) -> None:
    calls = []

    def second_time(message: Message, _caller: object) -> Message:
        calls.append(message)
        if len(calls) == 1:
            assert desk.release.wait(30)
        return Message({"time": len(calls)})

    peer = place.peer(
        place.serve(desk.service(second_time=second_time)).address,
        deadlines=DeadlineOptions(connect_s=2, call_s=0.3, reconnect_s=20),
    )
    late = peer.ask("second_time")
    assert peer.ask("echo").result().header == {}
    assert late.result().header == {"time": 2}
    assert peer.stats.reconnects == 0
    assert peer.stats.retries == 1
    desk.release.set()


def test_errors_of_the_operation_are_not_tried_again(place: Place, desk: Desk) -> None:
    peer = place.peer(place.serve(desk.service()).address)
    with pytest.raises(RemoteError, match=r"server 0: .*ValueError: boom") as caught:
        peer.ask("boom").result()
    assert caught.value.kind == "ValueError"
    assert "in boom" in caught.value.traceback
    with pytest.raises(WireError, match="server 0"):
        peer.ask("echo", {"x": float("nan")}).result()
    assert peer.stats.retries == 0
    assert peer.ask("echo").result().header == {}


def test_a_refusal_is_final(place: Place, desk: Desk) -> None:
    greeted = []

    def greet(hello: object) -> dict[str, object]:
        greeted.append(hello)
        raise RefusedError("another job.")

    peer = place.peer(place.serve(desk.service(greet)).address)
    with pytest.raises(RefusedError, match=r"server 0 .*handshake failed: another job"):
        peer.ask("echo").result()
    with pytest.raises(RefusedError):
        _ = peer.welcome
    with pytest.raises(RefusedError):
        peer.stream("count", {"count": 1})
    assert len(greeted) == 3


def test_streams_break_and_can_be_opened_again(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    peer = place.peer(server.address)
    assert [m.header["number"] for m in peer.stream("count", {"count": 3})] == [0, 1, 2]
    stream = iter(peer.stream("news", {}))
    next(stream)
    assert desk.entered.acquire(timeout=10)
    server.close()
    with pytest.raises(PeerLostError, match="server 0"):
        next(stream)
    place.serve(desk.service(), server.address)
    assert [m.header["number"] for m in peer.stream("count", {"count": 3})] == [0, 1, 2]
    with pytest.raises(RemoteError, match=r"server 0: .*bad"):
        list(peer.stream("count", {"count": 0, "error": "bad"}))
    assert peer.stats.reconnects >= 1  # a server that is about to close may have taken one


def test_closing_it_ends_every_wait(place: Place, desk: Desk) -> None:
    peer = place.peer(place.serve(desk.service()).address)
    away = place.peer("127.0.0.1:1", deadlines=DeadlineOptions(reconnect_s=60), retry=Retry(first_s=30, most_s=30))
    failures = []

    def wait_for(answer: object) -> None:
        try:
            answer.result()
        except PeerLostError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=wait_for, args=(p.ask("wait"),)) for p in (peer, away)]
    for thread in threads:
        thread.start()
    assert desk.entered.acquire(timeout=10)
    for each in (peer, away):
        each.close()
        each.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(failures) == 2
    with pytest.raises(PeerLostError, match=r"server 0: this process has closed the connection"):
        peer.ask("echo").result()


def test_a_peer_that_never_existed_can_be_closed(place: Place) -> None:
    place.peer("127.0.0.1:1").close()


def test_a_service_that_breaks_each_time_is_not_asked_in_a_tight_loop(place: Place, desk: Desk) -> None:
    """Each connection can be made, and breaks when it is used."""
    servers = []

    def vanish(_message: Message, _caller: object) -> Message:
        vanished.append(time.monotonic())
        address = servers[-1].address
        closing = threading.Thread(target=_restart, args=(address,))
        closing.start()
        threads.append(closing)
        time.sleep(0.5)
        return Message({})

    def _restart(address: str) -> None:
        servers[-1].close()
        servers.append(place.serve(Service(lambda h: {}, {"vanish": vanish}, {}), address))

    vanished: list[float] = []
    threads: list[threading.Thread] = []
    servers.append(place.serve(Service(lambda h: {}, {"vanish": vanish}, {})))
    peer = place.peer(
        servers[0].address,
        deadlines=DeadlineOptions(connect_s=2, call_s=5, reconnect_s=2),
        retry=Retry(first_s=0.2, most_s=1.0),
    )
    with pytest.raises(PeerLostError, match="reconnect_s"):
        peer.ask("vanish").result()
    for thread in threads:
        thread.join(10)
    assert len(vanished) <= 6  # pauses of 0.2, 0.4, 0.8, 1, 1 s


def test_bodies_are_sent_again_as_they_are(place: Place, desk: Desk) -> None:
    server = place.serve(desk.service())
    peer = place.peer(server.address)
    peer.ask("echo").result()
    server.close()
    body = pattern(200_000)
    answer = peer.ask("echo", {}, body, bulk=True)
    place.serve(desk.service(), server.address)
    assert np.array_equal(answer.result().body, body)
