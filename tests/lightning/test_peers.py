"""Ranks of a host notice each other's death: what each of them does, told by its exit status and its words."""

from __future__ import annotations

import json
import re
import socket
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glt_lightning.lightning.strategies import peers
from glt_lightning.lightning.strategies.peers import Loss, PeerWatch
from tests.helpers import run_script, started
from tests.helpers.family import settle

# The ranks load the one module they need, so that they start at once.
SCRIPT = """
import importlib.util, json, multiprocessing, os, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

path, timeout_s, silence_s, *roles = sys.argv[1:]
spec = importlib.util.spec_from_file_location("peers", path)
peers = sys.modules["peers"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peers)

def share(address):
    file = Path("address")
    if address:
        file.with_suffix(".part").write_text(address)
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.01)
    return file.read_text()

def rank(number, role):
    watch = peers.PeerWatch(rank=number, local_rank=number, local_size=len(roles), share=share,
        timeout_s=float(timeout_s), silence_s=float(silence_s))
    if role == "leaves":
        watch.close()
    elif role == "leaves later":
        time.sleep(1)
        watch.close()
    elif role == "is killed":
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    elif role == "stands still":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif role == "exits without a word":
        os._exit(7)
    elif role == "fails":
        time.sleep(0.3)
        watch.close("ValueError: of its own")
        sys.exit(3)
    elif role == "ends in order":
        loss = watch.loss(wait_s=30)
        watch.close("because of it")
        os.write(1, f"{number} heard: {loss}\\n".encode())  # at once: others write there, too
        sys.exit(4)
    elif role == "was asked to end":
        signal.signal(signal.SIGTERM, lambda *_: (watch.end_soon(), time.sleep(600)))
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        assert role == "is stuck"
        time.sleep(600)

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank, args=item) for item in enumerate(roles)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    print(json.dumps({"pids": [p.pid for p in ranks], "codes": [p.exitcode for p in ranks]}))
"""


def run(*roles: str, timeout_s: float = 0.5, silence_s: float = 60) -> tuple[list[int], list[int], str]:
    """(process ids, exit codes, all that was said)"""
    output = run_script(SCRIPT, peers.__file__, timeout_s, silence_s, *roles, timeout=60).stdout
    *said, result = output.splitlines()
    found = json.loads(result)
    return found["pids"], found["codes"], "\n".join(said)


