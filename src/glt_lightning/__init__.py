"""Distributed training of graph neural networks as a PyTorch Lightning plugin.

Names are imported when they are first asked for: a sampler process, or Python looking for ``lightning.__main__``, must
not pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import __version__, lazy_names

if TYPE_CHECKING:
    from glt_lightning.base import (
        CacheOptions as CacheOptions,
        ClusterOptions as ClusterOptions,
        ImportanceNeighbors as ImportanceNeighbors,
        LayerwiseOptions as LayerwiseOptions,
        NegativeSampling as NegativeSampling,
        PartitionOptions as PartitionOptions,
        RecommendOptions as RecommendOptions,
        SamplingOptions as SamplingOptions,
        TensorOptions as TensorOptions,
    )
    from glt_lightning.graph import LocalPartition as LocalPartition
    from glt_lightning.inference import rank_links as rank_links
    from glt_lightning.lightning import (
        GLTDataModule as GLTDataModule,
        GLTServerClientStrategy as GLTServerClientStrategy,
        GLTWorkerStrategy as GLTWorkerStrategy,
        PredictionWriter as PredictionWriter,
        SamplingMonitor as SamplingMonitor,
        deploy as deploy,
        predict_layerwise as predict_layerwise,
        predict_new as predict_new,
        read_embeddings as read_embeddings,
        recommend as recommend,
        replay as replay,
    )
    from glt_lightning.loader import (
        DistLinkNeighborLoader as DistLinkNeighborLoader,
        DistNeighborLoader as DistNeighborLoader,
        DistSubGraphLoader as DistSubGraphLoader,
        Layer as Layer,
        LinkSpec as LinkSpec,
        LoaderSpec as LoaderSpec,
        Session as Session,
        as_blocks as as_blocks,
        layers as layers,
    )
    from glt_lightning.models import (
        OGBMRR as OGBMRR,
        EdgePredictor as EdgePredictor,
        GraphSAGE as GraphSAGE,
        HitsAtK as HitsAtK,
        LinkPredictor as LinkPredictor,
        NodePredictor as NodePredictor,
    )
    from glt_lightning.tensors import (
        DistEmbedding as DistEmbedding,
        DistGraph as DistGraph,
        DistTensor as DistTensor,
        Optimizers as Optimizers,
        SparseAdagrad as SparseAdagrad,
        SparseAdam as SparseAdam,
        SparseSGD as SparseSGD,
        edge_split as edge_split,
        node_split as node_split,
    )


_HOMES = {
    "CacheOptions": "glt_lightning.base",
    "ClusterOptions": "glt_lightning.base",
    "DistEmbedding": "glt_lightning.tensors",
    "DistGraph": "glt_lightning.tensors",
    "DistLinkNeighborLoader": "glt_lightning.loader",
    "DistNeighborLoader": "glt_lightning.loader",
    "DistSubGraphLoader": "glt_lightning.loader",
    "DistTensor": "glt_lightning.tensors",
    "EdgePredictor": "glt_lightning.models",
    "GLTDataModule": "glt_lightning.lightning",
    "GLTServerClientStrategy": "glt_lightning.lightning",
    "GLTWorkerStrategy": "glt_lightning.lightning",
    "GraphSAGE": "glt_lightning.models",
    "HitsAtK": "glt_lightning.models",
    "Layer": "glt_lightning.loader",
    "LayerwiseOptions": "glt_lightning.base",
    "LinkPredictor": "glt_lightning.models",
    "LinkSpec": "glt_lightning.loader",
    "LoaderSpec": "glt_lightning.loader",
    "LocalPartition": "glt_lightning.graph",
    "ImportanceNeighbors": "glt_lightning.base",
    "NegativeSampling": "glt_lightning.base",
    "NodePredictor": "glt_lightning.models",
    "OGBMRR": "glt_lightning.models",
    "Optimizers": "glt_lightning.tensors",
    "PartitionOptions": "glt_lightning.base",
    "PredictionWriter": "glt_lightning.lightning",
    "RecommendOptions": "glt_lightning.base",
    "SamplingMonitor": "glt_lightning.lightning",
    "SamplingOptions": "glt_lightning.base",
    "TensorOptions": "glt_lightning.base",
    "as_blocks": "glt_lightning.loader",
    "Session": "glt_lightning.loader",
    "SparseAdagrad": "glt_lightning.tensors",
    "SparseAdam": "glt_lightning.tensors",
    "SparseSGD": "glt_lightning.tensors",
    "deploy": "glt_lightning.lightning",
    "edge_split": "glt_lightning.tensors",
    "layers": "glt_lightning.loader",
    "node_split": "glt_lightning.tensors",
    "predict_layerwise": "glt_lightning.lightning",
    "predict_new": "glt_lightning.lightning",
    "rank_links": "glt_lightning.inference",
    "read_embeddings": "glt_lightning.lightning",
    "recommend": "glt_lightning.lightning",
    "replay": "glt_lightning.lightning",
}

__all__ = [*_HOMES, "__version__"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
