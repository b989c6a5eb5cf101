"""Neighbours up to a seed's time: the oracles T1 to T6 of the study of loaders, and who samples does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, GLTError, OptionError, PartitionOptions, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.partition import partition_graph
from glt_lightning.workers import HostsGraph, Ranks
from glt_lightning.workers.producer import on_gpu
from tests.helpers.contents import contents
from tests.helpers.negatives import plain_trial
from tests.helpers.partition_truth import single
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.helpers.temporal import (
    BUYS,
    Tree,
    partitioned_by_time,
    shop,
    timed_graph,
    times_of_edges,
    trees,
    whole_tree,
)
from tests.workers.test_group import link

NO_BOUND = -(10**9)


def node_spec(seeds, times, fanouts, **changes):
    given = {"name": "t", "seeds": np.array(seeds), "num_neighbors": fanouts, "batch_size": 100, "input_time": times}
    return LoaderSpec(**given | changes)


def make_loader(context: Session, spec: LoaderSpec | LinkSpec):
    return context.make_loader(spec)


def one_batch(partition: LocalPartition, spec, **sampling):
    with Session(partition, SamplingOptions(time_attr="time", **sampling), seed=3) as context:
        (batch,) = make_loader(context, spec)
    return batch


# T1 to T6


@pytest.mark.parametrize(("strategy", "fanouts"), [("uniform", [2, 2]), ("last", [1, 2])])
def test_t1_a_cycle(tmp_path: Path, strategy: str, fanouts: list[int]) -> None:
    """pyg-lib's own test: of six nodes in a ring, the time of each is its number, and the seeds have their own times."""
    ring = [(u, v % 6) for v in range(6) for u in ((v - 1) % 6, (v + 1) % 6)]
    graph = timed_graph(tmp_path, ring, 6, times=list(range(6)), of="nodes")
    batch = one_batch(graph, node_spec([2, 3], None, fanouts), temporal_strategy=strategy)
    assert trees(batch, 2) == [
        Tree([("node", 0), ("node", 1), ("node", 2)], [("to", 0, 1), ("to", 1, 2), ("to", 2, 1)]),
        Tree([("node", 1), ("node", 2), ("node", 3)], [("to", 1, 2), ("to", 2, 3), ("to", 3, 2)]),
    ]
    assert batch.seed_time.tolist() == [2, 3]
    assert batch.n_id[:2].tolist() == [2, 3]
    assert batch.time.tolist() == batch.n_id.tolist()


@pytest.mark.parametrize(
    ("seed", "time", "sampling", "fanout", "times"),
    [
        (1, 1, {}, -1, []),
        (0, 4, {}, -1, [1, 4]),
        (0, 4, {"temporal_strategy": "last"}, 1, [4]),
        (0, 4, {"time_boundary": "<"}, -1, [1]),
        (0, 5, {"time_window": 2}, -1, [4, 5]),
        (0, 5, {"time_window": 2, "time_boundary": "<"}, -1, [4]),
        (0, 5, {"time_window": 0}, -1, [5]),
        (0, 0, {}, -1, []),
        (0, 9, {"temporal_strategy": "last", "time_window": 5}, 3, [4, 5]),
    ],
)
def test_t2_times_of_edges(tmp_path: Path, seed: int, time: int, sampling: dict, fanout: int, times: list[int]) -> None:
    """The graph of a user's complaint about a later edge (PyG, 7794), with boundary, window and strategy."""
    edges = [(1, 0), (0, 1), (1, 2), (1, 0), (2, 0)]
    graph = timed_graph(tmp_path, edges, 3, times=[1, 2, 3, 4, 5])
    batch = one_batch(graph, node_spec([seed], [time], [fanout]), **sampling)
    assert sorted(batch.time.tolist()) == times
    assert batch.seed_time.tolist() == [time]


