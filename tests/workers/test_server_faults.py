"""What a graph server bears: batches that end samplers, samplers that hang, clients that do not read, its own death."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from glt_lightning.base import PeerError, PeerLostError, RemoteError, SamplerError, SamplingOptions
from glt_lightning.loader import LoaderSpec
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.producer.process import BatchTask, SamplerProcess
from glt_lightning.workers.server import scheduler
from glt_lightning.workers.server.question import Question
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.run import started
from tests.helpers.servers import Farm, inline, open_farm, until

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=4, shuffle=True)
CONFIG = SamplerConfig(0, ((1,),))


@pytest.fixture
def farm() -> Iterator[Farm]:
    with open_farm("in process") as farm:
        yield farm


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 1)


def requests(count: int, seeds: int = 4) -> Iterator[BatchRequest]:
    return (BatchRequest(n, n, np.arange(seeds), np.arange(seeds)) for n in range(count))


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of a batch that ends whatever process begins to make it."""
    submit, number = SamplerProcess.submit, 777

    def poisoned(process: SamplerProcess, task: BatchTask) -> None:
        if task.request.number == number:
            os.kill(process.pid, signal.SIGSTOP)  # so that it does not answer before its end
            submit(process, task)
            os.kill(process.pid, signal.SIGKILL)
        else:
            submit(process, task)

    monkeypatch.setattr(SamplerProcess, "submit", poisoned)
    return number


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_batch_that_ends_samplers_fails_alone(farm, whole, poison, workers):
    """Those of others, which the same process had in hand, are made; and the server goes on."""
    server = farm.serve(whole, num_workers=workers, concurrency=4)
    good = farm.producer(farm.peer(server.address, name="good"), prefetch=8).stream(CONFIG, requests(200))
    numbers = [next(good).number]
    bad = farm.producer(farm.peer(server.address, name="bad"), SamplingOptions(max_restarts=1))
    ask = BatchRequest(poison, 7, np.arange(4), np.arange(4))
    with ThreadPoolExecutor(1) as thread:
        failing = thread.submit(lambda: next(bad.stream(CONFIG, iter([ask]))))
        numbers += [sample.number for sample in good]
        with pytest.raises(RemoteError, match=r"server 0: sampler process \d \(pid \d+\) was killed by SIGKILL"):
            failing.result()
    assert numbers == list(range(200))
    assert 2 <= server.status()["samplers"]["restarts"] <= 3
    assert [sample.number for sample in bad.stream(CONFIG, requests(9))] == list(range(9))


def test_a_batch_that_raises_fails_with_its_traceback(farm, tmp_path):
    partition = partitioned(small_graph(), tmp_path, 1)
    server = farm.serve(partition)
    with next(partition.directory.rglob("indices*")).open(
        "r+b"
    ) as file:  # is mapped, and checked only when it is opened
        file.seek(-8, os.SEEK_END)
        file.write(b"\x7f" * 8)
    pids = server.status()["samplers"]["pids"]
    producer = farm.producer(farm.peer(server.address))
    everything = SamplerConfig(0, ((-1,),))
    with pytest.raises(RemoteError, match=r"failed at batch 3: PartitionError: .*the partition is damaged") as caught:
        next(producer.stream(everything, iter([BatchRequest(3, 3, np.arange(300), np.arange(300))])))
    assert "in draft" in str(caught.value)
    assert len(list(producer.stream(SamplerConfig(0, ()), requests(20)))) == 20
    assert server.status()["samplers"] == {"pids": pids, "restarts": 0}


def test_a_folder_that_vanishes_does_not_make_it_spin(farm, tmp_path):
    """Samplers that cannot start are tried again after ever longer pauses; who waits for them is told."""
    partition = partitioned(small_graph(), tmp_path, 1)
    server = farm.serve(partition)
    manifest = partition.directory / "manifest.json"
    text = manifest.read_bytes()
    manifest.unlink()
    os.kill(server.status()["samplers"]["pids"][0], signal.SIGKILL)
    producer = farm.producer(farm.peer(server.address))
    with pytest.raises(RemoteError, match=r"cannot start: PartitionError.*manifest.json"):
        next(producer.stream(CONFIG, requests(1)))
    assert server.status()["samplers"]["restarts"] < 9
    manifest.write_bytes(text)
    until(lambda: bool(server.status()["samplers"]["pids"]))
    assert len(list(producer.stream(CONFIG, requests(5)))) == 5


