"""What a launch file says, what each host runs for it, and what the log makes of its output."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.base import OptionError
from glt_lightning.cli.launch import run_launch
from glt_lightning.launch import LaunchConfig, LaunchDefaults, LaunchHost, read_launch_file
from glt_lightning.launch.files import files_for, files_for_all, make_certificates
from glt_lightning.launch.messages import MergedLog
from glt_lightning.launch.plan import server_process, trainer_process
from glt_lightning.launch.remote import agent_command

TWO: dict[str, Any] = {
    "command": "fit",
    "run_config": "run.yaml",
    "hosts": ["n0", {"host": "n1", "address": "10.0.0.2"}],
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("trainer: {max_epochs: 1}\n")


def job(**more: Any) -> LaunchConfig:
    return LaunchConfig(**TWO | more)


def show(*words: str) -> None:
    """Shows the processes of each host."""
    with pytest.raises(SystemExit) as ended:
        run_launch([*words, "--dry_run"], "launch")
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hosts": []}, "hosts: expected at least one host"),
        ({"hosts": ["n0", "n0"]}, "hosts: n0 is listed twice"),
        ({"hosts": ["-oProxyCommand=x"]}, "hosts: expected the name or address of a host, got '-oProxyCommand=x'"),
        ({"hosts": [{"host": "n0", "prot": 22}]}, r"hosts\[0\]: expected any of .*Did you mean port"),
        ({"hosts": ["n0", {"host": "n1", "devices": [0, 1]}]}, "same number of devices; got n0 1, n1 2"),
        ({"defaults": {"devices": [1, 1]}}, r"defaults.devices: expected a number of processes.*got \[1, 1\]"),
        ({"defaults": {"env": {"A B": "c"}}}, "defaults.env: expected names of variables"),
        ({"command": "fti"}, "command: expected fit, .*got 'fti'"),
        ({"run_config": None}, "config: fit needs the configuration of the run"),
        ({"command": "a.py"}, "config: only graph servers would read it"),
        ({"command": "a.py", "run_config": None, "servers": ["g0"]}, "each graph server needs the configuration"),
        ({"command": "a.py", "run_config": None, "strategy": "ddp"}, "strategy: a script chooses its strategy"),
        ({"ranks": "script"}, "ranks: script is for a script of your own"),
        ({"engine": "docker"}, "engine: expected ssh, here"),
        ({"servers": [{"host": "g0", "port": 0}]}, r"servers \(g0\): port: expected 1 to 65535, got 0"),
        ({"partition": {"source": "s3://b/p"}}, "partition: s3://b/p is to be copied"),
        (
            {"partition": {"source": "node0:18700", "dir": "/p"}},
            "node0:18700: graph servers do not give files",
        ),
        ({"security": {"dir": "certs", "insecure": True}}, "security: dir is certs, and insecure is true"),
        ({"limits": {"stop_s": 0}}, "limits.stop_s: expected seconds > 0, got 0"),
        ({"restarts": {"job": -1}}, "restarts.job: expected an integer >= 0"),
        ({"name": "../x"}, "name: expected letters"),
        ({"engine": "here", "restarts": {"job": 1}}, "restarts.job: got 1 with engine here"),
    ],
)
def test_wrong_options(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        job(**given)


def test_what_two_hosts_run() -> None:
    config = job(
        defaults={"user": "ml", "devices": 2, "python": "/opt/py", "env": {"A": "1", "B": "1"}},
        hosts=["n0", {"host": "n1", "address": "10.0.0.2", "port": 2222, "devices": [4, 5], "env": {"B": "2"}}],
        args=["--trainer.devices", "9"],
        partition={"dir": "/data/parts"},
        security={"dir": "certs"},
    )
    machine = config.trainers[1]
    assert agent_command(config, machine) == [
        *["ssh", "-T", "-o", "BatchMode=yes", "-p", "2222", "-l", "ml", "n1", "--"],
        "exec /opt/py -m glt_lightning agent",
    ]
    plan = trainer_process(config, machine, "runs/run/now")
    assert plan.env == {
        "PYTHONUNBUFFERED": "1",
        "A": "1",
        "B": "2",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "GLT_LAUNCH_FAILURE": "runs/run/now/failure-1.json",
    }
    assert " ".join(plan.argv) == (
        "/opt/py -m glt_lightning.launch.rank_group --nnodes 2 --node_rank 1 --nproc_per_node 2 --master_addr n0 "
        "--master_port 29500 --tee 3 --log_dir runs/run/now/ranks -m glt_lightning fit --config run.yaml "
        "--trainer.strategy glt_worker --data.partition.dir /data/parts --cluster.security.ca certs/ca.pem "
        "--cluster.security.cert certs/10.0.0.2.pem --cluster.security.key certs/10.0.0.2.key "
        "--cluster.security.token_file certs/token --cluster.host 10.0.0.2 --trainer.devices 9 --trainer.num_nodes 2 "
        "--trainer.devices 2"
    )
    assert trainer_process(config, machine, "r", resume=True).argv[-2:] == ["--ckpt_path", "last"]


def test_what_servers_run() -> None:
    config = job(servers=["g0", {"host": "g1", "port": 18900}], security={"insecure": True})
    assert " ".join(server_process(config, config.graph_servers[1]).argv) == (
        'python3 -m glt_lightning serve --config run.yaml --server.rank 1 --cluster.servers ["g0:18800", "g1:18900"] '
        "--cluster.security.insecure true"
    )
    assert "glt_server_client" in trainer_process(config, config.trainers[0], "r").argv


def test_a_strategy_of_the_configuration_is_kept() -> None:
    Path("run.yaml").write_text("trainer: {strategy: ddp}\n")
    config = job()
    assert "--trainer.strategy" not in trainer_process(config, config.trainers[0], "r").argv


def test_a_script_of_ones_own() -> None:
    args = ["--nodes={num_nodes}", "--rank", "{node_rank}", "--at", "{master_addr}:{master_port}", "{x}"]
    config = LaunchConfig(
        command="train.py", hosts=[LaunchHost(host="n0"), LaunchHost(host="n1")], args=args, ranks="script"
    )
    words = "train.py --nodes=2 --rank 1 --at n0:29500 {x}"
    assert " ".join(trainer_process(config, config.trainers[1], "r").argv) == f"python3 {words}"
    config = LaunchConfig(command="train.py", hosts=["n0"], args=["-x"])
    assert trainer_process(config, config.trainers[0], "r").argv[-4:] == ["--log_dir", "r/ranks", "train.py", "-x"]


def test_the_agents_python_is_one_word_of_the_shell() -> None:
    config = job(defaults={"python": "~/my env/bin/pyth'on; true"})
    assert agent_command(config, config.trainers[0])[-1] == (
        """exec ~/'my env/bin/pyth'"'"'on; true' -m glt_lightning agent"""
    )


def test_files_and_certificates() -> None:
    Path("code/sub").mkdir(parents=True)
    Path("code/__pycache__").mkdir()
    for name in ("code/a.py", "code/sub/b.txt", "code/__pycache__/a.pyc"):
        Path(name).write_text("x")
    config = job(files=["code"], security={"dir": "certs"})
    assert [each.target for each in files_for_all(config)] == ["run.yaml", "code/a.py", "code/sub/b.txt"]
    assert make_certificates(config) == ["ca.pem", "ca.key", "token", "n0.pem", "10.0.0.2.pem"]
    assert make_certificates(config) == []
    assert [(each.target, each.mode) for each in files_for(config, config.trainers[1])] == [
        ("certs/ca.pem", 0o644),
        ("certs/10.0.0.2.pem", 0o644),
        ("certs/10.0.0.2.key", 0o600),
        ("certs/token", 0o600),
    ]
    for wrong, message in (("../x", "not below the current folder"), ("none", "cannot read none")):
        with pytest.raises(OptionError, match=message):
            files_for_all(job(files=[wrong]))


def test_keys_and_the_secret_do_not_travel_with_files() -> None:
    config = job(files=["."], security={"dir": "certs"})
    make_certificates(config)
    Path("data.txt").write_text("x")
    assert [each.target for each in files_for_all(config)] == ["run.yaml", "data.txt"]


def _copied(path: str) -> None:
    Path(path).write_bytes(Path("certs/ca.key").read_bytes())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Path("link.txt").symlink_to("certs/ca.key"), "link.txt"),
        (lambda: Path("hard.txt").hardlink_to("certs/n0.key"), "hard.txt"),
        (lambda: _copied("old/ca.key.bak"), "old/ca.key.bak"),
        (lambda: Path("old/secret").write_bytes(Path("certs/token").read_bytes()), "old/secret"),
        (
            lambda: Path("old/both").write_bytes(Path("certs/n0.pem").read_bytes() + Path("certs/n0.key").read_bytes()),
            "old/both",
        ),
        (lambda: Path("old/linked").symlink_to("../certs"), None),
    ],
    ids=["link", "hard link", "copy", "copy of the secret", "key behind a certificate", "link to the folder"],
)
@pytest.mark.parametrize("folder", ["certs", "../outside"])
def test_a_key_by_another_name_is_refused(
    folder: str, make: Callable[[], Any], named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job/old").mkdir(parents=True)
    Path("run.yaml").rename("job/run.yaml")
    monkeypatch.chdir("job")
    config = job(files=["."], security={"dir": folder})
    make_certificates(config)
    if folder != "certs":
        Path("certs").symlink_to(folder)
    make()
    if named is None:
        assert [each.target for each in files_for_all(config)] == ["run.yaml"]
        return
    with pytest.raises(OptionError, match=f"files: {named} .*each host gets its own"):
        files_for_all(config)


@pytest.mark.parametrize("given", ["certs", "certs/ca.key", "certs/token", "linked", "linked/n0.key"])
def test_the_folder_of_keys_is_not_in_files(given: str) -> None:
    config = job(files=[given], security={"dir": "certs"})
    make_certificates(config)
    Path("linked").symlink_to("certs")
    with pytest.raises(OptionError, match=f"files: {given} .*each host gets its own"):
        files_for_all(config)


def test_a_key_is_refused_without_a_folder_of_keys() -> None:
    make_certificates(job(security={"dir": "certs"}))
    with pytest.raises(OptionError, match=r"files: certs/10.0.0.2.key is a private key"):
        files_for_all(job(files=["."]))


def test_files_are_regular_and_keep_their_modes() -> None:
    os.mkfifo("fifo")
    with pytest.raises(OptionError, match="files: cannot read fifo: it is not a regular file"):
        files_for_all(job(files=["fifo"]))
    Path("mine").write_text("x")
    Path("mine").chmod(0o600)
    Path("run.sh").write_text("x")
    Path("run.sh").chmod(0o755)
    assert [each.mode for each in files_for_all(job(files=["mine", "run.sh"]))[1:]] == [0o600, 0o755]


def test_two_files_do_not_go_to_one_place(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/run.yaml").write_text("trainer: {max_epochs: 2}\n")
    with pytest.raises(
        OptionError, match=r"files: run.yaml and .*elsewhere/run.yaml would both be run.yaml on each host"
    ):
        files_for_all(job(run_config=str(tmp_path / "elsewhere/run.yaml"), files=["run.yaml"]))


@pytest.mark.parametrize("host", ["ca", "token", {"host": "n1", "address": "ca"}])
def test_a_host_is_not_called_like_the_authority(host: Any) -> None:
    config = job(hosts=["n0", host], security={"dir": "certs"})
    with pytest.raises(OptionError, match=r"hosts: the files of '(ca|token)' would replace those of the authority"):
        make_certificates(config)
    assert not Path("certs").exists()
    with pytest.raises(OptionError, match="hosts: the files of"):
        files_for(config, config.trainers[1])


def test_hosts_of_a_file_may_be_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("command: fit\nconfig: run.yaml\nhosts: [n0, {host: n1}]\nservers: [g0]\n")
    show("--config", "job.yaml")
    shown = capsys.readouterr().out
    assert all(f"{name}:\n" in shown for name in ("n0", "n1", "g0:server0"))
    show("--config", "job.yaml", "--hosts", "[n2, n3]", "--servers=[g1]")
    shown = capsys.readouterr().out
    assert [name for name in ("n0", "n1", "n2", "n3", "g0:server0", "g1:server0") if f"{name}:\n" in shown] == [
        "n2",
        "n3",
        "g1:server0",
    ]


def test_names_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("config: a.yaml\npartition: {from: 's3://b', dir: /p}\n")
    assert read_launch_file(str(path)) == ({"run_config": "a.yaml", "partition": {"source": "s3://b", "dir": "/p"}}, "")
    path.write_text("a: [")
    with pytest.raises(OptionError, match="is not YAML"):
        read_launch_file(str(path))


_GLT = """
# IP addresses for all nodes.
nodes:
  - 10.0.0.1
  - 10.0.0.2
