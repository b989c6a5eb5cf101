"""`random_link_split` leaks nothing: pairs of nodes are split, not edges, and negatives are pairs without any edge."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, GraphSchema, OptionError, PartitionError
from glt_lightning.partition import ArraySource, LinkSplit, hold_out_edges, random_link_split
from glt_lightning.partition.edge_splits import columns, tasks
from glt_lightning.partition.sources import base
from glt_lightning.partition.sources.base import ArrayEdges
from glt_lightning.partition.sources.folder import FolderSource

Edges = np.ndarray


def unordered(edges: Edges, one_type: bool = True) -> set[tuple[int, int]]:
    return {(min(u, v), max(u, v)) if one_type else (u, v) for u, v in edges.T.tolist()}


def graph(seed: int, nodes: tuple[int, int], num_edges: int) -> Edges:
    """With parallel edges, and loops where both ends are of one type."""
    rng = np.random.default_rng(seed)
    edges = np.stack([rng.integers(0, n, num_edges) for n in nodes])
    return np.concatenate([edges, edges[:, : num_edges // 3]], axis=1)


def both_ways(edges: Edges) -> Edges:
    return np.concatenate([edges, edges[::-1]], axis=1)


def check(split: LinkSplit, edges: Edges, nodes: tuple[int, int], one_type: bool, reverse: Edges | None = None) -> None:
    """Everything that a split promises."""
    loops = edges[0] == edges[1] if one_type else np.zeros(edges.shape[1], bool)
    targets, seen = {}, set()
    for number, name in enumerate(("train", "val", "test")):
        found = split.edge_splits[name]["edge"]
        targets[name] = unordered(found, one_type)
        assert len(targets[name]) == found.shape[1]  # each pair once
        assert not targets[name] & seen
        seen |= targets[name]
        np.testing.assert_array_equal(edges[:, split.position[name]], found)
        assert unordered(edges[:, (split.split_of_edge == number) & ~loops], one_type) == targets[name]
        if reverse is not None:
            stored = unordered(reverse[::-1, split.split_of_reverse == number], one_type)
            assert stored & unordered(edges[:, ~loops], one_type) == targets[name] & unordered(reverse[::-1], one_type)
            assert number == 0 or stored <= targets[name]  # what is no copy of a target stays in train
    assert seen == unordered(edges[:, ~loops], one_type)
    assert (split.split_of_edge[loops] == 0).all()
    every = unordered(edges, one_type) | (unordered(reverse[::-1], one_type) if reverse is not None else set())
    negatives = [split.edge_splits[name]["negatives"] for name in ("val", "test")]
    pairs = [unordered(each, one_type) for each in negatives]
    assert [len(each) for each in pairs] == [each.shape[1] for each in negatives]  # distinct
    assert not pairs[0] & pairs[1]
    assert not (pairs[0] | pairs[1]) & every
    both = np.concatenate(negatives, axis=1)
    assert (both >= 0).all()
    assert (both < np.array(nodes)[:, None]).all()
    assert not one_type or (both[0] != both[1]).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("nodes", [8, 30, 200])  # dense graphs choose among all pairs, sparse ones draw
@pytest.mark.parametrize("undirected", [True, False])
def test_one_node_type(nodes: int, undirected: bool, seed: int) -> None:
    edges = graph(seed, (nodes, nodes), 12 if nodes == 8 else 120)
    edges = both_ways(edges) if undirected else edges
    split = random_link_split(edges, nodes, 0.2, 0.3, neg_sampling_ratio=0.5, seed=seed)
    check(split, edges, (nodes, nodes), True)
    pairs = sum(each["edge"].shape[1] for each in split.edge_splits.values())
    sizes = {name: each["edge"].shape[1] for name, each in split.edge_splits.items()}
    assert (sizes["val"], sizes["test"]) == (round(0.2 * pairs), round(0.3 * pairs))
    assert split.edge_splits["test"]["negatives"].shape[1] == -(-sizes["test"] // 2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("nodes", [(6, 9), (40, 100)])
def test_two_node_types_and_the_reverse(nodes: tuple[int, int], seed: int) -> None:
    """The reverse edge type has parallel edges, edges in another order, some missing, and some that only it has."""
    edges = graph(seed, nodes, 20)
    reverse = np.concatenate([edges[::-1, ::-1][:, 5:], graph(seed + 99, nodes, 9)[::-1]], axis=1)
    check(random_link_split(edges, nodes, 3, 4, reverse_edge_index=reverse, seed=seed), edges, nodes, False, reverse)
    check(random_link_split(edges, nodes, 3, 4, seed=seed), edges, nodes, False)


@pytest.mark.parametrize("seed", range(4))
def test_one_node_type_and_a_reverse_edge_type(seed: int) -> None:
    edges = graph(seed, (30, 30), 60)
    reverse = np.concatenate([edges[::-1], graph(seed + 99, (30, 30), 9)], axis=1)
    split = random_link_split(edges, 30, reverse_edge_index=reverse, seed=seed)
    check(split, edges, (30, 30), True, reverse)


def test_no_reverse_of_a_test_edge_is_trained_on() -> None:
    """pyg-team/pytorch_geometric#3440, its graph."""
    path = both_ways(np.stack([np.arange(5), np.arange(1, 6)]))
    for seed in range(20):
        split = random_link_split(path, 10, 1, 1, seed=seed)
        trained = path[:, split.split_of_edge == 0]
        assert trained.shape[1] == 6
        assert not unordered(trained) & unordered(split.edge_splits["test"]["edge"])


