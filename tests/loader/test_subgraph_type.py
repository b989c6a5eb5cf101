"""``subgraph_type``: edges of a batch are those of the user's list, whoever makes the batches and however the graph is cut."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import DataError, GLTError, OptionError, SamplingOptions
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.loader.recipe import subgraph_task
from glt_lightning.sampling.device_neighbors import DeviceNeighbors
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.workers import Ranks
from glt_lightning.workers.producer import on_gpu
from glt_lightning.workers.producer.on_gpu import DeviceProducer
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.workers.test_group import open_rank

PLAIN: dict[str, Any] = {"name": "train", "num_neighbors": [3, 2], "batch_size": 20, "shuffle": True}
KINDS = ("bidirectional", "induced")


def hetero() -> HeteroData:
    """Papers know of their authors, too, but not of all of them; and edges have attributes."""
    data = small_hetero()
    edges = data["author", "writes", "paper"].edge_index
    data["paper", "rev_writes", "author"].edge_index = edges.flip(0)[:, ::2].contiguous()
    for store in data.edge_stores:
        store.edge_attr = torch.arange(2 * store.edge_index.size(1), dtype=torch.float32).view(-1, 2)
    return data


GRAPHS = {"one type": small_graph, "several": hetero}


def spec(data, kind: str, **changes: Any) -> LoaderSpec:
    of = {} if isinstance(data, Data) else {"node_type": "paper"}
    return LoaderSpec(**PLAIN | of | {"subgraph_type": kind} | changes)


def link_spec(data, kind: str, **changes: Any) -> LinkSpec:
    name = None if isinstance(data, Data) else "author__writes__paper"
    edges = data.edge_index if name is None else data["author", "writes", "paper"].edge_index
    loader = PLAIN | {"edge_label_index": edges[:, :70].numpy(), "neg_sampling": "binary", "edge_type": name}
    return LinkSpec(**loader | {"exclude_target_edges": "reverse", "subgraph_type": kind} | changes)


def loaders(context: Session, data) -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        yield kind, context.make_loader(spec(data, kind))
        yield kind, context.make_loader(link_spec(data, kind))


def disjoint_loaders(context: Session, data) -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        yield kind, context.make_loader(spec(data, kind, disjoint=True))
        yield kind, context.make_loader(link_spec(data, kind, disjoint=True))


def all_loaders(context: Session, data) -> list[list[Any]]:
    made = [*loaders(context, data), *disjoint_loaders(context, data)]
    return [[contents(batch) for batch in loader] for _, loader in made]


def stores(data) -> list[tuple[Any, Any, Any]]:
    """(store of edges, of their sources, of their destinations) of each edge type."""
    if isinstance(data, Data):
        return [(data, data, data)]
    return [(data[e], data[e[0]], data[e[2]]) for e in sorted(data.edge_types)]


def excluded_of(batch, data) -> list[set[tuple[int, int]]]:
    """Per edge type, the (source, destination) that a batch of edges must not have, in the user's ids."""
    found: list[set[tuple[int, int]]] = [set() for _ in stores(data)]
    targets = batch if isinstance(data, Data) else batch["author", "writes", "paper"]
    if "edge_label_index" not in targets:
        return found
    ends = [("", "")] if isinstance(data, Data) else [("author", "paper")]
    src, dst = (batch if isinstance(data, Data) else batch[t] for t in ends[0])
    pairs = targets.edge_label_index[:, : len(targets.input_id)]
    pairs = list(zip(src.n_id[pairs[0]].tolist(), dst.n_id[pairs[1]].tolist(), strict=True))
    types = [None] if isinstance(data, Data) else [e[1] for e in sorted(data.edge_types)]
    for name, each in zip(types, found, strict=True):
        each.update(pairs if name in (None, "writes") else [])
        each.update([(v, u) for u, v in pairs] if name in (None, "rev_writes") else [])
    return found


def check_induced(batch, data) -> None:
    """S4: all edges of the user's list among the nodes, with parallel ones and loops, but for those excluded; by id and ends."""
    parts = zip(stores(batch), stores(data), excluded_of(batch, data), strict=True)
    for (edges, src, dst), (whole, _, _), gone in parts:
        ends = list(zip(*whole.edge_index.tolist(), strict=True))
        sources, destinations = set(src.n_id.tolist()), dst.n_id.tolist()  # a seed that comes twice has its edges twice
        wanted = Counter(
            (i, d)
            for i, (s, d) in enumerate(ends)
            for _ in range(destinations.count(d) if s in sources and (s, d) not in gone else 0)
        )
        found = Counter(zip(edges.e_id.tolist(), dst.n_id[edges.edge_index[1]].tolist(), strict=True))
        assert found == wanted
        check_edges(edges, src, dst, whole, ends)
        order = list(
            zip(edges.edge_index[1].tolist(), src.n_id[edges.edge_index[0]].tolist(), edges.e_id.tolist(), strict=True)
        )
        assert order == sorted(order)  # destinations, and each row as it is stored
        assert "num_sampled_edges" not in edges


