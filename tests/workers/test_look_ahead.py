"""Batches are requested ahead of training, within limits, and delivered in the order of the plan."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from glt_lightning.base import SamplerError, SamplingOptions
from glt_lightning.sampling import BatchRequest, Sample, SamplerConfig
from glt_lightning.workers.producer import subprocess
from glt_lightning.workers.producer.base import InFlight
from glt_lightning.workers.producer.look_ahead import LookAhead
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.producer.subprocess import SubprocessProducer

CONFIG = SamplerConfig(seed_type=0, fanouts=((2,),))
NBYTES = 10


class Notes(LookAhead[int, int]):
    """Makes batches at once, and notes the calls. memory: batches that may be requested and not delivered."""

    def __init__(self, most=3, budget=None, memory=100, **options):
        super().__init__(InFlight(most, "", budget), **options)
        self.memory, self.calls, self.closed, self.expected = memory, [], False, []
        self.asked = self.delivered = 0

    def _check_open(self):
        if self.closed:
            raise SamplerError("closed")

    def _ask(self, run, request):
        if self.asked - self.delivered >= self.memory and run.tasks:
            return None
        self.asked += 1
        self.calls.append(("ask", run.id, request.number))
        return request.number

    def _wait(self, run, task):
        self.calls.append(("wait", run.id, task))
        if task == 99:
            raise SamplerError("no batch 99")
        return task

    def _nbytes(self, made):
        return NBYTES

    def _deliver(self, made):
        self.delivered += 1
        return Sample(made, {}, None)

    def _expect(self, allowed, others):
        self.expected.append((allowed, len(others)))

    def _leave(self, run):
        self.calls.append(("leave", run.id))

    def _drop(self, run):
        self.calls.append(("drop", run.id, list(run.tasks)))


def requests(*numbers: int) -> Iterator[BatchRequest]:
    return (BatchRequest(number, 0, np.arange(1), np.arange(1)) for number in numbers)


def in_flight(producer):
    return producer.asked - producer.delivered


def test_all_batches_in_the_order_of_the_plan():
    producer = Notes()
    assert [sample.number for sample in producer.stream(CONFIG, requests(*range(7)))] == list(range(7))
    assert [call[2] for call in producer.calls if call[0] == "ask"] == list(range(7))
    assert list(producer.stream(CONFIG, requests())) == []


def test_nothing_happens_before_the_first_batch_is_asked_for():
    producer = Notes()
    stream = producer.stream(CONFIG, requests(0))
    assert not producer.calls
    stream.close()
    assert not producer.calls
    assert not producer._runs


@pytest.mark.parametrize(("in_use", "ahead"), [(0, 3), (1, 2)])
def test_a_batch_in_training_counts_where_it_takes_the_same_memory(in_use, ahead):
    producer = Notes(most=3, in_use=in_use)
    for _ in producer.stream(CONFIG, requests(*range(8))):
        assert in_flight(producer) == min(ahead, 8 - producer.delivered)


def test_the_budget_holds_once_a_size_is_known_and_for_runs_to_come():
    producer = Notes(most=8, budget=5 * NBYTES)
    stream = producer.stream(CONFIG, requests(*range(20)))
    next(stream)
    assert producer.expected[0] == (2, 0)  # the least, as long as no size is known
    assert in_flight(producer) == 5
    other = producer.stream(CONFIG, requests(*range(20)))
    next(other)
    assert in_flight(producer) == 7  # the least of a second loader, whose size is known from the first
    assert producer.expected[-1] == (2, 1)


def test_without_memory_a_request_waits_and_is_not_lost():
    producer = Notes(most=8, memory=2)
    assert [sample.number for sample in producer.stream(CONFIG, requests(*range(5)))] == list(range(5))


def test_a_run_that_is_left_is_dropped_with_the_next_request_only():
    """A finalizer may end it at any point, so nothing else may happen there."""
    producer = Notes(most=3)
    stream = producer.stream(CONFIG, requests(*range(9)))
    next(stream)
    del stream
    gc.collect()
    assert producer.calls[-1] == ("leave", 1)
    assert next(producer.stream(CONFIG, requests(0))).number == 0
    assert ("drop", 1, [1, 2, 3]) in producer.calls
    assert producer.expected[-1][1] == 0  # it is none of the other runs any more


def test_an_error_ends_the_run_with_the_batch_among_its_tasks():
    producer = Notes(most=2)
    with pytest.raises(SamplerError, match="no batch 99"):
        list(producer.stream(CONFIG, requests(0, 99, 2)))
    next(producer.stream(CONFIG, requests(0)))
    assert ("drop", 1, [99, 2]) in producer.calls


def test_an_error_of_the_plan_loses_no_batch():
    """One that is neither delivered nor dropped would keep its slot for ever."""

    def plan():
        yield from requests(0, 1, 2)
        raise OSError("the plan cannot be read")

    producer = Notes(most=3)
    with pytest.raises(OSError, match="the plan"):
        next(producer.stream(CONFIG, plan()))
    next(producer.stream(CONFIG, requests(7)))
    assert ("drop", 1, [1, 2]) in producer.calls
    assert in_flight(producer) == 2


def test_a_closed_producer_gives_no_more():
    producer = Notes()
    stream = producer.stream(CONFIG, requests(*range(9)))
    next(stream)
    producer.closed = True
    with pytest.raises(SamplerError, match="closed"):
        next(stream)
    with pytest.raises(SamplerError, match="closed"):
        next(producer.stream(CONFIG, requests(0)))


def test_the_lock_is_free_while_training_has_a_batch():
    lock = threading.Lock()
    producer = Notes(turn=lock)
    for _ in producer.stream(CONFIG, requests(*range(3))):
        assert not lock.locked()


@pytest.mark.parametrize("call", ["join", "keep"])
def test_processes_are_replaced_before_or_after_a_message_to_all(monkeypatch, call):
    """One that was started in between would get the message twice, or not at all."""
    polled = []

    class Pool:
        restarts = 0

        def __init__(self, *_args):
            pass

        def join(self, _value):
            thread = threading.Thread(target=producer.tend)
            thread.start()
            thread.join(10)

        keep = join

        def poll(self, _timeout_s):
            polled.append(call)
            return []

        def close(self):
            pass

    monkeypatch.setattr(subprocess, "SamplerPool", Pool)
    producer = SubprocessProducer(SamplerSource("", "", (0,)), SamplingOptions(num_workers=1))
    getattr(producer, call)([])
    assert not polled
    producer.tend()
    assert polled == [call]
    producer.close()


def test_what_fails_between_batches_is_raised_at_the_next(monkeypatch):
    class Pool:
        def __init__(self, *_args):
            pass

        def poll(self, _timeout_s):
            raise SamplerError("ended again and again")

        def close(self):
            pass

    monkeypatch.setattr(subprocess, "SamplerPool", Pool)
    producer = SubprocessProducer(SamplerSource("", "", (0,)), SamplingOptions(num_workers=1))
    producer.tend()
    with pytest.raises(SamplerError, match="again and again"):
        next(producer.stream(CONFIG, requests(0)))
    producer.close()
