"""Which hosts a script runs on, and which of them is this one. tests/multi_host trains on two."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

import glt_lightning.compat.dgl as dgl
from glt_lightning.base import ClusterOptions, OptionError
from glt_lightning.compat.dgl.hosts import JoinedHosts, ScriptHosts, hosts_of_script
from glt_lightning.launch import LaunchConfig, launched_script
from glt_lightning.launch.plan import VARIABLE, trainer_process
from glt_lightning.workers import Ranks
from tests.helpers import started
from tests.helpers.partitions import partitioned, small_graph


def listed(folder: Path, text: str) -> Path:
    (folder / "ip_config.txt").write_text(text)
    return folder / "ip_config.txt"


def test_hosts_are_those_of_the_file(tmp_path: Path) -> None:
    two = listed(tmp_path, "# ours\n10.1.2.3 30050\n\n127.0.0.1\n10.1.2.3 30051\n")
    found = hosts_of_script(two, None)
    assert found == ScriptHosts(("10.1.2.3", "127.0.0.1"), 1, ClusterOptions())  # the second one is this one's address
    named = ClusterOptions(host="10.1.2.3")
    assert hosts_of_script(two, named) == ScriptHosts(("10.1.2.3", "127.0.0.1"), 0, named)
    assert hosts_of_script(listed(tmp_path, "10.1.2.3 30050\n"), None) is None
    assert hosts_of_script(None, None) is None


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot read"):
        dgl.distributed.initialize(tmp_path / "missing.txt")
    with pytest.raises(OptionError, match="names no host"):
        dgl.distributed.initialize(listed(tmp_path, "# none\n"))
    far = listed(tmp_path, "10.1.2.3\n10.1.2.4\n")
    with pytest.raises(OptionError, match="no interface of this host has one of them"):
        dgl.distributed.initialize(far)
    with pytest.raises(OptionError, match=r"cluster.host '10.1.2.5' is none of them"):
        dgl.distributed.initialize(far, cluster=ClusterOptions(host="10.1.2.5"))
    hosts = ScriptHosts(("127.0.0.1", "127.0.0.2"), 0, ClusterOptions())
    with pytest.raises(
        OptionError, match=r"names 2 hosts, and there are 1 ranks. Call torch.distributed.init_process_group"
    ):
        JoinedHosts(tmp_path, hosts, Ranks(), 0)


def test_launch_tells_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LaunchConfig(
        command="train.py",
        hosts=["10.1.2.3", "10.1.2.4"],
        partition={"dir": "parts"},
        security={"dir": "certs"},
        defaults={"env": {"A": "1"}},
    )
    env = trainer_process(config, config.trainers[1], "runs/x").env
    assert (env["DGL_CONF_PATH"], env["A"]) == ("parts", "1")
    assert launched_script() is None
    monkeypatch.setenv(VARIABLE, env[VARIABLE])
    found = hosts_of_script(None, None)
    assert found is not None
    assert (found.addresses, found.number, found.own) == (("10.1.2.3", "10.1.2.4"), 1, "10.1.2.4")
    assert found.cluster.security.key == "certs/10.1.2.4.key"
    own = LaunchConfig(command="train.py", hosts=["n0"], defaults={"env": {VARIABLE: "mine"}})
    assert trainer_process(own, own.trainers[0], "runs/x").env[VARIABLE] == "mine"
    fit = LaunchConfig(command="fit", run_config="run.yaml", hosts=["n0"], partition={"dir": "parts"}, strategy="ddp")
    assert not {VARIABLE, "DGL_CONF_PATH"} & trainer_process(fit, fit.trainers[0], "runs/x").env.keys()
    monkeypatch.setenv(VARIABLE, json.dumps({"hosts": 3}))
    with pytest.raises(OptionError, match="GLT_LAUNCH: cannot read"):
        launched_script()


_ENDS_SOONER = """
import sys, time
import torch
import glt_lightning.compat.dgl as dgl

dgl.distributed.initialize(None, num_workers=0)
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
graph = dgl.distributed.DistGraph("part")
tensor = dgl.distributed.DistTensor((graph.number_of_nodes(),), torch.int64, "t")
rows = torch.arange(graph.number_of_nodes())[graph.rank() :: 2]
tensor[rows] = rows
graph.barrier()
if graph.rank() == 0:
    time.sleep(3)
    print("read", torch.equal(tensor[:], torch.arange(graph.number_of_nodes())))
"""


@pytest.mark.slow
def test_a_rank_that_ends_sooner_serves_its_rows_until_the_others_end(tmp_path: Path) -> None:
    """Two hosts, which are two addresses of this one."""
    parts = partitioned(small_graph(), tmp_path / "parts", 2).directory
    addresses = ["127.0.0.1", "127.0.0.2"]
    with contextlib.ExitStack() as stack:
        runs = []
        for rank, host in enumerate(addresses):
            cluster = {"host": host, "deadlines": {"reconnect_s": 5}}
            env = {VARIABLE: json.dumps({"hosts": addresses, "cluster": cluster}), "DGL_CONF_PATH": str(parts)}
            env |= {
                "GLOO_SOCKET_IFNAME": "lo",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
            }
            argv = [sys.executable, "-c", _ENDS_SOONER, str(tmp_path / "store"), str(rank)]
            runs.append(stack.enter_context(started(argv, env=env)))
        for run in runs:
            assert run.wait(200) == 0, [each.output for each in runs]
        assert "read True" in runs[0].output
