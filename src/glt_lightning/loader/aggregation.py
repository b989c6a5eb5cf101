"""Aggregation over sorted edges as torch ops: no row per edge is ever made, forward or backward.

The ops run on the CPU and, where the CUDA kernels were built, on a GPU, with the same bits. They have a fake implementation and
a formula for autograd, so `torch.compile` takes them as they are.
Autocast leaves them alone: rows of bfloat16 are summed in float32 and rounded once, and casting the rows of a first layer
would read more than it saves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import KINDS, VALUES, CudaEdges, Edges, Kernels
from glt_lightning.loader.ops import Formula, make_op

_VALUES = {getattr(torch, name): name for name in VALUES}


def aggregate(
    x: Tensor, indptr: Tensor, src: Tensor | None = None, *, kind: str = "sum", weights: Tensor | None = None
) -> Tensor:
    """Sum, mean, max or min of the rows of the sources of each destination's edges; 0 without edges.

    x: float32, float64 or bfloat16 [S, ...], a row for each source.
    indptr: int64 [D + 1]; the edges of destination i are [indptr[i], indptr[i + 1]).
    src: int64 [E], the source of each edge; None where x has a row for each edge.
    kind: sum, mean, max or min.
    weights: float [E, H] or [E], factors of an edge's row, each for 1 / H of it; for sum and mean.

    Returns [D, ...]. All lie on the CPU or on one GPU. The number of threads (`torch.get_num_threads`) changes no bit of the
    result. On a GPU nothing waits: as in torch, edges that contradict themselves stop the device by an assertion.

    Example:
        >>> import torch
        >>> from glt_lightning.loader import aggregate
        >>> x = torch.tensor([[1.0], [2.0], [4.0]])
        >>> aggregate(x, torch.tensor([0, 2, 3]), torch.tensor([1, 2, 0]), kind="mean")
        tensor([[3.],
                [1.]])
    """
    _check(x, indptr, src, kind, weights)
    if weights is not None:
        weights = weights.to(x.dtype)
    return _summed(x, indptr, src, weights, kind)


def edge_scores(of_destinations: Tensor, of_sources: Tensor, indptr: Tensor, src: Tensor) -> Tensor:
    """[E, H]: for each edge and head, the product of its destination's row [D, H, C] and its source's [S, H, C].

    The gradient of a sum's weights is the same product, so it has its kernel. Edges as in `aggregate`.
    """
    weights = of_sources.new_empty(src.size(0), of_sources.size(1))  # is not read: says how many heads there are
    return _products(of_destinations, of_sources, indptr, src, weights, "sum")


def value_name(x: Tensor) -> str:
    """The name of its dtype, a key of `VALUES`."""
    return _VALUES[x.dtype]


def has_kernels(x: Tensor) -> bool:
    """Whether `aggregate` takes rows such as these."""
    here = x.device.type == "cpu" or (x.device.type == "cuda" and _are_built_for(x.device))
    return here and x.dtype in _VALUES and x.layout == torch.strided and x.dim() > 0


@cache
def _are_built_for(device: torch.device) -> bool:
    """Whether there are kernels for a GPU: those who only train there need none, as PyG's layers have torch's."""
    try:
        _gpu(device)
    except NativeError:
        return False
    return True


@cache
def _gpu(device: torch.device) -> Kernels:
    return Kernels.open(device)


def _check(x: Tensor, indptr: Tensor, src: Tensor | None, kind: str, weights: Tensor | None) -> None:
    if kind not in KINDS:
        raise DataError(f"aggregate: kind: expected one of {', '.join(KINDS)}; got {kind!r}.")
    if x.dtype not in _VALUES or x.dim() < 1:
        raise DataError(f"aggregate: x: expected rows of {', '.join(VALUES)}; got {x.dtype} {list(x.shape)}.")
    for name, ids in (("indptr", indptr), ("src", src)):
        if ids is not None and (ids.dtype != torch.int64 or ids.dim() != 1):
            raise DataError(f"aggregate: {name}: expected int64 [n]; got {ids.dtype} {list(ids.shape)}.")
    if indptr.numel() < 1:
        raise DataError("aggregate: indptr: expected a position for each destination and one behind; got none.")
    for name, other in (("indptr", indptr), ("src", src), ("weights", weights)):
        if other is not None and other.device != x.device:
            raise DataError(f"aggregate: {name}: expected it on {x.device}, as x; got {other.device}.")
    if weights is None:
        return
    if kind not in ("sum", "mean"):
        raise DataError(f"aggregate: weights: expected None where kind is {kind}. Multiply the rows first.")
    edges = x.size(0) if src is None else src.size(0)
    width = x[:0].flatten(1).size(1) if x.dim() > 1 else 1
    heads = weights.size(1) if weights.dim() == 2 else 1
    if weights.dim() not in (1, 2) or weights.size(0) != edges or not heads or width % heads:
        raise DataError(
            f"aggregate: weights: expected [{edges}] or [{edges}, H], H a divisor of {width}; got {list(weights.shape)}."
        )


def edges_of(
    rows: Tensor, num_rows: int, num_sources: int, indptr: Tensor, src: Tensor | None, weights: Tensor | None
) -> Edges:
    width = rows[0].numel() if rows.size(0) else 0
    heads = 1 if weights is None or not width else weights.numel() // max(1, weights.size(0))
    return Edges(
        num_rows=num_rows,
        num_sources=num_sources,
        num_edges=num_sources if src is None else src.size(0),
        indptr=indptr.data_ptr(),
        src=None if src is None else src.data_ptr(),
        values=value_name(rows),
        width=width,
        heads=max(1, heads),
        threads=torch.get_num_threads(),
    )


def _run(edges: Edges, name: str, kind: str, indptr: Tensor, src: Tensor | None, *tensors: Tensor | None) -> None:
    if not indptr.is_cuda:
        addresses = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
        getattr(edges, name)(kind, *addresses)
        return
    on_gpu = CudaEdges(_gpu(indptr.device), edges, indptr, src)
    getattr(on_gpu, name)(kind, *tensors)
    sound = on_gpu.error[:1] == 0
    torch._assert_async(sound, "aggregate: indptr or src: an edge or a source is outside of its array")


def _contiguous(*tensors: Tensor | None) -> list[Any]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _aggregate(x: Tensor, indptr: Tensor, src: Tensor | None, weights: Tensor | None, kind: str) -> Tensor:
    x, indptr, src, weights = _contiguous(x, indptr, src, weights)
    out = x.new_empty((indptr.size(0) - 1, *x.shape[1:]))
    edges = edges_of(x, out.size(0), x.size(0), indptr, src, weights)
    if not edges.width:
        return out.zero_()
    _run(edges, "aggregate", kind, indptr, src, x, weights, out)
    return out


def _aggregate_grad(
    grad: Tensor,
    num_sources: int,
    indptr: Tensor,
    src: Tensor | None,
    weights: Tensor | None,
    x: Tensor | None,
    out: Tensor | None,
    kind: str,
) -> Tensor:
    grad, indptr, src, weights, x, out = _contiguous(grad, indptr, src, weights, x, out)
    grad_x = grad.new_empty((num_sources, *grad.shape[1:]))
    edges = edges_of(grad, grad.size(0), num_sources, indptr, src, weights)
    if not edges.width:
        return grad_x.zero_()
    _run(edges, "grad", kind, indptr, src, grad, weights, x, out, grad_x)
    return grad_x


def _aggregate_weights_grad(
    grad: Tensor, x: Tensor, indptr: Tensor, src: Tensor | None, weights: Tensor, kind: str
) -> Tensor:
    grad, x, indptr, src = _contiguous(grad, x, indptr, src)
    grad_weights = torch.empty_like(weights, memory_format=torch.contiguous_format)
    edges = edges_of(grad, grad.size(0), x.size(0), indptr, src, weights)
    if not edges.width:
        return grad_weights.zero_()
    _run(edges, "weights_grad", kind, indptr, src, grad, x, grad_weights)
    return grad_weights


def _shape(x: Tensor, indptr: Tensor, src: Tensor | None, weights: Tensor | None, kind: str) -> Tensor:
    return x.new_empty((indptr.size(0) - 1, *x.shape[1:]))


def _grad_shape(grad: Tensor, num_sources: int, *_: Any) -> Tensor:
    return grad.new_empty((num_sources, *grad.shape[1:]))


def _weights_grad_shape(
    grad: Tensor, x: Tensor, indptr: Tensor, src: Tensor | None, weights: Tensor, kind: str
) -> Tensor:
    return torch.empty_like(weights, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, indptr, src, weights, ctx.kind = inputs
    ctx.num_sources = x.size(0)
    extreme = ctx.kind in ("max", "min")
    ctx.save_for_backward(
        indptr, src, weights, x if extreme or weights is not None else None, output if extreme else None
    )


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indptr, src, weights, x, out = ctx.saved_tensors
    grad_x = grad_weights = None
    if ctx.needs_input_grad[0]:
        extreme = x if out is not None else None
        grad_x = _summed_grad(grad, ctx.num_sources, indptr, src, weights, extreme, out, ctx.kind)
    if ctx.needs_input_grad[3]:
        grad_weights = _products(grad, x, indptr, src, weights, ctx.kind)
    return grad_x, None, None, grad_weights, None


def _save_weights_grad(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, x, indptr, src, _, ctx.kind = inputs
    ctx.save_for_backward(grad, x, indptr, src)


def _weights_grad_backward(ctx: Any, scores_grad: Tensor) -> tuple[Tensor | None, ...]:
    grad, x, indptr, src = ctx.saved_tensors
    of_grad = of_x = None
    if ctx.needs_input_grad[0]:
        of_grad = _summed(x, indptr, src, scores_grad, ctx.kind)
    if ctx.needs_input_grad[1]:
        of_x = _summed_grad(grad, x.size(0), indptr, src, scores_grad, None, None, ctx.kind)
    return of_grad, of_x, None, None, None, None


_DEVICES = ("cpu", "cuda")
_summed = make_op("aggregate", _aggregate, _DEVICES, _shape, Formula(_save, _backward))
_summed_grad = make_op("aggregate_grad", _aggregate_grad, _DEVICES, _grad_shape)
_products = make_op(
    "aggregate_weights_grad",
    _aggregate_weights_grad,
    _DEVICES,
    _weights_grad_shape,
    Formula(_save_weights_grad, _weights_grad_backward),
)


# Rows of edges that are not made before something needs them.


_PRODUCTS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}


class Ends(Tensor):
    """Rows [N, ...] of which `index_select` along the first dimension gives those of the edges [E], as what stands for them."""

    lifted: Gathered | Repeated

    @classmethod
    def of(cls, lifted: Gathered | Repeated) -> Ends:
        marked = lifted.x.as_subclass(cls)
        marked.lifted = lifted
        return marked

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.index_select and isinstance(args[0], Ends):
            return args[0].lifted
        plain = [a.as_subclass(Tensor) if isinstance(a, Ends) else a for a in args]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*plain, **(kwargs or {}))


class Deferred(ABC):
    """Stands for a tensor, which is made when something is done to it that needs it."""

    @abstractmethod
    def rows(self) -> Tensor:
        """The tensor itself."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Its sizes, which are known before it is made."""

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __mul__(self, other: Any) -> Any:
        return self.rows() * made(other)

    def __rmul__(self, other: Any) -> Any:
        return self * other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rows(), name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _PRODUCTS and len(args) == 2 and not kwargs:
            mine, other = args if isinstance(args[0], Deferred) else (args[1], args[0])
            return mine * made(other)
        return func(*(made(a) for a in args), **{name: made(a) for name, a in (kwargs or {}).items()})