def test_t3_some_types_have_times(tmp_path: Path) -> None:
    """PyG's test: a_i at time i sees b_i, which is i old, and not c_i, which comes after it; a has no times of its own."""
    ids = np.arange(10)
    names = ("a", "b", "c")
    source = shop("edges")
    source = replace(
        source,
        schema=type(source.schema)(names, (("b", "at", "a"), ("c", "at", "a")), False),
        num_nodes=dict.fromkeys(names, 10),
        edge_index={("b", "at", "a"): np.stack([ids, ids]), ("c", "at", "a"): np.stack([ids, ids])},
        node={"b": {"time": ids}, "c": {"time": ids + 1}},
        edge={},
        splits={},
    )
    graph = partitioned_by_time(source, tmp_path)
    batch = one_batch(graph, node_spec(ids, ids, [-1], node_type="a"))
    assert batch["b"].n_id.tolist() == batch["b"].batch.tolist() == ids.tolist()
    assert batch["c"].n_id.tolist() == []
    assert batch["a"].seed_time.tolist() == ids.tolist()
    with pytest.raises(
        OptionError, match=r"loader 't': input_time: missing, .* give one for each seed \(data\.seeds\.input_time\)"
    ):
        one_batch(graph, node_spec(ids, None, [-1], node_type="a"))


@pytest.mark.parametrize(
    ("exclude", "boundary", "seen"),
    [("none", "<=", True), ("none", "<", False), ("self", "<=", False), ("reverse", "<=", False)],
)
def test_t4_a_target_at_its_own_time(tmp_path: Path, exclude: str, boundary: str, seen: bool) -> None:
    """The trap: an edge to predict is stored with its own time, which is up to that time."""
    edges, times = [(0, 1), (2, 1), (1, 0), (3, 1)], [5, 3, 5, 7]
    graph = timed_graph(tmp_path, edges, 4, times=times)
    targets = np.array(edges[:1]).T
    spec = LinkSpec(
        name="t",
        edge_label_index=targets,
        edge_label_time=times[:1],
        num_neighbors=[-1],
        batch_size=4,
        exclude_target_edges=exclude,
    )
    batch = one_batch(graph, spec, time_boundary=boundary)
    (tree,) = trees(batch, 1)
    assert (("to", 0, 1) in tree.edges) == seen
    assert (("to", 1, 0) in tree.edges) == (exclude != "reverse" and boundary == "<=")
    assert ("to", 2, 1) in tree.edges
    assert ("to", 3, 1) not in tree.edges
    assert batch.edge_label_time.tolist() == [5]


@pytest.mark.parametrize("of", ["edges", "nodes"])
@pytest.mark.parametrize("sampling", [{}, {"time_boundary": "<", "time_window": 4}, {"temporal_strategy": "last"}])
def test_t5_all_neighbours_are_those_of_the_definition(tmp_path: Path, of: str, sampling: dict) -> None:
    """Also for a batch of one seed. The sets are PyG's, whose temporal sampling needs pyg-lib, which the registry lacks."""
    source = shop(of)
    graph = partitioned_by_time(source, tmp_path, 2)
    rng = np.random.default_rng(5)
    seeds, times = rng.integers(0, 40, 12), rng.integers(-1, 14, 12)
    spec = node_spec(seeds, times, [-1, -1], node_type="user")
    found = trees(one_batch(graph, spec, **sampling), 12)
    for k, (root, time) in enumerate(zip(seeds.tolist(), times.tolist(), strict=True)):
        until = time - (sampling.get("time_boundary") == "<")
        since = time - sampling["time_window"] if "time_window" in sampling else NO_BOUND
        nodes, edges = whole_tree(source, "user", root, 2, since, until)
        assert found[k] == Tree(sorted(nodes), edges)
    alone = one_batch(graph, node_spec(seeds[3:4], times[3:4], [-1, -1], node_type="user"), **sampling)
    assert trees(alone, 1) == found[3:4]


