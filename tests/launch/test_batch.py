"""The files that SLURM and Kubernetes are given: as a person would write them, and as the clusters' own schemas demand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from glt_lightning.base import OptionError
from glt_lightning.cli.launch import run_launch
from glt_lightning.launch import LaunchConfig, LaunchFlags, LaunchPartition, on_ray, start_job
from glt_lightning.launch.kubernetes import job_text, on_pods, secret_command
from glt_lightning.launch.slurm import job_script
from glt_lightning.workers import HostedServer
from tests.launch.job_set import JOB_SET, job_objects, why_refused

EXPECTED = Path(__file__).parent / "expected"
COMMON: dict[str, Any] = {"command": "fit", "run_config": "run.yaml", "name": "products"}
SLURM: dict[str, Any] = COMMON | {"engine": "slurm", "slurm": {"nodes": 2}}
KUBERNETES: dict[str, Any] = COMMON | {"engine": "kubernetes", "kubernetes": {"image": "registry/glt:1", "nodes": 2}}
FULL: dict[str, Any] = {
    "defaults": {
        "devices": 4,
        "env": {"NCCL_SOCKET_IFNAME": "eth0", "WHO": "it's me"},
        "python": "/opt/env/bin/python",
    },
    "security": {"dir": "certs"},
    "restarts": {"job": 2},
    "args": ["--trainer.max_epochs", "20"],
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("trainer: {max_epochs: 1}\n")


def full_slurm() -> LaunchConfig:
    group = {
        "nodes": 2,
        "servers": 2,
        "gpus": True,
        "cpus_per_task": 8,
        "time": "12:00:00",
        "options": ["--constraint=a100"],
    }
    return LaunchConfig(**SLURM | FULL | {"slurm": group, "partition": {"dir": "/data/parts"}})


def full_kubernetes() -> LaunchConfig:
    group = {"image": "registry/glt:1", "nodes": 2, "servers": 2, "gpus": True, "volumes": {"data": "/data"}}
    group |= {"server_resources": {"memory": "64Gi"}, "namespace": "graphs"}
    more = {"kubernetes": group, "partition": {"source": "s3://bucket/parts", "dir": "/scratch/parts"}}
    return LaunchConfig(**KUBERNETES | FULL | more | {"defaults": FULL["defaults"] | {"dir": "/data/run"}})


def array_of_pods() -> LaunchConfig:
    """The file of a job that trains, with another command."""
    partition = LaunchPartition(dir="/data/parts")
    return replace(full_kubernetes(), command="partition", args=["--batches", "4"], partition=partition)


def test_files() -> None:
    """They are as they were when somebody last read them. GLT_WRITE_EXPECTED=1 writes them anew, to be read."""
    found = {"job.sbatch": job_script(full_slurm(), "runs/products/now"), "job.yaml": job_text(full_kubernetes())}
    found["array.sbatch"] = job_script(replace(full_slurm(), command="partition", args=[]), "runs/products/now")
    for name, text in found.items():
        if os.environ.get("GLT_WRITE_EXPECTED"):
            (EXPECTED / name).write_text(text)
        assert text == (EXPECTED / name).read_text()


@pytest.mark.parametrize(
    "config",
    [
        LaunchConfig(**SLURM),
        full_slurm(),
        LaunchConfig(
            **SLURM | {"command": "train file.py", "run_config": None} | {"command": "train.py"}, ranks="script"
        ),
        LaunchConfig(**SLURM | {"defaults": {"env": {"A": "$(x) `y` \"'; z"}}, "args": ["--a=$(b)", "it's\nit"]}),
    ],
    ids=["small", "full", "script", "quotes"],
)
def test_the_script_is_one_of_bash(config: LaunchConfig) -> None:
    text = job_script(config, "runs/it's/now")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)
    if (linter := shutil.which("shellcheck")) is not None:
        subprocess.run([linter, "--severity=warning", "-"], input=text, text=True, check=True, timeout=60)


def test_arguments_arrive_as_they_were_given(tmp_path: Path) -> None:
    """Also those that a shell would take apart."""
    args = ["--a=$(touch x)", "it's\nit", "a  b", "*", "", "\\", '"$HOME"', "NODE0"]
    config = LaunchConfig(**SLURM | {"args": args, "defaults": {"python": "/bin/echo"}})
    text = job_script(config, "r").replace("exec /bin/echo", r"printf '%s\0'")
    trainer = text[text.index("trainer() {") : text.index("export -f trainer")]
    printed = subprocess.run(
        ["bash", "-c", f"{trainer}\ntrainer"],
        capture_output=True,
        check=True,
        timeout=30,
        env={"SLURMD_NODENAME": "n7"},
    )
    words = printed.stdout.decode().split("\0")[:-1]
    at = words.index(args[0])
    assert words[at : at + len(args)] == args
    assert words[words.index("--cluster.host") + 1] == "n7"
    assert not Path("x").exists()


# In place of Python: prints its arguments and what it finds in the environment, as JSON.
_SHOWS = """#!{python}
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""
_STAND_INS = {
    "scontrol": "echo n0; echo n1",
    "srun": """while [[ $1 == --* ]]; do shift; done
for node in 0 1; do for local in 0 1; do
  SLURM_PROCID=$((2 * node + local)) SLURM_LOCALID=$local SLURM_NODEID=$node SLURM_NTASKS=4 SLURMD_NODENAME=n$node "$@"
done; done""",
}


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """A job of a script, whose Python shows what it is given; stand-ins for SLURM are on the path ``bin``."""
    (tmp_path / "bin").mkdir()
    texts = {name: f"#!/bin/bash\n{text}\n" for name, text in _STAND_INS.items()}
    for name, text in (texts | {"python": _SHOWS.format(python=sys.executable)}).items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    Path("own.py").write_text("")
    words = ["--rank={node_rank}", "of {num_nodes}", "{master_addr}:{master_port}", "{host}", "it's"]
    given = {"command": "own.py", "name": "p", "args": words, "partition": {"dir": "/data/parts"}}
    python = str(tmp_path / "bin" / "python")
    return given | {"defaults": {"devices": 2, "python": python}, "security": {"dir": "certs"}}


