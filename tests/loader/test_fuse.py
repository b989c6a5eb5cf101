"""PyG's layers give the same with and without the kernels, and really use them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import EdgeIndex
from torch_geometric.nn import (
    EdgeConv,
    FiLMConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GeneralConv,
    GINConv,
    GraphConv,
    MessagePassing,
    PNAConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

from glt_lightning.loader import aggregation as gathered, fuse_layers
from glt_lightning.loader.fuse import Projection, sum_of_products

SOURCES, DESTINATIONS, WIDTH = 30, 20, 8
NO_LOOPS = {"add_self_loops": False}


def edges(count: int = 120) -> Tensor:
    made = torch.Generator().manual_seed(0)
    col = torch.randint(DESTINATIONS, (count,), generator=made).sort().values
    return torch.stack([torch.randint(SOURCES, (count,), generator=made), col])


def pna() -> PNAConv:
    return PNAConv(
        WIDTH, WIDTH, ["mean", "min", "max", "std"], ["identity", "amplification"], torch.tensor([0, 3, 9, 2])
    )


# How often a layer of each kind asks for the rows of its edges: 0 where none are made.
LAYERS: dict[str, tuple[Callable[[], MessagePassing], int]] = {
    "SAGE": (lambda: SAGEConv(WIDTH, WIDTH), 0),
    "SAGE max": (lambda: SAGEConv(WIDTH, WIDTH, aggr="max"), 0),
    "SAGE several": (lambda: SAGEConv(WIDTH, WIDTH, aggr=["mean", "std"]), 1),
    "SAGE lstm": (lambda: SAGEConv(WIDTH, WIDTH, aggr="lstm"), 1),
    "SAGE median": (lambda: SAGEConv(WIDTH, WIDTH, aggr="median"), 1),
    "SAGE softmax": (lambda: SAGEConv(WIDTH, WIDTH, aggr="softmax"), 1),
    "GIN": (lambda: GINConv(nn.Linear(WIDTH, WIDTH)), 0),
    "GraphConv": (lambda: GraphConv(WIDTH, WIDTH), 0),
    "GCN": (lambda: GCNConv(WIDTH, WIDTH, normalize=False), 0),
    "GAT": (lambda: GATConv(WIDTH, 4, heads=2, dropout=0.0, **NO_LOOPS), 0),
    "GAT one head": (lambda: GATConv(WIDTH, 6, residual=True, **NO_LOOPS), 0),
    "GAT from two sets": (lambda: GATConv((WIDTH, WIDTH), 16, heads=2, **NO_LOOPS), 0),
    "GAT max": (lambda: GATConv(WIDTH, 4, aggr="max", **NO_LOOPS), 1),
    "GATv2": (lambda: GATv2Conv(WIDTH, 4, heads=2, **NO_LOOPS), 0),
    "GAT with loops": (lambda: GATConv(WIDTH, 4, heads=2), 0),  # unsorted: left to PyG
    "PNA": (pna, 1),
    "Transformer": (lambda: TransformerConv(WIDTH, 4, heads=2), 0),
    "Transformer of means": (lambda: TransformerConv(WIDTH, WIDTH, heads=2, concat=False, beta=True), 0),
    "EdgeConv": (lambda: EdgeConv(nn.Linear(2 * WIDTH, WIDTH)), 1),
    "FiLM": (lambda: FiLMConv(WIDTH, WIDTH), 1),
    "General": (lambda: GeneralConv(WIDTH, WIDTH), 1),
}
FOR_ONE_SET = ("GCN", "PNA")


@pytest.mark.parametrize(
    ("name", "pair"), [(n, p) for n in LAYERS for p in (False, True) if not (p and n in FOR_ONE_SET)]
)
def test_layers_give_the_same(name: str, pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[None] = []
    rows = gathered.Gathered.rows
    monkeypatch.setattr(gathered.Gathered, "rows", lambda self: (made.append(None), rows(self))[1])
    make, reads = LAYERS[name]
    torch.manual_seed(0)
    plain = make().double()
    fused = fuse_layers(fuse_layers(deepcopy(plain)))
    assert list(fused.state_dict()) == list(plain.state_dict())
    found = []
    for layer in (plain, fused):
        x = torch.linspace(-1, 1, SOURCES * WIDTH, dtype=torch.float64).sin().view(SOURCES, WIDTH).requires_grad_()
        out = layer((x, x[:DESTINATIONS]) if pair else x, edges())
        found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()], allow_unused=True)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert bool(made) == bool(reads)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("width", [1, 128, 192, 193, 767])
def test_the_two_products_of_sage_are_summed(width: int, training: bool) -> None:
    layer = fuse_layers(SAGEConv(width, 128))
    x = torch.randn(2000, width, requires_grad=training)
    own, neighbours = x[:1500], x[200:1700]
    expected = layer.lin_l(neighbours) + layer.lin_r(own)
    out = sum_of_products(layer.lin_l, neighbours, layer.lin_r, own)
    assert torch.equal(out, expected) if width > 192 else torch.allclose(out, expected, rtol=1e-5, atol=1e-5)
    if training:
        weights = torch.randn_like(out)
        found, wanted = (
            torch.autograd.grad((rows * weights).sum(), [x, *layer.parameters()]) for rows in (out, expected)
        )
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("hooked", ["lin_l", "lin_r"])
def test_a_hook_sees_the_product_of_its_own_layer_alone(hooked: str) -> None:
    layer, x = fuse_layers(SAGEConv(WIDTH, WIDTH)), torch.randn(SOURCES, WIDTH)
    without = layer(x, edges())
    seen: list[Tensor] = []
    getattr(layer, hooked).register_forward_hook(lambda module, inputs, out: seen.append(out))
    assert torch.allclose(layer(x, edges()), without, atol=1e-6)
    (found,) = seen
    other = layer.lin_r(x) if hooked == "lin_l" else without - found
    assert torch.allclose(found + other, without, atol=1e-6)
    if hooked == "lin_r":
        assert torch.equal(found, functional.linear(x, layer.lin_r.weight))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sage_of_other_numbers(dtype: torch.dtype) -> None:
    layer = SAGEConv(WIDTH, WIDTH).to(dtype)
    x = torch.randn(SOURCES, WIDTH, dtype=dtype)
    expected = layer.lin_l(fuse_layers(deepcopy(layer)).propagate(edges(), x=(x, x))) + layer.lin_r(x)
    assert torch.equal(fuse_layers(layer)(x, edges()), expected)


def test_sage_under_autocast() -> None:
    layer, x = SAGEConv(WIDTH, WIDTH), torch.randn(SOURCES, WIDTH)
    expected = layer.lin_l(fuse_layers(deepcopy(layer)).propagate(edges(), x=(x, x))) + layer.lin_r(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = fuse_layers(layer)(x, edges())
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out.float(), expected, atol=0.05)


def test_edges_of_several_types() -> None:
    """RGCN cuts the edges into those of each type, which are sorted where all are not."""
    plain = RGCNConv(WIDTH, WIDTH, 2).double()
    x = torch.randn(SOURCES, WIDTH, dtype=torch.float64)
    both, kinds = torch.cat([edges(), edges(40)], dim=1), torch.tensor([0] * 120 + [1] * 40)
    fused = fuse_layers(deepcopy(plain))
    torch.testing.assert_close(fused(x, both, kinds), plain(x, both, kinds))


@pytest.mark.parametrize("named", [False, True])
def test_what_reads_no_row_makes_none(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown by a rows method that refuses; an unsorted edge_index is left to PyG, an EdgeIndex is believed."""

    def refuse(self: gathered.Gathered) -> Tensor:
        raise AssertionError("rows of edges were made")

    monkeypatch.setattr(gathered.Gathered, "rows", refuse)
    layer, x = fuse_layers(SAGEConv(WIDTH, WIDTH)), torch.randn(SOURCES, WIDTH)
    given = EdgeIndex(edges(), sort_order="col", sparse_size=(SOURCES, SOURCES)) if named else edges()
    shuffled = edges()[:, torch.randperm(120)]
    torch.testing.assert_close(layer(x, given), layer(x, shuffled))


