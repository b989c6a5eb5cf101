"""`dgl.distributed.optim`: optimizers of embeddings."""

from glt_lightning.dgl.tensors import SparseAdagrad, SparseAdam

__all__ = ["SparseAdagrad", "SparseAdam"]
