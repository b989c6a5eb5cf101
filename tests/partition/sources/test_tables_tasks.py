"""Tables are converted by tasks: to the same bytes, whoever runs them and however they divide the rows."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import open_source
from glt_lightning.partition.sources.tables import files as files_module
from glt_lightning.partition.sources.tables.tasks import TASKS
from tests.helpers import started

TIMEOUT_S = 120
COUNT, EDGE_COUNT = 300_000, 700_000  # several batches of Parquet, and more than a block of text
LITTLE = 1 << 20
# Of the folders that the release wrote which converted tables in one process.
DIGESTS = {"parquet": "f8a26b514639b454", "csv": "55508b3e8cbaa49a"}


def tables() -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    ids = np.char.add("node ", rng.permutation(COUNT).astype(str))
    words = np.array(["red", 'gr"een', "a,b", ""])
    nodes = {
        "id": ids,
        "value": rng.standard_normal(COUNT),
        "kind": words[rng.integers(0, 3, COUNT)],
        "label": words[rng.integers(0, 4, COUNT)],
        "split": np.array(["train", "val", ""])[rng.integers(0, 3, COUNT)],
    }
    source, destination = ids[rng.integers(0, COUNT, (2, EDGE_COUNT))]
    return nodes, {"source": source, "destination": destination, "weight": rng.random(EDGE_COUNT, np.float32)}


def saved(folder: Path, extension: str) -> dict[str, Any]:
    """Writes the tables and returns their mapping. Row groups are no multiples of a batch."""
    paths = []
    for name, columns in zip(("nodes", "edges"), tables(), strict=True):
        paths.append(str(folder / f"{name}.{extension}"))
        table = pa.table(columns)
        if extension == "parquet":
            pq.write_table(table, paths[-1], row_group_size=70_001)
        else:
            pyarrow.csv.write_csv(table, paths[-1])
    nodes = {"path": paths[0], "id": "id", "label": "label", "split": "split", "features": ["value", "kind"]}
    edges = {"path": paths[1], "source": "source", "destination": "destination", "weight": "weight"}
    return {"nodes": nodes | {"encode": "auto"}, "edges": edges}


def digest(folder: Path) -> str:
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def converted(dataset: dict[str, Any], root: Path, **options: Any) -> str:
    folder = open_source(dataset, root, options=PartitionOptions(**options)).folder  # type: ignore[attr-defined]
    assert [path.name for path in (root / "tables").iterdir()] == [folder.name]
    return digest(folder)


@pytest.mark.parametrize("extension", DIGESTS)
def test_the_same_bytes(tmp_path: Path, extension: str) -> None:
    dataset = saved(tmp_path, extension)
    ways: dict[str, dict[str, Any]] = {"one": {"processes": 1}, "two": {"processes": 2, "memory_bytes": 1 << 25}}
    found = {name: converted(dataset, tmp_path / name, **options) for name, options in ways.items()}
    assert found == dict.fromkeys(ways, DIGESTS[extension])


@pytest.mark.parametrize("block", [997, 1 << 14])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_blocks_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, ends: str) -> None:
    """Rows across blocks, empty lines, quotes with ends of lines in them; the last row without an end."""
    rng = np.random.default_rng(block)
    values = ['"a\nb"', '"say ""x"""', "plain", '""', "", '","', '"\r\n"']
    chosen = rng.integers(0, len(values), 3000)
    lines = [f"{row},{values[at]}" + ends * int(1 + (row % 7 == 0)) for row, at in enumerate(chosen.tolist())]
    (tmp_path / "nodes.csv").write_bytes(("id,word" + ends + "".join(lines)).rstrip("\r\n").encode())
    (tmp_path / "edges.csv").write_bytes(b"s,d\n0,2999")
    monkeypatch.setattr(files_module, "_BLOCK", block)
    monkeypatch.setattr(files_module, "_BUFFER", 64)
    path = str(tmp_path / "nodes.csv")
    nodes = {"path": path, "id": "id", "features": "word", "encode": {"word": "code"}, "label": "word"}
    edges = {"path": str(tmp_path / "edges.csv"), "source": "s", "destination": "d"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path)
    assert source.num_nodes == {NODE: 3000}
    texts = [value[1:-1].replace('""', '"') if value[:1] == '"' else value or None for value in values]
    names = sorted({texts[at] for at in chosen.tolist() if texts[at] is not None})
    y = source.node_attrs(NODE)["y"][:].tolist()
    assert y == [-1 if texts[at] is None else names.index(texts[at]) for at in chosen.tolist()]
    assert source.edges(EDGE).num_edges == 1


@pytest.mark.parametrize("block", [100, 1 << 20])
@pytest.mark.parametrize(("first", "last"), [("5", "true"), ("2020-01-30", "2020-01-30T05:00Z")])
def test_a_type_fits_all_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, first: str, last: str
) -> None:
    """Whether values that have no type in common are in one block of the file or in several."""
    monkeypatch.setattr(files_module, "_BLOCK", block)
    (tmp_path / "nodes.csv").write_text("y\n" + f"{first}\n" * 99 + f"{last}\n" * 99)
    (tmp_path / "edges.csv").write_text("s,d\n0,1\n")
    edges = {"path": str(tmp_path / "edges.csv"), "source": "s", "destination": "d"}
    source = open_source({"nodes": {"path": str(tmp_path / "nodes.csv"), "label": "y"}, "edges": edges}, tmp_path)
    assert source.class_names == [first, last]  # type: ignore[attr-defined]


