"""A rank that is busy with other things, such as a collective call, while its sampler is killed: others need that one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from glt_lightning.base import CacheOptions, DeadlineOptions, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import HostsGraph, Link, Ranks
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.contents import contents
from tests.helpers.family import children
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=4, shuffle=True)
OPTIONS = SamplingOptions(num_workers=1, max_restarts=1)
DEADLINES = DeadlineOptions(connect_s=2, call_s=2, reconnect_s=60)  # the start of a process, on a busy machine


@pytest.mark.timeout(120)
def test_sampler_of_a_rank_that_takes_no_batches(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 2)
    with Session(whole, SamplingOptions(), seed=3, ranks=Ranks(1, 2)) as context:
        expected = [contents(batch) for batch in context.make_loader(SPEC)]
    opening = threading.Lock()  # one after the other, so that it is clear whose sampler is whose

    def work(rank: int, exchange: Callable[[str], list[str]]) -> list[str]:
        retry = Retry(first_s=0.01, most_s=0.1)
        link = Link(job="test", role="worker", name=f"rank {rank}", deadlines=DEADLINES, retry=retry)
        mine: list[int] = []

        def spread(text: str) -> list[str]:  # called when the sampler runs
            mine.extend(sorted({child.pid for child in children()} - before))
            opening.release()
            return exchange(text)

        graph = HostsGraph(LocalPartition.open(whole.directory, parts=[rank]), link, "127.0.0.1")
        opening.acquire()
        before = {child.pid for child in children()}
        cache = CacheOptions(memory=None)  # without a call of all ranks before the sampler is started
        with Session(graph, OPTIONS, seed=3, ranks=Ranks(rank, 2, spread), cache=cache) as context:
            batches = iter(context.make_loader(SPEC))
            found = [contents(next(batches))]
            if rank == 0:
                (sampler,) = mine
                os.kill(sampler, signal.SIGKILL)
            exchange("killed")
            if rank == 1:
                found += [contents(batch) for batch in batches]
            exchange("rank 1 has all of its batches")
            return found

    assert run_ranks(2, work)[1] == expected
