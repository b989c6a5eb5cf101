"""A manifest is read back as it was written; anything else is refused in a line that names the file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import GraphSchema, PartitionError
from glt_lightning.graph import (
    ArrayEntry,
    EdgeSplitEntry,
    EncodingEntry,
    Manifest,
    SplitEntry,
    difference,
    edge_path,
    edge_split_key,
    edge_split_path,
    node_path,
    options_hash,
    partition_id,
    split_path,
)
from glt_lightning.kernels import ENCODINGS

LIKES, NEAR = ("a", "likes", "b"), ("b", "near", "b")


def entry(dtype: str, *shape: int) -> ArrayEntry:
    return ArrayEntry(dtype, shape, 4096 + np.dtype(dtype).itemsize * int(np.prod(shape)), 0)


def example() -> Manifest:
    """Two parts, two node types, two edge types."""
    bounds = ((0, 1, 3), (0, 4, 4))
    edges = ((2, 5), (0, 7))
    arrays = {split_path("train"): entry("<i8", 2)}
    for p in range(2):
        for t in range(2):
            rows = bounds[t][p + 1] - bounds[t][p]
            arrays[node_path(p, t, "n_id")] = entry("<i4", rows)
        arrays[node_path(p, 1, "x")] = entry("<f4", bounds[1][p + 1] - bounds[1][p], 3)
        arrays[node_path(p, 1, "y")] = entry("<i8", bounds[1][p + 1] - bounds[1][p])
        for r in range(2):
            arrays[edge_path(p, r, "indptr")] = entry("<i8", bounds[1][p + 1] - bounds[1][p] + 1)
            arrays[edge_path(p, r, "indices")] = entry("<i4", edges[r][p])
            arrays[edge_path(p, r, "edge_ids")] = entry("<i8", edges[r][p])
        arrays[edge_path(p, 0, "weight")] = entry("<f4", edges[0][p])
    return Manifest(
        schema=GraphSchema(("b", "a"), (NEAR, LIKES)),
        num_parts=2,
        num_nodes=(3, 4),
        num_edges=(7, 7),
        bounds=bounds,
        id_dtype="int32",
        edge_id_dtype="int64",
        num_classes=5,
        target_type="b",
        splits={"train": SplitEntry("b", 2)},
        arrays=arrays,
        made_by={"source": "test", "num_parts": 2, "package_version": "0"},
    )


def test_round_trip(tmp_path: Path) -> None:
    example().save(tmp_path)
    assert Manifest.load(tmp_path) == example()
    assert Manifest.load(str(tmp_path)) == example()
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_questions() -> None:
    manifest = example()
    assert manifest.offsets == (0, 3, 7)
    assert manifest.total_nodes == 7
    assert [manifest.rows(p, 0) for p in range(2)] == [1, 2]
    assert [manifest.edges(p, 1) for p in range(2)] == [0, 7]
    assert (manifest.node_attrs(0), manifest.node_attrs(1)) == ((), ("x", "y"))
    assert (manifest.edge_attrs(0), manifest.edge_attrs(1)) == (("weight",), ())
    assert (manifest.num_features("a"), manifest.num_features("b")) == (None, 3)


def test_deleted_nodes(tmp_path: Path) -> None:
    gids = {f"nodes/{t}/gid.npy": entry("<i4", rows) for t, rows in enumerate((3, 4))}
    for deleted, good in ((entry("<i8", 2), True), (entry("<i4", 2), False), (entry("<i8", 5), False)):
        arrays = example().arrays | gids | {"nodes/1/deleted.npy": deleted}
        replace(example(), arrays=arrays).save(tmp_path)
        if good:
            assert Manifest.load(tmp_path).arrays == arrays
        else:
            with pytest.raises(PartitionError, match=r"nodes/1/deleted.npy is <i. \[.\], expected <i8 \[.\]"):
                Manifest.load(tmp_path)


def test_encodings(tmp_path: Path) -> None:
    """Stored as int8, x has four bytes more than features."""
    arrays = {
        path: entry("|u1", e.shape[0], 7) if path.endswith("x.npy") else e for path, e in example().arrays.items()
    }
    encodings = {"nodes/1/x": EncodingEntry("int8", "float32")}
    manifest = replace(example(), arrays=arrays, encodings=encodings)
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    assert manifest.num_features("b") == 3
    assert manifest.decoded_by("nodes", 1, "x") is ENCODINGS["int8"]
    assert manifest.decoded_by("edges", 0, "weight") is None


def test_num_categories(tmp_path: Path) -> None:
    codes = {f"part{p}/nodes/1/x_codes.npy": entry("<i4", rows, 2) for p, rows in enumerate((4, 0))}
    manifest = replace(example(), arrays=example().arrays | codes, num_categories={"b": (5, 7)})
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    for wrong, said in (
        ([], "num_categories: expected an object"),
        ({"c": [5, 7]}, "'c' is not in node_types"),
        ({"b": [5, 0]}, "expected counts >= 1"),
        ({"b": [5]}, r"x_codes is not an array of integers \[rows, 1\]"),
        ({"a": [5]}, "of 'a': x_codes is not"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest.to_json() | {"num_categories": wrong}))
        with pytest.raises(PartitionError, match=said):
            Manifest.load(tmp_path)


def test_edge_splits(tmp_path: Path) -> None:
    arrays = {
        edge_split_path(0, "val", "edge"): entry("<i8", 2, 5),
        edge_split_path(0, "val", "label"): entry("<f4", 5, 3),
    }
    manifest = replace(
        example(), arrays=example().arrays | arrays, edge_splits={edge_split_key(0, "val"): EdgeSplitEntry(5, "hash")}
    )
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    for wrong, said in (
        ([], "edge_splits: expected an object"),
        ({}, "edge_splits: the names do not match the folders"),
        ({"0/val": {"count": "5", "digest": "hash"}}, "the entry of '0/val' is damaged"),
        ({"0/val": {"count": 4, "digest": "hash"}}, r"0/val/edge.npy is <i8 \[2, 5\] for 4 edges"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest.to_json() | {"edge_splits": wrong}))
        with pytest.raises(PartitionError, match=said):
            Manifest.load(tmp_path)
    for path, put_there, said in (
        ("edge_splits/0/val/time.npy", entry("<f8", 5), r"time.npy is <f8 \[5\] for 5 edges"),
        ("edge_splits/0/val/other.npy", entry("<i8", 5), r"edge_splits/0/val has \['edge', 'label', 'other'\]"),
        ("edge_splits/0/other/edge.npy", entry("<i8", 2, 5), "is not a path of this format"),
    ):
        replace(manifest, arrays={**manifest.arrays, path: put_there}).save(tmp_path)
        with pytest.raises(PartitionError, match=said):
            Manifest.load(tmp_path)


def test_class_names(tmp_path: Path) -> None:
    assert "class_names" not in example().to_json()
    manifest = replace(example(), num_classes=2, class_names=("no", "yes"))
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    for wrong, said in (("no", "class_names: expected a list of names"), (["no"], "1 names for 2 classes")):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest.to_json() | {"class_names": wrong}))
        with pytest.raises(PartitionError, match=said):
            Manifest.load(tmp_path)


ENCODED = {"stored": "bfloat16", "given": "bfloat16"}


@pytest.mark.parametrize(
    ("encodings", "said"),
    [
        ([], "encodings: expected an object"),
        ({"nodes/1/z": ENCODED}, "encodings: 'nodes/1/z' is not an attribute"),
        ({"nodes/1/n_id": ENCODED}, "'nodes/1/n_id' is not an attribute"),
        ({"part0/nodes/1/x": ENCODED}, "'part0/nodes/1/x' is not an attribute"),
        ({"nodes/1/x": None}, "the entry of nodes/1/x is unknown to this release: None"),
        ({"nodes/1/x": {"stored": "int4", "given": "float32"}}, "is unknown to this release"),
        ({"nodes/1/x": {"stored": ["int8"], "given": "float32"}}, "is unknown to this release"),
        ({"nodes/1/x": {"stored": "int8", "given": "bfloat16"}}, "is unknown to this release"),
        ({"nodes/1/x": {"stored": "float16", "given": "float64"}}, "is unknown to this release"),
        ({"nodes/1/x": ENCODED}, r"nodes/1/x is <f4 \[4, 3\], which cannot store bfloat16"),
        ({"nodes/1/x": {"stored": "int8", "given": "float32"}}, "cannot store int8"),
    ],
)
def test_damaged_encodings(tmp_path: Path, encodings: Any, said: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(example().to_json() | {"encodings": encodings}))
    with pytest.raises(PartitionError, match=said):
        Manifest.load(tmp_path)


def test_hash_is_of_the_content() -> None:
    made = example().made_by
    assert options_hash(made) == options_hash({**made, "package_version": "9"})
    assert options_hash(made) != options_hash({**made, "num_parts": 3})
    assert options_hash(made) == options_hash(dict(reversed(made.items())))


def drop(key: str) -> Callable[[dict], object]:
    return lambda raw: raw.pop(key)


def put(value: object, *keys: Any) -> Callable[[dict], object]:
    def change(raw: dict) -> None:
        for key in keys[:-1]:
            raw = raw[key]
        raw[keys[-1]] = value

    return change


X0, IDS1 = "part0/nodes/1/x.npy", "part1/nodes/0/n_id.npy"
DAMAGE: list[tuple[Callable[[dict], object], str]] = [
    *[(drop(key), f"key '{key}' is missing") for key in example().to_json() if key not in ("format", "version")],
    (drop("format"), "is not a partition manifest"),
    (put("other", "format"), "is not a partition manifest .format 'other'"),
    (put(1, "version"), "has version 1, this release reads versions 2 and 3"),
    (put("2", "num_parts"), "num_parts: expected an integer >= 1, found '2'"),
    (put(True, "num_parts"), "num_parts: expected"),
    (put(0, "num_parts"), "num_parts: expected"),
    (put("out", "edge_direction"), "edge_direction: expected 'in', found 'out'"),
    (put("int16", "id_dtype"), "id_dtype: expected 'int32' or 'int64'"),
    (put("int64", "id_dtype"), "n_id.npy is <i4 .1., expected <i8"),
    (put("int32", "edge_id_dtype"), "edge_ids.npy is <i8"),
    (put(["b", "a"], "node_types"), "node_types: names are not sorted"),
    (put([], "node_types"), "node_types: expected a list of names"),
    (put(["a", "c"], "node_types"), "names a node type that is not in node_types"),
    (put([list(NEAR), list(LIKES)], "edge_types"), "edge_types: not sorted"),
    (put([["a", "b"]], "edge_types"), "edge_types: expected a list of"),
    (put(True, "homogeneous"), "homogeneous: true, but there is more than one"),
    (put("paper", "target_type"), "target_type: 'paper' is not in node_types"),
    (put([3], "num_nodes"), "num_nodes: 1 entries for 2 node_types"),
    (put([3, 5], "num_nodes"), "bounds: those of node type 'b' do not divide 5 nodes into 2 parts"),
    (put([[0, 1, 3], [0, 5, 4]], "bounds"), "bounds: those of node type 'b'"),
    (put([[0, 3], [0, 4]], "bounds"), "bounds: those of node type 'a'"),
    (put([[0, 2, 3], [0, 4, 4]], "bounds"), "part0/nodes/0/n_id.npy has 1 rows, expected 2"),
    (put([7, 8], "num_edges"), "num_edges: 8 edges of type .*, but the parts have 7"),
    (put(-1, "num_classes"), "num_classes: expected a count up to 2147483647 or null"),
    (lambda raw: raw["arrays"].pop(X0), "part 1 has x of the nodes of type 'b', which part 0 lacks"),
    (lambda raw: raw["arrays"].pop(IDS1), "part 1 lacks n_id of the nodes of type 'a'"),
    (lambda raw: raw["arrays"].pop("part1/edges/0/indices.npy"), "part 1 lacks indices of the edges of type"),
    (put([4, 4], "arrays", "part0/nodes/1/x.npy", "shape"), "needs more|differs in dtype or width"),
    (put("<f8", "arrays", X0, "dtype"), "needs more|differs in dtype or width"),
    (put("|O", "arrays", X0, "dtype"), "the entry of part0/nodes/1/x.npy is damaged"),
    (put(">f4", "arrays", X0, "dtype"), "the entry of part0/nodes/1/x.npy is damaged"),
    (put("nonsense", "arrays", X0, "dtype"), "is damaged"),
    (put([4, -3], "arrays", X0, "shape"), "is damaged"),
    (put([4.0, 3], "arrays", X0, "shape"), "is damaged"),
    (put([1 << 62, 1 << 62], "arrays", X0, "shape"), "its shape .* needs more"),
    (put(10, "arrays", X0, "bytes"), "has 10 bytes, its shape .* needs more"),
    (put(None, "arrays", X0), "is damaged"),
    (put({}, "arrays", "../../etc/passwd"), "is not a path of this format"),
    (put({}, "arrays", "/etc/passwd"), "is not a path of this format"),
    (put({}, "arrays", "part0/nodes/1/../x.npy"), "is not a path of this format"),
    (put({"val": {"node_type": "b", "count": 2}}, "splits"), "splits: the names do not match the arrays"),
    (put({"node_type": "c", "count": 2}, "splits", "train"), "splits: the entry of 'train' is damaged"),
    (put(3, "splits", "train", "count"), "splits/train.npy is <i8 .2., expected <i8 .3."),
    (put(entry("<i8", 3).to_json(), "arrays", "tables/ids1_ends.npy"), "of the ids of node type 1 only .'ends'."),
    (put(entry("<i8", 6).to_json(), "arrays", "tables/ids1_numbers.npy"), "ids1_numbers.npy has more ids than nodes"),
    (put(entry("<i4", 3).to_json(), "arrays", "tables/ids1_numbers.npy"), "ids1_numbers.npy is <i4 .3., expected <i8"),
    (put(entry("<i8", 3).to_json(), "arrays", "tables/ids2_numbers.npy"), r"tables/ has \['ids2_numbers'\]"),
    (put("0", "options_hash"), "options_hash does not match"),
    (put(3, "made_by", "num_parts"), "options_hash does not match"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE, ids=[said[:40] for _, said in DAMAGE])
def test_damage_is_named(tmp_path: Path, damage: Callable[[dict], object], said: str) -> None:
    raw = copy.deepcopy(example().to_json())
    damage(raw)
    (tmp_path / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(PartitionError, match=said) as caught:
        Manifest.load(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b'{"format": "glt_li', "cannot be read as JSON"),
        (b"[1, 2]", "expected a JSON object, found list"),
        (b"\x93NUMPY\xff\xfe", "cannot be read as JSON"),
        (b"{}", "is not a partition manifest"),
    ],
)
def test_no_json_object(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(PartitionError, match=said):
        Manifest.load(tmp_path)


def test_no_folder_or_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="there is no such folder"):
        Manifest.load(tmp_path / "absent")
    with pytest.raises(PartitionError, match="the folder is not a partition"):
        Manifest.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(PartitionError):
        Manifest.load(tmp_path / "file")


def test_saving_replaces_in_one_step(tmp_path: Path) -> None:
    example().save(tmp_path)
    replace(example(), num_classes=6).save(tmp_path)
    assert Manifest.load(tmp_path).num_classes == 6
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_hosts_compare_files_but_not_their_hashes_of_chunks() -> None:
    manifest = example()
    hashed = replace(manifest, arrays={path: replace(e, chunks=("0" * 32,)) for path, e in manifest.arrays.items()})
    assert partition_id(hashed) == partition_id(manifest)
    path, entry = next(iter(manifest.arrays.items()))
    other = replace(manifest, arrays={**manifest.arrays, path: replace(entry, crc32=entry.crc32 ^ 1)})
    assert other.options_hash == manifest.options_hash
    assert "their files differ" in difference(partition_id(other), partition_id(manifest))
    assert "options_hash in manifest.json is 'x' there" in difference("x y", partition_id(manifest))
