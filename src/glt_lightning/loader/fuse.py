"""PyG's layers on the kernels of `aggregate`, through the extension points that PyG has for it.

A hook before `propagate` marks the rows of the sources. Where the layer lifts them to the edges, it gets a `Gathered` instead:
the rows of the edges, not yet read, which go through ``message`` as ``x_j``. A message mostly leaves them as they are or gives
each edge a factor; those are noted, anything else makes the rows. The layer's aggregation then reads and sums in one go.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, Linear, MessagePassing, SAGEConv, aggr

from glt_lightning import kernels
from glt_lightning.kernels import relu_dropout_grad
from glt_lightning.loader.aggregation import (
    Deferred,
    Ends,
    Gathered,
    Repeated,
    aggregate,
    has_kernels,
    made,
    value_name,
)
from glt_lightning.loader.edge_index import BatchEdges
from glt_lightning.loader.ops import Formula, is_plain, make_op

Module = TypeVar("Module", bound=nn.Module)


class SortedReduction(aggr.Aggregation):  # type: ignore[misc]
    """The reduction of PyG's aggregations by the kernels, where the edges are sorted: PyG then gives their pointers."""

    def reduce(
        self,
        x: Any,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        reduce: str = "sum",
    ) -> Tensor:
        if dim % x.dim() == 0 and reduce in ("sum", "mean", "max", "min"):
            if isinstance(x, Gathered) and (reduce in ("sum", "mean") or x.weights is None):
                return x.aggregate(reduce)
            x = x.rows() if isinstance(x, Gathered) else x
            if ptr is not None and ptr.dim() == 1 and has_kernels(x):
                return aggregate(x, ptr, kind=reduce)
        reduced: Tensor = super().reduce(x, index, ptr, dim_size, dim, reduce)
        return reduced


class SortedSum(SortedReduction, aggr.SumAggregation):  # type: ignore[misc]
    pass


class SortedMean(SortedReduction, aggr.MeanAggregation):  # type: ignore[misc]
    pass


class SortedMax(SortedReduction, aggr.MaxAggregation):  # type: ignore[misc]
    pass


class SortedMin(SortedReduction, aggr.MinAggregation):  # type: ignore[misc]
    pass


class SortedVar(SortedReduction, aggr.VarAggregation):  # type: ignore[misc]
    pass


_SORTED = {kind.__bases__[1]: kind for kind in (SortedSum, SortedMean, SortedMax, SortedMin, SortedVar)}


def fuse_layers(module: Module) -> Module:
    """Lets the layers of PyG in a module aggregate over sorted edges without making a row for each edge.

    Applies to calls on the CPU, or on a GPU for which the CUDA kernels were built, with an ``edge_index`` that is ascending in
    its destinations, as a batch's is; any other call takes PyG's own path. Results differ by rounding alone; parameters and
    their names stay. PyG skips its hooks under `torch.compile`: there the rows of edges are made.

    Returns the module, which is changed in place.

    Example:
        >>> import torch
        >>> from torch_geometric.nn import SAGEConv
        >>> from glt_lightning.loader import fuse_layers
        >>> layer = fuse_layers(SAGEConv(4, 8))
        >>> layer(torch.randn(3, 4), torch.tensor([[1, 2, 0], [0, 0, 1]])).shape
        torch.Size([3, 8])
    """
    for part in module.modules():
        if type(part) in _SORTED:
            part.__class__ = _SORTED[type(part)]  # keeps what PyG and the user have hung on it
        if isinstance(part, MessagePassing) and not is_fused(part):
            part.register_propagate_forward_pre_hook(_before_propagate)
            part.SUPPORTS_FUSED_EDGE_INDEX = False  # PyG's path for `EdgeIndex`, by torch.sparse
        if type(part) is SAGEConv:
            part.__class__ = SummedSAGE
        if type(part) is GATConv:
            for child in (part.lin, part.lin_src, part.lin_dst):
                if type(child) is Linear:
                    child.__class__ = ProjectedLinear
    return module


