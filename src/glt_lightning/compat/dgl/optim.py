"""`dgl.distributed.optim`: optimizers of embeddings."""

from glt_lightning.compat.dgl.tensors import SparseAdagrad, SparseAdam

__all__ = ["SparseAdagrad", "SparseAdam"]
