"""Which parts a rank of `GLTWorkerStrategy` maps, and what is said where they are not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glt_lightning import ClusterOptions, GLTWorkerStrategy, LocalPartition
from glt_lightning.base import OptionError, PartitionError
from glt_lightning.workers import ClusterGraph, Role


@pytest.fixture
def folder(make_data) -> Path:
    data = make_data(partition={"num_parts": 3})
    data.prepare_data()
    return data.partition_dir


class _Host(GLTWorkerStrategy):
    """A strategy that is told which host of how many it runs on, and that nobody else answers."""

    def __init__(self, number: int, hosts: int, main: str = "127.0.0.1", **cluster: Any) -> None:
        super().__init__(ClusterOptions(**cluster))
        self._node_rank, self._num_nodes = number, hosts
        self.cluster_environment = _Environment(number, main)  # type: ignore[assignment]

    @property
    def node_rank(self) -> int:
        return self._node_rank

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu")


class _Environment:
    main_port = 29500

    def __init__(self, number: int, main: str) -> None:
        self._number, self.main_address = number, main

    def global_rank(self) -> int:
        return 0

    def world_size(self) -> int:
        return 1


@pytest.mark.parametrize(("number", "hosts", "parts"), [(0, 1, (0, 1, 2)), (0, 2, (0, 2)), (1, 2, (1,)), (3, 4, (0,))])
def test_host_maps_its_parts(folder: Path, number: int, hosts: int, parts: tuple[int, ...]) -> None:
    strategy = _Host(number, hosts)
    graph = strategy.open_graph(folder)
    assert isinstance(graph, LocalPartition if hosts == 1 else ClusterGraph)
    assert (strategy.context.role, strategy.context.parts) == (Role.WORKER, parts)


def test_missing_part_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "part1")
    _Host(0, 2).open_graph(folder)  # needs it not
    with pytest.raises(
        PartitionError, match=r"host 1 of 2 needs part 1 of 3: .*part1.*not found\. Copy this part here"
    ):
        _Host(1, 2).open_graph(folder)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (lambda mine: "0ther 1", r"options_hash in manifest.json is '0ther' there and '[0-9a-f]{32}' here\. Copy"),
        (lambda mine: f"{mine.split()[0]} 1", r"same options, and their files differ \(hash '1' there, '[0-9a-f]{32}'"),
    ],
    ids=["options", "files"],
)
def test_other_partition_of_another_rank_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, theirs: Callable[[str], str], said: str
) -> None:
    strategy = _Host(0, 2)
    monkeypatch.setattr(strategy, "_gather_found", lambda find: [mine := find(), theirs(mine)])
    with pytest.raises(PartitionError, match=rf"rank 1 \(there\) has a different partition than rank 0 .*{said}"):
        strategy.open_graph(folder)


def test_how_other_hosts_reach_this_one() -> None:
    assert _Host(0, 1)._host() == "127.0.0.1"
    assert _Host(0, 2, host="node7")._host() == "node7"
    assert _Host(0, 2, main="127.0.0.1")._host() == "127.0.0.1"  # hosts that are processes of one machine
    with pytest.raises(
        OptionError, match=r"cluster\.host: the address of this host is unknown, because no\.such\.host"
    ):
        _Host(0, 2, main="no.such.host.invalid")._host()


def test_servers_have_no_folder() -> None:
    with pytest.raises(OptionError, match="samples from graph servers; glt_worker needs"):
        _Host(0, 1).open_graph(None)