def test_parallel_edges_of_two_types_move_together() -> None:
    """pyg#9425: an edge that is listed twice, in its type or the reverse one, came out in training and validation."""
    edges = np.tile(graph(0, (10, 20), 30), 3)
    split = random_link_split(edges, (10, 20), 0.1, 0.1, reverse_edge_index=edges[::-1])
    check(split, edges, (10, 20), False, edges[::-1])
    np.testing.assert_array_equal(split.split_of_edge, split.split_of_reverse)


def test_turned_negatives_are_not_shared() -> None:
    """pyg#10706, its graph: of the 3 pairs without an edge, validation and test had one in both directions."""
    edges = both_ways(np.array([[0, 1, 2], [1, 2, 3]]))
    for seed in range(20):
        check(random_link_split(edges, 4, 1, 1, seed=seed), edges, (4, 4), True)


@pytest.mark.parametrize("none", [0, 0.0])
def test_no_validation_edges(none: float) -> None:
    """pyg#10590: with num_val 0 the test edges stayed among those to train on."""
    edges = graph(0, (50, 50), 90)
    split = random_link_split(edges, 50, num_val=none, num_test=0.2)
    check(split, edges, (50, 50), True)
    assert split.edge_splits["val"]["edge"].shape == split.edge_splits["val"]["negatives"].shape == (2, 0)
    assert set(split.split_of_edge) == {0, 2}
    check(random_link_split(edges, 50, 0.2, none), edges, (50, 50), True)


def test_the_order_of_edges_does_not_matter_and_the_seed_does() -> None:
    edges = both_ways(graph(0, (60, 60), 200))
    order = np.random.default_rng(1).permutation(edges.shape[1])
    one = random_link_split(edges, 60, reverse_edge_index=edges, seed=3)
    other = random_link_split(edges[:, order].astype(np.int32), 60, reverse_edge_index=edges[:, order[::-1]], seed=3)
    for name, arrays in one.edge_splits.items():
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, other.edge_splits[name][key])
    np.testing.assert_array_equal(one.split_of_edge[order], other.split_of_edge)
    different = random_link_split(edges, 60, seed=4)
    assert (one.split_of_edge != different.split_of_edge).mean() > 0.2
    assert unordered(one.edge_splits["test"]["negatives"]) != unordered(different.edge_splits["test"]["negatives"])


def test_a_split_of_nodes_is_one_of_more_nodes() -> None:
    """Further nodes without edges change the negatives alone."""
    edges = graph(0, (60, 60), 200)
    splits = [random_link_split(edges, nodes).split_of_edge for nodes in (60, 1000)]
    np.testing.assert_array_equal(*splits)


