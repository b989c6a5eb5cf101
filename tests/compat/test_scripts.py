"""Plain scripts of several processes on loopback: all end with status 0, also where a loader is left early."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import DataError
from tests.compat.fields import loader_of_subgraphs, loaders_of_links, typed_loaders
from tests.compat.scripts import CLUSTER, checked, loader
from tests.helpers.contents import contents
from tests.helpers.rings import NODES, dataset, ring_folder, typed_ring_folder
from tests.helpers.run import Run, started
from tests.helpers.servers import until

dist = glt.distributed
SCRIPTS = Path(__file__).parent / "scripts.py"


class Job:
    """Processes of one script. folder: of its ring."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self.folder = stack, folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self, role: str, *args: object) -> Run:
        argv = [sys.executable, str(SCRIPTS), role, str(self.folder), str(self.port), *map(str, args)]
        return self._stack.enter_context(started(argv, env={"OMP_NUM_THREADS": "1"}))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(stack, tmp_path)


def all_end_well(runs: list[Run]) -> None:
    for run in runs:
        status = run.wait(200)
        assert status == 0, "\n".join(f"{each.popen.args}\n{each.output}" for each in runs)
        assert "is done" in run.output


def kill(run: Run) -> None:
    for process in run.family():
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    run.popen.wait(20)


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again(job: Job) -> None:
    """In mid-epoch: the client, which is this process, goes on with the very batches that one process makes."""
    folder = ring_folder(job.folder, parts=1)
    first = job.start("server", 0, 1, 1)
    dist.init_client(1, 1, 0, "localhost", job.port, client_group_name="trainers", cluster=CLUSTER)
    try:
        options = dist.RemoteDistSamplingWorkerOptions(num_workers=1, prefetch_size=1)
        assert dist.request_server(0, torch.cuda.device_count) == torch.cuda.device_count()
        with pytest.raises(DataError, match=r"calls no 'builtins\.print', because functions are not sent"):
            dist.request_server(0, print)
        context = dist.get_context()
        assert (context.worker_name, context.global_rank, context.num_servers()) == ("trainers_0", 1, 1)
        seeds = torch.arange(NODES)
        batches = iter(loader(None, seeds, options, shuffle=True, to_device=torch.device("cpu")))
        found = [next(batches)]
        kill(first)
        again = job.start("server", 0, 1, 1)
        found += batches
        assert sorted(seed for batch in found for seed in checked(batch)) == seeds.tolist()
        loaders_of_links(None, "out", options)
        loader_of_subgraphs(None, "out", options)
        splits = glt.typing.Split.train, glt.typing.Split.valid, glt.typing.Split.test
        (train,), (val,), (test,) = (loader(None, each, options, batch_size=NODES) for each in splits)
        ids = [each.batch.tolist() for each in (train, val, test)]
        assert [len(each) for each in ids] == [NODES - 10, 5, 5]
        assert sorted(each for split in ids for each in split) == seeds.tolist()
    finally:
        dist.shutdown_client()
    all_end_well([again])
    alone = loader(dataset(folder), seeds, None, shuffle=True)
    assert [contents(batch) for batch in found] == [contents(batch) for batch in alone]
    alone.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("edge_dir", ["out", "in"])
def test_typed_loaders_of_a_client(job: Job, edge_dir: str) -> None:
    typed_ring_folder(job.folder, strategy="by_src" if edge_dir == "out" else "by_dst")
    servers = [job.start("server", rank, 2, 1) for rank in range(2)]
    dist.init_client(2, 1, 0, "localhost", job.port, cluster=CLUSTER)
    try:
        typed_loaders(None, edge_dir, dist.RemoteDistSamplingWorkerOptions(server_rank=1))
    finally:
        dist.shutdown_client()
    all_end_well(servers)


@pytest.mark.slow
def test_in_bound_loaders_of_a_client(job: Job) -> None:
    ring_folder(job.folder, strategy="by_dst")
    servers = [job.start("server", rank, 2, 1) for rank in range(2)]
    dist.init_client(2, 1, 0, "localhost", job.port, cluster=CLUSTER)
    try:
        options = dist.RemoteDistSamplingWorkerOptions(server_rank=1)
        loaders_of_links(None, "in", options)
        loader_of_subgraphs(None, "in", options)
    finally:
        dist.shutdown_client()
    all_end_well(servers)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", [0, 1])
def test_one_of_two_servers_is_killed_and_started_again(job: Job, killed: int) -> None:
    """Server 0 is also where all have met."""
    ring_folder(job.folder, parts=2)
    servers = [job.start("server", rank, 2, 2) for rank in range(2)]
    clients = [job.start("client", rank, 2, 2, "wait") for rank in range(2)]
    until(lambda: all("has a batch" in run.output or run.popen.poll() is not None for run in clients), 120)
    kill(servers[killed])
    servers[killed] = job.start("server", killed, 2, 2)
    (job.folder / "go on").touch()
    all_end_well([*servers, *clients])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "world", "early"), [("one", 2, 0), ("mp", 2, 1), ("one", 4, 3), ("mp", 4, 0), ("memory", 2, 1)]
)
def test_workers(job: Job, kind: str, world: int, early: int) -> None:
    ring_folder(job.folder, parts=2 if world == 2 else 4)
    all_end_well([job.start("worker", rank, world, kind, early) for rank in range(world)])


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "clients", "early"), [(1, 1, "none"), (2, 2, "1"), (2, 4, "0")])
def test_servers_and_clients(job: Job, servers: int, clients: int, early: str) -> None:
    ring_folder(job.folder, parts=servers)
    runs = [job.start("server", rank, servers, clients) for rank in range(servers)]
    all_end_well([*runs, *(job.start("client", rank, servers, clients, early) for rank in range(clients))])


@pytest.mark.slow
def test_servers_of_parts_in_memory(job: Job) -> None:
    runs = [job.start("server", rank, 2, 2) for rank in range(2)]
    all_end_well([*runs, *(job.start("client", rank, 2, 2, "none") for rank in range(2))])
