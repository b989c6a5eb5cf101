"""Whoever has the rows, a source gives the edges among nodes of the user's graph."""

from __future__ import annotations

from contextlib import ExitStack, closing
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import CacheOptions, DataError, PeerError
from glt_lightning.kernels import Among
from glt_lightning.sampling import SamplerConfig, neighbor_source
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.workers import Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.message import pack
from tests.helpers.owners import make_cache, split_up
from tests.helpers.partitions import gids_of, partitioned, small_graph, small_hetero
from tests.helpers.servers import open_farm
from tests.sampling.test_has_edges import SPLITS, edges_of, part_of

CONFIG = SamplerConfig(0, ())


def edges_among(source, asked):
    waits = [source.ask(Induce(among)) for among in asked]
    return [wait() for wait in waits]


def questions(data, whole, limit=None):
    """Per edge type what is asked, and its truth: (position of the row, user id of the source) of each edge, sorted."""
    rng, gid_of = np.random.default_rng(0), gids_of(whole)
    asked, truth = [], []
    for r, (source, destination, edges) in enumerate(edges_of(data)):
        rows, members = (rng.permutation(len(gid_of[t]))[:60] for t in (destination, source))
        members = members[np.argsort(gid_of[source][members])]
        asked.append(Among.of(whole.view, r, gid_of[destination][rows], gid_of[source][members], limit))
        position = {row: i for i, row in enumerate(rows.tolist())}
        found = [(position[d], s) for s, d in edges.T.tolist() if d in position and s in members]
        assert found
        truth.append((sorted(found), members))
    return asked, truth


def check(source, whole, asked, truth):
    """All of them at once; every edge row is that of an edge with these ends."""
    for among, picks, (edges, members) in zip(asked, edges_among(source, asked), truth, strict=True):
        rows = np.repeat(np.arange(len(among.rows)), picks.counts)
        assert sorted(zip(rows.tolist(), members[picks.neighbors].tolist(), strict=True)) == edges
        ids = whole.edge_shards(among.edge_type, "edge_ids").gather(picks.edge_rows.astype(np.int64))
        assert len(set(ids.tolist())) == len(ids)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("owners", SPLITS)
def test_any_parts_here_and_elsewhere(tmp_path, make, owners):
    data = make()
    whole = partitioned(data, tmp_path, sum(map(len, owners)))
    here, remote = split_up(whole, owners)
    asked, truth = questions(data, whole)
    check(neighbor_source(whole, CONFIG), whole, asked, truth)
    check(neighbor_source(here, CONFIG, remote=remote), whole, asked, truth)
    assert {said[:2] for said in remote.asked} == {("induce", owner) for owner in range(1, len(owners))}
    assert len(remote.asked) == (len(owners) - 1) * len(asked)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("lists", [10_000, 1 << 24])
def test_cached_neighbour_lists_are_not_asked_for(tmp_path, make, lists):
    data = make()
    whole = partitioned(data, tmp_path, 3)
    here, remote = split_up(whole, [[1], [0], [2]])
    asked, truth = questions(data, whole)
    with closing(make_cache(here, remote, CacheOptions(bytes=1 << 25, topology=lists))) as cache:
        source = neighbor_source(here, CONFIG, remote=remote, cache=cache)
        for among, each in zip(asked, truth, strict=True):
            remote.asked.clear()
            check(source, whole, [among], [each])
            members = cache.topology.nodes[whole.view.dst_types[among.edge_type]]
            cached = 0 if members is None else np.count_nonzero(members.find(among.rows) >= 0)
            here_too = np.count_nonzero(part_of(whole, among.rows) == 1)
            assert sum(rows for _, _, rows in remote.asked) == len(among.rows) - here_too - cached
            assert cached or lists == 10_000


@pytest.mark.parametrize("kind", ["in process", "flight"])
@pytest.mark.parametrize("reply_bytes", [1 << 16, 256])
def test_owners_over_the_wire(tmp_path, kind, reply_bytes):
    """Also in pieces, where a reply has room for a few edges; a row beyond the limit is an error of its owner."""
    data = small_hetero()
    whole = partitioned(data, tmp_path, 3)
    here, direct = split_up(whole, [[1], [0], [2]])
    with ExitStack() as opened, open_farm(kind) as farm:
        peers = []
        for number, partition in enumerate(direct._owners):
            owner = opened.enter_context(closing(Owner(partition, reply_bytes)))
            address = f"owner:{number}" if kind == "in process" else "127.0.0.1:0"
            service = Service(lambda hello: {}, owner.calls, {})
            peers.append(farm.peer(opened.enter_context(closing(farm.transport.serve(address, service))).address))
        remote = PeerRows(direct.owner_of_part, peers)
        source = neighbor_source(here, CONFIG, remote=remote)
        asked, truth = questions(data, whole)
        check(source, whole, asked, truth)
        assert remote.traffic.round_trips > 2 * len(asked) or reply_bytes > 256
        with pytest.raises(DataError, match=r"induced_limit: node .* more than 1. Raise induced_limit"):
            edges_among(source, questions(data, whole, limit=1)[0])


def edges(counts, members, edge_rows, dtype=np.int32):
    return dict(
        zip(("counts", "members", "edge_rows"), (np.array(a, dtype) for a in (counts, members, edge_rows)), strict=True)
    )


@pytest.mark.parametrize(
    "reply",
    [
        {},
        edges([], [], []),
        edges([1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3]),
        edges([1, 1], [0], [0]),
        edges([1, 1], [0, 0], [0]),
        edges([3, -1], [0, 0], [0, 0]),
        edges([1], [2], [0]),
        edges([1], [-1], [0]),
        edges([1], [0], [0], np.float32),
    ],
)
def test_a_reply_that_is_no_answer(reply):
    def answer(*_args, **_options):
        arrays, body = pack(reply)
        return SimpleNamespace(result=lambda: Message({"arrays": arrays}, body))

    rows = PeerRows(np.ones(1, dtype=np.int32), [SimpleNamespace(name="server 0", ask=answer)])
    among = Among(0, np.arange(3, dtype=np.int32), np.arange(2), 0, 3)
    with pytest.raises(PeerError, match="server 0: its reply to a question for"):
        rows.ask(1, Induce(among))()
