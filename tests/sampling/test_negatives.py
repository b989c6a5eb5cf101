"""Negatives are those of their definition, wherever the edges are and however the graph is cut."""

from functools import partial

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import DataError
from glt_lightning.sampling import DrawnTrials, NodeWeights, SamplerConfig, neighbor_source
from glt_lightning.sampling.negatives import TRIALS, GivenTrials, NegativeTest, NodeTimes, draw_negatives, negative_mask
from tests.helpers.negatives import plain_negatives, plain_trial
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero

KEY = 0xFEED_0123_4567_89AB
OWNERS = [[[0]], [[1], [0]], [[0, 3], [2], [1]]]


class Drawer:
    """A partition in the folder, and negatives of an edge type of it in the user's ids. owners: parts of each process."""

    def __init__(self, data, folder, owners=([0],), edge_type=0, **test) -> None:
        self.whole = partitioned(data, folder, sum(map(len, owners)))
        here, remote = split_up(self.whole, owners)
        source = neighbor_source(here, SamplerConfig(0, ()), remote=remote if len(owners) > 1 else None)
        types = here.schema.source_types()[edge_type], here.schema.destination_types()[edge_type]
        self.gids = here.gids(types[0]), here.gids(types[1])
        self.counts = [here.manifest.num_nodes[t] for t in types]
        self.users = [np.argsort(gids) for gids in self.gids]
        self.offsets = [int(gids.min()) for gids in self.gids]
        known = {"one_type": types[0] == types[1], "self_loops": False, "near": len(owners) == 1, "where": "loader 'a'"}
        self.test = NegativeTest(partial(source.has_edges, edge_type), **known | test)

    def trials(self, key=KEY, src=None, dst=None):
        return DrawnTrials(key, src or self.counts[0], dst or self.counts[1])

    def __call__(self, count, trials=None, strict=True, src=None, **more):
        src = None if src is None else self.gids[0][src].astype(np.int64)
        found = draw_negatives(
            trials or self.trials(), np.arange(count), self.test, strict=strict, src=src, gids=self.gids, **more
        )
        ids = [self.users[i][found[i] - self.offsets[i]].tolist() for i in (0, 1)]
        return list(zip(*ids, strict=True))


def graph_of(pairs, nodes):
    return Data(edge_index=torch.tensor(pairs).T.contiguous(), num_nodes=nodes)


def edge_set(edge_index):
    return set(zip(*edge_index.tolist(), strict=True))


@pytest.mark.diagonal
@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("hetero", [False, True])
def test_equal_to_the_definition_for_any_parts(tmp_path, owners, hetero):
    data = small_hetero() if hetero else small_graph(40)
    edge_type = 0
    edges = edge_set(data["author", "writes", "paper"].edge_index if hetero else data.edge_index)
    drawer = Drawer(data, tmp_path, owners, edge_type)
    plain = partial(plain_negatives, KEY, 300, *drawer.counts, edges, loops=hetero)
    assert drawer(300) == plain()
    assert not edges & set(drawer(300))
    assert drawer(300, strict=False) == plain(strict=False) != plain()
    sources = np.random.default_rng(0).integers(0, drawer.counts[0], 300)
    assert drawer(300, src=sources) == plain(sources=sources.tolist())
    weights = np.arange(drawer.counts[1]) % 5
    trials = drawer.trials(dst=NodeWeights(weights))
    expected = plain_negatives(KEY, 300, drawer.counts[0], weights.tolist(), edges, loops=hetero)
    assert drawer(300, trials) == expected
    numbers = np.arange(300)
    shipped = GivenTrials(trials.src(numbers, 0, TRIALS), trials.dst(numbers, 0, TRIALS))
    assert drawer(300, shipped) == expected


