"""PyG's loaders of ours: the same batches from a `Data` in memory and from a partition folder, also when the `Data` changes."""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling, SamplerOutput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from glt_lightning import PartitionOptions
from glt_lightning.base import DataError, NegativeSampling as OurNegatives, OptionError, SamplingOptions
from glt_lightning.loader import LinkNeighborLoader, LoaderSpec, NeighborLoader, Session
from glt_lightning.loader.in_memory import InMemoryGraph
from glt_lightning.partition import open_source, partition_graph

N, E = 60, 400
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def make_data() -> Data:
    torch.manual_seed(0)
    return Data(
        x=torch.randn(N, 3),
        y=torch.arange(N) % 4,
        edge_index=torch.randint(0, N, (2, E)),
        edge_attr=torch.arange(E),
        edge_weight=torch.rand(E),
        train_mask=torch.arange(N) % 3 == 0,
        time=torch.arange(N) % 17,
    )


def make_typed() -> HeteroData:
    torch.manual_seed(0)
    made = HeteroData()
    made["paper"].x, made["author"].x = torch.randn(N, 3), torch.randn(20, 2)
    made["author"].time, made["paper"].time = torch.arange(20), torch.arange(N)
    made[CITES].edge_index = torch.randint(0, N, (2, E))
    made[WRITES].edge_index = torch.stack([torch.randint(0, 20, (E,)), torch.randint(0, N, (E,))])
    made[WRITES].edge_attr = torch.arange(E) * 10
    return made


def folder_of(graph: Data | HeteroData, folder: Path, num_parts: int = 2, **options) -> Path:
    partition_graph(
        open_source(graph, folder), folder, PartitionOptions(num_parts=num_parts, **options), progress=False
    )
    return folder


def equal(a: Data | HeteroData, b: Data | HeteroData, names: set[str]) -> None:
    for mine, theirs in zip(*map(stores_of, (a, b)), strict=True):
        for name in names & set(mine.keys()):
            assert torch.equal(torch.as_tensor(mine[name]), torch.as_tensor(theirs[name])), name


def stores_of(batch: Data | HeteroData) -> list:
    """In one order, which those of a `HeteroData` have from where it was made."""
    return [batch] if isinstance(batch, Data) else [batch[t] for t in ("author", "paper", CITES, WRITES)]


def epoch(loader: NeighborLoader | LinkNeighborLoader) -> list:
    torch.manual_seed(7)
    return list(loader)


