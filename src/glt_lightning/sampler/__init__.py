"""From seeds to batches: the epoch plan, requests, the k-hop sampler and what it returns.

``NeighborSampler`` is the GLT facade's, for scripts; batches of a partition are made by `khop.KHopSampler`.
"""

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names
from glt_lightning.ops.row_view import Picker, RowView, pick_uniform
from glt_lightning.sampler.own_batches import BatchSampler
from glt_lightning.sampler.plan import EpochPlan
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, Sample

if TYPE_CHECKING:
    from glt_lightning.glt.given import NegativeSampling as NegativeSampling
    from glt_lightning.glt.negatives import RandomNegativeSampler as RandomNegativeSampler
    from glt_lightning.glt.sample_prob import NeighborSampler
    from glt_lightning.glt.sampled import (
        EdgeSamplerInput as EdgeSamplerInput,
        HeteroSamplerOutput as HeteroSamplerOutput,
        NeighborOutput as NeighborOutput,
        NodeSamplerInput as NodeSamplerInput,
        SamplerOutput as SamplerOutput,
    )

_SAMPLED = ("EdgeSamplerInput", "HeteroSamplerOutput", "NeighborOutput", "NodeSamplerInput", "SamplerOutput")
_NEGATIVES = ("NegativeSampling", "RandomNegativeSampler")

__all__ = [
    "BatchRequest",
    "BatchSampler",
    "Draft",
    "EpochPlan",
    "NeighborSampler",
    "Picker",
    "RowView",
    "Sample",
    "SamplerConfig",
    "pick_uniform",
    *_NEGATIVES,
    *_SAMPLED,
]

_SEEDS = "{name}: loaders of clients take ids, paths of tensors or a Split as input_nodes."
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "NegativeSampling": "glt_lightning.glt.given",
        "NeighborSampler": "glt_lightning.glt.sample_prob",
        "RandomNegativeSampler": "glt_lightning.glt.negatives",
        **dict.fromkeys(_SAMPLED, "glt_lightning.glt.sampled"),
    },
    dict.fromkeys(("RemoteNodePathSamplerInput", "RemoteNodeSplitSamplerInput", "RemoteSamplerInput"), _SEEDS),
)
