"""Many clients that take all they can get from one server: each gets as much, and the server does not grow."""

from __future__ import annotations

import json
import sys
import threading
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers import Peer, ServerPlan
from glt_lightning.workers.server.served import RemoteProducer
from tests.helpers import started
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.servers import cluster, open_farm, until
from tests.lightning.test_two_ranks import ONE_THREAD
from tests.soak.test_chaos import MINUTES

SERVER = """
import json, signal, sys
from glt_lightning.workers import HostedServer
from glt_lightning.workers import ServerPlan
server = HostedServer(ServerPlan.from_json(json.loads(sys.argv[1])))
print("listening at", server.address, flush=True)
signal.pause()
"""

CLIENTS = 8
SECONDS = MINUTES * 60 / 2
CONFIG = SamplerConfig(0, ((5,), (5,)))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(60 * MINUTES + 300)]


class _Client:
    """Takes batches on a thread of its own until it is told to stop; counts them."""

    def __init__(self, producer: RemoteProducer, number: int, stop: threading.Event) -> None:
        self.taken = 0
        self.error: BaseException | None = None
        self._producer, self._number, self._stop = producer, number, stop
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        rng = np.random.default_rng(self._number)
        requests = (BatchRequest(n, n, rng.integers(0, 3000, 32), np.arange(32)) for n in count())
        try:
            for _ in self._producer.stream(CONFIG, requests):
                self.taken += 1
                if self._stop.is_set():
                    return
        except BaseException as error:
            self.error = error


def _memory(peer: Peer) -> int:
    """Bytes that the server's own process has."""
    return int(peer.ask("status").result().header["memory"]["server_bytes"])


def test_clients_get_equally_much(tmp_path: Path) -> None:
    partition = partitioned(small_graph(3000), tmp_path)
    plan = ServerPlan(directory=str(partition.directory), cluster=cluster(num_workers=2), address="127.0.0.1:0")
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    command = [sys.executable, script, json.dumps(plan.to_json())]
    with started(command, env=ONE_THREAD) as run, open_farm("flight") as farm:
        until(lambda: "listening at" in run.output and run.output.endswith("\n"), patience_s=60)
        address = run.output.split("listening at ")[1].split()[0]
        stop = threading.Event()
        sampling = SamplingOptions(timeout_s=60)
        clients = [
            _Client(farm.producer(farm.peer(address, name=f"client {n}"), sampling), n, stop) for n in range(CLIENTS)
        ]
        tool = farm.peer(address, name="a tool")
        for client in clients:
            client.thread.start()
        try:
            time.sleep(SECONDS / 4)
            begun, warm = [client.taken for client in clients], _memory(tool)
            time.sleep(SECONDS * 3 / 4)
            taken, after = [c.taken - b for c, b in zip(clients, begun, strict=True)], _memory(tool)
        finally:
            stop.set()
            for client in clients:
                client.thread.join(60)
    assert [client.error for client in clients] == [None] * CLIENTS
    print(f"batches {taken}, max/min {max(taken) / max(1, min(taken)):.3f}, {warm} -> {after} bytes")
    assert min(taken) > SECONDS
    assert max(taken) < 1.3 * min(taken)
    assert after < 1.1 * warm
