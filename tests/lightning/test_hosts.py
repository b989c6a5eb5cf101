"""The ranks of several hosts meet, or the job says whom it waited for and ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed

from glt_lightning.base import DeadlineOptions, OptionError, PeerError
from glt_lightning.cli import main
from glt_lightning.lightning.strategies import hosts
from glt_lightning.lightning.strategies.hosts import Meeting, meet, wait_for_ranks


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class FakeStore:
    """Ranks sign in at given times of the clock."""

    def __init__(self, clock: FakeClock, joins: dict[int, float]) -> None:
        self.clock, self.joins = clock, {f"glt/joined/{rank}": at for rank, at in joins.items()}

    def set(self, key: str, value: str) -> None:
        self.joins[key] = self.clock()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.joins and self.joins[key] <= self.clock() for key in keys)


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def meeting(rank: int = 0, hosts: int = 3, per_host: int = 2, port: int = 29500, address: str = "127.0.0.1") -> Meeting:
    return Meeting(address, port, rank, hosts, per_host, deadline_s=60.0)


def waited(joins: dict[int, float], address: str = "node0") -> list[str]:
    """What is said by rank 0 of three hosts until all have joined."""
    clock, said = FakeClock(), []
    wait_for_ranks(meeting(address=address), FakeStore(clock, joins), said.append, clock() + 60, clock, clock.pause)
    return said


def test_says_whom_it_waits_for_and_where() -> None:
    late = {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 130.0}
    assert waited(late) == [
        "host 0 of 3 waits for host 2 (ranks 4 to 5) at node0:29500, up to 60 s (cluster.deadlines.join_s). Start the same "
        "command on host 2 with NODE_RANK=2 MASTER_ADDR=node0 MASTER_PORT=29500, and check that it can reach this port."
    ]


def test_says_nothing_where_all_come_soon() -> None:
    assert waited(dict.fromkeys(range(1, 6), 102.0)) == []


def test_first_rank_of_a_host_stands_for_those_it_will_start() -> None:
    clock, joins = FakeClock(), {2: 0.0, 4: 0.0}
    starting = replace(meeting(), first_ranks=True)
    wait_for_ranks(starting, FakeStore(clock, joins), pytest.fail, clock() + 60, clock, clock.pause)
    assert clock() == FakeClock.now


def test_gives_up_with_the_command_to_run() -> None:
    with pytest.raises(PeerError) as error:
        waited({1: 0.0})
    said = str(error.value)
    assert said.startswith("host 1 (ranks 2 to 3) and host 2 (ranks 4 to 5) did not come to node0:29500 within 60 s")
    assert "NODE_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500" in said
    assert "cluster.deadlines.join_s" in said
    assert "trainer.num_nodes" in said


def test_address_that_no_other_host_reaches_is_said() -> None:
    (line,) = waited({1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 130.0}, "127.0.0.1")
    assert "No other host reaches 127.0.0.1: on all hosts set MASTER_ADDR to the name of host 0" in line


def test_rank_of_another_host_waits_for_the_first() -> None:
    clock, said = FakeClock(), []
    with pytest.raises(PeerError, match=r"host 0 \(rank 0\) did not come"):
        meet(meeting(1, 2, 1, port=free_port()), said.append, clock, clock.pause)
    assert said[0].startswith("host 1 of 2 waits for host 0 (rank 0)")


def test_ranks_meet_at_a_store() -> None:
    port, stores = free_port(), []
    ranks = [
        threading.Thread(target=lambda r=rank: stores.append(meet(meeting(r, 2, 1, port=port), print)), daemon=True)
        for rank in (1, 0)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(30)
    assert len(stores) == 2


def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"MASTER_PORT: rank 0 cannot listen at port {port}"):
            meet(meeting(port=port), print)


def test_deadline_is_checked() -> None:
    with pytest.raises(OptionError, match=r"cluster\.deadlines\.join_s"):
        DeadlineOptions(join_s=0)


def test_trainer_of_two_hosts_ends_where_the_other_does_not_come(
    make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    data = make_data(cluster={"deadlines": {"join_s": 0.2}})
    with pytest.raises(PeerError, match=r"host 1 \(rank 1\) did not come"):
        make_trainer(strategy="glt_worker", num_nodes=2).fit(make_model(), data)


@pytest.fixture
def fit_on_two_hosts(
    graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, int]]:
    """Runs the command line as host 0 of two, of which the other does not come. Returns the port and the exit status."""
    for name in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: pytest.fail("torch waits, not we"))
    monkeypatch.chdir(tmp_path)

    def fit(strategy: str) -> tuple[int, int]:
        port = free_port()
        monkeypatch.setattr("os.environ", os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        options = ["--data", "GLTDataModule", "--data.dataset", str(graph_npz), "--trainer.accelerator", "cpu"]
        options += ["--trainer.num_nodes", "2", "--cluster.deadlines.join_s", "0.2", "--trainer.strategy", strategy]
        with pytest.raises(SystemExit) as ended:
            main(["fit", "--model", "glt_lightning.GraphSAGE", "--trainer.devices", "1", *options])
        return port, int(ended.value.code or 0)

    return fit


@pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_true", "glt_worker"])
def test_command_line_gives_up_under_any_strategy(
    fit_on_two_hosts: Callable[[str], tuple[int, int]], capfd: pytest.CaptureFixture[str], strategy: str
) -> None:
    port, status = fit_on_two_hosts(strategy)
    assert status == 1
    assert f"error: host 1 (rank 1) did not come to 127.0.0.1:{port} within 0.2 s (cluster.deadlines.join_s)." in (
        capfd.readouterr().err
    )


@pytest.mark.diagonal
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("strategy", ["ddp", "glt_worker", "glt_server_client"])
def test_signals_end_the_wait(
    fit_on_two_hosts: Callable[[str], tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    number: int,
    status: int,
) -> None:
    monkeypatch.setattr(hosts, "_missing", lambda *_: signal.raise_signal(number))
    assert fit_on_two_hosts(strategy)[1] == status


def test_forked_ranks_do_not_wait_for_hosts(
    fit_on_two_hosts: Callable[[str], tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert fit_on_two_hosts("ddp_fork")[1] == 2
    assert (
        "error: trainer.num_nodes: 2 hosts need a strategy that starts each rank as a command" in capfd.readouterr().err
    )
