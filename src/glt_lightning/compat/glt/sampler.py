"""GLT's `sampler`: a sampler for scripts, its inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    pass

_SEEDS = "{name}: loaders of clients take ids, paths of tensors or a Split as input_nodes."
_REMOTE = ("RemoteNodePathSamplerInput", "RemoteNodeSplitSamplerInput", "RemoteSamplerInput")
_HOMES = {
    "NegativeSampling": "glt_lightning.compat.glt.given",
    "RandomNegativeSampler": "glt_lightning.compat.glt.sampled",
    "NeighborSampler": "glt_lightning.compat.glt.sample_prob",
    "EdgeSamplerInput": "glt_lightning.compat.glt.sampled",
    "HeteroSamplerOutput": "glt_lightning.compat.glt.sampled",
    "NeighborOutput": "glt_lightning.compat.glt.sampled",
    "NodeSamplerInput": "glt_lightning.compat.glt.sampled",
    "SamplerOutput": "glt_lightning.compat.glt.sampled",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, dict.fromkeys(_REMOTE, _SEEDS))
