"""GLT's names of one machine: topologies, features, data sets, samplers and loaders; every field of a ring by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import SAGEConv

import glt_lightning
import glt_lightning.compat.glt as glt
from glt_lightning.base import DataError, OptionError
from tests.helpers.rings import I2I, NODES, U2I, ring_edges

NodeSamplerInput = glt.sampler.NodeSamplerInput
IDS = torch.arange(NODES)

REV = ("item", "rev_u2i", "user")


def ring_data(edge_dir: str = "out", first_id: int = 0) -> glt.data.Dataset:
    data = glt.data.Dataset(edge_dir=edge_dir)
    ids = torch.arange(2 * NODES) + first_id
    data.init_graph(ring_edges(), ids, torch.arange(2 * NODES) % 2, graph_mode="CPU")
    data.init_node_features(IDS.flip(0)[:, None].float(), id2idx=IDS.flip(0))
    data.init_edge_features(torch.arange(2 * NODES + first_id)[:, None].float())
    data.init_node_labels(IDS * 10)
    return data


def typed_data() -> glt.data.Dataset:
    data = glt.data.Dataset()
    data.init_graph({U2I: ring_edges(first=0), I2I: ring_edges(first=2)}, graph_mode="CPU")
    data.init_node_features({"user": IDS[:, None].float(), "item": IDS[:, None].float() + 100})
    data.init_node_labels({"user": IDS * 10})
    return data


def test_layouts_of_a_topology() -> None:
    """4 rows, 6 columns, in every pair of layouts."""
    rows, columns = torch.tensor([0, 0, 1, 2, 3, 3]), torch.tensor([1, 4, 0, 5, 2, 3])
    weights = torch.tensor([0.5, 1, 2, 3, 4, 5])
    order = torch.argsort(columns)
    csr = (torch.tensor([0, 2, 3, 4, 6]), columns)
    csc = (rows[order], torch.tensor([0, 1, 2, 3, 4, 5, 6]))
    for form, given, ids in (("COO", (rows, columns), None), ("CSR", csr, None), ("CSC", csc, order)):
        for layout in ("CSR", "CSC"):
            given_weights = weights if ids is None else weights[ids]
            topo = glt.data.Topology(given, ids, given_weights, form, layout)
            assert [each.tolist() for each in topo.to_csr()[:3]] == [
                [0, 2, 3, 4, 6],
                columns.tolist(),
                [0, 1, 2, 3, 4, 5],
            ]
            assert [each.tolist() for each in topo.to_csc()[:3]] == [
                rows[order].tolist(),
                list(range(7)),
                order.tolist(),
            ]
            sources, destinations, edge_ids, found = topo.to_coo()
            assert torch.equal(torch.stack([sources, destinations]), torch.stack([rows, columns])[:, edge_ids])
            assert torch.equal(found, weights[edge_ids])
            assert topo.degrees.tolist() == ([2, 1, 1, 2] if layout == "CSR" else [1] * 6)
    graph = glt.data.Graph(topo, mode="CPU")
    graph.lazy_init()
    assert (graph.row_count, graph.col_count, graph.edge_count) == (6, 4, 6)
    assert torch.equal(graph.export_topology()[2], order)
    with pytest.raises(DataError, match="expected pointers from 0 to the 6 neighbours"):
        glt.data.Topology((columns, rows), input_layout="CSR")
    with pytest.raises(DataError, match=r"edge_ids: expected one for each of 6 edges, got \[2\]"):
        glt.data.Topology((rows, columns), edge_ids=[1, 2])


def test_features_are_looked_up_by_id() -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    feature = glt.data.Feature(rows, id2index=torch.tensor([3, 0, 1]), split_ratio=0.5)
    assert feature[torch.tensor([0, 2])].tolist() == [[9, 10, 11], [3, 4, 5]]
    assert (feature.shape, feature.size(1)) == ((4, 3), 3)
    with pytest.raises(DataError, match="id 3 has no row; ids are 0 to 2"):
        feature[[3]]
    sorted_rows, new = glt.data.sort_by_in_degree(rows, 0.5, glt.data.Topology(([0, 1, 2], [3, 3, 1])))
    assert torch.equal(sorted_rows[new], rows)
    assert sorted(new[torch.tensor([3, 1])].tolist()) == [0, 1]
    with pytest.raises(OptionError, match="memory of GPUs is not shared by handles"):
        _ = glt.data.UnifiedTensor


@pytest.mark.parametrize("edge_dir", ["out", "in"])
def test_neighbor_loader(edge_dir: str) -> None:
    data = ring_data(edge_dir, first_id=1000)
    loader = glt.loader.NeighborLoader(data, [2, 2], torch.tensor([3, 39, 7]), batch_size=2, with_edge=True, seed=1)
    batches = list(loader)
    assert (len(loader), [batch.batch.tolist() for batch in batches]) == (2, [[3, 39], [7]])
    for batch in batches:
        assert torch.equal(batch.x[:, 0].long(), batch.node)
        assert torch.equal(batch.y, batch.node * 10)
        assert torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
        sampled, seeds = batch.node[batch.edge_index]
        ends = [seeds, sampled] if edge_dir == "out" else [sampled, seeds]
        assert torch.equal(ring_edges()[:, batch.edge - 1000], torch.stack(ends))
    assert batches[1].num_sampled_nodes.tolist() == [1, 2, 2]
    heavy = glt.loader.NeighborLoader(data, [-1], IDS, batch_size=NODES, with_edge=True, with_weight=True)
    assert (next(iter(heavy)).edge % 2 == 1).all()
    loader.shutdown()
    heavy.shutdown()


def test_pyg_v1_layers_compute_the_same() -> None:
    loader = glt.loader.NeighborLoader(ring_data(), [2, 2], torch.tensor([3, 7]), batch_size=2, as_pyg_v1=True)
    ((size, nodes, adjs),) = loader
    assert (size, nodes[:2].tolist(), [adj[2] for adj in adjs]) == (2, [3, 7], [(len(nodes), 6), (6, 2)])
    convs = [SAGEConv(1, 4), SAGEConv(4, 2)]
    sampled, whole = nodes[:, None].float(), IDS[:, None].float()
    for conv, (edges, _, (_, targets)) in zip(convs, adjs, strict=True):
        sampled = conv((sampled, sampled[:targets]), edges)
        whole = conv(whole, ring_edges().flip(0))
    assert torch.allclose(sampled, whole[[3, 7]], atol=1e-5)


def test_typed_loader_and_links() -> None:
    data = typed_data()
    assert (data.get_node_types(), data.get_edge_types()) == (["item", "user"], [U2I, I2I])
    (batch,) = glt.loader.NeighborLoader(data, [2, 2], ("user", torch.tensor([5])), with_edge=True)
    assert batch["user"].y.tolist() == [50]
    assert sorted(batch["item"].node.tolist()) == [5, 6, 7, 8, 9]
    assert torch.equal(batch["item"].x[:, 0].long(), batch["item"].node + 100)
    assert batch.num_sampled_nodes["item"].tolist() == [0, 2, 3]
    edges = ring_edges(first=0)[:, :3]
    loader = glt.loader.LinkNeighborLoader(
        data, [1], edge_label_index=(U2I, edges), neg_sampling=glt.sampler.NegativeSampling("binary", 1), batch_size=3
    )
    (batch,) = loader
    item, user = batch["item", "rev_u2i", "user"].edge_label_index
    assert torch.equal(torch.stack([batch["user"].node[user], batch["item"].node[item]])[:, :3], edges)


def test_loaders_of_a_sampler_are_loaders_with_its_options() -> None:
    data = ring_data()
    sampler = glt.sampler.NeighborSampler(data.graph, [2, 2], with_edge=True, seed=3)
    one = glt.loader.NeighborLoader(data, None, IDS[:8], sampler, batch_size=4)
    same = glt.loader.NeighborLoader(data, [2, 2], IDS[:8], with_edge=True, seed=3, batch_size=4)
    assert [each.edge.tolist() for each in one] == [each.edge.tolist() for each in same]
    links = glt.loader.LinkNeighborLoader(data, None, sampler, neg_sampling="binary", batch_size=NODES)
    batches = list(links)  # of all edges
    given = torch.cat([each.node[each.edge_label_index[:, :NODES]].flip(0) for each in batches], dim=1)
    assert sorted(given.T.tolist()) == sorted(ring_edges().T.tolist())
    with pytest.raises(OptionError, match=r"NeighborSampler\(dataset\.graph"):
        glt.loader.NeighborLoader(ring_data(), None, IDS, sampler)


def test_all_edges_of_a_type() -> None:
    data = typed_data()
    batches = list(glt.loader.LinkNeighborLoader(data, [1], edge_label_index=U2I, batch_size=NODES))
    pairs = [
        torch.stack([b["user"].node[b[REV].edge_label_index[1]], b["item"].node[b[REV].edge_label_index[0]]])
        for b in batches
    ]
    assert sorted(torch.cat(pairs, dim=1).T.tolist()) == sorted(ring_edges(first=0).T.tolist())
    with pytest.raises(OptionError, match="give an edge type of a heterogeneous graph"):
        glt.loader.LinkNeighborLoader(data, [1])


def test_sampler() -> None:
    graph = glt.data.Graph(glt.data.Topology(ring_edges()), "CPU")
    sampler = glt.sampler.NeighborSampler(graph, [-1, -1], with_edge=True)
    found = sampler.sample_from_nodes(NodeSamplerInput(torch.tensor([3, 7])))
    assert found.node.tolist() == [3, 7, 4, 5, 8, 9, 6, 10, 11]
    assert found.batch.tolist() == [3, 7]
    assert found.num_sampled_nodes.tolist() == [2, 4, 3]
    assert found.edge.tolist() == [6, 7, 14, 15, 8, 9, 10, 11, 16, 17, 18, 19]
    assert torch.equal(ring_edges()[:, found.edge], torch.stack([found.node[found.col], found.node[found.row]]))
    among = glt.sampler.NeighborSampler(graph, with_edge=True).subgraph(torch.tensor([9, 7, 8]))
    assert (among.node.tolist(), among.metadata.tolist()) == ([7, 8, 9], [2, 0, 1])
    assert sorted(among.edge.tolist()) == [14, 15, 16]
    if torch.cuda.is_available():
        assert glt.sampler.NeighborSampler(graph, [2]).sample_from_nodes([0], device="cuda:0").node.is_cuda
    else:
        with pytest.raises(OptionError, match="this host has no CUDA device"):
            glt.sampler.NeighborSampler(graph, [2]).sample_from_nodes([0], device="cuda:0")
    with pytest.raises(OptionError, match="num_neighbors: give fan-outs"):
        glt.sampler.NeighborSampler(graph).sample_from_nodes([0])


def test_a_sampler_repeats_with_its_seed_and_draws_anew_in_each_call() -> None:
    graph = glt.data.Graph(glt.data.Topology(ring_edges()), "CPU")
    draws = [[s.sample_from_nodes(IDS).edge.tolist() for _ in range(3)] for s in (make(graph, 1), make(graph, 1))]
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[0][1]


def make(graph: glt.data.Graph, seed: int) -> glt.sampler.NeighborSampler:
    return glt.sampler.NeighborSampler(graph, [1, 1], seed=seed, with_edge=True)


def test_typed_sampler() -> None:
    graphs = {e: glt.data.Graph(glt.data.Topology(ring_edges(first=k)), "CPU") for e, k in ((U2I, 0), (I2I, 2))}
    sampler = glt.sampler.NeighborSampler(graphs, [2, 2])
    found = sampler.sample_from_nodes(NodeSamplerInput([5], "user"), device=torch.device("cpu"))
    assert (found.node["user"].tolist(), sorted(found.node["item"].tolist())) == ([5], [5, 6, 7, 8, 9])
    edges = found.get_edge_index()["item", "rev_u2i", "user"]
    assert sorted(found.node["item"][edges[0]].tolist()) == [5, 6]


def test_errors_of_loaders() -> None:
    data = ring_data()
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampler'"):
        glt.loader.NeighborLoader(data, [1], IDS, sampler=None)
    with pytest.raises(OptionError, match="strategy: expected 'random'"):
        glt.loader.NeighborLoader(data, [1], IDS, strategy="full")
    with pytest.raises(OptionError, match="expected a Dataset, got NoneType"):
        glt.loader.NeighborLoader(None, [1], IDS)
    with pytest.raises(OptionError, match="no graph"):
        glt.data.Dataset().open()
    data.random_node_split(0.25, 5)
    assert sorted(torch.cat([data.train_idx, data.val_idx, data.test_idx]).tolist()) == IDS.tolist()
    assert (len(data.val_idx), len(data.test_idx)) == (10, 5)


def test_no_folder_is_left() -> None:
    before = set(Path(tempfile.gettempdir()).iterdir())
    data = ring_data()
    place = Path(data.open().location)
    assert place.exists()  # in the memory of this process
    assert not [path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if "glt" in path.name]
    del data
    assert not place.exists()


def test_a_book_of_ranges() -> None:
    book = glt.partition.RangePartitionBook([(0, 4), (4, 9)], 1)
    assert (book[torch.tensor([0, 3, 4, 8])].tolist(), book.id2index[torch.tensor([5])].tolist()) == ([0, 0, 1, 1], [1])
    assert (book.id_filter(None, 1).tolist(), book.device.type) == ([4, 5, 6, 7, 8], "cpu")
    feature = glt.data.Feature(torch.arange(5.0), book.id2index)
    assert feature[torch.tensor([8, 4])].tolist() == [4, 0]
    with pytest.raises(DataError, match="id 3 has no row; ids are 4 to 8"):
        feature[[3]]
    for wrong in ([(0, 4), (5, 9)], [(0, 4), (4, 4)], []):
        with pytest.raises(OptionError, match="ranges that are not empty and follow each other"):
            glt.partition.RangePartitionBook(wrong, 0)


def test_utils_and_typing(tmp_path: Path) -> None:
    utils, kinds = glt.utils, glt.typing
    assert utils.id2idx([3, 1]).tolist() == utils.common.id2idx([3, 1]).tolist() == [0, 1, 0, 0]
    assert utils.tensor_equal_with_device(IDS, IDS.clone())
    utils.seed_everything(3)
    first = torch.rand(2)
    utils.seed_everything(3)
    assert torch.equal(first, torch.rand(2))
    assert 0 < utils.get_free_port() < 1 << 16
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    utils.save_ckpt(1, str(tmp_path / "new"), model, torch.optim.Adam(model.parameters()), epoch=2)
    assert utils.load_ckpt(1, str(tmp_path / "new"), other, torch.optim.Adam(other.parameters())) == 2
    assert torch.equal(model.weight, other.weight)
    with pytest.raises(DataError, match="no such checkpoint"):
        utils.load_ckpt(2, str(tmp_path), other)
    assert kinds.reverse_edge_type(U2I) == glt.reverse_edge_type(U2I) == ("item", "rev_u2i", "user")
    assert kinds.Split.valid.value == "val"


def test_vineyard_is_refused() -> None:
    for data in (glt.data.Dataset(), glt.distributed.DistDataset()):
        with pytest.raises(OptionError, match="vineyard is not read"):
            data.load_vineyard("socket")


KEPT = ["int64", "int32", "int16", "uint8", "bool"]
LARGE = 2**24 + 1  # the first integer that float32 lacks


@pytest.mark.parametrize("kind", [*KEPT, "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("as_they_are", [False, True])
def test_features_keep_their_dtype(kind: str, as_they_are: bool, tmp_path: Path) -> None:
    """Without a dtype floating-point numbers become float32, as in GLT; with None nothing changes."""
    dtype = getattr(torch, kind)
    first = LARGE if kind in ("int64", "int32") else 0
    rows = (torch.arange(NODES)[:, None] + first).to(dtype)
    expected = rows if as_they_are or kind in KEPT else rows.float()
    data, chosen = glt.data.Dataset(), {"dtype": None} if as_they_are else {}
    data.init_graph(ring_edges(), graph_mode="CPU")
    data.init_node_features(rows, **chosen)
    data.init_edge_features(rows.repeat(2, 1), **chosen)
    assert torch.equal(data.node_features[IDS], expected)
    batch = next(iter(glt.loader.NeighborLoader(data, [2], IDS, batch_size=NODES, with_edge=True)))
    assert batch.x.dtype == batch.edge_attr.dtype == expected.dtype
    assert torch.equal(batch.x, expected[batch.node])
    folder = tmp_path / "parts"
    chosen = {"node_feat_dtype": None, "edge_feat_dtype": None} if as_they_are else {}
    glt.partition.RandomPartitioner(
        folder, 2, NODES, ring_edges(), rows, edge_feat=rows.repeat(2, 1), **chosen
    ).partition()
    with glt_lightning.Session(glt_lightning.LocalPartition.open(folder)) as context:
        spec = glt_lightning.LoaderSpec(name="all", split=None, num_neighbors=[2], batch_size=NODES)
        batch = next(iter(context.make_loader(spec)))
        assert batch.x.dtype == batch.edge_attr.dtype == expected.dtype
        assert torch.equal(batch.x, expected[batch.n_id])


def test_integers_that_a_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    rows = torch.arange(NODES)[:, None] + LARGE
    assert glt.data.Feature(rows, dtype=torch.float64).feature_tensor.dtype == torch.float64
    with pytest.raises(
        DataError, match="feature_tensor: expected integers that float32 can hold, got int64 from 16777217"
    ):
        glt.data.Feature(rows, dtype=torch.float32)
    with pytest.raises(DataError, match="node_feat: expected integers that float16 can hold"):
        glt.partition.RandomPartitioner(
            tmp_path / "p", 1, NODES, ring_edges(), rows, node_feat_dtype=torch.float16
        ).partition()
    with pytest.raises((DataError, OptionError), match="complex64"):
        glt.partition.RandomPartitioner(tmp_path / "p", 1, NODES, ring_edges(), rows.to(torch.complex64)).partition()
