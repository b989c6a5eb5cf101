"""Data that contradicts itself is refused before anything is written, in a line that says what and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, PartitionError, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import ArraySource, partition_graph
from glt_lightning.partition.sources.base import EdgeList
from tests.helpers.partition_truth import single

NAN_Y = np.array([0.0, 1.0, np.nan, np.nan])
X = np.ones((4, 2), np.float32)


def refused(folder: Path, said: str, source: Any, **options: Any) -> None:
    with pytest.raises(DataError, match=said) as caught:
        partition_graph(source, folder / "out" / "p", PartitionOptions(num_parts=2), **options)
    assert str(caught.value).count("\n") <= 1
    assert not (folder / "out").exists() or list((folder / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (
            [(0, 1), (1, 4)],
            "edges of type node__to__node: column 1 has destination 4, but node type 'node' has 4 nodes",
        ),
        ([(0, 1), (0, 1), (-1, 0)], "column 2 has source -1"),
        ([(9, 9)], "column 0 has source 9"),
        ([(0, 1), (1 << 40, 1)], "column 1 has source 1099511627776"),
    ],
)
@pytest.mark.parametrize("undirected", [False, True])
def test_edge_ids_out_of_range(tmp_path: Path, edges: list[tuple[int, int]], said: str, undirected: bool) -> None:
    refused(tmp_path, re.escape(said), single(edges, 4), undirected=undirected)


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"x": X[:3]}, "x of node type 'node': expected one row per node, which makes 4, got 3 rows"),
        (
            {"x": X, "y": np.zeros(5, int)},
            "y of node type 'node': expected one row per node, which makes 4, the number of rows of x (y has 5), got 5 rows",
        ),
        ({"x": X, "y": NAN_Y}, "y of node type 'node': the label of node 2 is NaN"),
        ({"y": np.stack([NAN_Y, NAN_Y], 1)}, "the label of node 2 is NaN"),
        ({"x": np.array(["a", "b", "c", "d"])}, "attributes are numbers or booleans"),
        ({"n_id": X}, "n_id of node type 'node': this attribute name is reserved or not usable"),
        ({"../x": X}, "this attribute name is reserved or not usable"),
    ],
)
def test_node_attributes(tmp_path: Path, attrs: dict[str, np.ndarray], said: str) -> None:
    refused(tmp_path, re.escape(said), single([(0, 1)], 4, **attrs))


def test_edge_attributes(tmp_path: Path) -> None:
    source = single([(0, 1), (1, 2)], 4)
    source.edge = {EDGE: {"edge_attr": np.ones((3, 1))}}
    refused(
        tmp_path, "edge_attr of edge type node__to__node: expected one row per edge, which makes 2, got 3 rows", source
    )


@pytest.mark.parametrize("x", [np.ones((4, 2), np.int64), np.ones(4, np.float32)])
def test_normalizing_what_is_no_matrix_of_floats(tmp_path: Path, x: np.ndarray) -> None:
    refused(tmp_path, "normalize: rows needs x as floats", single([(0, 1)], 4, x=x), normalize="rows")


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"train": np.array([0, 4])}, "splits: train: position 1 has node 4, but node type 'node' has 4 nodes"),
        ({"val": np.array([-1])}, "splits: val: position 0 has node -1"),
        ({"test": ("paper", np.array([0]))}, "splits: test: unknown node type 'paper'. The graph has node"),
        ({"train": np.array([0.5])}, r"splits: train: expected node ids \[S\] or a mask \[4\], got float64 \[1\]"),
        ({"train": np.array([True, False])}, r"expected node ids \[S\] or a mask \[4\], got bool \[2\]"),
        ({"a/b": np.array([0])}, "splits: 'a/b' is not usable as the name of a split"),
    ],
)
def test_splits(tmp_path: Path, splits: dict[str, Any], said: str) -> None:
    refused(tmp_path, said, single([(0, 1)], 4), splits=splits)


def test_split_of_an_unclear_type(tmp_path: Path) -> None:
    source = single([(0, 1)], 4)
    source.schema = type(source.schema)(("a", "b"), (("a", "to", "b"),))
    source.num_nodes, source.target_type, source.node = {"a": 4, "b": 4}, None, {}
    source.edge_index = {("a", "to", "b"): source.edge_index[EDGE]}
    refused(tmp_path, "the node type is ambiguous", source, splits={"train": np.array([0])})


class Changing(ArraySource):
    """Its edges are others each time they are read."""

    readings = 0

    def edges(self, edge_type: EdgeType) -> EdgeList:
        return self

    num_edges = 3

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.readings += 1
        yield np.array([0, 0, 0][self.readings - 1 :]), np.array([1, 2, 3][self.readings - 1 :])


def test_data_that_changes_meanwhile(tmp_path: Path) -> None:
    plain = single([(0, 1)], 4)
    refused(tmp_path, "changed between two readings", Changing(**vars(plain)))


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PartitionError, match="this folder is not writable"):
        partition_graph(single([(0, 1)], 4), tmp_path / "file" / "p", PartitionOptions())


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    partition_graph(single([(0, 1)], 4), tmp_path, PartitionOptions())
    assert Manifest.load(tmp_path).num_nodes == (4,)


def test_good_splits(tmp_path: Path) -> None:
    """Duplicates, masks and empty splits are fine; order is kept."""
    source = single([(0, 1)], 4)
    splits = {"train": np.array([3, 0, 3]), "val": np.array([True, False, False, True]), "test": []}
    options = PartitionOptions(num_parts=2, allow=["overlapping_splits"])
    manifest = partition_graph(source, tmp_path / "p", options, splits=splits)
    assert {name: split.count for name, split in manifest.splits.items()} == {"train": 3, "val": 2, "test": 0}
    user = np.concatenate([np.load(tmp_path / "p" / f"part{p}/nodes/0/n_id.npy") for p in range(2)])
    assert user[np.load(tmp_path / "p/splits/train.npy")].tolist() == [3, 0, 3]
    assert user[np.load(tmp_path / "p/splits/val.npy")].tolist() == [0, 3]
    assert manifest.splits["train"].node_type == NODE
