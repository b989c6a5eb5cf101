"""A partition with rows added to it gives, bit for bit, the batches of the graph partitioned anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import (
    EDGE,
    CacheOptions,
    DataError,
    OptionError,
    PartitionError,
    SamplingOptions,
    edge_type_str,
)
from glt_lightning.graph import GrownPartition, LocalPartition, edge_path
from glt_lightning.kernels import graph as views
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.partition import Additions, ChangedNodes, NewEdges, NewNodes, add_rows, check_rows
from glt_lightning.sampling import KHopSampler
from glt_lightning.tensors import GraphReader
from glt_lightning.tensors.space import row_spaces
from tests.helpers.contents import contents
from tests.helpers.grown import TYPED, TwoVersions, two_versions
from tests.helpers.owners import DirectRows
from tests.helpers.pickers import Heaviest

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "labor": {"sampling": {"method": "labor"}},
    "with replacement": {"sampling": {"replace": True}},
    "weights": {"graph": {"weighted": True}, "sampling": {"weight_attr": "weight"}},
    "labor by weights": {"graph": {"weighted": True}, "sampling": {"method": "labor", "weight_attr": "weight"}},
    "times of edges": {"graph": {"timed": "edges"}, "sampling": {"time_attr": "time"}},
    "times of nodes": {"graph": {"timed": "nodes"}, "sampling": {"time_attr": "time"}},
    "latest": {"graph": {"timed": "edges"}, "sampling": {"time_attr": "time", "temporal_strategy": "last"}},
    "undirected": {"graph": {"undirected": True}},
    "undirected, times": {"graph": {"undirected": True, "timed": "edges"}, "sampling": {"time_attr": "time"}},
    "undirected, weights": {"graph": {"undirected": True, "weighted": True}, "sampling": {"weight_attr": "weight"}},
    "picker": {"sampling": {"picker": Heaviest()}},
    # Walks are of one edge type, which even places of the diagonal have.
    "walks": {"sampling": {"importance_neighbors": {"walks": 20, "length": 3}, "with_edge": False}},
    "picker, times": {"graph": {"timed": "edges"}, "sampling": {"picker": Heaviest(), "time_attr": "time"}},
    "walks by weight": {
        "graph": {"weighted": True},
        "sampling": {"importance_neighbors": {"walks": 20, "length": 3}, "weight_attr": "weight", "with_edge": False},
    },
    "fewer bytes": {"graph": {"storage": {"x": "int8", "edge_attr": "float16"}, "weighted": True}},
    "rows that sum to 1": {"graph": {"normalize": "rows"}},
    "standardized, fewer bytes": {"graph": {"normalize": "standardize", "storage": {"x": "bfloat16"}}},
}


def batches(graph: LocalPartition, spec: LoaderSpec | LinkSpec, sampling: SamplingOptions) -> list[Any]:
    with Session(graph, sampling, seed=5) as session:
        return [contents(batch) for batch in session.make_loader(spec)]


def specs(two: TwoVersions, rng: np.random.Generator, timed: bool, walks: bool = False) -> list[LoaderSpec | LinkSpec]:
    """Of nodes and of edges, disjoint or not, with whole neighbourhoods and with draws."""
    made: list[LoaderSpec | LinkSpec] = []
    whole = two.whole
    for fanouts in ([2, 3], [-1, 2], [3, -1, 1]):
        seeds = {t: rng.integers(0, n, 15) for t, n in whole.num_nodes.items()}
        common: dict[str, Any] = {"num_neighbors": fanouts, "batch_size": 6, "shuffle": True}
        times = {"input_time": {t: rng.integers(0, 7, 15) for t in seeds}} if timed else {}
        if whole.schema.homogeneous:
            seeds, times = seeds["node"], {n: v["node"] for n, v in times.items()}
        disjoint = timed or bool(rng.integers(2))
        made.append(LoaderSpec(name=f"nodes {fanouts}", seeds=seeds, **times, **common, disjoint=disjoint))
        kind = ("directional", "bidirectional", "induced")[len(made) % 3]
        if not timed and not walks:
            made.append(LoaderSpec(name=f"{kind} {fanouts}", seeds=seeds, **common, subgraph_type=kind))
        edge_type = whole.schema.edge_types[int(rng.integers(len(whole.schema.edge_types)))]
        ends = np.stack([rng.integers(0, whole.num_nodes[t], 15) for t in (edge_type[0], edge_type[2])])
        links: dict[str, Any] = {"exclude_target_edges": "self"}
        of_nodes = "time" in whole.node[whole.schema.node_types[0]]
        links["neg_sampling"] = {"mode": "binary", "unresolved": "oldest"} if of_nodes else "binary"
        if timed:
            times = rng.integers(5, 7, 15)  # late: few nodes exist earlier
            links["edge_label_time"] = times if whole.schema.homogeneous else {edge_type_str(edge_type): times}
        edges: Any = ends if whole.schema.homogeneous else {edge_type_str(edge_type): ends}
        made.append(LinkSpec(name=f"edges {fanouts}", edge_label_index=edges, **common, **links))
    return made


@pytest.mark.diagonal
@pytest.mark.parametrize("edge_types", [(EDGE,), TYPED], ids=["homogeneous", "typed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(12))
def test_batches_equal_those_of_the_graph_partitioned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, edge_types: Any, number: int
) -> None:
    if "walks" in kind and edge_types == TYPED:
        pytest.skip("walks go along the one edge type")
    monkeypatch.setattr(views, "_DENSE", 64 * (number % 2))  # replaced rows are found by bits, or by search, as few are
    rng = np.random.default_rng([number, len(kind), len(edge_types)])
    two = two_versions(rng, edge_types, **KINDS[kind].get("graph", {}))
    given = KINDS[kind].get("sampling", {})
    sampling = SamplingOptions(**{"with_edge": True, **given})
    anew = two.partition(two.whole, tmp_path / "anew", 1)
    base = two.partition(two.base, tmp_path / "base", 1 + (number + len(kind)) % 4)
    grown = add_rows(base, two.additions)
    assert check_rows(base, two.additions) == grown.overlay.facts
    made = {path: len(array) for path, array in grown.overlay.arrays.items() if path.endswith("indices.npy")}
    parts = base.manifest.num_parts
    counts = tuple(
        tuple(made[edge_path(parts + p, r, "indices")] for p in base.parts) for r in range(len(base.schema.edge_types))
    )
    assert grown.overlay.facts.edges == counts
    assert grown.manifest.num_nodes == anew.manifest.num_nodes
    assert grown.manifest.num_edges == anew.manifest.num_edges
    assert grown.manifest.edge_columns == anew.manifest.edge_columns
    compared = 0
    for spec in specs(two, rng, "time_attr" in given, "importance_neighbors" in given):
        expected = batches(anew, spec, sampling)
        assert batches(grown, spec, sampling) == expected
        compared += len(expected)
    assert compared


# Bad rows are refused, each by a line that names it.


def add_to(tmp_path: Path, additions: Additions, **options: Any) -> None:
    two = two_versions(np.random.default_rng(0), **options)
    add_rows(two.partition(two.base, tmp_path / "base", 2), additions)


X, TAG = np.zeros((1, 3), np.float32), np.zeros((1, 2), np.int64)


@pytest.mark.parametrize(
    ("additions", "said"),
    [
        (Additions(nodes={"paper": NewNodes(1)}), "no node type 'paper'"),
        (Additions(nodes={"node": NewNodes(1, {"x": X})}), "tag of node type 'node': new rows need it"),
        (Additions(nodes={"node": NewNodes(1, {"x": X[:, :2], "tag": TAG})}), r"expected \[1, 3\], got \[1, 2\]"),
        (
            Additions(nodes={"node": NewNodes(1, {"x": X, "tag": TAG, "z": X})}),
            "z of node type 'node': the graph has no",
        ),
        (Additions(nodes={"node": NewNodes(1, {"x": X, "tag": TAG + 0.5})}), "expected int64, got float64"),
        (Additions(nodes={"node": NewNodes(1, {"x": X + np.nan, "tag": TAG})}), "row .* is nan"),
        (
            Additions(edges={("a", "to", "b"): NewEdges(np.zeros((2, 0), int))}),
            "no edge type a__to__b; it has: node__to__node",
        ),
        (
            Additions(edges={EDGE: NewEdges(np.array([[0], [999]]))}),
            "edge 0 has the destination 999; expected 0 to .* with the new ones",
        ),
        (Additions(edges={EDGE: NewEdges(np.zeros((1, 4), int))}), r"expected integers \[2, E\]"),
        (Additions(changed={"node": ChangedNodes(np.array([0, 0]), {"x": X[[0, 0]]})}), "each id once"),
        (Additions(changed={"node": ChangedNodes(np.array([999]), {"x": X})}), "999 is no node of the graph"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, additions: Additions, said: str) -> None:
    with pytest.raises(DataError, match=said):
        add_to(tmp_path, additions)


def test_times_that_order_rows_cannot_change(tmp_path: Path) -> None:
    changed = Additions(changed={"node": ChangedNodes(np.array([0]), {"time": np.array([1])})})
    with pytest.raises(DataError, match="time orders the rows of the graph"):
        add_to(tmp_path, changed, timed="nodes")


def test_a_folder_of_an_earlier_release_is_refused(tmp_path: Path) -> None:
    two = two_versions(np.random.default_rng(0))
    two.partition(two.base, tmp_path / "base", 1)
    manifest = json.loads((tmp_path / "base" / "manifest.json").read_text())
    del manifest["edge_columns"]
    (tmp_path / "base" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PartitionError, match="an earlier release wrote this partition"):
        add_rows(LocalPartition.open(tmp_path / "base"), two.additions)


def test_sampler_processes_map_the_overlay(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    two = two_versions(rng, TYPED, weighted=True)
    grown = add_rows(two.partition(two.base, tmp_path / "base", 2), two.additions)
    for spec in specs(two, rng, timed=False):
        expected = batches(grown, spec, SamplingOptions(with_edge=True))
        assert batches(grown, spec, SamplingOptions(with_edge=True, num_workers=1)) == expected


def test_labor_leaves_the_ids_of_old_nodes_where_they_are(tmp_path: Path) -> None:
    two = two_versions(np.random.default_rng(5), TYPED)
    base = two.partition(two.base, tmp_path / "base", 2)
    version = add_rows(base, two.additions)
    for below in (base, version):
        labor = add_rows(below, Additions()).drawn_by((), timed=False, labor=True).labor
        assert labor is not None
        for t, ids in enumerate(labor.ids):
            assert ids is None or ids is below.user_ids(t)


def test_owners_of_parts_have_their_part_of_the_overlay(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    two = two_versions(rng, TYPED, nodes=80)
    base = two.partition(two.base, tmp_path / "base", 3)
    grown = add_rows(base, two.additions)
    here, *others = (
        GrownPartition(LocalPartition.open(tmp_path / "base", parts=[p]), grown.overlay) for p in (1, 0, 2)
    )
    remote = DirectRows(6, others)
    compared = 0
    for spec in specs(two, rng, timed=False):
        with Session(grown, SamplingOptions(with_edge=True), seed=5) as session:
            loader = session.make_loader(spec)
            config, requests = loader._config, list(loader.plan.requests(0))
        local, routed = KHopSampler(grown, config), KHopSampler(here, config, remote=remote)
        for request in requests:
            expected = {name: np.array(a).tolist() for name, a in local.draft(request).values().items()}
            assert {name: np.array(a).tolist() for name, a in routed.draft(request).values().items()} == expected
            compared += 1
    assert compared


@pytest.mark.parametrize(
    ("options", "said"),
    [({"memory": "1GB"}, "cache.memory: has no effect on rows"), ({"device": "1GB"}, "cache.device")],
)
def test_caches_of_rows_are_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    two = two_versions(np.random.default_rng(0))
    grown = add_rows(two.partition(two.base, tmp_path / "base", 1), two.additions)
    with pytest.raises(OptionError, match=said):
        Session(grown, cache=CacheOptions(**options))
    grown.close()


@pytest.mark.parametrize("edge_types", [(EDGE,), TYPED], ids=["homogeneous", "typed"])
def test_in_degrees_count_the_rows_that_are_read(tmp_path: Path, edge_types: Any) -> None:
    two = two_versions(np.random.default_rng(6), edge_types)
    degrees = []
    for graph in (
        add_rows(two.partition(two.base, tmp_path / "base", 2), two.additions),
        two.partition(two.whole, tmp_path / "anew", 1),
    ):
        reader = GraphReader.of(graph)
        for space in (each for each in row_spaces(graph.manifest) if each.kind == "node"):
            parts = [reader.edges_into(space, p) for p in range(graph.manifest.num_parts)]
            ids = graph.user_ids(graph.schema.node_index(space.of))
            degrees.append(np.concatenate(parts)[np.argsort(ids)].tolist())
    half = len(degrees) // 2
    assert degrees[:half] == degrees[half:]
