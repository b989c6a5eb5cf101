"""``launch`` over real sshds, in network namespaces: what it trains, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glt_lightning import read_embeddings
from glt_lightning.graph import Manifest
from glt_lightning.workers import run_certs
from tests.helpers import started
from tests.helpers.hosts import Hosts, hosts, why_not
from tests.helpers.run import Run
from tests.helpers.sshd import sshds, why_no_sshd
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_DOCS = Path(__file__).parents[2] / "docs"
_LAUNCHER = 2  # the host that launches; 0 and 1 have an sshd


@dataclass
class Cluster:
    """Two hosts with an sshd, and a third one that launches."""

    made: Hosts
    ssh_command: list[str]

    def left(self) -> dict[int, list[int]]:
        """What runs on each host."""
        return {host: self.made.processes(host) for host in range(3)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if (reason := why_no_sshd()) is not None:
        pytest.fail(f"{reason}: apt-get install openssh-server")
    with hosts(3) as made, sshds(made, 2, tmp_path_factory.mktemp("sshd")) as command:
        yield Cluster(made, command)


def launch_file(cluster: Cluster, folder: Path, **more: Any) -> dict[str, Any]:
    """A job on both hosts, whose folders have names that a shell would take apart."""
    names = [folder / "host 0", folder / "höst '1; true"]
    places = [
        {"host": f"host{n}", "address": cluster.made.address(n), "dir": str(name)} for n, name in enumerate(names)
    ]
    env = {"GLOO_SOCKET_IFNAME": "eth0", **ONE_THREAD}
    given = {
        "command": "fit",
        "config": "run.yaml",
        "ssh_command": cluster.ssh_command,
        "defaults": {"python": sys.executable, "env": env},
        "hosts": places,
        "security": {"dir": "certs"},
        "limits": {"stop_s": 10},
    }
    return given | more


@contextlib.contextmanager
def launched(
    cluster: Cluster, folder: Path, given: dict[str, Any], *more: str, before: Sequence[str] = (), **run: Any
) -> Iterator[Run]:
    """before: a program that runs the launcher."""
    (folder / "run.yaml").write_text(yaml.safe_dump(config(**run)))
    (folder / "cluster.yaml").write_text(yaml.safe_dump(given, allow_unicode=True))
    argv = [sys.executable, "-m", "glt_lightning", "launch", "--config", "cluster.yaml", *more]
    running = cluster.left()
    with started([*before, *cluster.made.command(_LAUNCHER, argv)], cwd=folder, env=ONE_THREAD) as run_:
        yield run_
        deadline = time.monotonic() + 60
        while cluster.left() != running:
            assert time.monotonic() < deadline, (running, cluster.left(), run_.output)
            time.sleep(0.1)


def place_parts(given: dict[str, Any], whole: Path) -> None:
    """To each host the parts that worker mode needs there."""
    for number, host in enumerate(given["hosts"]):
        target = Path(host["dir"], "part")
        shutil.copytree(whole, target, ignore=shutil.ignore_patterns(f"part{1 - number}"))


def test_two_hosts_train_as_one(tmp_path, cluster, whole, calm):
    given = launch_file(cluster, tmp_path)
    place_parts(given, whole)
    with launched(cluster, tmp_path, given) as run:
        assert run.wait(LIMIT_S) == 0, run.output
        assert "host0:0| " in run.output, run.output
        assert "host1:1| " in run.output, run.output
    same(weights(Path(given["hosts"][0]["dir"])), calm(2))
    (folder,) = (tmp_path / "runs" / "run").iterdir()
    assert {file.name for file in folder.iterdir()} == {"launch.log", "host0.log", "host1.log"}
    # Each host has its own key alone.
    assert sorted(file.name for file in Path(given["hosts"][1]["dir"], "certs").iterdir()) == [
        "10.77.0.2.key",
        "10.77.0.2.pem",
        "ca.pem",
        "token",
    ]


def fails(run: Run, status: int) -> list[str]:
    """The lines of a launch that ends with this status."""
    assert run.wait(LIMIT_S) == status, run.output
    return run.output.splitlines()


def test_all_faults_are_found_before_anything_starts(tmp_path, cluster, whole):
    given = launch_file(cluster, tmp_path)
    place_parts(given, whole)
    fake = tmp_path / "fake" / "torch-9.9.9.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    paths = f"{fake.parent}:{ONE_THREAD['PYTHONPATH']}"
    given["hosts"][1]["env"] = {"PYTHONPATH": paths}
    # Its clock is ten days ahead, for its agent, too.
    (fake.parent / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 864_000\n"
    )
    python = tmp_path / "py 'thon"
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{paths}' exec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    given["hosts"][1]["python"] = str(python)
    next(Path(given["hosts"][1]["dir"], "part", "part1").rglob("indices.npy")).unlink()
    (tmp_path / "certs").mkdir()
    run_certs(["--dir", str(tmp_path / "certs"), "--hosts", "10.77.0.1,10.77.0.9", "--days", "3"])
    for end in ("pem", "key"):
        (tmp_path / "certs" / f"10.77.0.9.{end}").rename(tmp_path / "certs" / f"10.77.0.2.{end}")
    busy = "import socket, time; s = socket.create_server(('', 29500)); time.sleep(600)"
    with started(cluster.made.command(0, [sys.executable, "-c", busy])), launched(cluster, tmp_path, given) as run:
        lines = fails(run, 2)
    found = [line.removeprefix("launch| ") for line in lines if "| host" in line or "| warning: host" in line]
    expected = [
        "host1: torch is 9.9.9; host0 has ",
        "host1: part1 of its parts [1] lack files, such as part1/",
        "warning: host1: its clock is 86",
        "host0: cannot listen at port 29500: Address already in use.",
        "host0: cannot reach host1 at 10.77.0.2:",  # the name of the certificate
    ]
    assert len(found) == len(expected), found
    for line, begin in zip(found, expected, strict=True):
        assert line.startswith(begin), (line, begin)
    assert any("4 of the checks failed, and nothing was started" in line for line in lines)


def test_a_flipped_byte_is_found_by_verify(tmp_path, cluster, whole):
    given = launch_file(cluster, tmp_path)
    place_parts(given, whole)
    file = next(Path(given["hosts"][1]["dir"], "part", "part1").rglob("indices.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with launched(cluster, tmp_path, given, "--check", "--verify") as run:
        lines = fails(run, 2)
    assert any(line.startswith("launch| host1: part/part1/") and "indices.npy" in line for line in lines), lines


def test_parts_are_copied_and_checked(tmp_path, cluster, whole):
    given = launch_file(cluster, tmp_path, partition={"from": str(whole), "dir": "copied"})
    with launched(cluster, tmp_path, given, "--check", "--copy") as run:
        assert run.wait(LIMIT_S) == 0, run.output
    for number, host in enumerate(given["hosts"]):
        folders = {each.name for each in Path(host["dir"], "copied").iterdir()}
        assert f"part{number}" in folders
        assert f"part{1 - number}" not in folders


_DYING = """
import os
import re
from lightning.pytorch import Callback

