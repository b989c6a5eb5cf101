"""Jobs over several hosts, with mutual TLS and links of 1 Gbit/s, train as one process does: the very same weights."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from glt_lightning import DistGraph, read_embeddings
from glt_lightning.base import EDGE, PartitionOptions
from glt_lightning.partition import (
    Additions,
    NewEdges,
    NewNodes,
    append_rows,
    delete_rows,
    open_source,
    partition_graph,
)
from glt_lightning.workers import placed_parts, run_certs
from tests.helpers import started
from tests.helpers.hosts import Hosts, hosts, why_not
from tests.helpers.own_rows import work
from tests.helpers.partitions import small_graph
from tests.helpers.run import Run
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_PORT = 18_800
_OWN = {host: placed_parts(host, 2, 2) for host in range(2)}  # which part is where


@pytest.fixture(scope="module")
def four_hosts() -> Iterator[Hosts]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with hosts(4) as made:
        yield made


def addresses(made: Hosts) -> list[str]:
    """Of the two servers."""
    return [f"{made.address(number)}:{_PORT}" for number in range(2)]


def make_folders(
    tmp_path: Path, count: int, made: Hosts, whole: Path, parts: Mapping[int, Sequence[int]], **options: Any
) -> list[Path]:
    """One folder per host, with what that host has: the configuration, its certificate, and its parts alone."""
    names = [made.address(number) for number in range(count)]
    run_certs(["--dir", str(tmp_path / "certs"), "--hosts", ",".join(names), "--token"])
    files = {"ca": "ca.pem", "cert": "host.pem", "key": "host.key", "token_file": "token"}
    text = yaml.safe_dump(config(security=files, **options))
    folders = []
    for number, address in enumerate(names):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        (folder / "run.yaml").write_text(text)
        copies = {"ca.pem": "ca.pem", "token": "token", f"{address}.pem": "host.pem", f"{address}.key": "host.key"}
        for source, target in copies.items():
            shutil.copy(tmp_path / "certs" / source, folder / target)
        if number in parts:
            others = [f"part{p}" for each in parts.values() for p in each if p not in parts[number]]
            shutil.copytree(whole, folder / "part", ignore=shutil.ignore_patterns(*others))
            if (versions := whole.with_name(f"{whole.name}.versions")).exists():
                shutil.copytree(versions, folder / "part.versions")
        folders.append(folder)
    return folders


@contextlib.contextmanager
def on_host(made: Hosts, number: int, folder: Path, *argv: object, master: int = 0) -> Iterator[Run]:
    command = made.command(number, [sys.executable, "-m", "glt_lightning", *map(str, argv)])
    with started(command, cwd=folder, env=made.environment(number, master, 29_501) | ONE_THREAD) as run:
        yield run


def serving(run: Run) -> None:
    deadline = time.monotonic() + LIMIT_S
    while "listening at" not in run.output:
        assert run.popen.poll() is None, run.output
        assert time.monotonic() < deadline, run.output
        time.sleep(0.05)


@contextlib.contextmanager
def fitting(
    made: Hosts, folders: list[Path], numbers: list[int], strategy: str, *more: object, command: str = "fit"
) -> Iterator[list[Run]]:
    """Trains on hosts, the first of which is the main one."""
    argv = [command, "--config", "run.yaml", "--trainer.num_nodes", len(numbers), "--trainer.devices", 1]
    argv += ["--trainer.strategy", strategy, *more]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(on_host(made, n, folders[n], *argv, master=numbers[0])) for n in numbers]


def end_well(runs: list[Run]) -> None:
    for run in runs:
        assert run.wait(LIMIT_S) == 0, "\n\n".join(each.output for each in runs)


@contextlib.contextmanager
def two_servers(made: Hosts, folders: list[Path], *more: object) -> Iterator[None]:
    """On the first two hosts; they outlive what is done meanwhile."""
    with contextlib.ExitStack() as stack:
        argv = ["serve", "--config", "run.yaml", *more, "--server.rank"]
        runs = [stack.enter_context(on_host(made, n, folders[n], *argv, n)) for n in range(2)]
        for run in runs:
            serving(run)
        yield
        for run in runs:
            assert run.popen.poll() is None, run.output


def wait_for_bytes(made: Hosts, host: int, count: int) -> None:
    """Until a host has sent that much more than now."""
    begin, deadline = made.bytes_sent(host), time.monotonic() + LIMIT_S
    while made.bytes_sent(host) < begin + count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_servers_and_two_clients(tmp_path, four_hosts, whole, calm):
    folders = make_folders(tmp_path, 4, four_hosts, whole, _OWN, servers=addresses(four_hosts))
    before = [four_hosts.bytes_sent(number) for number in range(2)]
    with two_servers(four_hosts, folders), fitting(four_hosts, folders, [2, 3], "glt_server_client") as runs:
        end_well(runs)
    same(weights(folders[2]), calm(2))
    sent = [four_hosts.bytes_sent(number) - b for number, b in enumerate(before)]
    assert min(sent) > 1_000_000  # each server had its share


def test_a_servers_link_is_down_for_a_while(tmp_path, four_hosts, whole, calm):
    deadlines = {"call_s": 2.0, "connect_s": 2.0, "reconnect_s": 60.0}
    options = {"servers": addresses(four_hosts), "deadlines": deadlines}
    folders = make_folders(tmp_path, 4, four_hosts, whole, _OWN, epochs=20, **options)
    with two_servers(four_hosts, folders), fitting(four_hosts, folders, [2, 3], "glt_server_client") as runs:
        wait_for_bytes(four_hosts, 1, 3_000_000)
        four_hosts.cut(1)
        time.sleep(5)
        assert [run.popen.poll() for run in runs] == [None, None], "\n\n".join(run.output for run in runs)
        four_hosts.heal(1)
        end_well(runs)
    same(weights(folders[2]), calm(20))


def test_two_worker_hosts_with_their_own_parts(tmp_path, four_hosts, whole, calm):
    folders = make_folders(tmp_path, 2, four_hosts, whole, _OWN)
    with fitting(four_hosts, folders, [0, 1], "glt_worker") as runs:
        end_well(runs)
    same(weights(folders[0]), calm(2))


_LATEST = ["--data.partition.version", "latest"]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    """The demo graph with a version: new nodes, edges to old and new ones, and without some old nodes."""
    folder = tmp_path_factory.mktemp("grown") / "part"
    shutil.copytree(whole, folder)
    with DistGraph(folder) as graph:
        count, width = graph.num_nodes(), graph.ndata["x"].shape[1]
    rng = np.random.default_rng(5)
    new = NewNodes(40, {"x": rng.random((40, width), np.float32), "y": rng.integers(0, 2, 40)})
    ends = np.stack([rng.integers(0, count + 40, 900), rng.integers(0, count, 900)])
    append_rows(folder, Additions({"node": new}, {EDGE: NewEdges(np.concatenate([ends, ends[::-1]], axis=1))}))
    delete_rows(folder, nodes={"node": np.arange(0, count, 50)})
    return folder


@pytest.fixture(scope="module")
def calm_grown(tmp_path_factory: pytest.TempPathFactory, grown: Path) -> dict[str, torch.Tensor]:
    """The weights of two ranks on one host, which read the version."""
    folder = tmp_path_factory.mktemp("calm")
    (folder / "run.yaml").write_text(yaml.safe_dump(config(2)))
    argv = ["fit", "--config", "run.yaml", "--trainer.devices", "2", "--trainer.strategy", "ddp", *_LATEST]
    argv += ["--data.partition.dir", str(grown)]
    with started([sys.executable, "-m", "glt_lightning", *argv], cwd=folder, env=ONE_THREAD) as run:
        assert run.wait(LIMIT_S) == 0, run.output
    return weights(folder)


def test_two_worker_hosts_read_a_version(tmp_path, four_hosts, grown, calm, calm_grown):
    """Each has its part of the partition and of what was appended."""
    folders = make_folders(tmp_path, 2, four_hosts, grown, _OWN)
    with fitting(four_hosts, folders, [0, 1], "glt_worker", *_LATEST) as runs:
        end_well(runs)
    same(weights(folders[0]), calm_grown)
    assert any(not torch.equal(value, calm_grown[name]) for name, value in calm(2).items())


def test_two_servers_of_a_version(tmp_path, four_hosts, grown, calm_grown):
    folders = make_folders(tmp_path, 4, four_hosts, grown, _OWN, servers=addresses(four_hosts))
    with (
        two_servers(four_hosts, folders, *_LATEST),
        fitting(four_hosts, folders, [2, 3], "glt_server_client") as runs,
    ):
        end_well(runs)
    same(weights(folders[2]), calm_grown)


@pytest.mark.parametrize("strategy", ["glt_worker", "glt_server_client"])
def test_tensors_over_two_hosts(tmp_path, four_hosts, whole, strategy):
    with DistGraph(whole, seed=3) as graph:
        expected = work(graph)
    more = ["--trainer.callbacks", "tests.helpers.own_rows.Using"]
    if strategy == "glt_worker":
        folders = make_folders(tmp_path, 2, four_hosts, whole, _OWN)
        with fitting(four_hosts, folders, [0, 1], strategy, *more) as runs:
            end_well(runs)
        found = folders[0] / "found.json"
    else:
        folders = make_folders(tmp_path, 4, four_hosts, whole, _OWN, servers=addresses(four_hosts))
        with two_servers(four_hosts, folders), fitting(four_hosts, folders, [2, 3], strategy, *more) as runs:
            end_well(runs)
        found = folders[2] / "found.json"
    assert json.loads(found.read_text()) == expected


@pytest.mark.parametrize("how", ["read", "add"])
def test_a_host_whose_rows_are_used_is_killed(tmp_path, four_hosts, whole, how):
    """The other one ends soon, with words that name it."""
    deadlines = {"call_s": 2.0, "connect_s": 2.0, "reconnect_s": 4.0}
    folders = make_folders(tmp_path, 2, four_hosts, whole, _OWN, deadlines=deadlines, peer_timeout_s=5.0)
    more = ["--trainer.callbacks", "tests.helpers.own_rows.Busy", "--trainer.callbacks.how", how]
    with fitting(four_hosts, folders, [0, 1], "glt_worker", *more) as (dead, alive):
        assert dead.wait(LIMIT_S) == -signal.SIGKILL
        assert alive.wait(60) != 0
        pid = dead.output.partition("killed ")[2].split()[0]
        assert "error: " in alive.output
        assert f"rank 0 (pid {pid} on " in alive.output, alive.output
        assert f"({four_hosts.address(0)}:" in alive.output, alive.output


@pytest.mark.parametrize("strategy", ["glt_worker", "glt_server_client"])
def test_all_nodes_layer_by_layer_over_two_hosts(tmp_path, four_hosts, whole, strategy):
    (tmp_path / "alone").mkdir()
    alone = make_folders(tmp_path / "alone", 1, four_hosts, whole, {0: (0, 1)})
    with fitting(four_hosts, alone, [0], "auto", "--ckpt_path", "none", "--out", "emb", command="embed") as runs:
        end_well(runs)
    expected = read_embeddings(alone[0] / "emb")
    if strategy == "glt_worker":
        folders, numbers, servers = make_folders(tmp_path, 2, four_hosts, whole, _OWN), [0, 1], contextlib.nullcontext()
    else:
        folders = make_folders(tmp_path, 4, four_hosts, whole, _OWN, servers=addresses(four_hosts))
        numbers, servers = [2, 3], two_servers(four_hosts, folders)
    with (
        servers,
        fitting(four_hosts, folders, numbers, strategy, "--ckpt_path", "none", "--out", "emb", command="embed") as runs,
    ):
        end_well(runs)
    found = read_embeddings(folders[numbers[0]] / "emb")  # these hosts share a file system
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph whose rows an embedding learns, in two parts."""
    folder = tmp_path_factory.mktemp("bare")
    torch.save(small_graph(), folder / "graph.pt")
    partition_graph(open_source(str(folder / "graph.pt"), str(folder)), folder / "part", PartitionOptions(num_parts=2))
    return folder / "part"


