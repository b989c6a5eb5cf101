"""Random graphs in two versions: a base, and the whole graph with the rows that came later."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, EdgeType, GraphSchema, PartitionOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import Additions, ArraySource, ChangedNodes, NewEdges, NewNodes, partition_graph

TYPED: tuple[EdgeType, ...] = (("a", "likes", "b"), ("b", "by", "a"), ("b", "near", "b"), ("c", "owns", "a"))
# Options of `two_versions` and of sampling
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "labor": {"sampling": {"method": "labor"}},
    "weights": {"graph": {"weighted": True}, "sampling": {"weight_attr": "weight"}},
    "times of edges": {"graph": {"timed": "edges"}, "sampling": {"time_attr": "time"}},
    "times of nodes": {"graph": {"timed": "nodes"}, "sampling": {"time_attr": "time"}},
    "undirected": {"graph": {"undirected": True}},
}


@dataclass
class TwoVersions:
    """base, whole: the graph before and after.  additions: what makes one of the other."""

    base: ArraySource
    whole: ArraySource
    additions: Additions
    options: dict[str, Any] = field(default_factory=dict)
    undirected: bool = False
    normalize: str = "none"

    def partition(self, source: ArraySource, folder: Path, parts: int) -> LocalPartition:
        options, normalize = PartitionOptions(num_parts=parts, **self.options), self.normalize
        if source is self.whole and normalize != "none":
            source, normalize = self.normalized(), "none"
        partition_graph(source, folder, options, undirected=self.undirected, normalize=normalize, progress=False)
        return LocalPartition.open(folder)

    def normalized(self) -> ArraySource:
        """The whole graph, normalised by the statistics of the base."""
        node = {t: dict(attrs) for t, attrs in self.whole.node.items()}
        for t, attrs in node.items():
            x, old = np.asarray(attrs["x"]), np.asarray(self.base.node[t]["x"])
            if self.normalize == "rows":
                moved = x - old.min()
                attrs["x"] = moved / np.maximum(moved.sum(axis=1, keepdims=True), 1)
                continue
            mean, deviation = old.mean(axis=0, dtype=np.float64), np.sqrt(old.astype(np.float64).var(axis=0))
            varies = deviation > 1e-9 * np.abs(mean)
            scale = np.where(varies, 1 / np.where(varies, deviation, 1), 0)
            attrs["x"] = ((x.astype(np.float64) - mean) * scale).astype(np.float32)
        return replace(self.whole, node=node)


def two_versions(
    rng: np.random.Generator,
    edge_types: tuple[EdgeType, ...] = (EDGE,),
    *,
    nodes: int = 40,
    undirected: bool = False,
    weighted: bool = False,
    timed: str | None = None,
    changes: bool = True,
    storage: dict[str, str] | None = None,
    normalize: str = "none",
) -> TwoVersions:
    """A random graph, cut at random: nodes and edges of the base come first. Skewed degrees, parallel edges, self loops, nodes
    without edges, types to which nothing is added.

    timed: ``nodes`` or ``edges`` have times, few distinct ones.
    """
    types = tuple(sorted({t for s, _, d in edge_types for t in (s, d)}))
    schema = GraphSchema(types, edge_types, edge_types == (EDGE,))
    after = {t: int(rng.integers(nodes // 2, nodes)) for t in types}
    before = {t: int(rng.integers(1, n + 1)) for t, n in after.items()}
    ends: dict[EdgeType, np.ndarray] = {}
    early: dict[EdgeType, int] = {}
    for e in schema.edge_types:
        early[e] = int(rng.integers(0, 4 * nodes))
        late = int(rng.integers(0, 2 * nodes)) if rng.integers(4) else 0
        counts = [(early[e], before), (late, after)]
        ends[e] = np.concatenate(
            [np.stack([(rng.random(k) ** 2 * n[t]).astype(np.int64) for t in (e[0], e[2])]) for k, n in counts], axis=1
        )
    node = {t: {"x": rng.random((n, 3), np.float32), "tag": rng.integers(0, 99, (n, 2))} for t, n in after.items()}
    edge: dict[EdgeType, dict[str, np.ndarray]] = {e: {} for e in schema.edge_types}
    for e, index in ends.items():
        count = index.shape[1]
        if rng.integers(2) or weighted:
            edge[e]["edge_attr"] = rng.random((count, 2), np.float32)
        if weighted:
            edge[e]["weight"] = (
                rng.random(count) * (rng.random(count) < 0.8) if rng.integers(2) else rng.integers(0, 9, count)
            )
        if timed == "edges":
            edge[e]["time"] = rng.integers(0, 6, count)
    if timed == "nodes":
        for t in types:
            node[t]["time"] = rng.integers(0, 6, after[t])
    changed = _changed(rng, before, node) if changes else {}
    whole = _source(schema, after, ends, node, edge)
    base = _source(
        schema,
        before,
        {e: index[:, : early[e]] for e, index in ends.items()},
        {t: {n: v[: before[t]] for n, v in attrs.items()} for t, attrs in node.items()},
        {e: {n: v[: early[e]] for n, v in attrs.items()} for e, attrs in edge.items()},
    )
    base = _with_old(base, changed, rng)
    additions = Additions(
        nodes={
            t: NewNodes(after[t] - before[t], {n: v[before[t] :] for n, v in node[t].items()})
            for t in types
            if after[t] > before[t]
        },
        edges={
            e: NewEdges(index[:, early[e] :], {n: v[early[e] :] for n, v in edge[e].items()})
            for e, index in ends.items()
            if index.shape[1] > early[e]
        },
        changed=changed,
    )
    options: dict[str, Any] = {"weights": ["weight"]} if weighted else {}
    options |= {} if timed is None else {"time_attr": "time"}
    options |= {} if storage is None else {"storage": storage}
    return TwoVersions(base, whole, additions, options, undirected, normalize)


def _changed(
    rng: np.random.Generator, before: dict[str, int], node: dict[str, dict[str, np.ndarray]]
) -> dict[str, ChangedNodes]:
    found = {}
    for t, count in before.items():
        ids = rng.permutation(count)[: int(rng.integers(0, count + 1)) // 3]
        names = [n for n in ("x", "tag") if rng.integers(2)]
        if len(ids) and names:
            found[t] = ChangedNodes(ids, {n: node[t][n][ids] for n in names})
    return found


def _with_old(base: ArraySource, changed: dict[str, ChangedNodes], rng: np.random.Generator) -> ArraySource:
    """The base, with other values where they change later."""
    node = {t: dict(attrs) for t, attrs in base.node.items()}
    for t, each in changed.items():
        for n in each.attrs:
            values = np.array(node[t][n])
            values[each.ids] = rng.permutation(values[each.ids]) + 1
            node[t][n] = values
    base.node = node
    return base


def _source(schema: GraphSchema, num_nodes: Any, ends: Any, node: Any, edge: Any) -> ArraySource:
    return ArraySource(
        name="two versions",
        fingerprint=str(sorted(num_nodes.items())) + str([index.shape for index in ends.values()]),
        schema=schema,
        num_nodes=num_nodes,
        edge_index=ends,
        node=node,
        edge=edge,
    )
