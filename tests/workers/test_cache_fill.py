"""Rows of others that are kept here: which, and that batches do not change by it."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from glt_lightning.base import CacheOptions, OptionError, PartitionOptions, PeerError
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.graph.cache_choice import remote_hotness
from glt_lightning.graph.remote_cache import cached_node_bytes, index_bytes
from glt_lightning.partition import open_source, partition_graph
from glt_lightning.sampling import BatchRequest, Counters, KHopSampler, SamplerConfig
from glt_lightning.workers.cluster.cache import CacheMaker
from tests.helpers.owners import make_cache, split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero


def chosen(here, options):
    """Policy, and for each node type the nodes that are kept."""
    maker = CacheMaker(here, options)
    maker.close()
    return maker._choice.policy, maker._gids


def _written(draft):
    return draft.write(np.zeros(draft.nbytes, dtype=np.uint8))


def _compare(whole, here, remote, cache, with_edge=False):
    """Batches with the cache equal those of the whole graph; the counters of all."""
    seeds = whole.split("train")
    fanouts = ((4,) * len(whole.schema.edge_types), (3,) * len(whole.schema.edge_types))
    config = SamplerConfig(seeds.node_type, fanouts, with_edge=with_edge)
    local, far, total = KHopSampler(whole, config), KHopSampler(here, config, remote=remote, cache=cache), Counters()
    for number in range(4):
        gids = np.ascontiguousarray(seeds.gids[number * 5 : number * 5 + 12])
        request = BatchRequest(number, 7 + number, gids, np.arange(len(gids)))
        expected, draft = _written(local.draft(request)), far.draft(request)
        found = _written(draft)
        assert expected.keys() == found.keys()
        for name in expected:
            assert expected[name].dtype == found[name].dtype, name
            np.testing.assert_array_equal(expected[name], found[name], err_msg=name)
        nodes = [len(found[f"node/{t}/n_id"]) for t in range(len(whole.schema.node_types))]
        edges = sum(len(v) for k, v in found.items() if k.endswith("/e_id"))
        assert draft.counters.rows == sum(nodes) + edges
        total.add(draft.counters)
    return total


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("owners", [[[0], [1]], [[0, 2], [1], [3]]])
@pytest.mark.parametrize("with_edge", [False, True])
def test_any_cache_gives_the_same_batches(tmp_path, make, owners, with_edge):
    whole = partitioned(make(), tmp_path, sum(map(len, owners)), undirected=True)
    here, remote = split_up(whole, owners)
    without = _compare(whole, here, remote, None, with_edge)
    assert without.cached_rows == 0 < without.remote_rows
    before = without.remote_rows
    for ratio in (0.0, 0.02, 0.1, 0.5, 1.0):
        cache = make_cache(here, remote, CacheOptions(ratio=ratio))
        assert (cache.rows is None) == (ratio == 0)
        found = _compare(whole, here, remote, cache, with_edge)
        assert found.cached_rows + found.remote_rows == without.remote_rows
        assert found.local_rows == without.local_rows
        assert found.remote_rows <= before
        before = found.remote_rows
        assert (found.cached_rows > 0) == (found.cached_bytes > 0)
        cache.close()
    assert found.remote_bytes == 0 or with_edge  # all nodes that have in-edges of this host's are kept


def test_the_folders_ranking_is_followed(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 4)
    here, _ = split_up(whole, [[2], [0, 1, 3]])
    gids, hotness = remote_hotness(whole, "degree", 2, 0)
    assert (np.diff(hotness) <= 0).all()
    policy, kept = chosen(here, CacheOptions(ratio=0.1))
    assert policy == "degree"
    rows = int(0.1 * whole.manifest.num_nodes[0])
    assert kept[0].tolist() == sorted(gids[:rows].tolist())


def test_several_mapped_parts_add_up(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 4, undirected=True)
    here, _ = split_up(whole, [[0, 2], [1, 3]])
    _, kept = chosen(here, CacheOptions(ratio=0.2))
    for t in range(len(whole.schema.node_types)):
        heat = {}
        for part in (0, 2):
            for gid, value in zip(*remote_hotness(whole, "degree", part, t), strict=True):
                heat[int(gid)] = heat.get(int(gid), 0.0) + float(value)
        bounds = np.asarray(whole.manifest.bounds[t]) + whole.manifest.offsets[t]
        foreign = {g: h for g, h in heat.items() if np.searchsorted(bounds, g, side="right") - 1 in (1, 3)}
        best = sorted(foreign, key=lambda g: (-foreign[g], g))[: int(0.2 * whole.manifest.num_nodes[t])]
        assert kept[t].tolist() == sorted(best)


def test_degrees_without_a_list(tmp_path, monkeypatch):
    """Counted from the edges of the mapped parts."""
    whole = partitioned(small_graph(), tmp_path, 3, undirected=True)
    here, _ = split_up(whole, [[1], [0, 2]])
    monkeypatch.setattr(Manifest, "remote_policies", ())
    policy, kept = chosen(here, CacheOptions(ratio=0.05))
    indices = np.load(whole.directory / "part1/edges/0/indices.npy")
    counts = np.bincount(indices, minlength=whole.manifest.total_nodes)
    begin, end = whole.manifest.bounds[0][1:3]
    counts[begin:end] = 0
    best = np.argsort(-counts, kind="stable")[: int(0.05 * len(counts))]
    assert policy == "degree"
    assert kept[0].tolist() == sorted(best.tolist())


def test_a_ratio_for_each_type(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 2, undirected=True)
    here, _ = split_up(whole, [[0], [1]])
    name = whole.schema.node_types[1]
    _, kept = chosen(here, CacheOptions(ratio={name: 0.3}))
    assert len(kept[0]) == 0
    assert 0 < len(kept[1]) <= int(0.3 * whole.manifest.num_nodes[1])


def test_bytes_buy_the_hottest_rows_per_byte(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 2, undirected=True)
    here, remote = split_up(whole, [[0], [1]])
    manifest = whole.manifest
    index = sum(index_bytes(manifest, t) for t in range(len(manifest.num_nodes)))
    for budget in (index + 1, index + 2000, index + 5000, 1 << 30):
        _, gids = chosen(here, CacheOptions(bytes=budget))
        spent = sum(len(g) * cached_node_bytes(manifest, t) for t, g in enumerate(gids))
        assert spent <= budget - index
        heat = [
            {
                int(g): float(h) / cached_node_bytes(manifest, t)
                for g, h in zip(*remote_hotness(whole, "degree", 0, t), strict=True)
            }
            for t in range(len(gids))
        ]
        kept = [heat[t][g] for t, each in enumerate(gids) for g in each.tolist()]
        left = [h for t, each in enumerate(heat) for g, h in each.items() if g not in set(gids[t].tolist())]
        assert not kept or not left or min(kept) >= max(left)
        cache = make_cache(here, remote, CacheOptions(bytes=budget))
        _compare(whole, here, remote, cache)
        cache.close()


def test_one_line_says_what_it_comes_to(tmp_path, caplog):
    whole = partitioned(small_graph(), tmp_path, 2, undirected=True)
    here, remote = split_up(whole, [[0], [1]])
    with caplog.at_level(logging.INFO, "glt_lightning"):
        make_cache(here, remote, CacheOptions(ratio=0.1)).close()
    (line,) = caplog.messages
    rows = int(0.1 * whole.manifest.num_nodes[0])
    assert line.startswith(
        f"cache on the host of parts [0]: {rows} rows (10.0% of all nodes) of remote parts, degree, "
    )
    assert line.endswith(" MB.")


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("owners", [[[0], [1]], [[0, 2], [1], [3]]])
@pytest.mark.parametrize("with_edge", [False, True])
def test_neighbour_lists_of_others(tmp_path, make, owners, with_edge):
    whole = partitioned(make(), tmp_path, sum(map(len, owners)), undirected=True)
    here, remote = split_up(whole, owners)
    before = _compare(whole, here, remote, None, with_edge).remote_frontier_rows
    asked = before
    assert before > 0
    for budget in (2000, 10_000, 1 << 24):
        kept = make_cache(here, remote, CacheOptions(bytes=1 << 25, topology=budget))
        assert kept.topology is None or kept.topology.nbytes <= budget + 4096 * len(kept.topology.arrays.arrays) + 8192
        remote.asked.clear()
        found = _compare(whole, here, remote, kept, with_edge)
        assert found.cached_frontier_rows + found.remote_frontier_rows == before
        assert found.remote_frontier_rows <= asked
        asked = found.remote_frontier_rows
        kept.close()
    assert asked == 0
    assert not any(said[0] == "expand" for said in remote.asked)
    if any(whole.manifest.edge_attrs(r) for r in range(len(whole.schema.edge_types))) or not with_edge:
        assert remote.asked == []  # edge attributes are kept with the lists


def test_a_node_without_neighbours_is_kept_too(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2)  # directed: some nodes have no in-edges
    here, remote = split_up(whole, [[0], [1]])
    kept = make_cache(here, remote, CacheOptions(bytes=1 << 25, topology=1 << 24))
    assert _compare(whole, here, remote, kept, True).remote_frontier_rows == 0
    kept.close()


def _without_own_seeds(tmp_path, *, stored, hotness="auto"):
    """Two parts; the second has no training seeds, or no split is stored at all."""
    data = small_graph()
    parts = np.where(data.train_mask.numpy(), 0, np.arange(300) % 2)
    if not stored:
        del data.train_mask, data.val_mask, data.test_mask
    np.save(tmp_path / "parts.npy", parts)
    algorithm = str(tmp_path / "parts.npy")
    options = PartitionOptions(num_parts=2, algorithm=algorithm, hotness=hotness, num_neighbors=[4, 3], batch_size=8)
    source = open_source(data, str(tmp_path))
    partition_graph(source, tmp_path / "cut", options, undirected=True, normalize="none", progress=False)
    return split_up(LocalPartition.open(tmp_path / "cut"), [[1], [0]])


def test_a_host_whose_lists_are_empty_ranks_by_degree(tmp_path, caplog):
    here, remote = _without_own_seeds(tmp_path, stored=True, hotness="vip")
    with caplog.at_level(logging.WARNING):
        kept = make_cache(here, remote, CacheOptions(ratio=0.1))
    assert kept.rows is not None
    assert "cache.policy: auto (vip): the partition ranks no remote rows for parts [1]" in caplog.text
    kept.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 1.4}, r"cache.ratio: expected a share of the nodes from 0 to 1, such as 0.1; got 1.4"),
        ({"ratio": {"paper": -1}}, r"cache.ratio\[paper\]: expected a share"),
        ({"ratio": 0.1, "bytes": "1GB"}, "give ratio or bytes, not both"),
        ({"bytes": "much"}, "cache.bytes: expected bytes"),
        ({"policy": "vipp", "ratio": 0.1}, r"cache.policy: expected auto.*Did you mean vip\?"),
        ({"policy": "presample"}, "cache.policy: presample was removed. Write auto, and partition with"),
        ({"policy": "dynamic"}, "cache.policy: dynamic was removed. Write auto"),
        ({"topology": "auto", "bytes": "1GB"}, "cache.topology: auto was removed. Write the number of bytes"),
        ({"memory": "0"}, "cache.memory: expected bytes"),
        (
            {"topology": "1GB"},
            r"cache.topology \('1GB'\) is carved out of cache.bytes and must not exceed it; cache.bytes is not set",
        ),
        ({"topology": "2GB", "bytes": "1GB"}, "must not exceed it; cache.bytes is '1GB'"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(OptionError, match=message):
        CacheOptions(**options)


def test_options_that_do_not_fit_the_graph(tmp_path, monkeypatch):
    whole = partitioned(small_hetero(), tmp_path, 2, undirected=True)
    here, remote = split_up(whole, [[0], [1]])
    name = whole.schema.node_types[0]
    with pytest.raises(OptionError, match=rf"no node type '{name}s'.*Did you mean {name}\?"):
        make_cache(here, remote, CacheOptions(ratio={f"{name}s": 0.1}))
    with pytest.raises(OptionError, match=r"cache.policy: vip, but .* \(it has: degree\).*partition.hotness: vip"):
        make_cache(here, remote, CacheOptions(policy="vip", ratio=0.1))
    monkeypatch.setattr("glt_lightning.graph.host_memory.available_memory", lambda: 1000)
    with pytest.raises(
        OptionError, match=r"cache: not enough memory for .* are available on this host. Lower cache.ratio"
    ):
        make_cache(here, remote, CacheOptions(ratio=0.1))


def test_an_owner_that_fails_or_lies(tmp_path):
    whole = partitioned(small_graph(), tmp_path, 2, undirected=True)
    here, remote = split_up(whole, [[0], [1]])

    def lie(owner, request):
        return lambda: [{name: rows[:-1] for name, rows in remote.answer(owner, request)()[0].items()}]

    remote.instead["gather"] = lie
    with pytest.raises(
        PeerError, match=r"the owner of parts \[1\] answered .* rows of .*, .* each\. Run the same version"
    ):
        make_cache(here, remote, CacheOptions(ratio=0.1))


def test_an_owner_that_truncates_lists(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 3, undirected=True)
    here, remote = split_up(whole, [[0], [1, 2]])

    def cut(owner, request):
        return lambda: {r: replace(p, neighbors=p.neighbors[:-1]) for r, p in remote.answer(owner, request)().items()}

    remote.instead["expand"] = cut
    with pytest.raises(
        PeerError, match=r"the owner of parts \[1, 2\] returned truncated neighbour lists of \('.*', '.*'\) for"
    ):
        make_cache(here, remote, CacheOptions(bytes=1 << 20, topology=10_000))


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_rows_in_fewer_bytes_are_kept_in_fewer_bytes(tmp_path, make, stored):
    plain = partitioned(make(), tmp_path / "plain", 2, undirected=True)
    whole = partitioned(make(), tmp_path / "stored", 2, undirected=True, storage={"x": stored})
    here, remote = split_up(whole, [[0], [1]])
    sizes = [sum(cached_node_bytes(p.manifest, t) for t in range(len(p.schema.node_types))) for p in (whole, plain)]
    assert sizes[0] < sizes[1]
    for options in ({"ratio": 0.3}, {"bytes": 1 << 20, "topology": 10_000}):
        kept = make_cache(here, remote, CacheOptions(**options))
        for _ in range(2):
            found = _compare(whole, here, remote, kept)
        assert found.cached_rows > 0
        kept.close()
