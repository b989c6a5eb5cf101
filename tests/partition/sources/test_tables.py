"""Tables of nodes and edges: every node, edge, attribute and label follows its id, whatever the files are."""

from __future__ import annotations

import argparse
import datetime
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import GraphSource, open_source, partition_graph, user_ids
from glt_lightning.partition.sources.tables.source import TableSource
from tests.helpers.examples import examples
from tests.helpers.partition_truth import edges_of

PAPERS = {
    "paper_id": ["p3", "p1", "p\n2", "ü"],
    "field": ["maths", None, "art", "maths"],
    "fold": ["train", "", "valid", "test"],
    "f0": [0.5, 1.5, 2.5, 3.5],
    "f1": [1, 2, 3, 4],
    "year": [2001, 2002, 2003, 2004],
}
CITES = {
    "citing": ["p1", "ü", "p1", "p\n2"],
    "cited": ["p3", "p3", "p3", "ü"],
    "w": [0.5, 1.0, 2.0, 4.0],
    "when": [datetime.datetime(1970, 1, 1, 0, 0, second) for second in (1, 2, 3, 4)],
    "kind": [7, 8, 9, 10],
}
EDGES = [(1, 0), (3, 0), (1, 0), (2, 3)]


def save(path: Path, columns: dict[str, Any], row_group: int | None = None) -> str:
    """A table as the extension says."""
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=row_group)
    else:
        opener = gzip.open if path.suffix == ".gz" else open
        delimiter = "\t" if ".tsv" in path.name else ","
        with opener(path, "wb") as sink:
            pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(delimiter=delimiter))
    return str(path)


def mapping(folder: Path, extension: str = "parquet") -> dict[str, Any]:
    nodes = {"path": save(folder / f"papers.{extension}", PAPERS), "id": "paper_id", "label": "field", "split": "fold"}
    edges = {"path": save(folder / f"cites.{extension}", CITES), "source": "citing", "destination": "cited"}
    return {
        "nodes": nodes | {"features": "f*", "attrs": {"year": "year"}},
        "edges": edges | {"weight": "w", "time": "when", "features": ["kind", "w"], "attrs": {"kind": "kind"}},
    }


def pairs(source: GraphSource, edge_type: tuple[str, str, str] = EDGE, size: int = 3) -> list[tuple[int, int]]:
    found = []
    for src, dst in source.edges(edge_type).chunks(size):
        found += list(zip(src.tolist(), dst.tolist(), strict=True))
    return found


