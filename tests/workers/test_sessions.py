"""Whose turn it is: shares by bytes, whatever the sizes of batches and the order of questions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import DataError, FullError
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.producer.pool import Failure
from glt_lightning.workers.server import sessions as sessions_module
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.server.scheduler import Scheduler
from glt_lightning.workers.server.sessions import (
    ClientStream,
    Finished,
    Reservation,
    Session,
    SessionLostError,
    Sessions,
)
from tests.helpers.clock import Clock

CONFIG = SamplerConfig(0, ((3,),))
GB = 10**9


def question(number: int, run: int = 1) -> Question:
    return Question(run, CONFIG, BatchRequest(number, number, np.arange(4), np.arange(4)))


class Bench:
    """Sessions without a server: a batch is made and taken as soon as its turn has come."""

    def __init__(self, buffer_bytes: int = GB) -> None:
        self.sessions = Sessions(buffer_bytes)
        self.nbytes: dict[str, int] = {}
        self.made: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    def add(self, name: str, nbytes: int, ahead: int = 4) -> Session:
        session = self.sessions.add(Session(name, name, "job", 60.0, 60.0, 3))
        self.nbytes[name] = nbytes
        for _ in range(ahead):
            self.ask(session)
        return session

    def ask(self, session: Session) -> None:
        self.asked[session.id] += 1
        self.sessions.ask(session, question(self.asked[session.id]))

    def turn(self, again: bool = True) -> str:
        chosen = self.sessions.next()
        assert chosen is not None
        session, asked = chosen
        job = self.sessions.job_of(session, asked, None)
        nbytes = self.nbytes[session.id]
        self.sessions.settle(job, nbytes)
        del session.making[asked.key]
        session.count(nbytes)
        self.made[session.id] += nbytes
        if again:
            self.ask(session)
        return session.id


def test_equal_clients_get_equal_shares():
    bench = Bench()
    for n in range(8):
        bench.add(f"c{n}", 1000, ahead=1 + n)
    turns = Counter(bench.turn() for _ in range(800))
    assert set(turns.values()) == {100}


def test_shares_are_of_bytes():
    """A client with small batches gets as many bytes as one with batches a hundred times as large."""
    bench = Bench()
    bench.add("small", 10)
    bench.add("large", 1000)
    turns = Counter(bench.turn() for _ in range(2020))
    assert turns["small"] == pytest.approx(2000, abs=101)
    assert turns["large"] == pytest.approx(20, abs=1)


def test_a_newcomer_starts_level():
    bench = Bench()
    bench.add("old", 1000)
    for _ in range(500):
        bench.turn()
    bench.add("new", 1000)
    turns = Counter(bench.turn() for _ in range(100))
    assert abs(turns["old"] - turns["new"]) <= 2


def test_who_asked_for_nothing_saved_up_nothing():
    bench = Bench()
    idle, _ = bench.add("idle", 1000, ahead=1), bench.add("busy", 1000)
    while bench.turn(again=False) != "idle":
        pass
    busy = next(s for s in bench.sessions if s.id == "busy")
    for _ in range(5):
        bench.ask(busy)
    for _ in range(500):
        bench.turn()
    for _ in range(4):
        bench.ask(idle)
    turns = Counter(bench.turn() for _ in range(100))
    assert abs(turns["idle"] - turns["busy"]) <= 2


def test_a_full_buffer_waits_and_always_holds_one():
    sessions = Sessions(buffer_bytes=250)
    session = sessions.add(Session("c", "c", "job", 60.0, 60.0, 3))
    for number in range(5):
        sessions.ask(session, question(number))

    def make() -> Reservation | None:
        chosen = sessions.next()
        if chosen is None:
            return None
        job = sessions.job_of(*chosen, None)
        assert sessions.next() is None or session.largest  # until a size is known, one at a time
        sessions.settle(job, 100)
        del session.making[job.question.key]
        session.count(100)
        return Reservation(session, 100)

    first, second = make(), make()
    assert first is not None
    assert second is not None
    assert make() is None  # 200 of 250 bytes are taken, and a third one would not fit
    first.release()
    first.release()
    assert session.held == 100
    assert make() is not None
    session.count(10**6)  # larger than the buffer: one at a time
    assert make() is None
    session.held = 0
    assert make() is not None


@pytest.mark.parametrize(("clients", "expected"), [(1, 6), (2, 3), (3, 2), (9, 2)])
def test_clients_share_a_buffer_and_each_has_room_for_two(clients, expected):
    sessions = Sessions(buffer_bytes=600, shared=True)
    for name in "abcdefghi"[:clients]:
        session = sessions.add(Session(name, name, "job", 60.0, 60.0, 3))
        session.count(100)
        for number in range(20):
            sessions.ask(session, question(number))
    made: Counter[str] = Counter()
    while (chosen := sessions.next()) is not None:
        job = sessions.job_of(*chosen, None)
        sessions.settle(job, 100)
        made[chosen[0].id] += 1
    assert set(made.values()) == {expected}


def test_a_question_is_taken_once():
    sessions = Sessions(GB)
    session = sessions.add(Session("c", "c", "job", 60.0, 60.0, 3))
    for _ in range(3):
        sessions.ask(session, question(1))
    chosen = sessions.next()
    assert chosen is not None
    assert not session.waiting
    sessions.job_of(*chosen, None)
    sessions.ask(session, question(1))  # being made
    del session.making[1, 1]
    session.stream.put(Finished((1, 1), {}))
    sessions.ask(session, question(1))  # waits to be taken
    assert not session.waiting
    session.stream.take(0)
    sessions.ask(session, question(1))  # was lost on its way
    assert session.waiting


def test_too_many_questions_are_refused():
    sessions = Sessions(GB)
    session = sessions.add(Session("c", "c", "job", 60.0, 60.0, 3))
    with pytest.raises(DataError, match="4096 batches are asked for"):
        for number in range(5000):
            sessions.ask(session, question(number))
    for _ in range(10):
        session.pop()
    sessions.ask(session, question(9999))


def test_one_clients_backlog_refuses_neither_others_nor_what_is_known():
    each = question(0).nbytes
    sessions = Sessions(GB, most_waiting=40 * each)
    greedy, other = (sessions.add(Session(name, name, "job", 60.0, 60.0, 3)) for name in ("greedy", "other"))
    with pytest.raises(FullError, match="more than its share of"):
        for number in range(1000):
            sessions.ask(greedy, question(number))
    assert len(greedy.waiting) == 20
    sessions.ask(greedy, question(7))  # known: asked again over a new stream
    for number in range(10):
        sessions.ask(other, question(number))
    with pytest.raises(FullError, match="more than its share of"):
        sessions.ask(other, question(10))
    assert greedy.waiting_bytes + other.waiting_bytes <= 40 * each


def test_the_bodies_of_questions_count_as_waiting():
    session = Session("c", "c", "job", 60.0, 60.0, 3)
    session.ask(replace(question(0), body_bytes=100 << 20))
    session.ask(replace(question(1), body_bytes=100 << 20))
    with pytest.raises(DataError, match="with 256 MiB of memory, may wait"):
        session.ask(replace(question(2), body_bytes=100 << 20))


def test_a_dropped_run_leaves_the_others():
    sessions = Sessions(GB)
    session = sessions.add(Session("c", "c", "job", 60.0, 60.0, 3))
    session.largest = 1
    for run in (1, 2):
        for number in range(3):
            sessions.ask(session, question(number, run))
    chosen = sessions.next()
    assert chosen is not None
    job = sessions.job_of(*chosen, None)
    session.stream.put(Finished((1, 77), {}))
    assert session.forget_run(1) == [job]
    assert not job.wanted
    assert list(session.waiting) == [(2, 0), (2, 1), (2, 2)]
    assert not session.making
    assert len(session.stream) == 0


def test_talks():
    """A later stream takes over what an earlier one has not taken; an earlier one gets nothing any more."""
    session = Session("c", "c", "job", 60.0, 60.0, 3)
    assert session.change_stream(1)
    first = session.stream
    for number in range(3):
        first.put(Finished((1, number), {}))
    assert first.take(0)[0].key == (1, 0)
    assert session.change_stream(3)
    assert first.ended
    assert first.take(0) == []
    first.put(Finished((1, 9), {}))
    assert not session.change_stream(2)
    assert [session.stream.take(0)[0].key for _ in range(2)] == [(1, 1), (1, 2)]
    assert session.stream.take(0) == []


def test_a_server_that_stood_still_takes_nobody_for_silent():
    clock = Clock()
    sessions = Sessions(GB, clock=clock)
    sessions.add(Session("c", "c", "job", 60.0, 60.0, 3))
    clock.ahead_s += 3600
    assert not sessions.silent()
    clock.ahead_s += 29
    assert not sessions.silent()


def test_a_server_that_stood_still_takes_no_sampler_for_stuck():
    clock, replaced = Clock(), []
    session = Session("c", "c", "job", 60.0, 60.0, 3)
    task = Sessions(GB).job_of(session, question(1), None)
    sampler = SimpleNamespace(heard_s=clock(), tasks={(1, 1): task})
    pool = SimpleNamespace(processes=[sampler], is_open=lambda _: True, replace=lambda _, why: replaced.append(why))
    server = SimpleNamespace(_clock=clock, _looked_s=clock(), _pool=pool)
    for seconds in (3600, *[4] * 7):
        clock.ahead_s += seconds
        Scheduler._look_after_samplers(server)
    assert not replaced  # for half of the 60 s that its client waits
    clock.ahead_s += 4
    Scheduler._look_after_samplers(server)
    assert replaced == ["sent no reply for 32 s"]


def test_a_batch_that_failed_is_not_charged():
    clients = Sessions(GB)
    session = clients.add(Session("c", "c", "job", 60.0, 60.0, 0))
    session.largest = 1000
    jobs = [clients.job_of(session, question(n), slot=None) for n in range(2)]
    jobs[1].wanted = False
    assert session.served == 2000
    server = SimpleNamespace(_serving=True, _sessions=clients, _slots=SimpleNamespace(give_back=lambda _: None))
    for job in jobs:
        assert not Scheduler.on_failure(server, Failure("failed", "", [job], job))
    assert session.served == 0


def test_silence_ends_a_session():
    clock = Clock()
    sessions = Sessions(GB, clock=clock)
    session = sessions.add(Session("c", "c", "job", 60.0, 60.0, 3))
    assert sessions.add(Session("c", "again", "job", 60.0, 60.0, 3)) is session
    for _ in range(2):
        clock.ahead_s += 29
        assert not sessions.silent()
    clock.ahead_s += 29
    assert list(sessions.silent()) == [session]
    sessions.remove(session)
    for id_ in ("c", None, 7):
        with pytest.raises(SessionLostError):
            sessions.find(id_)
    assert isinstance(session.stream, ClientStream)
    assert session.stream.ended


def test_whose_session_makes_room():
    """One for which nothing is made, of the address that has the most; never of one that has less than the newcomer's."""
    sessions = Sessions(1000)

    def add(id_, host, **changes):
        session = sessions.add(Session(id_, id_, "job", 60.0, 60.0, 3, host))
        for name, value in changes.items():
            setattr(session, name, value)

    add("a", "1", heard_s=5.0)
    add("z", "2", held=1)
    assert sessions.greediest("2") is None
    add("b", "1", heard_s=1.0, batches=3)
    add("c", "1", heard_s=0.0, held=7)
    assert sessions.greediest("2").id == "a"
    assert sessions.greediest("3").id == "a"
    sessions.remove(sessions.find("a"))
    assert sessions.greediest("2").id == "b"


def test_a_dropped_run_gives_its_room_back(monkeypatch):
    """Else a client that drops runs of an evaluation is refused after some of them."""
    monkeypatch.setattr(sessions_module, "_MOST_WAITING_BYTES", 2 * question(0).nbytes)
    session = Session("c", "c", "job", 60.0, 60.0, 3)
    for run in (1, 2):
        assert all(session.ask(question(number, run)) for number in range(2))
        with pytest.raises(DataError, match="batches are asked for and not made yet"):
            session.ask(question(2, run))
        session.forget_run(run)