def is_fused(layer: MessagePassing) -> bool:
    """Whether `fuse_layers` has been here."""
    return _before_propagate in layer._propagate_forward_pre_hooks.values()


def sorted_edges(edge_index: Tensor, sources: int, destinations: int) -> EdgeIndex | None:
    """Edges [2, E] as PyG's `EdgeIndex` if they are ascending in their destinations, of which there are as many, else None: PyG
    counts them into an array of that size and does not look whether they fit.

    Looking through a million edges takes 1 ms, once a layer; an `EdgeIndex` is believed.
    """
    if isinstance(edge_index, EdgeIndex):
        if not edge_index.is_sorted_by_col:
            return None
        if None not in edge_index.sparse_size():
            return edge_index
        edge_index = edge_index.as_tensor()
    col = edge_index[1]
    if col.numel():
        fits = (col[0] >= 0) & (col[-1] < destinations)
        if not bool((col[1:] >= col[:-1]).all() & fits):
            return None
    return BatchEdges(edge_index.contiguous(), sparse_size=(sources, destinations), sort_order="col")


def _before_propagate(layer: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Marks the rows of both ends in a call of `propagate`; None leaves the call as it is."""
    edge_index, size, kwargs = arguments
    lifted = [n for n in layer.inspector.get_param_names("message") if n[-2:] in ("_i", "_j") and n[:-2] in kwargs]
    pairs = {n[:-2]: pair for n in lifted if n.endswith("_j") and (pair := _pair(kwargs[n[:-2]]))}
    edges = _edges_to_fuse(layer, edge_index, size, kwargs, lifted, pairs)
    if edges is None:
        return edge_index, size, {name: made(value) for name, value in kwargs.items()}
    (indptr, src), _ = edges.get_csc()
    marked: dict[str, Any] = {}
    for name, (x, other) in pairs.items():
        both = f"{name}_i" in lifted
        if not isinstance(kwargs[name], tuple | list):  # PyG takes both ends from it, where the layer lifts both
            other = made(x)[: edges.num_cols] if both else None
        if isinstance(other, Projection):
            other = other.rows() if both else other.x  # of which PyG reads the number of rows alone
        if isinstance(x, Projection) and x.is_narrow():
            gathered: Gathered = GatheredProjection(x, indptr, src)
        else:
            gathered = Gathered(made(x), indptr, src)
        marked[name] = (Ends.of(gathered), other)
    for name in (n[:-2] for n in lifted if n.endswith("_i")):
        if name not in pairs and isinstance(kwargs[name], Tensor) and has_kernels(kwargs[name]):
            marked[name] = Ends.of(Repeated(kwargs[name], edges.as_tensor()[1]))
    return edges, size, {**kwargs, **marked}


def _edges_to_fuse(
    layer: Any, edge_index: Any, size: Any, kwargs: dict[str, Any], lifted: list[str], pairs: dict[str, Any]
) -> EdgeIndex | None:
    """The edges of a call of `propagate` that the kernels can aggregate over, else None."""
    if not pairs or layer.flow != "source_to_target" or layer.explain or layer.decomposed_layers > 1:
        return None
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided or edge_index.dtype != torch.int64:
        return None
    for x, _ in pairs.values():
        if not has_kernels(x.x if isinstance(x, Projection) else x) or layer.node_dim % x.dim():
            return None
    rows = len(next(iter(pairs.values()))[0])
    return sorted_edges(edge_index, rows, _destinations(size, lifted, kwargs, rows))


def _destinations(size: Any, lifted: list[str], kwargs: dict[str, Any], sources: int) -> int:
    """Number of destinations: as `propagate` is told, else of the rows that are lifted from them, else that of the sources."""
    if size is not None and size[1] is not None:
        return int(size[1])
    for name in lifted:
        value = kwargs[name[:-2]]
        if (pair := _pair(value)) and pair[1] is not None and (name.endswith("_i") or isinstance(value, tuple | list)):
            return len(pair[1])
    return sources


def _pair(value: Any) -> tuple[Any, Any] | None:
    """Rows of sources and of destinations, of what was given to `propagate`."""
    if isinstance(value, Tensor | Projection):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], Tensor | Projection):
        return value[0], value[1]
    return None


# Two products that are summed, as those of a node's neighbours and of its own row.


class SummedSAGE(SAGEConv):  # type: ignore[misc]  # PyG has no types
    """PyG's `SAGEConv`, whose products are summed by `sum_of_products`."""

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        sources, own = (x, x) if isinstance(x, Tensor) else x
        if self.project or not self.root_weight or own is None:
            other: Tensor = super().forward(x, edge_index, size)
            return other
        out = sum_of_products(self.lin_l, self.propagate(edge_index, x=(sources, own), size=size), self.lin_r, own)
        return functional.normalize(out, p=2.0, dim=-1) if self.normalize else out


# Columns; MKL sums the products of more in parts, and would round another way than a sum of two products.
_IN_ONE_SUM = 192


def sum_of_products(first: Any, x: Tensor, second: Any, y: Tensor) -> Tensor:
    """``first(x) + second(y)`` of two linear layers. On the CPU the second product is added to the first one where that lies: a
    sum of its own takes 5 % of a step of GraphSAGE(128)."""
    out: Tensor = first(x)
    if not (_is_linear(first) and _is_linear(second) and is_plain((out, y), ("cpu",)) and out.dim() == 2):
        return out + second(y)
    floats = out.dtype == y.dtype == second.weight.dtype == torch.float32
    if floats and second.bias is None and y.size(1) <= _IN_ONE_SUM:
        return out.addmm_(y, second.weight.t())
    other: Tensor = second(y)
    return out.add_(other) if out.dtype == other.dtype else out + other


def _is_linear(layer: Any) -> bool:
    """Whether it is a linear layer of PyG, and no hook sees its outputs."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return type(layer) is Linear and not any(hooks)


# A ReLU and dropout in one pass, as a torch op on the CPU.


def relu_dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """``dropout(x.relu(), p, training)``.

    On the CPU, for float32, float64 and bfloat16, one pass makes it, and its result alone is kept for the gradient. What is
    dropped then follows from one number of torch's generator, so it is another choice than torch's with the same seed.

    Example:
        >>> import torch
        >>> from glt_lightning.loader import relu_dropout
        >>> relu_dropout(torch.tensor([-1.0, 2.0]), 0.5, training=False)
        tensor([0., 2.])
    """
    if not training or not 0 < p < 1 or x.device.type != "cpu" or not has_kernels(x):
        return functional.dropout(x.relu(), p, training)
    seed = torch.randint(2**62, ())
    return _dropped(x, seed, int(p * 2**32))


def _relu_dropout(x: Tensor, seed: Tensor, dropped: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    shape = (len(x), x.numel() // max(1, len(x)))
    threads = torch.get_num_threads()
    kernels.relu_dropout(value_name(x), x.data_ptr(), shape, dropped, int(seed), out.data_ptr(), threads=threads)
    return out


def _relu_dropout_grad(grad: Tensor, out: Tensor, dropped: int) -> Tensor:
    grad = grad.contiguous()
    grad_x, threads = torch.empty_like(out), torch.get_num_threads()
    addresses = grad.data_ptr(), out.data_ptr()
    relu_dropout_grad(value_name(out), *addresses, out.numel(), dropped, grad_x.data_ptr(), threads=threads)
    return grad_x


def _shape(x: Tensor, seed: Tensor, dropped: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _grad_shape(grad: Tensor, out: Tensor, dropped: int) -> Tensor:
    return torch.empty_like(out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.dropped = inputs[2]
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _dropped_grad(grad, ctx.saved_tensors[0], ctx.dropped), None, None


_dropped = make_op("relu_dropout", _relu_dropout, ("cpu",), _shape, Formula(_save, _backward))
_dropped_grad = make_op("relu_dropout_grad", _relu_dropout_grad, ("cpu",), _grad_shape)


# Rows times a weight matrix that are not made before something needs them.


class ProjectedLinear(Linear):  # type: ignore[misc]  # PyG has no types
    """PyG's `Linear`, without a bias, as a `Projection`."""

    def forward(self, x: Any) -> Any:
        if torch.compiler.is_compiling() or self.bias is not None or self._forward_hooks:
            return super().forward(x)
        if type(x) is not Tensor or x.dim() != 2 or not has_kernels(x):
            return super().forward(x)
        return Projection(x, self.weight, (self.weight.size(0),))


class Projection(Deferred):
    """Stands for x [N, D] times weight [W, D], each row as ``row``: (W,) or (heads, W / heads). Whatever is done to it but the
    products of GAT makes them first, as a tensor."""

    def __init__(self, x: Tensor, weight: Tensor, row: tuple[int, ...]) -> None:
        self.x, self.weight, self.row = x, weight, row
        self._rows: Tensor | None = None

    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = functional.linear(self.x, self.weight).view(-1, *self.row)
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.x), *self.row))

    def view(self, *shape: Any) -> Any:
        if len(shape) == 3 and shape[0] == -1 and shape[1] * shape[2] == self.weight.size(0):
            return Projection(self.x, self.weight, shape[1:])
        return self.rows().view(*shape)

    def __mul__(self, other: Any) -> Any:
        if len(self.row) == 2 and isinstance(other, Tensor) and other.shape == (1, *self.row):
            return _Products(self, other)
        return super().__mul__(other)

    def is_narrow(self) -> bool:
        """Whether sums over edges read less of x than of the projected rows. With several heads x is read for each."""
        heads, width = self.row
        return heads == 1 or self.x.size(1) <= width


