"""Tensors, embeddings and their optimizers, made with DGL's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning import tensors
from glt_lightning.base import DataError, EdgeType, NodeType
from glt_lightning.compat.dgl.graph import current_graph
from glt_lightning.tensors import EmbeddingRows, SparseOptimizer, init_of


class DistTensor(tensors.DistTensor):
    """A tensor with a row for each node or edge of a type, of the graph that was made last. A collective call.

    Args:
        shape: [N, ...].
        dtype: Of torch.
        name: Under which every rank finds it.
        init_func: ``f(shape, dtype)`` or any ``init`` of our `DistTensor`; None: zeros.
        part_policy: Node type or edge type, where several have N rows; `DistGraph.get_node_partition_policy` gives it.
        persistent: Needs a name. All tensors live until ``close`` of theirs or of the graph.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        name: str | None = None,
        init_func: Any = None,
        part_policy: NodeType | EdgeType | None = None,
        persistent: bool = False,
    ) -> None:
        if persistent and name is None:
            raise DataError("DistTensor: persistent: a tensor without a name cannot be found again. Give it a name.")
        super().__init__(shape, dtype, name, init_func, part_policy, current_graph())


class DistEmbedding(tensors.DistEmbedding):
    """A vector for each node of a type, of the graph that was made last. A collective call.

    Args:
        num_embeddings: Number of the type's nodes.
        embedding_dim: Width of the vectors.
        name: Who names an embedding that there is gets its rows. None: no other one has them. All live until the graph
            is closed.
        init_func: ``f(shape, dtype)`` or any ``init`` of our `DistTensor`; None: zeros.
        part_policy: Node type, where several have as many nodes.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: Any = None,
        part_policy: NodeType | None = None,
    ) -> None:
        graph, where = current_graph(), f"embedding {name!r}"
        if part_policy is None:  # an edge type with as many rows is not meant
            of_nodes = [t for t in graph.node_types if graph.num_nodes(t) == num_embeddings]
            part_policy = of_nodes[0] if len(of_nodes) == 1 else None
        space = graph.space_of_rows((num_embeddings, embedding_dim), part_policy, where)
        if space.kind != "node":
            raise DataError(f"{where}: num_embeddings: embeddings are of nodes, and {space.label!r} is an edge type.")
        first = "zeros" if init_func is None else init_of(init_func, torch.float32)
        super().__init__(embedding_dim, str(space.of), init=first)
        self.num_embeddings = num_embeddings
        if name in graph.embeddings:
            self._share(graph.embeddings[name], where)
            return
        name = f"embedding-{len(graph.embeddings)}" if name is None else name
        self.attach(graph, name)
        graph.embeddings[name] = self.rows

    def _share(self, rows: EmbeddingRows, where: str) -> None:
        there = (rows.space.num_rows, *rows.table.row_shape)
        if there != (self.num_embeddings, self.embedding_dim):
            raise DataError(f"{where}: is there already, as {list(there)}. Use another name.")
        self._rows = rows

    @property
    def name(self) -> str:
        return self.rows.name

    def forward(self, idx: Any, device: Any = None) -> Tensor:
        """float32 [n, embedding_dim] of rows [n]: a tensor, an array or a list."""
        rows = idx if isinstance(idx, Tensor) else torch.from_numpy(np.asarray(idx, dtype=np.int64))
        values: Tensor = super().forward(rows)
        return values if device is None else values.to(device)


class SavesRows(SparseOptimizer):
    """What the optimizers share: DGL's way to save, here with the rows themselves."""

    def save(self, f: str | Path) -> None:
        """Writes the embeddings and the states of their rows to a new folder, by the user's ids. A collective call."""
        self.save_rows(Path(f))

    def load(self, f: str | Path) -> None:
        """Reads what `save` has written, with any number of parts and ranks, into embeddings of the same names. A collective
        call."""
        self.load_rows(Path(f))


class SparseAdagrad(SavesRows, tensors.SparseAdagrad):
    """Adagrad for the rows that a batch of any rank looked up. A row's gradient is the mean over its lookups, as in DGL.

    Args:
        params: Embeddings.
        lr: Learning rate.
        eps: Added to the root.
    """

    def __init__(self, params: Any, lr: float, eps: float = 1e-10) -> None:
        super().__init__(params, lr, eps=eps, reduction="occurrences")


class SparseAdam(SavesRows, tensors.SparseAdam):
    """Adam for the rows that a batch of any rank looked up; else as `SparseAdagrad`.

    Args:
        params: Embeddings.
        lr: Learning rate.
        betas: Of the two moments.
        eps: Added to the root.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(params, lr, betas=betas, eps=eps, reduction="occurrences")