def test_the_first_of_parallel_edges_stands_for_them() -> None:
    edges = np.tile(np.array([[0, 2, 4, 6], [1, 3, 5, 7]]), 5)
    split = random_link_split(edges, 8, 1, 1)
    assert sorted(np.concatenate(list(split.position.values())).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("nodes", [5, 40])
def test_directions_and_pairs_are_uniform(nodes: int) -> None:
    """Targets that are stored in both directions, and negatives: as often up as down, each pair as often as any other."""
    path = both_ways(np.stack([np.arange(nodes - 1), np.arange(1, nodes)]))
    drawn: dict[str, list[Edges]] = {"edge": [], "negatives": []}
    seeds = 3000 // nodes
    for seed in range(seeds):
        test = random_link_split(path, nodes, 0, 1, neg_sampling_ratio=2, seed=seed).edge_splits["test"]
        for key, found in drawn.items():
            found.append(test[key])
    for key, found in drawn.items():
        edges = np.concatenate(found, axis=1)
        up = (edges[0] < edges[1]).mean()
        assert abs(up - 0.5) < 4 * 0.5 / edges.shape[1] ** 0.5, key
        possible = nodes - 1 if key == "edge" else (nodes - 1) * (nodes - 2) // 2
        low, high = np.sort(edges, axis=0)
        counts = np.bincount(low * nodes + high)
        expected = edges.shape[1] / possible
        chi_square = ((counts[counts > 0] - expected) ** 2 / expected).sum() + expected * (
            possible - (counts > 0).sum()
        )
        assert abs(chi_square - possible) < 5 * (2 * possible) ** 0.5, key


def test_ids_up_to_the_limit() -> None:
    """Ids of 32 bits, of which products with other ids would not fit into 64 bits with their sign."""
    rng, most = np.random.default_rng(0), (1 << 32) - 1
    edges = rng.integers(most - 30, most, (2, 100))
    split = random_link_split(edges, most, 0.2, 0.2)
    check(split, edges, (most, most), True)
    assert (split.edge_splits["test"]["negatives"] > 1 << 31).mean() == pytest.approx(0.5, abs=0.3)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (DataError, {"edge_index": np.zeros((3, 2), int)}, r"edge_index: expected integers \[2, E\] .*, got int64 \[3, 2\]"),
        (DataError, {"edge_index": np.zeros((2, 3))}, r"edge_index: expected integers \[2, E\] .*, got float64 \[2, 3\]"),
        (DataError, {"num_nodes": 9}, r"edge_index: edge 9 has the source 9; expected 0 to 8 \(num_nodes\)"),
        (DataError, {"edge_index": [[0, -1], [1, 2]]}, r"edge_index: edge 1 has the source -1; expected 0 to 9"),
        (DataError, {"reverse_edge_index": [[0], [10]]}, r"reverse_edge_index: edge 0 has the destination 10"),
        (OptionError, {"num_nodes": 0}, r"num_nodes: expected a number of nodes below 2\^32, or a pair of them; got 0"),
        (OptionError, {"num_nodes": (4, 5, 6)}, r"num_nodes: expected .*; got \(4, 5, 6\)"),
        (OptionError, {"num_nodes": None}, r"num_nodes: expected .*; got None"),
        (OptionError, {"num_val": 1.0}, r"num_val: expected a share of the edges in \[0, 1\), or .*; got 1.0"),
        (OptionError, {"num_test": -1}, r"num_test: expected a share .*; got -1"),
        (OptionError, {"num_test": float("nan")}, r"num_test: expected a share .*; got nan"),
        (OptionError, {"num_test": True}, r"num_test: expected a share .*; got True"),
        (OptionError, {"num_val": 0.01}, r"num_val: 0.01 of 10 linked pairs of nodes is none. Give a number of edges, or 0"),
        (OptionError, {"num_val": 5, "num_test": 0.5}, r"num_val, num_test: 5 and 0.5 leave no training edge of 10 linked pairs"),
        (OptionError, {"edge_index": np.zeros((2, 0), int)}, r"leave no training edge of 0 linked pairs", ),
        (OptionError, {"edge_index": [[1, 1], [1, 1]]}, r"leave no training edge of 0 linked pairs"),
        (OptionError, {"neg_sampling_ratio": -0.5}, r"neg_sampling_ratio: expected a number of at least 0; got -0.5"),
        (OptionError, {"neg_sampling_ratio": np.inf}, r"neg_sampling_ratio: expected a number .*; got inf"),
        (DataError, {"neg_sampling_ratio": 12}, r"neg_sampling_ratio: 36 negatives are asked for, but only 35 pairs of"),
        (OptionError, {"seed": -1}, r"seed: expected an integer >= 0, got -1"),
    ],
)  # fmt: skip
def test_bad_input(kind: type[Exception], given: dict[str, Any], said: str) -> None:
    ring = np.stack([np.arange(10), np.roll(np.arange(10), -1)])
    arguments = {"edge_index": ring, "num_nodes": 10, "num_val": 1, "num_test": 2} | given
    if " 0 pairs" in said:
        arguments |= {"num_val": 0, "num_test": 0}
    with pytest.raises(kind, match=said):
        random_link_split(**arguments)


