"""Edges of several types as seeds of one loader: one plan over all, and per type the fields and negatives of its own."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.base import GLTError, OptionError, RemoteError, SamplingOptions
from glt_lightning.loader import LinkSpec, Session
from glt_lightning.sampling import permutation, shuffle_key
from glt_lightning.workers import Ranks
from tests.helpers.contents import contents
from tests.helpers.negatives import plain_negatives, plain_role_key
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.workers.test_group import open_rank

DATA = small_hetero()
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")  # in the order of the plan
COUNTS = {WRITES: (80, 200), CITES: (200, 200)}
KNOWN = {t: set(zip(*DATA[t].edge_index.tolist(), strict=True)) for t in (WRITES, CITES)}
KNOWN[CITES] |= {(v, u) for u, v in KNOWN[CITES]}  # the graph is made undirected
SEEDS = {
    CITES: DATA[CITES].edge_index.numpy()[:, 100:150],
    "author__writes__paper": DATA[WRITES].edge_index.numpy()[:, :20],
}
EDGES = {WRITES: SEEDS["author__writes__paper"], CITES: SEEDS[CITES]}
GIVEN = np.where(np.arange(100).reshape(50, 2) % 3 == 0, np.arange(100).reshape(50, 2), -1)
SHARED = {"mode": "triplet", "amount": 3, "sharing": "shared"}
KINDS = {
    "none": {},
    "binary": {
        "neg_sampling": {"amount": 0.3},
        "edge_label": {WRITES: np.arange(20) % 3},
        "extras": {CITES: {"t": np.arange(50)}},
    },
    "mixed": {
        "neg_sampling": {"paper__cites__paper": ("triplet", 2), WRITES: "binary"},
        "negatives": {CITES: GIVEN},
        "extras": {"author__writes__paper": {"t": np.arange(20) * 10**10}, CITES: {"w": np.ones((50, 2), np.float32)}},
    },
    "weights": {"neg_sampling": {CITES: {"src_weight": "degree", "dst_weight": np.arange(200) % 4}, WRITES: "triplet"}},
    "shared": {"neg_sampling": {CITES: SHARED, WRITES: {"mode": "triplet", "sharing": "in_batch"}}, "batch_size": 5},
    "reverse": {"neg_sampling": "binary", "exclude_target_edges": "reverse", "num_neighbors": [-1, -1]},
}


def spec(kind: str = "none", **changes) -> LinkSpec:
    plain = {"name": "train", "num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "edge_label_index": SEEDS}
    return LinkSpec(**plain | KINDS[kind] | changes)


def made(context: Session) -> dict[str, list]:
    return {kind: [contents(batch) for batch in context.make_loader(spec(kind))] for kind in KINDS}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partitioned(DATA, tmp_path_factory.mktemp("graph"), 2, undirected=True)


@pytest.fixture(scope="module")
def expected(graph):
    with Session(graph, seed=3) as context:
        return made(context)


def test_who_makes_them_does_not_matter(context, expected):
    assert made(context) == expected


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_how_the_graph_is_cut_does_not_matter(tmp_path, expected, parts):
    with Session(partitioned(DATA, tmp_path, parts, undirected=True), seed=3) as context:
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


def pairs(batch, edge_type, lids) -> list[tuple[int, int]]:
    src, _, dst = edge_type
    return list(zip(batch[src].n_id[lids[0]].tolist(), batch[dst].n_id[lids[1]].tolist(), strict=True))


def positions(loader, step: int) -> dict:
    """The edges of a batch by the definition: a part of one order over the edges of all types."""
    order = permutation(70, shuffle_key(3, "train", 0))[step * loader.batch_size : (step + 1) * loader.batch_size]
    return {WRITES: order[order < 20], CITES: order[order >= 20] - 20}


def drawn(key: int, edge_type, count: int, sources=None) -> list[tuple[int, int]]:
    """Draws of a type have a key by its name."""
    key = plain_role_key(key, "__".join(edge_type))
    loops = edge_type == WRITES
    return plain_negatives(key, count, *COUNTS[edge_type], KNOWN[edge_type], sources=sources, loops=loops)


def test_batches_are_those_of_the_definition(graph):
    with Session(graph, seed=3) as context:
        loader = context.make_loader(spec("mixed"))
        requests = list(loader.plan.requests(0))
        assert len(loader) == len(requests) == 5
        for step, (request, batch) in enumerate(zip(requests, loader, strict=True)):
            at = positions(loader, step)
            writes, cites = batch[WRITES], batch[CITES]
            for edge_type, store in ((WRITES, writes), (CITES, cites)):
                assert store.input_id.tolist() == at[edge_type].tolist()
                assert "batch_size" not in store
            true = {t: list(zip(*EDGES[t][:, at[t]].tolist(), strict=True)) for t in EDGES}
            positives = len(at[WRITES])
            found = pairs(batch, WRITES, writes.edge_label_index)
            assert found == [*true[WRITES], *drawn(request.key, WRITES, positives)]
            assert writes.edge_label.tolist() == [1.0] * positives + [0.0] * positives
            assert writes.t.tolist() == (at[WRITES] * 10**10).tolist()
            assert pairs(batch, CITES, (cites.src_index, cites.dst_pos_index)) == true[CITES]
            sources = [u for u, _ in true[CITES]]
            tried = drawn(request.key, CITES, 2 * len(sources), sources * 2)
            given = GIVEN[at[CITES]].T.ravel().tolist()
            wanted = [v if v >= 0 else pair[1] for v, pair in zip(given, tried, strict=True)]
            assert batch["paper"].n_id[cites.dst_neg_index].T.ravel().tolist() == wanted
            assert cites.w.shape == (len(sources), 2)
            assert "src_index" not in batch["paper"]
        assert loader.stats().seeds == 70


def test_nodes_are_in_the_order_of_the_edge_types(graph):
    with Session(graph, seed=3) as context:
        for batch in context.make_loader(spec("reverse", num_neighbors=[1])):
            writes, cites = batch[WRITES].edge_label_index, batch[CITES].edge_label_index
            count = len(batch[CITES].input_id)
            ends = [*writes[1], *cites[0, :count], *cites[1, :count], *cites[0, count:], *cites[1, count:]]
            firsts = list(dict.fromkeys(int(lid) for lid in ends))
            assert firsts == list(range(batch["paper"].num_sampled_nodes[0]))
            assert set(writes[0].tolist()) == set(range(batch["author"].num_sampled_nodes[0]))


def test_no_messages_over_the_edges_of_any_type(graph):
    with Session(graph, seed=3) as context:
        some = 0
        for batch in context.make_loader(spec("reverse")):
            hidden = {t: {tuple(e) for e in EDGES[t][:, batch[t].input_id].T.tolist()} for t in EDGES}
            hidden[CITES] |= {(v, u) for u, v in hidden[CITES]}
            hidden["paper", "rev_writes", "author"] = {(v, u) for u, v in hidden[WRITES]}
            for edge_type, edges in hidden.items():
                assert not edges & set(pairs(batch, edge_type, batch[edge_type].edge_index))
                some += batch[edge_type].edge_index.shape[1]
        assert some


def test_a_type_that_a_batch_lacks(graph):
    with Session(graph, seed=3) as context:
        for kind in ("binary", "mixed", "shared"):
            loader = context.make_loader(spec(kind, shuffle=False, batch_size=10))
            first, last = [batch for i, batch in enumerate(loader) if i in (0, 6)]
            assert [len(b[t].input_id) for b in (first, last) for t in (WRITES, CITES)] == [10, 0, 0, 10]
            if kind == "binary":
                assert first[CITES].edge_label_index.shape == (2, 0)
                assert last[WRITES].edge_label.shape == (0,)
            if kind == "shared":
                assert first[CITES].neg_mask.shape == (0, 0)
                assert first[CITES].dst_neg_index.shape == (0,)
            assert first[CITES].get("t", first[CITES].input_id).shape[0] == 0


def test_one_type_alone_draws_as_before(graph):
    edges = {WRITES: EDGES[WRITES]}
    with Session(graph, seed=3) as context:
        typed = context.make_loader(spec(edge_label_index=edges, neg_sampling="binary"))
        plain = context.make_loader(
            spec(edge_label_index=EDGES[WRITES], edge_type="author__writes__paper", neg_sampling="binary")
        )
        assert [contents(b) for b in typed] == [contents(b) for b in plain]


def test_an_epoch_goes_on_in_its_middle(graph, expected):
    with Session(graph, seed=3) as context:
        loader = context.make_loader(spec("mixed"))
        iterator = iter(loader)
        _ = [next(iterator) for _ in range(2)]
        state = loader.state_dict()
        again = context.make_loader(spec("mixed"))
        again.load_state_dict(state)
        assert [contents(batch) for batch in again] == expected["mixed"][2:]
        turned = {CITES: EDGES[CITES], WRITES: np.stack([EDGES[WRITES][0], EDGES[WRITES][1, ::-1]])}
        for changes in (
            {"edge_label_index": turned},
            {"edge_label_index": {WRITES: EDGES[WRITES]}, "negatives": None, "neg_sampling": "binary", "extras": {}},
            {"negatives": {CITES: GIVEN[::-1]}},
            {"neg_sampling": ("triplet", 2)},
        ):
            with pytest.raises(OptionError, match="cannot resume"):
                context.make_loader(spec("mixed", **changes)).load_state_dict(state)


def test_seen_targets_are_said_once(graph, caplog):
    with Session(graph, seed=3) as context:
        list(context.make_loader(spec()))
    (said,) = [r.message for r in caplog.records if "exclude_target_edges is none" in r.message]
    assert "16 of the 16 edges of batch 0 are stored" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"edge_type": "paper__cites__paper"},
            "edge_type: expected edges of one type, or edge_label_index by edge type",
        ),
        ({"edge_label_index": {}}, "edge_type: expected edges of one type, or edge_label_index by edge type; got none"),
        ({"edge_label_index": {"a__b__c": EDGES[WRITES]}}, "edge_type: expected one of .*; got 'a__b__c'"),
        (
            {"edge_label_index": {WRITES: EDGES[WRITES].T}},
            r"edge_label_index: expected ids \[2, S\].* Give its transpose",
        ),
        (
            {"edge_label": np.arange(70)},
            "edge_label: with seeds of several types, expected a mapping from .*; got 'ndarray'",
        ),
        ({"edge_label": {WRITES: np.arange(3)}}, r"edge_label: expected one for each of the 20 edges, got \[3\]"),
        (
            {"neg_sampling": {WRITES: "triplet"}, "edge_label": {WRITES: np.arange(20)}},
            "edge_label: triplets have no labels",
        ),
        (
            {"neg_sampling": {WRITES: "binary", "x__y__z": "binary"}},
            "neg_sampling: with seeds of several .*; got 'x__y__z'",
        ),
        ({"negatives": {CITES: GIVEN[:3]}}, r"negatives: expected ids \[50, K\], a row for each edge"),
        ({"extras": {WRITES: {"edge_label": np.arange(20)}}}, "extras: batches have edge_label already"),
    ],
)
def test_what_is_refused(graph, changes, message):
    with Session(graph) as context, pytest.raises(GLTError, match=message):
        context.make_loader(spec(**changes))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("1/src", np.array([400]), "link/src: 400 at position 0 is no node of type 'paper'"),
        ("1/dst", np.array([-1]), "link/dst: -1 at position 0 is no node of type 'paper'"),
        ("1/src", np.array([0.5]), r"link/1/src: expected int64 \[S\], got float64 \[1\]"),
        ("7/dst", np.array([1]), "link/7/dst: unknown edge type; those of config.more_links are 1"),
    ],
)
def test_a_server_refuses_what_does_not_fit(graph, monkeypatch, name, array, message):
    with open_farm("in process") as farm:
        loader = farm.context(farm.serve(graph).address).make_loader(spec())
        (request,) = [r for i, r in enumerate(loader.plan.requests(0)) if i == 0]
        request.link[name] = array
        monkeypatch.setattr(type(loader.plan), "requests", lambda *_: iter([request]))
        with pytest.raises(RemoteError, match=message):
            list(loader)
