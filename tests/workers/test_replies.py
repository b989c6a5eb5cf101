"""One reply of an owner is bounded; what is larger comes in several, with the same result."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import (
    MAX_FANOUT,
    DataError,
    DrawOptions,
    LimitOptions,
    OptionError,
    PartitionOptions,
    PeerError,
    PeerLostError,
)
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import Among, ExcludedEdges, WalkRule
from glt_lightning.partition import open_source, partition_graph
from glt_lightning.sampling import AskedRows, BatchRequest, Expand, Gather, HasEdges, KHopSampler, SamplerConfig, source
from glt_lightning.sampling.questions import walk
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.sampling.questions.walk import Walk
from glt_lightning.workers import Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.dispatch import caller_is
from glt_lightning.workers.transport.message import pack
from tests.helpers.owners import CALLER, split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.rows import sample_rows


class Near:
    """A peer that answers at once, in this process."""

    name = "server 0"
    stats = SimpleNamespace(calls=0, bytes_out=0, bytes_in=0, retries=0, reconnects=0)

    def __init__(self, owner: Owner) -> None:
        self._calls, self.requests, self.replies = owner.calls, [], []

    def ask(self, op, header, body, *, bulk=False):
        answer = Future()
        self.requests.append(Message(header, body))
        self.replies.append(self._calls[op](Message(header, body), CALLER))
        answer.set_result(self.replies[-1])
        return answer


@pytest.fixture(scope="module", params=["one type", "two types"])
def partition(request, tmp_path_factory) -> LocalPartition:
    graph = small_graph() if request.param == "one type" else small_hetero()
    return partitioned(graph, tmp_path_factory.mktemp("graph"))


def asked(partition: LocalPartition, reply_bytes: int) -> tuple[Near, PeerRows]:
    near = Near(Owner(partition, reply_bytes))
    return near, PeerRows(np.ones(1, dtype=np.int32), [near])


@pytest.mark.parametrize("fanout", [-1, 7])
@pytest.mark.parametrize("with_edge", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_picks_in_pieces_are_the_same(partition, fanout, with_edge, replace) -> None:
    view = partition.view
    bounds = view.type_offsets
    rows = {t: np.arange(bounds[t], bounds[t + 1], dtype=np.int32) for t in range(view.num_types)}
    question = Expand(9, 1, (fanout,) * view.num_edge_types, DrawOptions(replace=replace, with_edge=with_edge), rows)
    size = 8 * sum(len(rows[int(t)]) for t in view.dst_types)
    near, small = asked(partition, size)
    picked = small.ask(1, question)()
    assert len(near.replies) > 1
    assert max(len(reply.body) for reply in near.replies) <= size + 64 * 3 * view.num_edge_types
    for r in range(view.num_edge_types):
        gids = rows[int(view.dst_types[r])].astype(np.int64)
        want = sample_rows(view, r, gids, fanout, batch_key=9, hop=1, replace=replace, with_edge=with_edge)
        for have, array in zip((picked[r].counts, picked[r].neighbors, picked[r].edge_rows), want, strict=True):
            assert (have is None) == (array is None)
            assert array is None or np.array_equal(have, array)


@pytest.mark.parametrize("reply_bytes", [100, 8])
def test_rows_in_pieces_are_the_same(partition, reply_bytes) -> None:
    """Also where one row of any table is larger than a reply should be."""
    view = partition.view
    rng = np.random.default_rng(0)
    request = [
        AskedRows(
            "node",
            t,
            ("n_id", *partition.manifest.node_attrs(t)),
            rng.permutation(np.arange(view.type_offsets[t], view.type_offsets[t + 1], dtype=np.int32)),
        )
        for t in reversed(range(view.num_types))  # wide rows first: a narrow one may fit where they do not
    ]
    near, small = asked(partition, reply_bytes)
    found = small.ask(1, Gather(request))()
    assert len(near.replies) > 10
    assert max(len(reply.body) for reply in near.replies) < 100 + 64 * 8
    for wanted, given in zip(map(Message.arrays, near.requests), map(Message.arrays, near.replies), strict=True):
        lengths = {int(name.split("/")[0]): len(array) for name, array in given.items()}  # the wire format's promise:
        short = [k for k in sorted(lengths) if lengths[k] < len(wanted[str(k)])]
        assert not any(lengths[k] for k in sorted(lengths) if k > min(short, default=len(lengths)))  # table after table
    for rows, each in zip(request, found, strict=True):
        for name in rows.names:
            assert np.array_equal(
                each[name], partition.node_shards(rows.type, name).raw.gather(rows.ids.astype(np.int64))
            )


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_SCANNED", 40)
    monkeypatch.setattr(walk, "STEPS_AT_ONCE", 40)


def test_an_owner_answers_as_much_as_a_little_work_finds(partition, little_work) -> None:
    """Pairs, edges among nodes and walks are the same, in more replies."""
    view = partition.view
    for r in range(view.num_edge_types):
        t, s = int(view.dst_types[r]), int(view.src_types[r])
        rows = np.arange(view.type_offsets[t], view.type_offsets[t + 1])
        members = np.arange(view.type_offsets[s], view.type_offsets[s + 1])
        near, owner = asked(partition, 1 << 20)
        among = Among.of(view, r, rows, members, None)
        found, want = owner.ask(1, Induce(among))(), among.find(view)
        assert len(near.replies) > 1
        for name in ("counts", "neighbors", "edge_rows"):
            assert np.array_equal(getattr(found, name), getattr(want, name))
        dst, src = rows.repeat(3), np.resize(members, 3 * len(rows))
        near.replies.clear()
        assert np.array_equal(owner.ask(1, HasEdges(r, dst, src))(), view.has_edges(r, dst, src))
        assert len(near.replies) > 1
        if s == t:
            rule = WalkRule(edge_types=(r,), length=7)
            question = Walk(rule=rule, roots=rows.astype(np.int32), key=5, walks=2)
            near.replies.clear()
            walked, whole = owner.ask(1, question)(), question.answer(view)
            assert len(near.replies) > 1
            for name in ("counts", "nodes", "user_ids"):
                assert np.array_equal(getattr(walked, name), getattr(whole, name))


@pytest.mark.parametrize("fanout", [-1, 3])
def test_work_ends_when_its_caller_has_left(partition, little_work, fanout) -> None:
    view, t = partition.view, int(partition.view.dst_types[0])
    rows = np.arange(view.type_offsets[t], view.type_offsets[t + 1], dtype=np.int32)
    arrays, body = pack({str(t): rows})
    ask = {"key": 1, "hop": 0, "fanouts": [fanout] * view.num_edge_types, "replace": False, "with_edge": False}
    looks: list[bool] = []

    def is_gone() -> bool:
        looks.append(True)
        return len(looks) > 2

    message = Message(ask | {"labor": True, "arrays": arrays}, body)
    with pytest.raises(PeerLostError, match="the caller has left"):
        Owner(partition, 1 << 20).calls["expand"](message, caller_is({}, is_gone))
    pieces = Owner(partition, 1 << 20).calls["expand"](message, CALLER).arrays()
    source.MOST_SCANNED = 1 << 26
    whole = Owner(partition, 1 << 20).calls["expand"](message, CALLER).arrays()
    assert all(np.array_equal(whole[name], pieces[name]) for name in whole)


def test_questions_end_when_their_caller_has_left(partition, little_work) -> None:
    """Also while the excluded edges of a request are found, between pieces of them; they are the same as in one piece."""
    view, owner = partition.view, Owner(partition, 1 << 20)
    t, s = int(view.dst_types[0]), int(view.src_types[0])
    rows = np.arange(view.type_offsets[t], view.type_offsets[t + 1], dtype=np.int32)
    sources = np.arange(view.type_offsets[s], view.type_offsets[s + 1], dtype=np.int32)
    arrays, body = pack({"dst": rows, "src": np.resize(sources, len(rows))})
    with pytest.raises(PeerLostError, match="the caller has left"):
        owner.calls["has_edges"](Message({"edge_type": 0, "arrays": arrays}, body), caller_is({}, lambda: True))

    sources = sources[:100]
    excluded = ExcludedEdges.of({0: (rows.repeat(len(sources)), np.tile(sources, len(rows)))})
    looks: list[bool] = []
    pieces = excluded.find(view, 40, lambda: looks.append(True))[0]
    whole = excluded.find(view)[0]
    assert len(looks) > 2
    for name in ("gids", "begin", "positions"):
        assert np.array_equal(getattr(pieces, name), getattr(whole, name))

    ask = {"key": 1, "hop": 0, "fanouts": [2] * view.num_edge_types, "replace": False, "with_edge": False}
    walks = {"edge_types": [0], "length": 1, "restart": 0, "ends": False, "key": 5, "walks": 1}
    questions = [("expand", ask, {str(t): rows})] + ([("walk", walks, {"roots": rows})] if s == t else [])
    for op, header, ids in questions:
        arrays, body = pack(ids | excluded.to_arrays())
        left = iter([False, True])
        with pytest.raises(PeerLostError, match="the caller has left"):
            owner.calls[op](Message(header | {"arrays": arrays}, body), caller_is({}, lambda left=left: next(left)))


class Reserving:
    """A caller that notes what is reserved for it, and gives none of it: a question that took memory before would show."""

    name, host, hello = "caller", "", {}

    def is_gone(self) -> bool:
        return False

    def working(self, nbytes: int):
        self.nbytes = nbytes
        raise PeerLostError("reserved")

    def reserved(self, owner: Owner, op: str, header, ids) -> int:
        arrays, body = pack(ids)
        with pytest.raises(PeerLostError, match="reserved"):
            owner.calls[op](Message(header | {"arrays": arrays}, body), self)
        return self.nbytes


@pytest.mark.parametrize(("fanout", "replace"), [(-1, False), (MAX_FANOUT, False), (3, False), (3, True)])
def test_a_request_reserves_what_its_rows_have(partition, fanout, replace) -> None:
    """A few rows do not take the memory of a whole reply, whatever their fan-out: questions at once would wait for each other."""
    view, owner = partition.view, Owner(partition, 1 << 20)
    rows = {
        str(t): np.arange(view.type_offsets[t], view.type_offsets[t + 1], dtype=np.int32) for t in range(view.num_types)
    }
    ask = {"key": 1, "hop": 0, "fanouts": [fanout] * view.num_edge_types, "replace": replace, "with_edge": True}
    reserved = Reserving().reserved(owner, "expand", ask, rows)
    arrays, body = pack(rows)
    reply = owner.calls["expand"](Message(ask | {"arrays": arrays}, body), CALLER)
    counts = sum(len(array) for name, array in reply.arrays().items() if name.endswith("counts"))
    assert 8 * reply.header["total"] <= reserved <= 8 * reply.header["total"] + 48 * counts
    assert Reserving().reserved(Owner(partition, 8 * counts), "expand", ask, rows) <= 56 * counts  # at most a reply


@pytest.mark.parametrize("op", ["expand", "gather", "has_edges"])
def test_ids_are_copied_after_their_memory_is_reserved(partition, op) -> None:
    view, n = partition.view, 1 << 20
    t = int(view.dst_types[0])
    ids = np.full(n, view.type_offsets[t], dtype=np.int32)
    header, arrays = {
        "expand": ({"key": 1, "hop": 0, "fanouts": [1] * view.num_edge_types}, {str(t): ids}),
        "gather": ({"tables": [["node", t, ["n_id"]]]}, {"0": ids}),
        "has_edges": ({"edge_type": 0}, {"dst": ids, "src": ids}),
    }[op]
    header |= {"replace": False, "with_edge": False} if op == "expand" else {}
    owner = Owner(partition, 64 << 20)
    Reserving().reserved(owner, op, header, arrays)  # what is made once is made
    entries, body = pack(arrays)
    message = Message(header | {"arrays": entries}, body)
    tracemalloc.start()
    try:
        with pytest.raises(PeerLostError, match="reserved"):
            owner.calls[op](message, Reserving())
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < 8 * n


def test_a_reply_of_the_default_size_fits_into_what_one_connection_may_leave_unread() -> None:
    assert LimitOptions().reply_bytes <= LimitOptions().unread_bytes


def test_a_row_that_no_reply_holds_is_refused_by_its_size(partition) -> None:
    view = partition.view
    t, s = int(view.dst_types[0]), int(view.src_types[0])
    rows = np.arange(view.type_offsets[t], view.type_offsets[t + 1])
    members = np.arange(view.type_offsets[s], view.type_offsets[s + 1])
    _, owner = asked(partition, 20)
    with pytest.raises(DataError, match=r"more than a reply of this process may have \(20\). Set induced_limit"):
        owner.ask(1, Induce(Among.of(view, 0, rows[view.degrees(0, rows) > 3], members, None)))()


def test_an_owner_that_sends_nothing_more_is_an_error(partition) -> None:
    near, rows = asked(partition, 4096)
    near._calls = {"expand": lambda message, caller: Message({"arrays": [], "total": 5})}
    with pytest.raises(PeerError, match="server 0: its reply to a request for neighbours is inconsistent"):
        rows.ask(1, Expand(0, 0, (-1,) * partition.view.num_edge_types, DrawOptions(), {}))()


def test_picks_of_other_edge_types_than_counted_are_an_error() -> None:
    """numpy drops an array of one that is assigned to an empty one; the picks that lack would be uninitialised memory."""
    first = {"0/counts": [1], "0/neighbors": [5], "1/counts": [2], "1/neighbors": []}
    replies = iter([first, {"0/neighbors": [6], "1/neighbors": [7]}])

    def expand(_message, _caller):
        arrays, body = pack({name: np.array(ids, dtype=np.int32) for name, ids in next(replies).items()})
        return Message({"arrays": arrays, "total": 3}, body)

    rows = PeerRows(np.ones(1, dtype=np.int32), [Near(SimpleNamespace(calls={"expand": expand}))])
    with pytest.raises(PeerError, match="server 0: its reply to a request for neighbours is inconsistent"):
        rows.ask(1, Expand(0, 0, (-1, -1), DrawOptions(), {0: np.zeros(1, dtype=np.int32)}))()


def test_counts_that_do_not_fit_are_refused(partition) -> None:
    _, rows = asked(partition, 100)
    t = int(partition.view.dst_types[0])
    ids = np.full(100, partition.view.type_offsets[t], dtype=np.int32)
    with pytest.raises(DataError, match=r"cluster\.limits\.reply_size"):
        rows.ask(1, Expand(0, 0, (-1,) * partition.view.num_edge_types, DrawOptions(), {t: ids}))()


@pytest.mark.parametrize("size", ["1KiB", "2GiB"])
def test_the_option_is_checked(size) -> None:
    with pytest.raises(OptionError, match=r"cluster\.limits\.reply_size: expected 64KiB to 2047MiB"):
        LimitOptions(reply_size=size)


HUB = """
import json, sys
import numpy as np
from pathlib import Path
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.graph import LocalPartition
from glt_lightning.base import DataError
from glt_lightning.base import LimitOptions
from glt_lightning.workers.transport.dispatch import caller_is
from glt_lightning.workers import Message
from glt_lightning.workers.transport.message import pack

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