FIELDS = {"n_id", "e_id", "edge_index", "x", "y", "edge_attr", "input_id", "batch_size", "batch", "num_sampled_nodes"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"weight_attr": "edge_weight"},
        {"time_attr": "time", "temporal_strategy": "last"},
        {"shuffle": True, "drop_last": True, "num_workers": 2},
        {"num_workers": 1, "filter_per_worker": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_the_same_from_memory_and_from_a_folder(tmp_path: Path, options: dict) -> None:
    data = make_data()
    stored = {"weights": ["edge_weight"]} if "weight_attr" in options else {}
    stored |= {"time_attr": "time"} if "time_attr" in options else {}
    given = {"num_neighbors": [3, 2], "input_nodes": data.train_mask, "batch_size": 6, **options}
    pairs = [NeighborLoader(each, **given) for each in (data, folder_of(data, tmp_path / "parts", **stored))]
    assert len(pairs[0]) == len(pairs[1])
    for mine, theirs in zip(*map(epoch, pairs), strict=True):
        equal(mine, theirs, FIELDS | {"seed_time"})
        assert torch.equal(mine.x, data.x[mine.n_id])
        assert torch.equal(mine.n_id[mine.edge_index], data.edge_index[:, mine.e_id])


@pytest.mark.parametrize("input_nodes", ["paper", ("author", torch.tensor([3, 1, 4]))])
def test_the_same_of_several_types(tmp_path: Path, input_nodes: object) -> None:
    typed = make_typed()
    given = {"num_neighbors": {CITES: [3, -1], WRITES: [2, 0]}, "input_nodes": input_nodes, "batch_size": 7}
    mine, theirs = (epoch(NeighborLoader(each, **given)) for each in (typed, folder_of(typed, tmp_path / "parts")))
    for a, b in zip(mine, theirs, strict=True):
        equal(a, b, FIELDS)
        assert a.input_type == (input_nodes if isinstance(input_nodes, str) else input_nodes[0])
        assert torch.equal(a[WRITES].edge_attr, typed[WRITES].edge_attr[a[WRITES].e_id])


@pytest.mark.parametrize("neg_sampling", [None, "binary", OurNegatives(mode="triplet", amount=2)], ids=str)
def test_the_same_around_edges(tmp_path: Path, neg_sampling: object) -> None:
    data = make_data()
    edges = data.edge_index[:, :50]
    given = {"num_neighbors": [3], "edge_label_index": edges, "neg_sampling": neg_sampling, "batch_size": 8}
    fields = FIELDS | {"edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index"}
    mine, theirs = (epoch(LinkNeighborLoader(each, **given)) for each in (data, folder_of(data, tmp_path / "parts")))
    for a, b in zip(mine, theirs, strict=True):
        equal(a, b, fields)
        if neg_sampling is None:
            assert torch.equal(a.n_id[a.edge_label_index], edges[:, a.input_id])


def test_a_context_draws_the_same_nodes() -> None:
    """All neighbours, of which there is nothing to draw."""
    data = make_data()
    graph = InMemoryGraph.of(data, None, None).partition
    spec = LoaderSpec(name="all", seeds=np.arange(N), num_neighbors=[-1, -1], batch_size=10)
    with Session(graph, SamplingOptions(with_edge=True)) as context:
        for mine, theirs in zip(NeighborLoader(data, [-1, -1], batch_size=10), context.make_loader(spec), strict=True):
            equal(mine, theirs, {"n_id", "e_id", "edge_index", "input_id"})


def test_order_is_torch_s() -> None:
    data = make_data()
    loader = NeighborLoader(data, [2], batch_size=25, shuffle=True, generator=torch.Generator().manual_seed(1))
    first, second = (torch.cat([batch.input_id for batch in loader]) for _ in range(2))
    assert not torch.equal(first, second)
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(N))
    few = NeighborLoader(data, [2], batch_size=4, sampler=RandomSampler(range(N), num_samples=8))
    assert (len(few), sum(batch.batch_size for batch in few)) == (2, 8)
    own = NeighborLoader(data, [2], batch_sampler=[[5, 3], [1]])
    assert [batch.n_id[: batch.batch_size].tolist() for batch in own] == [[5, 3], [1]]
    assert len(NeighborLoader(data, [2], batch_size=25, drop_last=True)) == 2


def test_draws_change_with_the_epoch_and_repeat_with_the_seed() -> None:
    data = make_data()
    loader = NeighborLoader(data, [2], batch_size=N)
    one, again, other = epoch(loader)[0], epoch(loader)[0], next(iter(loader))
    assert torch.equal(one.e_id, again.e_id)
    assert not torch.equal(one.e_id, other.e_id)


def test_one_batch_and_input_ids() -> None:
    data = make_data()
    loader = NeighborLoader(data, [1], data.train_mask, batch_size=4)
    assert loader([1, 2]).n_id[:2].tolist() == [3, 6]
    assert loader(torch.tensor([1])).input_id.tolist() == [3]  # of a mask the ids, as in PyG
    assert NeighborLoader(data, [1], torch.tensor([9, 8]))([1]).input_id.tolist() == [1]
    given = NeighborLoader(data, [1], torch.tensor([9, 8]), input_id=torch.tensor([70, 71]))
    assert [batch.input_id.tolist() for batch in given] == [[70], [71]]


def test_fields_of_links_as_in_pyg() -> None:
    typed = make_typed()
    edges = torch.tensor([[0, 1, 2], [5, 6, 7]])
    loader = LinkNeighborLoader(
        typed,
        [2],
        (("author", "paper"), edges),
        torch.tensor([0, 1, 2]),
        neg_sampling=NegativeSampling("binary", 2.0),
        batch_size=3,
    )
    store = next(iter(loader))[WRITES]
    assert store.edge_label.tolist() == [1, 2, 3, 0, 0, 0, 0, 0, 0]
    assert store.edge_label_index.shape == (2, 9)
    unstored = LinkNeighborLoader(typed, [2], (("paper", "by", "author"), edges), batch_size=3)
    batch = next(iter(unstored))
    assert batch["paper", "by", "author"].input_id.tolist() == [0, 1, 2]


