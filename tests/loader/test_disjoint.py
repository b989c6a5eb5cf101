"""Disjoint batches: every seed is the root of a tree of its own, whoever samples it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.kernels import Kernels, Trees
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
from glt_lightning.workers import Message, Ranks
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.producer import on_gpu
from glt_lightning.workers.server.question import Question, read_question
from glt_lightning.workers.transport.message import pack
from tests.helpers.contents import contents
from tests.helpers.owners import CALLER, split_up
from tests.helpers.partitions import gids_of, partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.workers.test_group import open_rank

WITH_EDGE = SamplingOptions(with_edge=True)


def spec(**changes) -> LoaderSpec:
    plain = {"name": "train", "split": "train", "num_neighbors": [4, 3], "batch_size": 8, "disjoint": True}
    return LoaderSpec(**plain | changes)


def stores_of(batch) -> tuple[list, list]:
    """(stores of nodes, with that of each node type; stores of edges with their ends)"""
    if isinstance(batch, Data):
        return [("node", batch)], [(("node", "to", "node"), batch)]
    return list(batch.node_items()), list(batch.edge_items())


def tree_of(batch, number: int) -> dict:
    """The nodes and edges of one tree, by lids of its own."""
    found, lids = {}, {}
    for name, store in stores_of(batch)[0]:
        mine = store.batch == number
        lids[name] = torch.cumsum(mine, 0) - 1
        found[name] = store.n_id[mine].tolist(), store.x[mine].tolist() if "x" in store else None
    for (src, rel, dst), store in stores_of(batch)[1]:
        trees = [dict(stores_of(batch)[0])[t].batch[ids] for t, ids in zip((src, dst), store.edge_index, strict=True)]
        assert torch.equal(*trees)  # no edge leads from one tree to another
        mine = trees[0] == number
        ends = [lids[t][ids[mine]].tolist() for t, ids in zip((src, dst), store.edge_index, strict=True)]
        found[src, rel, dst] = ends, store.e_id[mine].tolist()
    return found


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_a_tree_with_all_neighbours_is_the_batch_of_its_seed(tmp_path, make):
    whole = partitioned(make(), tmp_path, 2)
    with Session(whole, WITH_EDGE) as context:
        each = context.make_loader(spec(num_neighbors=[-1, -1], batch_size=1))
        alone = [tree_of(batch, 0) for batch in each]
        batches = list(context.make_loader(spec(num_neighbors=[-1, -1], batch_size=8)))
    assert [tree_of(batch, i) for batch in batches for i in range(batch_size(batch))] == alone


def batch_size(batch) -> int:
    return len(stores_of(batch)[0][0][1].input_id) if isinstance(batch, Data) else len(batch["paper"].input_id)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_a_gpu_makes_the_batches_of_the_cpu(tmp_path, make, kernels, monkeypatch):
    whole, specs = partitioned(make(), tmp_path, 3), [spec(shuffle=True), spec(num_neighbors=[-1, 2])]

    def all_of():
        with Session(whole, WITH_EDGE, seed=3) as context:
            made = [[contents(batch) for batch in context.make_loader(each)] for each in specs]
            return made, type(context._producer).__name__

    expected, _ = all_of()
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    assert all_of() == (expected, "DeviceProducer")


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_who_samples_does_not_matter(tmp_path, make):
    whole = {parts: partitioned(make(), tmp_path, parts) for parts in (1, 3)}

    def all_of(context, **changes):
        return [contents(batch) for batch in context.make_loader(spec(shuffle=True, **changes))]

    with Session(whole[1], WITH_EDGE, seed=3) as context:
        expected = all_of(context)
        assert expected != all_of(context, disjoint=False)
    for sampling in (
        WITH_EDGE,
        SamplingOptions(with_edge=True, num_workers=2),
        SamplingOptions(num_threads=2, with_edge=True),
    ):
        with Session(whole[3], sampling, seed=3) as context:
            assert all_of(context) == expected
    with open_farm("in process") as farm:
        assert all_of(farm.context(farm.serve(whole[3]).address, sampling=WITH_EDGE)) == expected

    def found(rank, exchange):
        with open_rank(whole[3], rank, 2, exchange, WITH_EDGE) as context:
            made = all_of(context)
            exchange("all done")
            return made

    wanted = []
    for rank in range(2):
        with Session(whole[1], WITH_EDGE, seed=3, ranks=Ranks(rank, 2)) as context:
            wanted.append(all_of(context))
    assert run_ranks(2, found) == wanted


def test_a_node_draws_in_each_tree_on_its_own(tmp_path):
    """Seeds that are one node, each with a tree: all draw, and no two hundred draw alike."""
    whole = partitioned(small_graph(), tmp_path)
    with Session(whole, seed=1) as context:
        seeds = np.zeros(200, np.int64)  # node 0 has many neighbours
        (batch,) = context.make_loader(spec(split=None, seeds=seeds, num_neighbors=[3], batch_size=200))
    assert batch.batch[:200].tolist() == list(range(200))
    drawn = {tuple(tree_of_plain(batch, i)) for i in range(200)}
    assert len(drawn) > 100


def tree_of_plain(batch, number: int) -> list[int]:
    return batch.n_id[batch.batch == number].tolist()


def test_rows_of_owners_are_asked_for_once(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 3)
    here, remote = split_up(whole, [[0], [1], [2]])
    asked = []
    remote.instead["gather"] = lambda owner, question: asked.extend(question.tables) or remote.answer(owner, question)
    config = SamplerConfig(0, ((5,), (5,)), with_edge=True, disjoint=True)
    gids = gids_of(whole)[0][:40]
    request = BatchRequest(0, 9, gids, np.arange(40))
    draft = KHopSampler(here, config, remote=remote).draft(request)
    arrays = draft.write(np.empty(draft.nbytes, np.uint8))
    for kind in ("node", "edge"):
        ids = np.concatenate([rows.ids for rows in asked if rows.kind == kind])
        assert len(ids) == len(np.unique(ids)) > 50
    assert len(arrays["node/0/n_id"]) > 2 * len(np.unique(arrays["node/0/n_id"]))


def test_target_edges_are_excluded_in_every_tree_and_hop(tmp_path):
    """The cycle 0 - 1 - 2 - 3 and its edge 1 -> 2: the tree of each end finds the other one the long way round, and expands it in
    a later hop."""
    ends = [(0, 1), (1, 2), (2, 3), (3, 0)]
    data = Data(edge_index=torch.tensor(ends + [(b, a) for a, b in ends]).T.contiguous(), num_nodes=4)
    for exclude, left in (("none", {(1, 2), (2, 1)}), ("self", {(2, 1)}), ("reverse", set())):
        links = LinkSpec(
            name="train",
            edge_label_index=[[1], [2]],
            num_neighbors=[-1, -1, -1, -1],
            batch_size=1,
            exclude_target_edges=exclude,
            disjoint=True,
        )
        with Session(partitioned(data, tmp_path / exclude, 2), WITH_EDGE) as context:
            (batch,) = context.make_loader(links)
        pairs = Counter(zip(*batch.n_id[batch.edge_index].tolist(), strict=True))
        around = {(2, 3), (3, 2), (3, 0), (0, 3), (0, 1), (1, 0)}
        assert pairs == Counter(dict.fromkeys(around | left, 2))  # once in the tree of each end
        assert not batch.batch.any()


AMOUNTS = [("binary", 0.5), ("binary", 2), ("triplet", 2)]


@pytest.mark.parametrize("neg_sampling", AMOUNTS)
@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_trees_of_links_say_which_edge_they_belong_to(tmp_path, make, neg_sampling):
    """Also where there are fewer negatives than edges. Seeds stand as they come, also such that come twice."""
    graph = make()
    typed = not isinstance(graph, Data)
    edges = (graph["author", "writes", "paper"] if typed else graph).edge_index[:, :7].numpy()
    edges[1, 1] = edges[1, 0]
    links = LinkSpec(
        name="train",
        edge_type="author__writes__paper" if typed else None,
        edge_label_index=edges,
        neg_sampling=neg_sampling,
        num_neighbors=[2],
        batch_size=7,
        disjoint=True,
    )
    with Session(partitioned(graph, tmp_path, 2)) as context:
        (batch,) = context.make_loader(links)
    src, dst = (batch["author"], batch["paper"]) if typed else (batch, batch)
    count = -(-int(7 * neg_sampling[1] * 2) // 2)
    if neg_sampling[0] == "binary":
        count = int(np.ceil(7 * neg_sampling[1]))
        us, vs = batch["author", "writes", "paper"].edge_label_index if typed else batch.edge_label_index
        assert src.batch[us].tolist() == dst.batch[vs].tolist() == [*range(7), *(j % 7 for j in range(count))]
        assert len(set(us.tolist())) == len(us)
    else:
        us, vs = src.src_index, dst.dst_pos_index
        assert src.batch[us].tolist() == dst.batch[vs].tolist() == list(range(7))
        assert dst.batch[dst.dst_neg_index].tolist() == [[i, i] for i in range(7)]
    assert src.n_id[us[:7]].tolist() == edges[0].tolist()
    assert dst.n_id[vs[:7]].tolist() == edges[1].tolist()


def test_trees_of_seeds_of_several_types(tmp_path):
    """They are counted over all types, as are the edges that they belong to."""
    data = small_hetero()
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    edges = {t: data[t].edge_index[:, :count].numpy() for t, count in ((writes, 5), (cites, 4))}
    plain = {"name": "train", "num_neighbors": [2, 2], "batch_size": 9, "disjoint": True}
    with Session(partitioned(data, tmp_path, 2)) as context:
        negatives = {writes: ("triplet", 2), cites: {"mode": "triplet", "sharing": "in_batch"}}
        (batch,) = context.make_loader(LinkSpec(edge_label_index=edges, neg_sampling=negatives, **plain))
        (nodes,) = context.make_loader(LoaderSpec(seeds={"paper": np.arange(4), "author": np.arange(3)}, **plain))
    author, paper = batch["author"].batch, batch["paper"].batch
    store = batch[writes]
    assert author[store.src_index].tolist() == paper[store.dst_pos_index].tolist() == list(range(5))
    assert paper[store.dst_neg_index].tolist() == [[i, i] for i in range(5)]
    store = batch[cites]
    for lids in (store.src_index, store.dst_pos_index, store.dst_neg_index):
        assert paper[lids].tolist() == list(range(5, 9))
    assert store.dst_neg_index.tolist() == store.dst_pos_index.tolist() != store.src_index.tolist()
    assert len(batch["paper"].n_id[: batch["paper"].num_sampled_nodes[0]]) == 5 + 10 + 4 + 4
    assert nodes["author"].batch[:3].tolist() == [0, 1, 2]
    assert nodes["paper"].batch[:4].tolist() == [3, 4, 5, 6]


def test_trees_that_do_not_fit(tmp_path):
    with pytest.raises(OptionError, match="loader 'a': disjoint: shared negatives"):
        LinkSpec(
            name="a",
            edge_label_index=[[1], [2]],
            num_neighbors=[1],
            batch_size=1,
            neg_sampling={"mode": "triplet", "sharing": "shared"},
            disjoint=True,
        )
    graph = small_graph()
    graph.batch = torch.zeros(300)
    with (
        Session(partitioned(graph, tmp_path)) as context,
        pytest.raises(
            OptionError, match=r"loader 'train': disjoint: batches say in 'batch' which tree .* type node have"
        ),
    ):
        context.make_loader(spec())
    seeds = {0: np.arange(3)}
    for trees, said in (
        (Trees({0: np.zeros(2, np.int32)}), r"one for each seed, by node type {0: 3}; got {0: 2}"),
        (Trees(until=np.arange(2)), "expected one for each of 3 trees, got 2"),
        (Trees({0: np.arange(3, dtype=np.int32)}, since=np.arange(2)), "expected one for each of 3 trees, got 2"),
    ):
        with pytest.raises(DataError, match=said):
            trees.for_seeds(seeds)
    for of, until, said in (
        ({0: np.arange(3)}, None, r"tree/0: expected int32 \[S\], numbers of trees from 0; got int64 \[3\]"),
        ({0: np.array([-1], np.int32)}, None, "tree/0: expected int32"),
        ({}, np.zeros(3), r"until: expected int64 \[number of trees\], got float64 \[3\]"),
    ):
        with pytest.raises(DataError, match=said):
            Trees(of, until)


def test_trees_of_large_numbers(tmp_path):
    """A tree and a node are one number in the table of a batch, which needs wider slots here."""
    whole = partitioned(small_graph(), tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    config, gids = SamplerConfig(0, ((-1,), (-1,)), disjoint=True), gids_of(whole)[0][:3]
    found = []
    for most, remotely in ((2, False), (2**31 - 2, False), (2**31 - 2, True)):
        trees = Trees({0: np.array([0, 7, most, 7, most, 7], np.int32)[::2]})  # in memory with others between them
        sampler = KHopSampler(here, config, remote=remote) if remotely else KHopSampler(whole, config)
        draft = sampler.draft(BatchRequest(0, 9, gids, np.arange(3), trees=trees))
        arrays = draft.write(np.empty(draft.nbytes, np.uint8))
        assert set(arrays["node/0/batch"]) == {0, most}
        found.append({name: array.tolist() for name, array in arrays.items() if name != "node/0/batch"})
    assert found[0] == found[1] == found[2]


def test_what_other_processes_ask_for_is_checked(tmp_path):
    whole = partitioned(small_graph(), tmp_path)
    for config, trees, said in (
        (SamplerConfig(0, ((2,),)), Trees(until=np.zeros(1, np.int64)), "trees: only disjoint batches have some"),
        (SamplerConfig(0, ((2,),), disjoint=True), Trees(until=np.zeros(2, np.int64)), "each of 1 trees, got 2"),
    ):
        request = BatchRequest(0, 1, np.zeros(1, np.int64), np.zeros(1, np.int64), trees=trees)
        sent = Question(1, config, request).to_message("s", 1)
        with pytest.raises(DataError, match=said):
            read_question(Message(json.loads(json.dumps(sent.header)), sent.body), whole.manifest, most_threads=1)
    bounds = {"until": np.zeros(2, np.int64)}
    for further, said in (
        ({"tree/0": np.zeros(2, np.int32)}, "expected a tree for each of 3 rows, got 2"),
        (bounds, "expected a tree for each of 3 rows, got none"),
        ({"tree/0": np.array([0, 2, 1], np.int32)} | bounds, "tree 2 of a row is not one of the 2 trees"),
    ):
        arrays, body = pack({"0": np.arange(3)} | further)
        ask = {"fanouts": [2], "key": 1, "hop": 0, "arrays": arrays, "replace": False, "with_edge": False}
        with closing(Owner(whole, 1 << 12)) as owner, pytest.raises(DataError, match=said):
            owner.calls["expand"](Message(ask, body), CALLER)


def test_a_checkpoint_knows_whether_batches_were_disjoint(tmp_path):
    with Session(partitioned(small_graph(), tmp_path)) as context:
        for made, other in ((True, False), (False, True)):
            loader = context.make_loader(spec(disjoint=made))
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            rest = [contents(batch) for batch in batches]
            with pytest.raises(OptionError, match="loader 'train' cannot resume: disjoint: "):
                context.make_loader(spec(disjoint=other)).load_state_dict(state)
            resumed = context.make_loader(spec(disjoint=made))
            resumed.load_state_dict(state)
            assert [contents(batch) for batch in resumed] == rest