def shown(text: str, **env: str) -> list[tuple[list[str], dict[str, str]]]:
    """What the job's Python was given, at each of its starts, when bash runs ``text``."""
    path = f"{Path.cwd()}/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", text], env={"PATH": path, **env}, capture_output=True, text=True, timeout=60, check=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_script_in_a_job_of_slurm_knows_where_it_runs(own: dict[str, Any]) -> None:
    """Its rank as by torchrun, and what launch tells a script by ssh. Each node has its own name and number."""
    for ranks, each in (("torchrun", 2), ("script", 1)):
        job = LaunchConfig(**own, engine="slurm", slurm={"nodes": 2}, ranks=ranks)
        text = job_script(job, "run")
        if each == 1:
            text = text.replace("exec ", '[ "$SLURM_LOCALID" = 0 ] || exit 0; exec ')
        certs, *starts = shown(text, SLURM_SUBMIT_DIR=str(Path.cwd()), SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[0-1]")
        assert certs[0] == ["-m", "glt_lightning", "certs", "--dir", "run/certs-7-0", "--token", "--hosts", "n0,n1"]
        assert len(starts) == 2 * each
        for number, (argv, env) in enumerate(starts):
            node = number // each
            assert argv == ["own.py", f"--rank={node}", "of 2", "n0:29500", f"n{node}", "it's"]
            security = {"ca": "ca.pem", "cert": f"n{node}.pem", "key": f"n{node}.key", "token_file": "token"}
            assert json.loads(env["GLT_LAUNCH"]) == {
                "hosts": ["n0", "n1"],
                "cluster": {"host": f"n{node}", "security": {k: f"run/certs-7-0/{v}" for k, v in security.items()}},
            }
            assert (env["DGL_CONF_PATH"], env["MASTER_ADDR"], env["MASTER_PORT"]) == ("/data/parts", "n0", "29500")
            if ranks == "script":
                assert "RANK" not in env
            else:
                names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
                assert [int(env[name]) for name in names] == [number, number % 2, node, 4, 2]


def test_a_script_in_pods_knows_where_it_runs(own: dict[str, Any]) -> None:
    group = {"image": "i", "nodes": 2, "volumes": {"data": "/data"}}
    for ranks in ("torchrun", "script"):
        job = LaunchConfig(**own, engine="kubernetes", kubernetes=group, ranks=ranks)
        (trainer,) = job_objects(job)[1]["spec"]["replicatedJobs"]
        (container,) = trainer["template"]["spec"]["template"]["spec"]["containers"]
        for index in range(2):
            ((argv, env),) = shown(container["command"][-1], JOB_COMPLETION_INDEX=str(index))
            name, first = (f"p-trainer-0-{n}.p" for n in (index, 0))
            assert argv[argv.index("own.py") :] == [
                *["own.py", f"--rank={index}", "of 2", f"{first}:29500", name, "it's"]
            ]
            if ranks == "torchrun":
                assert argv[argv.index("--node_rank") + 1] == str(index)
            launched = json.loads(env["GLT_LAUNCH"])
            assert launched["hosts"] == [first, "p-trainer-0-1.p"]
            assert launched["cluster"]["host"] == name
            assert launched["cluster"]["security"]["key"] == f"certs/{name}.key"
            assert env["DGL_CONF_PATH"] == "/data/parts"


def test_the_objects_are_of_kubernetes() -> None:
    longest = LaunchConfig(**KUBERNETES | {"name": "p" * 45})
    for config in (LaunchConfig(**KUBERNETES), full_kubernetes(), longest, array_of_pods()):
        files, job_set = job_objects(config)
        jsonschema.validate(job_set, JOB_SET)
        assert why_refused(job_set) == []
        for release in ("1.31", "1.37"):
            kubernetes_validate.validate(files, release, strict=True)
            for each in job_set["spec"]["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"]}, **each["template"]}
                kubernetes_validate.validate(job, release, strict=True)
    # and the check finds what is wrong
    _, job_set = job_objects(full_kubernetes())
    job_set["metadata"]["name"] = "p" * 46
    job_set["spec"]["replicatedJobs"].reverse()
    job_set["spec"]["successPolicy"]["targetReplicatedJobs"] = ["train"]
    assert [text.split(":")[0].split(" ")[0] for text in why_refused(job_set)] == [
        f"{'p' * 46}-trainer-0-1-abcde",
        "trainer",
        "successPolicy",
    ]
    del job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    with pytest.raises(jsonschema.ValidationError, match="'template' is a required property"):
        jsonschema.validate(job_set, JOB_SET)