def test_all_pairs_without_an_edge() -> None:
    ring = np.stack([np.arange(10), np.roll(np.arange(10), -1)])
    split = random_link_split(ring, 10, 2, 3, neg_sampling_ratio=7)
    check(split, ring, (10, 10), True)
    assert sum(split.edge_splits[name]["negatives"].shape[1] for name in ("val", "test")) == 35


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("ratio", [0, 0.7])
def test_edges_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool, undirected: bool, ratio: float
) -> None:
    """Edges that are split in pieces come out as those of one array, also those of the reverse edge type."""
    monkeypatch.setattr(columns, "CHUNK", 7)
    monkeypatch.setattr(columns, "_BUCKET", 5)
    nodes = (40, 100) if typed else (60, 60)
    edges = graph(1, nodes, 90)
    edges = both_ways(edges) if undirected and not typed else edges
    reverse = np.concatenate([edges[::-1, ::-1][:, 5:], graph(99, nodes, 9)[::-1]], axis=1)
    own = {"num_val": 0.2, "num_test": 5, "neg_sampling_ratio": ratio, "seed": 3}
    count = nodes if typed else nodes[0]
    expected = random_link_split(edges, count, reverse_edge_index=reverse, **own)
    found = tasks.draw_split(ArrayEdges(edges), count, ArrayEdges(reverse), tmp_path / "files", **own)
    for name, each in expected.edge_splits.items():
        np.testing.assert_array_equal(found.splits[name].edge, each["edge"])
        negatives = found.splits[name].negative_edges
        np.testing.assert_array_equal(
            np.zeros((2, 0)) if negatives is None else negatives, each.get("negatives", np.zeros((2, 0)))
        )
    for held_out, splits in ((found.num_held_out, (0,)), (found.num_test, (0, 1))):
        kept, of_reverse = found.kept(ArrayEdges(edges), held_out), found.kept_reverse(ArrayEdges(reverse), held_out)
        np.testing.assert_array_equal(kept, np.isin(expected.split_of_edge, splits))
        np.testing.assert_array_equal(of_reverse, np.isin(expected.split_of_reverse, splits))
    assert not [*(tmp_path / "files").iterdir()]


def test_ids_that_no_node_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHUNK", 2)
    with pytest.raises(DataError, match=r"^edge_index: edge 2 has the destination 5; expected 0 to 4 \(num_nodes\)"):
        tasks.draw_split(ArrayEdges(np.array([[0, 1, 2], [1, 2, 5]])), 5, None, tmp_path)