def check_edges(edges, src, dst, whole, ends) -> None:
    """Each edge is that of its id, in the other direction where it is flipped; its attributes, too."""
    flipped = edges.is_flipped.tolist() if "is_flipped" in edges else [False] * len(edges.e_id)
    mine = zip(*(n_id.tolist() for n_id in (src.n_id[edges.edge_index[0]], dst.n_id[edges.edge_index[1]])), strict=True)
    for pair, i, back in zip(mine, edges.e_id.tolist(), flipped, strict=True):
        assert pair == (ends[i][::-1] if back else ends[i])
    if "edge_attr" in whole:
        assert torch.equal(edges.edge_attr, whole.edge_attr[edges.e_id])


def check_bidirectional(batch, directional, data) -> None:
    """The sampled edges first; then, of each of them, all stored edges of the other direction, else a flipped copy."""
    gone = excluded_of(batch, data)
    names = [None] if isinstance(data, Data) else [e[1] for e in sorted(data.edge_types)]
    back = {None: None, "cites": "cites", "writes": "rev_writes", "rev_writes": "writes"}
    every = list(zip(names, stores(batch), stores(directional), stores(data), gone, strict=True))
    for name, (edges, src, dst), _, (whole, _, _), excluded in every:
        ends = list(zip(*whole.edge_index.tolist(), strict=True))
        check_edges(edges, src, dst, whole, ends)
        before = next(each for other, _, (each, _, _), _, _ in every if other == name)
        count = before.edge_index.size(1)
        assert torch.equal(edges.edge_index[:, :count], before.edge_index)
        assert torch.equal(edges.e_id[:count], before.e_id)
        assert sum(edges.num_sampled_edges) == count
        assert not edges.is_flipped[:count].any()
        of = next(each for other, _, each, _, _ in every if other == back[name])[0]
        # by id and the user's ids of the ends; a batch of the loaders here has no node twice
        n_src, n_dst = (each.n_id.tolist() for each in (src, dst))
        asked = {(n_src[d], n_dst[s]) for s, d in of.edge_index.T.tolist()} - excluded
        stored = {(i, *pair) for i, pair in enumerate(ends) if pair in asked}
        sampled = {(i, *ends[i]) for i in before.e_id.tolist()}
        wanted = Counter((*each, False) for each in stored - sampled)
        if back[name] == name:
            missing = asked - {(s, d) for _, s, d in stored}
            forward = zip(of.e_id.tolist(), of.edge_index.T.tolist(), strict=True)
            wanted += Counter((i, n_src[d], n_dst[s], True) for i, (s, d) in forward if (n_src[d], n_dst[s]) in missing)
        new = edges.edge_index[:, count:].T.tolist()
        rest = zip(edges.e_id[count:].tolist(), new, edges.is_flipped[count:].tolist(), strict=True)
        assert Counter((i, n_src[s], n_dst[d], flag) for i, (s, d), flag in rest) == wanted


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        (name, parts): partitioned(make(), tmp_path_factory.mktemp("graph"), parts)
        for name, make in GRAPHS.items()
        for parts in (1, 2, 4)
    }


@pytest.fixture(scope="module")
def expected(folders):
    """The batches of one process with all parts, one of them."""
    found = {}
    for name, make in GRAPHS.items():
        with Session(folders[name, 1], seed=3) as context:
            found[name] = all_loaders(context, make())
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_against_brute_force(folders, name):
    data = GRAPHS[name]()
    with Session(folders[name, 1], SamplingOptions(with_edge=True), seed=3) as context:
        for kind, loader in loaders(context, data):
            links = "edge_label_index" in next(iter(loader)) if isinstance(data, Data) else False
            links = links or type(loader).__name__ == "DistLinkNeighborLoader"
            plain = context.make_loader(link_spec(data, "directional")) if links else None
            plain = plain or context.make_loader(spec(data, "directional"))
            loader.set_epoch(0)
            total = 0
            for batch, directional in zip(loader, plain, strict=True):
                for (_, mine, _), (_, theirs, _) in zip(stores(batch), stores(directional), strict=True):
                    assert torch.equal(mine.n_id, theirs.n_id)
                if kind == "induced":
                    check_induced(batch, data)
                else:
                    check_bidirectional(batch, directional, data)
                total += batch.num_edges - directional.num_edges
            assert total > 0


