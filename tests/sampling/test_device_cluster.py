"""A GPU that has some parts, and asks owners for the others, gives the batches of the CPU, bit for bit."""

import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from glt_lightning.base import CacheOptions, DataError, PeerError
from glt_lightning.graph import HostTier
from glt_lightning.kernels import Picks
from glt_lightning.kernels.cuda import khop_steps
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig, neighbor_source
from tests.helpers.device_parts import PartsCase, as_array, assert_same, sampled, written
from tests.helpers.graphs import HETERO, SINGLE, TypedGraph, excluded_edges, random_data, random_excluded, random_seeds
from tests.helpers.owners import DirectRows, make_cache
from tests.helpers.partitions import gids_of, small_graph, small_hetero
from tests.helpers.wide import wide_graph, wide_hetero
from tests.loader.test_stored_attributes import every_dtype
from tests.sampling.test_has_edges import questions


@pytest.fixture
def open_case(kernels, tmp_path):
    """Makes a `PartsCase` of (data, owners, ...)."""
    with ExitStack() as opened:
        yield lambda *args, **kwargs: opened.enter_context(closing(PartsCase(kernels, tmp_path, *args, **kwargs)))


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    ("owners", "features"),
    [([[1], [0]], "device"), ([[0, 3], [2], [1]], "cpu"), ([[2], [0], [1], [3]], "device"), ([[0, 1, 2]], "device")],
)
def test_same_batch(open_case, make, owners, features):
    case = open_case(make(), owners, ("device", features))
    for fanouts, replace, with_edge in itertools.product(([4, 3], [2, -1, 3]), (False, True), (False, True)):
        orders = {"pointers": True, "by_source": not replace, "with_row": True}
        case.check(case.config(*fanouts, replace=replace, with_edge=with_edge, **orders))


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    ("owners", "features"), [([[1], [0]], "device"), ([[0, 3], [2], [1]], "cpu"), ([[0, 1, 2]], "cpu")]
)
def test_trees_share_the_rows_that_come_from_the_host(open_case, make, owners, features, monkeypatch):
    """Attributes that owners sent, or that the CPU reads, are copied to the device once for each node and edge of a batch."""
    case, pinned = open_case(make(), owners, ("device", features)), []
    config, kernels = case.config(4, 3, with_edge=True, disjoint=True), case.store.kernels
    take = kernels.pinned
    monkeypatch.setattr(kernels, "pinned", lambda *shape, dtype: pinned.append(shape) or take(*shape, dtype=dtype))
    (request,) = case.requests(1)
    sample = sampled(case.sampler(config), request)
    assert_same(sample, written(KHopSampler(case.whole, config).draft(request)))
    paper = len(case.whole.schema.node_types) - 1  # has x, float32 of width 3
    nodes = as_array(sample.arrays[f"node/{paper}/n_id"])
    distinct = np.unique(nodes)
    assert len(distinct) < len(nodes)
    if features == "cpu":
        assert (len(distinct), 3) in pinned
        assert (len(nodes), 3) not in pinned
    else:
        gids = gids_of(case.whole)[paper][distinct]
        bounds = np.asarray(case.whole.manifest.bounds[paper]) + case.whole.manifest.offsets[paper]
        remote = np.count_nonzero(~np.isin(np.searchsorted(bounds, gids, side="right") - 1, case.here.parts))
        assert (remote * 12,) in pinned


@pytest.mark.diagonal(most=8)
@pytest.mark.parametrize("seed", range(16))
def test_random_graphs(kernels, open_case, seed):
    """Cut into parts, any of which are here, the others with any number of owners; any seeds, some twice."""
    rng = np.random.default_rng(seed)
    kernels.schedule(seed, *[(1, 0), (1, 3), (4, 0)][seed % 3])
    parts = int(rng.integers(2, 6))
    order, here = rng.permutation(parts).tolist(), int(rng.integers(1, parts))
    others = np.array_split(order[here:], int(rng.integers(1, parts - here + 1)))
    memory = (["device", "uva", "hybrid"][rng.integers(3)], ["device", "uva", "hybrid", "cpu"][rng.integers(4)])
    graph = TypedGraph.random(rng, (SINGLE, HETERO)[seed % 2])
    data = random_data(rng, graph)
    owners = [order[:here], *(list(map(int, each)) for each in others)]
    case = open_case(data, owners, memory, undirected=False)
    for number in range(4):
        fanouts = rng.choice([0, 0, 1, 2, 5, 70, -1], (int(rng.integers(0, 4)), case.edge_types))
        options = {"replace": bool(rng.integers(2)), "with_edge": bool(rng.integers(2))}
        seed_type = int(rng.integers(len(graph.num_nodes)))
        config = SamplerConfig(seed_type, tuple(map(tuple, fanouts.tolist())), **options)
        requests = []
        for _ in range(2):
            more = {t: case.whole.view.type_offsets[t] + ids for t, ids in random_seeds(graph, rng).items()}
            seeds = more.pop(seed_type, np.empty(0, dtype=np.int64))
            key = int(rng.integers(0, 2**64, dtype=np.uint64))
            excluded = excluded_edges(graph, random_excluded(graph, rng), gids_of(case.whole))
            requests.append(BatchRequest(number, key, seeds, np.arange(len(seeds)), more, excluded=excluded))
        case.check(config, requests)


