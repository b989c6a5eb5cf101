"""Batches around edges: who makes them does not matter, and their fields are PyG's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import DataError, GLTError, OptionError, SamplingOptions
from glt_lightning.loader import LinkSpec, Session
from glt_lightning.workers import Ranks
from tests.helpers.contents import contents
from tests.helpers.negatives import plain_negatives
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.ranks import run_ranks
from tests.workers.test_group import open_rank

HETERO = small_hetero()
WRITES = HETERO["author", "writes", "paper"].edge_index.numpy()
WRITTEN = set(zip(*WRITES.tolist(), strict=True))
# The last ten are no edges of the graph.
FREE = [(u, v) for u in range(80) for v in range(0, 200, 37) if (u, v) not in WRITTEN][:10]
SEEDS = np.concatenate([WRITES[:, :60], np.array(FREE).T], axis=1)
GIVEN = np.where(np.arange(140).reshape(70, 2) % 3 == 0, np.arange(140).reshape(70, 2), -1)
KINDS = {
    "none": {},
    "binary": {"neg_sampling": ("binary", 0.3), "edge_label": np.arange(70) % 3},
    "weights": {"neg_sampling": {"src_weight": "degree", "dst_weight": np.arange(200) % 4 * 0.1}},
    "triplet": {"neg_sampling": ("triplet", 2), "negatives": GIVEN},
    "shared": {"neg_sampling": {"mode": "triplet", "amount": 5, "sharing": "shared"}},
    "in_batch": {
        "neg_sampling": {"mode": "triplet", "sharing": "in_batch"},
        "extras": {"time": np.arange(70) * 10**10},
    },
    "reverse": {"exclude_target_edges": "reverse", "num_neighbors": [2, 3], "neg_sampling": "binary"},
    "disjoint": {"disjoint": True, "neg_sampling": ("binary", 0.3), "exclude_target_edges": "reverse"},
    "disjoint triplets": {"disjoint": True, "neg_sampling": ("triplet", 2)},
    "disjoint in_batch": {"disjoint": True, "neg_sampling": {"mode": "triplet", "sharing": "in_batch"}},
    "self": {"exclude_target_edges": "self", "num_neighbors": [2, -1], "neg_sampling": "triplet"},
}
EDGE_TYPE = ("author", "writes", "paper")


def spec(kind="none", **changes) -> LinkSpec:
    plain = {"name": "train", "num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "edge_label_index": SEEDS}
    return LinkSpec(**plain | {"edge_type": "author__writes__paper"} | KINDS[kind] | changes)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partitioned(HETERO, tmp_path_factory.mktemp("graph"), 2, undirected=True)


@pytest.fixture(scope="module")
def expected(graph):
    with Session(graph, seed=3) as context:
        return {kind: [contents(batch) for batch in context.make_loader(spec(kind))] for kind in KINDS}


def test_who_makes_them_does_not_matter(context, expected):
    for kind, batches in expected.items():
        assert [contents(batch) for batch in context.make_loader(spec(kind))] == batches, kind


def test_where_parts_are_remote(graph, expected):
    def found(rank, exchange):
        with open_rank(graph, rank, 2, exchange, SamplingOptions()) as context:
            made = {
                kind: [contents(batch) for batch in context.make_loader(spec(kind, batch_size=8))] for kind in KINDS
            }
            exchange("all done")
            return made

    with (
        Session(graph, seed=3, ranks=Ranks(0, 2)) as one,
        Session(graph, seed=3, ranks=Ranks(1, 2)) as two,
    ):
        contexts = one, two
        wanted = [
            {kind: [contents(batch) for batch in each.make_loader(spec(kind, batch_size=8))] for kind in KINDS}
            for each in contexts
        ]
    assert run_ranks(2, found) == wanted


@pytest.mark.parametrize(("kind", "named"), [("none", 2), ("binary", 2.6), ("triplet", 4), ("shared", None)])
def test_edges_name_two_nodes(graph, kind, named):
    """And so do their negatives, but for those of triplets, which have the source of an edge; the shared ones are named once."""
    with Session(graph, seed=3) as context:
        loader = context.make_loader(spec(kind, batch_size=10, num_neighbors=[1, 1]))
        found = [(batch.num_nodes, batch.num_edges) for batch in loader]
        stats = loader.stats()
    nodes, edges = map(sum, zip(*found, strict=True))
    ends = 2 * 70 + 7 * 5 if named is None else named * 70
    assert (stats.seeds, stats.named_nodes) == (70, ends)
    assert stats.deduplicated == ends + edges - nodes > 0


def pairs(batch, lids) -> list[tuple[int, int]]:
    ids = batch["author"].n_id[lids[0]].tolist(), batch["paper"].n_id[lids[1]].tolist()
    return list(zip(*ids, strict=True))


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_negatives_are_those_of_the_definition(tmp_path, parts):
    known = WRITTEN | set(FREE)
    with Session(partitioned(HETERO, tmp_path, parts), seed=3) as context:
        binary, triplet = (context.make_loader(spec(kind)) for kind in ("binary", "triplet"))
        for request, batch in zip(binary.plan.requests(0), binary, strict=True):
            found, positives = pairs(batch, batch[EDGE_TYPE].edge_label_index), len(request.seeds)
            assert found[:positives] == list(zip(*SEEDS[:, request.input_id].tolist(), strict=True))
            count = len(found) - positives
            assert count == -(-positives * 3 // 10)
            assert found[positives:] == plain_negatives(request.key, count, 80, 200, known, loops=True)
        triplet.set_epoch(0)
        for request, batch in zip(triplet.plan.requests(0), triplet, strict=True):
            sources = SEEDS[0, request.input_id].tolist()
            drawn = plain_negatives(request.key, 2 * len(sources), 80, 200, known, sources=sources * 2, loops=True)
            given = GIVEN[request.input_id].T.ravel().tolist()
            wanted = [v if v >= 0 else pair[1] for v, pair in zip(given, drawn, strict=True)]
            lids = batch["paper"].dst_neg_index
            assert lids.shape == (len(sources), 2)
            assert batch["paper"].n_id[lids].T.ravel().tolist() == wanted
            assert batch["author"].n_id[batch["author"].src_index].tolist() == sources


def test_masks(graph, expected):
    with Session(graph, seed=3) as context:
        for kind, strict in (("shared", True), ("in_batch", True), ("shared", False), ("in_batch", False)):
            given = KINDS[kind]["neg_sampling"] | {"strict": strict}
            for batch in context.make_loader(spec(kind, neg_sampling=given)):
                src, dst = batch["author"], batch["paper"]
                us, vs = src.n_id[src.src_index].tolist(), dst.n_id[dst.dst_neg_index].tolist()
                true = dst.n_id[dst.dst_pos_index].tolist()
                assert len(vs) == (5 if kind == "shared" else len(us))
                assert dst.neg_mask.tolist() == [
                    [not (strict and (u, v) in WRITTEN | set(FREE)) and not (kind == "in_batch" and v == w) for v in vs]
                    for u, w in zip(us, true, strict=True)
                ]
                assert not dst.neg_mask.all() or kind == "shared"


def test_hetero_fields(graph):
    with Session(graph, seed=3) as context:
        batch = next(iter(context.make_loader(spec("binary", extras={"time": np.arange(70)}))))
        edges = batch[EDGE_TYPE]
        assert edges.edge_label.tolist() == [*(edges.input_id % 3 + 1).tolist(), 0, 0, 0, 0, 0]
        assert edges.time.tolist() == edges.input_id.tolist()
        assert "batch_size" not in batch["author"]
        for t in ("author", "paper"):  # each end once, and first
            count = batch[t].num_sampled_nodes[0]
            assert len(set(batch[t].n_id[:count].tolist())) == count
            lids = edges.edge_label_index[int(t == "paper")]
            firsts = list(dict.fromkeys(lids.tolist()))
            assert firsts == sorted(firsts) == list(range(count))


O1 = [(0, v) for v in range(1, 6)] + [(1, 6), (1, 7), (1, 8), (2, 9), (2, 10), (3, 6), (5, 11)]


@pytest.mark.parametrize("parts", [1, 3])
def test_ids_of_edges_and_nodes(tmp_path, parts):
    """O1 and O8: every lid names its user id, and with all neighbours the nodes and edges are those on the way to the ends. O8's
    source is PyG's LinkNeighborLoader, which needs pyg-lib or torch-sparse: the registry lacks them, so brute force stands in."""
    edges = torch.tensor(O1).T.contiguous()
    data = Data(edge_index=edges, num_nodes=12, x=torch.arange(12.0).unsqueeze(1))
    with Session(partitioned(data, tmp_path, parts), SamplingOptions(with_edge=True), seed=1) as context:
        given = {"num_neighbors": [-1, -1], "edge_type": None, "edge_label_index": edges.numpy(), "batch_size": 3}
        for batch in context.make_loader(spec(**given)):
            assert torch.equal(batch.n_id[batch.edge_label_index], edges[:, batch.input_id])
            assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])
            assert torch.equal(batch.x[:, 0], batch.n_id.float())
            near, found = set(edges[:, batch.input_id].ravel().tolist()), set()
            nodes = set(near)
            for _ in range(2):
                reached = {k for k, (_, v) in enumerate(O1) if v in near}
                found |= reached
                near = {O1[k][0] for k in reached} - nodes
                nodes |= near
            assert set(batch.n_id.tolist()) == nodes
            assert sorted(batch.e_id.tolist()) == sorted(found)
            assert "edge_label" not in batch


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (None, [1.0, 0.0]),
        (np.array([0, 1, 1]), [2, 0]),
        (np.array([1, 1, 2]), [1, 0]),
        (np.array([False, True, True]), [2, 0]),
    ],
)
def test_labels(tmp_path, labels, wanted):
    data = Data(edge_index=torch.tensor(O1).T.contiguous(), num_nodes=12)
    given = {"edge_type": None, "edge_label_index": np.array(O1[:3]).T, "edge_label": labels, "batch_size": 3}
    with Session(partitioned(data, tmp_path), seed=1) as context:
        (batch,) = context.make_loader(spec(neg_sampling="binary", shuffle=False, **given))
        assert [batch.edge_label[1].item(), batch.edge_label[4].item()] == wanted
        assert batch.edge_label.shape == (6,)
        (batch,) = context.make_loader(spec(shuffle=False, **given))
        assert batch.get("edge_label") is None if labels is None else batch.edge_label.tolist() == labels.tolist()