class _Products(Deferred):
    """Projected rows [N, H, C] times a vector [1, H, C], of which GAT wants the sums [N, H]."""

    def __init__(self, factors: Projection, vector: Tensor) -> None:
        self.factors, self.vector = factors, vector

    @property
    def shape(self) -> torch.Size:
        return self.factors.shape

    def rows(self) -> Tensor:
        return self.factors.rows() * self.vector

    def sum(self, dim: int) -> Tensor:
        if dim != -1:
            return self.rows().sum(dim)
        heads, width = self.factors.row
        weight = self.factors.weight.view(heads, width, -1)
        return functional.linear(self.factors.x, (weight * self.vector.view(heads, width, 1)).sum(1))


class GatheredProjection(Gathered):
    """`Gathered` of a `Projection` [S, H, C]."""

    def __init__(self, rows: Projection, indptr: Tensor, src: Tensor, weights: Tensor | None = None) -> None:
        super().__init__(rows.x, indptr, src, weights)
        self.projection = rows

    def weighted(self, weights: Tensor) -> Gathered:
        return GatheredProjection(self.projection, self.indptr, self.src, weights)

    def aggregate(self, kind: str) -> Tensor:
        if kind not in ("sum", "mean"):
            return Gathered(self.projection.rows(), self.indptr, self.src).aggregate(kind)
        each = [None] if self.weights is None else self.weights.unbind(1)
        heads, width = self.projection.row
        summed = [aggregate(self.x, self.indptr, self.src, kind=kind, weights=w) for w in each]
        parts = self.projection.weight.view(heads, width, -1).unbind(0)
        rows = [functional.linear(summed[h % len(summed)], part) for h, part in enumerate(parts)]
        return torch.stack(rows, dim=1)

    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = Gathered(self.projection.rows(), self.indptr, self.src, self.weights).rows()
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.src.size(0), *self.projection.row))
