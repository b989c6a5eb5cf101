"""A rank is killed in the middle of training: the servers forget the job, and it resumes from its last checkpoint.

What else can befall a job: tests/faults.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from glt_lightning import ClusterOptions
from glt_lightning.base import DeadlineOptions
from tests.helpers import Run, started
from tests.helpers.family import settle
from tests.helpers.servers import Farm, open_farm, until
from tests.lightning.paused import LIMIT_S, STEPS, results, training, wait_for
from tests.lightning.serving import free_addresses
from tests.lightning.test_serve import listening
from tests.lightning.test_two_ranks import ONE_THREAD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KEPT = 6  # the step of the last checkpoint before rank 0 waits
LEASE_S = 2.0
GONE_S = 10.0  # after the end of a process of the job, nothing of it is left
CLUSTER = ClusterOptions(deadlines=DeadlineOptions(lease_s=LEASE_S), peer_timeout_s=3.0)


@contextlib.contextmanager
def two_servers(folder: Path, data: dict[str, Any], cluster: ClusterOptions) -> Iterator[list[Run]]:
    """Graph servers of the command line, with a part and a sampler each."""
    arguments = data | {"num_neighbors": [5, 5], "batch_size": 10}
    config = {"data": {"class_path": "GLTDataModule", "init_args": arguments}, "cluster": asdict(cluster)}
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "glt_lightning", "serve", "--config", folder / "serve.yaml", "--server.rank"]
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(started([*argv, str(rank)], env=ONE_THREAD)) for rank in range(2)]
        for run in runs:
            listening(run, LIMIT_S)
        yield runs


@pytest.fixture
def clients_of() -> Iterator[Callable[[str], int]]:
    """How many clients a server has, by its address."""
    with open_farm("flight") as farm:
        yield lambda address: _clients(farm, address)


def _clients(farm: Farm, address: str) -> int:
    peer = farm.peer(address, name="a tool")
    try:
        return len(peer.ask("status").result().header["clients"])
    finally:
        peer.close()


def test_a_killed_client_and_the_run_that_resumes(
    graph_npz: Path, tmp_path: Path, clients_of: Callable[[str], int]
) -> None:
    """The servers serve on meanwhile."""
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "partition": {"num_parts": 2}}
    (tmp_path / "calm").mkdir()
    with training(tmp_path / "calm", "ddp", CLUSTER, data) as run:
        calm = results(run, tmp_path / "calm")
    assert [len(rank["losses"]) for rank in calm] == [STEPS, STEPS]

    addresses = free_addresses(2)
    cluster = replace(CLUSTER, servers=addresses)
    with two_servers(tmp_path, data, cluster) as servers:
        with training(tmp_path, "glt_server_client", cluster, {"dataset": None}, stops=True) as run:
            wait_for(tmp_path / "at", run)
            assert [clients_of(address) for address in addresses] == [1, 1]
            psutil.Process(int((tmp_path / "pid1").read_text())).kill()
            (tmp_path / "go").touch()
            assert settle(run.family, GONE_S) == [], run.output
            assert run.popen.returncode != 0
        until(lambda: not any(map(clients_of, addresses)), GONE_S + LEASE_S)
        resume = f"ckpt/step={KEPT}.ckpt"
        with training(tmp_path, "glt_server_client", cluster, {"dataset": None}, resume=resume) as run:
            resumed = results(run, tmp_path)
        assert [server.popen.poll() for server in servers] == [None, None]
    assert [rank["weights"] for rank in resumed] == [rank["weights"] for rank in calm]
    assert [rank["losses"] for rank in resumed] == [rank["losses"][KEPT:] for rank in calm]
