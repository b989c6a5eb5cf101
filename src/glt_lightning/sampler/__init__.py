"""From seeds to batches: the epoch plan, requests, the k-hop sampler and what it returns."""

from glt_lightning.sampler.neighbor import NeighborSampler
from glt_lightning.sampler.plan import EpochPlan
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, Sample

__all__ = ["BatchRequest", "Draft", "EpochPlan", "NeighborSampler", "Sample", "SamplerConfig"]
