"""Layers over several edge types, and convolutions of PyG by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HGTConv, MessagePassing, RGCNConv, conv as pyg_convs

from glt_lightning.errors import OptionError
from glt_lightning.loader.edge_index import plain
from glt_lightning.nn import fuse_layers
from glt_lightning.types import EdgeType, NodeType


class HGTLayer(nn.Module):
    """PyG's `HGTConv` over some edge types: attention with matrices for each node type and edge type."""

    activate = False  # the convolution has its own

    def __init__(self, width: int, options: Mapping[str, Any], edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.edge_types = edge_types
        destinations = {dst for _, _, dst in edge_types}
        self.types = sorted(destinations | {src for src, _, _ in edge_types})
        self.conv = made("HGT", HGTConv, width, width, (self.types, edge_types), **options)
        for node_type in set(self.types) - destinations:  # sources alone have no output, and DDP wants every gradient
            del self.conv.out_lin.lins[node_type], self.conv.skip[node_type]

    def forward(
        self, x: dict[NodeType, Tensor], edges: dict[EdgeType, Tensor], destinations: dict[NodeType, int]
    ) -> dict[NodeType, Tensor]:
        out = self.conv({t: x[t] for t in self.types}, {e: plain(edges[e]) for e in self.edge_types})
        return {t: rows[: destinations[t]] for t, rows in out.items()}


class RGCNLayer(nn.Module):
    """PyG's `RGCNConv` over some edge types: a matrix for each, and one for a node itself."""

    activate = True

    def __init__(self, width: int, options: Mapping[str, Any], edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.edge_types = edge_types
        self.destinations = sorted({dst for _, _, dst in edge_types})
        self.types = sorted({*self.destinations, *(src for src, _, _ in edge_types)})
        self.conv = fuse_layers(made("RGCN", RGCNConv, width, width, len(edge_types), **options))

    def forward(
        self, x: dict[NodeType, Tensor], edges: dict[EdgeType, Tensor], destinations: dict[NodeType, int]
    ) -> dict[NodeType, Tensor]:
        sources, targets = {t: len(x[t]) for t in self.types}, {t: destinations[t] for t in self.destinations}
        first_source, first_target = _starts(sources), _starts(targets)
        found, kinds = [], []
        for r, (src, _, dst) in enumerate(self.edge_types):
            part = plain(edges[self.edge_types[r]])
            found.append(torch.stack([part[0] + first_source[src], part[1] + first_target[dst]]))
            kinds.append(torch.full((part.size(1),), r, device=part.device))
        rows = torch.cat([x[t] for t in self.types]), torch.cat([x[t][:n] for t, n in targets.items()])
        out = self.conv(rows, torch.cat(found, dim=1), torch.cat(kinds))
        return dict(zip(targets, out.split(list(targets.values())), strict=True))


def _starts(counts: Mapping[NodeType, int]) -> dict[NodeType, int]:
    """Where each type's rows begin when all are written one after another."""
    return dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))


def conv_names() -> list[str]:
    """The convolutions of PyG that can be made by name."""
    return [name for name in pyg_convs.__all__ if name.endswith("Conv")]


def make_conv(name: str, width: int, options: Mapping[str, Any], *, two_types: bool) -> nn.Module:
    """A convolution of PyG, [N, width] -> [N, width]; with ``two_types`` from nodes [N_src, width] to nodes [N_dst, width].

    Raises `OptionError` for one that needs more than x and edge_index, which is detected by running it once.
    """
    kind = getattr(pyg_convs, name)
    known = inspect.signature(kind.__init__).parameters
    options = dict(options)
    if "heads" in known and "concat" in known:
        options.setdefault("concat", False)  # heads are averaged, so that the width stays
    if two_types and "add_self_loops" in known:
        options.setdefault("add_self_loops", False)
    reason = ""
    for width_in in ((width, width), width) if two_types else (width,):
        try:
            conv = kind(width_in, width, **options)
            _try(conv, width, two_types)
            return conv
        except Exception as error:  # PyG does not document what its classes raise
            reason = (
                reason or f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            )
    what = "edges between two node types" if two_types else "x and edge_index"
    raise OptionError(
        f"encoder: {name} cannot be used here: with {what} alone, width {width} and encoder_kwargs {dict(options)} it raises "
        f"{reason[:200]}. Choose another encoder, or correct encoder_kwargs."
    )


def _try(conv: nn.Module, width: int, two_types: bool) -> None:
    edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
    x: Any = (torch.zeros(3, width), torch.zeros(2, width)) if two_types else torch.zeros(3, width)
    with torch.no_grad():
        out = conv.eval()(x, edge_index)
    conv.train()
    if not isinstance(out, Tensor) or out.shape != (2 if two_types else 3, width):
        raise ValueError(f"its output is {list(out.shape) if isinstance(out, Tensor) else type(out).__name__}")


def made(name: str, kind: type[MessagePassing], *arguments: Any, **options: Any) -> Any:
    """A convolution of PyG. Raises `OptionError` for arguments that it refuses."""
    try:
        return kind(*arguments, **options)
    except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
        raise OptionError(f"encoder: {name} with encoder_kwargs {options}: {error or type(error).__name__}.") from None
