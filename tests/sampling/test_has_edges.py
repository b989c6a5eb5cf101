"""Whoever has the rows, a source tells the edges of the user's graph."""

from contextlib import ExitStack, closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glt_lightning.base import CacheOptions, DataError, PeerError
from glt_lightning.sampling import HasEdges, SamplerConfig, neighbor_source
from glt_lightning.workers import Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.message import pack
from tests.helpers.owners import make_cache, split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import open_farm
from tests.sampling.test_typed_seeds import over_the_wire

SPLITS = [[[0]], [[0, 1]], [[1], [0]], [[2], [0], [1]], [[0, 3], [2], [1]], [[2], [0], [1], [3]]]


def edges_of(data):
    """Per edge type, (from type, to type, int64 [2, E]) in the user's ids."""
    if not hasattr(data, "node_types"):
        return [(0, 0, data.edge_index.numpy())]
    types = sorted(data.node_types)
    return [(types.index(e[0]), types.index(e[2]), data[e].edge_index.numpy()) for e in sorted(data.edge_types)]


def questions(data, whole):
    """Per edge type: gids of dst and src, and the truth from the user's edges. Half of the pairs are edges."""
    rng = np.random.default_rng(0)
    offsets, counts = whole.view.type_offsets, whole.manifest.num_nodes
    gid_of = []
    for t, n in enumerate(counts):
        uids = whole.node_shards(t, "n_id").gather(offsets[t] + np.arange(n))
        gid_of.append(offsets[t] + np.argsort(uids))
    for r, (source, destination, edges) in enumerate(edges_of(data)):
        some = edges[:, rng.integers(0, edges.shape[1], 300)]
        others = np.stack([rng.integers(0, counts[t], 300) for t in (source, destination)])
        src, dst = pairs = np.concatenate([some, others], axis=1)[:, rng.permutation(600)]
        stored = set(zip(*edges.tolist(), strict=True))
        truth = [pair in stored for pair in zip(*pairs.tolist(), strict=True)]
        assert 300 <= sum(truth) < 600
        yield r, gid_of[destination][dst], gid_of[source][src], truth


def part_of(whole, gids):
    """The part of each node: segments lie in the order (type, part)."""
    return (np.searchsorted(whole.view.bounds, gids, side="right") - 1) % whole.view.num_parts


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("owners", SPLITS)
def test_any_parts_here_and_elsewhere(tmp_path, make, owners):
    data = make()
    whole = partitioned(data, tmp_path, sum(map(len, owners)))
    here, remote = split_up(whole, owners)
    config = SamplerConfig(0, ())
    mapped, routed = neighbor_source(whole, config), neighbor_source(here, config, remote=remote)
    for r, dst, src, truth in questions(data, whole):
        remote.asked.clear()
        for source in (mapped, routed):
            found = source.has_edges(r, dst, src)
            assert found.dtype == np.bool_
            assert found.tolist() == truth
        assert [said[:2] for said in remote.asked] == [("has_edges", owner) for owner in range(1, len(owners))]
        with pytest.raises(DataError, match="src: gid -7 at position 1 is no node"):
            routed.has_edges(r, dst[:2], np.array([src[0], -7]))


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("lists", [10_000, 1 << 24])
def test_cached_neighbour_lists_are_not_asked_for(tmp_path, make, lists):
    data = make()
    whole = partitioned(data, tmp_path, 3)
    here, remote = split_up(whole, [[1], [0], [2]])
    with closing(make_cache(here, remote, CacheOptions(bytes=1 << 25, topology=lists))) as cache:
        source = neighbor_source(here, SamplerConfig(0, ()), remote=remote, cache=cache)
        for r, dst, src, truth in questions(data, whole):
            remote.asked.clear()
            assert source.has_edges(r, dst, src).tolist() == truth
            members = cache.topology.nodes[whole.view.dst_types[r]]
            cached = 0 if members is None else np.count_nonzero(members.find(dst) >= 0)
            here_too = np.count_nonzero(part_of(whole, dst) == 1)
            assert sum(pairs for _, _, pairs in remote.asked) == len(dst) - here_too - cached
            assert cached or lists == 10_000


