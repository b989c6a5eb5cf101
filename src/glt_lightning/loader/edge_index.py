"""Edges of a batch as PyG's `EdgeIndex`, with the pointers and the order by source that the sampler made; and whether they still
have the order that loaders give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from glt_lightning.kernels import split_by_source

Csr = tuple[tuple[Tensor, Tensor], Tensor | None]  # (pointers, ends), positions
Hops = tuple[dict[Any, Sequence[int]], dict[Any, Sequence[int]]]  # numbers per hop, by node type and by edge type
_SLICE, _SELECT, _CAT = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int, torch.ops.aten.cat.default


class BatchEdges(EdgeIndex):  # type: ignore[misc]  # PyG has no types
    """`EdgeIndex` of a batch, sorted by destination. What PyG drops, it keeps: the first edges of a batch, which are those of its
    first hops (``edge_index[:, :n]``, ``narrow``, and so PyG's ``trim_to_layer``), have their pointers and their order by source.

    ``edge_index.as_tensor()`` is the plain tensor.
    """

    _T_perm: Tensor | None
    _T_index: tuple[Tensor | None, Tensor | None]
    # Whose first edges these are, if their order by source has not been asked for yet: it costs a pass over all edges.
    _whole: BatchEdges | None = None

    def __getitem__(self, key: Any) -> Any:
        """Takes one end or the first edges, which layers ask for, past torch's dispatcher: at its first call for a subclass of
        `Tensor` it imports torch's distributed tensors, in half a second."""
        if not torch.compiler.is_compiling():
            if type(key) is int:
                return self.__torch_dispatch__(_SELECT, (), (self, 0, key))
            if type(key) is tuple and [type(part) for part in key] == [slice, slice] and key[0] == slice(None):
                end = key[1].stop
                if type(end) is int and key[1] == slice(end) and end >= 0:
                    return self.__torch_dispatch__(_SLICE, (), (self, 1, 0, end))
        return super().__getitem__(key)

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

    colptr: int64 [num_destinations + 1].  by_source: as `kernels.by_source` writes it, or None: made when a backward
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


def hops_of(
    nodes: Mapping[Any, Any], edges: Mapping[Any, Any], found: Mapping[Any, Tensor], rows: Mapping[Any, int]
) -> Hops | None:
    """Nodes and edges of each hop as the batch says, if it has as many."""
    if not all("num_sampled_edges" in store and "is_flipped" not in store for store in edges.values()):
        return None
    if not all("num_sampled_nodes" in store for store in nodes.values()):
        return None
    of_nodes = {t: store.num_sampled_nodes for t, store in nodes.items()}
    of_edges = {e: store.num_sampled_edges for e, store in edges.items()}
    if len({*map(len, of_nodes.values()), *(len(counts) + 1 for counts in of_edges.values())}) > 1:
        return None
    if any(sum(of_nodes[t]) != count for t, count in rows.items()):
        return None
    if any(sum(of_edges[e]) != each.size(1) for e, each in found.items()):
        return None
    return of_nodes, of_edges


def believed(edges: Iterable[Tensor]) -> bool:
    return all(isinstance(each, EdgeIndex) and each.is_sorted_by_col for each in edges)


def in_order(edges: Mapping[Any, Tensor], hops: Hops | None) -> bool:
    """Whether edges of each type are ascending in their destinations, and lie in the hops that they are said to be of: the first
    h lead from nodes of the first h + 1 to nodes of the first h. One answer of all types, as a GPU is waited for at each."""
    ends = [plain(each) for each in edges.values() if each.size(1)]
    if not ends:
        return True
    starts = list(accumulate((each.size(1) for each in ends), initial=0))
    col = _joined([each[1] for each in ends])
    falls = col[1:] < col[:-1]
    if len(ends) > 1:
        falls[torch.tensor(starts[1:-1], device=col.device) - 1] = False
    wrong = falls.any()
    if hops is None:
        return not bool(wrong)
    at, least, most = [], [], []  # the first and the last edge of each hop, and the nodes that it leads to
    sources, counts, bounds = [], [], []
    for start, each, edge_type in zip(starts, ends, (e for e in edges if edges[e].size(1)), strict=False):
        to, of = (list(accumulate(hops[0][edge_type[side]], initial=0)) for side in (2, 0))
        last = 0
        for h, count in enumerate(hops[1][edge_type]):
            if count:
                at += [start + last, start + last + count - 1]
                least += [to[h]] * 2
                most += [to[h + 1]] * 2
                if of[h + 2] < of[-1]:
                    sources.append(each[0, last : last + count])
                    counts.append(count)
                    bounds.append(of[h + 2])
            last += count
    where, low, high = torch.tensor([at, least, most], device=col.device)
    wrong = wrong | ((col[where] < low) | (col[where] >= high)).any()
    if sources:
        number, bound = torch.tensor([counts, bounds], device=col.device)
        wrong = wrong | (_joined(sources) >= torch.repeat_interleave(bound, number, output_size=sum(counts))).any()
    return not bool(wrong)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def is_ascending(edges: Tensor) -> Tensor:
    """Whether edges [2, E] are ascending in their destinations: bool []."""
    col = plain(edges)[1]
    return (col[1:] >= col[:-1]).all()
