"""Prefix sums of weights: those of the rule, for every partitioning; and weights that cannot be sampled by are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, OptionError, PartitionError, PartitionOptions, Progress
from glt_lightning.graph import LocalPartition, Manifest, options_hash
from glt_lightning.partition import ArraySource, open_source, partition_graph, verify_partition
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.build.times import WeightSums
from glt_lightning.partition.contents import Contents
from tests.helpers.partition_truth import HETERO, random_source, read_folder, single

_MOST = 2**31 - 1
LIKES, NEAR = ("a", "likes", "b"), ("b", "near", "b")


def weighted(rng: np.random.Generator) -> ArraySource:
    """Floats of all sizes on one edge type, masks on two, none on the third."""
    source = random_source(rng, HETERO)
    edge = {e: dict(attrs) for e, attrs in source.edge.items()}
    count = {e: source.edge_index[e].shape[1] for e in source.edge_index}
    floats = 2.0 ** rng.integers(-60, 60, count[LIKES]) * (rng.random(count[LIKES]) < 0.7)
    edge[LIKES] |= {"edge_weight": floats, "mask": rng.random(count[LIKES]) < 0.5}
    edge[NEAR]["mask"] = rng.integers(0, 2, (count[NEAR], 1), dtype=np.uint8)
    return replace(source, edge=edge)


def units(row: list[float], exact: bool) -> list[int]:
    """The rule for one row, one entry after the other."""
    if exact:
        return [int(w) for w in row]
    total = 0.0
    for w in row:
        total += w
    return [0 if w == 0 else max(1, int(w / total * (_MOST - 2 * len(row)))) for w in row]


@pytest.mark.parametrize(("parts", "undirected", "seed"), [(1, False, 0), (3, True, 1), (4, False, 2)])
def test_sums_are_those_of_the_rule(tmp_path: Path, parts: int, undirected: bool, seed: int) -> None:
    source = weighted(np.random.default_rng(seed))
    options = PartitionOptions(num_parts=parts, weights=["mask", "edge_weight"])
    manifest = partition_graph(source, tmp_path / "p", options, undirected=undirected, progress=False)
    arrays, names, rows = read_folder(tmp_path / "p"), set(), 0
    for r, stored in enumerate(manifest.schema.edge_types):
        user = LIKES if stored[1].endswith("likes") else stored
        for name in manifest.weights(r):
            names.add((stored[1], name))
            given = source.edge[user][name].reshape(-1)
            for p in range(parts):
                at = f"part{p}/edges/{r}/"
                sums, indptr = arrays[f"{at}{name}.cum.npy"], arrays[f"{at}indptr.npy"]
                assert sums.dtype == np.int32
                ids = arrays[f"{at}edge_ids.npy"] % max(1, len(given))
                for begin, end in pairwise(indptr.tolist()):
                    row = given[ids[begin:end]].tolist()
                    assert sums[begin:end].tolist() == np.cumsum(units(row, name == "mask")).tolist()
                    rows += end > begin
    expected = {("likes", "mask"), ("likes", "edge_weight"), ("near", "mask")}
    assert names == expected | ({("rev_likes", "mask"), ("rev_likes", "edge_weight")} if undirected else set())
    assert rows > 20
    for r, edge_type in enumerate(manifest.schema.edge_types):
        assert not any("." in name for name in manifest.edge_attrs(r)), edge_type
    verify_partition(tmp_path / "p", Progress(False))


def test_the_scale_of_floats_does_not_matter() -> None:
    """A power of two leaves every bit as it is; the heaviest and the lightest of a row stay apart by 2^31 at most."""
    rng = np.random.default_rng(0)
    weights, indptr = rng.random(500), np.array([0, 100, 100, 500])
    sums = [made(weights * scale, indptr) for scale in (1.0, 2.0**20, 2.0**-500)]
    np.testing.assert_array_equal(sums[0], sums[1])
    np.testing.assert_array_equal(sums[0], sums[2])
    assert made(np.array([1e300, 1e-300, 0.0]), np.array([0, 3])).tolist() == [_MOST - 6, _MOST - 5, _MOST - 5]
    assert made(np.zeros(3, np.float32), np.array([0, 3])).tolist() == [0, 0, 0]


def made(weights: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    return WeightSums("w").prefix_sums(weights, indptr, np.arange(len(weights)), np.arange(len(indptr) - 1))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, -2, 3], "w: edge 11 has the weight -2. Weights are finite numbers >= 0"),
        ([1.0, 0.5, float("nan")], "w: edge 12 has the weight nan"),
        ([float("inf"), 0.5, 1.0], "w: edge 10 has the weight inf"),
        ([2**30, 2**30, 0], f"w: node 7: {2**31} is the sum of its weights, or more. As integers it can be {_MOST}"),
        (np.array([0, 0, 2**63], np.uint64), f"w: node 8: {2**31} is the sum of its weights, or more"),
        ([1e308, 1e308, 0.0], "w: node 7: inf is the sum of its weights. Divide all weights by a constant"),
    ],
)
def test_a_weight_that_cannot_be_is_named(weights: list[float], said: str) -> None:
    with pytest.raises(DataError) as error:
        WeightSums("w").prefix_sums(np.array(weights), np.array([0, 2, 3]), np.array([10, 11, 12]), np.array([7, 8]))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_heaviest_row_of_integers_fits() -> None:
    assert made(np.array([_MOST - 1, 1, _MOST], np.uint32), np.array([0, 2, 3])).tolist() == [_MOST - 1, _MOST, _MOST]


def test_the_file_of_a_wrong_weight_is_named(tmp_path: Path) -> None:
    """Before nodes are assigned, also where the attribute would be refused as an attribute."""
    folder = tmp_path / "graph"
    folder.mkdir()
    np.save(folder / "edge_index.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    np.save(folder / "x.npy", np.zeros((3, 1), np.float32))
    np.save(folder / "edge_weight.npy", np.array([1.0, np.nan, 1.0]))
    options = PartitionOptions(weights=["edge_weight"])
    with pytest.raises(DataError, match=r"graph.*: edge_weight of edge type node__to__node: edge 1 has the weight nan"):
        partition_graph(open_source(str(folder), tmp_path), tmp_path / "p", options, progress=False)


def triangle(**edge: np.ndarray) -> ArraySource:
    return replace(single([(0, 1), (1, 2), (2, 0)], 3), edge={EDGE: edge})


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["edge_wight"],
            "no edge type has an attribute 'edge_wight'; attributes of edges: edge_weight, wide. Did you mean",
        ),
        (["wide"], r"partition.weights: wide of edge type node__to__node is float64 \[3, 2\]; a weight is one number"),
        ("edge_weight", r"partition.weights: expected a list of edge attributes such as \[edge_weight\], got 'edge_w"),
        ([""], "partition.weights: expected a list"),
    ],
)
def test_attributes_that_are_no_weights(tmp_path: Path, names: list[str], said: str) -> None:
    source = triangle(edge_weight=np.ones(3), wide=np.ones((3, 2)))
    with pytest.raises(OptionError, match=said):
        partition_graph(source, tmp_path / "p", PartitionOptions(weights=names), progress=False)


def test_weights_are_part_of_what_the_folder_is(tmp_path: Path) -> None:
    source = triangle(edge_weight=np.ones(3, np.int32))
    with_weights = PartitionOptions(weights=["edge_weight"])
    old = partition_graph(source, tmp_path / "old", PartitionOptions(), progress=False)
    assert "weights" not in old.made_by  # folders of an earlier release keep their hash
    with pytest.raises(PartitionError, match=r"weights: None on disk, \['edge_weight'\] given.* Delete the folder"):
        partition_graph(source, tmp_path / "old", with_weights, progress=False)
    new = partition_graph(source, tmp_path / "new", with_weights, progress=False)
    assert old.options_hash != new.options_hash
    more = [Contents.of(LocalPartition.open(tmp_path / name)).memory[0].topology for name in ("old", "new")]
    assert more[1] - more[0] == new.arrays["part0/edges/0/edge_weight.cum.npy"].bytes


def rewritten(folder: Path, array: np.ndarray) -> None:
    """Other prefix sums, with the checksum that a faulty writer would give them."""
    with ArrayWriter(folder, "part0/edges/0/edge_weight.cum.npy", array.dtype) as writer:
        writer.write(array)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = writer.close()
    manifest["arrays"][writer.path] |= {"dtype": entry.dtype, "bytes": entry.bytes, "crc32": entry.crc32}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_sums_that_cannot_be_are_found(tmp_path: Path) -> None:
    source = replace(single([(0, 1), (1, 1), (2, 1), (0, 0)], 3), edge={EDGE: {"edge_weight": np.ones(4, np.int32)}})
    partition_graph(source, tmp_path, PartitionOptions(weights=["edge_weight"]), progress=False)
    good = np.load(tmp_path / "part0/edges/0/edge_weight.cum.npy")
    assert sorted(good.tolist()) == [1, 1, 2, 3]  # each row begins anew
    verify_partition(tmp_path, Progress(False))
    for at, value in ((int(good.argmax()), 1), (0, -1)):
        bad = good.copy()
        bad[at] = value
        rewritten(tmp_path, bad)
        with pytest.raises(
            PartitionError, match=rf"edge_weight\.cum\.npy: damaged: prefix sums of a row descend at position {at}"
        ):
            verify_partition(tmp_path, Progress(False))
    rewritten(tmp_path, good.astype(np.uint32))
    with pytest.raises(PartitionError, match=r"edge_weight\.cum\.npy is <u4 \[4\], expected <i4 \[4\]"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("edges/0/edge_weight.npy", "edges/0/other.npy", "edge_weight.cum.npy are sums of no attribute"),
        ("nodes/0/n_id.npy", "nodes/0/n_id.cum.npy", "is not a path of this format"),
    ],
)
def test_manifests_that_cannot_be(tmp_path: Path, old: str, new: str, said: str) -> None:
    partition_graph(
        triangle(edge_weight=np.ones(3)), tmp_path, PartitionOptions(weights=["edge_weight"]), progress=False
    )
    raw = json.loads((tmp_path / "manifest.json").read_text())
    raw["arrays"][f"part0/{new}"] = raw["arrays"].pop(f"part0/{old}")
    assert raw["options_hash"] == options_hash(raw["made_by"])
    with pytest.raises(PartitionError, match=said):
        Manifest.parse(raw, "manifest.json")
