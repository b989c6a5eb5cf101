"""Sampler processes that die, raise or hang."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import GLTError, SamplerError, SamplingOptions
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.producer import subprocess
from glt_lightning.workers.producer.process import SamplerProcess, StandStill
from glt_lightning.workers.producer.subprocess import SubprocessProducer
from tests.helpers.clock import Clock
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.servers import open_farm

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=4, shuffle=True)


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


def open_context(partition, **changes):
    return Session(partition, SamplingOptions(**{"num_workers": 2, "concurrency": 3} | changes), seed=5)


@pytest.fixture(scope="module")
def want(partition):
    with Session(partition, seed=5) as context:
        return [contents(b) for b in context.make_loader(SPEC)]


@pytest.mark.parametrize("which", [pytest.param([0], marks=pytest.mark.slow), [1], [0, 1]])
def test_killed_samplers_are_replaced_and_no_batch_is_lost(partition, want, which):
    with open_context(partition) as context:
        loader = context.make_loader(SPEC)
        got = []
        for i, batch in enumerate(loader):
            got.append(contents(batch))
            if i == 4:
                for index in which:
                    os.kill(context._producer.pids[index], signal.SIGKILL)
        assert got == want
        assert loader.stats().restarts == len(which)


CONFIG = SamplerConfig(0, ((1,),))


def requests(count):
    return (BatchRequest(n, n, np.arange(4), np.arange(4)) for n in range(count))


@pytest.fixture
def deadly(monkeypatch):
    """Numbers of batches that end the process that begins to make them: once, or always if listed more than once."""
    submit, numbers = SamplerProcess.submit, []

    def submit_and_kill(process, task):
        dies = task.request.number in numbers
        if dies:
            os.kill(process.pid, signal.SIGSTOP)  # so that it does not answer before its end
        submit(process, task)
        if dies:
            process._process.kill()
            if numbers.count(task.request.number) == 1:
                numbers.remove(task.request.number)

    monkeypatch.setattr(SamplerProcess, "submit", submit_and_kill)
    return numbers


def test_a_job_of_any_length_may_lose_a_sampler_a_day(partition, deadly):
    """More deaths than ``max_restarts``, and no batch is there twice."""
    deadly += [0, 2, 4]
    producer = SubprocessProducer(partition, SamplingOptions(num_workers=1, concurrency=1, max_restarts=1))
    try:
        assert [sample.number for sample in producer.stream(CONFIG, requests(6))] == list(range(6))
        assert producer.restarts == 3
    finally:
        producer.close()


def test_a_batch_that_ends_samplers_is_an_error(partition, deadly):
    """Although the others that the process had in hand are made."""
    deadly += [5] * 9
    producer = SubprocessProducer(partition, SamplingOptions(num_workers=1, concurrency=2, max_restarts=2))
    try:
        with pytest.raises(SamplerError, match=r"was killed by SIGKILL after 2 restarts \(sampling.max_restarts\)"):
            for _ in producer.stream(CONFIG, requests(9)):
                pass
    finally:
        producer.close()


def test_a_sampler_that_raises_hands_over_its_traceback(partition):
    producer = SubprocessProducer(partition, SamplingOptions(num_workers=1, max_restarts=1))
    try:
        seeds = np.array([partition.manifest.total_nodes + 9])
        requests = iter([BatchRequest(17, 0, seeds, np.array([0]))])
        with pytest.raises(SamplerError) as caught:
            next(producer.stream(SamplerConfig(0, ((2,),)), requests))
        message = str(caught.value)
        assert "failed at batch 17: DataError" in message
        assert f"id {seeds[0]} at position 0" in message
        assert "in draft" in message  # the original traceback
        assert producer.restarts == 2  # the second process is there for other loaders
    finally:
        producer.close()


@pytest.mark.parametrize("who", ["this process", "sampler processes", "server"])
def test_a_batch_that_cannot_be_made_ends_its_own_loader_alone(tmp_path, who):
    """Before its turn the batches before it are there; other loaders go on, and so does a new one."""
    complete = torch.tensor([(u, v) for u in range(4) for v in range(4) if u != v]).T.contiguous()
    graph = partitioned(Data(edge_index=complete, num_nodes=4, train_mask=torch.ones(4, dtype=torch.bool)), tmp_path)
    links = LinkSpec(name="l", edge_label_index=complete.numpy(), num_neighbors=[1], batch_size=4)
    bad = replace(links, name="b", neg_sampling="binary", exclude_target_edges="self")
    with ExitStack() as stack:
        if who == "server":
            farm = stack.enter_context(open_farm("in process"))
            context = farm.context(farm.serve(graph).address)
        else:
            workers = 0 if who == "this process" else 1
            context = stack.enter_context(Session(graph, {"num_workers": workers, "max_restarts": 1}, seed=3))
        other = iter(context.make_loader(links))
        next(other)
        for _ in range(3):  # each time anew
            with pytest.raises(GLTError, match="loader 'b'"):
                list(context.make_loader(bad))
        assert len(list(other)) == 2
        assert len(list(context.make_loader(links))) == 3


def test_batches_before_one_that_cannot_be_made_are_delivered(partition):
    producer = SubprocessProducer(partition, SamplingOptions(num_workers=2, concurrency=2, max_restarts=0))

    def asked(bad):
        for n in range(6):
            yield BatchRequest(n, n, np.arange(4) + (partition.manifest.total_nodes if n == bad else 0), np.arange(4))

    try:
        seen = []
        with pytest.raises(SamplerError, match="failed at batch 3: DataError"):
            for sample in producer.stream(CONFIG, asked(3)):
                seen.append(sample.number)
        assert seen == [0, 1, 2]
        assert [sample.number for sample in producer.stream(CONFIG, asked(None))] == list(range(6))
    finally:
        producer.close()


def test_a_stopped_sampler_is_noticed_at_the_deadline(partition):
    with open_context(partition, num_workers=1) as context:
        stream = iter(context.make_loader(SPEC))
        next(stream)
        producer = context._producer
        os.kill(producer.pids[0], signal.SIGSTOP)
        producer._options = replace(producer._options, timeout_s=1.0)  # a sampler may take longer than that to start
        with pytest.raises(SamplerError, match=r"pid \d+.*no answer with batch \d+ within sampling.timeout_s = 1.0 s"):
            list(stream)


def test_a_stopped_sampler_is_noticed_by_who_waits_for_its_memory(partition):
    """All of it is taken, and some is at a sampler that works for a run that has ended."""
    with open_context(partition, num_workers=1) as context:
        loader = context.make_loader(SPEC)
        assert list(loader)
        producer = context._producer
        os.kill(producer.pids[0], signal.SIGSTOP)
        producer._options = replace(producer._options, timeout_s=0.5)
        taken = list(iter(producer._slots.take, None))
        producer._abandoned = 1
        with pytest.raises(SamplerError, match=r"pid \d+.*no answer with a reply within sampling.timeout_s = 0.5 s"):
            next(iter(loader))
        assert taken


def test_a_trainer_that_stood_still_gives_its_samplers_their_time_again(partition, want, monkeypatch):
    with open_context(partition, num_workers=1) as context:
        stream = iter(context.make_loader(SPEC))
        got = [contents(next(stream))]
        producer = context._producer
        pid, begun_s = producer.pids[0], time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        producer._options = replace(producer._options, timeout_s=0.3)

        def stood_still(_self):
            if time.monotonic() > begun_s + 0.6:  # without it, the time would be over
                os.kill(pid, signal.SIGCONT)
            return True

        monkeypatch.setattr(subprocess.StandStill, "happened", stood_still)
        monkeypatch.setattr(subprocess, "STEP_S", 0.05)
        assert got + [contents(batch) for batch in stream] == want


def test_standing_still_is_noticed():
    clock = Clock()
    still = StandStill(clock)
    for seconds, stood in ((5, False), (9, False), (11, True), (1, False), (3600, True), (0, False)):
        clock.ahead_s += seconds
        assert still.happened() is stood


def test_a_partition_that_vanished_is_named(tmp_path):
    partition = partitioned(small_graph(), tmp_path, 1)
    (partition.directory / "manifest.json").unlink()
    with open_context(partition) as context, pytest.raises(SamplerError, match=r"cannot start.*manifest.json"):
        next(iter(context.make_loader(SPEC)))


def test_an_owner_that_forgets_to_close_leaves_nothing(partition):
    producer = SubprocessProducer(partition, SamplingOptions(num_workers=2))
    pids = producer.pids
    del producer
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