def test_transforms_and_bidirectional_edges() -> None:
    data = make_data()

    def fewer(out: SamplerOutput) -> SamplerOutput:
        out.row, out.col, out.edge = out.row[:5], out.col[:5], out.edge[:5]
        return out

    def counted(batch: Data) -> Data:
        batch.edges = batch.num_edges
        return batch

    loader = NeighborLoader(data, [4], transform=counted, transform_sampler_output=fewer, batch_size=9)
    for batch in loader:
        assert batch.edges == 5
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    batch = next(iter(NeighborLoader(data, [4], subgraph_type="bidirectional", batch_size=9)))
    pairs = set(map(tuple, batch.edge_index.t().tolist()))
    assert pairs == {(b, a) for a, b in pairs}


def test_loaders_share_one_conversion(caplog: pytest.LogCaptureFixture) -> None:
    data = make_data()
    caplog.set_level(logging.INFO, "glt_lightning.partition.in_memory")
    loaders = [NeighborLoader(data, [2], data.train_mask), LinkNeighborLoader(data, [2]), NeighborLoader(data, [3])]
    assert len({id(loader._memory) for loader in loaders}) == 1
    assert len(caplog.records) == 1
    assert "bytes for topology" in caplog.text
    place = Path(loaders[0]._graph.location)
    assert NeighborLoader(data, [2], weight_attr="edge_weight")._memory is not loaders[0]._memory
    assert place.exists()
    loaders.clear()
    del data
    assert not place.exists()


def test_rows_are_not_copied_and_nothing_lies_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other programs use /tmp, too
    data = make_data()
    loader = NeighborLoader(data, [2], batch_size=N)
    assert loader._memory is not None
    assert not any("nodes/0/x" in name for name in loader._memory.partition.manifest.arrays)
    data.x[3] = 99.0
    batch = next(iter(loader))
    assert (batch.x[batch.n_id == 3] == 99).all()
    data.x = data.x * 2
    assert torch.equal((batch := loader([5])).x, data.x[batch.n_id])
    del data.y
    assert "y" not in loader([5])
    data.x.requires_grad_()
    assert NeighborLoader(data, [2])([5]).x.requires_grad
    data.z = torch.arange(N)
    batch = next(iter(loader))
    assert torch.equal(batch.z, batch.n_id)
    assert not list(tmp_path.iterdir())


def test_copies_for_sampler_processes_are_no_older_than_the_data() -> None:
    data = make_data()
    loader = NeighborLoader(data, [2], batch_size=N, num_workers=1, filter_per_worker=True)
    assert "part0/nodes/0/x.npy" in loader._graph.manifest.arrays
    for change in (lambda: None, lambda: data.x.mul_(2), lambda: setattr(data, "x", data.x + 1)):
        change()
        (batch,) = loader
        assert torch.equal(batch.x, data.x[batch.n_id])


def add_edge(data: Data) -> None:
    data.edge_index = torch.cat([data.edge_index, torch.tensor([[0], [1]])], dim=1)


def add_node(data: Data) -> None:
    data.x = torch.cat([data.x, data.x[:1]])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (add_edge, "edge_index"),
        (lambda data: data.edge_index.__setitem__((0, 0), 1), "edge_index"),
        (lambda data: data.edge_weight.mul_(2), "edge_weight"),
        (add_node, "the number of nodes"),
    ],
    ids=["new edges", "an edge in place", "weights in place", "a node"],
)
def test_a_changed_graph_is_refused(change, what: str) -> None:
    data = make_data()
    loader = NeighborLoader(data, [2], batch_size=4, weight_attr="edge_weight")
    running = iter(loader)
    next(running)
    change(data)
    refusal = pytest.raises(DataError, match=f"data: {what} was changed after this loader was made")
    if what != "the number of nodes":
        with refusal:
            next(running)
    for call in (lambda: next(iter(loader)), lambda: loader([0])):
        with refusal:
            call()


def test_an_equal_tensor_is_no_change() -> None:
    data = make_data()
    loader = NeighborLoader(data, [2])
    data.edge_index = data.edge_index.clone()
    next(iter(loader))
    assert NeighborLoader(data, [2])._memory is loader._memory
    data.edge_index[0, 0] = 1 - data.edge_index[0, 0].clamp(max=1)
    with pytest.raises(DataError, match="edge_index was changed"):
        next(iter(loader))


