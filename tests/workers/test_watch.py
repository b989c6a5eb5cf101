"""A rank that is stopped while its sampler processes go on is noticed by the ranks of other hosts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.base import PeerLostError
from glt_lightning.workers import Link, Message
from glt_lightning.workers.producer.process import OwnerWatch
from tests.helpers import started
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.servers import until

ENV = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}
RANK = """
import sys, time
from glt_lightning.workers import Link
from glt_lightning.graph import LocalPartition
from glt_lightning.base import SamplingOptions
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.producer.subprocess import SubprocessProducer

partition = LocalPartition.open(sys.argv[1], parts=[0])
link = Link(job="test", role="worker", name="rank 1", token="a secret of this test")
producer = SubprocessProducer(SamplerSource.of(partition, link, serve="127.0.0.1:0"), SamplingOptions(num_workers=1))
print("listens at", *producer.addresses(), flush=True)
time.sleep(60)
"""


def test_samplers_tell_that_their_rank_is_stopped(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    with started([sys.executable, "-c", RANK, str(partition.directory)], env=ENV) as run:
        until(lambda: "listens at" in run.output, 60)
        address = run.output.split()[-1]
        link = Link(job="test", role="worker", name="rank 0", token="a secret of this test")
        peer = link.peer("rank 1", [address], link.open_transport())
        try:
            assert peer.ask("here").result().header == {}
            run.popen.send_signal(signal.SIGSTOP)
            until(lambda: peer.ask("here").result().header == {"stopped": run.popen.pid})
            run.popen.send_signal(signal.SIGCONT)
            until(lambda: peer.ask("here").result().header == {})
        finally:
            peer.close()


class Scripted:
    """A peer that is asked for signs of life, and its answers; the last one for good."""

    name = "rank 1"

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.asked = 0

    def ask(self, _op: str) -> Scripted:
        self.asked += 1
        return self

    def result(self) -> Message:
        return Message(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])


@pytest.mark.parametrize(("last", "lost"), [({"stopped": 7}, True), ({}, False)])
def test_a_rank_that_is_stopped_for_too_long_is_lost(last: dict[str, Any], lost: bool) -> None:
    """Three rounds of 0.02 s after the first, in a row."""
    peer, said = Scripted(*[{"stopped": 7}] * 3, {}, *[{"stopped": 7}] * 3, last), []
    heard = threading.Event()

    def on_loss(reason: str, _closed: threading.Event) -> None:
        said.append(reason)
        heard.set()

    watch = OwnerWatch([peer], 0.02, 0.05, on_loss)  # type: ignore[list-item]
    try:
        until(lambda: heard.is_set() if lost else peer.asked > 20)
        assert bool(said) is lost
        if lost:
            assert peer.asked == 8
            assert said[0].startswith("rank 1: its process 7 has been stopped by SIGSTOP or a debugger for 0 s")
    finally:
        watch.close()


def test_peers_that_end_while_a_job_ends_are_not_lost() -> None:
    asked, go_on, said = threading.Event(), threading.Event(), []

    class Peer:
        name = "rank 1"

        def ask(self, _op: str) -> Peer:
            return self

        def result(self) -> Message:
            asked.set()
            go_on.wait(10)
            raise PeerLostError("rank 1: is gone")

    watch = OwnerWatch([Peer()], 0.001, 1.0, lambda reason, _: said.append(reason))  # type: ignore[list-item]
    assert asked.wait(10)
    watch.stop()
    go_on.set()
    watch.close()
    assert not said