@pytest.mark.diagonal
@pytest.mark.parametrize("owners", [[[0], [1]], [[0, 2], [1], [3]]])
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    "options",
    [
        CacheOptions(ratio=0.1),
        CacheOptions(ratio=1.0),
        CacheOptions(bytes=1 << 25, topology=10_000),
        CacheOptions(bytes=1 << 25, topology=1 << 24),
    ],
    ids=["few rows", "all rows", "few lists", "all lists"],
)
def test_cached_rows_are_not_asked_for(open_case, make, owners, options):
    case = open_case(make(), owners)
    for with_edge in (False, True):
        kept = tuple(make_cache(case.here, case.remote, options) for _ in range(2))
        requests = [*case.requests(3), *case.requests(3)]
        counters = case.check(case.config(4, 3, with_edge=with_edge), requests, kept)
        assert sum(each.cached_rows for each in counters) > 0
        for each in kept:
            each.close()


def test_the_cpu_tells_which_edges_there_are(open_case):
    data = small_hetero()
    case = open_case(data, [[1], [0], [2]], undirected=False)
    source = neighbor_source(case.here, case.config(3), store=case.store, remote=case.remote)
    for r, dst, src, truth in questions(data, case.whole):
        assert source.has_edges(r, dst, src).tolist() == truth


@pytest.mark.diagonal
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("memory", ["device", "uva", "hybrid", "cpu"])
def test_encoded_attributes(open_case, kind, memory):
    storage = {"x": kind, "edge_attr": kind}
    case = open_case(small_graph(), [[0], [1]], ("device", memory), storage=storage)
    kept = tuple(make_cache(case.here, case.remote, CacheOptions(ratio=0.1)) for _ in range(2))
    case.check(case.config(4, 3, with_edge=True), kept=kept)
    for each in kept:
        each.close()


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [wide_graph, wide_hetero, every_dtype])
@pytest.mark.parametrize("memory", ["device", "uva", "hybrid", "cpu"])
def test_every_dtype(open_case, make, memory):
    case = open_case(make(), [[1], [0], [2]], ("device", memory))
    case.check(case.config(3, 2, with_edge=True))


@pytest.mark.parametrize("make", [wide_graph, wide_hetero])
def test_rows_on_disk(open_case, make):
    case = open_case(make(), [[1], [0], [2]], ("device", "cpu"))
    with closing(HostTier.create(case.here, 200_000)) as tier:
        case.here = case.here.with_memory(tier)
        counters = case.check(case.config(3, 2, with_edge=True))
    assert min(each.disk_rows for each in counters) > 0


def test_wide_ids_of_owners(open_case):
    case = open_case(small_graph(), [[0], [1]])
    case.remote = DirectRows(2, case.remote._owners, np.int64)
    case.check(case.config(3, 2, with_edge=True))


def test_a_hop_with_more_remote_nodes_than_are_read_at_once(open_case, monkeypatch):
    case = open_case(small_hetero(), [[0], [1], [2]])
    monkeypatch.setattr(khop_steps, "_READ_WITH_SIZES", 3)
    case.check(case.config(4, 3))


def test_one_wait_a_hop_and_one_question_to_each_owner(open_case, monkeypatch):
    case = open_case(small_hetero(), [[0], [1], [2]])
    waits, read = [], khop_steps._read
    monkeypatch.setattr(khop_steps, "_read", lambda *args: waits.append(1) or read(*args))
    sampled(case.sampler(case.config(4, 4)), next(case.requests()))
    assert len(waits) == 2
    expands = [said for said in case.remote.asked if said[0] == "expand"]
    assert sorted(expands) == [("expand", owner, hop) for owner in (1, 2) for hop in (0, 1)]
    assert len(case.remote.asked) - len(expands) == 2 * 3  # the attributes of seeds and of each hop's new nodes