@pytest.mark.parametrize("kind", ["drawn", "labels", "times", "latest", "relations", "given", "pairs"])
def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A mask of a byte an edge and a few of its copies; before, 36 to 107 bytes an edge."""
    monkeypatch.setattr(columns, "CHUNK", 1 << 12)
    monkeypatch.setattr(columns, "_BUCKET", 1 << 12)
    monkeypatch.setattr(base, "_LABELS", 1 << 12)
    count, rng = 1 << 18, np.random.default_rng(0)
    edges, relation = rng.integers(0, 5000, (2, count)), rng.integers(0, 9, count)
    np.save(tmp_path / "edge_index.npy", edges)
    np.save(tmp_path / "edge_kind.npy", relation)
    np.save(tmp_path / "x.npy", np.zeros((5000, 1), np.float32))
    given: dict[str, Any] = {"num_val": 100, "num_test": 0.3}
    if kind == "drawn":
        given["neg_sampling_ratio"] = 0
    elif kind in ("times", "latest"):
        given["time"] = "edge_kind"
    elif kind in ("given", "pairs"):
        np.save(tmp_path / "test.npy", edges[:, : count // 2].T if kind == "pairs" else edges[:, : count // 2])
        given = {"test": str(tmp_path / "test.npy")}
    elif kind == "relations":
        given = {"test": {"edge": edges[:, :1000], "relation": relation[:1000]}}
    links = hold_out_edges(
        FolderSource(tmp_path),
        {"node__to__node": given},
        labels=None if kind in ("drawn", "latest", "given", "pairs") else {"node__to__node": "edge_kind"},
        relations=kind == "relations",
        folder=tmp_path / "files",
    )
    tracemalloc.start()
    try:
        splits = links.edge_splits[EDGE]
        assert len(splits["train"].digest) == 32
        assert links.edges(EDGE).num_edges < count
        assert tracemalloc.get_traced_memory()[1] < 6 * count
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("labelled", ["kind", "score", "when"])
def test_labels_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labelled: str) -> None:
    """Splits of edges with labels are columns of the graph, however many edges are in memory at once."""
    rng, count = np.random.default_rng(1), 300
    kind = rng.integers(-1, 4, count)
    attrs = {
        "kind": kind,
        "score": np.where(kind < 0, np.nan, rng.random(count)).astype(np.float32)[:, None],
        "when": rng.integers(0, 20, count).astype(np.int32),
        "edge_attr": rng.random((count, 3)),
    }
    time = {"time": "when"} if labelled == "when" else {}
    source = ArraySource(
        name="labelled",
        fingerprint="",
        schema=GraphSchema.single(),
        num_nodes={"node": 40},
        edge_index={EDGE: rng.integers(0, 40, (2, count))},
        edge={EDGE: attrs},
    )
    found = []
    for size in (1 << 20, 7):
        monkeypatch.setattr(columns, "CHUNK", size)
        given = {"num_val": 0.2, "num_test": 0.3, **time}
        links = hold_out_edges(source, {"node__to__node": given}, labels={"node__to__node": labelled}, folder=tmp_path)
        found.append({name: split.digest for name, split in links.edge_splits[EDGE].items()})
        test = links.edge_splits[EDGE]["test"]
        known = np.flatnonzero(~np.isnan(attrs["score"][:, 0]) if labelled == "score" else attrs[labelled] >= 0)
        if time:  # edges of one time are together
            order = np.sort(attrs["when"])
            chosen = np.flatnonzero(attrs["when"] >= order[count - round(0.3 * count)])
        else:
            chosen = np.sort(np.random.default_rng(0).permutation(known)[-round(0.3 * len(known)) :])
        np.testing.assert_array_equal(test.edge, source.edge_index[EDGE][:, chosen])
        np.testing.assert_array_equal(test.label, attrs[labelled].reshape(count)[chosen])
        np.testing.assert_array_equal(test.attr, attrs["edge_attr"][chosen].astype(np.float32))
    assert found[0] == found[1]
    assert not [*tmp_path.iterdir()]


def test_where_files_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is answered by the option that names the folder; by default they do not lie in ``/tmp``, often memory."""
    used = []

    def full(fd: int, *_: object) -> int:
        used.append(os.readlink(f"/proc/self/fd/{fd}"))
        raise OSError(errno.ENOSPC, "No space left on device")

    graph = ArraySource("g", "", GraphSchema.single(), {"node": 4}, {EDGE: np.array([[0, 1, 2], [1, 2, 3]])})
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr("os.pwrite", full)
    advice = r"choose another one for edges to predict \(data\.root, or folder of hold_out_edges, else TMPDIR\)"
    for folder, where in ((None, "/var/tmp"), (tmp_path, str(tmp_path))):
        links = hold_out_edges(graph, {"node__to__node": {"num_val": 0, "num_test": 1}}, folder=folder)
        with pytest.raises(PartitionError, match=advice):
            links.edges(EDGE)
        assert used[-1].startswith(f"{where}/")
    monkeypatch.undo()
    for given, needed in (({"num_val": 0, "num_test": 1}, 24), ({"test": np.array([[0], [1]])}, 32)):  # it is too small
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=needed - 1: SimpleNamespace(free=free))
        links = hold_out_edges(graph, {"node__to__node": given}, folder=tmp_path / "new")
        with pytest.raises(PartitionError, match=rf"/new: splitting .* at least {needed} bytes .* {advice}"):
            links.edges(EDGE)
