"""A graph in memory, as a script of GraphLearn-for-PyTorch hands it over."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, OptionError
from glt_lightning.compat.glt.tensor_graph import edge_ends
from glt_lightning.partition import host_array

EdgeDir = Literal["in", "out"]
EDGE_ASSIGN = "edge_assign_strategy"  # in a manifest's made_by; absent means by_dst, which is edge_dir 'in'
_LAYOUTS = ("COO", "CSR", "CSC")


class Topology:
    """Edges as compressed rows.

    Args:
        edge_index: Integers [2, E], row 0 the sources, or the pair of them; with another ``input_layout`` the pair of pointers
            and neighbours.
        edge_ids: Integers [E], in the order of ``edge_index``. None: its columns.
        edge_weights: Numbers [E], likewise.
        input_layout: ``COO``, ``CSR`` or ``CSC``: what ``edge_index`` is.
        layout: ``CSR``: a row lists the destinations of a source, for out-bound sampling; ``CSC``: a row lists the
            sources of a destination, for in-bound sampling.

    Attributes:
        indptr: int64 [rows + 1]; as many rows as the largest id asks for.
        indices: int64 [E], ascending by id, then by position, within a row.
        edge_ids: int64 [E], in the same order.
        edge_weights: float32 [E], in the same order, or None.

    Raises:
        DataError: For edges that are not integers [2, E] >= 0. OptionError: For another layout.

    Example:
        >>> topology = Topology(np.array([[1, 0, 0], [2, 1, 2]]))
        >>> topology.indptr, topology.indices, topology.edge_ids
        (tensor([0, 2, 3]), tensor([1, 2, 2]), tensor([1, 2, 0]))
    """

    def __init__(
        self,
        edge_index: Any,
        edge_ids: Any = None,
        edge_weights: Any = None,
        input_layout: str = "COO",
        layout: str = "CSR",
    ) -> None:
        given, self.layout = _layout("input_layout", input_layout, _LAYOUTS), _layout("layout", layout, _LAYOUTS[1:])
        rows, neighbors = _ends(edge_index, given, self.layout)
        count = len(rows)
        largest = int(max(rows.max(initial=-1), neighbors.max(initial=-1), count))
        least = int(min(rows.min(initial=0), neighbors.min(initial=0)))
        if least < 0:
            raise DataError(f"Topology: edge_index has a negative id, {least}.")
        order = np.lexsort((neighbors, rows)) if given != self.layout else np.arange(count)
        dtype = np.int32 if largest < 2**31 else np.int64
        self.neighbors = neighbors[order].astype(dtype)  # as few bytes as they need: `sample_prob` reads these
        self.pointers = np.concatenate([[0], np.cumsum(np.bincount(rows))]).astype(np.int64)
        ids = np.arange(count) if edge_ids is None else _per_edge("edge_ids", edge_ids, count)
        weights = None if edge_weights is None else _per_edge("edge_weights", edge_weights, count)
        self.edge_ids = torch.from_numpy(ids[order].astype(np.int64))
        self.edge_weights = None if weights is None else torch.from_numpy(weights[order].astype(np.float32))

    @property
    def indptr(self) -> Tensor:
        return torch.from_numpy(self.pointers)

    @property
    def indices(self) -> Tensor:
        return torch.from_numpy(self.neighbors).long()

    @property
    def degrees(self) -> Tensor:
        """int64 [rows]."""
        return self.indptr.diff()

    @property
    def row_count(self) -> int:
        return len(self.pointers) - 1

    @property
    def edge_count(self) -> int:
        return len(self.neighbors)

    def to_coo(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(sources, destinations, edge_ids, edge_weights), in the order of rows."""
        rows = torch.repeat_interleave(torch.arange(self.row_count), self.degrees)
        ends = (rows, self.indices) if self.layout == "CSR" else (self.indices, rows)
        return (*ends, self.edge_ids, self.edge_weights)

    def to_csr(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(pointers, destinations, edge_ids, edge_weights)."""
        return self._as("CSR")

    def to_csc(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(sources, pointers, edge_ids, edge_weights): GLT has the pointers of columns second."""
        pointers, indices, ids, weights = self._as("CSC")
        return indices, pointers, ids, weights

    def _as(self, layout: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        found = self
        if layout != self.layout:
            sources, destinations, ids, weights = self.to_coo()
            found = Topology((sources, destinations), ids, weights, layout=layout)
        return found.indptr, found.indices, found.edge_ids, found.edge_weights


class Graph:
    """A topology, and whether a script samples it on the ``CPU`` or a GPU (``ZERO_COPY``, ``CUDA``).

    The rows are held in host memory in each case.

    Args:
        csr_topo: The topology.
        mode: ``CPU``, ``ZERO_COPY`` or ``CUDA``.
        device: Number of the GPU. None: the current one.

    Raises:
        OptionError: For another mode, or for an object that is not a `Topology`.

    Example:
        >>> topology = Topology(np.array([[0, 0, 1], [1, 2, 2]]))
        >>> graph = Graph(topology, mode="CPU")
        >>> graph.edge_count, graph.row_count, graph.col_count, graph.mode
        (3, 2, 2, 'CPU')
    """

    def __init__(self, csr_topo: Topology, mode: str = "ZERO_COPY", device: int | None = None) -> None:
        if mode.upper() not in ("CPU", "ZERO_COPY", "CUDA"):
            raise OptionError(f"Graph: mode: expected 'CPU', 'ZERO_COPY' or 'CUDA', got {mode!r}.")
        if not isinstance(csr_topo, Topology):
            raise OptionError(f"Graph: expected a Topology, got {type(csr_topo).__name__}.")
        self.topo, self.mode, self.device = csr_topo, mode.upper(), device

    @property
    def row_count(self) -> int:
        return self.topo.row_count

    @property
    def col_count(self) -> int:
        """Number of different neighbours."""
        return len(np.unique(self.topo.neighbors))

    @property
    def edge_count(self) -> int:
        return self.topo.edge_count

    def lazy_init(self) -> None:
        """Nothing is left to do."""

    def export_topology(self) -> tuple[Tensor, Tensor, Tensor]:
        """(pointers, neighbours, edge_ids)."""
        return self.topo.indptr, self.topo.indices, self.topo.edge_ids


def _layout(name: str, given: str, known: tuple[str, ...]) -> str:
    if str(given).upper() not in known:
        raise OptionError(f"Topology: {name}: expected {' or '.join(map(repr, known))}, got {given!r}.")
    return str(given).upper()


def _ends(edge_index: Any, given: str, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """(row, neighbour) of each edge."""
    if given == "COO":
        ends = edge_ends("edge_index", edge_index)
        return (ends[0], ends[1]) if layout == "CSR" else (ends[1], ends[0])
    pair = [host_array("edge_index", each) for each in edge_index]
    if len(pair) != 2:
        raise DataError(f"Topology: edge_index: expected pointers and neighbours for {given}, got {len(pair)} arrays.")
    pointers, neighbors = pair if given == "CSR" else pair[::-1]
    if len(pointers) < 1 or pointers[0] != 0 or (np.diff(pointers) < 0).any() or pointers[-1] != len(neighbors):
        raise DataError(
            f"Topology: edge_index: expected pointers from 0 to the {len(neighbors)} neighbours, ascending. In CSC they come "
            "second, after the sources."
        )
    rows = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return (rows, neighbors) if given == layout else (neighbors, rows)


def _per_edge(name: str, given: Any, count: int) -> np.ndarray:
    array = host_array(name, given)
    if array.shape != (count,):
        raise DataError(f"Topology: {name}: expected one for each of {count} edges, got {list(array.shape)}.")
    return array