@pytest.mark.diagonal
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("who", ["inline, 4 parts", "3 threads", "sampler process", "server"])
def test_who_makes_the_batches_does_not_matter(folders, expected, name, who):
    def compare(context: Session) -> None:
        assert all_loaders(context, GRAPHS[name]()) == expected[name]

    if who == "server":
        with open_farm("in process") as farm:
            compare(farm.context(farm.serve(folders[name, 2]).address))
        return
    options = SamplingOptions(num_workers=int(who == "sampler process"), num_threads=3 if who == "3 threads" else 1)
    with Session(folders[name, 4 if "4" in who else 2], options, seed=3) as context:
        compare(context)


@pytest.mark.diagonal
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("workers", [0, 1])
def test_where_parts_are_remote(folders, name, workers):
    def found(rank, exchange):
        options = SamplingOptions(num_workers=workers)
        with open_rank(folders[name, 4 if workers else 2], rank, 2, exchange, options) as context:
            made = all_loaders(context, GRAPHS[name]())
            exchange("all done")
            return made

    for rank, made in enumerate(run_ranks(2, found)):
        with Session(folders[name, 1], seed=3, ranks=Ranks(rank, 2)) as context:
            assert made == all_loaders(context, GRAPHS[name]())


@pytest.mark.parametrize("who", ["4 parts", "sampler process", "server", "remote"])
def test_with_labor(folders, who):
    """Its nodes, and the further edges, whoever finds either."""
    data, labor, made = hetero(), SamplingOptions(method="labor"), []

    def batches(context: Session) -> list[Any]:
        loaders = [context.make_loader(spec(data, kind, disjoint=d)) for kind in KINDS for d in (False, True)]
        loaders += [context.make_loader(link_spec(data, kind)) for kind in KINDS]
        return [contents(batch) for loader in loaders for batch in itertools.islice(loader, 2)]

    def of_rank(rank, exchange):
        with open_rank(folders["several", 2], rank, 2, exchange, labor) as context:
            found = batches(context)
            exchange("all done")
            return found

    if who == "remote":
        made = run_ranks(2, of_rank)
    elif who == "server":
        with open_farm("in process") as farm:
            made = [batches(farm.context(farm.serve(folders["several", 2]).address, sampling=labor))]
    else:
        options = SamplingOptions(method="labor", num_workers=int(who == "sampler process"))
        with Session(folders["several", 4], options, seed=3) as context:
            made = [batches(context)]
    for rank, found in enumerate(made):
        for sampling, same in ((labor, True), (None, False)):
            with Session(folders["several", 1], sampling, seed=3, ranks=Ranks(rank, len(made))) as context:
                assert (found == batches(context)) == same


def subgraph(batch) -> tuple[list[int], list[int]]:
    return sorted(batch.n_id.tolist()), sorted(batch.e_id.tolist())


def rows_graph(*rows: list[int]) -> Data:
    """A graph by the sources of each node; edges are numbered row after row."""
    ends = [(source, node) for node, row in enumerate(rows) for source in row]
    return Data(edge_index=torch.tensor(ends).T.contiguous(), num_nodes=len(rows))


def test_two_graphs_of_graphlearn(tmp_path):
    """S1 and S2, as GLT's own tests have them; the second takes no hop, and a seed that comes twice has two rows."""
    graph = rows_graph([0, 1, 7], [1, 3, 6], [2, 4, 6], [5], [1, 3], [0, 5], [0, 4], [7])
    with Session(partitioned(graph, tmp_path / "one", 2)) as context:
        seeds = LoaderSpec(
            name="s", seeds=np.array([0, 3, 7]), num_neighbors=[-1, -1], batch_size=3, subgraph_type="induced"
        )
        (batch,) = context.make_loader(seeds)
        assert subgraph(batch) == ([0, 1, 3, 5, 6, 7], [0, 1, 2, 3, 4, 5, 9, 12, 13, 14, 16])
        assert batch.n_id[:3].tolist() == [0, 3, 7]
    graph = rows_graph([0, 1], [1, 3], [2, 4], [5], [], [])
    with Session(partitioned(graph, tmp_path / "two")) as context:
        spec = LoaderSpec(
            name="s", seeds=np.array([0, 2, 1, 2, 4]), num_neighbors=[], batch_size=5, subgraph_type="induced"
        )
        (batch,) = context.make_loader(spec)
        assert batch.n_id.tolist() == [0, 2, 1, 2, 4]
        edges = list(zip(batch.edge_index[1].tolist(), batch.e_id.tolist(), strict=True))
        assert edges == [(0, 0), (0, 1), (1, 4), (1, 5), (2, 2), (3, 4), (3, 5)]