partition = LocalPartition.open(sys.argv[1])
owner = Owner(partition, LimitOptions().reply_bytes)
hub = int(np.argmax(np.diff(partition.view.arrays(0, 0).indptr)))
arrays, body = pack({"0": np.array([hub], dtype=np.int32)})

def expand(fanout, replace=False):
    header = {"key": 1, "hop": 0, "fanouts": [fanout], "replace": replace, "with_edge": False, "arrays": arrays}
    return owner.calls["expand"](Message(header, body), caller_is({}, lambda: False))

_ = np.asarray(partition.view.arrays(0, 0).indices).sum()  # its pages are the file's
expand(5)
open("/proc/self/clear_refs", "w").write("5")
before = peak()
reply = expand(-1)
found = {"extra": peak() - before, "reply": len(reply.body), "refused": []}
for fanout in map(int, sys.argv[2].split(",")):
    try:
        expand(fanout, True)
    except DataError as error:
        found["refused"].append(str(error))
found["after"] = len(expand(3).arrays()["0/neighbors"])
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")
def test_a_hub_takes_its_reply_and_little_more(tmp_path: Path) -> None:
    neighbours = 1_000_000
    indptr = np.full(neighbours + 2, neighbours, dtype=np.int64)
    indptr[0] = 0
    graph = tmp_path / "graph"
    graph.mkdir()
    np.save(graph / "indptr.npy", indptr)
    np.save(graph / "indices.npy", np.arange(1, neighbours + 1))
    partition_graph(open_source(graph, tmp_path), tmp_path / "parts", PartitionOptions())
    bad = [MAX_FANOUT + 1, 4194304, 134217727]
    command = [sys.executable, "-c", HUB, str(tmp_path / "parts"), ",".join(map(str, bad))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reply"] >= 4 * neighbours
    assert found["extra"] < 3 * found["reply"]  # the reply, and 2 MiB on the way to it; 240 times as much it was once
    assert len(found["refused"]) == len(bad)
    assert all(f"-1 to {MAX_FANOUT}" in text for text in found["refused"])
    assert found["after"] == 3


@pytest.mark.parametrize("with_edge", [False, True])
def test_a_batch_that_is_too_large_is_refused_before_it_is_made(tmp_path: Path, with_edge: bool) -> None:
    """65536 draws with replacement for each node of three hops: petabytes."""
    partition = partitioned(small_graph(), tmp_path, parts=2)
    here, remote = split_up(partition, [[0], [1]])
    config = SamplerConfig(0, ((MAX_FANOUT,),) * 3, replace=True, with_edge=with_edge, most_bytes=8 << 20)
    seeds = np.arange(20)
    request = BatchRequest(0, 0, seeds, seeds)
    for sampler in (KHopSampler(partition, config), KHopSampler(here, config, remote=remote)):
        with pytest.raises(DataError, match=r"at most 8388608 \(cluster\.limits\.batch_size\)"):
            sampler.draft(request)


def test_a_client_in_pieces_has_a_limit_too(partition) -> None:
    view = partition.view
    rows = {t: np.arange(view.type_offsets[t], view.type_offsets[t + 1], dtype=np.int32) for t in range(view.num_types)}
    _, small = asked(partition, 8 * sum(len(rows[int(t)]) for t in view.dst_types))
    config = SamplerConfig(0, ((-1,),), most_bytes=1000)
    fanouts = (-1,) * view.num_edge_types
    with pytest.raises(DataError, match=r"cluster\.limits\.batch_size"):
        small.ask(1, Expand(0, 0, fanouts, DrawOptions(), rows, config.require_room))()
