"""Seeds of several node types in one batch, and edges that it is sampled without: every source gives the batch of the
reference, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from glt_lightning.base import CacheOptions, DataError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import ExcludedEdges, Trees
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig, k_hop, neighbor_source
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.producer.subprocess import SubprocessProducer
from glt_lightning.workers.transport.base import Service
from tests.helpers.graphs import HETERO, SINGLE, TypedGraph, excluded_edges, random_data, random_excluded, random_seeds
from tests.helpers.owners import DirectRows, make_cache, split_up
from tests.helpers.partitions import gids_of, partitioned, small_hetero
from tests.helpers.servers import Farm, open_farm
from tests.reference import ops as reference


def request_of(
    number: int, key: int, seeds: dict[int, np.ndarray], excluded: ExcludedEdges, trees: Trees | None
) -> tuple[int, BatchRequest]:
    """(seed type, request)"""
    seed_type, *others = seeds
    own, more = seeds[seed_type], {t: seeds[t] for t in others}
    return seed_type, BatchRequest(number, key, own, np.arange(len(own)), more, excluded=excluded, trees=trees)


def arrays_of(sampler: KHopSampler, request: BatchRequest) -> dict[str, np.ndarray]:
    draft = sampler.draft(request)
    return draft.write(np.empty(draft.nbytes, dtype=np.uint8))


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def assert_is_the_reference(
    graph: TypedGraph,
    found: dict[str, np.ndarray],
    seeds: dict[int, np.ndarray],
    config: SamplerConfig,
    key: int,
    excluded: dict[int, set[tuple[int, int]]],
    trees: Trees | None,
) -> None:
    uids = {t: torch.from_numpy(ids) for t, ids in seeds.items()}
    options: dict = {"batch_key": key, "replace": config.replace, "excluded": excluded, "last": config.last}
    if trees is not None:
        options["trees"] = {t: torch.from_numpy(tree.astype(np.int64)) for t, tree in trees.of.items()}
        options |= {name: torch.from_numpy(b) for name in ("since", "until") if (b := getattr(trees, name)) is not None}
    want = reference.khop(
        graph.reference(), len(graph.num_nodes), uids, [list(hop) for hop in config.fanouts], **options
    )
    for t, n_id in enumerate(want.n_id):
        assert found[f"node/{t}/n_id"].tolist() == n_id.tolist()
        if want.tree is not None:
            assert found[f"node/{t}/batch"].tolist() == want.tree[t].tolist()
    for r, edge_index in enumerate(want.edge_index):
        assert found[f"edge/{r}/edge_index"].tolist() == edge_index.tolist()
        assert found[f"edge/{r}/e_id"].tolist() == want.e_id[r].tolist()
    assert found["num_sampled_nodes"].tolist() == want.nodes_per_hop
    assert found["num_sampled_edges"].tolist() == want.edges_per_hop


@pytest.mark.diagonal
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_every_source_gives_the_reference(tmp_path, seed, parts):
    """Of random graphs, some with weights, most with times: one native call, hop by hop, with owners here and over the wire, and
    with cached neighbour lists. Some batches are disjoint: with a tree for each seed, or several seeds in one, and with bounds in
    time, some of which leave nothing. Some are drawn by LABOR. Nodes are assigned to parts by one algorithm or another."""
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, (SINGLE, HETERO, HETERO)[seed % 3])
    if seed % 2:
        graph.weigh(rng)
    if seed:
        graph.date(rng)
    weights = tuple("weight" if r in graph.weights else None for r in range(len(graph.edges)))
    named = {"weights": ["weight"] if any(weights) else None, "time_attr": "time" if graph.times else None}
    algorithm = ("random", "frequency", "metis", "streaming")[(seed + parts) % 4]
    data = random_data(rng, graph)
    first = data[graph.schema.node_types[0]]
    first.train_mask = torch.ones(first.num_nodes, dtype=torch.bool)  # what `frequency` counts accesses by
    whole = partitioned(data, tmp_path, parts, algorithm=algorithm, **named)
    here, remote = split_up(whole, [[p] for p in rng.permutation(parts).tolist()])
    gid_of, cache = gids_of(whole), make_cache(here, remote, CacheOptions(bytes=1 << 25, topology=1 << 24))
    with closing(cache), open_farm("in process") as farm:
        wire = over_the_wire(farm, remote)
        for number in range(8):
            seeds, excluded = random_seeds(graph, rng), random_excluded(graph, rng)
            fanouts = rng.choice([0, 1, 2, 5, 70, -1], (int(rng.integers(1, 4)), len(graph.edges))).tolist()
            key, repeat = int(rng.integers(0, 2**64, dtype=np.uint64)), bool(rng.integers(2))
            gids = {t: gid_of[t][ids] for t, ids in seeds.items()}
            trees = None
            if number >= 2:
                trees = random_trees(seeds, rng) if number % 2 else Trees().for_seeds(gids)
            timed = number >= 4 and bool(graph.times)
            if timed:
                trees = with_bounds(trees, rng)
            last = timed and number >= 6 and not any(weights)
            graph.labor = bool((seed + number) % 2) and not last
            draw = {"with_edge": True, "weights": weights, "timed": timed, "last": last, "labor": graph.labor}
            draw["replace"] = repeat and not last and not graph.labor
            sent = None if number == 2 else trees
            seed_type, request = request_of(number, key, gids, excluded_edges(graph, excluded, gid_of), sent)
            config = SamplerConfig(seed_type, tuple(map(tuple, fanouts)), disjoint=trees is not None, **draw)
            expected = arrays_of(KHopSampler(whole, config), request)
            assert_is_the_reference(graph, expected, seeds, config, key, excluded, trees)
            stepped = KHopSampler(whole, config)
            stepped.source.khop = lambda *_: None
            for sampler in (
                stepped,
                KHopSampler(here, config, remote=remote),
                KHopSampler(here, config, remote=wire),
                KHopSampler(here, config, remote=remote, cache=cache),
            ):
                assert_same(arrays_of(sampler, request), expected)


def with_bounds(trees: Trees, rng: np.random.Generator) -> Trees:
    until, since = (rng.integers(-6, int(rng.choice([6, 1000])), trees.num_trees) for _ in range(2))
    which = rng.integers(3)
    return replace(trees, until=until if which else None, since=np.minimum(since, until) if which != 1 else None)


def random_trees(seeds: dict[int, np.ndarray], rng: np.random.Generator) -> Trees:
    return Trees({t: rng.integers(0, 4, len(ids)).astype(np.int32) for t, ids in seeds.items()})


def over_the_wire(farm: Farm, remote: DirectRows) -> PeerRows:
    """The same owners, each answering messages. Replies have room for few picks."""
    peers = []
    for number, partition in enumerate(remote._owners):
        owner = farm.open(Owner(partition, 1 << 12))
        service = Service(lambda hello: {}, owner.calls, {})
        peers.append(farm.peer(farm.open(farm.transport.serve(f"owner:{number}", service)).address))
    return PeerRows(remote.owner_of_part, peers)


def requests(whole: LocalPartition, count: int = 6) -> Iterator[BatchRequest]:
    """Papers are the loader's own seeds; some batches have authors, too, and one has no paper. Two draw neighbours alike."""
    rng, gid_of = np.random.default_rng(0), gids_of(whole)
    for number in range(count):
        papers, authors = gid_of[1][rng.integers(0, 200, 9 * (number > 0))], gid_of[0][rng.integers(0, 80, number)]
        writes = np.stack([gid_of[1][np.repeat(np.arange(200), 80)], gid_of[0][np.tile(np.arange(80), 200)]])
        excluded = ExcludedEdges.of({0: tuple(writes[:, rng.random(writes.shape[1]) < 0.3])}) if number % 2 else None
        more = {0: authors} if number else {}
        shared = 2**64 - 1 if number in (2, 3) else None
        yield BatchRequest(
            number, 99 + number, papers, np.arange(len(papers)), more, excluded=excluded, neighbor_key=shared
        )


