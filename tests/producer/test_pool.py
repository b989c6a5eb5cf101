"""Which process makes which task, and when a process that ended is started again."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from glt_lightning.channel.slots import SharedSlot
from glt_lightning.channel.wire import send
from glt_lightning.producer import pool
from glt_lightning.producer.pool import SamplerPool
from glt_lightning.producer.process import BatchTask
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.sampler.request import BatchRequest, SamplerConfig

CONFIG = SamplerConfig(seed_type=0, fanouts=((2,),))


class Process:
    """Stands for a `SamplerProcess`; the test plays the child, at the other end of the socket."""

    def __init__(self, index, source, threads, timeout_s, starter):
        self.index, self.source, self.name = index, source, f"sampler process {index}"
        self.tasks: dict[tuple[int, int], BatchTask] = {}
        self.sock, self.child = socket.socketpair()
        self.heard_s = 0.0

    def fileno(self):
        return self.sock.fileno()

    def submit(self, task):
        self.tasks[task.key] = task

    def made(self, number):
        send(self.child, {"run": 1, "number": number})

    def exit_reason(self):
        return "ended"

    def hang_up(self):
        self.sock.close()
        self.child.close()

    kill = hang_up

    def stop(self, _leave_s):
        pass

    @property
    def numbers(self):
        return [number for _, number in self.tasks]


@pytest.fixture
def two(monkeypatch):
    """A pool of two processes, whose failed tasks are not made again."""
    monkeypatch.setattr(pool, "SamplerProcess", Process)
    opened = SamplerPool(SamplerSource("", "", (0,)), 2, 1, 1.0, lambda failure: [], resilient=True)
    yield opened
    opened.close()


def task(number: int, alone: bool = False) -> BatchTask:
    request = BatchRequest(number, 0, np.arange(1), np.arange(1))
    return BatchTask(1, CONFIG, request, SharedSlot(number, fd=-1), once=False, alone=alone)


def read(pool: SamplerPool) -> list[int]:
    return [done.request.number for done, _ in pool.poll(0.0)]


def test_a_task_to_be_made_alone_waits_for_a_process_without_others(two):
    first, second = two.processes
    for number in range(3):
        two.submit(task(number))
    assert (first.numbers, second.numbers) == ([0, 2], [1])
    two.submit(task(3, alone=True))
    two.submit(task(4))
    assert (first.numbers, second.numbers) == ([0, 2, 4], [1])  # the second one gets no more
    second.made(1)
    assert read(two) == [1]
    assert (first.numbers, second.numbers) == ([0, 2, 4], [3])
    two.submit(task(5))
    assert second.numbers == [3]  # it is alone
    second.made(3)
    assert read(two) == [3]
    two.submit(task(6))
    assert second.numbers == [6]
    assert two.num_tasks == 5
