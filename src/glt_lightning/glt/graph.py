"""A graph in memory, as a script of GraphLearn-for-PyTorch hands it over."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from glt_lightning.errors import DataError, OptionError
from glt_lightning.partition.sources.arrays import edge_ends

EdgeDir = Literal["in", "out"]
EDGE_ASSIGN = "edge_assign_strategy"  # in a manifest's made_by; absent means by_dst, which is edge_dir 'in'


class Topology:
    """Edges as compressed rows.

    Args:
        edge_index: Integers [2, E], row 0 the sources; or the pair of them.
        input_layout: ``COO``: that is what edge_index is.
        layout: ``CSR``: a row lists the destinations of a source, for out-bound sampling; ``CSC``: a row lists the
            sources of a destination, for in-bound sampling.

    Attributes:
        indptr: int64 [rows + 1]; as many rows as the largest id asks for.
        indices: int32 or int64 [E], ascending by edge id within a row.
        edge_ids: The same, columns of ``edge_index``.

    Raises:
        DataError: For edges that are not integers [2, E] >= 0. OptionError: For another layout.

    Example:
        >>> topology = Topology(np.array([[1, 0, 0], [2, 1, 2]]))
        >>> topology.indptr, topology.indices, topology.edge_ids
        (array([0, 2, 3]), array([1, 2, 2], dtype=int32), array([1, 2, 0], dtype=int32))
    """

    def __init__(self, edge_index: Any, *, input_layout: str = "COO", layout: str = "CSR") -> None:
        if input_layout.upper() != "COO":
            raise OptionError(f"Topology: input_layout: expected 'COO', got {input_layout!r}. Give edge_index [2, E].")
        self.layout = layout.upper()
        if self.layout not in ("CSR", "CSC"):
            raise OptionError(f"Topology: layout: expected 'CSR' or 'CSC', got {layout!r}.")
        ends = edge_ends("edge_index", edge_index)
        rows, neighbors = ends if self.layout == "CSR" else ends[::-1]
        largest = int(max(ends.max(initial=-1), ends.shape[1]))
        if ends.min(initial=0) < 0:
            raise DataError(f"Topology: edge_index has a negative id, {int(ends.min())}.")
        self.edge_ids = np.argsort(rows, kind="stable").astype(np.int32 if largest < 2**31 else np.int64)
        self.indices = neighbors[self.edge_ids].astype(self.edge_ids.dtype)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(rows))]).astype(np.int64)

    @property
    def degrees(self) -> np.ndarray:
        """int64 [rows]."""
        return np.diff(self.indptr)

    @property
    def row_count(self) -> int:
        return len(self.indptr) - 1

    @property
    def edge_count(self) -> int:
        return len(self.indices)


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
        >>> graph.topo.edge_count, graph.mode
        (3, 'CPU')
    """

    def __init__(self, csr_topo: Topology, mode: str = "ZERO_COPY", device: int | None = None) -> None:
        if mode.upper() not in ("CPU", "ZERO_COPY", "CUDA"):
            raise OptionError(f"Graph: mode: expected 'CPU', 'ZERO_COPY' or 'CUDA', got {mode!r}.")
        if not isinstance(csr_topo, Topology):
            raise OptionError(f"Graph: expected a Topology, got {type(csr_topo).__name__}.")
        self.topo, self.mode, self.device = csr_topo, mode.upper(), device