@pytest.mark.parametrize("wild", ['5" pipe', '"a"b', 'x"'])
def test_quotes_that_are_no_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wild: str) -> None:
    monkeypatch.setattr(files_module, "_BLOCK", 1000)
    rows = [f"{row},{wild if row % 50 == 9 else 'x'}\n" for row in range(1000)]
    (tmp_path / "nodes.csv").write_text("id,word\n" + "".join(rows))
    (tmp_path / "edges.csv").write_text("s,d\n0,999\n")
    nodes = {"path": str(tmp_path / "nodes.csv"), "id": "id", "label": "word"}
    edges = {"path": str(tmp_path / "edges.csv"), "source": "s", "destination": "d"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path)
    assert np.bincount(source.node_attrs(NODE)["y"][:]).tolist() in ([20, 980], [980, 20])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("700,x,1", r"Row #702: Expected 2 columns, got 3"),
        ("700,", r"row 700, column 'value': the value is missing"),
        ("700,wide", r"row 700, column 'value': 'wide' is not a valid float"),
        ("3,7", r"row 700, column 'id': id 3 was given before \(.*nodes.csv: row 3\)"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_errors_name_the_row_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, message: str, processes: int
) -> None:
    if processes == 1:
        monkeypatch.setattr(files_module, "_BLOCK", 1000)
    rows = [row if at == 700 else f"{at},{at / 8}" for at in range(1000)]
    (tmp_path / "nodes.csv").write_text("id,value\n" + "\n".join(rows))
    (tmp_path / "edges.csv").write_text("s,d\n0,999\n")
    nodes = {"path": str(tmp_path / "nodes.csv"), "id": "id", "features": "value"}
    edges = {"path": str(tmp_path / "edges.csv"), "source": "s", "destination": "d"}
    with pytest.raises(DataError, match=message):
        converted({"nodes": nodes, "edges": edges}, tmp_path, processes=processes)
    assert [*(tmp_path / "tables").iterdir()] == []


STOPS = """
    import json, os, sys, time
    from pathlib import Path
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import open_source
    from glt_lightning.partition.sources.tables import tasks
    name, dataset = sys.argv[1:]
    def stop(*args, **kwargs):
        Path("flag").touch()
        time.sleep(600)
    tasks.TASKS[name] = stop
    open_source(json.loads(dataset), "root", options=PartitionOptions(processes=1, memory_bytes=1 << 20)).folder
"""


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("scan_text", "count_text", "find_types")])
def test_a_killed_conversion_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    dataset = saved(tmp_path, "parquet")
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    code = textwrap.dedent(STOPS)
    with started([sys.executable, "-c", code, name, json.dumps(dataset)], env=env, cwd=tmp_path) as run:
        deadline = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "flag").exists():
            assert run.popen.poll() is None, run.output
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.popen.kill()
        run.wait(TIMEOUT_S)
    again: list[tuple[str, str]] = []
    for each, task in TASKS.items():
        monkeypatch.setitem(
            TASKS, each, lambda *a, _n=each, _t=task, **k: (again.append((_n, k["table"])), _t(*a, **k))[1]
        )
    assert converted(dataset, tmp_path / "root", processes=1, memory_bytes=LITTLE) == DIGESTS["parquet"]
    assert name in [each for each, _ in again]
    earlier = ["fit_rows", "convert_rows"] if name not in ("fit_rows", "convert_rows") else []
    assert not {(each, "nodes.node") for each in earlier} & {*again}


@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_labels_are_not_held(tmp_path: Path, kind: str) -> None:
    """A column of labels takes the memory of a piece, however long it is."""
    count = 1 << 23
    labels = {
        "numbers": pa.array(np.arange(count) % 7),
        "text": pa.DictionaryArray.from_arrays(np.arange(count, dtype=np.int32) % 7, [f"class {i}" for i in range(7)]),
    }
    pq.write_table(pa.table({"y": labels[kind]}), tmp_path / "nodes.parquet")
    (tmp_path / "edges.csv").write_text("s,d\n0,1\n")
    nodes = {"path": str(tmp_path / "nodes.parquet"), "label": "y"}
    edges = {"path": str(tmp_path / "edges.csv"), "source": "s", "destination": "d"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path, options=PartitionOptions(processes=1))
    tracemalloc.start()
    try:
        assert source.num_classes == 7
        assert tracemalloc.get_traced_memory()[1] < 3 * count  # a label has 8 bytes, and files are hashed by 16 MiB
    finally:
        tracemalloc.stop()
    y = source.node_attrs(NODE)["y"]
    assert y[count - 9 : count].tolist() == [each % 7 for each in range(count - 9, count)]
