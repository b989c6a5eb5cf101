"""Neighbours by random walks: their law, the same batches wherever rows lie and whoever makes them, and what is refused."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphConv

from glt_lightning import GLTDataModule, LinkSpec, LoaderSpec, LocalPartition, SamplingOptions, Session
from glt_lightning.base import EDGE, DataError, GpuBudgets, GraphSchema, OptionError, Progress
from glt_lightning.graph import BatchArrays, DeviceStore
from glt_lightning.kernels import WalkRule, hop_key
from glt_lightning.lightning import PartitionReport
from glt_lightning.loader import TrafficOptions
from glt_lightning.sampling import BatchRequest, KHopSampler, batch_key, device_walks, role_key
from glt_lightning.workers.producer.subprocess import SubprocessProducer
from tests.helpers.contents import contents
from tests.helpers.device_parts import COUNTED, assert_same, sampled, written
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.servers import open_farm
from tests.reference.walks import most_visited, random_walk, walk_stream

RELATED = {"walks": 8, "length": 2, "restart": 0.4}
RATES, RATED = "user__rates__item", "item__rated_by__user"


def shop() -> HeteroData:
    """Users rate items; walks between items lead over users."""
    rng = np.random.default_rng(3)
    data = HeteroData()
    data["user"].num_nodes = 60
    data["item"].x = torch.arange(300, dtype=torch.float32).reshape(100, 3)
    data["item"].y = torch.from_numpy(rng.integers(0, 3, 100))
    data["item"].train_mask = torch.arange(100) < 40
    rates = torch.from_numpy(np.stack([rng.integers(0, 60, 500), (rng.random(500) ** 2 * 100).astype(np.int64)]))
    data["user", "rates", "item"].edge_index = rates
    data["user", "rates", "item"].edge_weight = torch.from_numpy(rng.integers(0, 5, 500))
    data["item", "rated_by", "user"].edge_index = rates.flip(0)
    return data


def rows_of(edge_index: torch.Tensor, nodes: int) -> dict[int, list[tuple[int, int]]]:
    """For `walk_reference`: the sources of each node by user id, then by edge."""
    order = np.lexsort((np.arange(edge_index.shape[1]), edge_index[0], edge_index[1]))
    src, dst = edge_index.numpy()[:, order]
    ends = np.searchsorted(dst, np.arange(nodes + 1))
    return {v: [(s, 1) for s in src[b:e].tolist()] for v, (b, e) in enumerate(pairwise(ends.tolist()))}


def expected(metapath, roots, key, hop, fanout, edge_type, walks, length, restart):
    """root -> [(node, visits)], by user id."""
    key, found = hop_key(role_key(key, "walk"), hop, GraphSchema((), (edge_type,)).edge_type_keys()[0]), {}
    for root in roots:
        traces = [
            random_walk(metapath, root, walk_stream(key, root, w), length * len(metapath), WalkRule.threshold(restart))
            for w in range(walks)
        ]
        found[root] = most_visited(traces, len(metapath), fanout, root)
    return found


@pytest.mark.parametrize("typed", [False, True])
def test_batches_are_those_of_the_reference(tmp_path: Path, typed: bool) -> None:
    """In two hops, over a graph in three parts, edge after edge; with the shares of visits as weights."""
    data = shop() if typed else small_graph()
    edge_type = ("item", "visited_from", "item") if typed else EDGE
    rows = [rows_of(data.edge_index, 300)] if not typed else []
    if typed:
        rows = [
            rows_of(data["user", "rates", "item"].edge_index, 100),
            rows_of(data["item", "rated_by", "user"].edge_index, 60),
        ]
    whole = partitioned(data, tmp_path, 3)
    given = RELATED | ({"metapath": [RATES, RATED]} if typed else {})
    spec = LoaderSpec(name="t", split="train", num_neighbors=[3, 2], batch_size=7)
    with Session(whole, SamplingOptions(importance_neighbors=given), seed=4) as context:
        for number, batch in enumerate(context.make_loader(spec)):
            nodes, edges = (batch["item"], batch[edge_type]) if typed else (batch, batch)
            assert not typed or batch.edge_types == [edge_type]
            n_id, ends = nodes.n_id.tolist(), np.cumsum([0, *nodes.num_sampled_nodes])
            pairs = [(n_id[d], n_id[s]) for s, d in edges.edge_index.T.tolist()]
            weights = {}
            want, key = [], batch_key(4, "t", 0, 7 * number)
            for hop, (fanout, (begin, end)) in enumerate(zip((3, 2), pairwise(ends), strict=False)):
                found = expected(rows, n_id[begin:end], key, hop, fanout, edge_type, 8, 2, 0.4)
                for root, visits in found.items():
                    want += [(root, node, count) for node, count in visits]
                    weights |= {(root, node): count / sum(c for _, c in visits) for node, count in visits}
            assert [(*pair, v) for pair, v in zip(pairs, edges.visits.tolist(), strict=True)] == want
            assert edges.edge_weight.tolist() == pytest.approx([weights[pair] for pair in pairs])
            assert torch.equal(nodes.x, (data["item"] if typed else data).x[nodes.n_id])
            assert sum(edges.num_sampled_edges) == len(want)
    assert number > 3


def batches(partition, typed: bool, disjoint: bool, **context):
    given = RELATED | ({"metapath": [RATES, RATED]} if typed else {})
    weights = {"weight_attr": "edge_weight"} if typed else {}
    spec = LoaderSpec(name="t", split="train", num_neighbors=[3, -1], batch_size=9, disjoint=disjoint)
    with Session(partition, SamplingOptions(importance_neighbors=given, **weights), seed=1, **context) as context:
        loader = context.make_loader(spec)
        return loader._config, list(loader.plan.requests(0)), [contents(batch) for batch in loader]


@pytest.mark.diagonal
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_any_parts_here_and_elsewhere(tmp_path: Path, kernels, monkeypatch, typed: bool, disjoint: bool) -> None:
    """Also by weight, and in trees of their own; whoever walks, the CPU or a device."""
    data, weights = (shop(), ["edge_weight"]) if typed else (small_graph(), None)
    single = partitioned(data, tmp_path, 1, weights=weights)
    whole = partitioned(data, tmp_path, 3, weights=weights)
    config, requests, found = batches(whole, typed, disjoint)
    assert found == batches(single, typed, disjoint)[2]
    _, here, remote = same_with_owners(whole, config, requests)
    assert {said[0] for said in remote.asked} == {"walk", "gather"}
    same_on_a_device((whole, here, remote), config, requests, kernels, monkeypatch)


def same_with_owners(whole, config, requests):
    """A sampler with one part, which asks owners for the others, drafts what one of the whole graph does.

    Returns the sampler of the whole graph, the part, the owners.
    """
    here, remote = split_up(whole, [[1], [0], [2]])
    local, routed = KHopSampler(whole, config), KHopSampler(here, config, remote=remote)
    for request in requests:
        mine, theirs = (sampler.draft(request).values() for sampler in (local, routed))
        assert list(mine) == list(theirs)
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    return local, here, remote


def same_on_a_device(graph, config, requests, kernels, monkeypatch) -> None:
    """That has all parts, or some and asks owners. graph: whole, some parts, owners of the others."""
    whole, here, remote = graph
    for steps, memory in ((1 << 22, ("device", "device")), (160, ("hybrid", "cpu"))):  # few steps: in several pieces
        monkeypatch.setattr(device_walks, "_STEPS_AT_ONCE", steps)
        for partition, owners in ((whole, None), (here, remote)):
            with closing(device_store(partition, config, kernels, memory)) as store:
                device = KHopSampler(partition, config, store=store, remote=owners)
                cpu = KHopSampler(partition, config, remote=owners)
                for request in requests[:2]:
                    draft, sample = cpu.draft(request), sampled(device, request)
                    assert_same(sample, written(draft))
                    for name in () if config.disjoint else COUNTED:
                        assert getattr(sample.counters, name) == getattr(draft.counters, name), name


def device_store(partition, config, kernels, memory):
    arrays = BatchArrays(partition, edges=False, weights=config.weights)
    budgets = GpuBudgets(topology=800, features=800) if "hybrid" in memory else GpuBudgets()
    return DeviceStore.open(arrays, kernels, topology=memory[0], features=memory[1], budgets=budgets)


@pytest.mark.parametrize("kind", [pytest.param("processes", marks=pytest.mark.slow), "flight"])
def test_every_producer_gives_the_batches_of_one_that_samples_inline(tmp_path: Path, kind: str) -> None:
    whole = partitioned(shop(), tmp_path, 2, weights=["edge_weight"])
    config, requests, _ = batches(whole, typed=True, disjoint=False)
    sampler = KHopSampler(whole, config)
    want = [contents_of(sampler.draft(request).values()) for request in requests]

    def check(producer) -> None:
        found = [contents_of(sample.arrays) for sample in producer.stream(config, iter(requests))]
        assert found == want

    if kind == "processes":
        with closing(SubprocessProducer(whole, SamplingOptions(num_workers=1))) as producer:
            check(producer)
    else:
        with open_farm(kind) as farm:
            check(farm.producer(farm.peer(farm.serve(whole).address)))


def contents_of(arrays):
    return {name: np.array(array).tolist() for name, array in arrays.items()}


def link_batches(partition, typed: bool, disjoint: bool, exclude: str, **context):
    """Of edges and drawn pairs; in the typed graph from both ends, by weight."""
    paths = {"item__near__item": [RATES, RATED], "user__like__user": [RATED, RATES]}
    given = RELATED | ({"metapath": paths} if typed else {})
    whole = shop() if typed else small_graph()
    edges = (whole["user", "rates", "item"] if typed else whole).edge_index.numpy()[:, 5:60:2]
    links = {"edge_type": RATES, "reverse_edge_types": {RATES: RATED}} if typed else {}
    links |= {
        "neg_sampling": "binary",
        "exclude_target_edges": exclude,
        "with_target_attrs": True,
        "disjoint": disjoint,
    }
    spec = LinkSpec(name="l", edge_label_index=edges, num_neighbors=[3, -1], batch_size=10, **links)
    weights = {"weight_attr": "edge_weight"} if typed else {}
    with Session(partition, SamplingOptions(importance_neighbors=given, **weights), seed=1, **context) as context:
        loader = context.make_loader(spec)
        return loader._config, list(loader.plan.requests(0)), list(loader)


def left_over(rows, src, dst):
    """`rows_of` without some edges and all their copies."""
    gone = set(zip(dst, src, strict=True))
    return {v: [(s, w) for s, w in row if (v, s) not in gone] for v, row in rows.items()}


@pytest.mark.parametrize("exclude", ["none", "self", "reverse"])
@pytest.mark.parametrize("typed", [False, True])
def test_links_have_the_neighbours_of_the_reference(tmp_path: Path, typed: bool, exclude: str) -> None:
    """Walks go along neither the edges of the batch nor those of the other direction, in no hop: as if they were not stored."""
    data = shop() if typed else small_graph()
    whole = partitioned(data, tmp_path, 3, weights=["edge_weight"] if typed else None)
    _, requests, found = link_batches(whole, typed, False, exclude)
    ends = ("user", "item") if typed else (None, None)
    types = {("item", "near", "item"): 0, ("user", "like", "user"): 1} if typed else {EDGE: 0}
    crossed = 0
    for request, batch in zip(requests, found, strict=True):
        label = (batch["user", "rates", "item"] if typed else batch).edge_label_index[:, : len(request.seeds)]
        ids = [(batch[t] if typed else batch).n_id for t in ends]
        src, dst = (each[row].tolist() for each, row in zip(ids, label, strict=True))
        full = rows = weighted_rows(data) if typed else [rows_of(data.edge_index, 300)]
        if exclude != "none":
            rows = [left_over(rows[0], src, dst), *rows[1:]]
        if exclude == "reverse":
            rows = [*rows[:-1], left_over(rows[-1], dst, src)]
        for edge_type, first in types.items():
            order = [first, 1 - first] if typed else [0]
            store, nodes = (batch[edge_type], batch[edge_type[2]]) if typed else (batch, batch)
            n_id, steps = nodes.n_id.tolist(), np.cumsum([0, *nodes.num_sampled_nodes])
            want, other = [], []
            for hop, (fanout, (begin, end)) in enumerate(zip((3, -1), pairwise(steps), strict=False)):
                for left, pairs in ((rows, want), (full, other)):
                    along = [left[r] for r in order]
                    some = expected(along, n_id[begin:end], request.key, hop, fanout, edge_type, 8, 2, 0.4)
                    pairs += [(root, node, count) for root, visits in some.items() for node, count in visits]
            crossed += want != other
            found_pairs = zip(*store.edge_index.tolist(), store.visits.tolist(), strict=True)
            assert [(n_id[d], n_id[s], count) for s, d, count in found_pairs] == want
    assert len(found) == 3
    assert (crossed > 0) == (exclude != "none")


def weighted_rows(data: HeteroData):
    """Of both edge types of `shop`, the first with the weights of its edges."""
    rates, back = data["user", "rates", "item"], data["item", "rated_by", "user"]
    order = np.lexsort((np.arange(500), rates.edge_index[0], rates.edge_index[1]))
    weights = iter(rates.edge_weight[order].tolist())
    rows = rows_of(rates.edge_index, 100)
    return [{v: [(s, next(weights)) for s, _ in row] for v, row in rows.items()}, rows_of(back.edge_index, 60)]


@pytest.mark.diagonal
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_links_over_any_parts_here_and_elsewhere(
    tmp_path: Path, kernels, monkeypatch, typed: bool, disjoint: bool
) -> None:
    """Also their negatives, and the attributes of the edges themselves."""
    data, weights = (shop(), ["edge_weight"]) if typed else (small_graph(), None)
    single = partitioned(data, tmp_path, 1, weights=weights)
    whole = partitioned(data, tmp_path, 3, weights=weights)
    config, requests, found = link_batches(whole, typed, disjoint, "reverse")
    once = link_batches(single, typed, disjoint, "reverse")[2]
    assert [contents(batch) for batch in found] == [contents(batch) for batch in once]
    local, here, remote = same_with_owners(whole, config, requests)
    assert {said[0] for said in remote.asked} == {"walk", "gather", "has_edges", "induce"}
    same_on_a_device((whole, here, remote), config, requests, kernels, monkeypatch)
    if disjoint or not typed:
        return
    with open_farm("flight") as farm:
        producer = farm.producer(farm.peer(farm.serve(whole).address))
        served = [contents_of(sample.arrays) for sample in producer.stream(config, iter(requests))]
    assert served == [contents_of(local.draft(request).values()) for request in requests]


def test_a_module_learns_from_the_weights(tmp_path: Path) -> None:
    """`edge_weight` goes into PyG's layers as it is: a mean by importance is the sum by these weights."""
    whole = partitioned(small_graph(), tmp_path)
    conv = GraphConv(3, 2, aggr="add", bias=False)
    nn.init.zeros_(conv.lin_root.weight)
    spec = LoaderSpec(name="t", split="train", num_neighbors=[4], batch_size=50)
    with Session(whole, SamplingOptions(importance_neighbors={"walks": 20, "stop": 0.5})) as context:
        batch = next(iter(context.make_loader(spec)))
    out = conv(batch.x, batch.edge_index, batch.edge_weight)
    seed = int(batch.edge_index[1, 0])
    mine = batch.edge_index[1] == seed
    share = batch.visits[mine] / batch.visits[mine].sum()
    mean = (batch.x[batch.edge_index[0, mine]] * share[:, None]).sum(0)
    torch.testing.assert_close(out[seed], conv.lin_rel(mean))
    out[: batch.batch_size].sum().backward()
    assert conv.lin_rel.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"importance_neighbors": {"walks": 0}}, r"importance_neighbors.walks: expected an integer >= 1, got 0"),
        ({"importance_neighbors": {"length": 1.5}}, r"importance_neighbors.length: expected an integer >= 1, got 1.5"),
        (
            {"importance_neighbors": {"restart": -0.1}},
            r"importance_neighbors.restart: expected a probability, 0 to 1; got -0.1",
        ),
        ({"importance_neighbors": {"stop": 0.1, "restart": 0.1}}, r"importance_neighbors.stop: excludes restart"),
        ({"importance_neighbors": {"walks": 40_000, "length": 2}}, r"expected at most 65536 steps from one node"),
        ({"importance_neighbors": {"metapath": RATES}}, r"importance_neighbors.metapath: expected edge types such as"),
        ({"importance_neighbors": {"metapath": []}}, r"importance_neighbors.metapath: expected edge types such as"),
        ({"importance_neighbors": {"self_loops": 1}}, r"importance_neighbors.self_loops: expected true or false"),
        (
            {"importance_neighbors": {"top_k": 3}},
            r"sampling.importance_neighbors: expected any of walks, .*; got 'top_k'",
        ),
        ({"importance_neighbors": {}, "method": "labor"}, r"sampling.method: 'labor' has no effect with"),
        ({"importance_neighbors": {}, "with_edge": True}, r"sampling.with_edge: True has no effect with"),
        ({"importance_neighbors": {}, "time_attr": "t"}, r"sampling.time_attr: 't' has no effect with"),
    ],
)
def test_options_that_no_walk_has(sampling: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SamplingOptions(**sampling)


@pytest.mark.parametrize(
    ("given", "spec", "message"),
    [
        ({}, {}, f"metapath: the graph has the edge types {RATED}, {RATES}. Name those"),
        ({"metapath": ["a__b__c"]}, {}, f"metapath: expected some of {RATED}, {RATES}; got 'a__b__c'"),
        (
            {"metapath": [RATES, RATES]},
            {},
            "along user__rates__item leads to 'user', and user__rates__item goes on from 'item'",
        ),
        ({"metapath": [RATES]}, {}, "the first one also after the last"),
        ({"metapath": [RATED, RATES]}, {}, "hop 0 begins at nodes of type item, and no metapath"),
        ({"metapath": [RATES], "length": 1}, {}, "hop 1 begins at nodes of type user, and no metapath"),
        ({"metapath": {"item__near__user": [RATES, RATED]}}, {}, "the edges of the batch are item__<name>__item"),
        (
            {"metapath": [RATES, RATED], "walks": 2},
            {},
            "num_neighbors: 9 neighbours of 2 walks that visit 3 nodes each",
        ),
        ({"metapath": [RATES, RATED]}, {"num_neighbors": {RATES: [1]}}, "missing .'item__visited_from__item'"),
        (
            {"metapath": [RATES, RATED]},
            {"subgraph_type": "induced"},
            "subgraph_type: induced and sampling.importance_neighbors",
        ),
        (
            {"metapath": [RATES, RATED]},
            {"subgraph_type": "induced", "num_neighbors": []},
            "subgraph_type: induced and sampling.importance_neighbors",
        ),
    ],
)
def test_loaders_that_find_no_neighbours(tmp_path: Path, given: dict, spec: dict, message: str) -> None:
    spec = LoaderSpec(**{"name": "t", "split": "train", "num_neighbors": [9, 9], "batch_size": 2} | spec)
    with (
        Session(partitioned(shop(), tmp_path), SamplingOptions(importance_neighbors=given)) as context,
        pytest.raises(OptionError, match=message),
    ):
        context.make_loader(spec)


def test_other_loaders_and_checkpoints_are_refused(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path)
    spec = LoaderSpec(name="t", split="train", num_neighbors=[2], batch_size=9)
    states = []
    for given in (None, RELATED, RELATED | {"walks": 9}):
        with Session(whole, SamplingOptions(importance_neighbors=given)) as context:
            loader = context.make_loader(spec)
            next(iter(loader))
            for state in states:
                with pytest.raises(OptionError, match="cannot resume: importance_neighbors: "):
                    loader.load_state_dict(state | {"delivered": 1})
            states.append(loader.state_dict())
            kept = json.loads(json.dumps(states[-1]))
            assert kept == states[-1]
            loader.load_state_dict(kept)
            if given is not None:  # as earlier releases wrote it
                known = kept["plan"]["importance_neighbors"]
                old = [[*map(tuple, value)] if isinstance(value, list) else value for value in known]
                loader.load_state_dict({**kept, "plan": kept["plan"] | {"importance_neighbors": old}})


def test_what_another_process_asks_for_is_checked(tmp_path: Path) -> None:
    whole = partitioned(shop(), tmp_path, weights=["edge_weight"])
    config, requests, _ = batches(whole, typed=True, disjoint=False)
    task = config.importance
    assert task is not None
    for change, message in (
        ({"metapaths": ((0, 0),)}, "leads to 'item', and item__rated_by__user goes on from 'user'"),
        ({"metapaths": ((0, 7),)}, "expected edge types 0 to 1, got 7"),
        ({"metapaths": ((0, 1),)}, "its walks lead from 'user' to 'user'"),
    ):
        with pytest.raises(DataError, match=message):
            type(task)(**vars(task) | change).require(whole.schema)
    for wrong in ({"walks": 0}, {"edge_types": ()}, {"walks": 1 << 20}, {"self_loops": 1}, {"restart": -1}):
        with pytest.raises(DataError):
            type(task).from_wire(task.to_wire() | wrong)
    assert type(task).from_wire(task.to_wire()) == task
    assert isinstance(requests[0], BatchRequest)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evaluation": {"mode": "layerwise"}}, "evaluation.mode: layerwise: computes layers over the stored edges"),
        (
            {"batches": {"subgraph_type": "induced"}},
            "subgraph_type: induced and sampling.importance_neighbors exclude each other",
        ),
    ],
)
def test_a_data_module_says_at_once_what_cannot_be(given: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GLTDataModule("demo", sampling={"importance_neighbors": RELATED}, **given)


def test_what_is_ranked_ahead_says_that_it_counts_no_walks(tmp_path: Path) -> None:
    """Fan-outs of the walks' edge types rank no rows; the report predicts no traffic."""
    walks = {"importance_neighbors": RELATED | {"metapath": {"item__near__item": [RATES, RATED]}}}
    given = {"num_neighbors": {"item__near__item": [3, 2]}, "partition": {"num_parts": 2, "hotness": "vip"}}
    with (
        pytest.warns(UserWarning, match=r"cache: rows are ranked \(cache.policy: vip\) as if neighbours were drawn"),
        pytest.warns(UserWarning, match="cache.topology: walks .* do not read cached neighbour lists"),
    ):
        caches = {"policy": "vip", "bytes": "1MB", "topology": "10kB"}
        data = GLTDataModule(shop(), str(tmp_path), sampling=walks, cache=caches, **given)
    data.prepare_data()
    whole = LocalPartition.open(data.partition_dir)
    assert whole.manifest.made_by["num_neighbors"] == [15, 10, 5]
    assert PartitionReport.of(
        whole, TrafficOptions(num_neighbors=data.num_neighbors, walks=True), Progress(False)
    ).no_traffic == (
        "random walks find the neighbours (sampling.importance_neighbors), and their questions are not counted"
    )
