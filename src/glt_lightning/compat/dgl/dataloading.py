"""`dgl.dataloading`: samplers of blocks, and loaders of them."""

from __future__ import annotations

from glt_lightning.base import lazy_names
from glt_lightning.compat.dgl import samplers as negative_sampler
from glt_lightning.compat.dgl.edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler
from glt_lightning.compat.dgl.exclude import find_exclude_eids
from glt_lightning.compat.dgl.loaders import (
    DataLoader,
    DistDataLoader,
    DistEdgeDataLoader,
    DistNodeDataLoader,
    EdgeCollator,
    EdgeDataLoader,
    NodeCollator,
    NodeDataLoader,
)
from glt_lightning.compat.dgl.samplers import (
    BlockSampler,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
)

_REFUSED = {
    "ShaDowKHopSampler": "{name}: a subgraph for each seed: Session.make_subgraph_loader(LoaderSpec(..., disjoint=True)).",
    "ClusterGCNSampler": "{name}: clusters are not sampled here. Use NeighborSampler on a METIS partition.",
    "SAINTSampler": "{name}: not offered. Session.make_subgraph_loader gives the edges among seeds and their neighbours.",
    "GraphDataLoader": "{name}: batches of many small graphs: torch_geometric.loader.DataLoader.",
    "GraphCollator": "{name}: batches of many small graphs: torch_geometric.loader.DataLoader.",
    "SpotTarget": "{name}: use exclude='self', 'reverse_id' or 'reverse_types', which take all target edges out.",
    "Sampler": "{name}: samplers of one's own begin with BlockSampler.",
    "Collator": "{name}: use NodeCollator, EdgeCollator or a function.",
    "GPUCache": "{name}: rows are cached on GPUs by cache.device of a GLTDataModule: docs/cache.md.",
}

__all__ = [
    "BlockSampler",
    "DataLoader",
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "EdgeCollator",
    "EdgeDataLoader",
    "EdgePredictionSampler",
    "LaborSampler",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "NodeCollator",
    "NodeDataLoader",
    "as_edge_prediction_sampler",
    "find_exclude_eids",
    "negative_sampler",
]

__getattr__, __dir__ = lazy_names(__name__, {}, _REFUSED)
