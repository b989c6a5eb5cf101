"""The built-in models give the same, outputs and gradients, on the kernels of aggregation and on PyG's own path."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from glt_lightning import SamplingOptions
from glt_lightning.loader.aggregation import Gathered
from glt_lightning.loader.fuse import GatheredProjection
from glt_lightning.models import encoders, gnn, layers as hgt, layers as rgcn
from glt_lightning.models.encoders import EncoderShape, make_encoder
from tests.lightning.test_gnn import one_batch, with_loops
from tests.lightning.tiny import WIDTH, learnable_hetero

PNA = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "attenuation"], "deg": torch.tensor([0, 5, 3])}


def made(name: str, options: dict[str, Any], shape: EncoderShape, *, fused: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (encoders, gnn, hgt, rgcn):
            if not fused:
                patch.setattr(module, "fuse_layers", lambda layer: layer)
        return make_encoder(name, options, shape).double()


def compare(name: str, options: dict[str, Any], shape: EncoderShape, batch: Any, summed: list[str]) -> int:
    """Number of aggregations that made no row of an edge, when both models were found to be equal."""
    found, counted = [], 0
    for fused in (True, False):
        model = made(name, options, shape, fused=fused)
        before = len(summed)  # making a model tries its layers
        out = model(batch)
        counted = len(summed) - before if fused else counted
        found.append([out, *torch.autograd.grad(out.sin().sum(), list(model.parameters()), allow_unused=True)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    return counted


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one for each aggregation that made no row of an edge."""
    kinds: list[str] = []

    def counted(aggregate: Any) -> Any:
        return lambda rows, kind: (kinds.append(kind), aggregate(rows, kind))[1]

    for kind in (Gathered, GatheredProjection):
        monkeypatch.setattr(kind, "aggregate", counted(kind.aggregate))
    return kinds


@pytest.mark.parametrize("name", ["GraphSAGE", "GCN", "GCNConv", "GIN", "GAT", "GATv2Conv", "PNA"])
def test_one_node_type(make_data, name: str, summed: list[str]) -> None:
    batch = one_batch(make_data(num_neighbors=[3, 3]))
    assert (batch.edge_index[1].diff() >= 0).all()
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=8, num_layers=2, dropout=0.0)
    counted = compare(name, PNA if name == "PNA" else {}, shape, batch, summed)
    assert counted == (0 if name == "PNA" else 2)  # a layer each: edges are sorted, with loops, too


@pytest.mark.parametrize("name", ["GraphSAGE", "GIN", "GAT", "GATv2Conv", "RGCN", "HGT"])
def test_several_node_types(make_data, name: str, summed: list[str]) -> None:
    data = make_data(dataset=learnable_hetero(), undirected=True, sampling=SamplingOptions(seed=0))
    batch = one_batch(data)
    assert all((store.edge_index[1].diff() >= 0).all() for store in batch.edge_stores)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape = EncoderShape(in_channels=data.num_features, hidden_channels=8, num_layers=2, dropout=0.0, **described)
    assert compare(name, {}, shape, batch, summed)


@pytest.mark.parametrize(
    ("name", "options", "edge_format", "number"),
    [
        *(
            pytest.param(name, {}, "tensor", 1, marks=pytest.mark.slow)
            for name in ("GCN", "GCNConv", "GIN", "GATv2Conv")
        ),
        pytest.param("PNA", PNA, "tensor", 1, marks=pytest.mark.slow),
        pytest.param("RGCN", {"num_relations": 3}, "tensor", 2, marks=pytest.mark.slow),
        pytest.param("GAT", {"norm": "batch_norm", "jk": "cat"}, "tensor", 2, marks=pytest.mark.slow),
        ("GraphSAGE", {}, "tensor", 2),
        pytest.param("GAT", {}, "tensor", 2, marks=pytest.mark.slow),
        pytest.param("GraphSAGE", {}, "edge_index_csr", 2, marks=pytest.mark.slow),
        ("GAT", {}, "edge_index_csr", 2),
    ],
)
def test_compiles_without_a_break(
    make_data, name: str, options: dict[str, Any], edge_format: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second batch is traced with sizes as symbols. Those of plain edges have loops."""
    # torch describes what it traces to a handler of pytest, and fails to print an `EdgeIndex` without values
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    batches = some_batches(make_data(num_neighbors=[3, 3], batches={"edge_format": edge_format}, batch_size=30), number)
    if edge_format == "tensor":
        batches = [with_loops(batch) for batch in batches]
    for batch in batches:
        batch.edge_type = torch.arange(batch.num_edges) % 3
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=8, num_layers=2, dropout=0.0)
    assert compare_compiled(made(name, options, shape, fused=True), batches) == (0, number)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(
            pytest.param(name, 1, marks=pytest.mark.slow)
            for name in ("HGT", "GraphSAGE", "GIN", "GAT", "GATv2Conv", "RGCN")
        ),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("RGCN", "HGT")),
    ],
)
def test_several_node_types_compile_without_a_break(
    make_data, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    data = make_data(dataset=learnable_hetero(), undirected=True, sampling=SamplingOptions(seed=0), batch_size=10)
    batches = some_batches(data, number)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape = EncoderShape(in_channels=data.num_features, hidden_channels=8, num_layers=2, dropout=0.0, **described)
    assert compare_compiled(made(name, {}, shape, fused=True), batches) == (0, number)


def some_batches(data: Any, number: int) -> list[Any]:
    data.prepare_data()
    data.setup()
    batches = [batch.clone() for batch in data.train_dataloader()][:number]
    data.teardown()
    return batches


def compare_compiled(model: torch.nn.Module, batches: list[Any]) -> tuple[int, int]:
    """(breaks of the graph, graphs) of the compiled model, whose outputs and gradients are those of the model itself."""
    graphs: list[Any] = []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend=lambda graph, inputs: (graphs.append(graph), aot_eager(graph, inputs))[1])
    for batch in batches:
        found = []
        for run in (compiled, model):
            out = run(batch)
            found.append([out, *torch.autograd.grad(out.sin().sum(), list(model.parameters()))])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    return len(torch._dynamo.utils.counters["graph_break"]), len(graphs)
