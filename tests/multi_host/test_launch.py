"""``launch`` over real sshds, in network namespaces: what it trains, and how it ends."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import started
from tests.helpers.hosts import Hosts, hosts, why_not
from tests.helpers.run import Run
from tests.helpers.sshd import sshds, why_no_sshd
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
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
def launched(cluster: Cluster, folder: Path, given: dict[str, Any], *more: str, **run: Any) -> Iterator[Run]:
    (folder / "run.yaml").write_text(yaml.safe_dump(config(**run)))
    (folder / "cluster.yaml").write_text(yaml.safe_dump(given, allow_unicode=True))
    argv = [sys.executable, "-m", "glt_lightning", "launch", "--config", "cluster.yaml", *more]
    before = cluster.left()
    with started(cluster.made.command(_LAUNCHER, argv), cwd=folder, env=ONE_THREAD) as run_:
        yield run_
        deadline = time.monotonic() + 15
        while cluster.left() != before:
            assert time.monotonic() < deadline, (before, cluster.left(), run_.output)
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
