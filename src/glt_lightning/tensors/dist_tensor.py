"""`DistTensor`: a tensor with a row for each node or edge of a type, shared by the ranks of a job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, EdgeType, NodeType, size
from glt_lightning.graph import refuse_integer_mask
from glt_lightning.tensors.reader import GraphReader, StoredRows
from glt_lightning.tensors.saved import SavedRows, kind_and_shape, load_table
from glt_lightning.tensors.table import SharedTable
from glt_lightning.tensors.tables import TableSpec
from glt_lightning.tensors.values import ValueType

if TYPE_CHECKING:
    from glt_lightning.tensors.dist_graph import DistGraph


_log = logging.getLogger(__name__)


# The graphs that are open in this process. If there is only one, `DistTensor` needs no argument ``graph``.
OPEN_GRAPHS: WeakSet[DistGraph] = WeakSet()
_AT_ONCE = 1 << 18  # rows that are read and written at once


class PendingRows:
    """Rows that `DistTensor.read_later` has requested."""

    def __init__(self, wait: Callable[[], Tensor]) -> None:
        self._wait = wait
        self._rows: Tensor | None = None

    def result(self) -> Tensor:
        """Waits for the rows and returns them as ``tensor[index]`` does; a second call returns the same object. Raises
        `DataError` for a tensor that was closed meanwhile, `PeerError` if another host does not answer."""
        if self._rows is None:
            self._rows = self._wait()
        return self._rows


class DistTensor:
    """A tensor [N, ...] with a row for each node of a type, or for each edge of a type, in memory that the ranks share.

    Creating one is a collective call: every rank creates the same tensors in the same order. The name of an existing tensor
    returns that tensor. A read copies rows, in the order of the index; a write is visible to every rank when it returns.
    ``barrier`` of the graph orders reads and writes of several ranks.

    Args:
        shape: [N, ...]; N: number of rows of ``of``.
        dtype: A dtype of torch: bool, an integer or a floating-point one.
        name: Name under which every rank finds the tensor. None: an anonymous tensor, which is not saved.
        init: First values: ``"zeros"`` (None), ``"ones"``, ``("uniform", a, b)``, ``("normal", mean, std)``,
            ``"xavier_uniform"``, a tensor or ``.npy`` file by user id: these do not depend on how the graph is partitioned. Or
            ``f(shape, dtype)``, called for some rows at a time by one rank of each host.
        of: Node type or edge type. None: the only one that has N rows.
        graph: The graph. None: the one that is open in this process.
        persistent: The checkpoints of the job contain the tensor, by the user's ids. Create it in ``setup`` of the module: a
            checkpoint is read into tensors that exist already.

    Attributes:
        name: The given name, or the generated one of an anonymous tensor.
        of: Node type or edge type.
        shape: [N, ...].
        dtype: The dtype of torch.
        writable: False for a tensor that the partition stores.

    Raises:
        DataError: For an invalid description, or one that differs from that of another rank.
        OptionError: For more memory than ``cluster.tensors.limit``.

    Example:
        >>> with DistGraph("parts") as graph:
        ...     h = DistTensor((graph.num_nodes(), 2), torch.float32, "h")
        ...     h[[1, 3]] = torch.tensor([1.0, 2.0])
        ...     print(h[[0, 3]], h.count_nonzero())
        tensor([[0., 0.],
                [1., 2.]]) 4
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        name: str | None = None,
        init: Any = None,
        of: NodeType | EdgeType | None = None,
        graph: DistGraph | None = None,
        persistent: bool = False,
    ) -> None:
        graph = graph or only_graph()

        def describe() -> TableSpec:
            if not isinstance(dtype, torch.dtype):
                raise DataError(f"tensor {name!r}: dtype: expected one of torch, got {dtype!r:.80}.")
            given = tuple(shape)
            space = graph.space_of_rows(given, of, f"tensor {name!r}")
            return TableSpec(space, dtype, given[1:], name, init_of(init, dtype), persistent=persistent)

        self._set(graph, graph.tables.create(describe), None)
        if name is not None and graph.rank == 0:
            table = self.table
            where = "on the disk" if table.on_disk else "in the memory"
            _log.info(
                "tensor %r: %s rows of %s take %s %s of this host",
                name,
                f"{len(self):,}",
                table.kind.name,
                size(table.nbytes),
                where,
            )

    @classmethod
    def over(cls, graph: DistGraph, rows: SharedTable | StoredRows, name: str | None = None) -> DistTensor:
        """Makes a tensor over an existing table, or over an attribute of the partition, whose name is given."""
        tensor = cls.__new__(cls)
        tensor._set(graph, rows, name)
        return tensor

    def _set(self, graph: DistGraph, rows: SharedTable | StoredRows, name: str | None) -> None:
        self.graph, self._rows = graph, rows
        self.space, self._kind = rows.space, rows.kind
        self.name: str = rows.name if isinstance(rows, SharedTable) else str(name)
        self.of, self.writable = rows.space.of, isinstance(rows, SharedTable)
        self.shape, self.dtype = torch.Size((rows.space.num_rows, *rows.row_shape)), torch_dtype(rows.kind)

    @property
    def table(self) -> SharedTable:
        """The table that has the rows as numpy arrays. Raises `DataError` for a tensor that the partition stores."""
        if not isinstance(self._rows, SharedTable):
            raise DataError(
                f"tensor {self.name!r} of {self.space.label!r}: the partition stores it, so it cannot be written. Create a "
                f"DistTensor and write to that."
            )
        return self._rows

    def __len__(self) -> int:
        return self.space.num_rows

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        kind = "" if self.writable else ", stored"
        return f"DistTensor({self.name!r}, {list(self.shape)}, {self.dtype}, of={self.of!r}{kind})"

    def __getitem__(self, index: Any) -> Tensor:
        """Rows as a new tensor on the CPU. index: integers [n], a slice, a mask [N]; one integer gives one row."""
        return self._shaped(index, self._rows.read(rows_of_index(index, len(self))))

    def _shaped(self, index: Any, values: np.ndarray) -> Tensor:
        found = to_tensor(values, self._kind)
        return found[0] if np.ndim(index) == 0 and not isinstance(index, slice) else found

    def read_later(self, index: Any) -> PendingRows:
        """Begins to read rows: other hosts and the disk are asked at once, and ``result()`` of the returned object waits for
        them. Values that are written meanwhile may or may not be in them.

        Example:
            >>> with DistGraph("parts") as graph:
            ...     pending = graph.ndata["x"].read_later([3, 0])
            ...     print(pending.result().shape)
            torch.Size([2, 3])
        """
        wait = self._rows.read_later(rows_of_index(index, len(self)))
        return PendingRows(lambda: self._shaped(index, wait()))

    def __setitem__(self, index: Any, values: Any) -> None:
        """Writes rows; values: [n, ...], or one row or number for all."""
        table, rows = self.table, rows_of_index(index, len(self))
        table.write(rows, values_for(values, self._kind, (len(rows), *table.row_shape), self.name))

    def add_(self, rows: Any, values: Any) -> DistTensor:
        """Adds values to rows. A row that comes twice gets both values, and additions of several ranks are all applied."""
        table, at = self.table, rows_of_index(rows, len(self))
        table.add(at, values_for(values, self._kind, (len(at), *table.row_shape), self.name))
        return self

    def fill_(self, value: Any) -> DistTensor:
        """Sets every row to a number or a row."""
        self.table.fill(values_for(value, self._kind, self.table.row_shape, self.name))
        return self

    def count_nonzero(self) -> int:
        """Number of values that are not zero."""
        return self._rows.count_nonzero()

    def __or__(self, other: object) -> DistTensor:
        """Returns the union of two masks as a new one. A collective call."""
        if not isinstance(other, DistTensor):
            return NotImplemented
        if (
            other.space is not self.space
            or not self.shape == other.shape
            or {self._kind.name, other._kind.name} != {"bool"}
        ):
            raise DataError(f"|: expected two masks of one type, got {self!r} and {other!r}.")
        union = DistTensor(tuple(self.shape), self.dtype, of=self.of, graph=self.graph)
        for rows in self.graph.tables.own_rows(self.space, _AT_ONCE):
            union.table.write(rows, self._rows.read(rows) | other._rows.read(rows))
        self.graph.barrier()
        return union

    @property
    def local_rows(self) -> list[tuple[int, np.ndarray]]:
        """(number of the first row, read-only view of the rows) of each part in the memory of this host; bfloat16 as uint16."""
        views = []
        for each in self.table.own_parts:
            view = self.table.own[each.begin : each.begin + each.count]
            view.flags.writeable = False
            views.append((each.first, view))
        return views

    def close(self) -> None:
        """Closes this rank's view of the tensor. When all ranks have closed theirs, its memory is free and its name can be given
        to another one. Safe to call twice."""
        self.table.close()


