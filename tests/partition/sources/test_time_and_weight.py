"""Weights and times of edges, and times of nodes, follow their edges and nodes from every kind of source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import DataError, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.partition_truth import read_folder

NODES, EDGES = 6, 9
Arrays = dict[str, np.ndarray]
Make = Callable[[Path, Arrays], Any]


def arrays(num_edges: int = EDGES) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "edge_index": rng.integers(0, NODES, (2, num_edges)),
        "edge_weight": rng.random(num_edges, np.float32),
        "edge_time": rng.integers(0, 99, num_edges),
        "time": rng.integers(0, 99, NODES),
        "x": np.ones((NODES, 2), np.float32),
    }


def npz(folder: Path, given: Arrays) -> Any:
    np.savez(folder / "g.npz", **given)
    return folder / "g.npz"


def npz_hetero(folder: Path, given: Arrays) -> Any:
    keys = {k: f"n__to__n/{k}" if k.startswith("edge") else f"n/{k}" for k in given}
    np.savez(folder / "g.npz", **{keys[k]: array for k, array in given.items()})
    return folder / "g.npz"


def npy(folder: Path, given: Arrays) -> Any:
    (folder / "g").mkdir()
    for name, array in given.items():
        np.save(folder / "g" / f"{name}.npy", array)
    return folder / "g"


def pyg(folder: Path, given: Arrays) -> Any:
    return Data(**{name: torch.from_numpy(array) for name, array in given.items()})


def pyg_hetero(folder: Path, given: Arrays) -> Any:
    data = HeteroData()
    for name, array in given.items():
        store = data["n", "to", "n"] if name.startswith("edge") else data["n"]
        store[name] = torch.from_numpy(array)
    return data


def tables(folder: Path, given: Arrays) -> Any:
    pq.write_table(pa.table({"t": given["time"]}), folder / "n.parquet")
    edges = {
        "s": given["edge_index"][0],
        "d": given["edge_index"][1],
        "w": given["edge_weight"],
        "t": given["edge_time"],
    }
    pq.write_table(pa.table(edges), folder / "e.parquet")
    ends = {"source": "s", "destination": "d", "weight": "w", "time": "t"}
    nodes = {"path": str(folder / "n.parquet"), "attrs": {"time": "t"}}
    return {"nodes": nodes, "edges": {"path": str(folder / "e.parquet")} | ends}


NAMES = ("edge_weight", "edge_time", "time")
SOURCES: list[Make] = [npz, npz_hetero, npy, pyg, pyg_hetero]


@pytest.mark.parametrize("make", [*SOURCES, tables], ids=lambda make: make.__name__)
@pytest.mark.parametrize("num_edges", [EDGES, NODES])  # as many edges as nodes: the length does not tell
@pytest.mark.parametrize("undirected", [False, True])
def test_attributes_follow(tmp_path: Path, make: Make, num_edges: int, undirected: bool) -> None:
    given = arrays(num_edges)
    source = open_source(make(tmp_path, given), tmp_path / "root")
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2), undirected=undirected)
    stored, manifest = read_folder(tmp_path / "p"), Manifest.load(tmp_path / "p")
    seen = 0
    for part in range(2):
        nodes, edges = f"part{part}/nodes/0", f"part{part}/edges/0"
        assert f"{nodes}/edge_time.npy" not in stored
        np.testing.assert_array_equal(stored[f"{nodes}/time.npy"], given["time"][stored[f"{nodes}/n_id.npy"]])
        columns = stored[f"{edges}/edge_ids.npy"] % num_edges
        for name in ("edge_weight", "edge_time"):
            np.testing.assert_array_equal(stored[f"{edges}/{name}.npy"], given[name][columns])
        seen += len(columns)
    assert seen == sum(manifest.num_edges) > 0


# In a Data, a `time` with one row per edge is one of edges.
MISTAKES = [(make, name) for make in SOURCES for name in NAMES if (make, name) != (pyg, "time")]


@pytest.mark.parametrize(("make", "name"), MISTAKES, ids=lambda each: getattr(each, "__name__", each))
def test_other_lengths_are_mistakes(tmp_path: Path, make: Make, name: str) -> None:
    given = arrays()
    given[name] = given[name][:-1]
    with pytest.raises(
        DataError, match=rf"{name} of (node|edge) type .*: expected one row per .*, got {len(given[name])} row"
    ):
        partition_graph(open_source(make(tmp_path, given), tmp_path), tmp_path / "p", PartitionOptions())
