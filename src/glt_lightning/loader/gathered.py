"""Rows of edges that are not made before something needs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glt_lightning.loader.aggregation import aggregate, edge_scores

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
