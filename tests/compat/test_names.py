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
from glt_lightning.base import EDGE, ClusterOptions, DataError, DeadlineOptions, OptionError, PeerError
from glt_lightning.compat.glt.distributed import client, in_memory, session
from glt_lightning.compat.glt.distributed.calls import CallTable, to_message
from glt_lightning.graph import LocalPartition
from glt_lightning.workers.transport.dispatch import caller_is
from tests.compat.fields import loader_of_subgraphs, loaders_of_links, ring_fields, typed_loaders
from tests.helpers.rings import NODES, dataset, part_in_memory, ring_edges, ring_folder
from tests.helpers.run import run_script

dist = glt.distributed


# GLT's public names, without those of its packages that nobody else uses.
NAMES = {
    "": """
        EdgeType InputEdges InputNodes NodeIndex NodeLabel NodeType NumNeighbors PartitionBook Split TensorDataType as_str channel
        data distributed loader partition reverse_edge_type sampler typing utils""",
    "data": "Dataset DeviceGroup Feature Graph TableDataset Topology UnifiedTensor sort_by_in_degree",
    "loader": """
        LinkLoader LinkNeighborLoader NeighborLoader NodeLoader SubGraphLoader get_edge_label_index to_data to_hetero_data""",
    "partition": """
        FeaturePartitionData FrequencyPartitioner GLTPartitionBook GraphPartitionData PartitionBook PartitionerBase
        RandomPartitioner RangePartitionBook base build_partition_feature cat_feature_cache load_feature_partition_data
        load_graph_partition_data load_partition save_edge_pb save_feature_partition save_feature_partition_cache
        save_feature_partition_chunk save_graph_cache save_graph_partition save_meta save_node_pb""",
    "sampler": """
        BaseSampler EdgeIndex EdgeSamplerInput HeteroSamplerOutput NegativeSampling NegativeSamplingMode NeighborOutput
        NeighborSampler NodeSamplerInput RandomNegativeSampler RemoteNodePathSamplerInput RemoteNodeSplitSamplerInput
        RemoteSamplerInput SamplerOutput SamplingConfig SamplingType""",
    "typing": """
        EdgeType FeaturePartitionData GraphPartitionData HeteroEdgePartitionDict HeteroNodePartitionDict InputEdges InputNodes
        NodeIndex NodeLabel NodeType NumNeighbors PartitionBook Split TensorDataType as_str reverse_edge_type""",
    "utils": """
        assign_device convert_to_tensor coo_to_csc coo_to_csr count_dict ensure_device ensure_dir get_available_device
        get_free_port id2idx index_select load_ckpt merge_dict parse_size ptr2ind save_ckpt seed_everything share_memory squeeze
        tensor_equal_with_device""",
    "distributed": """
        CollocatedDistSamplingWorkerOptions ConcurrentEventLoop DistCollocatedSamplingProducer DistContext DistDataset DistFeature
        DistGraph DistLinkNeighborLoader DistLoader DistMpSamplingProducer DistNeighborLoader DistNeighborSampler
        DistRandomPartitioner DistRole DistServer DistSubGraphLoader DistTableDataset DistTableRandomPartitioner
        MpDistSamplingWorkerOptions PartialFeature RemoteDistSamplingWorkerOptions RpcCalleeBase RpcDataPartitionRouter all_gather
        async_request_server barrier get_context get_rpc_master_addr get_rpc_master_port get_server global_all_gather
        global_barrier init_client init_rpc init_server init_worker_group request_server rpc_global_request
        rpc_global_request_async rpc_is_initialized rpc_register rpc_request rpc_request_async rpc_sync_data_partitions
        shutdown_client shutdown_rpc wait_and_shutdown_server""",
}


@pytest.mark.parametrize("module", NAMES)
def test_each_name_is_there_or_says_what_to_use(module: str) -> None:
    home = getattr(glt, module) if module else glt
    for name in NAMES[module].split():
        if name in home.__all__:
            assert getattr(home, name) is not None
            continue
        with pytest.raises(OptionError, match=rf"\.{name}: ...") as said:
            getattr(home, name)
        assert len(str(said.value).split()) >= 3
        assert "\n" not in str(said.value)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = home.no_such_name


@pytest.mark.parametrize("name", ["sample_from_edges", "sample_one_hop", "sample_pyg_v1"])
def test_members_that_are_not_offered_say_what_to_use(name: str) -> None:
    sampler = glt.sampler.NeighborSampler(glt.data.Graph(glt.data.Topology(ring_edges()), "CPU"), [1])
    with pytest.raises(OptionError, match=rf"NeighborSampler\.{name}: .*Neighbor"):
        getattr(sampler, name)
    assert not hasattr(sampler, "no_such_name")


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
    sampler.shutdown_loop()
    with pytest.raises(OptionError, match=r"channel\.send"):
        dist.DistNeighborSampler(data, [1], channel=object())


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
