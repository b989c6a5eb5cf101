"""Counts, edge cut and memory of a report are those of the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.graph import LocalPartition
from glt_lightning.partition.contents import Contents, Counts
from tests.helpers.partitions import partitioned, small_graph, small_hetero


def load(partition: LocalPartition, path: str) -> np.ndarray:
    return np.load(partition.directory / path)


def owner(partition: LocalPartition, node_type: int, gids: np.ndarray) -> np.ndarray:
    """The part of each node, from the sizes of the parts alone."""
    parts = range(partition.manifest.num_parts)
    sizes = [len(load(partition, f"part{p}/nodes/{node_type}/n_id.npy")) for p in parts]
    return np.repeat(parts, sizes)[gids - partition.manifest.offsets[node_type]]


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_counts_and_cut(tmp_path: Path, make: Callable[[], Any]) -> None:
    partition = partitioned(make(), tmp_path, 3, undirected=True)
    schema = partition.schema
    contents = Contents.of(partition)
    counts = {(c.kind, c.name): c for c in contents.counts}
    for t, name in enumerate(schema.node_types):
        assert counts["nodes", name].total == partition.manifest.num_nodes[t]
    cut_edges = 0
    for r, (source, cut) in enumerate(zip(schema.source_types(), contents.cuts, strict=True)):
        indices = [load(partition, f"part{p}/edges/{r}/indices.npy") for p in range(3)]
        assert cut.edges == tuple(map(len, indices)) == counts["edges", cut.name].parts
        expected = tuple(int((owner(partition, source, ids) != p).sum()) for p, ids in enumerate(indices))
        assert cut.parts == expected
        cut_edges += sum(expected)
    assert contents.edge_cut == cut_edges / sum(partition.manifest.num_edges)
    for name in ("train", "val", "test"):
        seeds = partition.split(name)
        expected = np.bincount(owner(partition, seeds.node_type, seeds.gids), minlength=3)
        assert counts["seeds", name].parts == tuple(expected)


def test_one_part_cuts_nothing(tmp_path: Path) -> None:
    contents = Contents.of(partitioned(small_graph(), tmp_path, 1))
    assert contents.edge_cut == 0
    assert {c.balance for c in contents.counts} == {1.0}


def test_balance() -> None:
    assert Counts(kind="nodes", name="a", parts=(1, 2, 3)).balance == 1.5
    assert Counts(kind="nodes", name="a", parts=(0, 0)).balance is None


def test_memory_is_every_file(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2, undirected=True)
    memory = Contents.of(partition).memory

    def on_disk(pattern: str) -> int:
        return sum(file.stat().st_size for file in partition.directory.glob(pattern))

    splits = on_disk("splits/*.npy") + on_disk("nodes/*/gid.npy")
    for p, each in enumerate(memory):
        assert each.total == on_disk(f"part{p}/**/*.npy") + splits
        topology = ("edges/*/indptr.npy", "edges/*/indices.npy", "nodes/*/n_id.npy")
        assert each.topology == sum(on_disk(f"part{p}/{pattern}") for pattern in topology)
        assert each.node_attrs == on_disk(f"part{p}/nodes/*/[xy].npy")
        assert each.edge_attrs == on_disk(f"part{p}/edges/*/edge_*.npy")
        assert each.splits == splits
