"""Every feature of batches in every mode: bit for bit what one process makes of a graph that is not cut.

A row is what a loader is asked for, a column who makes its batches. A new feature is one more row, a new way to make batches one
more column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning.base import CacheOptions, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.sampling import KHopSampler
from glt_lightning.workers.producer import on_gpu
from tests.helpers.contents import Contents, contents
from tests.helpers.owners import make_cache, split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.pickers import Heaviest
from tests.helpers.servers import open_farm

PARTS = 3
SEED = 3
RNG = np.random.default_rng(1)
WRITES, CITES = "author__writes__paper", "paper__cites__paper"
PAIRS = RNG.integers(0, 300, (2, 70))
TYPED_PAIRS = {
    CITES: RNG.integers(0, 200, (2, 40)),
    WRITES: np.stack([RNG.integers(0, 80, 30), RNG.integers(0, 200, 30)]),
}


@dataclass(frozen=True)
class Feature:
    """graph: name of one of `graphs`.  on_gpu: whether a GPU samples such batches."""

    graph: str = "plain"
    sampling: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    on_gpu: bool = True

    def make_spec(self) -> LoaderSpec | LinkSpec:
        plain = {"name": "train", "num_neighbors": [4, 3], "batch_size": 32, "shuffle": True}
        if "edge_label_index" in self.spec:
            return LinkSpec(**plain | self.spec)
        seeds = {} if "seeds" in self.spec or "node_type" in self.spec else {"split": "train"}
        return LoaderSpec(**plain | seeds | self.spec)


def links(**options: Any) -> dict[str, Any]:
    return {"edge_label_index": PAIRS, **options}


FEATURES = {
    "nodes": Feature(),
    "all neighbours": Feature(spec={"num_neighbors": [-1, 2]}),
    "with replacement": Feature(sampling={"replace": True}),
    "edge rows": Feature("typed", sampling={"with_edge": True}),  # edges with attributes have them anyway
    "LABOR": Feature(sampling={"method": "labor"}),
    "dependent batches": Feature(sampling={"batch_dependency": 4}),
    "seeds by weight": Feature(spec={"seed_weights": np.arange(100)}),
    "extras": Feature(spec={"extras": {"t": np.arange(100) * 10**10}}),
    "own seeds, exact": Feature(spec={"seeds": np.array([7, 3, 7, 299]), "exact": True, "shuffle": False}),
    "seeds alone": Feature(spec={"num_neighbors": []}),
    "rows": Feature(spec={"with_row": True}),
    "EdgeIndex": Feature(spec={"edge_format": "edge_index"}),
    "EdgeIndex, both orders": Feature(spec={"edge_format": "edge_index_csr"}),
    "trees": Feature(spec={"disjoint": True}, on_gpu=False),
    "induced": Feature(spec={"subgraph_type": "induced"}),
    "bidirectional": Feature(spec={"subgraph_type": "bidirectional"}),
    "ShaDow": Feature(spec={"subgraph_type": "induced", "disjoint": True, "ptr": True}, on_gpu=False),
    "aggregate first": Feature(sampling={"aggregate_first": "mean"}, on_gpu=False),
    "picker": Feature(sampling={"picker": Heaviest()}, on_gpu=False),
    "walks": Feature(sampling={"importance_neighbors": {"walks": 5, "length": 3, "restart": 0.3}}, on_gpu=False),
    "weights": Feature("weighted", sampling={"weight_attr": "weight"}),
    "half precision, decoded": Feature("half"),
    "half precision, as stored": Feature("half", sampling={"feature_dtype": "stored"}),
    "times": Feature("timed", sampling={"time_attr": "time"}, spec={"input_time": np.arange(100) % 50}, on_gpu=False),
    "times, latest": Feature(
        "timed",
        sampling={"time_attr": "time", "temporal_strategy": "last", "time_window": 30},
        spec={"input_time": np.arange(100) % 50},
        on_gpu=False,
    ),
    "edges": Feature(spec=links()),
    "binary negatives": Feature(spec=links(neg_sampling=("binary", 0.3), edge_label=np.arange(70) % 3)),
    "triplets": Feature(spec=links(neg_sampling=("triplet", 2))),
    "negatives that are given, of both ends": Feature(
        spec=links(
            negatives=np.arange(210).reshape(70, 3) - 1,  # the first is to be drawn
            source_negatives=np.arange(140).reshape(70, 2),
        )
    ),
    "shared negatives": Feature(spec=links(neg_sampling={"mode": "triplet", "amount": 5, "sharing": "shared"})),
    "negatives of the batch": Feature(spec=links(neg_sampling={"mode": "triplet", "sharing": "in_batch"})),
    "weighted negatives": Feature(spec=links(neg_sampling={"src_weight": "degree", "dst_weight": np.arange(300) % 4})),
    "hidden edges": Feature(spec=links(neg_sampling="binary", exclude_target_edges="reverse")),
    "attributes of targets": Feature(spec=links(with_target_attrs=True), on_gpu=False),
    "relations": Feature(
        spec=links(
            neg_sampling=("triplet", 2),
            rel_type=np.arange(70) % 3,
            known_edges=np.stack([*PAIRS[::-1], np.arange(70) % 3]),
        )
    ),
    "attributes of labelled edges": Feature(
        spec=links(edge_label=np.arange(70) % 5, extras={"edge_label_attr": np.eye(70, 4, dtype=np.float32)})
    ),
    "SEAL": Feature(
        spec=links(neg_sampling="binary", disjoint=True, tree="example", subgraph_type="induced"), on_gpu=False
    ),
    "types": Feature("typed"),
    "seeds of types": Feature("typed", spec={"seeds": {"paper": np.arange(60), "author": np.arange(40)}}),
    "edges of types": Feature("typed", spec={"edge_label_index": TYPED_PAIRS, "neg_sampling": "binary"}),
    "relations of one type": Feature(
        "typed",
        spec={
            "edge_label_index": TYPED_PAIRS[CITES],
            "edge_type": CITES,
            "neg_sampling": "binary",
            "rel_type": np.arange(40) % 2,
            "exclude_target_edges": "reverse",
        },
    ),
    "types, induced": Feature("typed", spec={"subgraph_type": "induced"}),
    "types, LABOR": Feature("typed", sampling={"method": "labor", "with_edge": True}),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], LocalPartition]]:
    """A graph in one part, or in `PARTS`."""
    folder = tmp_path_factory.mktemp("graphs")
    made = {
        "plain": lambda path, parts: partitioned(small_graph(), path, parts, undirected=True),
        "weighted": lambda path, parts: partitioned(with_attr("weight"), path, parts, weights=["weight"]),
        "half": lambda path, parts: partitioned(small_graph(), path, parts, storage={"x": "float16"}),
        "timed": lambda path, parts: partitioned(with_attr("time"), path, parts, time_attr="time"),
        "typed": lambda path, parts: partitioned(small_hetero(), path, parts, undirected=True),
    }

    @cache
    def open_graph(name: str, parts: int) -> LocalPartition:
        (path := folder / name).mkdir(exist_ok=True)
        return made[name](path, parts)

    yield open_graph
    open_graph.cache_clear()


def with_attr(name: str) -> Any:
    data = small_graph()
    data[name] = torch.from_numpy(np.random.default_rng(2).integers(0, 60, data.edge_index.size(1)))
    return data


def epochs(session: Session, feature: Feature) -> list[Contents]:
    """Of two epochs, so that the second one's order counts, too."""
    loader, found = session.make_loader(feature.make_spec()), list[Contents]()
    for epoch in range(2):
        loader.set_epoch(epoch)
        found += [contents(session.to_device(batch)) for batch in loader]
    return found