def test_gat_projects_the_rows_of_destinations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown by projections that refuse to be made."""
    plain = GATConv(WIDTH, 16, heads=2, **NO_LOOPS)
    x = torch.randn(SOURCES, WIDTH)
    expected = plain((x, x[:DESTINATIONS]), edges())

    def refuse(self: Projection) -> Tensor:
        raise AssertionError("the rows of all sources were projected")

    monkeypatch.setattr(Projection, "rows", refuse)
    fused = fuse_layers(deepcopy(plain))
    torch.testing.assert_close(fused((x, x[:DESTINATIONS]), edges()), expected)
    with torch.autocast("cpu", torch.bfloat16):
        half = fused((x, x[:DESTINATIONS]), edges())
    torch.testing.assert_close(half.float(), expected, rtol=0.05, atol=0.05)


def test_a_projection_does_for_a_tensor() -> None:
    layer, x = GATConv(WIDTH, 4, heads=2), torch.randn(SOURCES, WIDTH)
    expected, rows = layer.lin(x), fuse_layers(layer).lin(x)
    assert isinstance(rows, Projection)
    assert rows.size() == expected.size()
    heads = rows.view(-1, 2, 4)
    for ours, theirs in (
        (rows + 1, expected + 1),
        (rows[:3], expected[:3]),
        (torch.cat([rows, rows]), torch.cat([expected, expected])),
        (rows.relu(), expected.relu()),
        (rows.view(-1, 4), expected.view(-1, 4)),
        (heads * 2, expected.view(-1, 2, 4) * 2),
        ((heads * layer.att_src).sum(1), (expected.view(-1, 2, 4) * layer.att_src).sum(1)),
        ((layer.att_src * heads).sum(dim=-1), (expected.view(-1, 2, 4) * layer.att_src).sum(-1)),
        ((heads * layer.att_src).exp(), (expected.view(-1, 2, 4) * layer.att_src).exp()),
    ):
        torch.testing.assert_close(ours, theirs)


class Cubes(MessagePassing):
    """Does to its rows what the lazy ones know nothing of."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        shifted = torch.cat([x_j[:, 1:], x_j[:, :1]], dim=1) - x_j / 2 + 2.0 * x_j
        return (shifted + x_j**3 - (-x_j) * x_j).clamp(min=-x_j.abs().max())


def test_a_layer_of_the_user() -> None:
    x = torch.randn(SOURCES, WIDTH)
    assert torch.equal(Cubes("mean")(x, edges()).isnan(), torch.zeros(SOURCES, WIDTH).bool())
    torch.testing.assert_close(fuse_layers(Cubes("mean"))(x, edges()), Cubes("mean")(x, edges()))


def test_edges_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    x, cut, stock = torch.randn(SOURCES, WIDTH), edges()[:, ::2], SAGEConv(WIDTH, WIDTH)
    torch.testing.assert_close(
        fuse_layers(deepcopy(stock))((x, x[:DESTINATIONS]), cut), stock((x, x[:DESTINATIONS]), cut)
    )


def test_a_destination_that_has_no_row_is_an_error_and_not_written_past_the_end() -> None:
    x, layer = torch.randn(SOURCES, WIDTH), fuse_layers(SAGEConv(WIDTH, WIDTH))
    with pytest.raises(ValueError, match="invalid 'dim_size'"):
        layer((x, x[: DESTINATIONS - 5]), edges())
