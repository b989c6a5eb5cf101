"""A batch says what PyG's NeighborLoader says, in the user's ids."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.partitions import partitioned, small_graph, small_hetero


def first_batch(partition, *, with_edge=False, num_neighbors=(4, 3), workers=0, split="train"):
    options = SamplingOptions(with_edge=with_edge, num_workers=workers)
    with Session(partition, options, seed=3) as context:
        spec = LoaderSpec(name="train", split=split, num_neighbors=list(num_neighbors), batch_size=10, shuffle=True)
        return next(iter(context.make_loader(spec)))


def test_homogeneous(tmp_path):
    graph = small_graph()
    batch = first_batch(partitioned(graph, tmp_path, 2))
    names = ["x", "edge_index", "edge_attr", "y", "n_id", "e_id"]
    names += ["num_sampled_nodes", "num_sampled_edges", "input_id", "batch_size"]
    assert [k for k in batch.to_dict() if not k.endswith("_mask")] == names
    assert batch.batch_size == 10
    seeds = torch.nonzero(graph.train_mask).view(-1)[batch.input_id]
    assert torch.equal(batch.n_id[:10], seeds)
    assert torch.equal(batch.x, graph.x[batch.n_id])
    assert torch.equal(batch.y, graph.y[batch.n_id])
    assert torch.equal(graph.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    assert torch.equal(batch.edge_attr, graph.edge_attr[batch.e_id])
    assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.n_id.unique())
    assert sum(batch.num_sampled_edges) == batch.num_edges
    assert len(batch.num_sampled_nodes) == 3


def test_heterogeneous(tmp_path):
    graph = small_hetero()
    batch = first_batch(partitioned(graph, tmp_path, 3), with_edge=True)
    assert isinstance(batch, HeteroData)
    assert set(batch.node_types) == set(graph.node_types)
    assert set(batch.edge_types) == set(graph.edge_types)
    assert batch["paper"].batch_size == 10
    assert "batch_size" not in batch["author"]
    seeds = torch.nonzero(graph["paper"].train_mask).view(-1)[batch["paper"].input_id]
    assert torch.equal(batch["paper"].n_id[:10], seeds)
    assert torch.equal(batch["paper"].x, graph["paper"].x[batch["paper"].n_id])
    assert batch["author"].num_nodes == len(batch["author"].n_id)
    for edge_type in graph.edge_types:
        src, _, dst = edge_type
        mine = batch[edge_type]
        ends = torch.stack([batch[src].n_id[mine.edge_index[0]], batch[dst].n_id[mine.edge_index[1]]])
        assert torch.equal(graph[edge_type].edge_index[:, mine.e_id], ends)


def test_all_neighbours_are_the_whole_neighbourhood(tmp_path):
    graph = small_graph(60)
    batch = first_batch(partitioned(graph, tmp_path, 2), with_edge=True, num_neighbors=[-1])
    for lid, node in enumerate(batch.n_id[:10].tolist()):
        want = torch.nonzero(graph.edge_index[1] == node).view(-1)
        got = batch.e_id[batch.edge_index[1] == lid]
        assert torch.equal(got.sort().values, want)
        keys = list(zip(graph.edge_index[0][got].tolist(), got.tolist(), strict=True))
        assert keys == sorted(keys)  # canonical order: source, then edge


def test_an_added_reverse_edge_has_the_id_of_its_edge(tmp_path):
    graph = small_graph(40)
    batch = first_batch(partitioned(graph, tmp_path, 2, undirected=True), with_edge=True, num_neighbors=[-1])
    ends, columns = batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id]
    is_forward = (ends == columns).all(0)
    assert torch.equal(columns[:, ~is_forward].flip(0), ends[:, ~is_forward])
    assert is_forward.any()
    assert not is_forward.all()
    pairs = [tuple(p) for p in ends.t().tolist()]
    assert len(set(pairs)) == len(pairs)  # coalesced
    first: dict[tuple[int, int], int] = {}
    for column, (src, dst) in enumerate(graph.edge_index.t().tolist()):
        for pair in ((src, dst), (dst, src)):
            first.setdefault(pair, column)
    assert batch.e_id.tolist() == [first[pair] for pair in pairs]  # the lowest id stayed


@pytest.mark.parametrize("workers", [0, 1])
def test_with_row(tmp_path, workers):
    """The number of a node in its type: where it lies among the nodes of all parts."""
    for graph in (small_graph(), small_hetero()):
        parts = partitioned(graph, tmp_path / type(graph).__name__, 3)
        options = SamplingOptions(num_workers=workers)
        spec = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=10, with_row=True)
        with Session(parts, options, seed=3) as context:
            batch = next(iter(context.make_loader(spec)))
            plain = next(iter(context.make_loader(replace(spec, with_row=False))))
        for t, node_type in enumerate(parts.schema.node_types):
            homogeneous = parts.schema.homogeneous
            store, without = (batch, plain) if homogeneous else (batch[node_type], plain[node_type])
            ids = torch.from_numpy(
                np.concatenate([np.asarray(each) for each in parts.mapped_user_ids(t)]).astype(np.int64)
            )
            assert store.row.dtype == torch.int64
            assert torch.equal(ids[store.row], store.n_id)
            assert torch.equal(store.n_id, without.n_id)
            assert "row" not in without


def test_with_row_beside_an_attribute_of_that_name(tmp_path):
    graph = small_graph()
    graph.row = torch.arange(300)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[4], batch_size=10, with_row=True)
    refused = pytest.raises(OptionError, match="with_row: nodes of type 'node' have an attribute row")
    with Session(partitioned(graph, tmp_path)) as context, refused:
        context.make_loader(spec)
