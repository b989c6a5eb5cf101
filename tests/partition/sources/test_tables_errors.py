"""What is wrong in a mapping or in a table is said with file, column, row and value."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glt_lightning.base import DataError
from glt_lightning.partition import open_source
from glt_lightning.partition.sources.tables.ids import as_numbers

NODES = {"id": ["a", "b", "c"], "label": ["p", "q", "p"], "fold": ["train", "val", "test"], "x": [1.0, 2.0, 3.0]}
EDGES = {"s": ["a", "b", "c"], "d": ["b", "c", "a"], "w": [1.0, 2.0, 3.0], "t": [1, 2, 3]}


def graph(folder: Path, nodes: dict[str, Any] | None = None, edges: dict[str, Any] | None = None) -> dict[str, Any]:
    pq.write_table(pa.table(NODES | (nodes or {})), folder / "n.parquet", row_group_size=2)
    pq.write_table(pa.table(EDGES | (edges or {})), folder / "e.parquet", row_group_size=2)
    n = {"path": str(folder / "n.parquet"), "id": "id", "label": "label", "split": "fold", "features": "x"}
    e = {"path": str(folder / "e.parquet"), "source": "s", "destination": "d", "weight": "w", "time": "t"}
    return {"nodes": n, "edges": e}


def fails(dataset: dict[str, Any], folder: Path, said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        _ = open_source(dataset, folder / "root").num_nodes
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nods": {}}, "unknown key 'nods'; allowed: nodes, edges, name, encoding. Did you mean nodes"),
        ({"nodes": None}, "nodes missing"),
        ({"nodes": {"id": "id"}}, r"nodes: id: expected one table .* or a table for each node type"),
        ({"nodes": {"path": "n.csv", "lable": "y"}}, "nodes: unknown key 'lable'; allowed: path, id, .*mean label"),
        ({"nodes": {"path": []}}, r"nodes: path: expected a file, a list of files"),
        ({"nodes": {"path": 3}}, r"nodes: path: expected a name, got 3"),
        ({"nodes": {"path": "n.csv", "label": True}}, r"nodes: label: expected a name, got True; put it in quotes"),
        ({"nodes": {"path": "n.csv", "attrs": ["year"]}}, r"nodes: attrs: expected a mapping, got \['year'\]"),
        ({"nodes": {"path": "n.csv", "attrs": {"x": "year"}}}, "nodes: attrs: 'x' is a reserved name"),
        ({"nodes": {"path": "n.csv", "attrs": {"a b": "year"}}}, "nodes: attrs: 'a b' is not an identifier"),
        ({"edges": {"path": "e.csv", "source": "s"}}, "edges: destination missing"),
        ({"edges": {"path": "e.npz", "source": "s"}}, "e.npz is a sparse matrix, .* remove source"),
        ({"edges": 3}, "edges: expected a mapping, got 3"),
        ({"nodes": {"a": {"path": "a.csv"}}, "edges": {"a__b": {}}}, "edges: 'a__b': expected SRC__REL__DST"),
        ({"nodes": {"a/b": {"path": "a.csv"}}, "edges": {}}, "'a/b' cannot name a type"),
        (
            {"nodes": {"author": {"path": "a.csv"}}, "edges": {"author__knows__auhtor": "m.npz"}},
            "unknown node type 'auhtor'; known: author. Did you mean author",
        ),
    ],
)
def test_mapping(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    fails(graph(tmp_path) | change, tmp_path, said)


def test_same_attribute_of_nodes_and_edges(tmp_path: Path) -> None:
    given = graph(tmp_path)
    given["nodes"]["attrs"] = given["edges"]["attrs"] = {"year": "x"}
    fails(given, tmp_path, "attrs: 'year' is given for nodes and for edges")


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"id": ["a", "b", "a"]}, r"n.parquet: row 2, column 'id': id 'a' was given before \(.*n.parquet: row 0\)"),
        ({"id": [5, 9, 5]}, "row 2, column 'id': id 5 was given before"),
        ({"id": ["a", "b", None]}, "n.parquet: row 2, column 'id': the id is missing"),
        ({"id": [0.5, 1.0, 2.0]}, "column 'id': ids are double; expected integers or text"),
        ({"x": [1.0, 2.0, float("nan")]}, "n.parquet: row 2, column 'x': nan is not a finite float32"),
        ({"x": [1.0, float("-inf"), 0.0]}, "row 1, column 'x': -inf is not a finite float32"),
        ({"x": [1.0, 2.0, 1e300]}, "row 2, column 'x': inf is not a finite float32"),
        ({"x": [1.0, 2.0, None]}, "row 2, column 'x': the value is missing"),
        ({"x": [[1.0], [2.0], [3.0, 4.0]]}, "row 2, column 'x': 2 features, but 1 in the rows before"),
        ({"x": [[1.0], [None], [3.0]]}, "row 1, column 'x': nan at position 0 is not a finite float32"),
        ({"x": ["1", "2", "3"]}, "n.parquet: column 'x' is large_string; features are numbers"),
        ({"fold": ["train", "val", "tset"]}, "row 2, column 'fold': unknown split 'tset'; expected train, val"),
        ({"fold": [1, 2, 3]}, "column 'fold': int64: expected text"),
        ({"label": [0.0, 1.0, None]}, "row 2, column 'label': a float column is a regression .*Int64"),
        ({"label": [[1], [2], [3]]}, "column 'label': .*expected text, integers or floats"),
    ],
)
@pytest.mark.parametrize("bucket", [1, 100])
def test_nodes(tmp_path: Path, nodes: dict[str, Any], said: str, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glt_lightning.partition.sources.tables.convert.BUCKET", bucket)
    fails(graph(tmp_path, nodes), tmp_path, said)


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (
            {"d": ["b", "c", "z"]},
            r"e.parquet: row 2, column 'd': 'z' is not an id of nodes \(column 'id' of .*n.parquet\)",
        ),
        ({"s": [None, "a", "a"]}, "row 0, column 's': the id is missing"),
        ({"s": [1, 2, 3]}, "row 0, column 's': 1 is not an id of nodes"),
        ({"w": [1.0, None, 3.0]}, "row 1, column 'w': the value is missing"),
        ({"t": [1, None, 3]}, "row 1, column 't': the value is missing; give it a"),
        (
            {"t": ["2020-01-01", "soon", "2021-01-01"]},
            "row 1, column 't': 'soon' is neither a number nor a time, but '2020-01-01' is",
        ),
        ({"w": [1.0, 2.0, float("inf")]}, "row 2, column 'w': weight inf is not a finite float32"),
        ({"w": ["1", "2", "3"]}, "row 0, column 'w': '1' is large_string; attributes are numbers"),
        ({"t": [0.5, 1.0, 2.0]}, "column 't': float64: expected integers or timestamps"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 100])
def test_edges(tmp_path: Path, edges: dict[str, Any], said: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glt_lightning.partition.sources.tables.tasks._CHUNK", chunk)
    monkeypatch.setattr("glt_lightning.partition.sources.tables.convert.BUCKET", chunk)
    fails(graph(tmp_path, edges=edges), tmp_path, said)


@pytest.mark.parametrize(
    ("key", "column", "said"),
    [
        ("label", "lab", "n.parquet: has no column 'lab' .*its columns: id, label, fold, x"),
        ("features", ["x", "f_*"], r"features: 'f_\*' neither names nor matches a column of .*n.parquet"),
        ("features", "id", "column 'id' is large_string"),
    ],
)
def test_columns(tmp_path: Path, key: str, column: Any, said: str) -> None:
    given = graph(tmp_path)
    given["nodes"][key] = column
    fails(given, tmp_path, said)


def test_rows_without_ids(tmp_path: Path) -> None:
    given = graph(tmp_path, edges={"s": [0, 1, 2], "d": [0, 1, 3]})
    del given["nodes"]["id"]
    fails(given, tmp_path, "row 2, column 'd': 3 is not an id of nodes .which have no ids, but rows from 0")


def test_a_pattern_leaves_out_the_label(tmp_path: Path) -> None:
    given = graph(tmp_path, {"label": [0, 1, 0]})
    given["nodes"] |= {"features": "[lx]*"}
    assert open_source(given, tmp_path).num_features == {"node": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,label,fold,x\na,p,train,1\nb,q\n", r"n.csv: cannot be read as a table \(CSV parse error.*Expected 4 col"),
        ("id,label,fold,x\na,p,train,1\nb,q,val,two\n", "n.csv: row 1, column 'x': 'two' is not a valid float"),
        ("id,label,fold,x\na,p,train,1\n,q,val,2\n", "n.csv: row 1, column 'id': the id is missing"),
        ("id,label,fold,x\na,p,train,1\nb,q,val,\n", "n.csv: row 1, column 'x': the value is missing"),
        ("id,label,label,x\n", "n.csv: has several columns 'label'"),
        ("", "n.csv: cannot be read as a table .*[Ee]mpty"),
        (
            "id;label;fold;x\na;p;train;1\n",
            "n.csv: has no column 'id' .* Commas separate the columns of .csv, .*';'",
        ),
        ("id,label,fold,x\nJos\u00e9,p,train,1\n", "n.csv: cannot be read as a table .*Save it as UTF-8"),
        ("id,label,fold,x,\u00e9\na,p,train,1,\n", "n.csv: cannot be read as a table .*Save it as UTF-8"),
    ],
)
def test_text_files(tmp_path: Path, text: str, said: str) -> None:
    given = graph(tmp_path)
    (tmp_path / "n.csv").write_text(text, "latin-1")
    given["nodes"]["path"] = str(tmp_path / "n.csv")
    fails(given, tmp_path, said)


def test_unreadable_files(tmp_path: Path) -> None:
    given = graph(tmp_path)
    file = tmp_path / "n.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    fails(given, tmp_path, r"n.parquet: cannot be read as a table .*It may be damaged or truncated")
    file.write_bytes(whole[:8] + bytes(60) + whole[68:])
    fails(given, tmp_path, r"n.parquet: cannot be read as a table")
    for name, content in (
        ("n.csv.gz", gzip.compress(b"id,label,fold,x\n" + b"a,p,,1\n" * 999)[:-20]),
        ("n.csv", b"\xff"),
    ):
        (tmp_path / name).write_bytes(content)
        fails({**given, "nodes": given["nodes"] | {"path": str(tmp_path / name)}}, tmp_path, f"{name}: ")


def test_paths(tmp_path: Path) -> None:
    given = graph(tmp_path)
    (tmp_path / "n.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "n.csv").write_text("id,label,fold,x\n")
    for path, said in (
        ("n.txt", r"n.txt: its extension is not one of \.parquet, "),
        ("no.csv", r"no.csv: there is no such file or folder"),
        ("no*.csv", r"no\*.csv: there is no such file"),
        ("empty", r"empty: the folder has no such file; expected \.parquet"),
    ):
        fails({**given, "nodes": given["nodes"] | {"path": str(tmp_path / path)}}, tmp_path, said)
    both = [str(tmp_path / "n.parquet"), str(tmp_path / "n.csv")]
    fails({**given, "nodes": given["nodes"] | {"path": both}}, tmp_path, "Parquet files or text files, not both")


def test_path_of_one_of_several_types(tmp_path: Path) -> None:
    given = graph(tmp_path)
    table = {key: given["edges"][key] for key in ("path", "source", "destination")}
    several = {"nodes": {"a": given["nodes"]}, "edges": {"a__to__a": table, "a__by__a": table | {"path": "no.csv"}}}
    fails(several, tmp_path, "dataset: edges: a__by__a: path: no.csv: there is no such file")
    several["nodes"]["b"] = {"path": "none.csv"}
    fails(several, tmp_path, "dataset: nodes: b: path: none.csv: there is no such file")


@pytest.mark.parametrize("bucket", [1, 100])
@pytest.mark.parametrize("swap", ["columns", "types"])
def test_swapped_ends_are_said(tmp_path: Path, swap: str, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glt_lightning.partition.sources.tables.convert.BUCKET", bucket)
    (tmp_path / "a.csv").write_text("email\na@x\nb@x\n")
    (tmp_path / "p.csv").write_text("doi\np1\np2\n")
    (tmp_path / "w.csv").write_text("email,doi\na@x,p1\n")
    nodes = {
        "author": {"path": str(tmp_path / "a.csv"), "id": "email"},
        "paper": {"path": str(tmp_path / "p.csv"), "id": "doi"},
    }
    ends = {"source": "doi", "destination": "email"} if swap == "columns" else {"source": "email", "destination": "doi"}
    name = "author__writes__paper" if swap == "columns" else "paper__writes__author"
    given = {"nodes": nodes, "edges": {name: {"path": str(tmp_path / "w.csv"), **ends}}}
    said = "is not an id of nodes: .*It is an id of nodes: (author|paper). Are source and destination swapped"
    fails(given, tmp_path, said)


def test_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    given = graph(tmp_path)
    (tmp_path / "n.csv").write_text("id,label,fold,x\na,p,train,1\nb,q,val,2\nc,q,,3\n", "utf-8-sig")
    given["nodes"]["path"] = str(tmp_path / "n.csv")
    assert open_source(given, tmp_path).num_nodes == {"node": 3}


def test_files_of_other_types(tmp_path: Path) -> None:
    given = graph(tmp_path)
    other = tmp_path / "o.parquet"
    given["nodes"]["path"] = [str(tmp_path / "n.parquet"), str(other)]
    pq.write_table(pa.table(NODES | {"id": ["d", "e", "f"], "label": [1, 2, 3]}), other)
    fails(given, tmp_path, "o.parquet: a column has another type than in n.parquet")
    pq.write_table(pa.table({"id": ["d"], "label": ["p"], "fold": [None]}), other)
    fails(given, tmp_path, "o.parquet: has no column 'x'")
    pq.write_table(pa.table({"id": ["d"], "label": ["p"], "fold": pa.nulls(1), "x": [7]}), other)
    assert open_source(given, tmp_path).num_nodes == {"node": 4}
    pq.write_table(pa.table({"id": ["b"], "label": ["p"], "fold": pa.nulls(1), "x": [7]}), other)
    fails(given, tmp_path, r"o.parquet: row 0, column 'id': id 'b' was given before \(.*n.parquet: row 1\)")


def test_how_numbers_are_written() -> None:
    most = 2**63 - 1
    numbers = [0, 7, -7, 10**18, -(10**18), most, most - 1, -most, 9223372036854775799]
    texts = ["", "007", "-0", "+7", " 7", "7.0", "0" * 19, "0123456789012345678", str(most + 1), "9" * 19, "1" * 20]
    found = as_numbers(pa.array([*map(str, numbers), *texts], pa.large_string()))
    assert found.to_pylist() == [*numbers, *[None] * len(texts)]