@pytest.mark.parametrize("of", ["edges", "nodes"])
@pytest.mark.parametrize("sampling", [{}, {"temporal_strategy": "last"}, {"time_window": 3}, {"replace": True}])
def test_t5_no_edge_is_later_than_its_seed(tmp_path: Path, of: str, sampling: dict) -> None:
    source = shop(of, seed=1)
    graph = partitioned_by_time(source, tmp_path, 3)
    seeds, times = np.arange(40), np.arange(40) % 13
    batch = one_batch(graph, node_spec(seeds, times, [3, 2], node_type="user"), with_edge=True, **sampling)
    seen = 0
    for e in source.schema.edge_types:
        of_edges, store = times_of_edges(source, e), batch[e]
        if of_edges is None:
            assert store.e_id.numel()
            continue
        tree = batch[e[2]].batch[store.edge_index[1]].numpy()
        assert (of_edges[store.e_id] <= times[tree]).all()
        assert (of_edges[store.e_id] >= times[tree] - sampling.get("time_window", 99)).all()
        seen += len(tree)
        if sampling.get("temporal_strategy") == "last":  # of a seed's edges, none that was left out is later
            roots = store.edge_index[1].numpy() < 40 if e[2] == "user" else np.zeros(len(tree), bool)
            for k in np.unique(tree[roots]).tolist():
                mine = store.e_id.numpy()[roots & (tree == k)]
                every = np.flatnonzero((source.edge_index[e][1] == seeds[k]) & (of_edges <= times[k]))
                assert len(mine) == min(3, len(every))
                assert sorted(of_edges[mine]) == sorted(of_edges[every])[-len(mine) :]
    assert seen > 60


def test_t5_uniform_among_the_edges_up_to_a_time(tmp_path: Path) -> None:
    """Two of the five earlier of eight edges: each pair as often as any other."""
    graph = timed_graph(tmp_path, [(u, 0) for u in range(1, 9)], 9, times=[1, 9, 2, 2, 8, 3, 7, 4])
    spec = node_spec(np.zeros(4000, np.int64), np.full(4000, 5), [2], batch_size=4000)
    batch = one_batch(graph, spec)
    pairs = batch.n_id[batch.edge_index[0]].reshape(-1, 2).sort(dim=1).values
    _, counts = torch.unique(pairs, dim=0, return_counts=True)
    assert len(counts) == 10
    assert set(pairs.unique().tolist()) == {1, 3, 4, 6, 8}
    assert float(((counts - 400) ** 2 / 400).sum()) < 27.9  # chi-square with nine degrees of freedom: 0.001


def test_t6_a_node_at_several_times(tmp_path: Path) -> None:
    graph = timed_graph(tmp_path, [(1, 0), (2, 0)], 4, times=[1, 5])
    labels = np.array([7, 8, 9])
    batch = one_batch(graph, node_spec([0, 0, 0], [9, 0, 2], [-1], extras={"target": labels}))
    assert [[v for _, v in tree.nodes] for tree in trees(batch, 3)] == [[0, 1, 2], [0], [0, 1]]
    assert batch.input_id.tolist() == [0, 1, 2]
    assert batch.seed_time.tolist() == [9, 0, 2]
    assert batch.target.tolist() == labels[batch.input_id].tolist()


# Links


def link_spec(source, **changes):
    pairs = source.edge_index[BUYS][:, :40]
    times = np.arange(40) % 8 + 5
    given = {
        "name": "train",
        "edge_type": "user__buys__item",
        "edge_label_index": pairs,
        "edge_label_time": times,
        "num_neighbors": [3, 2],
        "batch_size": 16,
    }
    return LinkSpec(**given | changes)


NEGATIVES = {"binary": ("binary", 1.5), "triplet": {"mode": "triplet", "amount": 2}, "none": None}