def test_a_folder_that_cannot_be_opened_is_an_error_at_the_start(farm, tmp_path):
    partition = partitioned(small_graph(), tmp_path, 1)
    (partition.directory / "manifest.json").unlink()
    with pytest.raises(SamplerError, match=r"cannot start: PartitionError.*manifest.json"):
        farm.serve(partition)


def test_a_sampler_that_hangs_is_replaced(farm, whole, monkeypatch):
    monkeypatch.setattr(scheduler, "_LEAST_PATIENCE_S", 0.3)
    server = farm.serve(whole)
    context = farm.context(server.address, sampling=SamplingOptions(timeout_s=20))
    found = []
    for number, batch in enumerate(context.make_loader(SPEC)):
        found.append(contents(batch))
        if number == 3:
            for session in server._scheduler._sessions:
                session.patience_s = 0.6
            os.kill(server.status()["samplers"]["pids"][0], signal.SIGSTOP)
    assert found == inline(whole, SPEC)
    assert server.status()["samplers"]["restarts"] >= 1


def test_it_ends_with_clients_attached_and_a_sampler_that_hangs(farm, whole):
    server = farm.serve(whole, num_workers=2)
    stream = farm.producer(farm.peer(server.address, reconnect_s=0.5)).stream(CONFIG, requests(1000))
    next(stream)
    pids = server.status()["samplers"]["pids"]
    os.kill(pids[0], signal.SIGSTOP)
    server.close()
    server.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(PeerLostError, match="server 0"):
        list(stream)


def test_a_client_that_does_not_read_costs_its_buffer_and_no_more(farm, whole):
    """And nobody waits for it."""
    server = farm.serve(whole, channel_size="40kB", deadlines=farm.deadlines(lease_s=60))
    peer = farm.peer(server.address, name="slow")
    asked = {"session": "s" * 20, "max_restarts": 3, "timeout_s": 60}
    peer.ask("open", asked).result()
    for request in requests(100, seeds=200):
        message = Question(1, CONFIG, request).to_message("s" * 20, 1)
        peer.ask("make", message.header, message.body).result()

    def slow() -> dict:
        return next(client for client in server.status()["clients"] if client["client"] == "slow")

    until(lambda: slow()["making"] == 0 and slow()["batches"] > 0)
    per_batch = slow()["bytes"] // slow()["batches"]
    assert per_batch < slow()["buffered_bytes"] <= 40_000
    assert slow()["waiting"] == 100 - slow()["batches"]
    made = slow()["batches"]
    assert len(list(farm.producer(farm.peer(server.address)).stream(CONFIG, requests(200)))) == 200
    assert slow()["batches"] == made
    stream = peer.stream("batches", {"session": "s" * 20, "talk": 1})
    for number, _ in enumerate(stream, 1):
        if number == 100:
            stream.close()
    assert number == 100


def test_a_client_that_vanishes_is_forgotten(farm, whole):
    server = farm.serve(whole, deadlines=farm.deadlines(lease_s=0.3))
    peer = farm.peer(server.address)
    peer.ask("open", {"session": "s" * 20, "max_restarts": 3, "timeout_s": 60}).result()
    stream = farm.producer(farm.peer(server.address, name="lives")).stream(CONFIG, requests(10))
    next(stream)
    until(lambda: [client["client"] for client in server.status()["clients"]] == ["lives"])
    assert len(list(stream)) == 9  # its lease does not depend on how often it takes a batch


def test_a_server_that_has_failed_says_so(farm, whole, monkeypatch):
    """Our own bug in the scheduler must not look like a slow server."""
    server = farm.serve(whole)

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr(server._scheduler, "_issue", broken)
    until(lambda: server._scheduler._failure is not None)
    with pytest.raises(PeerError, match="the server has failed: a bug"):
        server.status()
    with pytest.raises(PeerError, match="the server has failed: a bug"):
        next(farm.producer(farm.peer(server.address)).stream(CONFIG, requests(1)))


