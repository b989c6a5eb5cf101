"""HGT and RGCN give what PyG's layers give, outputs and gradients, from the same parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import RGCNConv

from glt_lightning.base import OptionError
from glt_lightning.loader import fuse_layers
from glt_lightning.models.encoders import EncoderShape, make_encoder
from glt_lightning.models.layers import EdgeKindConv, HGTLayer, RGCNLayer, merge_edges

WIDTH = 12
# Two edge types lead to "a", one of them from itself; "c" is a source alone, and nothing sends to "b" here.
EDGE_TYPES = [("b", "to", "a"), ("a", "like", "a"), ("a", "of", "b"), ("c", "in", "a"), ("b", "never", "b")]
SOURCES, DESTINATIONS = {"a": 9, "b": 7, "c": 4}, {"a": 5, "b": 3, "c": 0}
EDGES = {EDGE_TYPES[0]: 20, EDGE_TYPES[1]: 15, EDGE_TYPES[2]: 6, EDGE_TYPES[3]: 8, EDGE_TYPES[4]: 0}


def sorted_edges(sources: int, destinations: int, number: int, made: torch.Generator) -> Tensor:
    col = torch.randint(max(1, destinations - 1), (number,), generator=made).sort().values  # the last one has none
    return torch.stack([torch.randint(sources, (number,), generator=made), col])


def a_batch() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    made = torch.Generator().manual_seed(0)
    x = {t: torch.randn(n, WIDTH, dtype=torch.float64, generator=made).requires_grad_() for t, n in SOURCES.items()}
    edges = {e: sorted_edges(SOURCES[e[0]], DESTINATIONS[e[2]], EDGES[e], made) for e in EDGE_TYPES}
    return x, edges


def check_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], given: Sequence[Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    found = []
    for out in (ours, theirs):
        total = torch.stack([rows.sin().sum() for rows in out.values()]).sum()
        found.append([*out.values(), *torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("heads", "ascending"), [(1, True), (3, True), (3, False)])
def test_hgt(heads: int, ascending: bool) -> None:
    torch.manual_seed(heads)
    layer = HGTLayer(WIDTH, {"heads": heads}, EDGE_TYPES).double()
    for parameter in layer.parameters():  # PyG begins with ones and zeros, which hide a forgotten factor
        nn.init.normal_(parameter)
    x, edges = a_batch()
    if not ascending:  # as transforms may leave them
        edges = {e: part.flip(1) for e, part in edges.items()}
    theirs = {t: rows[: DESTINATIONS[t]] for t, rows in layer.conv(x, edges).items()}
    check_same(layer(x, edges, DESTINATIONS), theirs, [*x.values(), *layer.parameters()])


@pytest.mark.parametrize("kind", [HGTLayer, RGCNLayer])
def test_autocast(kind: Any) -> None:
    torch.manual_seed(0)
    layer, (x, edges) = kind(WIDTH, {}, EDGE_TYPES), a_batch()
    rows = {t: each.float() for t, each in x.items()}
    expected = layer(rows, edges, DESTINATIONS)
    with torch.autocast("cpu", torch.bfloat16):
        for t, out in layer(rows, edges, DESTINATIONS).items():
            torch.testing.assert_close(out.float(), expected[t], rtol=0.05, atol=0.05)


def test_merged_edges_are_sorted_and_keep_the_order_of_their_parts() -> None:
    parts = [torch.tensor([[0, 1, 2], [0, 2, 2]]), torch.tensor([[0, 0], [1, 2]]), torch.empty(2, 0, dtype=torch.long)]
    assert merge_edges(parts, [3, 1, 4]).tolist() == [[0, 3, 1, 2, 3], [0, 1, 2, 2, 2]]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_bases": 2},
    {"num_blocks": 3},
    {"aggr": "max", "root_weight": False, "bias": False},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_rgcn_over_edge_types(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = RGCNLayer(WIDTH, options, EDGE_TYPES).double()
    stock = RGCNConv(WIDTH, WIDTH, len(EDGE_TYPES), **options).double()
    stock.load_state_dict(layer.conv.state_dict())
    stock.weight, stock.comp, stock.root, stock.bias = (  # so that gradients are asked for once
        getattr(layer.conv, name) for name in ("weight", "comp", "root", "bias")
    )
    x, edges = a_batch()
    reached = {t: n for t, n in DESTINATIONS.items() if n}
    starts = [dict(zip(n, accumulate(n.values(), initial=0), strict=False)) for n in (SOURCES, reached)]
    joined = [part + torch.tensor([[starts[0][e[0]]], [starts[1][e[2]]]]) for e, part in edges.items()]
    kinds = torch.repeat_interleave(torch.arange(len(edges)), torch.tensor([part.size(1) for part in joined]))
    rows = torch.cat(list(x.values())), torch.cat([x[t][:n] for t, n in reached.items()])
    theirs = stock(rows, torch.cat(joined, dim=1), kinds).split(list(reached.values()))
    ours = layer(x, edges, DESTINATIONS)
    check_same(
        {t: ours[t] for t in reached}, dict(zip(reached, theirs, strict=True)), [*x.values(), *stock.parameters()]
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_rgcn_over_kinds_of_edges(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours, stock = (
        fuse_layers(EdgeKindConv(WIDTH, WIDTH, 4, **options)).double(),
        RGCNConv(WIDTH, WIDTH, 4, **options).double(),
    )
    stock.load_state_dict(ours.state_dict())
    made = torch.Generator().manual_seed(0)
    x = torch.randn(30, WIDTH, dtype=torch.float64, generator=made).requires_grad_()
    edge_index, kinds = sorted_edges(30, 20, 100, made), torch.randint(3, (100,), generator=made)  # none of the last
    found = []
    for conv in (ours, stock):
        out = conv((x, x[:20]), edge_index, kinds)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *conv.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [-1, 4])
def test_an_unknown_kind_of_edge_is_an_error(kind: int) -> None:
    x, edge_index = torch.randn(3, WIDTH), torch.tensor([[1, 2], [0, 0]])
    with pytest.raises(RuntimeError, match=r"RGCN: an edge_type is outside of 0 to 3. Correct num_relations \(4\)"):
        EdgeKindConv(WIDTH, WIDTH, 4)((x, x[:1]), edge_index, torch.tensor([0, kind]))


def test_wrong_options_are_said() -> None:
    described = {"metadata": (["a", "b"], [("b", "to", "a")]), "num_nodes": {"a": 3, "b": 3}, "target_type": "a"}
    shape = EncoderShape(in_channels={"a": 4, "b": 4}, hidden_channels=8, num_layers=1, dropout=0.0, **described)
    for name, options in (("HGT", {"heads": 3}), ("RGCN", {"num_blocks": 3})):
        with pytest.raises(OptionError, match=f"encoder: {name} with encoder_kwargs"):
            make_encoder(name, options, shape)
