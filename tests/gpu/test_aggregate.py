"""Aggregation on a GPU: the bits of the CPU, and PyG's layers on it."""

import importlib
from copy import deepcopy

import pytest
import torch
from torch_geometric.nn import GATConv, SAGEConv

from glt_lightning.loader import aggregate, fuse_layers
from tests.helpers import aggregate_cases as cases

pytestmark = pytest.mark.gpu

module = importlib.import_module("glt_lightning.loader.aggregation")  # whose name is that of its function, too


@pytest.mark.parametrize("seed", range(72))
def test_equals_the_cpu(kernels, seed):
    cases.check_aggregate(kernels, seed)


def test_edges_that_contradict_themselves(kernels):
    for seed in range(24):
        cases.check_refused(kernels, seed)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nan_is_an_extreme(kernels, dtype):
    cases.check_nan_and_no_values(kernels, dtype)


@pytest.mark.parametrize("make", [lambda: SAGEConv(24, 16), lambda: GATConv(24, 8, heads=2, add_self_loops=False)])
def test_layers_of_pyg(kernels, make, monkeypatch):
    """Forward and backward, near PyG's own; the kernels were called."""
    called, run = [], module._run
    monkeypatch.setattr(module, "_run", lambda edges, name, *rest: called.append(name) or run(edges, name, *rest))
    plain = make().to(kernels.device)
    fused = fuse_layers(deepcopy(plain))
    edges = torch.stack([torch.randint(50, (400,)), torch.randint(50, (400,)).sort().values]).to(kernels.device)
    x = torch.randn(50, 24, device=kernels.device)
    grads = []
    for layer in (plain, fused):
        at = x.clone().requires_grad_()
        out = layer(at, edges)
        out.square().sum().backward()
        grads.append((out.detach(), at.grad, *(p.grad for p in layer.parameters())))
    for got, want in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert {*called} >= {"aggregate", "grad"}


def test_compiles_without_a_break(kernels):
    x = torch.randn(5, 6, device=kernels.device)
    indptr, src = (torch.tensor(ids, device=kernels.device) for ids in ([0, 2, 2, 4], [0, 4, 1, 1]))
    run = torch.compile(lambda x: aggregate(x.relu(), indptr, src, kind="mean"), fullgraph=True, backend="aot_eager")
    assert torch.equal(run(x), aggregate(x.relu(), indptr, src, kind="mean"))
