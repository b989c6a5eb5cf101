"""Tables are read where they are: from any store that fsspec reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from glt_lightning.base import EDGE, NODE, DataError
from glt_lightning.partition import open_source
from glt_lightning.partition.sources.tables import files as files_module
from tests.helpers.s3 import s3_store
from tests.partition.sources.test_tables_tasks import DIGESTS, converted, saved

ROWS = 1000


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


@pytest.mark.parametrize("extension", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("path", ["memory://graph/nodes-*.{}", "memory://graph", "memory://graph/nodes-[01].{}"])
def test_globs_and_folders(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, extension: str, path: str
) -> None:
    monkeypatch.setattr(files_module, "_BLOCK", 1000)
    import pandas

    for part in range(2):
        ids = np.arange(ROWS // 2) * 2 + part
        frame = pandas.DataFrame({"id": ids, "value": ids / 4})
        local = tmp_path / f"nodes-{part}.{extension}"
        frame.to_parquet(local) if extension == "parquet" else frame.to_csv(local, index=False)
        memory.put(str(local), f"/graph/nodes-{part}.{extension}")
    memory.pipe("/edges.tsv", f"s\td\n0\t{ROWS - 1}\n".encode())
    nodes = {"path": path.format(extension), "id": "id", "features": "value"}
    edges = {"path": "memory://edges.tsv", "source": "s", "destination": "d"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path)
    assert source.num_nodes == {NODE: ROWS}
    expected = np.concatenate([np.arange(ROWS // 2) * 2 + part for part in range(2)])
    assert source.node_attrs(NODE)["x"][:][:, 0].tolist() == (expected / 4).tolist()
    assert [ends.tolist() for ends in next(source.edges(EDGE).chunks(9))] == [[0], [ROWS - 1]]


def test_a_file_that_changes_is_another_graph(tmp_path: Path, memory: Any) -> None:
    found = []
    for rows in (3, 4):
        memory.pipe("/nodes.csv", ("id\n" + "\n".join(map(str, range(rows)))).encode())
        memory.pipe("/edges.csv", b"s,d\n0,1\n")
        nodes, edges = {"path": "memory://nodes.csv"}, {"path": "memory://edges.csv", "source": "s", "destination": "d"}
        found.append(open_source({"nodes": nodes, "edges": edges}, tmp_path).num_nodes[NODE])
    assert found == [3, 4]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("memory://none.csv", "nodes: path: memory://none.csv: there is no such file or folder"),
        ("nowhere://host/none.csv", r"^nowhere://host/none.csv: it cannot be opened \(ValueError: Protocol"),
        (
            "ftp://user:word@host/none.csv",
            "^ftp://host/none.csv: was given with a password.*FSSPEC_<PROTOCOL>_PASSWORD",
        ),
        (
            "simplecache::memory://nodes.csv",
            "^simplecache::memory://nodes.csv: chains .* Give the URL of the store itself",
        ),
        ("https://host/none.csv?X-Amz-Signature=word", "^https://host/none.csv: was given with a query.*written down"),
        ("zip://a.csv::memory://b.zip", "^zip://a.csv::memory://b.zip: chains of file systems"),
        ("memory://bad.csv", r"memory://?/?/bad.csv: row 1, column 'value': 'x' is not a valid float"),
    ],
)
def test_errors(tmp_path: Path, memory: Any, path: str, message: str) -> None:
    memory.pipe("/bad.csv", b"value\n1\nx\n")
    memory.pipe("/edges.csv", b"s,d\n0,1\n")
    edges = {"path": "memory://edges.csv", "source": "s", "destination": "d"}
    with pytest.raises(DataError, match=message):
        open_source({"nodes": {"path": path, "features": "value"}, "edges": edges}, tmp_path).num_nodes  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("extension", DIGESTS)
def test_the_same_bytes_from_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str) -> None:
    dataset = saved(tmp_path, extension)
    with s3_store(monkeypatch) as (store, _):
        for table in dataset.values():
            store.put(table["path"], f"bucket/{Path(table['path']).name}")
            table["path"] = f"s3://bucket/{Path(table['path']).stem}*.{extension}"
        assert converted(dataset, tmp_path / "root", processes=2) == DIGESTS[extension]
