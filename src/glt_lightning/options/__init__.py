"""Every option of the package: frozen dataclasses, the same in YAML, on the command line and in Python."""

from glt_lightning.options.cache import CACHE_POLICIES, CacheOptions, CachePolicy
from glt_lightning.options.checks import as_options, one_of
from glt_lightning.options.cluster import ClusterOptions, Placement
from glt_lightning.options.deadlines import DeadlineOptions, RetryOptions
from glt_lightning.options.draw import DEFAULT_DRAW, DrawOptions
from glt_lightning.options.gpu_budgets import GpuBudgets
from glt_lightning.options.layerwise import LayerwiseOptions
from glt_lightning.options.limits import LimitOptions
from glt_lightning.options.negatives import (
    DEGREE_WEIGHTS,
    NEGATIVE_MODES,
    SHARINGS,
    UNRESOLVED,
    NegativeMode,
    NegativeSampling,
    Sharing,
)
from glt_lightning.options.parse import Fanouts, parse_address, parse_bytes, parse_fanouts
from glt_lightning.options.partition import (
    ALGORITHMS,
    ALLOWED,
    BALANCE,
    HOTNESS,
    STORAGE,
    Hotness,
    Normalize,
    PartitionOptions,
)
from glt_lightning.options.picker import PickerSpec
from glt_lightning.options.sampling import (
    AGGREGATES,
    EDGE_FORMATS,
    MEMORIES,
    SUBGRAPH_TYPES,
    Aggregate,
    EdgeFormat,
    FeatureDtype,
    ImportanceNeighbors,
    Memory,
    SamplingOptions,
    SeedPlacement,
    SubgraphType,
    WeightAttr,
)
from glt_lightning.options.security import SecurityOptions
from glt_lightning.options.tensors import ROW_STORAGES, TensorOptions
from glt_lightning.options.workers import WorkerOptions

__all__ = [
    "AGGREGATES",
    "ALGORITHMS",
    "ALLOWED",
    "BALANCE",
    "CACHE_POLICIES",
    "DEFAULT_DRAW",
    "DEGREE_WEIGHTS",
    "EDGE_FORMATS",
    "HOTNESS",
    "MEMORIES",
    "NEGATIVE_MODES",
    "ROW_STORAGES",
    "SHARINGS",
    "STORAGE",
    "SUBGRAPH_TYPES",
    "UNRESOLVED",
    "Aggregate",
    "CacheOptions",
    "CachePolicy",
    "ClusterOptions",
    "DeadlineOptions",
    "DrawOptions",
    "EdgeFormat",
    "Fanouts",
    "FeatureDtype",
    "GpuBudgets",
    "Hotness",
    "ImportanceNeighbors",
    "LayerwiseOptions",
    "LimitOptions",
    "Memory",
    "NegativeMode",
    "NegativeSampling",
    "Normalize",
    "PartitionOptions",
    "PickerSpec",
    "Placement",
    "RetryOptions",
    "SamplingOptions",
    "SecurityOptions",
    "SeedPlacement",
    "Sharing",
    "SubgraphType",
    "TensorOptions",
    "WeightAttr",
    "WorkerOptions",
    "as_options",
    "one_of",
    "parse_address",
    "parse_bytes",
    "parse_fanouts",
]
