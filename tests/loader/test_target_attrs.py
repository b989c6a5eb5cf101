"""Attributes of the edges that a batch is about, wherever they are stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glt_lightning.base import GLTError, SamplingOptions
from glt_lightning.loader import LinkSpec, Session
from glt_lightning.workers import Ranks
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.workers.test_group import open_rank

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
DATA = small_hetero()
DATA[WRITES].edge_index = DATA[WRITES].edge_index[:, [*range(500), *range(40)]]  # parallel edges
DATA[WRITES].edge_attr = torch.randn(540, 3, generator=torch.Generator().manual_seed(0))
DATA[WRITES].rating = torch.arange(540) * 7
EDGES = DATA[WRITES].edge_index.numpy()
FIRST = {pair: i for i, pair in reversed(list(enumerate(zip(*EDGES.tolist(), strict=True))))}
FREE = [(u, v) for u in range(80) for v in range(0, 200, 37) if (u, v) not in FIRST][:10]
SEEDS = np.concatenate([EDGES[:, :60], np.array(FREE).T, EDGES[:, 300:310]], axis=1)
KINDS = {
    "plain": {"edge_type": "author__writes__paper", "edge_label_index": SEEDS},
    "types": {
        "edge_label_index": {WRITES: SEEDS, CITES: DATA[CITES].edge_index.numpy()[:, :20]},
        "neg_sampling": "binary",
    },
}


def spec(kind: str, **changes) -> LinkSpec:
    plain = {"name": "train", "num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "with_target_attrs": True}
    return LinkSpec(**plain | KINDS[kind] | changes)


def made(context: Session) -> dict[str, list]:
    return {kind: [contents(batch) for batch in context.make_loader(spec(kind))] for kind in KINDS}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partitioned(DATA, tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture(scope="module")
def expected(graph):
    with Session(graph, seed=3) as context:
        return made(context)


def test_who_makes_them_does_not_matter(context, expected):
    assert made(context) == expected


@pytest.mark.parametrize("parts", [1, 4])
def test_how_the_graph_is_cut_does_not_matter(tmp_path, expected, parts):
    with Session(partitioned(DATA, tmp_path, parts), seed=3) as context:
        assert made(context) == expected


def test_where_parts_are_remote(graph):
    def found(rank, exchange):
        with open_rank(graph, rank, 2, exchange, SamplingOptions()) as context:
            batches = made(context)
            exchange("all done")
            return batches

    with (
        Session(graph, seed=3, ranks=Ranks(0, 2)) as one,
        Session(graph, seed=3, ranks=Ranks(1, 2)) as two,
    ):
        assert run_ranks(2, found) == [made(one), made(two)]


@pytest.mark.parametrize("feature_dtype", ["float32", "stored"])
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_edges(tmp_path, kind, feature_dtype):
    """Of parallel edges those of the first; of edges that are not stored 0."""
    storage = {"edge_attr": "bfloat16"} if feature_dtype == "stored" else {}
    graph = partitioned(DATA, tmp_path, 3, storage=storage)
    attrs = DATA[WRITES].edge_attr.bfloat16() if storage else DATA[WRITES].edge_attr
    with Session(graph, SamplingOptions(feature_dtype=feature_dtype), seed=3) as context:
        missing = 0
        for batch in context.make_loader(spec(kind)):
            store = batch[WRITES]
            ids = [FIRST.get(tuple(pair), -1) for pair in SEEDS[:, store.input_id.numpy()].T.tolist()]
            assert store.edge_label_id.tolist() == ids
            known = torch.tensor(ids) >= 0
            assert store.edge_label_attr.dtype == attrs.dtype
            assert torch.equal(store.edge_label_attr[known], attrs[ids][known])
            assert torch.equal(store.edge_label_rating[known], DATA[WRITES].rating[ids][known])
            assert not store.edge_label_attr[~known].any()
            missing += int((~known).sum())
            if kind == "types":
                at = batch[CITES].input_id.numpy()
                cited = DATA[CITES].edge_index.numpy()
                firsts = {p: i for i, p in reversed(list(enumerate(zip(*cited.tolist(), strict=True))))}
                assert batch[CITES].edge_label_id.tolist() == [firsts[tuple(p)] for p in cited[:, at].T.tolist()]
                assert "edge_label_attr" not in batch[CITES]
        assert missing == len(FREE)


@pytest.mark.parametrize("world_size", [1, 2])
def test_stored_edges_of_weight_0_have_their_ids_and_attributes(tmp_path, world_size):
    """They are in no batch, and yet they are stored."""
    data = small_graph()
    data.edge_index = torch.unique(data.edge_index, dim=1)
    data.edge_attr = (torch.arange(data.edge_index.shape[1]) % 3).float()
    graph = partitioned(data, tmp_path, 2, weights=["edge_attr"])
    edges = data.edge_index[:, :90]
    wanted = LinkSpec(name="l", edge_label_index=edges, num_neighbors=[2], batch_size=30, with_target_attrs=True)

    def made(context):
        return [(b.input_id, b.edge_label_id, b.edge_label_attr) for b in context.make_loader(wanted)]

    def found(rank, exchange):
        with open_rank(graph, rank, 2, exchange, SamplingOptions(weight_attr="edge_attr")) as context:
            batches = made(context)
            exchange("all done")
            return batches

    if world_size == 1:
        with Session(graph, SamplingOptions(weight_attr="edge_attr"), seed=3) as context:
            batches = made(context)
    else:
        batches = [each for of_rank in run_ranks(2, found) for each in of_rank]
    assert sum(len(input_id) for input_id, _, _ in batches) == 90
    for input_id, ids, attrs in batches:
        assert torch.equal(ids, input_id)
        assert torch.equal(attrs, data.edge_attr[input_id])


def test_edges_of_every_rank(graph):
    """``per_rank``: each rank has edges of its own; in training all make as many steps."""

    def found(rank, gather, exact):
        ranks = Ranks(rank, 2, gather_counts=lambda n: [int(x) for x in gather(str(n))])
        with Session(graph, seed=3, ranks=ranks) as context:
            mine = SEEDS[:, : 20 + 30 * rank]
            options = {"edge_label_index": mine, "per_rank": True, "exact": exact, "shuffle": not exact}
            loader = context.make_loader(spec("plain", neg_sampling="binary", **options))
            seen = []
            for batch in loader:
                src, dst = batch[WRITES].edge_label_index[:, : len(batch[WRITES].input_id)]
                seen.append(
                    list(zip(batch["author"].n_id[src].tolist(), batch["paper"].n_id[dst].tolist(), strict=True))
                )
            return seen, loader.state_dict()["plan"]

    exact = run_ranks(2, lambda rank, gather: found(rank, gather, True))
    for rank, (seen, _) in enumerate(exact):
        assert [pair for batch in seen for pair in batch] == list(
            zip(*SEEDS[:, : 20 + 30 * rank].tolist(), strict=True)
        )
    (one, plan), (two, same) = run_ranks(2, lambda rank, gather: found(rank, gather, False))
    assert len(one) == len(two) == 4
    assert {*one[0], *one[1]} == {*one[2], *one[3]}
    assert plan == same


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"with_target_attrs": "yes"}, "with_target_attrs: expected true or false, got 'yes'"),
        ({"extras": {"edge_label_rating": np.arange(80)}}, "extras: batches have edge_label_rating already"),
        ({"per_rank": 1}, "per_rank: expected true or false, got 1"),
    ],
)
def test_what_is_refused(graph, changes, message):
    with Session(graph) as context, pytest.raises(GLTError, match=message):
        context.make_loader(spec("plain", **changes))
