"""From seeds to batches: the epoch plan, requests, the k-hop sampler and what it returns."""

from glt_lightning.ops.row_view import Picker, RowView, pick_uniform
from glt_lightning.sampler.own_batches import BatchSampler
from glt_lightning.sampler.plan import EpochPlan
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, Sample

__all__ = [
    "BatchRequest",
    "BatchSampler",
    "Draft",
    "EpochPlan",
    "Picker",
    "RowView",
    "Sample",
    "SamplerConfig",
    "pick_uniform",
]