@pytest.mark.parametrize("mode", NEGATIVES)
@pytest.mark.parametrize("of", ["edges", "nodes"])
def test_links_and_their_negatives(tmp_path: Path, of: str, mode: str) -> None:
    """Every tree of an example has its time. Negatives are those of the definition, among the nodes that exist by then."""
    source = shop(of)
    edges = set(zip(*source.edge_index[BUYS].tolist(), strict=True))
    ages = [source.node[t].get("time", np.full(n, NO_BOUND)) for t, n in (("user", 40), ("item", 60))]
    options = SamplingOptions(time_attr="time", with_edge=True)
    with Session(partitioned_by_time(source, tmp_path, 2), options, seed=3) as context:
        loader = context.make_loader(link_spec(source, neg_sampling=NEGATIVES[mode]))
        for request, batch in zip(loader.plan.requests(0), loader, strict=True):
            times = link_spec(source).edge_label_time[request.input_id]
            positives, store = len(times), batch[BUYS]
            if mode == "triplet":
                users, items = batch["user"], batch["item"]
                assert users.seed_time.tolist() == items.seed_time.tolist() == times.tolist()
                src = users.n_id[users.src_index].tolist() * 2
                dst = items.n_id[items.dst_neg_index].T.ravel().tolist()
            else:
                count = positives if mode == "none" else positives + -(-positives * 3 // 2)
                wanted = np.resize(times, count)
                assert store.edge_label_time.tolist() == wanted.tolist()
                lids = store.edge_label_index
                src = batch["user"].n_id[lids[0, positives:]].tolist()
                dst = batch["item"].n_id[lids[1, positives:]].tolist()
            for j, pair in enumerate(zip(src, dst, strict=True)):
                tried = [plain_trial(request.key, j, t, 40, 60) for t in range(32)]
                tried = [(src[j], v) for _, v in tried] if mode == "triplet" else tried
                time = times[j % positives]
                drawn = [
                    (u, v)
                    for u, v in tried
                    if (u, v) not in edges and ages[1][v] <= time and (mode == "triplet" or ages[0][u] <= time)
                ]
                assert pair == drawn[0]
            for e in source.schema.edge_types:
                of_edges = times_of_edges(source, e)
                if of_edges is not None:
                    example = batch[e[2]].batch[batch[e].edge_index[1]]
                    assert (of_edges[batch[e].e_id] <= times[example]).all()


# Everywhere


def specs(source) -> list[LoaderSpec | LinkSpec]:
    own = {"split": "train"} if "time" in source.node["user"] else {"split": "train", "input_time": np.arange(60) % 13}
    return [
        LoaderSpec(name="train", num_neighbors=[3, 2], batch_size=8, shuffle=True, **own),
        link_spec(source, neg_sampling="binary", shuffle=True, exclude_target_edges="reverse"),
        link_spec(source, neg_sampling=("triplet", 2), name="val", exact=True),
    ]


def batches(context: Session, chosen: list[LoaderSpec | LinkSpec]) -> list[list]:
    return [[contents(batch) for batch in make_loader(context, spec)] for spec in chosen]


OPTIONS = {"time_attr": "time", "with_edge": True}


@pytest.fixture(scope="module", params=["edges", "nodes"])
def made(request, tmp_path_factory):
    """(source, a partition of four parts, the batches of one process that maps one part)."""
    source, folder = shop(request.param), tmp_path_factory.mktemp(request.param)
    with Session(partitioned_by_time(source, folder, 1), SamplingOptions(**OPTIONS), seed=3) as context:
        expected = batches(context, specs(source))
    return source, partitioned_by_time(source, folder, 4), expected


@pytest.fixture(params=["inline", "sampler processes", "threads", "server"])
def context(request, made) -> Iterator[Session]:
    if request.param == "server":
        with open_farm("in process") as farm:
            yield farm.context(farm.serve(made[1]).address, sampling=SamplingOptions(**OPTIONS))
        return
    more = {"sampler processes": {"num_workers": 2, "max_restarts": 0}, "threads": {"num_threads": 2}}
    with Session(made[1], SamplingOptions(**OPTIONS, **more.get(request.param, {})), seed=3) as context:
        yield context


@pytest.mark.diagonal
def test_who_samples_does_not_matter(made, context) -> None:
    source, _, expected = made
    assert batches(context, specs(source)) == expected


@pytest.fixture
def gpu(kernels, monkeypatch) -> None:
    """The CPU counts as a GPU."""
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)