ports: [22, 2222]
python_bins:
  - /path/to/python
  - /path/to/python
usernames:
  - root
  - ml
dataset: ogbn-products
in_channel: 100
node_ranks: [1, 0]
dst_paths:
  - /path/to/GLT
  - /path/to/GLT
visible_devices:
  - 0,1,2,3
  - 4,5,6,7
"""


def test_the_file_of_glt_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "dist.yml"
    path.write_text(_GLT)
    options, said = read_launch_file(str(path))
    assert said == (
        f"{path}: read as GLT's file: nodes, ports, usernames, python_bins, dst_paths, visible_devices, node_ranks; not used: "
        "dataset, in_channel (options of the run's configuration, or args of a script)"
    )
    first, second = LaunchConfig(command="fit", run_config="run.yaml", **options).trainers
    assert (first.host, first.user, first.ssh_port, first.gpus) == ("10.0.0.2", "ml", 2222, (4, 5, 6, 7))
    assert (second.host, second.python, second.dir) == ("10.0.0.1", "/path/to/python", "/path/to/GLT")
    for old, new, message in (
        ("[22, 2222]", "[22]", "ports: expected a list with one entry for each of the nodes"),
        ("[1, 0]", "[1, 1]", "node_ranks: expected 0 to 1, each once"),
        ("0,1,2,3", "0,one", "visible_devices: expected numbers of GPUs"),
    ):
        path.write_text(_GLT.replace(old, new))
        with pytest.raises(OptionError, match=message):
            read_launch_file(str(path))


def test_the_file_of_dgl_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ip_config.txt"
    path.write_text("172.31.19.1\n172.31.23.205 30050\n\nfe80::1\n")
    options, said = read_launch_file(str(path))
    assert [each["host"] for each in options["hosts"]] == ["172.31.19.1", "172.31.23.205", "fe80::1"]
    assert "3 hosts of DGL's ip_config" in said


def test_lines_have_the_names_of_host_and_rank() -> None:
    terminal = io.StringIO()
    log = MergedLog(Path("logs"), terminal)
    log.add("n1", "trainer", "[default1]:hello\nof torchrun\n", 4)
    log.add("n1", "trainer", "".join(f"[default0]:{n}\n" for n in range(50)), 4)
    log.add("g0:server0", "server0", "listening\n")
    log.add("g0:server0", "ssh", "warning\n")
    log.close()
    lines = terminal.getvalue().splitlines()
    assert lines[:2] == ["n1:5| hello", "n1| of torchrun"]
    assert lines[-2:] == ["g0:server0| listening", "g0:server0:ssh| warning"]
    assert log.tail("n1", "4") == [str(n) for n in range(10, 50)]
    assert Path("logs/g0-server0.log").read_text().splitlines() == lines[-2:]
    assert sorted(each.name for each in Path("logs").iterdir()) == ["g0-server0.log", "n1.log"]


_SEED = """# IP addresses for all nodes.
nodes:
  - 0.0.0.0
  - 1.1.1.1

