"""Layer-wise computation of PyG's `BasicGNN` family: one layer at a time, over batches of one hop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt_lightning.base import OptionError
from glt_lightning.inference.protocol import DegreeSpec, HubPieces, LayerwiseLayers, RunningSoftmax, RunningSum, Sources
from glt_lightning.loader import (
    Form,
    LayerSize,
    aggregates_of,
    find_form,
    fuse_layers,
    plain,
    run_aggregated,
    run_layer,
    run_with_loops,
    with_self_loops,
)

_OVER_BATCH = ("DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "InstanceNorm", "MeanSubtractionNorm", "PairNorm")


_WEIGHT = "edge_weight"


def refuse_norms(module: nn.Module) -> None:
    """Raises `OptionError` for norms over all nodes of a batch: they have other values in each batch."""
    for each in module.modules():
        name = type(each).__name__
        over_batch = name in _OVER_BATCH or (name == "LayerNorm" and getattr(each, "mode", "node") == "graph")
        if over_batch or (name == "BatchNorm1d" and not getattr(each, "track_running_stats", True)):
            mode = " with mode graph" if name == "LayerNorm" else ""
            raise OptionError(
                f"layer-wise inference: {name}{mode} averages over all nodes of a batch, so outputs depend on which nodes "
                "are computed with it. Use trainer.predict, or a norm of each node alone: BatchNorm, LayerNorm with mode node."
            )


class ConvLayers:
    """A list of convolutions, of which each is computed on its own.

    gcn: True if GCN's normalisation adds self-loops, False if it does not, None for convolutions without it. It is computed
    here, from degrees in the whole graph: in a batch of one hop the degrees of neighbours are wrong.
    loops: self-loops are added before each convolution.  weight: the edge attribute that weighs edges; None: all weigh 1.
    """

    def __init__(
        self,
        convs: Sequence[Any],
        forms: Sequence[Form | None] | None,
        gcn: bool | None,
        loops: bool,
        weight: str | None,
    ) -> None:
        self._convs, self._forms, self._loops, self._gcn = list(convs), forms, loops, gcn
        self.num_layers = len(self._convs)
        improved = any(getattr(conv, "improved", False) for conv in self._convs)
        self.degrees = None if gcn is None else DegreeSpec(weight, gcn, 2.0 if improved else 1.0)

        sums = [aggregates_of(conv) if gcn is None and not loops else () for conv in self._convs]
        self.aggregates = [each[0] if each else None for each in sums]

    def combine(self, k: int, h: Tensor, aggregated: Tensor) -> Tensor:
        """Computes the outputs of `run` from the aggregate of the neighbours' rows."""
        return run_aggregated(self._convs[k], h, aggregated)

    def gathers(self, k: int) -> bool:
        """Tells whether `pieces` can compute convolution ``k``."""
        return gathers(self._convs[k])

    def pieces(
        self, k: int, own: Tensor, batch: Any, values: Tensor | None, after: Callable[[Tensor], Tensor]
    ) -> HubPieces:
        """Computes `run` for the only seed of a batch from some of its edges at a time.

        own: [1, D], the row of the seed.  values: [E] or None, factors of the edges.  after: applied to the output.
        """
        conv, at = self._convs[k], plain(batch.edge_index)[0]
        if self.degrees is not None:
            edges, values = gcn_edges(batch, self.degrees)
            at = edges[0]
        elif self._loops or (isinstance(conv, (GATConv, GATv2Conv)) and conv.add_self_loops):
            at = torch.cat([at[at != 0], at.new_zeros(1)])  # position 0 is the seed: one self-loop in place of its own
        return HubConv(gathering(conv, own), at, values, after)

    def run(self, k: int, h: Tensor, batch: Any, values: dict[str, Tensor]) -> Tensor:
        """Computes the outputs of convolution ``k`` for the seeds."""
        conv, seeds, edges = self._convs[k], int(batch.batch_size), batch.edge_index
        if self.degrees is not None:
            edges, weights = gcn_edges(batch, self.degrees)
            return conv(h, edges, weights.to(h.dtype))[:seeds]
        form = None if self._forms is None else self._forms[k]
        if form is None:
            given = list(values.values())
            edges, *given = with_self_loops(edges, len(h), *given) if self._loops else (edges, *given)
            return conv(h, edges, *given)[:seeds]
        size = LayerSize(len(h), seeds, edges.size(1))
        run = run_with_loops if self._loops else run_layer
        return run(conv, form, h, size, edges, *values.values())


