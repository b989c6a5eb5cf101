"""Edges to predict are stored beside a graph that carries messages over training edges alone, with ids of the user's edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning.base import (
    EDGE,
    DataError,
    EdgeType,
    GraphSchema,
    OptionError,
    PartitionError,
    PartitionOptions,
    Progress,
    edge_type_str,
)
from glt_lightning.graph import EdgeSplit, LocalPartition
from glt_lightning.partition import (
    ArraySource,
    hold_out_edges,
    open_source,
    partition_dir,
    partition_graph,
    verify_partition,
)
from glt_lightning.partition.sources.ogb.source import read_edge_splits
from tests.helpers.ogb_layout import RawGraph
from tests.helpers.ogb_links import lay_out_links, write_link_splits
from tests.helpers.partition_truth import edges_of, single

LIKES, REVERSE, NEAR = ("a", "likes", "b"), ("b", "rev_likes", "a"), ("b", "near", "b")
NAME = edge_type_str(LIKES)


def typed(seed: int = 0) -> ArraySource:
    """Parallel edges; a reverse edge type in another order, with an edge of its own."""
    rng = np.random.default_rng(seed)
    likes = np.stack([rng.integers(0, 12, 90), rng.integers(0, 9, 90)])
    linked = set(zip(*likes.tolist(), strict=True))
    alone = next((u, v) for u in range(12) for v in range(9) if (u, v) not in linked)
    reverse = np.concatenate([likes[::-1, rng.permutation(90)], [[alone[1]], [alone[0]]]], axis=1)
    return ArraySource(
        name="typed",
        fingerprint=str(seed),
        schema=GraphSchema(("a", "b"), (LIKES, REVERSE, NEAR)),
        num_nodes={"a": 12, "b": 9},
        edge_index={LIKES: likes, REVERSE: reverse, NEAR: rng.integers(0, 9, (2, 30))},
        edge={LIKES: {"stars": np.arange(90.0)}},
    )


def distinct(edges: np.ndarray, *sizes: int) -> list[np.ndarray]:
    """Splits of the distinct pairs, in this order, of these sizes; the last has the rest."""
    return np.split(np.unique(edges, axis=1), np.cumsum(sizes), axis=1)


@pytest.mark.parametrize("parts", [1, 3])
def test_training_edges_alone_are_stored(tmp_path: Path, parts: int) -> None:
    source = typed()
    test, val, train = distinct(source.edge_index[LIKES], 10, 5)
    given = {"train": train, "val": val.T, "test": {"edge": test, "label": np.arange(10), "time": np.arange(10) * 7}}
    links = hold_out_edges(source, {NAME: given})
    partition_graph(links, tmp_path / "p", PartitionOptions(num_parts=parts), progress=False)
    stored, held_out = edges_of(tmp_path / "p"), {*map(tuple, test.T), *map(tuple, val.T)}
    for edge_type, flip in ((LIKES, 1), (REVERSE, -1), (NEAR, 0)):
        columns = [tuple(pair[::flip]) if flip else None for pair in source.edge_index[edge_type].T]
        left = [(u, v, i) for i, (u, v) in enumerate(source.edge_index[edge_type].T) if columns[i] not in held_out]
        assert stored[edge_type] == sorted(left)
        assert (len(left) < len(columns)) == bool(flip)
    partition = LocalPartition.open(tmp_path / "p")
    r = partition.schema.edge_index(LIKES)
    for p in range(parts):
        folder = tmp_path / "p" / f"part{p}" / "edges" / str(r)
        assert (np.load(folder / "stars.npy") == np.load(folder / "edge_ids.npy")).all()
    np.testing.assert_array_equal(partition.edge_split(r, "train").edge, train)
    np.testing.assert_array_equal(partition.edge_split(r, "val").edge, val)
    found = partition.edge_split(r, "test")
    assert found.label is not None
    assert found.time is not None
    assert found.negatives is None
    assert (found.label == np.arange(10)).all()
    assert (found.time == np.arange(10) * 7).all()
    assert (
        verify_partition(tmp_path / "p", Progress(False)).seeds == np.unique(source.edge_index[LIKES], axis=1).shape[1]
    )
    with pytest.raises(DataError, match=r"no split 'other' of b__near__b\. It has: test of a__likes__b, train of"):
        partition.edge_split(partition.schema.edge_index(NEAR), "other")
    partition.close()


@pytest.mark.parametrize("undirected", [False, True])
def test_both_directions_and_parallel_edges_are_held_out(tmp_path: Path, undirected: bool) -> None:
    source = single([(0, 1), (1, 0), (0, 1), (1, 2), (3, 3), (2, 3), (0, 3)], 4)
    links = hold_out_edges(source, {"node__to__node": {"train": [[1, 2], [2, 3]], "test": [[1], [0]]}})
    partition_graph(links, tmp_path / "p", PartitionOptions(), undirected=undirected, progress=False)
    found = edges_of(tmp_path / "p")[EDGE]  # the loop stays, and (0, 3), which is in no split, does not
    assert [e for e in found if e[0] <= e[1]] == [(1, 2, 3), (2, 3, 5), (3, 3, 4)]
    assert [e for e in found if e[0] > e[1]] == ([(2, 1, 3), (3, 2, 5)] if undirected else [])


def test_without_train_the_rest_is_trained_on() -> None:
    source = typed()
    test, _ = distinct(source.edge_index[LIKES], 10)
    links = hold_out_edges(source, {NAME: {"test": test}})
    kept = links.edges(LIKES)
    assert kept.num_edges == links.edge_splits[LIKES]["train"].edge.shape[1] > 0
    chunks = np.concatenate([np.stack(each) for each in kept.chunks(7)], axis=1)
    np.testing.assert_array_equal(chunks, links.edge_splits[LIKES]["train"].edge)
    assert not {*map(tuple, chunks.T)} & {*map(tuple, test.T)}


def test_random_splits_have_negatives() -> None:
    source = typed()
    links = hold_out_edges(source, {NAME: {"num_val": 4, "num_test": 0.25, "seed": 3}})
    splits = links.edge_splits[LIKES]
    pairs = np.unique(source.edge_index[LIKES], axis=1).shape[1]
    assert len(splits["val"]) == 4
    assert len(splits["test"]) == round(pairs / 4)
    assert splits["val"].negative_edges is not None
    assert splits["val"].negative_edges.shape == (2, 4)
    reverse = source.edge_index[REVERSE][::-1, links.edges(REVERSE).columns]  # type: ignore[attr-defined]
    held_out = {tuple(pair) for name in ("val", "test") for pair in splits[name].edge.T}
    assert not {*map(tuple, reverse.T)} & held_out
    again = hold_out_edges(typed(), {NAME: {"num_val": 4, "num_test": 0.25, "seed": 3}})
    assert again.edge_splits[LIKES]["val"].digest == splits["val"].digest


def test_reverse_types_are_named_where_they_are_not_rev() -> None:
    source = typed()
    test, _ = distinct(source.edge_index[LIKES], 10)
    source.edge_index = {("b", "by", "a") if e == REVERSE else e: v for e, v in source.edge_index.items()}
    source.schema = GraphSchema(("a", "b"), tuple(source.edge_index))
    for named, fewer in (({}, False), ({NAME: "b__by__a"}, True), ({"b__by__a": NAME}, True)):
        links = hold_out_edges(source, {NAME: {"test": test}}, named)
        assert (links.edges(("b", "by", "a")).num_edges < 91) == fewer
    with pytest.raises(DataError, match="b__near__b does not lead from 'b' back to 'a', so it is no reverse"):
        hold_out_edges(source, {NAME: {"test": test}}, {NAME: "b__near__b"})


def save(folder: Path, name: str, array: np.ndarray) -> str:
    path = folder / name
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".pt":
        torch.save(torch.from_numpy(array.copy()), path)
    else:
        np.savetxt(path, array, fmt="%d", delimiter="," if path.suffix == ".csv" else " ")
    return str(path)


@pytest.mark.parametrize("suffix", [".npy", ".pt", ".txt", ".csv"])
def test_files_in_either_orientation_are_the_identity_of_a_folder(tmp_path: Path, suffix: str) -> None:
    source = typed()
    test, train = distinct(source.edge_index[LIKES], 10)
    given = {"train": save(tmp_path, f"train{suffix}", train.T), "test": save(tmp_path, f"test{suffix}", test.T)}
    links = hold_out_edges(source, {NAME: given})
    np.testing.assert_array_equal(links.edge_splits[LIKES]["test"].edge, test)
    options = PartitionOptions()
    folder = partition_dir(tmp_path, links, options, None, "none")
    assert folder != partition_dir(tmp_path, source, options, None, "none")
    partition_graph(links, folder, options, progress=False)
    assert partition_graph(hold_out_edges(typed(), {NAME: given}), folder, options).edge_splits
    save(tmp_path, f"test{suffix}", test[:, :9].T)
    other = hold_out_edges(source, {NAME: given})
    assert partition_dir(tmp_path, other, options, None, "none") != folder
    with pytest.raises(PartitionError, match=r"edge_splits: '\w+' on disk, '\w+' given"):
        partition_graph(other, folder, options)


def test_npz_names_its_edges(tmp_path: Path) -> None:
    likes = typed().edge_index[LIKES]
    test, val, train = distinct(likes, 10, 5)
    arrays = {f"{NAME}/edge_index": likes, "a/num_nodes": np.array(12), "b/num_nodes": np.array(9)}
    columns = {split: np.flatnonzero((likes[0] % 3) == i) for i, split in enumerate(("train", "valid", "test"))}
    np.savez(tmp_path / "columns.npz", **arrays, **{f"{NAME}/{split}_idx": ids for split, ids in columns.items()})
    links = hold_out_edges(open_source(tmp_path / "columns.npz", tmp_path), {NAME: None})
    np.testing.assert_array_equal(links.edge_splits[LIKES]["val"].edge, likes[:, columns["valid"]])
    negatives = np.arange(20).reshape(10, 2) % 9
    pairs = {"train_edge": train, "val_edge": val, "test_edge": test.T, "test_edge_negatives": negatives}
    np.savez(tmp_path / "pairs.npz", **arrays, **{f"{NAME}/{key}": value for key, value in pairs.items()})
    source = open_source(tmp_path / "pairs.npz", tmp_path)
    assert not source.edge_attrs(LIKES)
    found = hold_out_edges(source, {NAME: None}).edge_splits[LIKES]["test"]
    np.testing.assert_array_equal(found.edge, test)
    np.testing.assert_array_equal(found.negatives, negatives)
    np.savez(
        tmp_path / "plain.npz", edge_index=likes % 9, num_nodes=np.array(9), train_edge=train % 9, test_edge=test % 9
    )
    with pytest.raises(DataError, match=r"train and test of node__to__node share \d+ pairs? of nodes"):
        _ = hold_out_edges(open_source(tmp_path / "plain.npz", tmp_path), {"node__to__node": None}).edge_splits
    np.savez(tmp_path / "none.npz", edge_index=likes % 9, num_nodes=np.array(9))
    with pytest.raises(
        DataError, match=r"none.npz: edge_splits: the data set has none for edge type node__to__node. Give"
    ):
        _ = hold_out_edges(open_source(tmp_path / "none.npz", tmp_path), {"node__to__node": None}).edge_splits


def test_column_of_a_table(tmp_path: Path) -> None:
    rows = ["0,1,5,train", "1,2,6,train", "2,3,7,val", "3,4,8,test", "1,2,9,"]
    (tmp_path / "e.csv").write_text("\n".join(["a,b,when,fold", *rows]))
    (tmp_path / "n.csv").write_text("id\n" + "\n".join(map(str, range(5))))
    edges = {"path": str(tmp_path / "e.csv"), "source": "a", "destination": "b", "split": "fold", "time": "when"}
    dataset = {"nodes": {"path": str(tmp_path / "n.csv"), "id": "id"}, "edges": edges}
    (name,) = names = ["node__to__node"]
    source = hold_out_edges(open_source(dataset, tmp_path), dict.fromkeys(names))
    found = source.edge_splits[tuple(name.split("__"))]
    assert {split: each.edge.T.tolist() for split, each in found.items()} == {
        "train": [[0, 1], [1, 2]],
        "val": [[2, 3]],
        "test": [[3, 4]],
    }
    assert found["test"].time.tolist() == [8]
    assert source.edges(tuple(name.split("__"))).num_edges == 3  # those of validation and test carry no messages


def broken(**changes: Any) -> Callable[[], Any]:
    def read() -> Any:
        given = {"train": np.array([[0, 1], [1, 2]]), "test": {"edge": np.array([[2, 3, 1], [3, 3, 4]])} | changes}
        return hold_out_edges(single([(0, 1), (1, 2)], 5), {"node__to__node": given}).edge_splits

    return read


def of(splits: Any, name: str = "node__to__node") -> Callable[[], Any]:
    def read() -> Any:
        links = hold_out_edges(single([(0, 1), (1, 2)], 5), {name: splits})
        return links.edge_splits_hash, links.edge_splits

    return read


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            of({}, "node__too__node"),
            "input_type: unknown edge type 'node__too__node'. The graph has node__to__node. Did you mean",
        ),
        (of({"test": "missing.npy"}), "edge_splits: there is no file 'missing.npy'"),
        (
            of({"tests": [[0], [1]]}),
            "edge_splits: node__to__node: expected any of train, val, test, or of num_val, num_test, neg",
        ),
        (of({}), "or of num_val, num_test, time; got nothing"),
        (of({"num_val": 2, "num_test": 0}), "num_val, num_test: 2 and 0 leave no training edge"),
        (
            of({"test": [[0, 5], [1, 2]]}),
            "edge_splits.test: edge 1 has source 5, but node type 'node' has 5 nodes (0..4)",
        ),
        (of({"test": [0, 1, 2]}), "edge_splits.test: expected node ids [2, S] or [S, 2], got int64 [3]"),
        (of({"test": [[0.5], [1]]}), "edge_splits.test: expected node ids [2, S] or [S, 2], got float64 [2, 1]"),
        (
            of({"train": [[0], [1]], "test": [[1], [0]]}),
            "share 1 pair of nodes (for example 1 and 0, in one direction or the",
        ),
        (of({"test": {"label": [1]}}), "edge_splits.test: edge is missing"),
        (
            broken(labels=[1, 2]),
            "edge_splits.test: expected any of edge, label, time, negatives, source_negatives, negative_edges; got labels",
        ),
        (
            broken(label=np.array([1])),
            "edge_splits.test.label: expected one row for each of the 3 edges, got int64 [1]",
        ),
        (broken(time=np.array([1.0, 2.0, 3.0])), "edge_splits.test.time: expected integers [3], got float64 [3]"),
        (
            broken(negatives=np.array([[1], [2], [5]])),
            "edge_splits.test.negatives: edge 2 has destination 5, but node type",
        ),
        (
            broken(negatives=np.array([[1, 2, 3, 4]])),
            "edge_splits.test.negatives: expected 3 rows, the destinations of each",
        ),
        (broken(negative_edges=np.array([[1, 9], [0, 0]])), "edge_splits.test.negative_edges: edge 1 has source 9"),
    ],
)
def test_bad_input_is_one_line(read: Callable[[], Any], message: str) -> None:
    with pytest.raises((DataError, ValueError), match=re.escape(message)) as error:
        read()
    assert "\n" not in str(error.value)


def test_overlap_may_be_allowed(caplog: pytest.LogCaptureFixture) -> None:
    given = {"train": [[0, 1], [1, 2]], "test": [[1], [0]], "val": [[1], [0]]}
    links = hold_out_edges(single([(0, 1), (1, 2)], 5), {"node__to__node": given}, allow=["overlapping_splits"])
    assert links.edges(EDGE).num_edges == 2
    assert "train and test of node__to__node share 1 pair" in caplog.text
    assert "val and test of" in caplog.text


OGB = {
    "ogbl-citation2": "negatives",
    "ogbl-collab": "negative_edges",
    "ogbl-ddi": "negative_edges",
    "ogbl-ppa": "negative_edges",
    "ogbl-vessel": "negative_edges",
}


@pytest.mark.parametrize("name", OGB)
def test_ogb_by_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTDATED_IGNORE", "1")
    graph = RawGraph.random(np.random.default_rng(0))
    folder = lay_out_links(tmp_path, name, graph)
    held = write_link_splits(folder, name)["train"]
    trained = held["edge"].numpy().T if "edge" in held else np.stack([held["source_node"], held["target_node"]])
    graph.edges = trained  # as the data sets have it, the graph is its training edges
    for file in [*folder.glob("raw/*")]:
        file.unlink()
    (folder / "raw").rmdir()
    again = lay_out_links(tmp_path / "again", name, graph)
    (again / "raw").rename(folder / "raw")
    source: Any = open_source(name, tmp_path)
    links = hold_out_edges(source, {"node__to__node": None})
    manifest = partition_graph(links, tmp_path / "p", PartitionOptions(num_parts=2), progress=False)
    assert sum(manifest.num_edges) == source.edges(EDGE).num_edges
    given = read_edge_splits(name, tmp_path)["test"]
    partition = LocalPartition.open(tmp_path / "p")
    found = partition.edge_split(0, "test")
    if OGB[name] == "negatives":
        np.testing.assert_array_equal(found.edge, np.stack([given["source_node"], given["target_node"]]))
        np.testing.assert_array_equal(found.negatives, given["target_node_neg"])
    else:
        np.testing.assert_array_equal(found.edge, given["edge"].T)
        np.testing.assert_array_equal(found.negative_edges, given["edge_neg"].T)
    partition.close()


def test_a_split_knows_its_arrays() -> None:
    split = EdgeSplit(edge=np.zeros((2, 3), np.int64), label=np.zeros(3))
    assert len(split) == 3
    assert list(split.arrays) == ["edge", "label"]
    assert split.digest != EdgeSplit(edge=split.edge).digest


def test_graph_without_edge_type_is_refused() -> None:
    with pytest.raises(DataError, match="edge_splits: no edge type is given"):
        hold_out_edges(typed(), {})


def test_types_are_independent(tmp_path: Path) -> None:
    source = typed()
    tests: dict[EdgeType, np.ndarray] = {e: distinct(source.edge_index[e], 3)[0] for e in (LIKES, NEAR)}
    links = hold_out_edges(source, {edge_type_str(e): {"test": test} for e, test in tests.items()})
    manifest = partition_graph(links, tmp_path / "p", PartitionOptions(num_parts=2), progress=False)
    r = {e: manifest.schema.edge_index(e) for e in tests}
    assert sorted(manifest.edge_splits) == sorted(f"{i}/{split}" for i in r.values() for split in ("test", "train"))
    assert [manifest.edge_splits[f"{i}/test"].count for i in r.values()] == [3, 3]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "seed: expected an integer >= 0, got -1"),
        ({"seed": "one"}, "seed: expected an integer >= 0, got 'one'"),
        (
            {"num_val": float("nan")},
            "num_val: expected a share of the edges in [0, 1), or their number as an int; got nan",
        ),
        ({"num_test": 0.001}, "num_test: 0.001 of"),
    ],
)
def test_shares_and_seeds_of_drawn_splits(labelled: bool, wrong: dict[str, Any], message: str) -> None:
    labels = {NAME: "stars"} if labelled else None
    links = hold_out_edges(typed(), {NAME: {"num_val": 0.1, "num_test": 0.1} | wrong}, labels=labels)
    with pytest.raises(OptionError, match=re.escape(message)):
        _ = links.edge_splits_hash, links.edge_splits


def test_errors_name_the_columns_of_the_user(tmp_path: Path) -> None:
    source = typed()
    source.edge[LIKES]["size"] = np.where(np.arange(90) == 89, np.nan, 1.0)
    links = hold_out_edges(source, {NAME: {"test": np.arange(40)}}, labels={NAME: "stars"})
    with pytest.raises(DataError, match="size of edge type a__likes__b: row 89 is nan"):
        partition_graph(links, tmp_path / "parts", PartitionOptions(num_parts=2), progress=False)