def only_graph() -> DistGraph:
    """The graph that is open in this process. Raises `DataError` if none is, or several are."""
    graphs = list(OPEN_GRAPHS)
    if len(graphs) != 1:
        number = f"{len(graphs)} are open" if graphs else "none is open"
        raise DataError(
            f"tensor: graph: {number} in this process. Give graph=, the DistGraph that the tensor belongs to."
        )
    return graphs[0]


def init_of(init: Any, dtype: torch.dtype) -> Any:
    """Converts ``init`` for `TableSpec`: tensors, and those that a callable returns, become arrays."""
    if isinstance(init, Tensor):
        if init.dtype != dtype:
            raise DataError(f"tensor: init: expected values of {dtype}, got {init.dtype}. Convert them.")
        return to_array(init)
    if callable(init) and not hasattr(init, "__array__"):

        def called(shape: tuple[int, ...], _dtype: np.dtype) -> np.ndarray:
            values = init(shape, dtype)
            return to_array(values.to(dtype)) if isinstance(values, Tensor) else np.asarray(values)

        called.__qualname__ = getattr(init, "__qualname__", type(init).__qualname__)
        return called
    return init


def load_tensors(graph: DistGraph, reader: GraphReader, folder: Path) -> list[DistTensor]:
    """Reads all tensors of a folder into those of the same name, or into new ones. A collective call. Raises `DataError`, on
    other ranks `PeerError`."""
    saved = graph.ranks.all_or_none(lambda: SavedRows(folder, None), lambda _: None)
    found = []
    for name, each in saved.tables.items():
        kind, row_shape = kind_and_shape(saved, name)
        space = graph.space(each["of"])
        if name in graph.tables.named:
            tensor = DistTensor.over(graph, graph.tables[name])
        else:
            shape, dtype = (space.num_rows, *row_shape), torch_dtype(ValueType.of(kind))
            tensor = DistTensor(shape, dtype, name, of=space.label, graph=graph)
        graph.ranks.all_or_none(partial(load_table, saved, graph.tables, tensor.table, reader), lambda _: None)
        found.append(tensor)
    return found


