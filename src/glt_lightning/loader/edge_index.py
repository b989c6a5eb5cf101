"""Edges of a batch as PyG's `EdgeIndex`, with the pointers and the order by source that the sampler made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from glt_lightning.ops.edge_order import split_by_source

Csr = tuple[tuple[Tensor, Tensor], Tensor | None]  # (pointers, ends), positions
_SLICE, _CAT = torch.ops.aten.slice.Tensor, torch.ops.aten.cat.default


class BatchEdges(EdgeIndex):  # type: ignore[misc]  # PyG has no types
    """`EdgeIndex` of a batch, sorted by destination. What PyG drops, it keeps: the first edges of a batch, which are those of its
    first hops (``edge_index[:, :n]``, ``narrow``, and so PyG's ``trim_to_layer``), have their pointers and their order by source.

    ``edge_index.as_tensor()`` is the plain tensor.
    """

    _T_perm: Tensor | None
    _T_index: tuple[Tensor | None, Tensor | None]
    # Whose first edges these are, if their order by source has not been asked for yet: it costs a pass over all edges.
    _whole: BatchEdges | None = None

    def get_csr(self) -> Csr:
        self._cut_by_source()
        rowptr, col, perm = self._T_indptr, self._T_index[1], self._T_perm
        if rowptr is None or col is None or perm is None:
            return cast("Csr", super().get_csr())
        return (rowptr, col), perm

    def _sort_by_transpose(self) -> Csr:
        self._cut_by_source()
        if self._T_perm is not None and self._T_index[0] is None:  # which the sampler leaves out: few ask for it
            self._T_index = (self._data[0][self._T_perm], self._T_index[1])
        return cast("Csr", super()._sort_by_transpose())

    def _cut_by_source(self) -> None:
        """Takes the edges of this piece out of the order by source of the whole."""
        whole, self._whole = self._whole, None
        if whole is None or self._T_perm is not None:
            return
        (rowptr, col), perm = whole.get_csr()
        assert perm is not None
        inside = perm < self.size(1)
        self._T_perm, self._T_index = perm[inside], (None, col[inside])
        before = torch.cat([inside.new_zeros(1, dtype=perm.dtype), inside.cumsum(0)])
        self._T_indptr = before[rowptr[: self.get_num_rows() + 1]]

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is _CAT:  # edges of several types have no common order, and HGTConv changes their numbers before
            return plain(out)
        if type(out) is EdgeIndex:
            out.__class__ = cls
            if func is _SLICE:
                _keep_pointers(out, *args)
        return out

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        attributes, context = super().__tensor_flatten__()
        if self._T_index[1] is not None:
            attributes.append("_T_col")
        return attributes, context

    @property
    def _T_col(self) -> Tensor | None:
        """`torch.compile` takes a tensor apart by the names of its attributes, and PyG's pair of them has none."""
        return self._T_index[1]

    @staticmethod
    def __tensor_unflatten__(
        inner_tensors: dict[str, Any], ctx: tuple[Any, ...], outer_size: Any, outer_stride: Any
    ) -> BatchEdges:
        out = EdgeIndex.__tensor_unflatten__(inner_tensors, ctx, outer_size, outer_stride)
        out.__class__ = BatchEdges
        out._T_index = (None, inner_tensors.get("_T_col"))
        return cast("BatchEdges", out)


def _keep_pointers(
    piece: BatchEdges, edges: BatchEdges, dim: int, start: int | None = None, end: int | None = None, step: int = 1
) -> None:
    """Gives the first edges of a batch what follows from the pointers of all. A slice of all edges still has them; other pieces
    have none."""
    if dim not in (1, -1) or start not in (None, 0) or step != 1 or piece._indptr is not None:
        return
    if edges.is_sorted_by_col and edges._indptr is not None:
        piece._indptr = edges._indptr.clamp(max=piece.size(1))
        piece._whole = edges if edges._T_perm is not None else edges._whole


def make_edge_index(
    edges: Tensor, num_sources: int, num_destinations: int, colptr: Tensor, by_source: Tensor | None
) -> EdgeIndex:
    """The edges of a batch, int64 [2, E], sorted by destination, with what the sampler made of them.

    colptr: int64 [num_destinations + 1].  by_source: as `ops.edge_order.by_source` writes it, or None: made when a backward
    pass asks for it.
    """
    made = BatchEdges(edges, sparse_size=(num_sources, num_destinations), sort_order="col")
    made._indptr = colptr
    if by_source is not None:
        made._T_indptr, col, made._T_perm = split_by_source(by_source, num_sources)
        made._T_index = (None, col)
    return made


def first_edges(edges: Tensor, number: int, sources: int, destinations: int) -> Tensor:
    """The first ``number`` edges of a batch, which lie between its first nodes: ``sources`` and ``destinations`` of them."""
    piece = edges[:, :number]
    return piece.sparse_resize_(sources, destinations) if isinstance(piece, EdgeIndex) else piece


def traceable(edges: Tensor) -> Tensor:
    """Edges as `torch.compile` can follow them: plain while it traces, as PyG's `EdgeIndex` breaks its graph."""
    return plain(edges) if torch.compiler.is_compiling() else edges


def plain(edges: Tensor) -> Tensor:
    """Edges as a plain tensor, for arithmetic that has no meaning for an `EdgeIndex`."""
    return edges.as_tensor() if isinstance(edges, EdgeIndex) else edges
