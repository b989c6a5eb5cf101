"""Distributed training of graph neural networks as a PyTorch Lightning plugin.

Names are imported when they are first asked for: a sampler process, or Python looking for ``lightning.__main__``, must
not pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import __version__, lazy_names, listed_names

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


__all__ = [*listed_names(__name__), "__version__"]

__getattr__, __dir__ = lazy_names(__name__)
