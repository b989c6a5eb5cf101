"""Versions of a graph: what was appended, whole or not at all, with the batches of the graph partitioned anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import (
    EDGE,
    DataError,
    EdgeType,
    GraphSchema,
    OptionError,
    PartitionError,
    PartitionOptions,
    Progress,
    SamplingOptions,
)
from glt_lightning.cli import main
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import graph as views
from glt_lightning.lightning import PartitionReport
from glt_lightning.lightning.report.partition import facts as facts_of
from glt_lightning.loader import LoaderSpec, TrafficOptions
from glt_lightning.partition import (
    Additions,
    ArraySource,
    ChangedNodes,
    NewEdges,
    NewNodes,
    add_rows,
    append_rows,
    delete_rows,
    list_versions,
    open_version,
    partition_graph,
    verify_partition,
)
from glt_lightning.partition.delta import digest_of
from glt_lightning.partition.versions import Versions
from tests.helpers.grown import TYPED, TwoVersions, two_versions
from tests.partition.test_grow import KINDS, batches, specs


def halves(two: TwoVersions, rng: np.random.Generator) -> list[Additions]:
    """The rows that came later, in two appends: nodes first, or with the edges that need them."""
    cut: dict[str, int] = {t: int(rng.integers(0, n.count + 1)) for t, n in two.additions.nodes.items()}
    first_new = {t: two.base.num_nodes[t] for t in two.base.num_nodes}
    nodes: list[dict[str, NewNodes]] = [{}, {}]
    edges: list[dict[EdgeType, NewEdges]] = [{}, {}]
    for t, each in two.additions.nodes.items():
        for at, rows in enumerate((slice(0, cut[t]), slice(cut[t], None))):
            attrs = {n: v[rows] for n, v in each.attrs.items()}
            nodes[at][t] = NewNodes(len(attrs["x"]), attrs)
    for e, some in two.additions.edges.items():
        limit = [first_new[t] + cut.get(t, 0) for t in (e[0], e[2])]
        early = (some.edge_index < np.array(limit)[:, None]).all(axis=0)
        count = len(early) if early.all() else int(early.argmin())
        for at, rows in enumerate((slice(0, count), slice(count, None))):
            edges[at][e] = NewEdges(some.edge_index[:, rows], {n: v[rows] for n, v in some.attrs.items()})
    wrong = {
        t: ChangedNodes(each.ids, {n: np.zeros_like(v) for n, v in each.attrs.items()})
        for t, each in two.additions.changed.items()
        if isinstance(each, ChangedNodes)
    }
    return [Additions(nodes[0], edges[0], wrong), Additions(nodes[1], edges[1], two.additions.changed)]


@pytest.mark.parametrize("edge_types", [(EDGE,), TYPED], ids=["homogeneous", "typed"])
@pytest.mark.parametrize("number", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 10))])
def test_a_version_has_the_batches_of_the_graph_partitioned_anew(tmp_path: Path, edge_types: Any, number: int) -> None:
    rng = np.random.default_rng([number, len(edge_types)])
    two = two_versions(rng, edge_types, undirected=bool(number % 2), weighted=number % 3 == 0)
    base, anew = (two.partition(s, tmp_path / n, 2) for s, n in ((two.base, "base"), (two.whole, "anew")))
    before = {path: path.read_bytes() for path in (tmp_path / "base").rglob("*") if path.is_file()}
    parts = halves(two, rng)
    assert [append_rows(tmp_path / "base", rows) for rows in parts] == [1, 2]
    sampling = SamplingOptions(with_edge=True, weight_attr="weight" if number % 3 == 0 else None)
    version = open_version(base, "latest")
    for spec in specs(two, rng, timed=False):
        assert batches(version, spec, sampling) == batches(anew, spec, sampling)
    version.close()
    assert {path: path.read_bytes() for path in (tmp_path / "base").rglob("*") if path.is_file()} == before
    assert open_version(base, 0) is base
    later = parts[1]  # may be empty, and then version 2 is the same graph
    is_same = not (
        later.changed
        or any(n.count for n in later.nodes.values())
        or any(e.edge_index.size for e in later.edges.values())
    )
    assert (open_version(base, 1).identity == open_version(base, 2).identity) == is_same


@pytest.fixture
def graph(tmp_path: Path) -> tuple[Path, Additions]:
    two = two_versions(np.random.default_rng(0))
    two.partition(two.base, tmp_path / "base", 1).close()
    x = {"x": np.ones((1, 3), np.float32), "tag": np.zeros((1, 2), np.int64)}
    return tmp_path / "base", Additions(nodes={"node": NewNodes(1, x)})


def test_numbers_of_versions(graph: tuple[Path, Additions]) -> None:
    folder, rows = graph
    assert Versions(folder).number("latest") == 0
    append_rows(folder, rows)
    assert [Versions(folder).number(v) for v in (None, 0, 1, "latest")] == [0, 0, 1, 1]
    with pytest.raises(PartitionError, match="there is no version 2; the latest is 1"):
        Versions(folder).number(2)
    with pytest.raises(OptionError, match=r"partition.version: expected a number or latest, got 'newest'"):
        Versions(folder).number("newest")


def test_rows_that_do_not_fit_leave_no_version(graph: tuple[Path, Additions]) -> None:
    folder, _ = graph
    with pytest.raises(DataError, match="edge 0 has the source 999"):
        append_rows(folder, Additions(edges={EDGE: NewEdges(np.array([[999], [0]]))}))
    with pytest.raises(DataError, match="tag of node type 'node': new rows need it"):
        append_rows(folder, Additions(nodes={"node": NewNodes(1, {"x": np.ones((1, 3), np.float32)})}))
    assert Versions(folder).number("latest") == 0


def test_own_ids_are_kept(graph: tuple[Path, Additions]) -> None:
    folder, rows = graph
    append_rows(folder, rows, {"node": np.array(["ä-1"], dtype=object)})
    append_rows(folder, rows, {"node": np.array(["b"], dtype=object)})
    partition = LocalPartition.open(folder)
    assert Versions(folder).read(partition.manifest, "latest").ids["node"].tolist() == ["ä-1", "b"]
    partition.close()


def test_rows_that_are_added_are_described_as_before_there_were_deletions(graph: tuple[Path, Additions]) -> None:
    """So releases without deletions read them, and what these wrote is read; they refuse a version with deletions."""
    folder, rows = graph
    append_rows(folder, rows)
    delete_rows(folder, nodes={"node": np.array([1])})
    first, second = (json.loads((Versions(folder).root / n / "delta.json").read_text()) for n in ("1", "2"))
    keys = {
        "format",
        "version",
        "number",
        "previous",
        "nodes",
        "edges",
        "changed",
        "ids",
        "overlay",
        "arrays",
        "digest",
    }
    assert (first["version"], set(first)) == (1, keys)
    assert (second["version"], set(second)) == (2, keys | {"deleted"})
    partition = LocalPartition.open(folder)
    with closing(partition), closing(open_version(partition, "latest")) as latest:
        assert latest.deleted(0).tolist() == [1]
        assert latest.manifest.num_nodes[0] == partition.manifest.num_nodes[0] + rows.nodes["node"].count
    assert [each.deleted_nodes for each in list_versions(folder)] == [{}, {"node": 1}]


@pytest.mark.parametrize("damage", ["array", "header", "content", "chain", "base"])
def test_damage_is_refused(graph: tuple[Path, Additions], damage: str) -> None:
    folder, rows = graph
    append_rows(folder, rows)
    append_rows(folder, rows)
    partition, first = LocalPartition.open(folder), Versions(folder).root / "1"
    if damage == "array":
        path = first / "nodes" / "node" / "x.npy"
        path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    elif damage == "header":
        path = first / "delta.json"
        path.write_text(path.read_text().replace('"number": 1', '"number": 3'))
    elif damage == "content":  # with the digest of what it says
        path = first / "delta.json"
        raw = json.loads(path.read_text()) | {"changed": ["node"]}
        path.write_text(json.dumps(raw | {"digest": digest_of(raw)}))
    elif damage == "chain":
        (Versions(folder).root / "2").rename(Versions(folder).root / "spare")
        first.rename(Versions(folder).root / "2")
        (Versions(folder).root / "spare").rename(first)
    else:
        two = two_versions(np.random.default_rng(1))
        partition = two.partition(two.base, folder.with_name("other"), 1)
        Versions(folder).root.rename(Versions(folder.with_name("other")).root)
    with pytest.raises(PartitionError, match=r"base.versions|other.versions"):
        open_version(partition, "latest")
    with pytest.raises(PartitionError, match=r"base.versions|other.versions"):
        verify_partition(partition.directory, Progress(False))
    partition.close()


def test_versions_are_verified_and_listed(graph: tuple[Path, Additions], capsys: pytest.CaptureFixture[str]) -> None:
    folder, rows = graph
    assert verify_partition(folder, Progress(False)).versions == ()
    append_rows(folder, rows)
    append_rows(folder, rows)
    nodes, edges = rows.nodes["node"].count, sum(e.edge_index.shape[1] for e in rows.edges.values())
    facts = list_versions(folder)
    assert [(f.number, f.nodes["node"], sum(f.edges.values())) for f in facts] == [(1, nodes, edges), (2, nodes, edges)]
    main(["partition", "--verify", str(folder)])
    said = f"2 versions after it, with {2 * nodes} nodes and {2 * edges:,} edges"
    assert f"{folder}: {said}: good" in capsys.readouterr().out
    partition = LocalPartition.open(folder)
    assert ("versions", f"{said}, of which this report has nothing") in facts_of(
        PartitionReport.of(partition, TrafficOptions(num_neighbors=[2], batch_size=4), Progress(False))
    )
    partition.close()
    # found where only all bytes tell
    path = Versions(folder).root / "2" / "nodes" / "node" / "x.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(PartitionError, match=r"2/nodes/node/x.npy"):
        verify_partition(folder, Progress(False))
    path.write_bytes(whole)
    (Versions(folder).root / "1").rename(Versions(folder).root / "spare")
    with pytest.raises(PartitionError, match="2: version 1 is missing, which comes before it"):
        verify_partition(folder, Progress(False))


def test_two_appends_at_once_make_two_versions(graph: tuple[Path, Additions]) -> None:
    folder, rows = graph
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(append_rows(folder, rows))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made) == [1, 2, 3, 4]


APPEND = """
import sys, numpy as np
from glt_lightning.partition import Additions, NewNodes, append_rows
n = 20000
rows = Additions(nodes={"node": NewNodes(n, {"x": np.ones((n, 3), np.float32), "tag": np.zeros((n, 2), np.int64)})})
print("begins", flush=True)
while True:
    append_rows(sys.argv[1], rows)
