"""`dgl.dataloading`: samplers of blocks, and loaders of them."""

from __future__ import annotations

from glt_lightning.base import lazy_names
from glt_lightning.compat.dgl import samplers as negative_sampler
from glt_lightning.compat.dgl.loaders import (
    DistDataLoader,
    DistEdgeDataLoader,
    DistNodeDataLoader,
    EdgeDataLoader,
    NodeDataLoader,
)
from glt_lightning.compat.dgl.samplers import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
)

_COLLATE = "{name}: NodeDataLoader and EdgeDataLoader make the batches; sampler.sample_blocks(g, seeds) makes one."
_EDGES = "{name}: EdgeDataLoader takes exclude, reverse_eids, reverse_etypes and negative_sampler."
_REFUSED = {
    "ShaDowKHopSampler": "{name}: a subgraph for each seed: Session.make_subgraph_loader(LoaderSpec(..., disjoint=True)).",
    "ClusterGCNSampler": "{name}: clusters are not sampled here. Use NeighborSampler on a METIS partition.",
    "SAINTSampler": "{name}: not offered. Session.make_subgraph_loader gives the edges among seeds and their neighbours.",
    "GraphDataLoader": "{name}: batches of many small graphs: torch_geometric.loader.DataLoader.",
    "GraphCollator": "{name}: batches of many small graphs: torch_geometric.loader.DataLoader.",
    "SpotTarget": "{name}: use exclude='self', 'reverse_id' or 'reverse_types', which take all target edges out.",
    "Sampler": "{name}: samplers of one's own begin with BlockSampler.",
    "Collator": _COLLATE,
    "EdgeCollator": _COLLATE,
    "NodeCollator": _COLLATE,
    "DataLoader": "{name}: use NodeDataLoader, or EdgeDataLoader for edges.",
    "EdgePredictionSampler": _EDGES,
    "as_edge_prediction_sampler": _EDGES,
    "find_exclude_eids": _EDGES,
    "LaborSampler": "{name}: a Session with SamplingOptions(method='labor') draws by LABOR; as_blocks(loader) gives blocks.",
    "GPUCache": "{name}: rows are cached on GPUs by cache.device of a GLTDataModule: docs/cache.md.",
}

__all__ = [
    "BlockSampler",
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "EdgeDataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "NodeDataLoader",
    "negative_sampler",
]

__getattr__, __dir__ = lazy_names(__name__, {}, _REFUSED)
