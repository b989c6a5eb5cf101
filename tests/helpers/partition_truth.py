"""Partition folders: random graphs to cut, the slow and obvious construction, and reading a folder back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from glt_lightning.base import EDGE, NODE, EdgeType, GraphSchema
from glt_lightning.graph import Manifest, open_array, verify_array
from glt_lightning.partition import ArraySource
from glt_lightning.partition.assign.assigners import random_parts

HETERO: tuple[EdgeType, ...] = (("b", "near", "b"), ("a", "likes", "b"), ("c", "owns", "a"))
Edges = dict[EdgeType, list[tuple[int, int, int]]]


def random_source(rng: np.random.Generator, edge_types: tuple[EdgeType, ...] = (EDGE,), nodes: int = 30) -> ArraySource:
    """Skewed degrees, isolated nodes, self loops and parallel edges all occur; one type has labels and splits."""
    schema = GraphSchema(tuple({t for s, _, d in edge_types for t in (s, d)}), edge_types, edge_types == (EDGE,))
    num_nodes = {t: int(rng.integers(1, nodes)) for t in schema.node_types}
    edge_index, edge = {}, {}
    for e in schema.edge_types:
        count = int(rng.integers(0, 5 * nodes))
        ends = [(rng.random(count) ** 2 * num_nodes[t]).astype(np.int64) for t in (e[0], e[2])]
        edge_index[e] = np.stack(ends)
        edge[e] = {"edge_attr": rng.random((count, 2), np.float32), "edge_time": np.arange(count, dtype=np.int16)}
    node = {t: {"x": rng.random((n, 3), np.float32), "age": rng.integers(0, 99, n)} for t, n in num_nodes.items()}
    target = schema.node_types[0]
    node[target]["y"] = rng.integers(0, 4, num_nodes[target])
    order = rng.permutation(num_nodes[target])
    count = 7 - (num_nodes[target] == 7)  # as many ids as nodes, all of them 0 or 1, are refused as a mask of integers
    splits = {
        s: (target, rng.choice(order[i::3], count * (i < len(order)))) for i, s in enumerate(("train", "val", "test"))
    }
    return ArraySource(
        name="random",
        fingerprint=str(rng.integers(1 << 40)),
        schema=schema,
        num_nodes=num_nodes,
        edge_index=edge_index,
        node=node,
        edge=edge,
        splits=splits,
        target_type=target,
        num_classes=4,
    )


def single(edges: list[tuple[int, int]] | np.ndarray, num_nodes: int, **node: np.ndarray) -> ArraySource:
    """A small homogeneous graph, written down: pairs (source, destination)."""
    return ArraySource(
        name="single",
        fingerprint=str(len(edges)),
        schema=GraphSchema.single(),
        num_nodes={NODE: num_nodes},
        edge_index={EDGE: np.array(edges, np.int64).reshape(-1, 2).T},
        node={NODE: node},
        edge={EDGE: {}},
        target_type=NODE,
    )


def read_folder(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a partition, checked; the folder holds nothing else."""
    manifest = Manifest.load(folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {*manifest.arrays, "manifest.json"}
    for path, entry in manifest.arrays.items():
        verify_array(folder, path, entry)
    return {path: np.array(open_array(folder, path, entry)) for path, entry in manifest.arrays.items()}


def same_arrays(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert sorted(got) == sorted(expected)
    for path, array in expected.items():
        np.testing.assert_array_equal(got[path], array, err_msg=path)


def stored_edges(source: ArraySource, undirected: bool) -> Edges:
    """(source, destination, edge id) by stored edge type, by the definition, one edge at a time."""
    stored: Edges = {}
    for (s, rel, d), edge_index in source.edge_index.items():
        edges = [(u, v, k) for k, (u, v) in enumerate(edge_index.T.tolist())]
        if undirected and s == d:
            lowest: dict[tuple[int, int], int] = {}
            for u, v, k in edges + [(v, u, k) for u, v, k in edges]:
                lowest[u, v] = min(k, lowest.get((u, v), k))
            edges = [(u, v, k) for (u, v), k in lowest.items()]
        elif undirected:
            stored[d, f"rev_{rel}", s] = [(v, u, k) for u, v, k in edges]
        stored[s, rel, d] = edges
    return stored


def hotness(source: ArraySource, undirected: bool) -> dict[str, list[int]]:
    """Appearances of each node as a source of the edges to store, before parallel edges are merged."""
    hot = {t: [0] * n for t, n in source.num_nodes.items()}
    for (s, _, d), edge_index in source.edge_index.items():
        for u, v in edge_index.T.tolist():
            hot[s][u] += 1
            if undirected:
                hot[d][v] += 1
    return hot


def brute_force(source: ArraySource, num_parts: int, seed: int = 0, undirected: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a partition folder at random, by degree, ids as int64."""
    types, hot = sorted(source.num_nodes), hotness(source, undirected)
    arrays: dict[str, np.ndarray] = {}
    gid: dict[str, dict[int, int]] = {}
    owned: dict[tuple[str, int], list[int]] = {}
    for t in types:
        part = random_parts(source.num_nodes[t], num_parts, seed, t).tolist()
        keys = sorted((part[i], -hot[t][i], i) for i in range(source.num_nodes[t]))
        offset = sum(source.num_nodes[u] for u in types if u < t)
        gid[t] = {i: offset + place for place, (_, _, i) in enumerate(keys)}
        owned |= {(t, p): [i for q, _, i in keys if q == p] for p in range(num_parts)}
    for (t, p), ids in owned.items():
        base = f"part{p}/nodes/{types.index(t)}"
        arrays[f"{base}/n_id.npy"] = np.array(ids, np.int64)
        arrays[f"{base}/hotness.npy"] = np.array([hot[t][i] for i in ids], np.float32)
        arrays |= {f"{base}/{name}.npy": np.asarray(rows)[ids] for name, rows in source.node[t].items()}
        if num_parts > 1:
            others = [(-hot[t][i], g, i) for i, g in gid[t].items() if i not in ids and hot[t][i]]
            base = f"part{p}/hot/degree/{types.index(t)}"
            arrays[f"{base}/gids.npy"] = np.array([g for _, g, _ in sorted(others)], np.int64)
            arrays[f"{base}/hotness.npy"] = np.array([-h for h, _, _ in sorted(others)], np.float32)
    for t, index in ((t, types.index(t)) for t in types):
        arrays[f"nodes/{index}/gid.npy"] = np.array([gid[t][i] for i in range(source.num_nodes[t])], np.int64)
    for name, (t, seeds) in source.splits.items():
        arrays[f"splits/{name}.npy"] = np.array([gid[t][i] for i in seeds.tolist()], np.int64)
    for r, (e, edges) in enumerate(sorted(stored_edges(source, undirected).items())):
        original = e if e in source.edge_index else (e[2], e[1].removeprefix("rev_"), e[0])
        for p in range(num_parts):
            rows = [sorted((u, k) for u, v, k in edges if v == node) for node in owned[e[2], p]]
            arrays |= _csc(f"part{p}/edges/{r}", rows, gid[e[0]])
            columns = arrays[f"part{p}/edges/{r}/edge_ids.npy"]
            for name, values in source.edge[original].items():
                arrays[f"part{p}/edges/{r}/{name}.npy"] = np.asarray(values)[columns]
    return arrays


def _csc(base: str, rows: list[list[tuple[int, int]]], gid: dict[int, int]) -> dict[str, np.ndarray]:
    flat = [pair for row in rows for pair in row]
    return {
        f"{base}/indptr.npy": np.cumsum([0, *map(len, rows)]),
        f"{base}/indices.npy": np.array([gid[u] for u, _ in flat], np.int64),
        f"{base}/edge_ids.npy": np.array([k for _, k in flat], np.int64),
    }


def edges_of(folder: Path) -> Edges:
    """(source, destination, edge id) in user ids, by stored edge type, sorted: what a folder says of the graph."""
    manifest, arrays = Manifest.load(folder), read_folder(folder)
    names, parts = manifest.schema.node_types, range(manifest.num_parts)
    user = [np.concatenate([arrays[f"part{p}/nodes/{t}/n_id.npy"] for p in parts]) for t in range(len(names))]
    found: Edges = {}
    for r, edge_type in enumerate(manifest.schema.edge_types):
        s, d = names.index(edge_type[0]), names.index(edge_type[2])
        rows: list[tuple[int, int, int]] = []
        for p in parts:
            base = f"part{p}/edges/{r}"
            degree = np.diff(arrays[f"{base}/indptr.npy"])
            destination = user[d][manifest.bounds[d][p] + np.repeat(np.arange(len(degree)), degree)]
            origin = user[s][arrays[f"{base}/indices.npy"] - manifest.offsets[s]]
            rows += zip(origin.tolist(), destination.tolist(), arrays[f"{base}/edge_ids.npy"].tolist(), strict=True)
        found[edge_type] = sorted(rows)
    return found
