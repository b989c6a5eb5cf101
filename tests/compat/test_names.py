"""GLT's further names of several processes, in one: what needs no meeting."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import ClusterOptions, DataError, DeadlineOptions, OptionError, PeerError, SamplingOptions
from glt_lightning.compat.glt.distributed import client, session
from glt_lightning.compat.glt.distributed.server import CallTable, to_message
from glt_lightning.workers.transport.dispatch import caller_is
from tests.helpers.rings import I2I, NODES, U2I, dataset, ring_edges, ring_folder, typed_ring_folder
from tests.helpers.run import run_script

dist = glt.distributed


def test_tasks_of_an_event_loop_run_and_their_errors_are_raised() -> None:
    async def work(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    loop, found = dist.ConcurrentEventLoop(2), []
    loop.start_loop()
    for x in range(5):
        loop.add_task(work(x), found.append)
    with pytest.raises(ValueError, match="three"):
        loop.wait_all()
    assert sorted(found) == [0, 1, 2, 4]
    with pytest.raises(ValueError, match="three"):
        loop.run_task(work(3))
    loop.shutdown_loop()
    loop.shutdown_loop()


def test_a_sampler_gives_the_batches_of_a_loader(tmp_path: Path) -> None:
    data = dataset(ring_folder(tmp_path))
    sampler = dist.DistNeighborSampler(data, [-1, -1], with_edge=True, collect_features=True)
    found = sampler.sample_from_nodes(glt.sampler.NodeSamplerInput(torch.tensor([3, 7])))
    assert (found.batch.tolist(), found.node.tolist()) == ([3, 7], [3, 7, 4, 5, 8, 9, 6, 10, 11])
    assert torch.equal(found.x[:, 0].long(), found.node)
    assert torch.equal(found.y, found.node * 10)
    assert torch.equal(ring_edges()[:, found.edge], found.node[found.edge_index].flip(0))
    assert sampler.subgraph(torch.tensor([9, 7, 8])).node.tolist() == list(range(7, 14))
    edges = glt.sampler.EdgeSamplerInput(*ring_edges()[:, :3])
    found = sampler.sample_from_edges(edges)
    assert torch.equal(found.node[found.edge_label_index].flip(0), ring_edges()[:, :3])
    sampler.shutdown_loop()
    with pytest.raises(OptionError, match=r"channel\.send"):
        dist.DistNeighborSampler(data, [1], channel=glt.channel.MpChannel)


def test_parts_of_a_graph_in_memory() -> None:
    graph, edges = glt.data.Graph(glt.data.Topology(ring_edges()), "CPU"), torch.arange(2 * NODES)
    found = dist.DistGraph(2, 1, {"e": graph}, {"a": torch.arange(NODES) % 2}, {"e": edges % 2})
    assert found.get_node_partitions(torch.tensor([3, 4]), "a").tolist() == [1, 0]
    assert found.get_edge_partitions(torch.tensor([7]), "e").tolist() == [1]
    assert found.get_local_graph("e") is graph
    with pytest.raises(OptionError, match="ntype: expected one of a, got None"):
        found.get_node_partitions(torch.tensor([3]))
    with pytest.raises(OptionError, match="the parts of edges were not given"):
        dist.DistGraph(2, 1, graph, None).get_edge_partitions(edges)
    feature = dist.DistFeature(2, 1, {"a": glt.data.Feature(torch.eye(2))}, {}, local_only=True)
    assert feature["a", torch.tensor([1])].tolist() == [[0, 1]]
    with pytest.raises(OptionError, match="2 parts and one worker"):
        dist.DistFeature(2, 0, feature.local_feature, {})


def test_pieces_that_make_no_graph_are_refused(tmp_path: Path) -> None:
    given = {"num_parts": 1, "current_partition_idx": 0}
    try:
        with pytest.raises(DataError, match="each id from 0 to 1 once in all pieces"):
            dist.DistRandomPartitioner(tmp_path, 3, [[0, 1], [1, 2]], torch.tensor([0, 0]), **given).partition()
        with pytest.raises(DataError, match="nodes : expected each id from 0 to 2 once in all pieces, got 1 rows"):
            rows = torch.ones(1, 2), torch.tensor([0])
            dist.DistRandomPartitioner(tmp_path, 3, [[0, 1], [1, 2]], torch.arange(2), *rows, **given).partition()
        with pytest.raises(DataError, match="edge_index: 2 rows need as many ids, got 1"):
            dist.DistRandomPartitioner(tmp_path, 3, [[0, 1], [1, 2]], torch.tensor([0]), **given)
    finally:
        dist.shutdown_rpc()
    with pytest.raises(OptionError, match="give num_parts and current_partition_idx"):
        dist.DistRandomPartitioner(tmp_path, 3, [[0], [1]], torch.tensor([0]))


def test_pieces_of_workers_with_another_chunk_size_are_whole(tmp_path: Path) -> None:
    given = {"num_parts": 1, "current_partition_idx": 0}
    edges = torch.arange(40).reshape(2, 20)
    try:
        mine, other = (
            dist.DistRandomPartitioner(tmp_path, 40, half, ids, chunk_size=size, **given)
            for half, ids, size in ((edges[:, :10], torch.arange(10), 4), (edges[:, 10:], torch.arange(10, 20), 3))
        )
        offer = SimpleNamespace(rank=0, abouts=[{"edges": {"": 10}}] * 2, asked=[])

        def ask(_rank: int, **question: Any) -> SimpleNamespace:
            offer.asked.append(question["first"])
            return SimpleNamespace(wait=lambda: other._answer(**question))

        offer.ask = ask
        assert torch.equal(mine._whole("edges", offer)[""], edges.T)
        assert offer.asked == [0, 3, 6, 9]
        offer.ask = lambda _rank, **question: SimpleNamespace(wait=lambda: [edges.T[:0], torch.arange(0)])
        with pytest.raises(PeerError, match="worker 1: its answer has 0 edges; expected 1 to 10"):
            mine._whole("edges", offer)
    finally:
        dist.shutdown_rpc()


def test_what_workers_answer_is_reserved_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows that fit into a reply, of `DistFeature` as of `DistRandomPartitioner`."""
    made = []

    class Offered:
        def __init__(self, who: str, answer: Any, working: Any, about: Any) -> None:
            self.abouts = [0, 1]
            made.append(CallTable({"answer": answer}, {"answer": working}))

    monkeypatch.setattr("glt_lightning.compat.glt.distributed.dist_feature.Offer", Offered)
    monkeypatch.setattr(
        "glt_lightning.compat.glt.distributed.dist_feature.current",
        lambda: SimpleNamespace(
            cluster=ClusterOptions(limits={"reply_size": "64KiB"}), context=SimpleNamespace(world_size=2)
        ),
    )
    dist.DistFeature(2, 0, glt.data.Feature(torch.ones(20000, 4)), torch.zeros(20000, dtype=torch.int64))
    reserved: list[int] = []

    def working(nbytes: int) -> Any:
        reserved.append(nbytes)
        return nullcontext()

    caller = caller_is({}, lambda: False, working=working)
    question = {"ids": torch.arange(20000), "kind": None}
    reply = made[0](to_message({"func": "answer", "args": [], "kwargs": question}), caller)
    assert len(reply.body) <= 64 << 10 < reserved[0] < 6 * (64 << 10)


