"""A version that is compacted equals, byte for byte, the graph partitioned anew with the same parts of nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, EdgeType, PartitionError, PartitionOptions, Progress, SamplingOptions
from glt_lightning.graph import GrownPartition, LocalPartition, Manifest
from glt_lightning.partition import (
    Additions,
    ArraySource,
    Assigner,
    NewNodes,
    append_rows,
    compact_partition,
    hold_out_edges,
    list_versions,
    open_version,
    partition_graph,
    verify_partition,
)
from glt_lightning.partition.edge_splits.read import KeptEdges, KeptRows
from tests.helpers.grown import TYPED, TwoVersions, two_versions
from tests.partition.test_grow import batches, specs
from tests.partition.test_versions import halves

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weighted": True},
    "times of edges": {"timed": "edges"},
    "times of nodes": {"timed": "nodes"},
    "undirected": {"undirected": True},
    "undirected, times of edges": {"undirected": True, "timed": "edges", "weighted": True},
    "undirected, times of nodes": {"undirected": True, "timed": "nodes"},
    "normalized": {"normalize": "standardize"},
    "fewer bytes": {"storage": {"x": "int8", "edge_attr": "float16"}, "weighted": True},
}


class GivenParts(Assigner):
    def __init__(self, version: LocalPartition) -> None:
        assert isinstance(version, GrownPartition)
        old = version.base.manifest.num_parts
        self.parts = {}
        for t, name in enumerate(version.schema.node_types):
            numbers = version.gids(t) - version.manifest.offsets[t]
            self.parts[name] = (np.searchsorted(version.manifest.bounds[t], numbers, side="right") - 1) % old

    def assign(self, graph: Any) -> dict[str, np.ndarray]:
        return self.parts


class WithoutMerged:
    """A graph without the columns of which `undirected` leaves nothing: later ones of parallel edges."""

    def __init__(self, source: ArraySource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def _first(self, e: EdgeType) -> np.ndarray:
        ends = np.sort(self._source.edge_index[e], axis=0)
        times = self._source.edge[e].get("time", np.zeros(ends.shape[1], int))
        first = np.unique(np.concatenate([ends, times[None]]), axis=1, return_index=True)[1]
        return np.sort(first) if e[0] == e[2] else np.arange(ends.shape[1])

    def edges(self, e: EdgeType) -> KeptEdges:
        return KeptEdges(self._source.edges(e), self._first(e))

    def edge_attrs(self, e: EdgeType) -> Mapping[str, KeptRows]:
        return {name: KeptRows(rows, self._first(e)) for name, rows in self._source.edge_attrs(e).items()}


def with_splits(two: TwoVersions, rng: np.random.Generator) -> None:
    """Gives the graph splits and labels, so that rows are ranked by training seeds."""
    target = two.base.schema.node_types[0]
    ids = rng.permutation(two.base.num_nodes[target])
    for each in (two.base, two.whole):
        each.target_type, each.num_classes, each.splits = (
            target,
            3,
            {"train": (target, ids[::2]), "test": (target, ids[1::2])},
        )
    two.options |= {"hotness": "vip", "num_neighbors": [3, 2], "batch_size": 4}


def same_files(one: Path, other: Path) -> None:
    arrays = [Manifest.load(each).arrays for each in (one, other)]
    assert arrays[0] == arrays[1]
    for path in arrays[0]:
        assert (one / path).read_bytes() == (other / path).read_bytes(), path
    raw = [Manifest.load(each).to_json() for each in (one, other)]
    for each in raw:
        del each["made_by"], each["options_hash"]
        each.pop("normalization", None)
    assert raw[0] == raw[1]


def cases(kinds: Mapping[str, Any], quick: set[str]) -> list[Any]:
    """(kind, edge types, number of a random graph): of some kinds one typed graph, and the rest among the slow tests."""
    every = [(kind, types, number) for kind in kinds for types in ((EDGE,), TYPED) for number in range(12)]
    return [
        pytest.param(
            *case,
            marks=[] if case[0] in quick and case[1:] == (TYPED, 0) else [pytest.mark.slow],
            id=f"{case[2]}-{case[0]}-{'typed' if case[1] == TYPED else 'homogeneous'}",
        )
        for case in every
    ]


@pytest.mark.parametrize(
    ("kind", "edge_types", "number"), cases(KINDS, {"plain", "normalized", "undirected, times of edges"})
)
def test_files_equal_those_of_the_graph_partitioned_anew(
    tmp_path: Path, kind: str, edge_types: Any, number: int
) -> None:
    rng = np.random.default_rng([number, len(kind), len(edge_types)])
    two = two_versions(rng, edge_types, **KINDS[kind])
    if number % 2 == 0:
        with_splits(two, rng)
    parts = 1 + (number + len(kind)) % 4
    base = two.partition(two.base, tmp_path / "base", parts)
    for rows in halves(two, rng):
        append_rows(tmp_path / "base", rows)
    version = open_version(base, "latest")
    whole: Any = (
        WithoutMerged(two.whole) if two.undirected else two.whole if two.normalize == "none" else two.normalized()
    )
    options = PartitionOptions(num_parts=parts, **two.options)
    partition_graph(
        whole, tmp_path / "anew", options, undirected=two.undirected, assigner=GivenParts(version), progress=False
    )
    compacted = compact_partition(tmp_path / "base", tmp_path / "new", memory_bytes=1 << 20, progress=False)
    same_files(tmp_path / "new", tmp_path / "anew")
    verify_partition(tmp_path / "new", Progress(False))
    assert compacted.normalization == base.manifest.normalization
    came_from = compacted.made_by["compacted"]
    assert (came_from["folder"], came_from["version"]) == ("base", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anew", "base", "base.versions", "new"]
    # the same batches as the version, whose rows are merged as they are read
    opened = LocalPartition.open(tmp_path / "new")
    sampling = SamplingOptions(with_edge=True)
    for spec in specs(two, rng, timed=False)[:2]:
        assert batches(opened, spec, sampling) == batches(version, spec, sampling)
    # and a base like any other
    assert append_rows(tmp_path / "new", two.additions if not two.additions.nodes else Additions()) == 1
    assert len(list_versions(tmp_path / "new")) == 1


def with_edges_to_predict() -> Any:
    """A random graph of 40 nodes and 120 edges, of which 30 are held out."""
    ends = np.random.default_rng(3).integers(0, 40, (2, 120))
    schema = two_versions(np.random.default_rng(0)).base.schema
    source = ArraySource(name="links", fingerprint="", schema=schema, num_nodes={"node": 40}, edge_index={EDGE: ends})
    given: Any = {"node__to__node": {"num_val": 10, "num_test": 20}}
    return hold_out_edges(source, given)


@pytest.mark.parametrize("undirected", [False, True])
def test_edges_to_predict_stay(tmp_path: Path, undirected: bool) -> None:
    source = with_edges_to_predict()
    options = PartitionOptions(num_parts=2)
    old = partition_graph(source, tmp_path / "base", options, undirected=undirected, progress=False)
    found = compact_partition(tmp_path / "base", tmp_path / "new", 0, progress=False)
    assert (found.edge_splits, found.edge_columns) == (old.edge_splits, old.edge_columns)
    if not undirected:
        assert found.arrays == old.arrays
    assert "overlay" not in found.made_by


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    two = two_versions(np.random.default_rng(0))
    two.partition(two.base, tmp_path / "base", 2).close()
    x = {"x": np.ones((1, 3), np.float32), "tag": np.zeros((1, 2), np.int64)}
    append_rows(tmp_path / "base", Additions(nodes={"node": NewNodes(1, x)}))
    return tmp_path / "base"


def test_a_folder_is_reused_for_its_version_alone(growing: Path) -> None:
    out = growing.with_name("out")
    made = compact_partition(growing, out, progress=False)
    at = (out / "manifest.json").stat().st_mtime_ns
    assert compact_partition(growing, out, 1, progress=False) == made
    assert (out / "manifest.json").stat().st_mtime_ns == at
    for version, folder in ((0, out), ("latest", growing)):
        with pytest.raises(PartitionError, match="not empty, and not of this version, or made with other options"):
            compact_partition(growing, folder, version, progress=False)
    for other in ({"hotness": "vip"}, {"forget": True}):  # not what is there
        with pytest.raises(PartitionError, match="not empty, and not of this version, or made with other options"):
            compact_partition(growing, out, progress=False, **other)
    with pytest.raises(PartitionError, match="there is no version 2"):
        compact_partition(growing, out, 2, progress=False)


class Ranked(Assigner):
    def assign(self, graph: Any) -> dict[str, np.ndarray]:
        return {t: np.zeros(n, int) for t, n in graph.num_nodes.items()}

    def hotness(self, topology: Any) -> Any:
        from glt_lightning.partition.build.hotness import Hotness

        return Hotness("given", {}, np.ones((1, topology.total), np.float32))


def test_what_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    two = two_versions(np.random.default_rng(2), weighted=True, storage={"weight": "float16"})
    two.base.edge[EDGE]["weight"] = np.ones(two.base.edge_index[EDGE].shape[1], np.float32)
    two.partition(two.base, tmp_path / "rounded", 1).close()
    with pytest.raises(PartitionError, match="weight of edge type node__to__node is stored in fewer bytes"):
        compact_partition(tmp_path / "rounded", tmp_path / "out", progress=False)
    plain = two_versions(np.random.default_rng(2)).base
    partition_graph(plain, tmp_path / "ranked", PartitionOptions(), assigner=Ranked(), progress=False)
    with pytest.raises(PartitionError, match="an own class ranked the rows"):
        compact_partition(tmp_path / "ranked", tmp_path / "out", progress=False)
    found = compact_partition(tmp_path / "ranked", tmp_path / "out", hotness="degree", progress=False)
    assert list(found.hotness) == ["degree"]


COMPACT = """
import sys
from glt_lightning.partition import compact_partition
from glt_lightning.partition.build import builder
seal = builder.seal
def told(*args):
    print("writes", flush=True)
    return seal(*args)
builder.seal = told
print("begins", flush=True)
compact_partition(sys.argv[1], sys.argv[2], progress=False)
"""


@pytest.mark.parametrize(
    ("word", "wait_s"),
    [("writes", 0.0), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("begins", 0.01), ("writes", 0.01)))],
)
def test_a_killed_run_leaves_nothing_half_written(growing: Path, word: str, wait_s: float) -> None:
    out = growing.with_name("out")
    child = subprocess.Popen([sys.executable, "-c", COMPACT, str(growing), str(out)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while child.stdout.readline() != f"{word}\n":
        assert child.poll() is None
    time.sleep(wait_s)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    if out.exists():
        verify_partition(out, Progress(False))
    compact_partition(growing, out, progress=False)
    compact_partition(growing, growing.with_name("at once"), progress=False)
    same_files(out, growing.with_name("at once"))
    left = {path.name for path in growing.parent.iterdir()}
    assert left == {"base", "base.versions", "out", "at once"}
    assert len(list_versions(growing)) == 1