def test_what_the_pods_are() -> None:
    config = full_kubernetes()
    _, job_set = job_objects(config)
    graph, trainer = job_set["spec"]["replicatedJobs"]
    assert [graph["template"]["spec"][name] for name in ("completions", "parallelism", "backoffLimit")] == [2, 2, 10]
    assert [trainer["template"]["spec"][name] for name in ("completions", "parallelism", "backoffLimit")] == [2, 2, 0]
    assert trainer["dependsOn"] == [{"name": "graph", "status": "Ready"}]
    # pods are called NAME-JOB-0-INDEX.SUBDOMAIN, and certificates and commands name them so
    machines = on_pods(config).machines
    assert [each.address for each in machines] == [
        *["products-graph-0-0.products", "products-graph-0-1.products"],
        *["products-trainer-0-0.products", "products-trainer-0-1.products"],
    ]
    said = secret_command(config)
    for machine in machines:
        assert f"--from-file=certs/{machine.address}.key" in said
    assert "--from-file=certs/ca.key" not in said
    (train,) = trainer["template"]["spec"]["template"]["spec"]["containers"]
    assert "--master_addr products-trainer-0-0.products" in train["command"][-1]
    assert train["resources"]["limits"] == {"nvidia.com/gpu": 4}
    (serve,) = graph["template"]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert '--health "$host":18800' in serve[probe]["exec"]["command"][-1]
    mounted = {each["mountPath"] for each in serve["volumeMounts"]}
    assert mounted == {"/data", "/scratch", "/data/run/run.yaml", "/data/run/certs"}
    (pull,) = graph["template"]["spec"]["template"]["spec"]["initContainers"]
    assert '"of": 2' in pull["command"][-1]
    assert "initContainers" not in trainer["template"]["spec"]["template"]["spec"]


