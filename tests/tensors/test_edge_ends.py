"""Ends of edges by edge row, and whether pairs are edges: of mapped parts and of those of an owner, who is asked by messages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.graph import EdgeEnds, LocalPartition
from glt_lightning.tensors import GraphReader
from glt_lightning.tensors.space import row_spaces
from glt_lightning.workers import ClusterGraph, Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from tests.helpers.owners import CALLER
from tests.helpers.partitions import partitioned, small_hetero

REPLY_BYTES = 400  # an answer takes several


class OwnerBeside:
    """A peer whose owner answers in this process. asked: operations."""

    def __init__(self, partition: LocalPartition) -> None:
        self.name, self.asked = "owner", []
        self._calls = Owner(partition, REPLY_BYTES).calls

    def ask(self, op: str, header: dict, body: np.ndarray, **_: object) -> SimpleNamespace:
        self.asked.append(op)
        reply = self._calls[op](Message(header, body), CALLER)
        reply = Message(reply.header, reply.body.copy())  # whose memory the owner uses again
        return SimpleNamespace(result=lambda: reply)


@pytest.mark.parametrize("mapped", [(0, 1, 2), (1,)], ids=["all parts", "one part"])
def test_ends_are_those_of_the_user(tmp_path: Path, mapped: tuple[int, ...]) -> None:
    partitioned(small_hetero(), tmp_path, 3).close()
    here = LocalPartition.open(tmp_path / "parts3", parts=mapped)
    there = LocalPartition.open(tmp_path / "parts3", parts=[p for p in range(3) if p not in mapped] or [0])
    peer = OwnerBeside(there)
    graph = ClusterGraph(here)
    graph.remote = PeerRows(np.array([0 if p in mapped else 1 for p in range(3)], dtype=np.int32), [peer])
    reader, whole = GraphReader.of(graph), GraphReader.of(LocalPartition.open(tmp_path / "parts3"))
    spaces = row_spaces(here.manifest)
    by_name = {space.of: space for space in spaces}
    random = np.random.default_rng(0)
    for space in spaces:
        if space.kind == "node":
            continue
        stored = small_hetero()[space.of].edge_index.numpy()
        rows = random.permutation(space.num_rows)
        ends = reader.edge_ends(space, rows)
        for end, given, node_type in zip(ends, stored, space.of[::2], strict=True):
            assert np.array_equal(whole.user_ids(by_name[node_type], end), given[whole.user_ids(space, rows)])
        src, dst = (random.integers(0, by_name[t].num_rows, 500) for t in space.of[::2])
        src, dst = np.concatenate([src, ends[0]]), np.concatenate([dst, ends[1]])
        pairs = {*zip(*(e.tolist() for e in ends), strict=True)}
        assert reader.has_edges(space, src, dst).tolist() == [pair in pairs for pair in zip(src, dst, strict=True)]
        assert [len(end) for end in reader.edge_ends(space, rows[:0])] == [0, 0]
        with pytest.raises(DataError, match="is no row of the edges"):
            reader.edge_ends(space, np.array([space.num_rows]))
    assert set(peer.asked) == (set() if len(mapped) == 3 else {"gather", "has_edges"})
    for partition in (here, there):
        partition.close()


@pytest.mark.parametrize("row", [-1, 10**9])
def test_rows_that_are_not_mapped_are_refused(tmp_path: Path, row: int) -> None:
    """What a peer may ask for."""
    partition = partitioned(small_hetero(), tmp_path, 2)
    with pytest.raises(DataError, match="which is not mapped here"):
        EdgeEnds(partition, 0).gather(np.array([row]))
    partition.close()