def embedded(epochs: int) -> dict[str, Any]:
    """What of a configuration is changed to train an embedding."""
    found = config(epochs)
    found["model"] = {"class_path": "tests.tensors.twins.Twin", "init_args": {"rule": "adam", "real": True}}
    found["data"]["init_args"] |= {"num_neighbors": [3], "batch_size": 8}
    found["trainer"] |= {"num_sanity_val_steps": 0}
    return found


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    """Rows and states of the last checkpoint, by the user's ids."""
    (rows,) = folder.rglob("last*.ckpt.rows-*")
    (table,) = json.loads((rows / "index.json").read_text())["tables"]
    return {name: np.load(rows / each["file"]) for name, each in table["arrays"].items()}


def last_of(folder: Path, into: Path) -> str:
    """The last checkpoint with its rows, copied: the hosts share no file system."""
    (path,) = (each for each in folder.rglob("last*.ckpt") if each.is_file())
    return given(path, into)


def given(path: Path, into: Path) -> str:
    """A checkpoint with its rows, copied."""
    (rows,) = path.parent.glob(f"{path.name}.rows-*")
    shutil.copy(path, into / "given.ckpt")
    shutil.copytree(rows, into / rows.name.replace(path.name, "given.ckpt"))
    return "given.ckpt"


def on_one_host(folder: Path, bare: Path, epochs: int, *more: object) -> dict[str, np.ndarray]:
    folder.mkdir()
    shutil.copytree(bare, folder / "part")
    (folder / "run.yaml").write_text(yaml.safe_dump(embedded(epochs)))
    argv = ["fit", "--config", "run.yaml", "--trainer.devices", 2, "--trainer.strategy", "glt_worker", *more]
    with started([sys.executable, "-m", "glt_lightning", *map(str, argv)], cwd=folder, env=ONE_THREAD) as run:
        assert run.wait(LIMIT_S) == 0, run.output
    return rows_of(folder)