def test_the_device_samples_while_owners_are_asked(kernels, open_case, monkeypatch):
    case = open_case(small_graph(), [[0], [1]])
    said, run = [], kernels.run

    def asked(owner, request):
        answer = case.remote.answer(owner, request)
        said.append("asked")
        return lambda: said.append("waited") or answer()

    def ran(name, *arguments):
        said.append(name)
        run(name, *arguments)

    case.remote.instead["expand"] = asked
    monkeypatch.setattr(kernels, "run", ran)
    sampled(case.sampler(case.config(4)), next(case.requests()))
    assert said.index("asked") < said.index("glt_cuda_pick_rows") < said.index("waited")


def test_the_device_does_not_hold_the_batch_before(open_case):
    case = open_case(small_graph(), [[0], [1]])
    sampler = case.sampler(case.config(3))
    batch = sampled(sampler, next(case.requests()))
    n_id = weakref.ref(batch.arrays["node/0/n_id"])
    del batch
    sampler.source.begin()
    assert n_id() is None


def test_several_threads(open_case):
    case = open_case(small_hetero(), [[0], [1], [2]])
    config = case.config(4, 3, with_edge=True)
    requests = list(case.requests(5)) * 4
    whole = KHopSampler(case.whole, config)
    expected = {r.number: {k: v.copy() for k, v in written(whole.draft(r)).items()} for r in requests[:5]}
    own = threading.local()

    def make(request):
        if not hasattr(own, "sampler"):
            own.sampler = case.sampler(config)
        return sampled(own.sampler, request)

    with ThreadPoolExecutor(3) as threads:
        for sample in threads.map(make, requests):
            assert_same(sample, expected[sample.number])


def test_an_owner_that_lies(open_case):
    case = open_case(small_graph(), [[0], [1]])
    remote, config, request = case.remote, case.config(3, with_edge=True), next(case.requests())

    def lie(change):
        def expand(owner, asked):
            picks = remote.answer(owner, asked)()[0]
            return lambda: {0: change(picks)}

        remote.instead["expand"] = expand
        return case.sampler(config)

    for change in (
        lambda p: Picks(p.counts[:-1], p.neighbors, p.edge_rows),
        lambda p: Picks(p.counts, p.neighbors[:-1], p.edge_rows),
        lambda p: Picks(p.counts, np.append(p.neighbors, np.int32(0)), p.edge_rows),
        lambda p: Picks(p.counts, p.neighbors + np.int32(300), p.edge_rows),
        lambda p: Picks(-p.counts, p.neighbors, p.edge_rows),
        lambda p: Picks(p.counts.astype(np.int64), p.neighbors, p.edge_rows),
        lambda p: Picks(p.counts, p.neighbors, p.edge_rows[:-1]),
        lambda p: Picks(p.counts, p.neighbors),
        lambda p: Picks(p.counts.astype(np.float32), p.neighbors.astype(np.float32), p.edge_rows),
    ):
        with pytest.raises(DataError, match="merge"):
            sampled(lie(change), request)

    def short(owner, asked):
        return lambda: [{n: a[:-1] for n, a in rows.items()} for rows in remote.answer(owner, asked)()]

    remote.instead = {"gather": short}
    with pytest.raises(PeerError, match="'n_id'"):
        sampled(case.sampler(config), request)


def test_an_owner_that_does_not_answer(open_case):
    case = open_case(small_graph(), [[0], [1]])

    def silent():
        raise PeerError("host 1 did not answer.")

    sampler = case.sampler(case.config(3))
    for name in ("expand", "gather"):
        case.remote.instead[name] = lambda owner, asked: silent
        with pytest.raises(PeerError, match="host 1"):
            sampled(sampler, next(case.requests()))
        case.remote.instead.clear()
    expected = written(KHopSampler(case.whole, case.config(3)).draft(next(case.requests())))
    assert_same(sampled(sampler, next(case.requests())), expected)


def test_a_seed_outside_the_graph(open_case):
    case = open_case(small_graph(), [[0], [1]])
    with pytest.raises(DataError, match="id 300 at position 1"):
        sampled(case.sampler(case.config(3)), BatchRequest(0, 1, np.array([0, 300]), np.arange(2)))


def test_no_batch_is_larger_than_allowed(open_case):
    case = open_case(small_graph(), [[0], [1]])
    with pytest.raises(DataError, match=r"at most 1000 \(cluster.limits.batch_size\)"):
        sampled(case.sampler(case.config(3, most_bytes=1000)), next(case.requests()))
