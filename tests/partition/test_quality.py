"""How good parts are: few edges cut, what ``balance`` names spread evenly, also in little memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, NODE, DataError, GraphSchema, OptionError, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import ArraySource, partition_graph
from tests.helpers.communities import community_graph
from tests.helpers.partition_truth import read_folder

NODES, IMBALANCE = 4000, PartitionOptions.imbalance


@pytest.fixture(scope="module")
def source() -> ArraySource:
    """Communities; seeds that lie unevenly over them."""
    rng = np.random.default_rng(0)
    edges = community_graph(NODES)
    train = np.unique(edges[1])[:900]
    return ArraySource(
        name="communities",
        fingerprint="0",
        schema=GraphSchema.single(),
        num_nodes={NODE: NODES},
        edge_index={EDGE: edges},
        node={NODE: {"score": rng.random(NODES), "debt": -np.arange(NODES)}},
        edge={EDGE: {}},
        splits={"train": (NODE, train), "test": (NODE, np.setdiff1d(np.arange(0, NODES, 7), train))},
        target_type=NODE,
    )


def parts_of(source: ArraySource, folder: Path, algorithm: str, num_parts: int = 4, **options: Any) -> np.ndarray:
    """int [N]: the part of each node. hotness is left out, as nothing here reads it."""
    given: Any = {"algorithm": algorithm, "num_parts": num_parts, "hotness": "degree"}
    partition_graph(source, folder, PartitionOptions(**(given | options)))
    arrays, parts = read_folder(folder), np.empty(NODES, np.int64)
    for p in range(num_parts):
        parts[arrays[f"part{p}/nodes/0/n_id.npy"]] = p
    return parts


def cut(source: ArraySource, parts: np.ndarray) -> float:
    src, dst = source.edge_index[EDGE]
    return float((parts[src] != parts[dst]).mean())


def is_even(weights: np.ndarray, parts: np.ndarray, num_parts: int = 4) -> bool:
    """Within the imbalance, and one node: no cut goes through a node."""
    loads = np.bincount(parts, weights=weights, minlength=num_parts)
    return bool(loads.max() <= (1 + IMBALANCE) * weights.sum() / num_parts + weights.max())


def columns(source: ArraySource) -> dict[str, np.ndarray]:
    seeds = [np.bincount(ids, minlength=NODES) for _, ids in source.splits.values()]
    return {
        "nodes": np.ones(NODES),
        "train": seeds[0],
        "test": seeds[1],
        "edges": np.bincount(source.edge_index[EDGE][1], minlength=NODES),
    }


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_streaming_cuts_little_more_than_metis(tmp_path: Path, source: ArraySource, num_parts: int) -> None:
    found = {a: cut(source, parts_of(source, tmp_path / a, a, num_parts)) for a in ("random", "metis", "streaming")}
    assert found["random"] == pytest.approx(1 - 1 / num_parts, abs=0.03)
    assert found["metis"] < 0.5 * found["random"]
    assert found["streaming"] < 1.3 * found["metis"]


@pytest.mark.parametrize("algorithm", ["metis", "streaming"])
def test_all_is_even(tmp_path: Path, source: ArraySource, algorithm: str) -> None:
    parts = parts_of(source, tmp_path / "p", algorithm, balance=["nodes", "seeds", "edges"])
    assert [name for name, weights in columns(source).items() if not is_even(weights, parts)] == []


@pytest.mark.parametrize("algorithm", ["metis", "streaming"])
@pytest.mark.parametrize(
    ("balance", "even"), [(["nodes"], {"nodes"}), (["seeds"], {"train", "test"}), (["edges"], {"edges"})]
)
def test_one_thing_is_even(
    tmp_path: Path, source: ArraySource, algorithm: str, balance: list[str], even: set[str]
) -> None:
    parts = parts_of(source, tmp_path / "p", algorithm, balance=balance)
    assert all(is_even(columns(source)[name], parts) for name in even)


@pytest.mark.parametrize("algorithm", ["metis", "streaming"])
def test_node_weight_is_what_is_even(tmp_path: Path, source: ArraySource, algorithm: str) -> None:
    heavy = replace(source, node={NODE: {"weight": np.where(np.arange(NODES) < 500, 50, 1)}})
    weights = np.asarray(heavy.node[NODE]["weight"])
    parts = parts_of(heavy, tmp_path / "p", algorithm, balance=["nodes"], node_weight="weight")
    assert is_even(weights, parts)
    assert not is_even(np.ones(NODES), parts)


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("mass", OptionError, "no node type has an attribute 'mass'"),
        (
            "score",
            DataError,
            r"score of node type 'node': expected integers >= 0 of shape \[4000\], got float64 \[4000\]",
        ),
        ("debt", DataError, r"debt of node type 'node': expected integers >= 0 .* the minimum -"),
    ],
)
def test_bad_node_weight(tmp_path: Path, source: ArraySource, name: str, kind: type, what: str) -> None:
    with pytest.raises(kind, match=what):
        parts_of(source, tmp_path / "out" / "p", "metis", node_weight=name)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("balance", [[], ["seeds"]])
def test_nothing_to_balance(tmp_path: Path, source: ArraySource, balance: list[str]) -> None:
    with pytest.raises(OptionError, match=r"partition.balance: .*: the graph has nothing to balance by that"):
        parts_of(replace(source, splits={}), tmp_path / "p", "streaming", balance=balance)


def test_streaming_in_little_memory(tmp_path: Path, source: ArraySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less memory for pairs of groups costs a few edges, and the parts differ: the manifest tells the memory."""
    whole = parts_of(source, tmp_path / "whole", "streaming", memory_bytes=1 << 30)
    monkeypatch.setattr("glt_lightning.partition.assign.assigners._LEAST_PAIRS", 500)
    little = parts_of(source, tmp_path / "little", "streaming", memory_bytes=1 << 20)
    assert (whole != little).any()
    assert cut(source, little) < 1.3 * cut(source, whole)
    assert all(is_even(columns(source)[name], little) for name in ("nodes", "train", "test"))
    made = [Manifest.load(tmp_path / name).made_by["memory_bytes"] for name in ("whole", "little")]
    assert made == [1 << 30, 1 << 20]


@pytest.mark.parametrize("algorithm", ["metis", "random", "frequency"])
def test_memory_of_others_changes_nothing(tmp_path: Path, source: ArraySource, algorithm: str) -> None:
    first, second = (parts_of(source, tmp_path / str(m), algorithm, memory_bytes=m) for m in (1 << 20, 1 << 30))
    np.testing.assert_array_equal(first, second)
    assert "memory_bytes" not in Manifest.load(tmp_path / str(1 << 20)).made_by