def made(value: Any) -> Any:
    """A tensor for each `Deferred` among values."""
    if isinstance(value, Deferred):
        return value.rows()
    return type(value)(made(v) for v in value) if type(value) in (list, tuple) else value


def _on_rows(name: str) -> Callable[..., Any]:
    def operate(self: Deferred, *others: Any) -> Any:
        return getattr(self.rows(), name)(*(made(other) for other in others))

    return operate


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "truediv",
    "rtruediv",
    "pow",
    "rpow",
    "matmul",
    "neg",
    "getitem",
    "abs",
):
    setattr(Deferred, f"__{_name}__", _on_rows(f"__{_name}__"))


class Gathered(Deferred):
    """Stands for x[src], each row times the weights of its edge. Whatever is done to it but a product with such weights and
    an aggregation makes the rows first, as a tensor.

    x: float [S, ...]. indptr, src: as `aggregate` takes them. weights: float [E, H].
    """

    def __init__(self, x: Tensor, indptr: Tensor, src: Tensor, weights: Tensor | None = None) -> None:
        self.x, self.indptr, self.src, self.weights = x, indptr, src, weights
        self._rows: Tensor | None = None

    def aggregate(self, kind: str) -> Tensor:
        """[D, ...]: the rows of each destination's edges as one. kind: sum or mean; without weights, max and min, too."""
        return aggregate(self.x, self.indptr, self.src, kind=kind, weights=self.weights)

    def weighted(self, weights: Tensor) -> Gathered:
        """The same rows times weights [E, H]."""
        return Gathered(self.x, self.indptr, self.src, weights)

    def rows(self) -> Tensor:
        """[E, ...]: the rows themselves."""
        if self._rows is None:
            self._rows = self.x.index_select(0, self.src)
            if self.weights is not None:
                of_heads = self._rows.view(*self.weights.shape, -1)
                self._rows = (of_heads * self.weights[:, :, None]).view(self.shape)
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.src.size(0), *self.x.shape[1:]))

    def view(self, *shape: Any) -> Any:
        if type(self) is Gathered and shape == (-1, self.shape[1:].numel()):
            return Gathered(self.x.flatten(1), self.indptr, self.src, self.weights)
        return self.rows().view(*shape)

    def __mul__(self, other: Any) -> Any:
        if type(self) is Gathered and isinstance(other, Repeated) and self._is_scored_by(other):
            return _EdgeProducts(self, other)
        other = made(other)
        if self.weights is None and isinstance(other, Tensor) and self._is_factor(other):
            return self.weighted(other.flatten(1))
        return self.rows() * other

    def _is_scored_by(self, other: Repeated) -> bool:
        alike = self.x.shape[1:] == other.x.shape[1:] and self.x.dtype == other.x.dtype
        return self.x.dim() == 3 and self.weights is None and alike

    def _is_factor(self, other: Tensor) -> bool:
        """Whether it has one number per edge, or per edge and head of [E, H, C], and the product the dtype of x."""
        if self.dim() not in (2, 3) or other.shape != (*self.shape[:-1], 1):
            return False
        return (
            torch.is_autocast_enabled(self.x.device.type)
            or torch.promote_types(other.dtype, self.x.dtype) == self.x.dtype
        )


class Repeated(Deferred):
    """Stands for the rows of the destinations, each as often as it has edges: x[dst].

    x: float [D, ...]. dst: int64 [E].
    """

    def __init__(self, x: Tensor, dst: Tensor) -> None:
        self.x, self.dst = x, dst
        self._rows: Tensor | None = None

    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = self.x.index_select(0, self.dst)
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.dst.size(0), *self.x.shape[1:]))

    def __mul__(self, other: Any) -> Any:
        return other * self if isinstance(other, Gathered) else super().__mul__(other)


class _EdgeProducts(Deferred):
    """Rows of both ends [E, H, C] times each other, of which attention wants the sums [E, H]."""

    def __init__(self, sources: Gathered, destinations: Repeated) -> None:
        self.sources, self.destinations = sources, destinations

    @property
    def shape(self) -> torch.Size:
        return self.sources.shape

    def rows(self) -> Tensor:
        return self.destinations.rows() * self.sources.rows()

    def sum(self, dim: int) -> Tensor:
        if dim != -1:
            return self.rows().sum(dim)
        return edge_scores(self.destinations.x, self.sources.x, self.sources.indptr, self.sources.src)
