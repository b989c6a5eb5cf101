"""What a `Session` owns: it is closed with the session, and where the session cannot be opened."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph

TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=20)


@pytest.fixture
def partition(tmp_path: Path) -> LocalPartition:
    return partitioned(small_graph(), tmp_path, 2)


class Noting:
    """A graph that notes what is closed. broken: it cannot be opened."""

    def __init__(self, partition: LocalPartition, broken: bool) -> None:
        self.manifest, self.schema = partition.manifest, partition.schema
        self.split, self.edge_split, self.seeds = partition.split, partition.edge_split, partition.seeds
        self.broken, self.closed = broken, []

    def open_producer(self, setup: Any, opened: ExitStack) -> tuple[Any, None]:
        for name in ("memory", "producer"):
            opened.callback(self.closed.append, name)
        if self.broken:
            raise RuntimeError(f"{setup.ranks.name} cannot open it")
        return None, None


def test_a_folder_gives_the_batches_of_its_partition(partition: LocalPartition) -> None:
    with Session(partition, seed=3) as session:
        expected = [contents(batch) for batch in session.make_loader(TRAIN)]
    with Session(partition.directory, seed=3) as session:
        kept = list(session.make_loader(TRAIN))
    assert [contents(batch) for batch in kept] == expected  # also after the folder is closed


def test_a_folder_is_closed_with_the_session(partition: LocalPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(LocalPartition, "close", lambda self: closed.append(self.directory))
    with Session(str(partition.directory)):
        assert not closed
    assert closed == [partition.directory]
    Session(partition).close()
    assert closed == [partition.directory]  # who opens closes


def test_what_the_graph_opened_is_closed_once_the_last_first(partition: LocalPartition) -> None:
    graph = Noting(partition, broken=False)
    session = Session(graph)
    assert graph.closed == []
    session.close()
    session.close()
    assert graph.closed == ["producer", "memory"]


def test_what_the_graph_opened_before_it_failed_is_closed(partition: LocalPartition) -> None:
    graph = Noting(partition, broken=True)
    with pytest.raises(RuntimeError, match="rank 0 cannot open it"):
        Session(graph, SamplingOptions())
    assert graph.closed == ["producer", "memory"]
