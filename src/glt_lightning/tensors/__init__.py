"""Users' tensors with a row for each node or edge of a partitioned graph: `DistTensor`, and `DistEmbedding`, whose rows are
trained by sparse optimizers.

A table lies in a memfd that the first rank of a host makes and all ranks of the host map (docs/decisions/019). Reads
and the steps of optimizers touch the memory directly; plain writes hold the table's ``flock``, which the kernel frees
when its holder dies. Rows of other hosts are read from, and written by, the shard server of that host (``home.py``).
Gradients of embeddings are exchanged by the ranks once per step (``exchange.py``); rows go beside the checkpoint, each
host its own (``checkpoints.py``).

`DistGraph` maps the user's ids to rows, and offers data, neighbours, random walks and splits (`node_split`, `edge_split`).

Runs in the ranks.

Example:
    >>> import torch
    >>> from glt_lightning.tensors import DistGraph, DistTensor
    >>> with DistGraph("parts") as graph:
    ...     h = DistTensor((graph.num_nodes(), 2), torch.float32, "h")
    ...     h[[1]] = torch.tensor([[1.0, 2.0]])
    ...     print(h[[0, 1]].tolist())
    [[0.0, 0.0], [1.0, 2.0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.tensors.checkpoints import (
        CheckpointRows as CheckpointRows,
        forget_rows as forget_rows,
    )
    from glt_lightning.tensors.combined import Optimizers as Optimizers
    from glt_lightning.tensors.dist_embedding import DistEmbedding as DistEmbedding
    from glt_lightning.tensors.dist_graph import (
        DistGraph as DistGraph,
        Neighbors as Neighbors,
    )
    from glt_lightning.tensors.dist_ranks import (
        end_group_at_exit as end_group_at_exit,
        ranks_in_group as ranks_in_group,
        ranks_of_this_process as ranks_of_this_process,
    )
    from glt_lightning.tensors.dist_split import (
        edge_split as edge_split,
        node_split as node_split,
    )
    from glt_lightning.tensors.dist_tensor import (
        DistTensor as DistTensor,
        init_of as init_of,
        rows_of_index as rows_of_index,
    )
    from glt_lightning.tensors.exchange import EmbeddingRows as EmbeddingRows
    from glt_lightning.tensors.home import Reach as Reach
    from glt_lightning.tensors.reader import GraphReader as GraphReader
    from glt_lightning.tensors.scratch import lies_in_memory as lies_in_memory
    from glt_lightning.tensors.space import RowSpace as RowSpace
    from glt_lightning.tensors.sparse import (
        SparseAdagrad as SparseAdagrad,
        SparseAdam as SparseAdam,
        SparseOptimizer as SparseOptimizer,
        SparseSGD as SparseSGD,
    )
    from glt_lightning.tensors.table import SharedTable as SharedTable
    from glt_lightning.tensors.tables import (
        SharedTables as SharedTables,
        TableSpec as TableSpec,
    )


__all__ = [
    "DistEmbedding",
    "DistGraph",
    "DistTensor",
    "Optimizers",
    "SparseAdagrad",
    "SparseAdam",
    "SparseSGD",
    "edge_split",
    "node_split",
]

__getattr__, __dir__ = lazy_names(__name__)