def test_an_epoch_goes_on_in_its_middle(graph):
    with Session(graph, seed=3) as context:
        loader = context.make_loader(spec("weights"))
        iterator = iter(loader)
        first, state = [next(iterator) for _ in range(2)], loader.state_dict()
        rest = [contents(batch) for batch in iterator]
        again = context.make_loader(spec("weights"))
        again.load_state_dict(state)
        assert [contents(batch) for batch in again] == rest
        assert len(first) + len(rest) == len(loader) == 5
        for changes in (
            {"neg_sampling": "binary"},
            {"edge_label_index": SEEDS[:, ::-1]},
            {"edge_label_index": np.stack([SEEDS[0], SEEDS[1, ::-1]])},
            {"edge_label": np.arange(70)},
            {"neg_sampling": {"src_weight": "degree", "dst_weight": np.arange(200) % 4 * 0.2, "strict": False}},
        ):
            with pytest.raises(OptionError, match="cannot resume"):
                context.make_loader(spec("weights", **changes)).load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"edge_label_index": SEEDS.T},
            r"edge_label_index: expected ids \[2, S\], got int64 \[70, 2\]. Give its transpose",
        ),
        ({"edge_label_index": SEEDS + 0.5}, "edge_label_index: expected ids, integers, got float64"),
        (
            {"edge_label_index": SEEDS + 75},
            "sources of edge_label_index: .* is no node of type 'author', whose ids are 0 to 79",
        ),
        ({"edge_label_index": np.array([[0], [-1]])}, "destinations of edge_label_index: -1 at position 0 is no node"),
        (
            {"edge_type": None},
            "edge_type: expected one of author__writes__paper, .*rev_writes__author; got None",
        ),
        ({"edge_type": "author__likes__paper"}, "edge_type: expected one of"),
        ({"edge_label": np.arange(3)}, r"edge_label: expected one for each of the 70 edges, got \[3\]"),
        ({"edge_label": np.arange(70), "neg_sampling": "triplet"}, "edge_label: triplets have no labels"),
        ({"negatives": GIVEN[:3]}, r"negatives: expected ids \[70, K\], a row for each edge, got int64 \[3, 2\]"),
        (
            {"negatives": GIVEN, "neg_sampling": "binary"},
            "negatives: 2 for each edge need neg_sampling with mode triplet",
        ),
        (
            {"negatives": GIVEN + 100},
            "negatives: 202 at position 51 is no node of type 'paper', whose ids are 0 to 199",
        ),
        (
            {"neg_sampling": {"dst_weight": np.ones(80)}},
            "dst_weight: expected 200 weights, one for each node of its type, got 80",
        ),
        ({"exclude_target_edges": "both"}, "exclude_target_edges: expected none, self, reverse; got 'both'"),
        ({"extras": {"edge_label_index": np.arange(70)}}, "extras: batches have edge_label_index already"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1"),
        ({"neg_sampling": "tripel"}, "neg_sampling.mode: expected binary, triplet; got 'tripel'"),
    ],
)
def test_what_is_refused(graph, changes, message):
    with Session(graph) as context, pytest.raises(GLTError, match=message):
        context.make_loader(spec(**changes))


def test_no_negative_names_the_loader(tmp_path):
    complete = [(u, v) for u in range(4) for v in range(4) if u != v]
    data = Data(edge_index=torch.tensor(complete).T.contiguous(), num_nodes=4)
    given = {"edge_type": None, "edge_label_index": np.array(complete).T, "neg_sampling": "binary"}
    message = r"loader 'train': neg_sampling.strict: none of 32 drawn pairs"
    with Session(partitioned(data, tmp_path)) as context, pytest.raises(DataError, match=message):
        list(context.make_loader(spec(**given)))