@pytest.mark.diagonal
@pytest.mark.parametrize("end", ["is killed", "exits without a word"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_stuck_ranks_end_after_a_death(victim: int, end: str) -> None:
    roles = ["is stuck"] * 3
    roles[victim] = end
    pids, codes, said = run(*roles)
    assert codes[victim] == (-9 if end == "is killed" else 7)
    assert [code for rank, code in enumerate(codes) if rank != victim] == [1, 1]
    for rank in {0, 1, 2} - {victim}:
        lost = f"error: rank {victim} (process {pids[victim]}) of this host died; rank {rank}"
        assert f"{lost} cannot go on." in said
        assert f"{lost} is stuck and ends after 0.5 s (cluster.peer_timeout_s)." in said


@pytest.mark.parametrize("victim", [0, 2])
def test_rank_that_stands_still_is_killed_and_named(victim: int) -> None:
    roles = ["is stuck"] * 3
    roles[victim] = "stands still"
    pids, codes, said = run(*roles, silence_s=1)
    assert codes[victim] == -9
    assert [code for rank, code in enumerate(codes) if rank != victim] == [1, 1]
    stood = (
        rf"error: rank {victim} \(process {pids[victim]}\) of this host hung on {socket.gethostname()} and was killed "
    )
    stood += (
        r"\(no heartbeat for \d s; its process is stopped by SIGSTOP or a debugger\); rank \d cannot go on. Resume from"
    )
    assert re.search(stood, said)


def test_stopped_rank_goes_on_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Nobody is left to notice it; it hears of the death, and ends."""
    code = """
import os, signal, sys
from glt_lightning.kernels import wake_with_parent

parent, child = os.pipe()
if os.fork() == 0:
    wake_with_parent()
    os.write(child, b"!")
    os.kill(os.getpid(), signal.SIGSTOP)
    print("goes on", flush=True)
    os._exit(0)
os.read(parent, 1)
os.waitid(os.P_ALL, 0, os.WSTOPPED)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with started([sys.executable, "-c", code]) as run:
        run.wait(30)
        assert settle(run.family, grace_s=5) == []
        assert "goes on" in run.output


@pytest.mark.parametrize("victim", [0, 1])
def test_rank_that_ends_by_itself_is_left_to_it(victim: int) -> None:
    roles = ["ends in order", "ends in order"]
    roles[victim] = "is killed"
    pids, codes, said = run(*roles, timeout_s=30)
    assert sorted(codes) == [-9, 4]
    assert f"heard: rank {victim} (process {pids[victim]}) of this host died" in said
    assert "is stuck" not in said


@pytest.mark.parametrize("victim", [0, 2])
def test_failure_tells_its_reason_without_a_second_message(victim: int) -> None:
    roles = ["ends in order"] * 3
    roles[victim] = "fails"
    pids, codes, said = run(*roles, timeout_s=30)
    assert codes[victim] == 3
    assert said.count("heard: ") == 2
    assert said.count(f"rank {victim} (process {pids[victim]}) of this host failed (ValueError: of its own)") == 2
    assert "error:" not in said


@pytest.mark.parametrize("asked", [0, 1])
def test_handler_of_sigterm_that_hangs(asked: int) -> None:
    roles = ["is stuck", "is stuck"]
    roles[asked] = "was asked to end"
    pids, codes, said = run(*roles)
    assert codes[asked] == 143
    assert codes[1 - asked] == 1
    assert f"error: it was asked to end; rank {asked} is stuck and ends after 0.5 s (cluster.peer_timeout_s)." in said
    assert f"error: rank {asked} (process {pids[asked]}) of this host died" in said


@pytest.mark.parametrize("victim", [0, 1])
def test_stuck_rank_ends_after_a_failure(victim: int) -> None:
    roles = ["is stuck", "is stuck"]
    roles[victim] = "fails"
    pids, codes, said = run(*roles)
    assert sorted(codes) == [1, 3]
    assert f"rank {victim} (process {pids[victim]}) of this host failed (ValueError: of its own); rank" in said


@pytest.mark.parametrize(
    "roles",
    [
        ("leaves", "leaves later", "leaves"),
        ("leaves later", "leaves", "leaves"),
        ("leaves", "leaves", "leaves later"),
        ("leaves", "leaves"),
    ],
)
def test_no_alarm_when_ranks_leave_at_different_times(roles: tuple[str, ...]) -> None:
    _, codes, said = run(*roles)
    assert codes == [0] * len(roles)
    assert said == ""


@pytest.mark.parametrize(
    ("last", "expected"),
    [({"bye": True}, "bye"), ({"failed": "ValueError"}, Loss(1, 7, "ValueError")), ({}, Loss(1, 7))],
)
def test_farewell_of_a_rank_that_leaves_with_signs_of_life_unread(last: dict, expected: object) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(b'{"alive": true}')
        if last:
            theirs.send(json.dumps(last).encode())
        theirs.close()
        assert peers._heard(peers._Peer(1, 7, ours)) == expected


def test_strangers_are_not_counted(tmp_path: Path) -> None:
    """A process that knows the address but does not greet as a rank is turned away."""
    script = textwrap.dedent(SCRIPT).replace(
        "    return file.read_text()\n",
        """
    if not address:
        import socket
        for greeting in (b"", b"nonsense", b"[1]"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect("\\0" + file.read_text())
            sock.send(greeting)
            sock.close()
    return file.read_text()
""",
    )
    output = run_script(script, peers.__file__, 5, 60, "leaves later", "leaves later", timeout=60).stdout
    assert json.loads(output)["codes"] == [0, 0]


def test_watch_in_this_process_closes_twice_and_leaves_nothing() -> None:
    watch = PeerWatch(rank=0, local_rank=0, local_size=1, share=str, timeout_s=1, silence_s=60)
    assert watch.loss() is None
    watch.close()
    watch.close()
    time.sleep(0.05)
    assert str(Loss(3, 77)) == "rank 3 (process 77) of this host died"


def test_the_first_rank_hands_its_gift_to_the_others_of_this_user() -> None:
    given: list[str] = []
    ready = threading.Event()

    def share(address: str | None) -> str:
        if address is not None:
            given.append(address)
            ready.set()
        assert ready.wait(10)
        return given[0]

    def open_watch(rank: int) -> PeerWatch:
        job_secret = {"token": "0123456789abcdef"} if rank == 0 else {}
        return PeerWatch(
            rank=rank, local_rank=rank, local_size=3, share=share, timeout_s=5, silence_s=60, job_secret=job_secret
        )

    with ThreadPoolExecutor(3) as pool:
        watches = list(pool.map(open_watch, range(3)))
    assert [watch.job_secret for watch in watches] == [{"token": "0123456789abcdef"}] * 3
    for watch in watches:
        watch.close()