def test_edges_of_the_loader_are_no_negatives(tmp_path):
    data = small_graph(40)
    drawer, edges = Drawer(data, tmp_path), edge_set(data.edge_index)
    own = {pair for i in range(0, 200, 3) for pair in plain_negatives(KEY, i + 1, 40, 40, edges)[-1:]}
    assert own - edges
    rejected = [i * TRIALS + t for i in range(300) for t in range(TRIALS) if plain_trial(KEY, i, t, 40, 40) in own]
    found = drawer(300, rejected=np.array(rejected))
    assert found == plain_negatives(KEY, 300, 40, 40, edges | own)
    assert not own & set(found)


@pytest.mark.parametrize("self_loops", [False, True])
def test_strict_triplets(tmp_path, self_loops):
    """O2 of the specification: 0 has edges to 1, 2 and 3 of five nodes."""
    drawer = Drawer(graph_of([(0, 1), (0, 2), (0, 3)], 5), tmp_path, self_loops=self_loops)
    count = 4000 if self_loops else 60  # a negative in 1260 has none in 32 trials
    found = [v for _, v in drawer(count, src=np.zeros(count, np.int64))]
    if not self_loops:
        assert set(found) == {4}
        return
    counts = np.bincount(found, minlength=5)
    assert counts[[1, 2, 3]].tolist() == [0, 0, 0]
    assert ((counts[[0, 4]] - 2000) ** 2 / 2000).sum() < 10.8  # chi-square with one degree of freedom: 0.001


def test_strict_pairs(tmp_path):
    """O3: of three nodes all ordered pairs but one are edges."""
    pairs = [(u, v) for u in range(3) for v in range(3) if u != v and (u, v) != (2, 0)]
    assert set(Drawer(graph_of(pairs, 3), tmp_path)(20)) == {(2, 0)}  # of 43 negatives one has none in 32 trials


def test_no_negative_at_all(tmp_path):
    """O4: a complete graph."""
    pairs = [(u, v) for u in range(4) for v in range(4) if u != v]
    drawer = Drawer(graph_of(pairs, 4), tmp_path)
    with pytest.raises(DataError, match=r"loader 'a': neg_sampling.strict: none of 32 drawn pairs of the graph"):
        drawer(1)
    with pytest.raises(DataError, match=r"loader 'a': neg_sampling.strict: none of 32 drawn pairs of the node 3 is"):
        drawer(1, src=np.array([3]))
    assert len(drawer(5, strict=False)) == 5


def test_owners_are_asked_once_a_round(tmp_path):
    data = small_graph(40)
    whole = partitioned(data, tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    source = neighbor_source(here, SamplerConfig(0, ()), remote=remote)
    test = NegativeTest(partial(source.has_edges, 0), one_type=True, self_loops=False, near=False, where="")
    gids = here.gids(0)
    draw_negatives(DrawnTrials(KEY, 40, 40), np.arange(10_000), test, strict=True, src=None, gids=(gids, gids))
    assert [said[:2] for said in remote.asked] == [("has_edges", 1)] * 2  # two rounds, whatever the number of negatives


@pytest.mark.parametrize("scale", [1, 0.1, 1e-300, 1e300])
def test_weights(scale):
    """O9: nodes of weights 1, 3 and 0 come 1 : 3 : 0, whatever the weights are multiplied by."""
    weights = NodeWeights(np.array([1, 3, 0]) * scale)
    assert weights.total < 1 << 62
    ends = weights.ends.astype(float)
    np.testing.assert_allclose(ends / ends[-1], [0.25, 1, 1], rtol=1e-12)
    counts = np.bincount(DrawnTrials(KEY, 1, weights).dst(np.arange(8000), 0, 1).ravel(), minlength=3)
    assert counts[2] == 0
    assert ((counts[:2] - [2000, 6000]) ** 2 / [2000, 6000]).sum() < 10.8


def test_weights_near_the_limits():
    whole = NodeWeights(np.array([5, 0, 7], dtype=np.int32))
    assert whole.ends.tolist() == [5, 5, 12]
    huge = NodeWeights(np.array([2**63 - 1, 1, 2**63 - 1], dtype=np.uint64))
    assert huge.total < 1 << 62
    assert np.diff(huge.ends.astype(object)).tolist()[0] >= 1  # small, and not 0
    assert whole.nodes(np.array([0, 4, 5, 11])).tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("owners", OWNERS)
def test_mask(tmp_path, owners, monkeypatch):
    monkeypatch.setattr("glt_lightning.sampling.negatives._MOST_PAIRS", 64)
    data = small_graph(40)
    drawer, edges = Drawer(data, tmp_path, owners), edge_set(data.edge_index)
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 40, 30), rng.integers(0, 40, 17)
    gids = drawer.gids[0].astype(np.int64)
    rejected = np.array([0, 5, 16, 30 * 17 - 1])
    mask = negative_mask(gids[src], gids[dst], drawer.test, rejected)
    truth = np.array([[(u, v) not in edges and u != v for v in dst.tolist()] for u in src.tolist()])
    truth.ravel()[rejected] = False
    assert mask.tolist() == truth.tolist()
    assert 0 < mask.sum() < mask.size