@pytest.mark.parametrize("kind", ["processes", "flight", "handover"])
def test_every_producer_gives_the_batches_of_one_that_samples_inline(tmp_path, kind):
    whole = partitioned(small_hetero(), tmp_path, 2)
    config = SamplerConfig(1, ((4, 3), (2, -1)), with_edge=True)
    configs = config, replace(config, labor=True)
    expected = [[arrays_of(KHopSampler(whole, each), request) for request in requests(whole)] for each in configs]
    assert [each["num_sampled_nodes"][:, 0].tolist() for each in expected[0]] == [
        [0, 0],
        *([n, 9] for n in range(1, 6)),
    ]

    def check(producer):
        for config, batches in zip(configs, expected, strict=True):
            for sample in producer.stream(config, requests(whole)):
                assert_same({name: np.array(a) for name, a in sample.arrays.items()}, batches[sample.number])

    if kind == "processes":
        with closing(SubprocessProducer(whole, SamplingOptions(num_workers=2))) as producer:
            check(producer)
    else:
        with open_farm(kind) as farm:
            check(farm.producer(farm.peer(farm.serve(whole).address)))


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ({0: [3, 90]}, "id 90 at position 1 is not"),
        ({1: [80], 0: [80]}, "id 80 at position 0 is not"),
        ({2: [1]}, "seeds: expected node types 0 to 1, got 2"),
    ],
)
@pytest.mark.parametrize("parts_here", [[0, 1], [0]])
def test_a_seed_of_another_type_is_refused(tmp_path, seeds, message, parts_here):
    whole = partitioned(small_hetero(), tmp_path, 2)
    here, remote = split_up(whole, [parts_here, *([p] for p in (0, 1) if p not in parts_here)])
    source = neighbor_source(here, SamplerConfig(0, ((2, 2),)), remote=remote if len(parts_here) == 1 else None)
    with pytest.raises(DataError, match=message):
        k_hop(source, {t: np.array(gids) for t, gids in seeds.items()}, 1)


def test_seeds_of_the_own_type_belong_together():
    request = BatchRequest(7, 1, np.arange(2), np.arange(2), {0: np.arange(3)})
    assert list(request.typed_seeds(1)) == [1, 0]
    with pytest.raises(DataError, match="batch 7: more_seeds has seeds of node type 0"):
        request.typed_seeds(0)