def test_status(farm, whole):
    server = farm.serve(whole, num_workers=2)
    producer = farm.producer(farm.peer(server.address, name="rank 0", job="a job"))
    assert len(list(producer.stream(CONFIG, requests(30)))) == 30
    status = farm.peer(server.address, name="a tool").ask("status").result().header
    assert status["parts"] == [0]
    assert status["num_parts"] == 1
    assert status["graph"] == whole.manifest.options_hash
    assert status["partition"] == str(whole.directory)
    assert status["address"] == server.address
    assert status["uptime_s"] > 0
    (client,) = status["clients"]
    assert (client["client"], client["job"], client["batches"]) == ("rank 0", "a job", 30)
    assert client["batches_per_s"] == 3.0
    assert client["bytes"] > 30 * 64
    assert client["waiting"] == client["making"] == client["ready"] == 0
    assert 0 <= client["silent_s"] < 10
    for pid in status["samplers"]["pids"]:
        assert psutil.Process(pid).ppid() == os.getpid()
    assert status["samplers"]["restarts"] == 0
    assert status["memory"]["server_bytes"] > 1 << 20
    assert all(nbytes > 1 << 20 for nbytes in status["memory"]["sampler_bytes"])
    assert status["batches_per_s"] == 3.0


SERVER = """
import signal
import sys
from glt_lightning.workers import Link
from glt_lightning.graph import LocalPartition
from glt_lightning.base import ServingOptions
from glt_lightning.workers.server.server import GraphServer
link = Link(job="", role="server", name="server 0")
server = GraphServer(
    LocalPartition.open(sys.argv[1]), ServingOptions(num_workers=2), link.open_transport(), sys.argv[2], greet=link.greet
)
print("listening at", server.address, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("handover", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_server_process_is_killed(whole, tmp_path, handover):
    """``kill -9`` in the middle of an epoch, and another one at its port: the same batches, and no orphans."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def address_of(run) -> str:
        until(lambda: "listening at" in run.output and run.output.endswith("\n"))
        return run.output.split("listening at ")[1].split()[0]

    with open_farm("flight") as farm, started([sys.executable, script, whole.directory, "127.0.0.1:0"]) as first:
        address = address_of(first)
        peer = farm.peer(address)
        producer = farm.producer(peer, handover=handover)
        want = [contents(s) for s in farm.producer(farm.peer(farm.serve(whole).address)).stream(CONFIG, requests(40))]
        found = []
        stream = producer.stream(CONFIG, requests(40))
        for _ in range(10):
            found.append(contents(next(stream)))
        family = first.family()
        assert len(family) == 3
        first.popen.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=10)
        assert not first.family()
        with started([sys.executable, script, whole.directory, address]) as second:
            found += [contents(sample) for sample in stream]
            assert found == want
            assert address_of(second) == address
            producer.close()


def test_a_server_process_stands_still(whole, tmp_path):
    """Batches are handed over on a socket that stays open all the while; the signs of life are missing."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with open_farm("flight") as farm, started([sys.executable, script, whole.directory, "127.0.0.1:0"]) as run:
        until(lambda: "listening at" in run.output and run.output.endswith("\n"))
        address = run.output.split("listening at ")[1].split()[0]
        patient = farm.producer(farm.peer(address), handover=True).stream(CONFIG, requests(60))
        hasty = farm.producer(
            farm.peer(address, call_s=0.3, connect_s=0.3, reconnect_s=0.5, lease_s=0.5), handover=True
        ).stream(CONFIG, requests(60))
        numbers = [next(patient).number, next(hasty).number]
        run.popen.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerLostError, match=r"server 0 .*reconnect_s"):
            list(hasty)
        run.popen.send_signal(signal.SIGCONT)
        numbers += [sample.number for sample in patient]
        assert numbers == [0, *range(60)]
