"""Graphs with times for tests, and what batches have of each tree, in the user's ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import EDGE, NODE, EdgeType, GraphSchema, PartitionOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import ArraySource, partition_graph


def timed_graph(
    folder: Path, edges: list[tuple[int, int]], num_nodes: int, *, times: list[int] | None = None, of: str = "edges"
) -> LocalPartition:
    """A homogeneous graph, written down: pairs (source, destination), and times of the edges or of the nodes."""
    given = {"time": np.array(times, np.int64)}
    source = ArraySource(
        name="written",
        fingerprint="",
        schema=GraphSchema.single(),
        num_nodes={NODE: num_nodes},
        edge_index={EDGE: np.array(edges, np.int64).reshape(-1, 2).T},
        node={NODE: given if of == "nodes" else {}},
        edge={EDGE: given if of == "edges" else {}},
    )
    return partitioned_by_time(source, folder)


def partitioned_by_time(source: ArraySource, folder: Path, parts: int = 1, **options: object) -> LocalPartition:
    target = folder / f"timed{parts}"
    chosen = PartitionOptions(num_parts=parts, time_attr="time", **options)  # type: ignore[arg-type]
    partition_graph(source, target, chosen, progress=False)
    return LocalPartition.open(target)


BUYS, VIEWS, LIKES = ("user", "buys", "item"), ("item", "viewed", "user"), ("user", "likes", "user")


def shop(of: str, seed: int = 0) -> ArraySource:
    """Users and items; times of edges, or of users and items. ``tag`` -> item edges have none. Few distinct times: ties occur."""
    rng = np.random.default_rng(seed)
    counts = {"user": 40, "item": 60, "tag": 5}
    ends: dict[EdgeType, int] = {BUYS: 300, VIEWS: 300, LIKES: 200, ("tag", "on", "item"): 90}
    edge_index = {
        e: np.stack([(rng.random(n) ** 2 * counts[t]).astype(np.int64) for t in (e[0], e[2])]) for e, n in ends.items()
    }
    edge = {e: {"time": rng.integers(0, 12, n)} for e, n in ends.items() if of == "edges" and e[0] != "tag"}
    node: dict[str, dict[str, np.ndarray]] = {
        t: {"x": np.arange(n, dtype=np.float32)[:, None]} for t, n in counts.items()
    }
    for t in ("user", "item") if of == "nodes" else ():
        node[t]["time"] = rng.integers(0, 12, counts[t])
    splits = {"train": ("user", rng.integers(0, 40, 60))}
    return ArraySource(
        name="shop",
        fingerprint=f"{of}{seed}",
        schema=GraphSchema(tuple(counts), tuple(ends), False),
        num_nodes=counts,
        edge_index=edge_index,
        node=node,
        edge=edge,
        splits=splits,
    )


def times_of_edges(source: ArraySource, edge_type: EdgeType) -> np.ndarray | None:
    """int64 [E]: of each edge, its own or that of its source; None: it has none."""
    if (own := source.edge.get(edge_type, {}).get("time")) is not None:
        return np.asarray(own)
    of_nodes = source.node.get(edge_type[0], {}).get("time")
    return None if of_nodes is None else np.asarray(of_nodes)[source.edge_index[edge_type][0]]


@dataclass(frozen=True)
class Tree:
    """One example of a batch. nodes: (node type, user id), sorted.  edges: (edge type, source, destination), sorted."""

    nodes: list[tuple[str, int]]
    edges: list[tuple[str, int, int]]


def trees(batch: Data | HeteroData, count: int) -> list[Tree]:
    """Those of the first ``count`` examples."""
    typed = isinstance(batch, HeteroData)
    node_stores = {t: batch[t] for t in batch.node_types} if typed else {NODE: batch}
    edge_stores = {e: batch[e] for e in batch.edge_types} if typed else {EDGE: batch}
    found = []
    for k in range(count):
        nodes = [(t, int(i)) for t, store in node_stores.items() for i in store.n_id[store.batch == k]]
        edges = []
        for (s, rel, d), store in edge_stores.items():
            src, dst = store.edge_index
            mine = node_stores[d].batch[dst] == k
            assert torch.equal(node_stores[s].batch[src], node_stores[d].batch[dst]), "an edge leads from tree to tree"
            ends = zip(node_stores[s].n_id[src[mine]].tolist(), node_stores[d].n_id[dst[mine]].tolist(), strict=True)
            edges += [(rel, u, v) for u, v in ends]
        found.append(Tree(sorted(nodes), sorted(edges)))
    return found


def whole_tree(
    source: ArraySource, node_type: str, root: int, hops: int, since: float, until: float
) -> tuple[set[tuple[str, int]], list[tuple[str, int, int]]]:
    """(nodes, edges) of the tree with all neighbours, by the definition: each is expanded once, by edges from since to until."""
    seen, frontier, edges = {(node_type, root)}, [(node_type, root)], []
    for _ in range(hops):
        new = []
        for e in source.schema.edge_types:
            times = times_of_edges(source, e)
            for t, v in frontier:
                if t != e[2]:
                    continue
                for k, (a, b) in enumerate(source.edge_index[e].T.tolist()):
                    if b == v and (times is None or since <= times[k] <= until):
                        edges.append((e[1], a, b))
                        if (e[0], a) not in seen:
                            seen.add((e[0], a))
                            new.append((e[0], a))
        frontier = new
    return seen, sorted(edges)
