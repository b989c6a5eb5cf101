"""Folders have the bytes of an earlier release, whoever runs the tasks: digests of its folders are in ``digests.json``.

Graphs whose folder depends on the processor (logarithms, METIS) are compared between engines alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, PartitionOptions
from glt_lightning.partition import ArraySource, GraphSource, hold_out_edges, open_source, partition_graph
from tests.helpers.partition_truth import HETERO, random_source, single

DIGESTS = Path(__file__).with_name("digests.json")
Make = Callable[[Path], GraphSource]


def given(edge_types: tuple = (EDGE,), seed: int = 0, nodes: int = 300) -> Make:
    return lambda folder: random_source(np.random.default_rng(seed), edge_types, nodes)


def weighted(edge_types: tuple = (EDGE,), *, of_nodes: bool = False) -> Make:
    def make(folder: Path) -> ArraySource:
        rng, source = np.random.default_rng(7), random_source(np.random.default_rng(5), edge_types, 200)
        for edge_type, index in source.edge_index.items():
            source.edge[edge_type] |= {"weight": rng.random(index.shape[1]).astype(np.float32)}  # type: ignore[operator]
            if not of_nodes:
                source.edge[edge_type] |= {"time": rng.integers(0, 9, index.shape[1])}  # type: ignore[operator]
        if of_nodes:
            for node_type, count in source.num_nodes.items():
                source.node[node_type] |= {"time": rng.integers(0, 9, count)}  # type: ignore[operator]
        return source

    return make


def links(folder: Path) -> GraphSource:
    splits = {"b__near__b": {"num_val": 20, "num_test": 30, "seed": 1}}
    return hold_out_edges(random_source(np.random.default_rng(3), HETERO, 300), splits, val_edges_at_test=True)


def large(folder: Path) -> ArraySource:
    rng, nodes = np.random.default_rng(2), 5000
    edges = (rng.random((250_000, 2)) ** 3 * nodes).astype(np.int64)
    return replace(
        single(edges, nodes, x=rng.random((nodes, 100), np.float32)), splits={"train": (NODE, np.arange(900))}
    )


def in_files(layout: str) -> Make:
    def make(folder: Path) -> GraphSource:
        source = large(folder)
        (at := folder / "graph").mkdir()
        index = source.edge_index[EDGE]
        np.save(at / "x.npy", source.node[NODE]["x"])
        np.save(at / "train.npy", np.arange(900))
        np.save(at / "edge_kind.npy", np.arange(index.shape[1]) % 11)
        if layout == "csc":
            order = np.argsort(index[1], kind="stable")
            np.save(at / "indices.npy", index[0][order])
            np.save(at / "indptr.npy", np.concatenate([[0], np.cumsum(np.bincount(index[1], minlength=5000))]))
        else:
            np.save(
                at / "edge_index.npy", np.asfortranarray(index) if layout == "pairs" else np.ascontiguousarray(index)
            )
        if layout == "npz":
            np.savez(folder / "graph.npz", edge_index=index, x=source.node[NODE]["x"], train_idx=np.arange(900))
            return open_source(str(folder / "graph.npz"), str(folder))
        return open_source(str(at), str(folder))

    return make


def tables(folder: Path) -> GraphSource:
    (folder / "nodes.csv").write_text("id,age\n" + "".join(f"n{i},{i % 7}\n" for i in range(200)))
    (folder / "edges.csv").write_text("a,b\n" + "".join(f"n{i * i % 200},n{i * 7 % 200}\n" for i in range(900)))
    nodes = {"path": str(folder / "nodes.csv"), "id": "id", "features": ["age"]}
    edges = {"path": str(folder / "edges.csv"), "source": "a", "destination": "b"}
    return open_source({"nodes": {"n": nodes}, "edges": {"n__to__n": edges}}, str(folder))


def own_parts(folder: Path) -> GraphSource:
    source = random_source(np.random.default_rng(8), HETERO, 90)
    np.savez(folder / "parts.npz", **{t: np.arange(n) ** 2 % 3 for t, n in source.num_nodes.items()})
    return source


Case = tuple[Make, dict[str, Any], dict[str, Any]]
PORTABLE: dict[str, Case] = {
    "one part": (given(), {"num_parts": 1}, {}),
    "random": (given(), {"num_parts": 3}, {}),
    "wide": (given(), {"num_parts": 2}, {"wide_ids": True}),
    "undirected": (given(seed=1), {"num_parts": 4}, {"undirected": True}),
    "typed": (given(HETERO), {"num_parts": 3, "seed": 5}, {}),
    "typed, undirected": (given(HETERO, 2), {"num_parts": 2}, {"undirected": True}),
    "weights and times of edges": (
        weighted(),
        {"num_parts": 3, "weights": ["weight"], "time_attr": "time", "storage": {"x": "int8", "edge_attr": "float16"}},
        {},
    ),
    "times of edges, undirected": (weighted(HETERO), {"num_parts": 3, "time_attr": "time"}, {"undirected": True}),
    "times of nodes": (
        weighted(HETERO, of_nodes=True),
        {"num_parts": 2, "weights": ["weight"], "time_attr": "time", "storage": {"x": "bfloat16"}},
        {"undirected": True},
    ),
    "edges to predict": (links, {"num_parts": 3}, {"undirected": True}),
    "own parts": (own_parts, {"num_parts": 3, "algorithm": "parts.npz", "hotness": "degree"}, {}),
    "presample": (given(HETERO), {"num_parts": 3, "hotness": "presample", "batch_size": 16}, {}),
    "rows": (given(), {"num_parts": 2}, {"normalize": "rows"}),
    "large": (large, {"num_parts": 3}, {}),
    "large, undirected": (large, {"num_parts": 3}, {"undirected": True}),
    "file, C order": (in_files("rows"), {"num_parts": 2}, {}),
    "file, Fortran order": (in_files("pairs"), {"num_parts": 2}, {}),
    "file, CSC": (in_files("csc"), {"num_parts": 2}, {}),
    "file, npz": (in_files("npz"), {"num_parts": 2}, {}),
    "tables": (tables, {"num_parts": 2}, {"undirected": True}),
}
OF_THE_MACHINE: dict[str, Case] = {
    "vip": (given(HETERO), {"num_parts": 3, "hotness": "vip", "batch_size": 16}, {}),
    "frequency": (large, {"num_parts": 3, "algorithm": "frequency"}, {}),
    "streaming": (large, {"num_parts": 3, "algorithm": "streaming"}, {"undirected": True}),
    "metis": (given(HETERO), {"num_parts": 3, "algorithm": "metis"}, {}),
    "standardize": (large, {"num_parts": 3}, {"normalize": "standardize"}),
}


def partitioned(folder: Path, case: Case, **engine: Any) -> str:
    """The digest of the folder of a case: of the names and bytes of its files, the version of the package left out."""
    make, options, more = case
    folder.mkdir(parents=True)
    source = make(folder)
    if options.get("algorithm") == "parts.npz":
        options = {**options, "algorithm": str(folder / "parts.npz")}
    partition_graph(source, folder / "p", PartitionOptions(**(options | engine)), progress=False, **more)
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(p for p in (folder / "p").rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.name == "manifest.json":
            manifest = json.loads(data)
            for name in ("package_version", "fingerprint", "memory_bytes"):
                manifest["made_by"].pop(name, None)
            manifest.pop("hash", None)
            manifest.pop("options_hash", None)
            manifest.pop("normalization", None)  # earlier releases kept no statistics
            data = json.dumps(manifest).encode()
        digest.update(f"{path.relative_to(folder)}:{len(data)}:".encode() + data)
    return digest.hexdigest()