def test_parallel_edges_and_loops_of_both_directions(tmp_path):
    """0 -> 1 twice, 1 -> 0 once, 0 -> 2 three times, and a loop: copies are as many as the edges."""
    graph = Data(edge_index=torch.tensor([[0, 0, 1, 0, 0, 0, 2], [1, 1, 0, 2, 2, 2, 2]]), num_nodes=3)
    with Session(partitioned(graph, tmp_path)) as context:
        spec = LoaderSpec(
            name="s", seeds=np.array([1, 2]), num_neighbors=[-1], batch_size=2, subgraph_type="bidirectional"
        )
        (batch,) = context.make_loader(spec)
        ends = zip(*batch.n_id[batch.edge_index].tolist(), batch.e_id.tolist(), batch.is_flipped.tolist(), strict=True)
        sampled = [(0, 1, 0), (0, 1, 1), (0, 2, 3), (0, 2, 4), (0, 2, 5), (2, 2, 6)]
        copies = [(2, 0, i, True) for i in (3, 4, 5)]
        assert list(ends) == [(*edge, False) for edge in sampled] + [(1, 0, 2, False), *copies]


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_edges_of_weight_0_are_in_no_batch(tmp_path, kernels, monkeypatch, where):
    data = small_graph()
    data.edge_weight = (torch.arange(data.num_edges) % 3).float()
    graph = partitioned(data, tmp_path, 2, weights=["edge_weight"])
    if where == "gpu":
        sample_on(kernels, monkeypatch)
    with Session(graph, SamplingOptions(weight_attr="edge_weight"), seed=3) as context:
        for kind in KINDS:
            for batch in itertools.islice(context.make_loader(spec(data, kind)), 3):
                assert (batch.edge_weight > 0).all()
                if kind == "bidirectional":  # nor does a copy stand for one that is stored
                    flipped = batch.n_id[batch.edge_index[:, batch.is_flipped]].T.tolist()
                    assert not {tuple(pair) for pair in flipped} & set(zip(*data.edge_index.tolist(), strict=True))


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_a_hub_beyond_the_limit_is_named(folders, kernels, monkeypatch, where):
    data = small_graph()
    if where == "gpu":
        sample_on(kernels, monkeypatch)
    most = int(torch.bincount(data.edge_index[1]).max())
    with Session(folders["one type", 2], seed=3) as context:
        everything = {"num_neighbors": [-1, -1], "batch_size": 300, "split": None, "seeds": None}
        assert len(list(context.make_loader(spec(data, "induced", induced_limit=most, **everything)))) == 1
        with pytest.raises(
            (DataError, GLTError), match=f"has {most} edges of edge type 0, more than {most - 1}. Raise"
        ):
            list(context.make_loader(spec(data, "induced", induced_limit=most - 1, **everything)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subgraph_type": "both"}, "subgraph_type: expected directional, bidirectional, induced; got 'both'"),
        ({"induced_limit": 5}, "induced_limit: has no effect with subgraph_type directional"),
        ({"subgraph_type": "induced", "induced_limit": 0}, "induced_limit: expected a number of edges, 1 or more"),
        (
            {"subgraph_type": "bidirectional", "edge_format": "edge_index"},
            "edge_format: edge_index needs edges that are sorted by destination",
        ),
        ({"reverse_edge_types": {"a__to__b": "b__to__a"}}, "reverse_edge_types: has no effect"),
    ],
)
def test_options_that_contradict_each_other(changes, message):
    with pytest.raises(OptionError, match=message):
        LoaderSpec(**PLAIN | changes)


def test_what_does_not_fit_the_graph(tmp_path, folders):
    cases: list[tuple[Any, SamplingOptions, str]] = [
        ({"kind": "induced"}, SamplingOptions(aggregate_first="mean"), "aggregate_first exclude each other"),
        (
            {"kind": "induced"},
            SamplingOptions(time_attr="t"),
            "time_attr exclude each other: its edges would be of any time",
        ),
    ]
    manifest = folders["one type", 1].manifest
    for given, sampling, message in cases:
        with pytest.raises(OptionError, match=message):
            subgraph_task(spec(small_graph(), **given), manifest, sampling)
    data = small_hetero()
    del data["paper", "cites", "paper"]
    with Session(partitioned(data, tmp_path)) as context:
        with pytest.raises(OptionError, match="no edge type of author__writes__paper has one of the other direction"):
            context.make_loader(spec(data, "bidirectional"))
        wrong = {"author__writes__paper": "author__writes__paper"}
        with pytest.raises(OptionError, match="the reverse of author__writes__paper leads from 'paper' to 'author'"):
            context.make_loader(spec(data, "bidirectional", reverse_edge_types=wrong))