# Between torch tensors and the numpy arrays of tables.


def torch_dtype(kind: ValueType) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, kind.name)
    return dtype


def to_array(values: Tensor) -> np.ndarray:
    """Returns the array that tables store for a tensor; bfloat16 as uint16. It shares the memory of a tensor on the CPU."""
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view(np.uint16)
    return values.numpy()


def to_tensor(array: np.ndarray, kind: ValueType) -> Tensor:
    """Returns a tensor over the memory of a stored array."""
    if kind.is_bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def rows_of_index(index: Any, count: int) -> np.ndarray:
    """Returns int64 [n]: the rows that an index names: integers, a slice, a mask [count]. Raises `DataError` for anything
    else."""
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    ids = np.asarray(to_array(index) if isinstance(index, Tensor) else index)
    if ids.ndim == 0 and ids.dtype.kind in "iu":
        ids = ids.reshape(1)
    if ids.dtype == np.bool_ and ids.shape == (count,):
        return np.flatnonzero(ids)
    refuse_integer_mask("rows", ids, count)
    if ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids)):
        return ids.astype(np.int64)
    raise DataError(
        f"rows: expected integers [n], a slice or a mask of bool [{count}]; got {ids.dtype} {list(ids.shape)}."
    )


def values_for(values: Any, kind: ValueType, shape: tuple[int, ...], name: str) -> np.ndarray:
    """``values``, a tensor, an array or numbers, as rows of ``shape``; one row or one number stands for all.
    Raises `DataError` for another dtype or shape."""
    given, dtype = values, torch_dtype(kind)
    values = (
        torch.as_tensor(values) if isinstance(values, (Tensor, np.ndarray)) else torch.as_tensor(values, dtype=dtype)
    )
    if values.dtype != dtype:
        raise DataError(f"tensor {name!r}: expected values of {dtype}, got {values.dtype}. Convert them.")
    try:
        spread = torch.broadcast_to(values, shape)
    except RuntimeError:
        got = list(np.shape(given)) if not isinstance(given, Tensor) else list(given.shape)
        raise DataError(f"tensor {name!r}: expected values {list(shape)}, or of one row; got {got}.") from None
    return np.ascontiguousarray(to_array(spread.contiguous()))