@pytest.mark.parametrize("extension", ["parquet", "csv", "tsv", "csv.gz", "tsv.gz"])
def test_homogeneous(tmp_path: Path, extension: str) -> None:
    source = open_source(mapping(tmp_path, extension), tmp_path / "root")
    assert isinstance(source, TableSource)
    assert (source.name, source.num_nodes, source.num_features) == ("papers", {NODE: 4}, {NODE: 2})
    assert (source.num_classes, source.class_names, source.target_type) == (2, ["art", "maths"], NODE)
    nodes = source.node_attrs(NODE)
    assert sorted(nodes) == ["x", "y", "year"]
    assert nodes["x"].dtype == np.float32
    assert nodes["x"][:].tolist() == [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]]
    assert nodes["y"][:].tolist() == [1, -1, 0, 1]
    assert nodes["year"][:].tolist() == PAPERS["year"]
    assert {name: ids.tolist() for name, (_, ids) in source.splits.items()} == {"train": [0], "val": [2], "test": [3]}
    assert pairs(source) == EDGES
    edges = source.edge_attrs(EDGE)
    assert sorted(edges) == ["edge_attr", "edge_time", "edge_weight", "kind"]
    assert edges["edge_weight"][:].tolist() == CITES["w"]
    assert edges["edge_weight"].dtype == np.float32
    assert edges["edge_time"][:].tolist() == [1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert edges["kind"][np.array([3, 0])].tolist() == [10, 7]
    assert edges["edge_attr"][:].tolist() == [[7, 0.5], [8, 1], [9, 2], [10, 4]]
    assert source.user_ids([3, 0, 0, 2]).tolist() == ["ü", "p3", "p3", "p\n2"]
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert edges_of(tmp_path / "p")[EDGE] == sorted((u, v, k) for k, (u, v) in enumerate(EDGES))


def test_heterogeneous(tmp_path: Path) -> None:
    papers = {"path": save(tmp_path / "p.parquet", PAPERS), "id": "paper_id", "label": "field", "split": "fold"}
    authors = {"path": save(tmp_path / "a.csv", {"id": [30, 10, 20]}), "id": "id"}
    writes = {"path": save(tmp_path / "w.csv", {"a": [10, 30, 10], "p": ["ü", "p1", "p3"]})}
    rates = {"path": save(tmp_path / "r.parquet", {"p": ["p1"], "a": ["20"]}), "source": "p", "destination": "a"}
    given_ = argparse.Namespace(  # as the command line hands it over
        nodes=argparse.Namespace(author=authors, paper=papers),
        edges={"author__writes__paper": writes | {"source": "a", "destination": "p"}, "paper__by__author": rates},
        name="library",
    )
    source = open_source(given_, tmp_path)
    assert (source.name, source.schema.homogeneous) == ("library", False)
    assert source.num_nodes == {"author": 3, "paper": 4}
    assert source.num_features == {"author": None, "paper": None}
    assert (source.target_type, source.num_classes) == ("paper", 2)
    assert pairs(source, ("author", "writes", "paper")) == [(1, 3), (0, 1), (1, 0)]
    assert pairs(source, ("paper", "by", "author")) == [(1, 2)]
    folder = source.folder  # type: ignore[attr-defined]
    found = user_ids(folder, np.array([1, 2]), "author")
    assert found.tolist() == [10, 20]
    assert found.flags.writeable
    with pytest.raises(DataError, match="node_type: expected one of author, paper; got None"):
        user_ids(folder, [0])
    with pytest.raises(DataError, match=r"expected integers \[K\] of 0..3"):
        user_ids(folder, [4], "paper")
    partition_graph(source, tmp_path / "p", PartitionOptions())


texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1, max_size=4
)
identifiers = st.one_of(
    st.lists(texts, unique=True, min_size=1, max_size=12),
    st.lists(st.integers(-(2**62), 2**62), unique=True, min_size=1, max_size=12),
    st.integers(-5, 5).flatmap(lambda first: st.integers(1, 9).map(lambda n: list(range(first, first + n)))),
)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    data=st.data(),
    ids=identifiers,
    extension=st.sampled_from(["parquet", "csv"]),
    chunk=st.sampled_from([1, 3, 99]),
    bucket=st.sampled_from([1, 3, 99]),
)
def test_everything_follows_its_id(tmp_path_factory, data, ids: list, extension: str, chunk: int, bucket: int) -> None:
    folder = tmp_path_factory.mktemp("tables")
    number = st.floats(-100, 100, width=32)
    n = len(ids)
    lists = st.lists(st.lists(number, min_size=2, max_size=2), min_size=n, max_size=n)
    x = data.draw(lists)
    labels = data.draw(st.lists(st.sampled_from(["b", "a", "c", None]), min_size=n, max_size=n))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), number)
    edges = data.draw(st.lists(ends, max_size=20))
    cut = data.draw(st.integers(0, n))
    for name, piece in (("1", slice(cut)), ("2", slice(cut, n))):
        columns: dict = {"id": pa.array(ids[piece], pa.array(ids).type)}
        columns["label"] = pa.array(labels[piece], pa.string())
        columns |= {f"f{i}": pa.array([row[i] for row in x[piece]], pa.float32()) for i in range(2)}
        if extension == "parquet":
            columns["f"] = pa.array(x[piece], pa.list_(pa.float32()))
        save(folder / "nodes" / f"{name}.{extension}", columns, row_group=2)
    kind = pa.array(ids).type
    edge_columns = {"s": pa.array([ids[e[0]] for e in edges], kind), "d": pa.array([ids[e[1]] for e in edges], kind)}
    edge_columns["w"] = pa.array([e[2] for e in edges], pa.float32())
    save(folder / f"edges.{extension}", edge_columns, row_group=3)
    features = "f" if extension == "parquet" else ["f?"]
    given_ = {
        "nodes": {"path": str(folder / "nodes"), "id": "id", "label": "label", "features": features},
        "edges": {"path": str(folder / f"edges.{extension}"), "source": "s", "destination": "d", "weight": "w"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glt_lightning.partition.sources.tables.tasks._CHUNK", chunk)
        patch.setattr("glt_lightning.partition.sources.tables.convert.BUCKET", bucket)
        patch.setattr("glt_lightning.partition.sources.tables.ids._GROUP", chunk)
        source = open_source(given_, folder)
        assert source.num_nodes == {NODE: n}
    np.testing.assert_array_equal(source.node_attrs(NODE)["x"][:], np.array(x, np.float32))
    names = sorted({label for label in labels if label is not None})
    assert source.node_attrs(NODE)["y"][:].tolist() == [-1 if v is None else names.index(v) for v in labels]
    assert pairs(source) == [(u, v) for u, v, _ in edges]
    assert source.edge_attrs(EDGE)["edge_weight"][:].tolist() == [w for _, _, w in edges]
    stored = source.user_ids(np.arange(n)).tolist()  # type: ignore[attr-defined]
    assert stored == ids or (extension == "csv" and list(map(str, stored)) == ids)


@pytest.mark.parametrize("text", [True, False])
def test_the_same_files_from_ids_that_are_joined_on_disk(
    tmp_path: Path, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(5000) * 3
    ends = ids[np.minimum(rng.integers(0, 5000, (2, 20_000)), rng.integers(0, 50_000, (2, 20_000)))]
    ends[0, ::2] = ids[7]  # one bucket is larger than a group

    def named(numbers: np.ndarray) -> list:
        return [f"node {'x' * (k % 23)}{k}" if text else k for k in numbers.tolist()]

    given_ = {
        "nodes": {"path": save(tmp_path / "n.parquet", {"id": named(ids)}), "id": "id"},
        "edges": {
            "path": save(tmp_path / "e.parquet", {"s": named(ends[0]), "d": named(ends[1])}, row_group=1000),
            "source": "s",
            "destination": "d",
        },
    }
    folders = []
    for bucket in (1 << 19, 300):
        monkeypatch.setattr("glt_lightning.partition.sources.tables.convert.BUCKET", bucket)
        monkeypatch.setattr("glt_lightning.partition.sources.tables.ids._GROUP", 999)
        monkeypatch.setattr("glt_lightning.partition.sources.tables.tasks._CHUNK", 1500)
        folder = open_source(given_, tmp_path / str(bucket)).folder  # type: ignore[attr-defined]
        folders.append({str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()})
    assert folders[0] == folders[1]
    source = open_source(given_, tmp_path / "300")
    assert pairs(source, size=1 << 20) == [*zip(*np.argsort(ids)[ends // 3].tolist(), strict=True)]


def test_nodes_without_ids(tmp_path: Path) -> None:
    nodes = {"path": save(tmp_path / "n.parquet", {"v": [[1.0, 2.0], [3.0, 4.0]], "y": [1.5, 2.5]}), "label": "y"}
    edges = {"path": save(tmp_path / "e.csv", {"a": [0, 1], "b": [1, 1]}), "source": "a", "destination": "b"}
    source = open_source({"nodes": nodes | {"features": ["v"]}, "edges": edges}, tmp_path)
    assert pairs(source) == [(0, 1), (1, 1)]
    assert source.num_classes is None  # a regression
    assert source.node_attrs(NODE)["x"][:].tolist() == [[1, 2], [3, 4]]
    assert source.node_attrs(NODE)["y"][:].tolist() == [1.5, 2.5]
    assert source.user_ids([1, 0]).tolist() == [1, 0]  # type: ignore[attr-defined]


def test_numbers_as_text_in_csv(tmp_path: Path) -> None:
    """007 is not 7, as soon as one id of the column is written so."""
    edges = {"path": save(tmp_path / "e.parquet", {"a": ["7"], "b": ["007"]}), "source": "a", "destination": "b"}
    (tmp_path / "n.csv").write_text("id,year\n7,1\n007,1\n8,1\n")
    nodes = {"path": str(tmp_path / "n.csv"), "id": "id", "attrs": {"time": "year"}}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path)
    assert pairs(source) == [(0, 1)]
    assert source.node_attrs(NODE)["time"].dtype == np.int64


@pytest.mark.parametrize(
    ("array", "expected", "classes"),
    [
        (pa.array([2, None, -5], pa.int8()), [2, -1, -5], 3),
        (pa.array([True, False, None]), [1, 0, -1], 2),
        (pa.array(["b", "a", "b"]).dictionary_encode(), [1, 0, 1], 2),
        (pa.array(["10", "9", None], pa.large_string()), [0, 1, -1], 2),
        (pa.array([0.5, 1, 2]), [0.5, 1, 2], None),
    ],
)
def test_labels(tmp_path: Path, array: pa.Array, expected: list, classes: int | None) -> None:
    nodes = {"path": save(tmp_path / "n.parquet", {"label": array}, row_group=1), "label": "label"}
    edges = {"path": save(tmp_path / "e.parquet", {"a": [0], "b": [1]}), "source": "a", "destination": "b"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path)
    assert source.node_attrs(NODE)["y"][:].tolist() == expected
    assert source.num_classes == classes


def test_empty_tables(tmp_path: Path) -> None:
    no_text, no_number = pa.array([], pa.string()), pa.array([], pa.float32())
    given_ = mapping(tmp_path)
    empty = {"citing": no_text, "cited": no_text, "w": no_number, "when": pa.array([], pa.int64()), "kind": no_number}
    save(tmp_path / "cites.parquet", empty)
    source = open_source(given_, tmp_path)
    assert pairs(source) == []
    assert source.edge_attrs(EDGE)["edge_attr"].shape == (0, 2)
    partition_graph(source, tmp_path / "p", PartitionOptions())


def test_converted_once_and_anew_after_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given_, root = mapping(tmp_path), tmp_path / "root"
    first = open_source(given_, root)
    assert first.fingerprint
    assert not root.exists()  # only looked at
    folder = first.folder  # type: ignore[attr-defined]
    assert "classes of node: 0 = art, 1 = maths" in capsys.readouterr().err
    made = folder.stat().st_mtime_ns
    assert open_source(given_, root).num_nodes == {NODE: 4}
    assert folder.stat().st_mtime_ns == made
    assert [path.name for path in (root / "tables").iterdir()] == [folder.name]  # no lock, nothing temporary
    other = open_source(given_ | {"nodes": given_["nodes"] | {"features": "f0"}}, root)
    assert other.fingerprint != first.fingerprint
    assert other.num_features == {NODE: 1}
    save(tmp_path / "papers.parquet", PAPERS | {"f0": [0.0, 0, 0, 0]})
    assert open_source(given_, root).fingerprint not in (first.fingerprint, other.fingerprint)


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    given_, root = mapping(tmp_path), tmp_path / "root"
    save(tmp_path / "cites.parquet", CITES | {"cited": ["p3", "p3", "p3", "p9"]})
    with pytest.raises(DataError, match="p9"):
        _ = open_source(given_, root).num_nodes
    assert list((root / "tables").iterdir()) == []