def test_pods_that_partition() -> None:
    _, job_set = job_objects(array_of_pods())
    (array,) = job_set["spec"]["replicatedJobs"]
    job = array["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 8, 8)
    assert job_set["spec"]["successPolicy"]["targetReplicatedJobs"] == [array["name"]]
    # a pod that is lost is made again; wrong data and wrong options end the job
    assert job["backoffLimit"] == 40
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [1, 2]
    (container,) = job["template"]["spec"]["containers"]
    words = shlex.split(container["command"][-1].replace("\\\n", ""))
    assert words[:7] == ["exec", "/opt/env/bin/python", "-m", "glt_lightning", "partition", "--config", "run.yaml"]
    assert words[7:] == [
        *["--data.partition.dir", "/data/parts", "--batches", "4"],
        *["--data.partition.engine", "array", "--data.partition.processes", "8"],
    ]
    assert "limits" not in container.get("resources", {})
    assert [volume["name"] for volume in job["template"]["spec"]["volumes"]] == ["data", "files"]
    for folder in ("/scratch/parts", None):
        with pytest.raises(OptionError, match=r"partition.dir: .* the pods of the array make the partition together"):
            job_text(replace(array_of_pods(), partition=LaunchPartition(dir=folder)))


def seen(pod: dict[str, Any], container: dict[str, Any], secret: set[str], index: int) -> set[str]:
    """Paths of a Secret's keys in a container of the pod with an index, as the kubelet mounts them."""
    found = set()
    volumes = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    for mount in container["volumeMounts"]:
        if mount["name"] not in volumes:
            continue
        whole = [{"key": key, "path": key} for key in secret]
        below = mount.get("subPathExpr", "").replace("$(JOB_COMPLETION_INDEX)", str(index))
        for item in volumes[mount["name"]].get("items", whole):
            assert item["key"] in secret
            if Path(item["path"]).is_relative_to(below):
                found.add(str(Path(mount["mountPath"], Path(item["path"]).relative_to(below))))
    return found


def test_a_container_sees_the_key_of_its_own_host_alone() -> None:
    """Also if the Secret was made of the whole folder. The number of one pod of eleven begins like that of another."""
    for count in (2, 11):
        config = full_kubernetes()
        config = replace(config, kubernetes=replace(config.kubernetes, nodes=count, servers=count))
        machines = on_pods(config).machines
        files = {
            Path(word.partition("=")[2]).name for word in secret_command(config) if word.startswith("--from-file=")
        }
        assert files == {"ca.pem", "token"} | {f"{each.address}.{end}" for each in machines for end in ("pem", "key")}
        _, job_set = job_objects(config)
        containers = []
        for each in job_set["spec"]["replicatedJobs"]:
            pod = each["template"]["spec"]["template"]["spec"]
            for container in [*pod.get("initContainers", ()), *pod["containers"]]:
                containers.append(container["name"])
                for index in range(count):
                    host = f"products-{each['name']}-0-{index}.products"
                    own = {f"/data/run/certs/{name}" for name in ("ca.pem", "token", f"{host}.pem", f"{host}.key")}
                    assert seen(pod, container, files | {"ca.key", "other.key"}, index) == own
        assert containers == ["pull", "serve", "train"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slurm": None}, "slurm: the engine needs to know the size of the job"),
        ({"engine": "ssh", "hosts": ["n0"]}, "slurm: the engine is ssh. Set engine: slurm, or drop the group"),
        ({"hosts": ["n0"]}, "hosts, servers: with engine slurm the cluster chooses the hosts"),
        ({"defaults": {"devices": [0, 1]}}, "the cluster assigns GPUs"),
        ({"slurm": {"nodes": 1, "servers": 2}}, "slurm.servers: 2 graph servers need as many nodes"),
        ({"slurm": {"options": ["constraint=a100"]}}, "slurm.options: expected options of sbatch"),
        ({"slurm": {"time": "1 2"}}, "slurm.time: expected one word"),
        (
            {"slurm": {"options": ["--ntasks-per-node=8"]}, "defaults": {"devices": 4}},
            "slurm.options: --ntasks-per-node 8 is set by devices, to 4",
        ),
        ({"defaults": {"dir": "/data"}}, "defaults.dir: a job of SLURM runs in the folder in which it is submitted"),
        ({"partition": {"source": "s3://b", "dir": "p"}}, "partition: a job of SLURM does not copy s3://b"),
        ({"servers": ["g0"]}, "hosts, servers: with engine slurm"),
        ({"command": "partition", "slurm": {"options": ["--array=1"]}}, "slurm.options: --array: a job array"),
        ({"command": "partition", "slurm": {"options": ["-n 2"]}}, "slurm.options: -n: a job array"),
        ({"command": "partition", "partition": {"source": "s3://b", "dir": "p"}}, "partition: from: s3://b is to be"),
    ],
)
def test_wrong_jobs_of_slurm(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        job_script(LaunchConfig(**SLURM | given), "r")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kubernetes": {"image": "a b"}}, "kubernetes.image: expected the name of an image"),
        (
            {"kubernetes": {"image": "a", "volumes": {"data": "data"}}},
            "kubernetes.volumes: expected claims and absolute paths",
        ),
        ({"name": "Products"}, "name: Kubernetes needs small letters"),
        ({"name": "p" * 46}, "name: Kubernetes needs small letters, digits and '-', and names of pods"),
        ({"name": "p" * 44, "kubernetes": {"image": "a", "servers": 10_001}}, "name: Kubernetes needs small letters"),
        ({"partition": {"dir": "/data/parts"}}, "partition.dir: /data/parts is on no volume"),
        ({"restarts": {"job": 1}}, "restarts.job: 1 starts again need the checkpoints"),
        ({"defaults": {"dir": "run"}}, "defaults.dir: a container needs an absolute path, got 'run'"),
        ({"files": ["binary"]}, "files: binary is not text"),
        ({"files": ["large"]}, "files: 1,000,0.. bytes in all"),
    ],
)
def test_wrong_jobs_of_kubernetes(given: dict[str, Any], message: str) -> None:
    Path("binary").write_bytes(b"\xff\xfe")
    Path("large").write_text(" " * 1_000_000)
    with pytest.raises(OptionError, match=message):
        job_objects(LaunchConfig(**KUBERNETES | given))


