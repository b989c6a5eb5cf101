"""Processes are killed in the middle of training: the others go on to the very same weights, or end and leave nothing."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from glt_lightning import ClusterOptions
from glt_lightning.options import DeadlineOptions
from tests.helpers import Run, started
from tests.helpers.family import settle
from tests.helpers.servers import Farm, open_farm, until
from tests.lightning.serving import free_addresses
from tests.lightning.shaken import LIMIT_S, STEPS, Training, samplers_of, training
from tests.lightning.test_serve import listening
from tests.lightning.test_two_ranks import ONE_THREAD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_S = 2.0
GONE_S = 10.0  # after the end of a job, or of one of its processes, nothing of it is left
DEADLINES = DeadlineOptions(lease_s=LEASE_S)


@pytest.fixture(scope="module")
def folder(graph_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs find the partition of the small graph into two parts, below ``root``."""
    return tmp_path_factory.mktemp("shaken")


@pytest.fixture(scope="module")
def own_data(graph_npz: Path, folder: Path) -> dict[str, Any]:
    """Data whose graph is on the host of the trainers."""
    return {"dataset": str(graph_npz), "root": str(folder / "root"), "partition": {"num_parts": 2}}


def options(**changes: Any) -> dict[str, Any]:
    given = {"num_workers": 1, "deadlines": DEADLINES, "peer_timeout_s": 3.0} | changes
    return asdict(ClusterOptions(**given))


@pytest.fixture(scope="module")
def calm(folder: Path, own_data: dict[str, Any]) -> list[dict[str, Any]]:
    """What the ranks of an undisturbed training find, which samples in process."""
    (folder / "calm").mkdir()
    with training(folder / "calm", "ddp", options(), own_data) as run:
        found = run.results()
    assert [len(rank["losses"]) for rank in found] == [STEPS, STEPS]
    return found


# Servers with a life of their own


class Servers:
    """Two graph servers as processes, with a part and a sampler each."""

    def __init__(self, folder: Path, data: dict[str, Any], stack: contextlib.ExitStack) -> None:
        self.cluster = options(servers=free_addresses(2))
        self._stack = stack
        config = {
            "data": {"class_path": "GLTDataModule", "init_args": data | {"num_neighbors": [5, 5], "batch_size": 10}}
        }
        self._config = folder / "serve.yaml"
        self._config.write_text(yaml.safe_dump(config | {"cluster": self.cluster}))
        self.runs = [self._start(rank) for rank in range(2)]
        for run in self.runs:
            listening(run, LIMIT_S)

    def _start(self, rank: int) -> Run:
        argv = ["-m", "glt_lightning", "serve", "--config", str(self._config), "--server.rank", str(rank)]
        return self._stack.enter_context(started([sys.executable, *argv], env=ONE_THREAD))

    def restart(self, rank: int) -> None:
        """Kills a server, and starts it again where it was."""
        self.kill(rank)
        self.runs[rank] = self._start(rank)
        listening(self.runs[rank], LIMIT_S)

    def kill(self, rank: int) -> None:
        self.runs[rank].popen.kill()
        assert settle(self.runs[rank].family, GONE_S) == [], "a sampler outlives its server"

    def samplers(self, rank: int) -> list[psutil.Process]:
        return samplers_of(psutil.Process(self.runs[rank].popen.pid))

    def status(self, farm: Farm, rank: int) -> dict[str, Any]:
        peer = farm.peer(self.cluster["servers"][rank], name="a tool")
        try:
            return dict(peer.ask("status").result().header)
        finally:
            peer.close()


@pytest.fixture
def servers(tmp_path: Path, own_data: dict[str, Any]) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(tmp_path, own_data, stack)


@pytest.fixture
def farm() -> Iterator[Farm]:
    with open_farm("flight") as farm:
        yield farm


def served(servers: Servers) -> dict[str, Any]:
    """How to train with these servers."""
    return {"strategy": "glt_server_client", "cluster": servers.cluster, "data": {"dataset": None}}


@pytest.mark.parametrize("victim", ["server", "sampler"])
def test_killed_servers_and_their_samplers(
    servers: Servers, farm: Farm, calm: list[dict[str, Any]], tmp_path: Path, victim: str
) -> None:
    """Twice, once for each server: in the middle of an epoch, and where one ends and validation begins."""
    with training(tmp_path, **served(servers), pauses=(2, 10)) as run:
        for rank, step in ((0, 2), (1, 10)):
            run.wait_at(step)
            if victim == "server":
                servers.restart(rank)
            else:
                (sampler,) = servers.samplers(rank)
                sampler.kill()
            run.go(step)
        assert run.results() == calm
    if victim == "sampler":
        assert [servers.status(farm, rank)["samplers"]["restarts"] for rank in range(2)] == [1, 1]