@pytest.mark.diagonal
@pytest.mark.parametrize("memory", ["device", "uva", "hybrid"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_a_gpu_makes_the_batches_of_the_cpu(made, gpu, memory: str, strategy: str) -> None:
    source, whole, _ = made
    options = OPTIONS | {"temporal_strategy": strategy, "time_window": 7}
    with Session(whole, SamplingOptions(**options, topology="cpu"), seed=3) as context:
        expected = batches(context, specs(source))
    budget = {"topology_bytes": 9000} if memory == "hybrid" else {}
    with Session(whole, SamplingOptions(**options, topology=memory, **budget), seed=3) as context:
        assert batches(context, specs(source)) == expected
        assert type(context._producer).__name__ == "DeviceProducer"


@pytest.mark.diagonal
@pytest.mark.parametrize("cache", [None, {"topology": "60KB", "bytes": "200KB"}])
def test_where_parts_are_remote(made, cache) -> None:
    """Also where neighbour lists of others are cached: with their times."""
    remote_parts(made, cache)


def test_where_parts_are_remote_of_gpus(made, gpu) -> None:
    remote_parts(made, None)


def remote_parts(made, cache) -> None:
    source, whole, _ = made
    chosen = specs(source)

    def found(rank, exchange):
        here = LocalPartition.open(whole.directory, parts=[rank, rank + 2])
        graph = HostsGraph(here, link(rank), "127.0.0.1")
        ranks = Ranks(rank, 2, exchange)
        with Session(graph, SamplingOptions(**OPTIONS), seed=3, cache=cache, ranks=ranks) as context:
            loader = context.make_loader(chosen[0])
            for _ in loader:
                pass
            assert (loader.stats().counters.cached_frontier_rows > 0) == (cache is not None)
            mine = batches(context, chosen)
            exchange("all done")
            return mine

    on_cpu = SamplingOptions(**OPTIONS, topology="cpu")
    contexts = [Session(whole, on_cpu, seed=3, ranks=Ranks(r, 2)) for r in range(2)]
    expected = [batches(context, chosen) for context in contexts]
    for context in contexts:
        context.close()
    assert run_ranks(2, found) == expected


def test_resume_in_mid_epoch(made) -> None:
    """To the same bits, and not with another window, boundary or times."""
    source, whole, expected = made
    chosen = specs(source)[:2]

    def loaders(context):
        return context.make_loader(chosen[0]), context.make_loader(chosen[1])

    with Session(whole, SamplingOptions(**OPTIONS), seed=3) as context:
        states = []
        for loader in loaders(context):
            stream = iter(loader)
            next(stream)
            states.append(loader.state_dict())
        for loader, state, all_of_it in zip(loaders(context), states, expected, strict=False):
            loader.load_state_dict(state)
            assert [contents(batch) for batch in loader] == all_of_it[1:]
        later = replace(chosen[0], input_time=np.arange(60) % 11)
        with pytest.raises(OptionError, match=r"cannot resume: .*time_bounds"):
            context.make_loader(later).load_state_dict(states[0])
    for changes in ({"time_window": 3}, {"time_boundary": "<"}, {"temporal_strategy": "last"}, {"time_attr": None}):
        with Session(whole, SamplingOptions(**OPTIONS | changes), seed=3) as context:
            spec = chosen[0] if "time_attr" not in changes else replace(chosen[0], input_time=None)
            with pytest.raises(OptionError, match="cannot resume"):
                context.make_loader(spec).load_state_dict(states[0])


# Refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time_window": 3}, r"sampling.time_window: 3 has no effect without times. Set sampling.time_attr"),
        ({"temporal_strategy": "last"}, r"sampling.temporal_strategy: 'last' has no effect without times"),
        ({"time_boundary": "<"}, r"sampling.time_boundary: '<' has no effect without times"),
        ({"time_attr": "t", "time_boundary": ">"}, r"sampling.time_boundary: expected .*<=.* got '>'"),
        (
            {"time_attr": "t", "temporal_strategy": "first"},
            r"sampling.temporal_strategy: expected uniform.*last.*'first'",
        ),
        ({"time_attr": "t", "time_window": -1}, r"sampling.time_window: expected an integer >= 0"),
        ({"time_attr": "t", "time_window": 1.5}, r"sampling.time_window: expected an integer >= 0"),
        ({"time_attr": ""}, r"sampling.time_attr: expected the name of an attribute"),
        (
            {"time_attr": "t", "temporal_strategy": "last", "replace": True},
            r"sampling.replace: temporal_strategy 'last' takes the latest edges and draws none",
        ),
        (
            {"time_attr": "t", "temporal_strategy": "last", "weight_attr": "w"},
            r"sampling.temporal_strategy: 'last' takes the latest edges, whatever their weights. Remove sampling.weight_attr",
        ),
    ],
)
def test_options_that_exclude_each_other(options: dict, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        SamplingOptions(**options)


PAIR = np.array([[0], [1]])
LINK = {"name": "t", "edge_label_index": PAIR, "num_neighbors": [1], "batch_size": 2}


@pytest.mark.parametrize(
    ("make", "sampling", "said"),
    [
        (
            lambda: node_spec([0], None, [1]),
            {},
            r"'t': input_time: missing, and sampling.time_attr is time. Nodes of type 'node'",
        ),
        (lambda: node_spec([0], [1, 2], [1]), {}, r"'t': input_time: expected one for each of the 1 seeds, got 2"),
        (lambda: node_spec([0], [1], [1]), None, r"'t': input_time: has no effect without sampling.time_attr"),
        (lambda: node_spec([0], [1.0], [1]), {}, r"'t': input_time: expected integers \[S\], .* got float64 \[1\]"),
        (
            lambda: node_spec([0], np.array(["NaT"], "datetime64[s]"), [1]),
            {},
            r"'t': input_time: the seed at position 0 has no time that fits int64",
        ),
        (
            lambda: node_spec([0], [1], [1], extras={"seed_time": np.array([1])}),
            {},
            r"'t': extras: batches have seed_time already",
        ),
        (
            lambda: LinkSpec(**LINK),
            {},
            r"'t': edge_label_time: missing, and sampling.time_attr is time. Give a time for",
        ),
        (
            lambda: LinkSpec(**LINK, edge_label_time=[1]),
            None,
            r"'t': edge_label_time: has no effect without sampling.time",
        ),
        (
            lambda: LinkSpec(**LINK, edge_label_time=[1], disjoint=True, tree="example"),
            {},
            r"'t': tree: example and sampling.time_attr: time exclude each other.* Set tree: end",
        ),
        (lambda: LinkSpec(**LINK, edge_label_time=[[1]]), {}, r"'t': edge_label_time: expected integers \[S\]"),
        (
            lambda: LinkSpec(**LINK, edge_label_time=[1], neg_sampling={"mode": "triplet", "sharing": "in_batch"}),
            {},
            r"'t': neg_sampling.sharing: 'in_batch' shares negatives between edges of different times",
        ),
        (
            lambda: LinkSpec(**LINK, edge_label_time=[1], neg_sampling={"unresolved": "oldest"}),
            {},
            r"'t': neg_sampling.unresolved: 'oldest' has no effect without sampling.time_attr and times of the nodes",
        ),
        (
            lambda: node_spec([0], [1], [1]),
            {"time_attr": "when"},
            r"sampling.time_attr: when: the rows of this partition are .* by time",
        ),
    ],
)
def test_loaders_that_cannot_be(tmp_path: Path, make, sampling, said: str) -> None:
    graph = timed_graph(tmp_path, [(0, 1), (1, 0)], 2, times=[1, 2])
    options = SamplingOptions() if sampling is None else SamplingOptions(**{"time_attr": "time"} | sampling)
    with pytest.raises(GLTError) as error, Session(graph, options, seed=3) as context:
        _ = make_loader(context, make())
    assert "\n" not in str(error.value)
    assert error.match(said)


def test_a_partition_without_times(tmp_path: Path) -> None:
    partition_graph(single([(0, 1)], 2), tmp_path / "p", PartitionOptions(), progress=False)
    with pytest.raises(
        OptionError, match=r"time_attr: time: this partition has no times. Set partition.time_attr: time"
    ):
        one_batch(LocalPartition.open(tmp_path / "p"), node_spec([0], [1], [1]))


def test_times_that_are_not_asked_for_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = timed_graph(tmp_path, [(0, 1)], 2, times=[1])
    with caplog.at_level("INFO"), Session(graph, SamplingOptions(), seed=3) as context:
        context.make_loader(LoaderSpec(name="one", num_neighbors=[-1], batch_size=2))
    assert "neighbours of any time are drawn" in caplog.text


def test_datetimes_are_microseconds(tmp_path: Path) -> None:
    graph = timed_graph(tmp_path, [(0, 1)], 2, times=[1_000_000])
    given = np.array(["1970-01-01T00:00:01", "1970-01-01T00:00:00.999999"], "datetime64[us]")
    batch = one_batch(graph, node_spec([1, 1], given, [-1]))
    assert [len(tree.edges) for tree in trees(batch, 2)] == [1, 0]
    assert batch.seed_time.tolist() == [1_000_000, 999_999]


def test_no_negative_exists(tmp_path: Path) -> None:
    graph = timed_graph(tmp_path, [(0, 1), (1, 0)], 2, times=[5, 7], of="nodes")
    spec = LinkSpec(**LINK, edge_label_time=[3], neg_sampling={"mode": "triplet", "strict": False})
    with pytest.raises(
        GLTError, match="none of 32 drawn pairs of the node 0 is a negative that exists at the time of its"
    ):
        one_batch(graph, spec)
    assert issubclass(DataError, GLTError)


# Several types of seeds, GPUs, other edges


def test_seeds_of_several_types_have_their_own_times(tmp_path: Path) -> None:
    source = shop("nodes")
    graph = partitioned_by_time(source, tmp_path, 2)
    seeds = {"user": np.array([3, 5, 3]), "item": np.array([7, 8])}
    times = {"user": np.array([4, 12, 9]), "item": np.array([2, 11])}
    spec = LoaderSpec(name="t", seeds=seeds, input_time=times, num_neighbors=[-1], batch_size=5, shuffle=True)
    batch = one_batch(graph, spec)
    for t, first in (("item", 0), ("user", 2)):
        store = batch[t]
        assert store.seed_time.tolist() == times[t][store.input_id].tolist()
        for k, time in enumerate(store.seed_time.tolist()):
            root = int(seeds[t][store.input_id[k]])
            nodes, edges = whole_tree(source, t, root, 1, NO_BOUND, time)
            assert trees(batch, 5)[first + k] == Tree(sorted(nodes), edges)
    own = one_batch(graph, replace(spec, input_time={"user": times["user"]}))
    assert (
        own["item"].seed_time.tolist() == np.asarray(source.node["item"]["time"])[[7, 8]][own["item"].input_id].tolist()
    )


def test_edges_of_several_types_have_their_own_times(tmp_path: Path) -> None:
    source, names = shop("edges"), ("item__viewed__user", "user__buys__item")
    edges = {name: source.edge_index[tuple(name.split("__"))][:, :7] for name in names}
    times = {name: np.arange(7) + 3 * i for i, name in enumerate(names)}
    spec = LinkSpec(
        name="t",
        edge_label_index=edges,
        edge_label_time=times,
        neg_sampling="binary",
        num_neighbors=[-1],
        batch_size=14,
        shuffle=True,
    )
    batch = one_batch(partitioned_by_time(source, tmp_path), spec, with_edge=True)
    examples = []
    for name in names:
        store = batch[tuple(name.split("__"))]
        mine = times[name][store.input_id].tolist()
        assert store.edge_label_time.tolist() == mine * 2
        examples += mine
    for e in source.schema.edge_types:
        if (of_edges := times_of_edges(source, e)) is not None:
            example = batch[e[2]].batch[batch[e].edge_index[1]].numpy()
            assert (of_edges[batch[e].e_id] <= np.array(examples)[example]).all()
            assert len(example)


@pytest.mark.parametrize("kind", ["induced", "bidirectional"])
def test_edges_that_are_not_drawn_may_be_later(tmp_path: Path, kind: str) -> None:
    graph = timed_graph(tmp_path, [(0, 1), (1, 0)], 2, times=[1, 2])
    with pytest.raises(OptionError, match=f"'t': subgraph_type: {kind} and sampling.time_attr exclude each other"):
        one_batch(graph, node_spec([0], [1], [1], subgraph_type=kind))