def gcn_edges(batch: Any, degrees: DegreeSpec) -> tuple[Tensor, Tensor]:
    """Returns int64 [2, E], edges into the seeds sorted by seed, and float32 [E], GCN's factors from the degrees in the whole
    graph (``batch.in_degree``)."""
    (row, col), seeds = batch.edge_index, int(batch.batch_size)
    weights = torch.ones_like(row, dtype=torch.float32)
    fill = 1.0  # PyG ignores `improved` for edges without weights
    if degrees.weight is not None:
        weights, fill = batch[degrees.weight].flatten().float(), degrees.fill
    if degrees.loops:
        loop, nodes = row == col, torch.arange(seeds, device=row.device)
        of_loops = torch.full((seeds,), fill, device=row.device)
        if degrees.weight is not None:
            of_loops[col[loop]] = weights[loop]
        row, col = torch.cat([row[~loop], nodes]), torch.cat([col[~loop], nodes])
        weights = torch.cat([weights[~loop], of_loops])
        order = torch.argsort(col, stable=True)
        row, col, weights = row[order], col[order], weights[order]
    factors = batch.in_degree.float().pow(-0.5)
    factors = factors.masked_fill(torch.isinf(factors), 0.0)
    return torch.stack([row, col]), factors[row] * weights * factors[col]


class FamilyLayers:
    """A model of PyG's `BasicGNN` family. gnn: with weights as they are when this is made.  edge_names: attributes of edges."""

    def __init__(self, gnn: BasicGNN, edge_names: Sequence[str]) -> None:
        refuse_norms(gnn)
        self.given, self._gnn = gnn, fuse_layers(copy.deepcopy(gnn)).eval()
        self.asked = gnn, "forward"
        self.num_layers = gnn.num_layers
        self.keep = "all" if hasattr(gnn, "jk") else "last"
        weighted = gnn.supports_edge_weight and _WEIGHT in edge_names
        self._values = [_WEIGHT] * weighted + ["edge_attr"] * (gnn.supports_edge_attr and "edge_attr" in edge_names)
        gcn = _take_gcn(self._gnn.convs)
        forms = None if gcn is not None or len(self._values) > 1 else [_form(c, w) for c, w in self._widths()]
        self._convs = ConvLayers(self._gnn.convs, forms, gcn, loops=False, weight=_WEIGHT if weighted else None)
        self.degrees, self.aggregates = self._convs.degrees, self._convs.aggregates

    def embed(self, batch: Any) -> Tensor:
        x: Tensor = batch.x
        return x.to(next(self.given.parameters()).dtype)  # features may be stored as float16

    def _widths(self) -> Iterator[tuple[nn.Module, int]]:
        widths = [self._gnn.in_channels] + [self._gnn.hidden_channels] * (self.num_layers - 1)
        return zip(self._gnn.convs, widths, strict=True)

    def layer(self, k: int, h: Tensor, batch: Any) -> Tensor:
        values = {name: batch[name] for name in self._values}
        if self.degrees is not None:
            values = {}
        return after_conv(self._gnn, k, self._convs.run(k, h, batch, values))

    def combine(self, k: int, h: Tensor, aggregated: Tensor) -> Tensor:
        return after_conv(self._gnn, k, self._convs.combine(k, h, aggregated))

    def gathers(self, k: int, node_type: str) -> bool:
        return self._convs.gathers(k) and (self.degrees is not None or not self._values)

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        return self._convs.pieces(k, own, batch, None, partial(after_conv, self._gnn, k))

    def head(self, hs: Any) -> Tensor:
        return after_layers(self._gnn, hs)

    def answer(self, hs: Any) -> Tensor:
        return self.head(hs)

    def check_call(self, batch: Any, arguments: Sequence[Any]) -> None:
        x, own = arguments[0], self.embed(batch)
        if x.shape != own.shape or not torch.equal(x.to(own.dtype), own):
            raise OptionError(
                f"layer-wise inference: the module calls {type(self.given).__name__} with something else than batch.x, which is "
                "what all outputs were computed from. Give the module num_layers, embed(batch) and layer(k, h, batch)."
            )

    def reference(self, batch: Any) -> Tensor:
        values = {name: batch[name] for name in self._values}
        found: Tensor = self.given.eval()(self.embed(batch), batch.edge_index, **values)
        return found[: batch.batch_size]