def test_a_server_that_comes_back_while_its_client_waits(
    servers: Servers, calm: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The trainers run dry, and wait."""
    with training(tmp_path, **served(servers), pauses=(7,)) as run:
        run.wait_at(7)
        servers.kill(1)
        run.go(7)
        servers.restart(1)
        assert run.results() == calm


def test_a_killed_client_and_the_run_that_resumes(
    servers: Servers, farm: Farm, calm: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The job ends; the servers forget it, serve on, and the next run goes on from the last checkpoint."""
    with training(tmp_path, **served(servers), pauses=(7,)) as run:
        run.wait_at(7)
        assert [len(servers.status(farm, rank)["clients"]) for rank in range(2)] == [1, 1]
        run.rank(1).kill()
        run.go(7)
        assert settle(run.run.family, GONE_S) == [], run.run.output
        assert run.run.popen.returncode != 0
    until(lambda: not any(servers.status(farm, rank)["clients"] for rank in range(2)), GONE_S + LEASE_S)
    with training(tmp_path, **served(servers), resume="ckpt/step=6.ckpt", name="resumed") as run:
        resumed = run.results()
    assert [rank["weights"] for rank in resumed] == [rank["weights"] for rank in calm]
    assert [rank["losses"] for rank in resumed] == [rank["losses"][6:] for rank in calm]
    assert [run.popen.poll() for run in servers.runs] == [None, None]


# Ranks that serve each other


def test_killed_samplers_of_peers(own_data: dict[str, Any], calm: list[dict[str, Any]], tmp_path: Path) -> None:
    """Each rank has one part, so the samplers of the other miss rows until the killed one is back."""
    data = own_data | {"sampling": {"num_workers": 1}}
    with training(tmp_path, "glt_worker", options(placement="rank"), data, pauses=(2, 10)) as run:
        for rank, step in ((1, 2), (0, 10)):
            run.wait_at(step)
            (sampler,) = run.samplers(rank)
            sampler.kill()
            run.go(step)
        assert run.results() == calm


# What is left

MODES = {
    "workers": ("glt_worker", {"placement": "rank"}, {"sampling": {"num_workers": 1}}),
    "own server": ("glt_server_client", {}, {}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["success", "exception", "SIGTERM", "rank 0", "rank 1", "sampler", "server"])
def test_nothing_is_left(
    own_data: dict[str, Any], calm: list[dict[str, Any]], tmp_path: Path, mode: str, end: str
) -> None:
    """No process, no listening port; names in /dev/shm are looked for after every test. end: how, or who is killed."""
    strategy, cluster, data = MODES[mode]
    if (mode, end) == ("workers", "server"):
        pytest.skip("ranks that serve each other have no server")
    fail_at = 4 if end == "exception" else -1
    with training(tmp_path, strategy, options(**cluster), own_data | data, pauses=(3,), fail_at=fail_at) as run:
        run.wait_at(3)
        ports = listening_ports(run.run.family())
        assert ports
        harm(run, mode, end)
        run.go(3)
        if end in ("success", "sampler", "server"):
            assert run.results() == calm
        left = settle(run.run.family, GONE_S)
        assert left == [], run.run.output
        assert not listening_ports(list(psutil.process_iter())) & ports
        assert (run.run.popen.returncode == 0) == (end in ("success", "sampler", "server")), run.run.output


def harm(run: Training, mode: str, end: str) -> None:
    (server,) = servers_of(run.rank(0)) if mode == "own server" else (None,)
    if end == "SIGTERM":
        run.rank(0).send_signal(signal.SIGTERM)
    elif end == "server":
        assert server is not None
        server.kill()
    elif end == "sampler":
        (sampler,) = samplers_of(server) if server is not None else run.samplers(1)
        sampler.kill()
    elif end.startswith("rank"):
        run.rank(int(end.removeprefix("rank "))).kill()


def servers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "server_child" in " ".join(child.cmdline())]


def listening_ports(processes: list[psutil.Process]) -> set[int]:
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = process.net_connections(kind="tcp")
            found |= {sock.laddr.port for sock in sockets if sock.status == psutil.CONN_LISTEN}
    return found
