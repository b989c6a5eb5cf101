"""Which process makes which task, and when a process that ended is started again."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers import spare_samplers
from glt_lightning.workers.producer import pool, process as processes
from glt_lightning.workers.producer.pool import SamplerPool
from glt_lightning.workers.producer.process import BatchTask, SamplerProcess
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.slots import SharedSlot, receive, send
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph

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


def test_a_process_that_ended_is_replaced_by_one_at_its_address(two):
    first = two.processes[0]
    send(first.child, {"opened": True, "address": "here:1"})
    assert not read(two)
    assert two.is_open(first)
    two.replace(first, "hangs")
    again = two.processes[0]
    assert again is not first
    assert again.source.serve == "here:1"
    assert not two.is_open(again)


def test_processes_that_make_nothing_are_started_after_a_growing_pause(two, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now_s))

    def pause_s() -> float:
        """Ends the first process; returns the time after which there is another one."""
        nonlocal now_s
        begin_s = now_s
        two.replace(next(p for p in two.processes if p.index == 0), "ended")
        while len(two.processes) < 2:
            now_s += 0.05
            read(two)
        return now_s - begin_s

    assert [pause_s() for _ in range(5)] == pytest.approx([0, 0, 0.1, 0.2, 0.4], abs=0.06)
    two.submit(task(0))
    two.processes[0].made(0)
    assert read(two) == [0]
    assert pause_s() == 0


@pytest.fixture
def sampler():
    """A `SamplerProcess` without a process, and the child's end of its socket."""
    ends = []

    def start(_module, sock, _environment):
        ends.append(sock.dup())
        return SimpleNamespace(pid=1)

    process = SamplerProcess(0, SamplerSource("", "", (0,)), 1, 1.0, SimpleNamespace(start=start))
    receive(ends[0])
    yield process, ends[0]
    process.hang_up()
    ends[0].close()


def test_a_process_that_had_nothing_to_do_has_not_been_silent(sampler):
    process, _ = sampler
    slot = SharedSlot(5)
    process.heard_s = 0.0
    process.submit(replace(task(0), slot=slot))
    assert process.heard_s > 0
    process.heard_s = 0.0
    process.submit(replace(task(1), slot=slot))  # the first one is still to come
    assert process.heard_s == 0
    slot.close()


@pytest.mark.parametrize("once", [True, False])
def test_one_off_memory_is_sent_each_time(sampler, once):
    """The process has closed it behind the batch."""
    process, child = sampler
    slot, sent = SharedSlot(5), []
    for number in range(2):
        process.submit(replace(task(number), slot=slot, once=once))
        fds = receive(child)[2]
        sent.append(len(fds))
        for fd in fds:
            os.close(fd)
    assert sent == [1, int(once)]
    slot.close()


def test_a_pool_takes_processes_that_wait_for_a_graph(tmp_path):
    whole = partitioned(small_graph(), tmp_path)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
    with Session(whole, seed=3) as context:
        expected = [contents(batch) for batch in context.make_loader(spec)]
    with spare_samplers(2):
        spare = [process for _, process in processes._SPARE]
        with Session(whole, SamplingOptions(num_workers=1), seed=3) as context:
            (taken,) = context._producer.pids
            assert [contents(batch) for batch in context.make_loader(spec)] == expected
        assert taken in [process.pid for process in spare]
        assert len(processes._SPARE) == 1
    assert not processes._SPARE
    assert None not in [process.poll() for process in spare]