class Dying(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_rank == 1 and batch_idx == 2:
            print("this rank ends now", flush=True)
            os._exit(7)
"""


def test_a_rank_that_ends(tmp_path, cluster, whole):
    (tmp_path / "own_callback.py").write_text(_DYING)
    given = launch_file(
        cluster, tmp_path, files=["own_callback.py"], args=["--trainer.callbacks", "own_callback.Dying"]
    )
    place_parts(given, whole)
    with launched(cluster, tmp_path, given) as run:
        lines = fails(run, 7)
    assert lines[-3:-1] == [
        "launch| host1 rank 1: this rank ends now",
        "launch| error: host1 rank 1: status 7.",
    ]


@contextlib.contextmanager
def training(cluster: Cluster, folder: Path, whole: Path, **more: Any) -> Iterator[Run]:
    """A job without end, from its first epoch on."""
    given = launch_file(cluster, folder, **more)
    place_parts(given, whole)
    with launched(cluster, folder, given, epochs=100_000) as run:
        deadline = time.monotonic() + LIMIT_S
        while "glt: epoch 0" not in run.output:
            assert run.popen.poll() is None, run.output
            assert time.monotonic() < deadline, run.output
            time.sleep(0.1)
        yield run


def status(cluster: Cluster, folder: Path) -> str:
    """What the command of docs/launch.md shows, on the launching host."""
    text = (_DOCS / "launch.md").read_text()
    (command,) = re.findall(r"```\n(glt-lightning serve --status (?:.*\\\n)*.*)\n```", text)
    command = command.replace("\\\n", " ").replace("n0", cluster.made.address(0)).replace("g0", cluster.made.address(0))
    argv = [sys.executable, "-m", "glt_lightning", *command.split()[1:]]
    with started(cluster.made.command(_LAUNCHER, argv), cwd=folder, env=ONE_THREAD) as run:
        assert run.wait(LIMIT_S) == 0, run.output
        return run.output


def test_ctrl_c_with_a_graph_server(tmp_path, cluster, whole):
    server, trainer = launch_file(cluster, tmp_path)["hosts"]
    more = {"servers": [server], "hosts": [trainer], "partition": {"dir": str(whole)}}
    with training(cluster, tmp_path, whole, **more) as run:
        assert "rank 0" in status(cluster, tmp_path)
        run.popen.send_signal(signal.SIGINT)
        lines = fails(run, 130)
    assert "launch| error: SIGINT to the launcher" in lines


_TERMINAL = """
import os
import pty
import signal
import sys

pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
signal.signal(signal.SIGINT, lambda *_: os.write(terminal, b"\\x03"))
while True:
    try:
        text = os.read(terminal, 1 << 16)
    except OSError:  # its last process has ended
        break
    os.write(1, text)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

# In order: it ends at SIGTERM. Else it takes no notice, nor does its child, which has a session of its own.
_WAITING = """
import os
import signal
import sys
import time

def end(*_):
    print("ends in order", flush=True)
    sys.exit(0)

stubborn = sys.argv[1] == "stubborn"
signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else end)
if stubborn and os.fork() == 0:
    os.setsid()
print("waits", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal(tmp_path, cluster, times):
    """Typed, so that it goes to all processes of the terminal. Once: processes end in order. Twice: at once."""
    (tmp_path / "own.py").write_text(_WAITING)
    limits = {"stop_s": 60 if times == 1 else 3600}
    how = {"command": "own.py", "ranks": "script", "args": ["in order" if times == 1 else "stubborn"], "limits": limits}
    given = launch_file(cluster, tmp_path, **how)
    del given["config"]
    with launched(cluster, tmp_path, given, before=[sys.executable, "-c", _TERMINAL]) as run:
        wait_for(run, "waits", 2 * times)
        run.popen.send_signal(signal.SIGINT)
        wait_for(run, "SIGINT: the job ends; once more ends it at once")
        if times == 2:
            run.popen.send_signal(signal.SIGINT)
        lines = fails(run, 130)
    assert any(line.endswith("launch| error: SIGINT to the launcher") for line in lines), (
        lines
    )  # after the terminal's ^C
    assert sum("| ends in order" in line for line in lines) == (2 if times == 1 else 0)


def test_the_launcher_is_killed(tmp_path, cluster, whole):
    with training(cluster, tmp_path, whole) as run:
        run.popen.kill()
        run.popen.wait(20)


def test_the_link_of_a_host_is_down(tmp_path, cluster, whole):
    """Both ends notice, and neither waits for the other."""
    with training(cluster, tmp_path, whole, limits={"stop_s": 5, "heartbeat_s": 2}) as run:
        cluster.made.cut(1)
        try:
            lines = fails(run, 1)
            deadline = time.monotonic() + 30
            while len(cluster.made.processes(1)) > 2:  # sshd, and its session, which cannot end
                assert time.monotonic() < deadline, run.output
                time.sleep(0.1)
        finally:
            cluster.made.heal(1)
    assert any(line.startswith("launch| error: host") for line in lines), lines


def wait_for(run: Run, text: str, count: int = 1) -> None:
    deadline = time.monotonic() + LIMIT_S
    while run.output.count(text) < count:
        assert run.popen.poll() is None, run.output
        assert time.monotonic() < deadline, run.output
        time.sleep(0.05)


def test_a_graph_server_that_is_killed_twice(tmp_path, cluster, whole, calm):
    given = launch_file(cluster, tmp_path)
    server, trainer = given["hosts"]
    given |= {"servers": [server], "hosts": [trainer | {"devices": 2}], "partition": {"dir": str(whole)}}
    with launched(cluster, tmp_path, given, epochs=20) as run:
        for times in (1, 2):
            wait_for(run, f"glt: epoch {3 * times}:")
            (pid,) = (p for p in cluster.made.processes(0) if b"\0serve\0" in Path(f"/proc/{p}/cmdline").read_bytes())
            os.kill(pid, signal.SIGKILL)
            wait_for(run, "server0: the graph server ended (status 137) and starts again", times)
        assert run.wait(LIMIT_S) == 0, run.output
    same(weights(Path(trainer["dir"])), calm(20))


_DYING_ONCE = """
import os
import re
from pathlib import Path
from lightning.pytorch import Callback

class DyingOnce(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        mark = Path(trainer.default_root_dir, "died")
        if trainer.global_rank == 1 and trainer.current_epoch == 1 and batch_idx == 2 and not mark.exists():
            mark.touch()
            os._exit(9)
"""


def test_the_job_starts_again_from_its_last_checkpoint(tmp_path, cluster, whole, calm):
    (tmp_path / "own_callback.py").write_text(_DYING_ONCE)
    root = tmp_path / "shared"
    args = ["--trainer.callbacks", "own_callback.DyingOnce", "--trainer.default_root_dir", str(root)]
    given = launch_file(cluster, tmp_path, files=["own_callback.py"], args=args, restarts={"job": 1})
    place_parts(given, whole)
    with launched(cluster, tmp_path, given) as run:
        assert run.wait(2 * LIMIT_S) == 0, run.output
        assert "the job starts again from its last checkpoint (1 of restarts.job)" in run.output
    same(weights(root), calm(2))


def test_a_script_of_ones_own(tmp_path, cluster):
    (tmp_path / "own.py").write_text("import os, sys; print('rank', os.environ['RANK'], sys.argv[1:])")
    given = launch_file(cluster, tmp_path, command="own.py", args=["a b", "{node_rank}"])
    del given["config"]
    with launched(cluster, tmp_path, given) as run:
        assert run.wait(LIMIT_S) == 0, run.output
        for number in range(2):
            assert f"host{number}:{number}| rank {number} ['a b', '{number}']" in run.output


def test_a_script_of_dgls_names_trains_as_on_one_host(tmp_path, cluster, whole, dgl_alone):
    """Of seed 002's form: hosts by ip_config.txt, the graph by the variable that DGL's launcher sets, a part on each host."""
    script = Path(__file__).with_name("dgl_script.py")
    (tmp_path / script.name).write_text(script.read_text())
    (tmp_path / "ip_config.txt").write_text("".join(f"{cluster.made.address(n)} 30050\n" for n in range(2)))
    given = launch_file(
        cluster,
        tmp_path,
        command=script.name,
        args=["ip_config.txt"],
        files=["ip_config.txt"],
        partition={"dir": "part"},
    )
    del given["config"]
    place_parts(given, whole)
    with launched(cluster, tmp_path, given) as run:
        assert run.wait(2 * LIMIT_S) == 0, run.output
        assert all(f"trained by {n} on host {n} of 2" in run.output for n in range(2)), run.output
    same(torch.load(Path(given["hosts"][0]["dir"], "weights.pt"), weights_only=True), dgl_alone)


def test_a_newcomer_follows_the_page(tmp_path, cluster):
    """The files and commands of docs/launch.md as they are, but for names of hosts and folders."""
    text = (_DOCS / "launch.md").read_text()
    text = text.replace("/shared/products", f"{tmp_path}/shared").replace("/data/products", "parts")
    files = dict(re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", text, re.S))
    (commands,) = (block.splitlines() for block in re.findall(r"```\n(glt-lightning partition.*?)```", text, re.S))
    assert len(commands) == 3
    (tmp_path / "run.yaml").write_text(files["run.yaml"])
    given = yaml.safe_load(files["cluster.yaml"])
    here = launch_file(cluster, tmp_path)
    given |= {name: here[name] for name in ("ssh_command", "defaults", "hosts")}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(given))
    for command in commands:
        argv = [sys.executable, "-m", "glt_lightning", *command.split()[1:]]
        with started(cluster.made.command(_LAUNCHER, argv), cwd=tmp_path, env=ONE_THREAD) as run:
            assert run.wait(LIMIT_S) == 0, run.output
            output = run.output
    assert "best val_acc" in output, output
    (checkpoint,) = Path(given["hosts"][0]["dir"], "checkpoints").glob("last*.ckpt")
    # and the same hosts write the embeddings of all nodes
    args = json.dumps(["--ckpt_path", str(checkpoint), "--out", str(tmp_path / "embeddings")])
    argv = [sys.executable, "-m", "glt_lightning", "launch", "--config", "cluster.yaml", "--command", "embed"]
    with started(cluster.made.command(_LAUNCHER, [*argv, "--args", args]), cwd=tmp_path, env=ONE_THREAD) as run:
        assert run.wait(LIMIT_S) == 0, run.output
    manifest = Manifest.load(tmp_path / "shared")
    assert len(read_embeddings(tmp_path / "embeddings")["n_id"]) == sum(manifest.num_nodes)
