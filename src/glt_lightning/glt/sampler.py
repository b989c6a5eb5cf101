"""GLT's `sampler`: a sampler for scripts, its inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.given import (
        NegativeSampling as NegativeSampling,
    )
    from glt_lightning.glt.negatives import (
        RandomNegativeSampler as RandomNegativeSampler,
    )
    from glt_lightning.glt.sample_prob import (
        NeighborSampler as NeighborSampler,
    )
    from glt_lightning.glt.sampled import (
        EdgeSamplerInput as EdgeSamplerInput,
        HeteroSamplerOutput as HeteroSamplerOutput,
        NeighborOutput as NeighborOutput,
        NodeSamplerInput as NodeSamplerInput,
        SamplerOutput as SamplerOutput,
    )

_SEEDS = "{name}: loaders of clients take ids, paths of tensors or a Split as input_nodes."
_REMOTE = ("RemoteNodePathSamplerInput", "RemoteNodeSplitSamplerInput", "RemoteSamplerInput")
_HOMES = {
    "NegativeSampling": "glt_lightning.glt.given",
    "RandomNegativeSampler": "glt_lightning.glt.negatives",
    "NeighborSampler": "glt_lightning.glt.sample_prob",
    "EdgeSamplerInput": "glt_lightning.glt.sampled",
    "HeteroSamplerOutput": "glt_lightning.glt.sampled",
    "NeighborOutput": "glt_lightning.glt.sampled",
    "NodeSamplerInput": "glt_lightning.glt.sampled",
    "SamplerOutput": "glt_lightning.glt.sampled",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, dict.fromkeys(_REMOTE, _SEEDS))