def test_a_server_names_edges_as_its_users_do(tmp_path: Path) -> None:
    """Out-bound, they are stored under the reversed type."""
    data = dataset(typed_ring_folder(tmp_path, parts=1), labels=False)
    try:
        dist.init_server(1, 0, data, "localhost", glt.utils.get_free_port(), sampling=SamplingOptions(num_workers=1))
        server = dist.get_server()
        assert server.get_dataset_meta() == [1, 0, ["item", "user"], [list(I2I), list(U2I)]]
        assert server.get_edge_size(U2I) == [NODES, NODES]
        sources, destinations = server.get_edge_index(list(U2I))
        assert sources.tolist() == [v for v in range(NODES) for _ in range(2)]
        assert destinations[-2:].tolist() == [0, 39]
        assert server.get_node_label("user", torch.tensor([3])).tolist() == [30]
        with pytest.raises(OptionError, match="the graph has none of this name; known:"):
            server.get_edge_index(("item", "rev_u2i", "user"))
        with pytest.raises(DataError, match="layout: expected 'coo', got 'csr'"):
            server.get_edge_index(U2I, "csr")
        with pytest.raises(DataError, match="edge_type: expected"):
            server.get_edge_size()
    finally:
        dist.shutdown_rpc()


def test_a_client_that_leaves_asks_all_servers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for each as long as a loader would, so that one that is being started again hears of it."""
    seen: list[str] = []
    deadlines = DeadlineOptions(reconnect_s=77)

    class Peer:
        def __init__(self, name: str, *_: object) -> None:
            self.name = name

        def ask(self, op: str, header: dict[str, int]) -> Peer:
            seen.append(f"{self.name}: {op} {header}")
            return self

        def result(self) -> None:
            seen.append(f"{self.name}: answered")
            if self.name == "server 0":
                raise PeerError("gone")

        def close(self) -> None: ...

    class Link:
        def __init__(self, **given: object) -> None:
            assert given["deadlines"] == deadlines

        open_transport = staticmethod(lambda: None)
        peer = Peer

    monkeypatch.setattr(session, "Link", Link)
    context = dist.DistContext(dist.DistRole.CLIENT, "c", 2, 1, 4, 3, servers=2, clients=2)
    client._say_left(session.Membership(context, ClusterOptions(deadlines=deadlines), 180.0), ["a:1", "b:1"])
    left = "left {'rank': 1, 'clients': 2}"
    assert seen == [f"server 0: {left}", f"server 1: {left}", "server 0: answered", "server 1: answered"]


def test_a_script_that_just_ends_leaves_before_its_servers_end(tmp_path: Path) -> None:
    """Python's finalizers end those; the others would wait for a process that cannot answer any more."""
    code = """
        import weakref
        import glt_lightning.compat.glt as glt
        from glt_lightning.compat.glt.distributed.session import current

        class Opened:
            def close(self):
                print("the session ends")

        glt.distributed.init_worker_group(1, 0)
        current().opened.append(server := Opened())
        finalizer = weakref.finalize(server, print, "a server ends")
        """
    assert run_script(code).stdout.split("\n")[:2] == ["the session ends", "a server ends"]
