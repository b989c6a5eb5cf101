"""GLT's further names of several processes, in one: what needs no meeting."""

from __future__ import annotations

import gc
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import EDGE, ClusterOptions, DataError, DeadlineOptions, OptionError, PeerError, SamplingOptions
from glt_lightning.compat.glt.distributed import client, in_memory, session
from glt_lightning.compat.glt.distributed.calls import CallTable, to_message
from glt_lightning.graph import LocalPartition
from glt_lightning.workers.transport.dispatch import caller_is
from tests.compat.fields import loader_of_subgraphs, loaders_of_links, ring_fields, typed_loaders
from tests.helpers.rings import I2I, NODES, U2I, dataset, part_in_memory, ring_edges, ring_folder, typed_ring_folder
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


@pytest.mark.parametrize("typed", [False, True])
def test_a_part_in_memory_is_a_partition(typed: bool) -> None:
    """Of a script alone; tests/compat/test_scripts.py has several processes."""
    data = part_in_memory(0, 1, typed)
    if typed:
        typed_loaders(data, "out", None)
    else:
        data.random_node_split(0.25, 3)
        assert [len(each) for each in data.node_split] == [27, 10, 3]
        loaders_of_links(data, "out", None)
        loader_of_subgraphs(data, "out", None)
    folder = data.folder
    assert folder.is_dir()
    del data
    gc.collect()
    assert not folder.exists()


def test_parts_in_memory_need_a_process_each() -> None:
    with pytest.raises(OptionError, match="part 1 of 2 is in memory, and this process is alone"):
        dist.DistNeighborLoader(part_in_memory(1, 2), [2], torch.arange(3))
    with pytest.raises(OptionError, match="node_pb: graph_partition needs the part of each node"):
        dist.DistDataset(2, 0, part_in_memory(0, 2).graph)
    books = glt.partition.RangePartitionBook([(0, 20), (20, 40)], 1)
    data = dist.DistDataset(2, 1, part_in_memory(1, 2).graph, node_pb=books)
    data.random_node_split(0, 0)
    assert sorted(data.node_split[0].tolist()) == list(range(20, 40))


class Offered:
    """Every second node is another process's, which answers three rows at a time."""

    rank = 0

    def __init__(self, _session: Any, answer: Any, working: Any, about: Any) -> None:
        self.table, self.abouts = CallTable({"answer": answer}, {"answer": working}), [about, [1, about[1]]]
        self.group = SimpleNamespace(exchange=lambda _: None)

    def ask(self, _rank: int, of: str, kind: str, first: int) -> Any:
        data = part_in_memory(1, 2)
        ids = (
            torch.arange(1, NODES, 2)
            if of == "nodes"
            else torch.arange(2 * NODES)[torch.arange(2 * NODES) // 2 % 2 == 1]
        )
        ids = ids[first : first + 3]
        edges = torch.stack(data.graph.topo.to_coo()[:2], 1)[first : first + 3]
        values = {"edges": edges, "weights": (ids % 2).float()}.get(of, ids[:, None].float())
        return [values, ids]


@pytest.fixture
def two_parts(monkeypatch: pytest.MonkeyPatch) -> type[Offered]:
    member = SimpleNamespace(group=object(), context=SimpleNamespace(world_size=1))
    monkeypatch.setattr(in_memory, "current", lambda: member)
    monkeypatch.setattr(in_memory, "Offer", Offered)
    return Offered


def test_parts_are_collected_piece_by_piece(two_parts: type[Offered]) -> None:
    data = part_in_memory(0, 2)
    in_memory.collect_parts(data)
    (batch,) = dist.DistNeighborLoader(
        data, [2], torch.arange(NODES), batch_size=NODES, with_edge=True, collect_features=True
    )
    ring_fields(batch, "out")
    assert (data.num_partitions, data.graph) == (2, None)
    for part in range(2):
        with closing(LocalPartition.open(data.folder, parts=(part,))) as mapped:
            assert mapped.mapped_user_ids(0)[part].tolist() == list(range(part, NODES, 2))


def test_parts_that_make_no_graph_are_refused(two_parts: type[Offered], monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Offered.ask
    monkeypatch.setattr(Offered, "ask", lambda self, *args, **given: [each[:0] for each in ask(self, *args, **given)])
    with pytest.raises(PeerError, match="worker 1: its answer has 0 edges; expected 1 to 40"):
        in_memory.collect_parts(part_in_memory(0, 2))
    monkeypatch.setattr(Offered, "ask", lambda self, _, **given: self.table._table["answer"](**given))
    with pytest.raises(DataError, match=r"edges .*: expected each id from 0 to 79 once in all parts, got 80 rows"):
        in_memory.collect_parts(part_in_memory(0, 2))
    with pytest.raises(OptionError, match="no process has part 2 of 3"):
        in_memory.collect_parts(part_in_memory(0, 3))


def test_what_is_answered_is_reserved_first(two_parts: type[Offered], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "_BYTES_AT_ONCE", 640)
    parts, reserved = in_memory._Parts(part_in_memory(0, 2)), []

    def working(nbytes: int) -> Any:
        reserved.append(nbytes)
        return nullcontext()

    question = {"of": "edges", "kind": str(EDGE), "first": 0}
    caller = caller_is({}, lambda: False, working=working)
    reply = parts._offer.table(to_message({"func": "answer", "args": [], "kwargs": question}), caller)
    assert len(reply.body) <= reserved[0] + 128  # arrays begin at multiples of 64
    assert reserved == [26 * 24]  # edges and their ids


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