@contextmanager
def opened(graph: LocalPartition, sampling: dict[str, Any], **more: Any) -> Iterator[Session]:
    with Session(graph, SamplingOptions(**sampling | more, max_restarts=0), seed=SEED) as session:
        yield session


@pytest.fixture(scope="module")
def expected(graphs) -> Callable[[str], list[Contents]]:
    @cache
    def of(name: str) -> list[Contents]:
        feature = FEATURES[name]
        # rows are numbered by part
        with opened(graphs(feature.graph, PARTS if "with_row" in feature.spec else 1), feature.sampling) as session:
            found = epochs(session, feature)
        assert len(found) > 1
        return found

    return of


@pytest.mark.parametrize("name", [name for name, each in FEATURES.items() if each.sampling or each.spec])
def test_a_feature_changes_batches(name: str, graphs, expected) -> None:
    """Else all modes would be equal because none of them has it."""
    graph = FEATURES[name].graph
    with opened(graphs(graph, 1), {}) as session:
        assert expected(name) != epochs(session, Feature(graph))


def groups(on_gpu: bool = False) -> list[Any]:
    """Names of features that one session can make, with its graph and options of sampling: processes are started once for all.

    on_gpu: only those that a GPU samples.
    """
    found: dict[str, tuple[str, dict[str, Any], list[str]]] = {}
    for name, feature in FEATURES.items():
        if on_gpu and not feature.on_gpu:
            continue
        found.setdefault(f"{feature.graph} {feature.sampling}", (feature.graph, feature.sampling, []))[2].append(name)
    return [pytest.param(*group, id=key) for key, group in found.items()]


