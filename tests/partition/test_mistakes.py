"""Mistakes in data that training would take without a word: each is said before the graph is partitioned, or allowed."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, NODE, DataError, OptionError, PartitionOptions
from glt_lightning.kernels import BFLOAT16, to_bfloat16
from glt_lightning.partition import assign_graph, open_source, partition_graph
from glt_lightning.partition.assign.assigners import RandomAssigner
from tests.helpers.partition_truth import single

NODES = 40
RING = np.stack([np.arange(NODES), (np.arange(NODES) + 1) % NODES])


def with_bad(value: float, dtype: Any = np.float32) -> np.ndarray:
    x = np.ones((NODES, 3), np.float32)
    x[17, 2] = value
    return to_bfloat16(x).view(BFLOAT16) if dtype is BFLOAT16 else x.astype(dtype)


def save(path: Path, **arrays: Any) -> str:
    np.savez(path / "g.npz", **({"edge_index": RING, "x": np.ones((NODES, 3), np.float32)} | arrays))
    return str(path / "g.npz")


def partition(dataset: Any, folder: Path, **options: Any) -> Any:
    normalize = options.pop("normalize", "none")
    source = open_source(dataset, folder) if isinstance(dataset, str) else dataset
    return partition_graph(source, folder / "out" / "p", PartitionOptions(**options), normalize=normalize)


class NeverAsked(RandomAssigner):
    def assign(self, graph: Any) -> Any:
        pytest.fail("nodes are assigned, which may take hours, before values are checked")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BFLOAT16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_feature_that_is_not_finite(tmp_path: Path, dtype: Any, value: float) -> None:
    source = single(RING.T, NODES, x=with_bad(value, dtype))
    said = f"x of node type 'node': row 17, column 2 is {value}, and training on it would give NaN. Replace"
    with pytest.raises(DataError, match=re.escape(said)):
        partition(source, tmp_path, num_parts=3)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(DataError, match=re.escape(said)):  # it is not asked before
        partition_graph(source, tmp_path / "out" / "p", PartitionOptions(num_parts=3), assigner=NeverAsked())
    with pytest.raises(DataError, match=re.escape(said)):
        assign_graph(source, tmp_path / "out" / "a.npz", PartitionOptions(num_parts=3), assigner=NeverAsked())
    partition(source, tmp_path, num_parts=3, allow=["nonfinite_features"])


@pytest.mark.parametrize("mode", ["rows", "standardize"])
def test_one_nan_would_spoil_all_that_is_normalised(tmp_path: Path, mode: str) -> None:
    with pytest.raises(DataError, match="x of node type 'node': row 17, column 2 is nan"):
        partition(single(RING.T, NODES, x=with_bad(np.nan)), tmp_path, normalize=mode, allow=["nonfinite_features"])


def test_edge_attribute_that_is_not_finite(tmp_path: Path) -> None:
    weight = np.ones(NODES, np.float32)
    weight[5] = np.inf
    with pytest.raises(DataError, match="edge_weight of edge type node__to__node: row 5 is inf"):
        partition(save(tmp_path, edge_weight=weight), tmp_path)


@pytest.mark.parametrize(
    ("y", "kind"), [(np.where(np.arange(NODES) == 9, np.nan, 1.0), "NaN"), (np.full(NODES, np.inf), "infinite")]
)
def test_label_that_is_not_finite(tmp_path: Path, y: np.ndarray, kind: str) -> None:
    dataset = save(tmp_path, y=y)
    with pytest.raises(
        DataError, match=rf"g.npz: y of node type 'node': the label of node \d is {kind}.*nonfinite_labels"
    ):
        partition(dataset, tmp_path)
    partition(dataset, tmp_path, allow=["nonfinite_labels"])


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (
            np.where(np.arange(NODES) == 9, 1_000_000, 1),
            "the largest label is 1,000,000 (node 9), which makes 1,000,001",
        ),
        (np.where(np.arange(NODES) == 9, 2**31 - 2, -1), "the largest label is 2,147,483,646 (node 9)"),
        (
            1990 + np.arange(NODES) % 20,
            "the largest label is 2,009 (node 19), which makes 2,010 classes, of which at most",
        ),
        (
            np.array(["a", "b"] * (NODES // 2)),
            "the labels are text (<U1), but classes are integers from 0. Convert them:",
        ),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, y: np.ndarray, said: str) -> None:
    dataset = save(tmp_path, y=y)
    with pytest.raises(DataError, match=re.escape(f"g.npz: y of node type 'node': {said}")):
        partition(dataset, tmp_path)
    if y.dtype.kind == "i":
        partition(dataset, tmp_path, allow=["sparse_labels"])


def test_many_classes_that_occur_are_fine(tmp_path: Path) -> None:
    many = np.arange(3000)
    edges = np.stack([many, many[::-1]])
    assert partition(save(tmp_path, edge_index=edges, x=np.ones((3000, 1)), y=many), tmp_path).num_classes == 3000


def test_training_nodes_without_a_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    y = np.where(np.arange(NODES) < 3, -1, 1)
    dataset = save(tmp_path, y=y, train_idx=np.arange(2, 10), test_idx=np.arange(2))
    said = "splits: train: no label for 1 of 8 nodes (y of node 2 is -1). Remove them from the split"
    with pytest.raises(DataError, match=re.escape(said)):
        partition(dataset, tmp_path)
    with caplog.at_level(logging.WARNING):
        partition(dataset, tmp_path, allow=["unlabelled_seeds"])
    assert "splits: test: no label for 2 of 2 nodes" in caplog.text


def test_rows_of_tables_are_named_by_their_ids(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,y,fold\np7,1,train\np8,,train\np9,0,val\n")
    (tmp_path / "e.csv").write_text("s,d\np7,p8\n")
    nodes = {"path": str(tmp_path / "n.csv"), "id": "id", "label": "y", "split": "fold"}
    edges = {"path": str(tmp_path / "e.csv"), "source": "s", "destination": "d"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path)
    with pytest.raises(DataError, match=re.escape("train: no label for 1 of 2 nodes (for example node 'p8'). Remove")):
        partition(source, tmp_path)
    with pytest.raises(DataError, match=re.escape("train and test share 1 node (for example node 'p7').")):
        partition_graph(source, tmp_path / "out", PartitionOptions(), splits={"train": [0], "test": [0, 2]})


def test_mask_of_integers_is_not_taken_for_ids(tmp_path: Path) -> None:
    dataset = save(tmp_path, train_idx=(np.arange(NODES) < 9).astype(np.int64))
    with pytest.raises(DataError, match=r"g.npz: splits: train: 0 or 1 for each node is a mask.*mask.astype\(bool\)"):
        partition(dataset, tmp_path)


@pytest.mark.parametrize("other", ["val", "test"])
def test_training_nodes_that_evaluation_sees_again(tmp_path: Path, other: str) -> None:
    dataset = save(tmp_path, train_idx=np.arange(9), **{f"{other}_idx": np.array([20, 7, 8])})
    said = f"splits: train and {other} share 2 nodes (for example node 7). The model would be evaluated on nodes it was"
    with pytest.raises(DataError, match=re.escape(said)):
        partition(dataset, tmp_path)
    partition(dataset, tmp_path, allow=["overlapping_splits"])


def test_nodes_of_val_and_test_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        partition(
            save(tmp_path, train_idx=np.arange(9), val_idx=np.arange(9, 12), test_idx=np.arange(11, 20)), tmp_path
        )
    assert "splits: val and test share 1 node (for example node 11)." in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "column 31 has source 31, but node type 'node' has 31 nodes (0..30), the number of rows of x."),
        (
            {"y": np.zeros(NODES, int)},
            "y of node type 'node': expected one row per node, which makes 31, the number of rows of x (y has 40), got 40",
        ),
        (
            {"test_idx": np.array([31])},
            "splits: test: position 0 has node 31, but node type 'node' has 31 nodes (0..30), the number of rows of x.",
        ),
        (
            {"test_idx": np.array([31]), "y": np.zeros(NODES, int)},
            "g.npz: x of node type 'node' has 31 rows and y has 40, so that x has none for node 31. Give x a row for every",
        ),
    ],
)
def test_x_that_is_too_short_is_named(tmp_path: Path, change: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        partition(save(tmp_path, x=np.ones((31, 2)), **change), tmp_path)


def test_parts_without_nodes_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        partition(save(tmp_path), tmp_path, num_parts=42)
    assert "42 parts for a graph of 40 nodes, so at least 2 parts will be empty." in caplog.text


def test_allowing_what_does_not_exist() -> None:
    with pytest.raises(
        OptionError, match=r"partition.allow: expected nonfinite_features, .* got 'overlaping_splits'. Did"
    ):
        PartitionOptions(allow=["overlaping_splits"])
    with pytest.raises(OptionError, match=r"partition.allow: expected .* got 'nan'"):
        PartitionOptions(allow="nan")  # type: ignore[arg-type]


def masks(width: int | None = None, dtype: Any = bool) -> dict[str, np.ndarray]:
    each = {"train_mask": np.arange(NODES) < 9, "val_mask": np.arange(NODES) == 9, "test_mask": np.arange(NODES) > 30}
    return {k: (m if width is None else np.stack([m, ~m], 1)).astype(dtype) for k, m in each.items()}


@pytest.mark.parametrize("given", [masks(), masks(2), masks(dtype=np.uint8), masks() | {"train_idx": np.arange(9)}])
@pytest.mark.parametrize("as_folder", [False, True])
def test_masks_are_splits(tmp_path: Path, given: dict[str, np.ndarray], as_folder: bool) -> None:
    dataset = save(tmp_path, **given)
    plain = open_source(save(tmp_path), tmp_path).fingerprint
    if as_folder:
        (tmp_path / "g").mkdir()
        for name, array in {"edge_index": RING, "x": np.ones((NODES, 3))}.items():
            np.save(tmp_path / "g" / f"{name}.npy", array)
        plain = open_source(tmp_path / "g", tmp_path).fingerprint
        for name, array in given.items():
            np.save(tmp_path / "g" / f"{name}.npy", array)
        dataset = str(tmp_path / "g")
    else:
        save(tmp_path, **given)
    source = open_source(dataset, tmp_path)
    assert source.fingerprint != plain
    assert source.fingerprint.count("-") == 1  # a partition of before, with masks as attributes, is not taken for it
    assert {name: ids.tolist() for name, (_, ids) in source.splits.items()} == {
        "train": list(range(9)),
        "val": [9],
        "test": list(range(31, NODES)),
    }
    assert set(source.node_attrs(NODE)) == {"x"}
    assert source.edge_attrs(EDGE) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"train_mask": np.arange(9)},
            r"g.npz: train_mask: expected a mask \[40\] of booleans .* got int64 \[9\]. Ids",
        ),
        ({"train_mask": np.arange(NODES)}, r"expected a mask \[40\] of booleans or of 0 and 1, got int64 \[40\]"),
        (masks() | {"train_idx": np.arange(8)}, "g.npz: train_idx and train_mask are two different definitions"),
        ({"val_idx": np.arange(3), "valid_idx": np.arange(4)}, "valid_idx and val_idx are two different definitions"),
    ],
)
def test_bad_masks(tmp_path: Path, given: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(DataError, match=said):
        _ = open_source(save(tmp_path, **given), tmp_path).splits


HALF = np.arange(NODES) < NODES // 2


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trian_mask": HALF}, ["trian_mask, bool [40]: taken for an attribute. Did you mean train_mask?"]),
        (
            {"trian_idx": np.arange(9), "test_idx": np.arange(9, 12)},
            [
                "trian_idx, int64 [9]: ignored, as an attribute has 40 rows, or a name edge_... and 40 rows. "
                "Did you mean train_idx?"
            ],
        ),
        (
            {"edge_weigth": np.ones(NODES)},
            ["edge_weigth, float64 [40]: taken for an attribute. Did you mean edge_weight?"],
        ),
        (
            {"edge_kind": np.ones(39), "year": np.ones(41)},
            ["edge_kind, float64 [39]: ignored, as", "year, float64 [41]: ignored, as"],
        ),
        (
            {"x": None, "featuers": np.ones((NODES, 3)), "y": np.arange(NODES) % 2},
            [
                "featuers, float64 [40, 3]: taken for an attribute, and there is no x. If these are the features, call them x."
            ],
        ),
        # known names in another form, and what is no mistake
        ({"edge_type": np.ones(NODES, int), "year": np.ones(NODES), "valid_mask": HALF, "time": np.ones(NODES)}, []),
        ({"pos": np.ones((NODES, 2))}, []),
    ],
)
def test_arrays_without_use_are_said(tmp_path: Path, given: dict[str, Any], said: list[str], as_folder: bool) -> None:
    arrays = {"edge_index": RING, "x": np.ones((NODES, 3), np.float32), **given}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "g.npz", **arrays)
    source = open_source(str(tmp_path if as_folder else tmp_path / "g.npz"), tmp_path)
    found = source.strays  # type: ignore[attr-defined]
    begin = f"{tmp_path}/" if as_folder else f"{tmp_path / 'g.npz'}: "
    assert len(found) == len(said)
    assert all(each.startswith(begin + expected) for each, expected in zip(found, said, strict=True))


def test_arrays_without_use_of_several_types_are_said(tmp_path: Path) -> None:
    of_types = {
        "a/x": np.ones((5, 2)),
        "a/trian_idx": np.arange(3),
        "b/num_nodes": np.int64(4),
        "b/featuers": np.ones((4, 2)),
    }
    of_types |= {
        "a__to__b/edge_index": np.zeros((2, 7), int),
        "a__to__b/weight": np.ones(7),
        "a__to__b/wieght": np.ones(6),
    }
    np.savez(tmp_path / "g.npz", **of_types, x=np.ones(5), class_names=np.array(["k"]), names=np.array(["n"] * 3))
    source = open_source(str(tmp_path / "g.npz"), tmp_path)
    named = "in a file of several types, arrays are called TYPE/NAME or SRC__REL__DST/NAME."
    assert [each.removeprefix(f"{tmp_path / 'g.npz'}: ") for each in source.strays] == [  # type: ignore[attr-defined]
        f"x, float64 [5]: ignored, as {named}",
        "a/trian_idx, int64 [3]: ignored, as an attribute has 5 rows. Did you mean train_idx?",
        "b/featuers, float64 [4, 2]: taken for an attribute, and there is no x. If these are the features, call them x.",
        "a__to__b/wieght, float64 [6]: ignored, as an attribute has 7 rows.",
    ]


def test_misspelt_edges_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_indx=RING, x=np.ones(NODES))
    with pytest.raises(
        DataError, match=r"found \['edge_indx', 'x'\]\. Is 'edge_indx' meant as edge_index\? Then rename it"
    ):
        open_source(str(tmp_path / "g.npz"), tmp_path)
