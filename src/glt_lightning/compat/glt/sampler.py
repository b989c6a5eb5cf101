"""GLT's `sampler`: a sampler for scripts, its inputs and outputs."""

from __future__ import annotations

from glt_lightning.base import lazy_names

_SEEDS = "{name}: loaders of clients take ids, paths of tensors or a Split as input_nodes."
_REMOTE = ("RemoteNodePathSamplerInput", "RemoteNodeSplitSamplerInput", "RemoteSamplerInput")
_INSIDE = ("BaseSampler", "EdgeIndex", "NegativeSamplingMode", "SamplingConfig", "SamplingType")
_OPTIONS = "{name}: what GLT says by it are arguments of loaders here."
_REFUSED = {
    **dict.fromkeys(_REMOTE, _SEEDS),
    **dict.fromkeys(_INSIDE, _OPTIONS),
    "EdgeSamplerInput": "{name}: loaders of edges take edge_label_index=edges, edge_label and neg_sampling.",
    "NeighborOutput": "{name}: NeighborSampler(graph, [count]).sample_from_nodes(seeds) gives one hop as a SamplerOutput.",
    "RandomNegativeSampler": "{name}: loaders of edges draw negatives: neg_sampling='binary'. A script of its own draws pairs by "
    "torch.randint.",
}
_HOMES = {
    "NegativeSampling": "glt_lightning.compat.glt.given",
    "NeighborSampler": "glt_lightning.compat.glt.sample_prob",
    "HeteroSamplerOutput": "glt_lightning.compat.glt.sampled",
    "NodeSamplerInput": "glt_lightning.compat.glt.sampled",
    "SamplerOutput": "glt_lightning.compat.glt.sampled",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