def after_conv(gnn: Any, k: int, x: Tensor) -> Tensor:
    """Applies the activation and the norm that follow convolution ``k`` of a model of the family."""
    if k == gnn.num_layers - 1 and gnn.jk_mode is None:
        return x
    if gnn.act is not None and gnn.act_first:
        x = gnn.act(x)
    x = gnn.norms[k](x)
    if gnn.act is not None and not gnn.act_first:
        x = gnn.act(x)
    return x


def after_layers(gnn: Any, hs: Any) -> Tensor:
    """Applies jumping knowledge and the last linear layer of a model of the family to the outputs of its layers."""
    x = gnn.jk(hs) if hasattr(gnn, "jk") else hs
    found: Tensor = gnn.lin(x) if hasattr(gnn, "lin") else x
    return found


def _take_gcn(convs: Sequence[Any]) -> bool | None:
    """Turns GCN's normalisation off in copies of convolutions. Returns True if it adds self-loops, False if it does not, None if
    no convolution has it."""
    found = [conv for conv in convs if isinstance(conv, GCNConv) and conv.normalize]
    if not found:
        return None
    if len(found) < len(convs) or any(conv.flow != "source_to_target" for conv in found):
        raise OptionError(
            "layer-wise inference: GCN's normalisation is computed once for all layers; expected GCNConv with normalize and "
            "flow source_to_target in each of them. Give the module its own layer()."
        )
    for conv in found:
        conv.normalize = False
    return bool(found[0].add_self_loops)


def _form(conv: nn.Module, width: Any) -> Form | None:
    if not isinstance(width, int):
        return None
    try:
        return find_form(conv, width)
    except Exception:  # classes of PyG that need more of an edge say so in many ways
        return None


# Convolutions for a node with many edges: sums and softmaxes over pieces of them.


class HubConv:
    """A convolution over the edges into one node, some at a time.

    gathering: accumulates edges, see `gathering`.  at: int64 [E], positions of the sources of the edges.
    values: [E], a factor of each edge; None: the convolution reads none.  after: applied to the output.
    """

    def __init__(
        self, gathering: Any, at: Tensor, values: Tensor | None = None, after: Callable[[Tensor], Tensor] = lambda x: x
    ) -> None:
        self.sources = [Sources("", at)]
        self._gathering, self._values, self._after = gathering, values, after

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        self._gathering.add(rows, None if self._values is None else self._values[piece])

    def end(self) -> Tensor:
        return self._after(self._gathering.end())


class HubTypes:
    """Convolutions over the edges of several types into one node, some edges at a time.

    gathering: one for each of ``sources``.  end: combines what they have accumulated to the output [1, D].
    values: [E], weights of the edges, or None, for each of ``sources``.
    """

    def __init__(
        self,
        sources: Sequence[Sources],
        gathering: Sequence[Any],
        end: Callable[[], Tensor],
        values: Sequence[Tensor | None] = (),
    ) -> None:
        self.sources, self._gathering, self.end = sources, gathering, end
        self._values = list(values) or [None] * len(sources)

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        values = self._values[number]
        self._gathering[number].add(rows, None if values is None else values[piece])


def gathers(conv: Any) -> bool:
    """Tells whether `gathering` supports a convolution."""
    if getattr(conv, "flow", None) != "source_to_target" or getattr(conv, "edge_dim", None) is not None:
        return False
    if type(conv) in (GATConv, GATv2Conv):
        return True
    if hasattr(conv, "gathering"):
        return bool(getattr(conv, "gathers", True))
    return bool(aggregates_of(conv)) or (type(conv) is GCNConv and not conv.normalize)


def gathering(conv: Any, own: Tensor) -> Any:
    """Makes an accumulator for one node of a convolution: ``add`` takes rows of the sources of some of its edges, ``end`` returns
    the output [1, D]. own: [1, D], the row of the node.

    The caller adds self-loops to the edges or leaves them out; the accumulator does neither. A convolution of another class
    provides one by a method ``gathering(own)``.
    """
    if type(conv) is GATConv:
        return _GAT(conv, own)
    if type(conv) is GATv2Conv:
        return _GATv2(conv, own)
    if type(conv) is GCNConv:
        return _Weighted(conv, own)
    own_way = getattr(conv, "gathering", None)
    return _Aggregated(conv, own) if own_way is None else own_way(own)


