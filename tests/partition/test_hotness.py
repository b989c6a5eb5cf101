"""Hotness: VIP by the definition, counting by the mean, lists of remote rows as the page of the format says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import EDGE, NODE, EdgeType, PartitionError, PartitionOptions, Progress, edge_type_str
from glt_lightning.graph import Manifest
from glt_lightning.partition import ArraySource, partition_graph, verify_partition
from tests.helpers.examples import examples
from tests.helpers.partition_truth import (
    HETERO,
    hotness as appearances,
    random_source,
    read_folder,
    single,
    stored_edges,
)

Fanout = Callable[[EdgeType, int], int]


def brute_force(
    source: ArraySource, undirected: bool, seeds: dict[str, list[int]], batch_size: int, fanout: Fanout, hops: int
) -> dict[str, np.ndarray]:
    """Node type -> float64 [N]: probability to be in a batch; draws of different rows are independent."""
    edges = stored_edges(source, undirected)
    present = {t: np.zeros(n) for t, n in source.num_nodes.items()}
    for t, ids in seeds.items():
        for node in set(ids):  # in the batch unless all of it is drawn from the other places
            others = len(ids) - ids.count(node)
            size = min(batch_size, len(ids))
            present[t][node] = 1 - comb(others, size) / comb(len(ids), size)
    new = {t: p.copy() for t, p in present.items()}
    for hop in range(hops):
        missed = {t: np.ones(n) for t, n in source.num_nodes.items()}
        for edge_type, listed in edges.items():
            src, _, dst = edge_type
            degree = np.bincount([v for _, v, _ in listed], minlength=source.num_nodes[dst])
            for u, v, _ in listed:
                k = fanout(edge_type, hop)
                missed[src][u] *= 1 - new[dst][v] * (1 if k < 0 else min(1, k / degree[v]))
        for t in present:  # a node is expanded in the hop that first reaches it
            new[t] = (1 - present[t]) * (1 - missed[t])
            present[t] = present[t] + new[t]
    return present


def parts_and_hotness(folder: Path) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """By user id: the part of each node, and for each part all nodes' hotness as its files say it.

    Checks the lists on the way: hottest first, remote nodes alone, none twice, each of the right type.
    """
    manifest, arrays = Manifest.load(folder), read_folder(folder)
    (policy,) = manifest.hotness
    owner, users, heat = {}, {}, [{} for _ in range(manifest.num_parts)]
    for index, t in enumerate(manifest.schema.node_types):
        ids = [arrays[f"part{p}/nodes/{index}/n_id.npy"] for p in range(manifest.num_parts)]
        users[t] = np.concatenate(ids)
        owner[t] = np.empty(len(users[t]), np.int64)
        owner[t][users[t]] = np.repeat(np.arange(manifest.num_parts), [len(i) for i in ids])
        for p in range(manifest.num_parts):
            own = arrays[f"part{p}/nodes/{index}/hotness.npy"]
            assert (np.diff(own) <= 0).all()  # rows inside a part: hottest first
            heat[p][t] = np.zeros(len(users[t]))
            heat[p][t][ids[p]] = own
            if manifest.num_parts == 1:
                continue
            base = f"part{p}/hot/{policy}/{index}"
            gids, hot = arrays[f"{base}/gids.npy"] - manifest.offsets[index], arrays[f"{base}/hotness.npy"]
            assert ((gids >= 0) & (gids < len(users[t]))).all()
            assert len(np.unique(gids)) == len(gids)
            assert (owner[t][users[t][gids]] != p).all()
            assert (np.diff(hot) <= 0).all()
            assert (hot > 0).all()
            heat[p][t][users[t][gids]] = hot
    return owner, heat


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    edge_types=st.sampled_from([(EDGE,), HETERO]),
    undirected=st.booleans(),
    algorithm=st.sampled_from(["random", "frequency", "metis"]),
    num_parts=st.sampled_from([1, 2, 5]),
    hops=st.integers(1, 3),
    batch_size=st.sampled_from([1, 2, 100]),
    per_type=st.booleans(),
)
def test_vip(seed, edge_types, undirected, algorithm, num_parts, hops, batch_size, per_type):
    rng = np.random.default_rng(seed)
    source = random_source(rng, edge_types, nodes=25)
    stored = sorted(stored_edges(source, undirected))
    table = {e: rng.choice([-1, 1, 2, 5], hops).tolist() for e in stored}
    num_neighbors: Any = {edge_type_str(e): ks for e, ks in table.items()} if per_type else table[stored[0]]
    with TemporaryDirectory() as folder:
        options = PartitionOptions(
            num_parts=num_parts,
            algorithm=algorithm,
            hotness="vip",
            num_neighbors=num_neighbors,
            batch_size=batch_size,
        )
        partition_graph(source, Path(folder) / "p", options, undirected=undirected)
        owner, heat = parts_and_hotness(Path(folder) / "p")
    t, train = source.splits["train"]
    for part in range(num_parts):
        seeds = train[owner[t][train] == part]
        expected = brute_force(
            source,
            undirected,
            {t: seeds.tolist()},
            batch_size,
            (lambda e, hop: table[e][hop]) if per_type else lambda e, hop: table[stored[0]][hop],
            hops,
        )
        for node_type, values in expected.items():
            np.testing.assert_allclose(heat[part][node_type], values, rtol=1e-4, atol=1e-6)
            assert ((heat[part][node_type] > 0) == (values > 0)).all()  # all that can be read are listed


def vip_of(edges: list[tuple[int, int]], num_nodes: int, seeds: list[int], num_neighbors: list[int]) -> list[float]:
    source = replace(single(edges, num_nodes), splits={"train": (NODE, np.array(seeds))})
    with TemporaryDirectory() as folder:
        partition_graph(source, Path(folder) / "p", PartitionOptions(hotness="vip", num_neighbors=num_neighbors))
        return parts_and_hotness(Path(folder) / "p")[1][0][NODE].tolist()


def test_a_node_is_expanded_once() -> None:
    """0 draws 1 or 2; 1 draws 0, which is there already and does not draw again."""
    assert vip_of([(1, 0), (2, 0), (0, 1)], 3, [0], [1, 1]) == pytest.approx([1, 0.5, 0.5])
    # 2 is reached in the second hop alone, and expanded in the third
    assert vip_of([(1, 0), (2, 1), (3, 2), (1, 2)], 4, [0], [1, 1, 1]) == pytest.approx([1, 1, 1, 0.5])


def test_direction_of_edges() -> None:
    """Batches hold the sources of edges to seeds."""
    assert vip_of([(0, 1), (1, 2)], 3, [1], [5, 5]) == pytest.approx([1, 1, 0])


def test_parallel_one_way_edges_are_no_symmetric_graph(tmp_path: Path) -> None:
    """A ring of doubled edges: each node has two edges in, two out and two neighbours."""
    source = single([(0, 1), (1, 2), (2, 3), (3, 0)] * 2, 4)
    source = replace(source, splits={"train": (NODE, np.array([0]))})
    options = PartitionOptions(num_parts=2, algorithm="metis", num_neighbors=[-1])
    partition_graph(source, tmp_path / "p", options)
    owner, heat = parts_and_hotness(tmp_path / "p")
    assert heat[owner[NODE][0]][NODE].tolist() == pytest.approx([1, 0, 0, 1])  # 3 -> 0, and not 0 -> 1


def test_small_probabilities_keep_their_digits() -> None:
    """A chain of hubs: 1 in 100 each time."""
    edges = [(hub + 1, hub) for hub in range(3)] + [(10 + i, hub) for hub in range(3) for i in range(99)]
    found = vip_of(edges, 120, [0], [1, 1, 1])
    assert found[1:4] == pytest.approx([1e-2, 1e-4, 1e-6], rel=1e-3)


@pytest.mark.parametrize("edge_types", [(EDGE,), HETERO])
def test_chunks_change_nothing(tmp_path: Path, edge_types: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_source(np.random.default_rng(3), edge_types, nodes=80)
    options = PartitionOptions(num_parts=3, algorithm="streaming", num_neighbors=[3, 2], batch_size=2)
    made = []
    for most in (1, 7, 1 << 22):
        monkeypatch.setattr("glt_lightning.partition.build.topology._MOST_EDGES", most)
        made.append(partition_graph(source, tmp_path / str(most), options))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("batch_size", [3, 12])
def test_counting_agrees_with_vip(tmp_path: Path, batch_size: int) -> None:
    """`presample` gives each node the mean X of 64 batches, each of which holds it with about the p of `vip`.

    Of independent batches 64 (X - p)^2 / (p (1 - p)) is 1 in the mean. A seed is in one batch alone, which takes from that
    at most the share of the seeds that are used. Over N nodes it is so give or take sqrt((2 + 1 / (64 p)) / N) < 0.06. And
    X - p is 0 in the mean, give or take the root of p (1 - p) / 64 / N; twice that, as nodes come together.
    """
    nodes, batches = 2000, 64
    rng = np.random.default_rng(0)
    splits = {"train": (NODE, rng.permutation(nodes))}
    source = replace(single(rng.integers(0, nodes, (4 * nodes, 2)).tolist(), nodes), splits=splits)
    heat = {}
    for policy in ("vip", "presample"):
        options = PartitionOptions(hotness=policy, num_neighbors=[2, 2], batch_size=batch_size)  # type: ignore[arg-type]
        partition_graph(source, tmp_path / policy, options)
        heat[policy] = parts_and_hotness(tmp_path / policy)[1][0][NODE]
    p, x = heat["vip"], heat["presample"]
    np.testing.assert_allclose(x * batches, np.rint(x * batches), atol=1e-3)
    variance, used = p * (1 - p) / batches, batches * batch_size / nodes
    some = p * batches > 0.3
    assert some.sum() > 1000
    assert 1 - used - 0.2 < ((x - p)[some] ** 2 / variance[some]).mean() < 1.2
    assert abs((x - p).mean()) < 4 * 2 * np.sqrt(variance.mean() / nodes)


@pytest.mark.parametrize("algorithm", ["random", "metis", "streaming", "frequency"])
@pytest.mark.parametrize("undirected", [False, True])
def test_degree(tmp_path: Path, algorithm: str, undirected: bool) -> None:
    source = random_source(np.random.default_rng(8), HETERO, nodes=40)
    options = PartitionOptions(num_parts=3, algorithm=algorithm, hotness="degree")
    partition_graph(source, tmp_path / "p", options, undirected=undirected)
    for heat in parts_and_hotness(tmp_path / "p")[1]:
        assert {t: values.tolist() for t, values in heat.items()} == appearances(source, undirected)


def test_long_lists_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is the beginning of the whole one, also where rows are equally hot, and found in blocks."""
    rng = np.random.default_rng(3)
    edges = (rng.random((4000, 2)) ** 2 * 500).astype(np.int64)
    options = PartitionOptions(num_parts=8, hotness="degree")
    source = single(edges.tolist(), 500)
    partition_graph(source, tmp_path / "whole", options)
    whole = read_folder(tmp_path / "whole")
    monkeypatch.setattr("glt_lightning.partition.tasks.table._LEAST_LISTED", 1)
    for block in (7, 1 << 22):
        monkeypatch.setattr("glt_lightning.partition.tasks.table._BLOCK", block)
        partition_graph(source, tmp_path / f"cut{block}", options)
        cut = read_folder(tmp_path / f"cut{block}")
        assert verify_partition(tmp_path / f"cut{block}", Progress(False)).hot == 8 * 4 * 63
        for path, values in whole.items():
            wanted = values[: 4 * 63] if "/hot/" in path else values
            assert np.array_equal(cut[path], wanted), path
            assert "/hot/" not in path or len(values) > len(wanted)


