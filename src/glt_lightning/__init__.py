"""Distributed training of graph neural networks as a PyTorch Lightning plugin.

Names are imported when they are first asked for: a sampler process, or Python looking for ``lightning.__main__``, must
not pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.data import LocalPartition as LocalPartition
    from glt_lightning.embedding import (
        DistEmbedding as DistEmbedding,
        Optimizers as Optimizers,
        SparseAdagrad as SparseAdagrad,
        SparseAdam as SparseAdam,
        SparseSGD as SparseSGD,
    )
    from glt_lightning.inference.ranking import rank_links as rank_links
    from glt_lightning.lightning import (
        GLTDataModule as GLTDataModule,
        GLTServerClientStrategy as GLTServerClientStrategy,
        GLTWorkerStrategy as GLTWorkerStrategy,
        PredictionWriter as PredictionWriter,
        SamplingMonitor as SamplingMonitor,
    )
    from glt_lightning.lightning.layerwise.predict import predict_layerwise as predict_layerwise
    from glt_lightning.lightning.layerwise.writer import read_embeddings as read_embeddings
    from glt_lightning.lightning.models import (
        OGBMRR as OGBMRR,
        GraphSAGE as GraphSAGE,
        HitsAtK as HitsAtK,
        LinkPredictor as LinkPredictor,
        NodePredictor as NodePredictor,
    )
    from glt_lightning.loader import (
        DistLinkNeighborLoader as DistLinkNeighborLoader,
        DistNeighborLoader as DistNeighborLoader,
        DistSubGraphLoader as DistSubGraphLoader,
        Layer as Layer,
        LinkSpec as LinkSpec,
        LoaderContext as LoaderContext,
        LoaderSpec as LoaderSpec,
        as_blocks as as_blocks,
        layers as layers,
    )
    from glt_lightning.options import (
        CacheOptions as CacheOptions,
        ClusterOptions as ClusterOptions,
        ImportanceNeighbors as ImportanceNeighbors,
        LayerwiseOptions as LayerwiseOptions,
        NegativeSampling as NegativeSampling,
        PartitionOptions as PartitionOptions,
        SamplingOptions as SamplingOptions,
        TensorOptions as TensorOptions,
    )
    from glt_lightning.tensors.dist_graph import DistGraph as DistGraph
    from glt_lightning.tensors.dist_split import edge_split as edge_split, node_split as node_split
    from glt_lightning.tensors.dist_tensor import DistTensor as DistTensor

__version__ = "0.1.0"

_HOMES = {
    "CacheOptions": "glt_lightning.options",
    "ClusterOptions": "glt_lightning.options",
    "DistEmbedding": "glt_lightning.embedding",
    "DistGraph": "glt_lightning.tensors.dist_graph",
    "DistLinkNeighborLoader": "glt_lightning.loader",
    "DistNeighborLoader": "glt_lightning.loader",
    "DistSubGraphLoader": "glt_lightning.loader",
    "DistTensor": "glt_lightning.tensors.dist_tensor",
    "GLTDataModule": "glt_lightning.lightning",
    "GLTServerClientStrategy": "glt_lightning.lightning",
    "GLTWorkerStrategy": "glt_lightning.lightning",
    "GraphSAGE": "glt_lightning.lightning.models",
    "HitsAtK": "glt_lightning.lightning.models",
    "Layer": "glt_lightning.loader",
    "LayerwiseOptions": "glt_lightning.options",
    "LinkPredictor": "glt_lightning.lightning.models",
    "LinkSpec": "glt_lightning.loader",
    "LoaderContext": "glt_lightning.loader",
    "LoaderSpec": "glt_lightning.loader",
    "LocalPartition": "glt_lightning.data",
    "ImportanceNeighbors": "glt_lightning.options",
    "NegativeSampling": "glt_lightning.options",
    "NodePredictor": "glt_lightning.lightning.models",
    "OGBMRR": "glt_lightning.lightning.models",
    "Optimizers": "glt_lightning.embedding",
    "PartitionOptions": "glt_lightning.options",
    "PredictionWriter": "glt_lightning.lightning",
    "SamplingMonitor": "glt_lightning.lightning",
    "SamplingOptions": "glt_lightning.options",
    "TensorOptions": "glt_lightning.options",
    "as_blocks": "glt_lightning.loader",
    "SparseAdagrad": "glt_lightning.embedding",
    "SparseAdam": "glt_lightning.embedding",
    "SparseSGD": "glt_lightning.embedding",
    "edge_split": "glt_lightning.tensors.dist_split",
    "layers": "glt_lightning.loader",
    "node_split": "glt_lightning.tensors.dist_split",
    "predict_layerwise": "glt_lightning.lightning.layerwise.predict",
    "rank_links": "glt_lightning.inference.ranking",
    "read_embeddings": "glt_lightning.lightning.layerwise.writer",
}

__all__ = [*_HOMES, "__version__"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
