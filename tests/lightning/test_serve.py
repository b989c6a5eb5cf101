"""``python -m lightning serve``: starts, says where it listens, tells its status, ends; refuses in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from glt_lightning.base import SecurityOptions
from glt_lightning.cli import main
from glt_lightning.cli.run_line import EndSignals
from glt_lightning.cli.server_status import status_table
from glt_lightning.workers import placed_parts
from tests.helpers import Run, started
from tests.helpers.family import settle
from tests.lightning.serving import free_addresses, serving

LISTENS = re.compile(r"server (\d) of (\d): parts (\[.*?\]) of (\S+) \((.*)\), listening at (\S+)")
LIMIT_S = 200.0  # a server is up in 5 s, and in a minute on cores that six others use, too
SHORT = ["--cluster.deadlines.reconnect_s", "0.3", "--cluster.deadlines.connect_s", "2"]


@pytest.fixture
def config(graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run whose trainer and model serve cannot know."""
    monkeypatch.chdir(tmp_path)
    data = {"dataset": str(graph_npz), "root": "root", "num_neighbors": [5, 5], "batch_size": 10}
    run = {
        "seed_everything": 1,
        "trainer": {"strategy": "of.a.module.elsewhere", "devices": 64},
        "model": {"class_path": "not.installed.here.Model"},
        "data": {"class_path": "GLTDataModule", "init_args": data | {"partition": {"num_parts": 2}}},
        "cluster": {"prefetch": 3},
    }
    Path("run.yaml").write_text(yaml.safe_dump(run))
    return "run.yaml"


def serve(*args: object) -> list[str]:
    return [sys.executable, "-m", "glt_lightning", "serve", *map(str, args)]