def sample_on(kernels, monkeypatch) -> None:
    """The CPU counts as a GPU, which finds the edges of its rows itself."""

    ask = DeviceNeighbors.ask

    def refuse(source, question):
        assert not isinstance(question, Induce), "the CPU was asked for edges"
        return ask(source, question)

    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    monkeypatch.setattr(DeviceNeighbors, "ask", refuse)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_gpu_that_samples(folders, kernels, monkeypatch, name):
    """It makes the batches of the CPU, also where it has no ids of edges."""
    data, found = GRAPHS[name](), {}
    for where in ("cpu", "gpu"):
        with Session(folders[name, 1], seed=3) as context:
            if where == "gpu":
                assert isinstance(context._producer, DeviceProducer)
            loaders = [context.make_loader(spec(data, kind, disjoint=d)) for kind in KINDS for d in (False, True)]
            loaders += [context.make_loader(link_spec(data, kind)) for kind in KINDS]
            found[where] = [contents(batch) for loader in loaders for batch in itertools.islice(loader, 2)]
        sample_on(kernels, monkeypatch)
    assert found["gpu"] == found["cpu"]


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("name", GRAPHS)
def test_gpus_that_sample_where_parts_are_remote(folders, kernels, monkeypatch, name):
    """Also links whose targets are left out, and both ends of each in one tree (SEAL)."""
    data, whole = GRAPHS[name](), []

    def batches(context: Session) -> list[Any]:
        loaders = [context.make_loader(spec(data, kind, disjoint=d)) for kind in KINDS for d in (False, True)]
        loaders += [context.make_loader(link_spec(data, kind)) for kind in KINDS]
        loaders += [context.make_loader(link_spec(data, kind, disjoint=True, tree="example")) for kind in KINDS]
        return [contents(batch) for loader in loaders for batch in itertools.islice(loader, 2)]

    def of_rank(rank, exchange):
        with open_rank(folders[name, 4], rank, 2, exchange, SamplingOptions()) as context:
            assert isinstance(context._producer, DeviceProducer)
            found = batches(context)
            exchange("all done")
            return found

    for rank in range(2):
        with Session(folders[name, 1], seed=3, ranks=Ranks(rank, 2)) as context:
            whole.append(batches(context))
    sample_on(kernels, monkeypatch)
    assert run_ranks(2, of_rank) == whole


@pytest.mark.parametrize("name", GRAPHS)
def test_disjoint_batches_have_the_edges_of_each_tree(folders, name):
    """S3, too: of every tree, all edges of the user's list among its nodes; the other direction of its own sampled edges."""
    data = GRAPHS[name]()
    with Session(folders[name, 4], SamplingOptions(with_edge=True), seed=3) as context:
        for kind in KINDS:
            loader = context.make_loader(spec(data, kind, disjoint=True))
            plain = context.make_loader(spec(data, "directional", disjoint=True))
            for batch, directional in zip(loader, plain, strict=True):
                for (edges, src, dst), (before, _, _), (whole, _, _) in zip(
                    *map(stores, (batch, directional, data)), strict=True
                ):
                    ends = list(zip(*whole.edge_index.tolist(), strict=True))
                    assert torch.equal(src.batch[edges.edge_index[0]], dst.batch[edges.edge_index[1]])
                    check_edges(edges, src, dst, whole, ends)
                    if kind == "induced":
                        check_trees(edges, src, dst, ends)
                    else:
                        count = before.edge_index.size(1)
                        assert torch.equal(edges.edge_index[:, :count], before.edge_index)
                        both = {(s, d) for s, d in edges.edge_index.T.tolist()}
                        assert src is not dst or {(d, s) for s, d in both} == both


def check_trees(edges, src, dst, ends) -> None:
    nodes = set(zip(src.batch.tolist(), src.n_id.tolist(), strict=True))
    wanted = Counter(
        (tree, i)
        for tree, d in zip(dst.batch.tolist(), dst.n_id.tolist(), strict=True)
        for i, (s, e) in enumerate(ends)
        if e == d and (tree, s) in nodes
    )
    assert Counter(zip(dst.batch[edges.edge_index[1]].tolist(), edges.e_id.tolist(), strict=True)) == wanted