def test_texts_arrive_as_they_are() -> None:
    """Of files, variables and arguments, whatever YAML and templates would make of them."""
    texts = {
        "odd": "  first\n\ttab\nno: 1\n'\"{{ x }} {% y %} (# z #)\n\n\n",
        "yes": "",
        "one": "on",
        "lines": "a\u2028b\x85c\x0cd\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    env = {"YES": "yes", "NUMBER": "1e3", "TEXT": "a: [b]\n  {{ c }} # d\n"}
    files, job_set = job_objects(
        LaunchConfig(**KUBERNETES | {"files": list(texts), "defaults": {"env": env}, "args": ["{% d %}\ne", "no"]})
    )
    assert {name: files["data"][name] for name in texts} == texts
    (train,) = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["value"] for each in train["env"]} == {"PYTHONUNBUFFERED": "1"} | env
    assert "'{% d %}\ne' no" in train["command"][-1]


def test_files_of_one_key_in_a_config_map_stay_apart() -> None:
    texts = {"a/b.yaml": "1", "a_b.yaml": "2", "a b.yaml": "3", "..c": "4", "d" * 250 + "/" + "d" * 50: "5"}
    for name, text in texts.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    files, job_set = job_objects(LaunchConfig(**KUBERNETES | {"files": list(texts)}))
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    mounted = {each["mountPath"]: each["subPath"] for each in pod["containers"][0]["volumeMounts"] if "subPath" in each}
    assert {name: files["data"][mounted[f"/glt-run/{name}"]] for name in texts} == texts
    assert all(re.fullmatch(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}", key) for key in files["data"])


def open_nothing(words: list[str]) -> HostedServer:
    raise AssertionError(words)


def test_workers_of_ray(capsys: pytest.CaptureFixture[str]) -> None:
    given = COMMON | {"engine": "ray", "defaults": {"devices": 2}, "args": ["--trainer.max_epochs", "3"]}
    group = {"storage": "/shared/runs", "nodes": 2, "every_n_steps": 5}
    assert start_job(LaunchConfig(**given, ray=group), LaunchFlags(dry_run=True), print, open_nothing) == 0
    shown = shlex.split(capsys.readouterr().out)
    assert shown[:6] == ["2", "x", "2", "workers", "of", "Ray:"]
    words = shown[shown.index("fit") :]
    assert words[words.index("--trainer.max_epochs") + 1] == "3"
    assert words[words.index("--trainer.num_nodes") + 1] == words[words.index("--trainer.devices") + 1] == "2"
    assert words[words.index("--trainer.callbacks+") + 1] == "glt_lightning.lightning.ReportToRay"
    assert words[words.index("--trainer.callbacks.every_n_steps") + 1] == "5"
    assert "--cluster.host" not in words  # which each node adds
    assert (
        start_job(LaunchConfig(**given, ray=group | {"servers": 2}), LaunchFlags(dry_run=True), print, open_nothing)
        == 0
    )
    assert "2 graph servers, and 2 x 2 workers of Ray: glt-lightning fit --trainer.strategy glt_server_client" in (
        capsys.readouterr().out
    )
    for more, message in (
        ({"ray": group | {"storage": "runs"}}, "ray.storage: expected an absolute path or a URL"),
        ({"ray": group | {"every_n_steps": 0}}, "ray.every_n_steps"),
        ({"ray": None}, "ray: the engine needs to know the size of the job"),
        ({"hosts": ["n0"]}, "hosts, servers: with engine ray the cluster chooses the hosts"),
        ({"command": "partition"}, "command: engine ray runs fit.* for partition use engine ray of data.partition"),
        (
            {"command": "a.py", "run_config": None},
            "command: engine ray runs .* for a.py use TorchTrainer in the script",
        ),
        (
            {"security": {"dir": "certs"}},
            "security.dir, files: with engine ray nothing is copied",
        ),
        ({"ray": group | {"servers": -1}}, "ray.servers"),
        ({"ray": group | {"server_port": 0}}, "ray.server_port"),
    ):
        with pytest.raises(OptionError, match=message):
            start_job(LaunchConfig(**given | {"ray": group} | more), LaunchFlags(dry_run=True), print, open_nothing)


@pytest.mark.parametrize(
    ("accelerator", "words", "gpus", "asks"),
    [
        (None, [], None, True),  # auto, and the cluster has them
        ("auto", ["--trainer.devices", "5"], None, True),
        ("cpu", [], None, False),
        ("gpu", ["--trainer.accelerator=cpu"], None, False),
        ("cpu", ["--trainer.accelerator", "cpu", "--trainer.accelerator", "cuda"], None, True),
        ("gpu", [], False, False),
        ("cpu", [], True, True),
    ],
)
def test_gpus_of_ray(
    accelerator: str | None,
    words: list[str],
    gpus: bool | None,
    asks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0, "GPU": 2.0})
    monkeypatch.setattr(on_ray, "_module", {"ray": cluster}.__getitem__)
    (tmp_path / "run.yaml").write_text(f"trainer: {{accelerator: {accelerator}}}" if accelerator else "trainer: {}")
    config = LaunchConfig(
        command="fit", run_config=str(tmp_path / "run.yaml"), engine="ray", ray={"storage": "/runs", "gpus": gpus}
    )
    assert on_ray._asks_for_gpus(config, words, 2) is asks
    if accelerator is None:
        assert not on_ray._asks_for_gpus(config, words, 3)  # more ranks than GPUs


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def launch(*more: str, **config: Any) -> str:
        given = {("config" if name == "run_config" else name): value for name, value in config.items()}
        Path("job.yaml").write_text(yaml.safe_dump(given))
        with pytest.raises(SystemExit) as ended:
            run_launch(["--config", "job.yaml", *more], "glt-lightning launch")
        assert ended.value.code == 0
        return capsys.readouterr().out

    said = launch(**SLURM)
    assert Path(said.removeprefix("sbatch ").strip()).read_text().startswith("#!/bin/bash")
    assert launch("--dry_run", **SLURM).startswith("#!/bin/bash")
    secret, apply, advice = launch(**KUBERNETES | {"security": {"dir": "certs"}}).splitlines()
    assert secret.startswith("kubectl create secret generic products-certs")
    assert Path("certs/products-trainer-0-1.products.pem").exists()
    assert Path(apply.removeprefix("kubectl apply -f ")).exists()
    assert advice.startswith("# No volume has the folder of the run")
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\ncp "$1" submitted\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    launch("--submit", **SLURM)
    assert Path("submitted").read_text().startswith("#!/bin/bash")
    with pytest.raises(OptionError, match="--submit: only for engine slurm"):
        launch("--submit", **KUBERNETES)
    with pytest.raises(OptionError, match="command: partition runs as a job array of slurm or kubernetes"):
        launch(**COMMON | {"command": "partition", "hosts": [{"host": "n0"}]})
    # no certificates, and no advice about checkpoints
    partition = {"command": "partition", "security": {"dir": "other"}, "partition": {"dir": "/data/parts"}}
    volumes = {"kubernetes": {"image": "i", "volumes": {"data": "/data"}}}
    assert launch(**KUBERNETES | partition | volumes).startswith("kubectl apply -f ")
    assert not Path("other").exists()
