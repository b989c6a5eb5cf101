"""Seeds of several node types in one loader: one plan over all, and per type what a loader of one type has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, GLTError, OptionError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import permutation, shuffle_key
from glt_lightning.workers import Ranks
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.ranks import run_ranks
from tests.workers.test_group import open_rank

DATA = small_hetero()
for node_type in ("author", "paper"):
    DATA[node_type].mark = torch.arange(DATA[node_type].num_nodes) * 10 + len(node_type)
PAPERS, AUTHORS = np.arange(0, 200, 5)[::-1].copy(), np.array([7, 7, 3, 70, 11])
SEEDS = {"paper": PAPERS, "author": AUTHORS}
TYPES = ("author", "paper")  # in the order of the plan
EXTRAS = {
    "paper": {"time": np.arange(40) * 10**12, "pair": np.arange(80.0).reshape(40, 2)},
    "author": {"time": np.arange(5)},
}


def spec(**changes) -> LoaderSpec:
    plain = {
        "name": "train",
        "num_neighbors": [3, 2],
        "batch_size": 8,
        "shuffle": True,
        "seeds": SEEDS,
        "extras": EXTRAS,
    }
    return LoaderSpec(**plain | changes)


def made(context: Session, **changes) -> list:
    return [contents(batch) for batch in context.make_loader(spec(**changes))]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partitioned(DATA, tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture(scope="module")
def expected(graph):
    with Session(graph, seed=3) as context:
        return made(context)


def test_who_makes_them_does_not_matter(context, expected):
    assert made(context) == expected


@pytest.mark.parametrize("parts", [1, 3, 4])
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


@pytest.mark.parametrize("shuffle", [True, False])
def test_one_order_over_all_types(graph, shuffle):
    """The batches are those of the definition: of one order over the authors and, behind them, the papers."""
    with Session(graph, seed=3) as context:
        loader = context.make_loader(spec(shuffle=shuffle))
        order = permutation(45, shuffle_key(3, "train", 0)) if shuffle else np.arange(45)
        for step, batch in enumerate(loader):
            mine = order[step * 8 : step * 8 + 8]
            wanted = {"author": mine[mine < 5], "paper": mine[mine >= 5] - 5}
            for node_type in TYPES:
                store, at = batch[node_type], wanted[node_type]
                assert store.input_id.tolist() == at.tolist()
                assert store.batch_size == len(at) == store.num_sampled_nodes[0]
                assert store.n_id[: len(at)].tolist() == SEEDS[node_type][at].tolist()
                for name, values in EXTRAS[node_type].items():
                    assert torch.equal(store[name], torch.from_numpy(values)[at])
        assert step == len(loader) - 1 == 5
        assert loader.stats().seeds == 45


def test_all_nodes_of_several_types(graph):
    with Session(graph, seed=3) as context:
        loader = context.make_loader(
            LoaderSpec(name="all", node_type=["paper", "author"], num_neighbors=[1], batch_size=64)
        )
        seen = {t: torch.cat([b[t].n_id[: b[t].batch_size] for b in loader]).tolist() for t in TYPES}
        assert seen == {"author": list(range(80)), "paper": list(range(200))}
        mask = np.arange(80) % 2 == 0
        loader = context.make_loader(spec(seeds={"author": mask, "paper": None}, extras={}, shuffle=False))
        assert len(loader.plan.seeds) == 240


def test_attributes_weights_and_owners(graph):
    """What else is by seed: attributes that are read before training, weights in the plan, and the ranks that own seeds."""
    with Session(graph, seed=3) as context:
        marks = [DATA[t].mark[SEEDS[t]] for t in TYPES]
        assert context.read_seeds(spec(), "mark").tolist() == torch.cat(marks).tolist()
        weights = {"paper": np.zeros(40), "author": np.array([0, 0, 1.0, 0, 3.0])}
        for batch in context.make_loader(spec(seed_weights=weights)):
            assert batch["paper"].batch_size == 0
            assert set(batch["author"].input_id.tolist()) <= {2, 4}
    for rank in range(2):
        with Session(graph, SamplingOptions(seed_placement="owner"), seed=3, ranks=Ranks(rank, 2)) as context:
            plan = context.make_loader(spec()).plan
            found = [plan.owner[plan.of.gids == gid][0] for part in plan.of.parts for gid in part.gids]
            owned = {
                t: np.searchsorted(graph.manifest.bounds[i], np.arange(200), side="right") - 1
                for i, t in enumerate(TYPES)
            }
            rows = [part.gids - graph.manifest.offsets[part.node_type] for part in plan.of.parts]
            assert found == [*owned["author"][rows[0]], *owned["paper"][rows[1]]]


def test_own_seeds_of_every_rank(graph):
    def found(rank, gather):
        ranks = Ranks(rank, 2, gather_counts=lambda n: [int(x) for x in gather(str(n))])
        mine = {"author": AUTHORS[rank::2], "paper": PAPERS[rank::2]}
        with Session(graph, seed=3, ranks=ranks) as context:
            loader = context.make_loader(spec(seeds=mine, extras={}, per_rank=True, exact=True, shuffle=False))
            return {t: [n for b in loader for n in b[t].n_id[: b[t].batch_size].tolist()] for t in TYPES}

    assert run_ranks(2, found) == [{"author": AUTHORS[r::2].tolist(), "paper": PAPERS[r::2].tolist()} for r in range(2)]


def test_an_epoch_goes_on_in_its_middle(graph, expected):
    with Session(graph, seed=3) as context:
        loader = context.make_loader(spec())
        iterator = iter(loader)
        _ = [next(iterator) for _ in range(2)]
        state = loader.state_dict()
        again = context.make_loader(spec())
        again.load_state_dict(state)
        assert [contents(batch) for batch in again] == expected[2:]
        for changes in (
            {"seeds": SEEDS | {"author": AUTHORS[::-1]}},
            {"seeds": {"paper": PAPERS}, "extras": {"paper": EXTRAS["paper"]}},
            {"extras": EXTRAS | {"author": {"time": np.arange(5) + 1}}},
        ):
            with pytest.raises(OptionError, match="cannot resume"):
                context.make_loader(spec(**changes)).load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_type": "paper"}, "node_type: seeds say it already, author, paper. Remove it"),
        (
            {"seeds": PAPERS, "extras": {}, "node_type": ["paper", "author"]},
            "seeds: is of one node type, and node_type names",
        ),
        (
            {"seeds": None, "node_type": ["paper", "paper"], "extras": {}},
            "node_type: expected different node types, got",
        ),
        ({"seeds": {}, "extras": {}}, "node_type: expected different node types"),
        (
            {"seeds": {"paper": PAPERS, "shop": [1]}, "extras": {}},
            "expected one of author, paper.*; got 'shop'",
        ),
        (
            {"seeds": {"paper": PAPERS + 200, "author": AUTHORS}},
            "seeds: 395 at position 0 is not a node of type 'paper'",
        ),
        (
            {"extras": {"time": np.arange(45)}},
            "extras: with seeds of several types, expected a mapping from",
        ),
        (
            {"extras": {"paper": {"time": np.arange(3)}}},
            r"extras: time has the shape \[3\]; expected one row for each of the 40",
        ),
        ({"extras": {"author": {"n_id": np.arange(5)}}}, "extras: batches have n_id already"),
        (
            {"seed_weights": np.ones(45)},
            "seed_weights: with seeds of several types, .*; got 'ndarray'",
        ),
        ({"seed_weights": {"paper": np.ones(40)}}, "seed_weights: expected some for each of author, paper"),
    ],
)
def test_what_is_refused(graph, changes, message):
    with Session(graph) as context, pytest.raises(GLTError, match=message):
        context.make_loader(spec(**changes))


def test_an_attribute_that_one_type_lacks(graph):
    with Session(graph) as context, pytest.raises(DataError, match="have no attribute 'w'"):
        context.read_seeds(spec(), "w")