class _Aggregated:
    """Accumulates the sum or the mean of GraphSAGE and GIN."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sum = RunningSum(own[0], mean=aggregates_of(conv) == ("mean",))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows)

    def end(self) -> Tensor:
        return run_aggregated(self._conv, self._own, self._sum.value()[None])


class _Weighted:
    """Accumulates the weighted sum of GCN; the values are its factors, 1 without values."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._sum = conv, RunningSum(own[0], mean=False)

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows if values is None else rows * values[:, None].to(rows.dtype))

    def end(self) -> Tensor:
        out: Tensor = self._conv.lin(self._sum.value()[None])
        return out if self._conv.bias is None else out + self._conv.bias


class _Attention:
    """The base of the accumulators of GAT and GATv2."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sum = RunningSoftmax(conv.heads, own.new_empty(conv.out_channels))

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self._conv.heads, self._conv.out_channels)

    def end(self) -> Tensor:
        conv, out = self._conv, self._sum.value()
        out = (out.flatten() if conv.concat else out.mean(0))[None]
        if conv.res is not None:
            out = out + conv.res(self._own)
        return out if conv.bias is None else out + conv.bias


class _GAT(_Attention):
    def __init__(self, conv: Any, own: Tensor) -> None:
        super().__init__(conv, own)
        self._source, target = (conv.lin, conv.lin) if conv.lin is not None else (conv.lin_src, conv.lin_dst)
        self._of_node = (self._projected(target, own) * conv.att_dst).sum(-1)

    def _projected(self, layer: Any, rows: Tensor) -> Tensor:
        return self._heads(functional.linear(rows, layer.weight))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        found = self._projected(self._source, rows)
        scores = (found * self._conv.att_src).sum(-1) + self._of_node
        self._sum.add(functional.leaky_relu(scores, self._conv.negative_slope), found)


class _GATv2(_Attention):
    def __init__(self, conv: Any, own: Tensor) -> None:
        super().__init__(conv, own)
        self._of_node = self._heads(conv.lin_r(own))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        found = self._heads(self._conv.lin_l(rows))
        scores = functional.leaky_relu(found + self._of_node, self._conv.negative_slope)
        self._sum.add((scores * self._conv.att).sum(-1), found)


# The layers of a module, however it offers them.


def find_layers(
    module: nn.Module, node_types: Sequence[str], edge_names: Mapping[Any, Sequence[str]], typed: bool
) -> LayerwiseLayers:
    """Finds the layers of a module, with its weights as they are now. edge_names: attributes of edges, by edge type.
    typed: batches are by type, also in a graph with one node type.

    Raises `OptionError` for a module that offers none, or whose layers cannot be computed one after the other.
    """
    names = [] if typed else list(next(iter(edge_names.values()), ()))
    return LayerwiseLayers(_offered(module, names, typed), node_types, typed)


def _offered(module: Any, edge_names: Sequence[str], typed: bool) -> Any:
    if callable(getattr(module, "layer", None)) and isinstance(getattr(module, "num_layers", None), int):
        refuse_norms(module)
        return module
    if callable(getattr(module, "layerwise_layers", None)):
        return module.layerwise_layers(edge_names)
    for given in (module, getattr(module, "gnn", None), getattr(module, "model", None)):
        if isinstance(given, BasicGNN):
            if typed:
                raise OptionError(
                    f"layer-wise inference: {type(given).__name__} is for graphs without names of node and edge types; this one "
                    "has them. Give the module num_layers, embed(batch), layer(k, h, batch) and head(hs, node_type)."
                )
            return FamilyLayers(given, edge_names)
    raise OptionError(
        f"layer-wise inference: {type(module).__name__} offers no layers. Expected num_layers and layer(k, h, batch) of its own, "
        "a model of PyG's BasicGNN family (such as torch_geometric.nn.GraphSAGE) as .gnn or .model, or one of the ready modules "
        "GraphSAGE, NodePredictor, EdgePredictor and LinkPredictor."
    )