def plain_in_time(edges, node_times, until, *, sources=None, strict, trials):
    """The first of each negative's trials that is one, and whose drawn nodes exist at the time of its edge; else None."""
    found = []
    for number, pairs in enumerate(trials):
        drawn = [(sources[number], v) for _, v in pairs] if sources is not None else pairs
        latest = until[number % len(until)]
        good = [
            (u, v)
            for u, v in drawn
            if node_times[v] <= latest
            and (sources is not None or node_times[u] <= latest)
            and not (strict and ((u, v) in edges or u == v))
        ]
        found.append(good[0] if good else None)
    return found


@pytest.mark.parametrize("owners", OWNERS[:2])
@pytest.mark.parametrize("strict", [False, True])
def test_nodes_of_negatives_exist(tmp_path, owners, strict):
    """1.5.8 of the specification: a trial also requires that its nodes are not younger than the edge."""
    data = small_graph(40)
    drawer, edges = Drawer(data, tmp_path, owners), edge_set(data.edge_index)
    rng = np.random.default_rng(2)
    ages, until, count = rng.integers(-5, 6, 40), rng.integers(0, 7, 30), 75  # negative 74 belongs to edge 14
    times = NodeTimes(ages, ages, until, oldest=False)
    trials = [[plain_trial(KEY, i, t, 40, 40) for t in range(TRIALS)] for i in range(count)]
    plain = partial(plain_in_time, edges, ages.tolist(), until.tolist(), strict=strict, trials=trials)
    assert drawer(count, strict=strict, times=times) == plain()
    sources = rng.integers(0, 40, count)
    found = drawer(count, strict=strict, times=times, src=sources)
    assert found == plain(sources=sources.tolist())
    assert found != drawer(count, strict=strict, src=sources)
    assert all(ages[v] <= until[i % 30] for i, (_, v) in enumerate(found))


def test_no_node_exists_by_then(tmp_path):
    """The oldest node is taken only where that was asked for, and only if it exists by then."""
    drawer = Drawer(graph_of([(0, 1), (1, 2), (2, 0)], 40), tmp_path)
    ages = np.full(40, 9)
    ages[7] = 3
    src, until = np.zeros(2, np.int64), np.array([9, 3])
    seldom = KEY + 4  # of its second negative no trial gives node 7
    trials = drawer.trials(key=seldom)
    with pytest.raises(DataError, match=r"32 drawn pairs of the node 0 is a negative that exists at .* to oldest"):
        drawer(2, trials, src=src, times=NodeTimes(None, ages, until, oldest=False))
    found = drawer(2, trials, src=src, times=NodeTimes(None, ages, until, oldest=True))
    assert found[1] == (0, 7)
    assert found[0] == drawer(1, trials, src=src[:1])[0]
    assert drawer(2, trials, strict=False, times=NodeTimes(ages, None, until, oldest=True))[1][0] == 7
    with pytest.raises(DataError, match=r"the time of its edge. Even the oldest node is younger"):
        drawer(2, trials, src=src, times=NodeTimes(None, ages, until - 1, oldest=True))