def test_sampler_processes_last_as_long_as_an_iteration() -> None:
    data = make_data()
    loader = NeighborLoader(data, [2], batch_size=20, num_workers=1)
    whole = epoch(NeighborLoader(data, [2], batch_size=20))
    for _ in range(2):
        for mine, theirs in zip(epoch(loader), whole, strict=True):
            equal(mine, theirs, FIELDS)
    assert loader._workers is None
    lasting = NeighborLoader(data, [2], batch_size=20, num_workers=1, persistent_workers=True)
    pids = []
    for _ in range(2):
        next(iter(lasting))
        assert lasting._workers is not None
        pids.append(id(lasting._workers))
    assert pids[0] == pids[1]
    lasting.close()
    assert len(list(lasting)) == 3
    lasting.close()


def test_a_loader_goes_through_pickle() -> None:
    data = make_data()
    loader = NeighborLoader(data, [-1], batch_size=N)
    found = pickle.loads(pickle.dumps(loader))
    equal(next(iter(found)), next(iter(loader)), FIELDS)


def refusals(data: Data, typed: HeteroData) -> Iterator[tuple]:
    stores = (MyFeatureStore(), MyGraphStore())
    yield lambda: NeighborLoader(stores, [2]), r"got \(FeatureStore, GraphStore\). Partition what the stores hold"
    yield lambda: LinkNeighborLoader(stores, [2]), r"got \(FeatureStore, GraphStore\)"
    yield lambda: NeighborLoader([data], [2]), "data: expected a Data, a HeteroData or a partition folder, got list"
    yield lambda: NeighborLoader(data, [2], neighbor_sampler=object()), "neighbor_sampler: draws are this package's"
    yield (
        lambda: NeighborLoader(data, [2], num_workers=1, worker_init_fn=print),
        "worker_init_fn: batches are made by sampler processes",
    )
    yield lambda: NeighborLoader(data, [2], input_time=torch.zeros(N)), "input_time: has no effect without time_attr"
    yield lambda: NeighborLoader(data, [2], time_attr="t"), "neither nodes nor edges have an attribute 't'"
    yield lambda: NeighborLoader(data, [2], weight_attr="w"), "weight_attr: edges have no attribute 'w'"
    yield lambda: NeighborLoader(data, {CITES: [2]}), "num_neighbors: expected a list for a graph with one node type"
    yield lambda: NeighborLoader(data, [2], torch.tensor([N])), f"{N} at position 0 is not a node"
    yield lambda: NeighborLoader(typed, [2]), r"input_nodes: expected one of author, paper, or \(node type, nodes\)"
    yield lambda: NeighborLoader(typed, {CITES: [2]}, "paper"), "Missing number of neighbors for edge type"
    yield lambda: LinkNeighborLoader(typed, [2]), "edge_label_index: expected an edge type"
    yield lambda: LinkNeighborLoader(data, [2], time_attr="time"), "'edge_label_time' is not set"
    short = Data(edge_index=data.edge_index, num_nodes=N, edge_weight=torch.ones(3))
    yield (
        lambda: NeighborLoader(short, [2], weight_attr="edge_weight"),
        r"edge_weight: expected one for each of 400 edges",
    )
    yield lambda: NeighborLoader(Data(adj_t=torch.eye(3).to_sparse()), [2]), "expected edges as edge_index"


def test_errors_name_the_argument(tmp_path: Path) -> None:
    data, typed = make_data(), make_typed()
    for call, message in refusals(data, typed):
        with pytest.raises(ValueError, match=message):
            call()
    folder = folder_of(data, tmp_path / "parts")
    with pytest.raises(
        OptionError, match="transform_sampler_output: batches of a partition folder have their attributes"
    ):
        NeighborLoader(folder, [2], transform_sampler_output=lambda out: out)
    with pytest.raises(OptionError, match="edge_label_index: give the edges"):
        LinkNeighborLoader(folder, [2])
    with pytest.warns(UserWarning, match="directed=False is deprecated"):
        NeighborLoader(data, [2], directed=False)


class Own(Data):
    """A class of the program's."""


def test_batches_of_a_class_of_one_s_own(tmp_path: Path) -> None:
    data = make_data()
    loader = NeighborLoader(folder_of(data, tmp_path / "parts"), [2], batch_size=5, custom_cls=Own)
    batch = next(iter(loader))
    assert isinstance(batch, Own)
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert isinstance(next(iter(NeighborLoader(Own.from_dict(data.to_dict()), [2]))), Own)
