"""A partition copied from a process that serves it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from glt_lightning.cluster.files import PeerCopySource
from glt_lightning.data import LocalPartition
from glt_lightning.errors import PartitionError
from glt_lightning.lightning.cli.command_line import main
from glt_lightning.partition.copies import PullOptions, pull_partition
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.servers import Farm, open_farm


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return Path(partitioned(small_hetero(), tmp_path / "source", 3).directory)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def source_of(farm: Farm, address: str) -> PeerCopySource:
    return PeerCopySource(farm.peer(address), address)


@pytest.mark.parametrize("kind", ["in process", "flight"])
def test_a_server_gives_its_files(parts: Path, tmp_path: Path, kind: str) -> None:
    with open_farm(kind) as farm, closing(LocalPartition.open(parts)) as partition:
        source = source_of(farm, farm.serve(partition).address)
        pull_partition(source, tmp_path / "copy", PullOptions(parts=[1]), progress=False)
        pull_partition(source, tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


def test_parts_that_a_server_lacks_are_named(parts: Path, tmp_path: Path) -> None:
    pull_partition_of_one = tmp_path / "one"
    with open_farm("in process") as farm, closing(LocalPartition.open(parts)) as partition:
        source = source_of(farm, farm.serve(partition).address)
        pull_partition(source, pull_partition_of_one, PullOptions(parts=[0]), progress=False)
    with open_farm("in process") as farm, closing(LocalPartition.open(pull_partition_of_one, parts=[0])) as partition:
        source = source_of(farm, farm.serve(partition).address)
        with pytest.raises(
            PartitionError, match=r"part2/.*: it cannot be read .*not on this host, which has the parts \[0\]"
        ):
            pull_partition(source, tmp_path / "copy", PullOptions(parts=[2]), progress=False)


def test_a_server_that_ends_and_comes_back(parts: Path, tmp_path: Path) -> None:
    """The copy waits for it, as other calls do."""
    with open_farm("flight") as farm, closing(LocalPartition.open(parts)) as partition:
        server = farm.serve(partition)
        source = source_of(farm, server.address)
        pull_partition(source, tmp_path / "copy", PullOptions(parts=[0]), progress=False)
        server.close()
        farm.serve(partition, server.address)
        pull_partition(source, tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


def test_the_command_asks_a_server(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_farm("flight") as farm, closing(LocalPartition.open(parts)) as partition:
        main(["pull", "--from", farm.serve(partition).address, "--to", str(tmp_path / "copy"), "--streams", "2"])
    assert "copy: " in capsys.readouterr().out
    assert contents(tmp_path / "copy") == contents(parts)