"""


@pytest.mark.parametrize("wait_s", [0.0, 0.03, 0.1])
def test_a_killed_append_leaves_the_last_version_whole(graph: tuple[Path, Additions], wait_s: float) -> None:
    folder, rows = graph
    child = subprocess.Popen([sys.executable, "-c", APPEND, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "begins\n"
    while not (Versions(folder).root / "1").exists():
        time.sleep(0.005)
    time.sleep(wait_s)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    whole = Versions(folder).number("latest")
    assert append_rows(folder, rows) == whole + 1
    partition = LocalPartition.open(folder)
    version = open_version(partition, "latest")
    assert version.manifest.total_nodes == partition.manifest.total_nodes + 20000 * whole + 1
    version.close()
    partition.close()
    left = {path.name for path in Versions(folder).root.iterdir()}
    assert left == {str(n) for n in range(1, whole + 2)}


@pytest.mark.parametrize("edge_types", [(EDGE,), TYPED], ids=["homogeneous", "typed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 8))])
def test_rows_over_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, edge_types: Any, number: int
) -> None:
    """An overlay over an overlay has the batches of one with all rows."""
    if "walks" in kind and edge_types == TYPED:
        pytest.skip("walks go along the one edge type")
    rng = np.random.default_rng([number, len(kind), len(edge_types), 1])
    two = two_versions(rng, edge_types, **KINDS[kind].get("graph", {}))
    base = two.partition(two.base, tmp_path / "base", 1 + number % 3)
    first, second = halves(two, rng)
    given = KINDS[kind].get("sampling", {})
    sampling = SamplingOptions(**{"with_edge": True, **given})
    whole, below = add_rows(base, two.additions), add_rows(base, first)
    monkeypatch.setattr(views, "_DENSE", 64 * (number % 2))  # few replaced rows are found by search, many by bits
    grown = add_rows(below, second)
    assert grown.manifest.num_edges == whole.manifest.num_edges
    assert grown.identity not in (below.identity, base.identity)
    for spec in specs(two, rng, "time_attr" in given, "importance_neighbors" in given):
        assert batches(grown, spec, sampling) == batches(whole, spec, sampling)
    for t, name in enumerate(base.schema.node_types):
        ids = np.arange(two.whole.num_nodes[name])
        found = [each.node_shards(t, "x").gather(each.gids_of(t, ids)) for each in (grown, whole)]
        assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("edge_types", [(EDGE,), TYPED], ids=["homogeneous", "typed"])
def test_rows_over_a_version_with_deleted_ones(tmp_path: Path, edge_types: Any) -> None:
    rng = np.random.default_rng(len(edge_types))
    two = two_versions(rng, edge_types, undirected=True)
    base = two.partition(two.base, tmp_path / "base", 2)
    append_rows(tmp_path / "base", two.additions)
    (_, _, t), counts = edge_types[0], two.whole.num_nodes
    delete_rows(tmp_path / "base", nodes={t: np.array([0, 2])})
    version = open_version(base, "latest")

    def rows(first: int) -> Additions:
        attrs = {name: values[:2] for name, values in two.whole.node[t].items()}
        ends = np.array([[1, 3, 3], [first, counts[t], counts[t] + 1]])
        count = {name: values[:3] for name, values in two.whole.edge[edge_types[0]].items()}
        return Additions({t: NewNodes(2, attrs)}, {edge_types[0]: NewEdges(ends, count)})

    appended = Versions(tmp_path / "base").read(base.manifest, "latest")
    grown, whole = add_rows(version, rows(4)), add_rows(base, appended.followed_by(rows(4), base.manifest))
    assert grown.manifest.num_edges == whole.manifest.num_edges
    for each in (grown, whole):
        assert each.deleted(each.schema.node_index(t)).tolist() == [0, 2]
    seeds = {name: np.arange(3, n + 2 * (name == t)) for name, n in counts.items()}
    spec = LoaderSpec(name="all", seeds=seeds if len(seeds) > 1 else seeds[t], num_neighbors=[3, -1], batch_size=5)
    sampling = SamplingOptions(with_edge=True)
    assert batches(grown, spec, sampling) == batches(whole, spec, sampling)
    with pytest.raises(DataError, match=f"leads to node 2 of type {t!r}, which is deleted"):
        add_rows(version, rows(2))


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (Additions(edges={EDGE: NewEdges(np.array([0, 5]))}), r"expected integers \[2, E\].*int64 \[2\]"),
        (Additions(edges={EDGE: NewEdges(np.array([[0, 0], [0, 99]]))}), "edge 1 has the destination 99"),
        (
            Additions(changed={"node": ChangedNodes(np.array([1, 2]), {"x": np.zeros((1, 3))})}),
            r"expected \[2, 3\], got \[1, 3\]",
        ),
        (
            Additions(changed={"node": [ChangedNodes(np.array([1]), {"x": np.zeros((1, 3))})]}),
            "expected one `ChangedNodes`",
        ),
    ],
)
def test_rows_after_others_are_refused_by_their_own_numbers(tmp_path: Path, rows: Additions, what: str) -> None:
    x = {"node": {"x": np.zeros((10, 3), np.float32)}}
    source = ArraySource("ring", "", GraphSchema.single(), {"node": 10}, {EDGE: np.array([[0, 1], [1, 2]])}, x)
    partition_graph(source, tmp_path / "parts", PartitionOptions(num_parts=2), progress=False)
    append_rows(tmp_path / "parts", Additions(edges={EDGE: NewEdges(np.array([[0], [5]]))}))
    with pytest.raises(DataError, match=what):
        append_rows(tmp_path / "parts", rows)
