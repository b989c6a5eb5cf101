"""The data of a `DistGraph` by type and name: ``graph.nodes["paper"].data["x"]``."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from glt_lightning.base import DataError
from glt_lightning.tensors.dist_tensor import DistTensor
from glt_lightning.tensors.space import RowSpace

if TYPE_CHECKING:
    from glt_lightning.tensors.dist_graph import DistGraph


class TypesOfGraph:
    """``graph.nodes`` and ``graph.edges``."""

    def __init__(self, graph: DistGraph, spaces: list[RowSpace]) -> None:
        self._graph, self._spaces = graph, spaces

    def __getitem__(self, of: Any) -> _OfType:
        kind = self._spaces[0].kind if self._spaces else "edge"
        return _OfType(self._graph, self._graph.space(of, kind))

    def __len__(self) -> int:
        return len(self._spaces)


class _OfType:
    def __init__(self, graph: DistGraph, space: RowSpace) -> None:
        self.data: MutableMapping[str, DistTensor] = RowData(graph, space)


class RowData(MutableMapping[str, DistTensor]):
    """The tensors of a type by name: the user's, and those that the partition stores."""

    def __init__(self, graph: DistGraph, space: RowSpace) -> None:
        self._graph, self._space = graph, space
        self._own, self._reader = graph._named[space], graph._reader

    def __getitem__(self, name: str) -> DistTensor:
        own = self._own.get(name)
        if own is not None:
            return own
        if name not in self._reader.names(self._space):
            raise KeyError(f"{self._space.label!r} has no data {name!r}; it has: {', '.join(self) or 'none'}")
        return DistTensor.over(self._graph, self._reader.open(self._space, name), name)

    def __setitem__(self, name: str, tensor: DistTensor) -> None:
        where = f"data {name!r} of {self._space.label!r}"
        if not isinstance(tensor, DistTensor) or tensor.space is not self._space:
            raise DataError(
                f"{where}: expected a DistTensor of this type, got {tensor!r:.100}. Create one, and write to it."
            )
        if name in self._reader.names(self._space):
            raise DataError(f"{where}: the partition stores it. Use another name.")
        self._own[name] = tensor

    def __delitem__(self, name: str) -> None:
        if name not in self._own:
            raise DataError(
                f"data {name!r} of {self._space.label!r}: not a tensor of your own, so it cannot be deleted."
            )
        self._own.pop(name).close()

    def __iter__(self) -> Iterator[str]:
        yield from self._reader.names(self._space)
        yield from self._own

    def __len__(self) -> int:
        return sum(1 for _ in self)
