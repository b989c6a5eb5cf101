"""Embeddings of nodes that lie in tables of rows, and the optimizers that train them."""

from __future__ import annotations

from glt_lightning.embedding.combined import Optimizers
from glt_lightning.embedding.dist_embedding import DistEmbedding
from glt_lightning.embedding.sparse import SparseAdagrad, SparseAdam, SparseSGD

__all__ = ["DistEmbedding", "Optimizers", "SparseAdagrad", "SparseAdam", "SparseSGD"]