def listening(run: Run, timeout_s: float = LIMIT_S) -> re.Match[str]:
    """What a server says when it listens."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and run.popen.poll() is None:
        if found := LISTENS.search(run.output):
            return found
        time.sleep(0.05)
    raise AssertionError(f"the server does not listen:\n{run.output}")


def said_by(*args: object, status: int = 0) -> str:
    """All that a run of serve says."""
    with started(serve(*args)) as run:
        assert run.wait(LIMIT_S) == status, run.output
        return run.output


def said_here(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The same of one in this process, which saves the time to start another."""
    capsys.readouterr()
    with suppress(SystemExit):
        main(["serve", *map(str, args)])
    captured = capsys.readouterr()
    return captured.out + captured.err


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line that is said."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["serve", *map(str, args)])
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code in (1, 2)
    assert len([line for line in lines if line.startswith("error: ")]) == 1, lines
    return lines[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_serves_until_it_is_told_to_end(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    with started(serve("--config", config, "--data.partition.num_parts", 3), cwd=tmp_path) as run:
        rank, count, parts, name, facts, address = listening(run).groups()
        assert (rank, count, parts, name) == ("0", "1", "[0, 1, 2]", "tiny")
        assert facts == "3 parts, 240 nodes, 1,440 edges"
        assert re.fullmatch(rf"healthy: server 0 at {address}, up for \d+ s\n", said_here(capsys, "--health", address))
        status = json.loads(said_here(capsys, "--status", address, "--json"))
        assert (status["parts"], status["clients"]) == ([0, 1, 2], [])
        assert f"server 0 at {address}" in said_here(capsys, "--status", address)
        run.popen.send_signal(number)
        assert run.wait(LIMIT_S) == 0, run.output
        assert settle(run.family, grace_s=5) == []
        assert "Traceback" not in run.output
    sick = said_by("--health", address, status=1)
    assert sick.startswith(f"unhealthy: graph server ({address}): nothing listens at this address")


@pytest.mark.slow
def test_servers_of_one_host_partition_once(config: str, tmp_path: Path) -> None:
    where = ["--cluster.servers", json.dumps(free_addresses(3))]
    with (
        started(serve("--config", config, "--server.rank", 0, *where), cwd=tmp_path) as first,
        started(serve("--config", config, "--server.rank", 1, *where), cwd=tmp_path) as second,
        started(serve("--config", config, "--server.rank", 2, *where, "--server.parts", "0,1"), cwd=tmp_path) as third,
    ):
        said = [listening(run).group(3) for run in (first, second, third)]
    assert said == ["[0]", "[1]", "[0, 1]"]
    assert [list(placed_parts(rank, 3, 2)) for rank in range(3)] == [[0], [1], [0]]
    assert len(list((tmp_path / "root" / "partitions").iterdir())) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--config", "none.yaml"], "--config: cannot read none.yaml: No such file or directory."),
        (["--config"], "--config: expected the path of a YAML file."),
        ([], "data: expected a GLTDataModule, got nothing. Give --config of a run, or --data."),
        (["--config", "run.yaml", "--data.datset", "x"], "Did you mean dataset?"),
        (["--config", "run.yaml", "--data.dataset", "none.npz"], "dataset: there is no file 'none.npz'"),
        (["--config", "run.yaml", "--server.rank", "1"], "server.rank: got 1, but cluster.servers is empty."),
        (["--config", "run.yaml", "--server.rnk", "1"], "Did you mean --server.rank?"),
        (["--config", "run.yaml", "--server.address", "here"], "server.address: expected addresses like"),
        (
            ["--config", "run.yaml", "--server.parts", "a"],
            "server.parts: expected numbers of parts such as 0,2; got 'a'.",
        ),
        (["--config", "run.yaml", "--server.parts", "0,7"], "has the parts 0 to 1, got [7]"),
        (["--config", "run.yaml", "--server.parts", "1"], "server.parts: [1] lacks [0]"),
        (
            ["--config", "run.yaml", "--server.address", "192.0.2.1:0", "--cluster.security.insecure", "true"],
            "cannot listen at 192.0.2.1:0: ",
        ),
        (
            ["--config", "run.yaml", "--server.address", "0.0.0.0:0"],
            "0.0.0.0:0 is reachable from other hosts, and cluster.security has no certificates.",
        ),
        (
            ["--config", "run.yaml", "--cluster.security.token_file", "none"],
            "cluster.security.token_file: cannot read none",
        ),
        (
            ["--config", "run.yaml", "--cluster.servers", "[a:1, b:2]", "--server.rank", "2"],
            "cluster.servers has 2 addresses",
        ),
        (
            ["--config", "run.yaml", "--cluster.servers", "[192.0.2.1:1, 127.0.0.1:2]", "--server.rank", "1"],
            "this folder holds no partition. Server 0 (192.0.2.1:1) creates it on its own host",
        ),
        (["--status", "here"], "address: expected addresses like"),
    ],
)
def test_wrong_options_get_one_line(
    config: str, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    assert said in refused(capsys, *args)


def test_address_in_use(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen at {address}: Address already in use." in refused(
            capsys, "--config", config, "--server.address", address
        )


def test_cache_that_cannot_be_had(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["--config", config, "--cluster.servers", "[127.0.0.1:0, 127.0.0.1:1]", "--data.cache.ratio", "0.2"]
    said = refused(capsys, *args, "--data.cache.policy", "vip")
    assert "cache.policy: vip, but " in said
    assert "has no ranking of remote rows by vip (it has: degree)" in said
    monkeypatch.setattr("glt_lightning.graph.host_memory.available_memory", lambda: 64 << 20)
    said = refused(capsys, *args)
    assert re.search(
        r"cache: not enough memory for 48 rows: [\d,]+ bytes are needed, 67,108,864 are available on this host. Lower cache",
        said,
    )


def test_folder_that_is_no_partition(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other").mkdir()
    Path("other", "notes.txt").write_text("mine")
    assert "other" in refused(capsys, "--config", config, "--data.partition.dir", "other")


@pytest.mark.timeout(30)
def test_signal_that_another_thread_received() -> None:
    """As after SIGSTOP and SIGCONT: the kernel gave SIGTERM to a thread in which Python runs no handlers."""
    with EndSignals() as signals:
        other = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        other.start()
        signals.wait()
        other.join()


def test_signal_that_follows_the_announcement_at_once() -> None:
    """It ends the waiting, not the process: who reads where a server listens may end it then."""
    with EndSignals() as signals:
        signals.wait(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit, match="143"), EndSignals():
        os.kill(os.getpid(), signal.SIGTERM)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("--server.rank", "--server.parts", "--health", "--cluster.security.token_file"):
        assert words in shown


def test_secret_of_the_job(make_data: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_data()
    data.prepare_data()
    token = tmp_path / "token"
    token.write_text("a secret of sixteen or more\n")
    other = tmp_path / "other"
    other.write_text("another secret of the same size\n")
    with serving(data.partition_dir, security=SecurityOptions(token_file=str(token))) as (where, _):
        ask = ["--status", where.servers[0], *SHORT]
        assert "the secret of this process is not the job's" in refused(capsys, *ask)
        assert "is not the job's" in refused(capsys, *ask, "--cluster.security.token_file", other)
        main(["serve", *ask, "--cluster.security.token_file", str(token)])
        assert f"server 0 at {where.servers[0]}" in capsys.readouterr().out


def test_status_as_a_table() -> None:
    client = {"client": "rank 0 (pid 7 on a)\x1b[2J", "job": "j", "waiting": 1, "making": 2, "ready": 3}
    client |= {"buffered_bytes": 1_500_000, "batches": 40, "bytes": 2e9, "batches_per_s": 4.5, "silent_s": 0.25}
    status = {
        "rank": 1,
        "address": "10.0.0.2:18800",
        "graph": "abc",
        "partition": "/data/p",
        "version": 3,
        "parts": [1],
        "num_parts": 2,
        "uptime_s": 61.2,
        "clients": [client],
        "samplers": {"pids": [11, 12], "restarts": 1},
        "memory": {"server_bytes": 1000, "sampler_bytes": [2_000_000, 999]},
        "batches_per_s": 4.5,
    }
    head, where, *_, columns, row = status_table(status).splitlines()
    assert head == "server 1 at 10.0.0.2:18800, up for 61 s"
    assert where == "partition  /data/p (abc), version 3, parts [1] of 2"
    assert columns.split() == [
        "client",
        "job",
        "waiting",
        "making",
        "ready",
        "buffered",
        "batches",
        "batches/s",
        "bytes",
        "silent",
    ]
    assert row.split("  ")[0] == "rank 0 (pid 7 on a)?[2J"
    cells = [cell.strip() for cell in row.split("  ") if cell]
    assert cells[1:] == ["j", "1", "2", "3", "1.5 MB", "40", "4.5", "2 GB", "0.2 s"]