@pytest.mark.parametrize("kind", ["in process", "flight"])
@pytest.mark.parametrize("reply_bytes", [1 << 16, 64])
def test_owners_over_the_wire(tmp_path, kind, reply_bytes):
    """Also in pieces, where a reply has room for 64 answers."""
    data = small_hetero()
    whole = partitioned(data, tmp_path, 3)
    here, direct = split_up(whole, [[1], [0], [2]])
    with ExitStack() as opened, open_farm(kind) as farm:
        peers = []
        for number, partition in enumerate(direct._owners):
            owner = opened.enter_context(closing(Owner(partition, reply_bytes)))
            address = f"owner:{number}" if kind == "in process" else "127.0.0.1:0"
            server = opened.enter_context(
                closing(farm.transport.serve(address, Service(lambda hello: {}, owner.calls, {})))
            )
            peers.append(farm.peer(server.address))
        remote = PeerRows(direct.owner_of_part, peers)
        source = neighbor_source(here, SamplerConfig(0, ()), remote=remote)
        for number, (r, dst, src, truth) in enumerate(questions(data, whole), 1):
            assert source.has_edges(r, dst, src).tolist() == truth
            assert remote.traffic.round_trips > 2 * number or reply_bytes > 64


@pytest.mark.parametrize(
    "reply",
    [None, np.zeros(0, np.uint8), np.zeros(4, np.uint8), np.zeros((3, 1), np.uint8), np.zeros(3, np.int32)],
    ids=["nothing", "none", "too many", "two dimensions", "other type"],
)
def test_a_reply_that_is_no_answer(reply):
    def answer(*_args, **_options):
        arrays, body = pack({} if reply is None else {"found": reply})
        return SimpleNamespace(result=lambda: Message({"arrays": arrays}, body))

    rows = PeerRows(np.ones(1, dtype=np.int32), [SimpleNamespace(name="server 0", ask=answer)])
    gids = np.arange(3, dtype=np.int32)
    with pytest.raises(PeerError, match="server 0: its reply to a question for 3 edges is inconsistent"):
        rows.ask(1, HasEdges(0, gids, gids))()


def test_edges_of_weight_0_are_none(tmp_path):
    """Here, at owners in this process and over the wire, and in cached lists; one of two parallel edges may have a weight."""
    data = small_hetero()
    edges = data["author", "writes", "paper"].edge_index
    data["author", "writes", "paper"].edge_index = edges[:, [*range(500), *range(100)]]
    weight = np.random.default_rng(1).integers(0, 3, 600)
    data["author", "writes", "paper"].edge_weight = torch.from_numpy(weight)
    whole = partitioned(data, tmp_path, 3, weights=["edge_weight"])
    there = {pair for pair, w in zip(zip(*edges_of(data)[0][2].tolist(), strict=True), weight, strict=True) if w}
    here, remote = split_up(whole, [[1], [0], [2]])
    config = SamplerConfig(0, (), weights=("edge_weight", None))
    r, dst, src, stored = next(questions(data, whole))
    user = [whole.node_shards(t, "n_id").gather(gids).tolist() for t, gids in ((0, src), (1, dst))]
    truth = [pair in there for pair in zip(*user, strict=True)]
    assert sum(truth) < sum(stored)
    cache = make_cache(here, remote, CacheOptions(bytes=1 << 25, topology=1 << 24))
    with closing(cache), open_farm("in process") as farm:
        wire = over_the_wire(farm, remote)
        for source in (
            neighbor_source(whole, config),
            neighbor_source(here, config, remote=remote),
            neighbor_source(here, config, remote=wire),
            neighbor_source(here, config, remote=remote, cache=cache),
        ):
            assert source.has_edges(r, dst, src).tolist() == truth
        assert neighbor_source(here, SamplerConfig(0, ()), remote=wire).has_edges(r, dst, src).tolist() == stored
