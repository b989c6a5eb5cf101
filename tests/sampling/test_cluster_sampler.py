"""A sampler that asks other owners gives the batches of one that has every part, bit for bit."""

import itertools

import numpy as np
import pytest

from glt_lightning.base import DataError, PeerError
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import Picks
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
from tests.helpers.owners import DirectRows, split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero


def same(request, config, whole, here, remote):
    expected, found = KHopSampler(whole, config).draft(request), KHopSampler(here, config, remote=remote).draft(request)
    memory = [np.full(d.nbytes, fill, dtype=np.uint8) for d, fill in ((expected, 1), (found, 2))]
    expected, found = expected.write(memory[0]), found.write(memory[1])
    assert expected.keys() == found.keys()
    for name in expected:
        assert expected[name].dtype == found[name].dtype, name
        np.testing.assert_array_equal(expected[name], found[name], err_msg=name)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("owners", [[[0], [1]], [[1], [0]], [[0, 3], [2], [1]], [[2], [0], [1], [3]], [[0, 1, 2, 3]]])
def test_same_batch(tmp_path, make, owners):
    whole = partitioned(make(), tmp_path, sum(map(len, owners)), undirected=True)
    here, remote = split_up(whole, owners)
    seeds = whole.split("train")
    edge_types = len(whole.schema.edge_types)
    for fanouts, replace, with_edge in itertools.product(([4, 3], [2, -1, 3]), (False, True), (False, True)):
        table = tuple((k,) * edge_types for k in fanouts)
        orders = {"pointers": True, "by_source": not replace, "with_row": True}
        config = SamplerConfig(seeds.node_type, table, replace=replace, with_edge=with_edge, **orders)
        for number in range(3):
            chosen = np.ascontiguousarray(seeds.gids[number * 7 : number * 7 + 16])
            request = BatchRequest(number, 99 + number, chosen, np.arange(16))
            same(request, config, whole, here, remote)


def test_some_edge_types_are_not_followed(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    seeds = whole.split("train")
    config = SamplerConfig(seeds.node_type, ((0, 3), (2, 0)), with_edge=True)
    request = BatchRequest(0, 5, np.ascontiguousarray(seeds.gids[:9]), np.arange(9))
    same(request, config, whole, here, remote)


def test_a_seed_twice_and_none_local(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    first = int(whole.view.bounds[1])  # of part 1
    gids = np.array([first, first + 2, first, first + 1], dtype=np.int64)
    same(BatchRequest(0, 5, gids, np.arange(4)), SamplerConfig(0, ((3,), (2,))), whole, here, remote)


def test_wide_ids(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    here, other = (LocalPartition.open(whole.directory, parts=[p]) for p in (0, 1))
    request = BatchRequest(0, 5, whole.split("train").gids[:20].copy(), np.arange(20))
    same(request, SamplerConfig(0, ((3,), (2,)), with_edge=True), whole, here, DirectRows(2, [other], np.int64))


def test_each_owner_is_asked_once_per_hop(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 3)
    here, remote = split_up(whole, [[0], [1], [2]])
    seeds = whole.split("train")
    config = SamplerConfig(seeds.node_type, ((4, 4), (4, 4)))
    KHopSampler(here, config, remote=remote).draft(BatchRequest(0, 1, seeds.gids.copy(), np.arange(len(seeds.gids))))
    expands = [said for said in remote.asked if said[0] == "expand"]
    assert sorted(expands) == [("expand", owner, hop) for owner in (1, 2) for hop in (0, 1)]
    assert len(remote.asked) - len(expands) == 2 * 3  # the attributes of seeds and of each hop's new nodes


def test_an_owner_that_lies(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    config = SamplerConfig(0, ((3,),))
    request = BatchRequest(0, 1, whole.split("train").gids.copy(), np.arange(len(whole.split("train").gids)))

    def lie(change):
        def expand(owner, asked):
            picks = remote.answer(owner, asked)()[0]
            return lambda: {0: change(picks)}

        remote.instead["expand"] = expand
        return KHopSampler(here, config, remote=remote)

    for change in (
        lambda p: Picks(p.counts[:-1], p.neighbors),
        lambda p: Picks(p.counts, p.neighbors[:-1]),
        lambda p: Picks(p.counts, np.append(p.neighbors, np.int32(0))),
        lambda p: Picks(p.counts, p.neighbors + np.int32(300)),
        lambda p: Picks(-p.counts, p.neighbors),
        lambda p: Picks(p.counts.astype(np.int64), p.neighbors),
    ):
        with pytest.raises(DataError, match="merge"):
            lie(change).draft(request)

    def short(owner, asked):
        return lambda: [{n: a[:-1] for n, a in rows.items()} for rows in remote.answer(owner, asked)()]

    remote.instead = {"gather": short}
    with pytest.raises(PeerError, match="'n_id'"):
        KHopSampler(here, config, remote=remote).draft(request)


def test_a_seed_outside_the_graph(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    with pytest.raises(DataError, match="id 300 at position 1"):
        KHopSampler(here, SamplerConfig(0, ((3,),)), remote=remote).draft(
            BatchRequest(0, 1, np.array([0, 300]), np.arange(2))
        )
