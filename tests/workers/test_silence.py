"""Which rank stands still, told apart from one that is busy; with a clock and processes of the test's own."""

from __future__ import annotations

import os

import pytest

from glt_lightning.workers import Silence
from glt_lightning.workers.cluster.link import State, read_state


class World:
    """Two ranks, watched with a limit of 60 s."""

    def __init__(self, letter: str = "S") -> None:
        self.now = 1000.0
        self.states: dict[int, State | None] = {11: State(letter, 5), 12: State("S", 5)}
        self.silence = Silence({1: 11, 2: 12}, 60, clock=lambda: self.now, look=lambda pid: self.states[pid])
        assert self.silence.find() is None

    def pass_(self, seconds: float, speak: tuple[int, ...] = (2,)) -> tuple[int, str] | None:
        """Lets time pass in which some ranks speak; what is found first."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.silence.beat_s
            for rank in speak:
                self.silence.heard(rank)
            if (found := self.silence.find()) is not None:
                return found
        return None


def test_rank_that_is_stopped() -> None:
    world = World("T")
    assert world.pass_(55) is None
    assert world.pass_(10) == (1, "no heartbeat for 60 s; its process is stopped by SIGSTOP or a debugger")
    assert world.now <= 1000 + 60 + world.silence.beat_s


def test_rank_that_is_frozen_or_in_a_deadlock() -> None:
    """It gets five times as long: it may wait for a disk."""
    world = World()
    assert world.pass_(290) is None
    found = (1, "no heartbeat for 300 s; its process uses no CPU time (state S), so it is frozen or deadlocked")
    assert world.pass_(20) == found


def test_rank_whose_threads_wait_for_the_gil_is_busy() -> None:
    """It computes for an hour without a word; then it stops computing."""
    world = World("R")
    for _ in range(30):
        assert world.pass_(110) is None
        world.states[11] = State("R", world.states[11].cpu + 1)
        assert world.pass_(10) is None
    assert world.pass_(320) is not None


def test_rank_that_speaks_needs_no_cpu() -> None:
    """A clock tick is 10 ms, and a waiting rank uses less."""
    assert World().pass_(3600, speak=(1, 2)) is None


def test_rank_that_left_in_order() -> None:
    world = World("T")
    world.silence.forget(1)
    assert world.pass_(300) is None


def test_process_of_another_container() -> None:
    """What it says is all there is."""
    world = World()
    world.states[11] = None
    assert world.pass_(300, speak=(1, 2)) is None
    assert world.pass_(320) == (1, "no heartbeat for 300 s; its process is not visible from here")


@pytest.mark.parametrize("seconds", [40, 3600])
def test_watcher_that_stood_still_itself(seconds: int) -> None:
    """A whole job that was suspended goes on, though others may wake up later."""
    world = World("T")
    world.pass_(30)
    world.now += seconds
    assert world.silence.find() is None
    assert world.pass_(600, speak=(1, 2)) is None


def test_state_of_a_real_process() -> None:
    before = read_state(os.getpid())
    while (after := read_state(os.getpid())) == before:
        pass  # until a tick of CPU time is over
    assert before is not None
    assert after is not None
    assert after.cpu > before.cpu
    assert after.letter in "RS"
    assert read_state(0) is None