@pytest.mark.parametrize(("graph", "sampling", "names"), groups())
class TestEquality:
    def test_parts_and_threads(self, graph, sampling, names, graphs, expected) -> None:
        with opened(graphs(graph, PARTS), sampling, num_threads=2) as session:
            for name in names:
                assert (name, epochs(session, FEATURES[name])) == (name, expected(name))

    def test_sampler_processes(self, graph, sampling, names, graphs, expected) -> None:
        with opened(graphs(graph, PARTS), sampling, num_workers=1 if sampling else 2) as session:
            for name in names:
                assert (name, epochs(session, FEATURES[name])) == (name, expected(name))

    def test_a_graph_server(self, graph, sampling, names, graphs, expected) -> None:
        options = SamplingOptions(**sampling)
        with open_farm("in process") as farm:
            session = farm.context(
                farm.serve(graphs(graph, PARTS), picker=options.draw.picker).address, sampling=options
            )
            for name in names:
                assert (name, epochs(session, FEATURES[name])) == (name, expected(name))

    @pytest.mark.parametrize("cached", [False, True])
    def test_parts_of_other_hosts(self, graph, sampling, names, cached: bool, graphs) -> None:
        """Drafts of batches: who finishes them is another question."""
        whole = graphs(graph, PARTS)
        here, remote = split_up(whole, [[1], [0], [2]], SamplingOptions(**sampling).draw.picker)
        options = CacheOptions(bytes=200_000, topology=50_000, policy="degree")
        with ExitStack() as opened_here, opened(whole, sampling) as session:
            rows = make_cache(here, remote, options) if cached else None
            if rows is not None:
                opened_here.callback(rows.close)
            for name in names:
                loader = session.make_loader(FEATURES[name].make_spec())
                local = KHopSampler(whole, loader.config)
                routed = KHopSampler(here, loader.config, remote=remote, cache=rows)
                for request in loader.plan.requests(0):
                    drafts = [arrays(each.draft(request).values()) for each in (routed, local)]
                    assert (name, drafts[0]) == (name, drafts[1])


@pytest.mark.parametrize(("graph", "sampling", "names"), groups(on_gpu=True))
def test_a_gpu(graph, sampling, names, graphs, expected, kernels, monkeypatch) -> None:
    """Emulated: the CPU counts as one."""
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    with opened(graphs(graph, PARTS), sampling) as session:
        for name in names:
            assert (name, epochs(session, FEATURES[name])) == (name, expected(name))


def arrays(given: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(array).tolist() for name, array in given.items()}