def embedded_folders(folder: Path, count: int, made: Hosts, bare: Path, epochs: int, **options: Any) -> list[Path]:
    """`make_folders` for a job that trains an embedding."""
    folder.mkdir()
    folders = make_folders(folder, count, made, bare, _OWN, **options)
    for each in folders:
        cluster = yaml.safe_load((each / "run.yaml").read_text())["cluster"]
        (each / "run.yaml").write_text(yaml.safe_dump(embedded(epochs) | {"cluster": cluster}))
    return folders


def test_an_embedding_over_two_clients(tmp_path, four_hosts, bare):
    """Two servers have the graph, two other hosts the rows: those of the run on one host."""
    expected = on_one_host(tmp_path / "whole", bare, 2)
    servers = addresses(four_hosts)
    folders = embedded_folders(tmp_path / "clients", 4, four_hosts, bare, 2, servers=servers)
    with two_servers(four_hosts, folders), fitting(four_hosts, folders, [2, 3], "glt_server_client") as runs:
        end_well(runs)
    same_rows(rows_of(folders[2]), expected)


def test_an_embedding_over_two_hosts(tmp_path, four_hosts, bare):
    """Its rows, states and checkpoints are those of the run on one host; each goes on from the checkpoint of the other."""
    expected = on_one_host(tmp_path / "whole", bare, 2)
    on_one_host(tmp_path / "half", bare, 1)

    def over_two(name: str, epochs: int, resumed: Path | None = None) -> Path:
        folders = embedded_folders(tmp_path / name, 2, four_hosts, bare, epochs)
        more: list[object] = []
        for folder in folders:
            if resumed is not None:
                more = ["--ckpt_path", last_of(resumed, folder)]
        with fitting(four_hosts, folders, [0, 1], "glt_worker", *more) as runs:
            end_well(runs)
        return folders[0]

    same_rows(rows_of(over_two("two", 2)), expected)
    same_rows(rows_of(over_two("then two", 2, tmp_path / "half")), expected)
    (tmp_path / "copy").mkdir()
    checkpoint = last_of(over_two("two, half", 1), tmp_path / "copy")
    same_rows(on_one_host(tmp_path / "then one", bare, 2, "--ckpt_path", tmp_path / "copy" / checkpoint), expected)


