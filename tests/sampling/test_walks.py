"""Whoever has the rows, walks are those of one process that has them all."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, PeerError
from glt_lightning.kernels import ExcludedEdges, WalkRule
from glt_lightning.sampling import SamplerConfig, WalkStart, neighbor_source
from glt_lightning.sampling.questions.walk import Walk
from glt_lightning.workers import Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.message import pack
from tests.helpers.owners import CALLER, split_up
from tests.helpers.partitions import gids_of, partitioned, small_hetero
from tests.helpers.servers import open_farm

WRITES, CITES, BACK = 0, 1, 2  # edge types, in the order of their names


def written(weighted: bool = False):
    """Papers cite papers and have authors, from whom one comes back to their papers."""
    data = small_hetero()
    back = data["author", "writes", "paper"].edge_index.flip(0)
    data["paper", "written_by", "author"].edge_index = back
    if weighted:
        data["paper", "cites", "paper"].edge_weight = torch.arange(900) % 5
    return data


def third_of(data, gid_of):
    """Every third citation, and every third edge back from an author; the types are those of their ends."""
    types = {CITES: ("paper", "cites", "paper"), BACK: ("paper", "written_by", "author")}
    number, pairs = {"author": 0, "paper": 1}, {}
    for r, (src, name, dst) in types.items():
        ends = data[src, name, dst].edge_index[:, ::3].numpy()
        pairs[r] = gid_of[number[dst]][ends[1]], gid_of[number[src]][ends[0]]
    return ExcludedEdges.of(pairs)


def walked(source, whole, rule, trees=None, walks=3, without=None):
    """Where walks of papers lead, by user id. without: a graph, of which they leave out `third_of`."""
    gid_of, offsets = gids_of(whole), whole.view.type_offsets
    excluded = None if without is None else third_of(without, gid_of)
    start = WalkStart(rule=rule, roots=gid_of[1][np.arange(0, 200, 3)], walks=walks, key=99, trees=trees)
    start = replace(start, excluded=excluded)
    found = source.walk(start)
    assert (found.step == rule.length).all()
    types = whole.view.src_types[np.array(rule.edge_types)][np.arange(rule.length) % len(rule.edge_types)]
    user = [np.append(np.argsort(gid), -1) for gid in gid_of]
    by_step = [
        np.where(g < 0, -1, user[t][np.maximum(g - offsets[t], 0)]) for t, g in zip(types, found.trace.T, strict=True)
    ]
    return np.stack(by_step).tolist()


RULES = [
    WalkRule(edge_types=(CITES,), length=7, restart=WalkRule.threshold(0.3)),
    WalkRule(edge_types=(WRITES, BACK, CITES), length=7, restart=WalkRule.threshold(0.5), ends=True),
]


@pytest.mark.parametrize("owners", [[[0, 1]], [[1], [0]], [[2], [0], [1]], [[0, 3], [2], [1]]])
def test_any_parts_here_and_elsewhere(tmp_path, owners):
    """An owner is asked at most once in a round, and there are no more rounds than steps; trees and weights change draws."""
    data = written(weighted=True)
    single = partitioned(data, tmp_path, 1, weights=["edge_weight"])
    whole = partitioned(data, tmp_path / "n", sum(map(len, owners)), weights=["edge_weight"])
    here, remote = split_up(whole, owners)
    trees, found = np.arange(67, dtype=np.int32), []
    for weights in ((), (None, "edge_weight", None)):
        config = SamplerConfig(1, (), weights=weights)
        for rule in RULES:
            for each, less in ((None, None), (trees, None), (None, data)):
                truth = walked(neighbor_source(single, config), single, rule, each, without=less)
                assert walked(neighbor_source(whole, config), whole, rule, each, without=less) == truth
                remote.asked.clear()
                assert walked(neighbor_source(here, config, remote=remote), whole, rule, each, without=less) == truth
                assert len(remote.asked) <= (rule.length + 1) * (len(owners) - 1)
                found.append(str(truth))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(("kind", "reply_bytes"), [("in process", 600), ("flight", 1 << 16)])
def test_owners_over_the_wire(tmp_path, kind, reply_bytes):
    """Also in pieces, where a reply has room for a few walks; walks that no reply has room for are an error of their owner."""
    data = written()
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
        source, config = neighbor_source(here, SamplerConfig(1, ()), remote=remote), SamplerConfig(1, ())
        for rule in RULES:
            trees = np.arange(67, dtype=np.int32) % 9
            for each in (None, data):
                truth = walked(neighbor_source(whole, config), whole, rule, trees, without=each)
                assert walked(source, whole, rule, trees, without=each) == truth
        if reply_bytes == 600:
            with pytest.raises(PeerError, match=r"50 walks of 7 steps take .* bytes, more than a reply .* \(600\)"):
                walked(source, whole, RULES[0], walks=50)


def reply(counts, nodes, user_ids=None, dtype=np.int32):
    arrays = {"counts": np.array(counts, dtype), "nodes": np.array(nodes, dtype)}
    return arrays | ({} if user_ids is None else {"user_ids": np.array(user_ids, dtype)})


@pytest.mark.parametrize(
    "given",
    [
        {},
        reply([1, 1], [1, 1]),
        reply([1], [1], [0]),
        reply([1, 1, 1, 1], [1, 1, 1, 1], [0]),
        reply([0, 1], [1], [0]),
        reply([1, 1], [1, 1, 1], [0]),
        reply([3, 1], [1, 1, 1, 1], [0]),
        reply([1, 1], [1, 1], [0], np.float32),
        reply([1, 1] * 4, [1, 1] * 4, [0] * 4),
    ],
)
def test_a_reply_that_is_no_answer(given):
    """Of three roots with two walks of two steps each."""

    def answer(*_args, **_options):
        arrays, body = pack(given)
        return SimpleNamespace(result=lambda: Message({"arrays": arrays}, body))

    rows = PeerRows(np.ones(1, dtype=np.int32), [SimpleNamespace(name="server 0", ask=answer)])
    rule = WalkRule(edge_types=(0,), length=2)
    question = Walk(rule=rule, roots=np.arange(3, dtype=np.int32), key=1, walks=2)
    with pytest.raises(PeerError, match="server 0: its reply to a question for 3 walks is inconsistent"):
        rows.ask(1, question)()


def test_an_owner_that_leads_walks_astray(tmp_path):
    """To what is no node of the type; on after their end; or further than was asked for."""
    whole = partitioned(written(), tmp_path, 2)
    here, remote = split_up(whole, [[0], [1]])
    source = neighbor_source(here, SamplerConfig(1, ()), remote=remote)
    for change, message in (
        (lambda nodes: nodes * 0 + 10**6, "led a walk to 1000000, which is no node of type 1"),
        (lambda nodes: nodes * 0 - 2, "led a walk to -2, which is no node of type 1"),
        (lambda nodes: nodes * 0 - 1, "led a walk to -1, which is no node of type 1"),
    ):

        def walk(owner, question, change=change):
            found = remote.answer(owner, question)()
            return lambda: type(found)(found.counts, change(found.nodes), found.user_ids)

        remote.instead["walk"] = walk
        with pytest.raises(PeerError, match=message):
            walked(source, whole, RULES[0])


HEADER = {"edge_types": [1], "length": 3, "restart": 0, "ends": False}
ON = {
    "roots": np.zeros(2, np.int32),
    "at": np.zeros(2, np.int32),
    "streams": np.zeros(2, np.uint64),
    "step": np.zeros(2, np.int32),
}


@pytest.mark.parametrize(
    ("header", "arrays", "message"),
    [
        ({"edge_types": None}, ON, "expected a list of edge types"),
        ({"edge_types": ["1"]}, ON, "expected edge types, and a length"),
        ({"edge_types": [7]}, ON, "expected edge types 0 to 2, got 7"),
        ({"edge_types": [0]}, ON, "edge type 0 leads to nodes of type 0, and edge type 0 goes on from type 1"),
        ({"length": 1 << 20}, ON, "a length of 1 to 65536 steps"),
        ({"restart": -1}, ON, "restart: expected 0 to"),
        ({"ends": 1}, ON, "expected edge types, and a length"),
        ({"key": -1}, {"roots": ON["roots"]}, "expected a key of 64 bits"),
        ({"key": 1, "walks": 30_000}, {"roots": ON["roots"]}, "at most 65536 steps of a root"),
        ({"key": 1}, ON, "expected the arrays"),
        ({}, {"roots": ON["roots"]}, "expected the arrays"),
        ({}, ON | {"streams": np.zeros(2, np.int64)}, "expected the arrays"),
        ({}, ON | {"at": np.zeros(3, np.int32)}, "expected the arrays"),
        ({}, ON | {"step": np.array([0, -1], np.int32)}, "expected numbers of steps from 0"),
        ({}, ON, "id 0 at position 0 is not in the graph"),  # an author, and papers cite papers
        ({"key": 1}, {"roots": np.array([10**6])}, "1000000"),
        ({}, ON | {"excluded/1": np.zeros((3, 2), np.int64)}, "expected excluded/<edge type> with int32 or int64"),
        ({}, ON | {"excluded/7": np.array([[80], [81]])}, "7"),
        ({}, ON | {"excluded/1": np.array([[10**6], [81]])}, "1000000"),
        (
            {},
            ON | {"excluded/1": np.array([[80] * 65537, range(65537)])},
            "walk: a request may have at most 65536 excluded",
        ),
    ],
)
def test_questions_of_strangers(tmp_path, header, arrays, message):
    whole = partitioned(written(), tmp_path, 1)
    with closing(Owner(whole, 1 << 20)) as owner, pytest.raises(DataError, match=message):
        entries, body = pack(arrays)
        owner.calls["walk"](Message(HEADER | header | {"arrays": entries}, body), CALLER)