# ssh IP ports for each node.
ports: [22, 22]

# path to python with GLT envs
python_bins:
  - /path/to/python
  - /path/to/python
# username for remote IPs.
usernames:
  - root
  - root

# dataset name, e.g. ogbn-products.
# Note: make sure the name of dataset_root_dir the same as the dataset name.
dataset: ogbn-products

# in_channel and out_channel for the dataset
in_channel: 100
out_channel: 47

node_ranks: [0, 1]

dst_paths:
  - /path/to/GLT
  - /path/to/GLT

# Setup visible cuda devices for each node.
visible_devices:
  - 0,1,2,3
  - 4,5,6,7
"""


@pytest.mark.parametrize("kind", ["glt", "dgl"])
def test_a_dry_run_shows_the_job_and_starts_nothing(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the files of GLT and DGL as they are, and a script with the arguments that GLT's launcher gives it."""
    name, text = {"glt": ("dist.yml", _SEED), "dgl": ("ip_config.txt", "0.0.0.0\n1.1.1.1\n")}[kind]
    Path(name).write_text(text)
    Path("train.py").write_text("")
    Path("ssh").write_text("#!/bin/sh\ntouch called\n")
    Path("ssh").chmod(0o755)
    args = ["--num_nodes={num_nodes}", "--node_rank={node_rank}", "--master_addr={master_addr}"]
    words = ["--config", name, "--command", "train.py", "--ranks", "script", "--files", '["train.py"]']
    show(*words, "--args", json.dumps(args), "--ssh_command", '["./ssh"]')
    shown = capsys.readouterr()
    python, folder = ("/path/to/python", "/path/to/GLT") if kind == "glt" else ("python3", LaunchDefaults().dir)
    for rank, host in enumerate(("0.0.0.0", "1.1.1.1")):
        assert f"{host}:\n  agent: ./ssh -T -o BatchMode=yes" in shown.out
        assert f"  copy: train.py -> {folder}/train.py" in shown.out
        assert f"{python} train.py --num_nodes=2 --node_rank={rank} --master_addr=0.0.0.0\n" in shown.out
    assert ("CUDA_VISIBLE_DEVICES=4,5,6,7 " in shown.out) == (kind == "glt")
    assert f"{name}: " in shown.err
    assert sorted(path.name for path in Path().iterdir()) == sorted([name, "run.yaml", "ssh", "train.py"])