def test_an_embedding_goes_on_in_mid_epoch_with_other_parts_and_hosts(tmp_path, four_hosts, bare):
    """From one host and two parts to two hosts and three parts, and from those to one host and one part: each ends with the
    weights, rows and states of the run that never stopped."""
    keep = {"dirpath": "kept", "filename": "{step}", "every_n_train_steps": 5, "save_top_k": -1}
    ends = {"dirpath": "ends", "filename": "last", "enable_version_counter": False}
    callbacks = [{"class_path": "ModelCheckpoint", "init_args": each} for each in (keep, ends)]
    graph = open_source(str(bare.parent / "graph.pt"), str(tmp_path))

    def job(folder: Path, parts: int, hosts: int, resumed: Path | None = None) -> Path:
        """Two ranks."""
        partition_graph(graph, folder / "whole", PartitionOptions(num_parts=parts))
        held = {host: placed_parts(host, hosts, parts) for host in range(hosts)}
        folders = make_folders(folder, hosts, four_hosts, folder / "whole", held)
        more: list[object] = ["--trainer.devices", 2 // hosts]
        for each in folders:
            text = yaml.safe_load((each / "run.yaml").read_text())
            made = embedded(2) | {"cluster": text["cluster"]}
            made["trainer"] |= {"callbacks": callbacks}
            (each / "run.yaml").write_text(yaml.safe_dump(made))
            if resumed is not None:
                more = [*more[:2], "--ckpt_path", given(resumed, each)]
        with fitting(four_hosts, folders, list(range(hosts)), "glt_worker", *more) as runs:
            end_well(runs)
        return folders[0]

    whole = job(tmp_path / "whole", 2, 1)
    assert 5 < torch.load(whole / "ends" / "last.ckpt", weights_only=True)["global_step"] / 2 < 10  # steps of an epoch
    two_hosts = job(tmp_path / "two hosts", 3, 2, whole / "kept" / "step=5.ckpt")
    one_host = job(tmp_path / "one host", 1, 1, two_hosts / "kept" / "step=10.ckpt")
    for found in (two_hosts, one_host):
        same_rows(rows_of(found / "ends"), rows_of(whole / "ends"))
        assert torch.equal(weights(found / "ends")["bias"], weights(whole / "ends")["bias"])


MISTAKES = [
    ("id", 3, 2, "rows: 1000000000 at position 1 is no row of the nodes of type 'node', which has the rows 0 to 299."),
    ("id", 0, 1, "rows: 1000000000 at position 1 is no row of the nodes of type 'node', which has the rows 0 to 299."),
    (
        "size",
        1,
        1,
        "tensor 'memory': of: no type has 301 rows ('node': 300, 'node__to__node': 2400). Give of=, the type",
    ),
]


@pytest.mark.parametrize(("mistake", "rank", "devices", "text"), MISTAKES)
def test_a_mistake_with_rows_is_in_the_log_of_each_host(tmp_path, four_hosts, bare, mistake, rank, devices, text):
    """Once, with the rank that made it."""
    folders = embedded_folders(tmp_path / "job", 2, four_hosts, bare, 1)
    for each in folders:
        made = yaml.safe_load((each / "run.yaml").read_text())
        made["model"] = {
            "class_path": "tests.tensors.mistaken.Mistaken",
            "init_args": {"mistake": mistake, "rank": rank},
        }
        (each / "run.yaml").write_text(yaml.safe_dump(made))
    with fitting(four_hosts, folders, [0, 1], "glt_worker", "--trainer.devices", devices) as runs:
        for number, run in enumerate(runs):
            assert run.wait(LIMIT_S) != 0
            (line,) = (line for line in run.output.splitlines() if "rror: " in line)
            own = rank == number == 0 and mistake == "id"  # that of rank 0 has no number in its own log
            assert line.startswith(f"error: {'' if own else f'rank {rank}: '}{text}"), run.output


def same_rows(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert (expected["steps"] > 0).mean() > 0.7
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_a_client_without_the_jobs_certificate_gets_nothing(tmp_path, four_hosts, whole):
    servers = [f"{four_hosts.address(0)}:{_PORT}"]
    folders = make_folders(tmp_path, 3, four_hosts, whole, {0: (0, 1)}, servers=servers)
    run_certs(["--dir", str(tmp_path / "others"), "--hosts", four_hosts.address(2)])
    for source, target in (
        ("ca.pem", "ca.pem"),
        (f"{four_hosts.address(2)}.pem", "host.pem"),
        (f"{four_hosts.address(2)}.key", "host.key"),
    ):
        shutil.copy(tmp_path / "others" / source, folders[2] / target)
    with on_host(four_hosts, 0, folders[0], "serve", "--config", "run.yaml", "--server.rank", 0) as server:
        serving(server)
        with on_host(
            four_hosts, 2, folders[2], "fit", "--config", "run.yaml", "--trainer.strategy", "glt_server_client"
        ) as client:
            assert client.wait(LIMIT_S) != 0
            assert "certificate" in client.output
        with on_host(four_hosts, 1, folders[1], "serve", "--config", "run.yaml", "--health", servers[0]) as check:
            assert check.wait(LIMIT_S) == 0, check.output


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_hosts_link_stays_down(tmp_path, four_hosts, whole, workers):
    """The other host says who is gone, within the deadlines, although it waits in a collective of gloo."""
    deadlines = {"call_s": 2.0, "connect_s": 2.0, "reconnect_s": 4.0}
    folders = make_folders(tmp_path, 2, four_hosts, whole, _OWN, epochs=500, deadlines=deadlines, peer_timeout_s=5.0)
    more = ["--data.sampling.num_workers", workers]
    with fitting(four_hosts, folders, [0, 1], "glt_worker", *more) as runs:
        wait_for_bytes(four_hosts, 1, 3_000_000)
        four_hosts.cut(1)
        try:
            for number, run in enumerate(runs):
                assert run.wait(60) != 0  # gloo would wait for half an hour
                assert f"rank {1 - number}" in run.output, run.output
        finally:
            four_hosts.heal(1)