@pytest.mark.parametrize("policy", ["vip", "presample"])
def test_part_without_seeds(tmp_path: Path, policy: Any) -> None:
    """It samples no batches, so nothing is hot."""
    np.save(tmp_path / "parts.npy", [0, 0, 1, 1])
    source = replace(single([(0, 1), (1, 2), (2, 3)], 4), splits={"train": (NODE, np.array([3]))})
    options = PartitionOptions(num_parts=2, algorithm=str(tmp_path / "parts.npy"), hotness=policy, num_neighbors=[1, 1])
    partition_graph(source, tmp_path / "p", options)
    _, heat = parts_and_hotness(tmp_path / "p")
    assert heat[0][NODE].tolist() == [0, 0, 0, 0]
    assert heat[1][NODE].tolist() == pytest.approx([0, 1, 1, 1])


def _without(arrays: dict, path: str) -> None:
    del arrays[path]


def _moved(arrays: dict, old: str, new: str) -> None:
    for path in [p for p in arrays if p.startswith(old)]:
        arrays[path.replace(old, new)] = arrays.pop(path)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (
            lambda a: _without(a, "part0/hot/vip/0/gids.npy"),
            r"part0/hot/vip/0 has \['hotness'\], expected gids, hotness",
        ),
        (lambda a: _without(a, "part1/hot/vip/0/hotness.npy"), r"part1/hot/vip/0 has \['gids'\]"),
        (lambda a: a["part0/hot/vip/0/gids.npy"].update(shape=[1], bytes=132), "part0/hot/vip/0/"),
        (lambda a: a["part0/hot/vip/0/gids.npy"].update(dtype="<f4"), "part0/hot/vip/0/gids.npy"),
        (lambda a: a["part0/hot/vip/0/hotness.npy"].update(dtype="<i4"), "part0/hot/vip/0/hotness.npy"),
        (
            lambda a: _moved(a, "part0/hot/vip", "part0/hot/magic"),
            "hotness: the entry of .* magic, vip is missing",
        ),
        (
            lambda a: _moved(a, "part1/hot/vip/0", "part7/hot/vip/0"),
            "part7/hot/vip/0 belongs to no part or node type",
        ),
        (
            lambda a: _moved(a, "part1/hot/vip/0", "part1/hot/vip/3"),
            "part1/hot/vip/3 belongs to no part or node type",
        ),
        (
            lambda a: [_without(a, f"part1/hot/vip/0/{name}.npy") for name in ("gids", "hotness")],
            "part1/hot/vip/0 is missing",
        ),
    ],
)
def test_damaged_lists_are_refused(tmp_path: Path, damage: Callable[[dict], None], what: str) -> None:
    source = replace(single([(i, (i + 1) % 9) for i in range(9)], 9), splits={"train": (NODE, np.arange(9))})
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2, hotness="vip"))
    file = tmp_path / "p" / "manifest.json"
    raw = json.loads(file.read_text())
    damage(raw["arrays"])
    file.write_text(json.dumps(raw))
    with pytest.raises(PartitionError, match=what):
        Manifest.load(tmp_path / "p")


@settings(max_examples=examples(40), deadline=None)
@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=7), batch_size=st.integers(1, 8))
def test_seeds_that_are_listed_several_times(ids: list[int], batch_size: int) -> None:
    """The share of all batches that a node is in, by going through them."""
    batches = [set(b) for b in combinations(ids, min(batch_size, len(ids)))]
    expected = [sum(node in batch for batch in batches) / len(batches) for node in range(8)]
    with (
        TemporaryDirectory() as folder
    ):  # with 8 nodes, since so many ids of 0 and 1 as nodes would be taken for a mask
        source = replace(single([], 8), splits={"train": (NODE, np.array(ids))})
        options = PartitionOptions(num_parts=1, hotness="vip", num_neighbors=[2], batch_size=batch_size)
        partition_graph(source, folder + "/p", options)
        _, (found,) = parts_and_hotness(Path(folder) / "p")
    np.testing.assert_allclose(found[NODE], expected, rtol=1e-6)
