"""Types, errors and options that every other room shares, and the progress of long work.

Runs in every process, and imports neither torch nor numpy at import time: a sampler process and the agent of a launched
job start in a fraction of a second because of it.

* **Options** are frozen dataclasses with keyword arguments, a documented field each, checked in ``__post_init__``. They
  travel whole: a component takes the object, not its fields. Derived numbers are properties. YAML's leaves are these
  fields, so an option is declared, documented and checked in one place; the command line, its help and the page
  of `make docs` are made from them.
* **Errors** derive from `GLTError`: `OptionError` for what a user typed, `DataError` and `PartitionError` for what lies
  on disk, `PeerError` for another process. A message says what was given, what is allowed and what to do.
* **Types**: `NodeType`, `EdgeType`, `GraphSchema`; a homogeneous graph has the one node type `NODE` and the one edge
  type `EDGE`.
* `lazy_names` lets the faces of rooms give out names without importing the modules that define them.

Example:
    >>> from glt_lightning.base import SamplingOptions
    >>> options = SamplingOptions(num_workers=2, replace=True)
    >>> options.num_workers, options.replace
    (2, True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base.lazy import lazy_names as lazy_names
from glt_lightning.base.version import __version__ as __version__

if TYPE_CHECKING:
    from glt_lightning.base import numbers as numbers
    from glt_lightning.base.cache import (
        CACHE_POLICIES as CACHE_POLICIES,
        CacheOptions as CacheOptions,
        CachePolicy as CachePolicy,
    )
    from glt_lightning.base.checks import (
        above_zero as above_zero,
        as_options as as_options,
        at_least as at_least,
        one_of as one_of,
    )
    from glt_lightning.base.class_spec import (
        ClassSpec as ClassSpec,
    )
    from glt_lightning.base.cluster import (
        ClusterOptions as ClusterOptions,
        Placement as Placement,
        ServingOptions as ServingOptions,
    )
    from glt_lightning.base.deadlines import (
        DeadlineOptions as DeadlineOptions,
        RetryOptions as RetryOptions,
    )
    from glt_lightning.base.draw import (
        DEFAULT_DRAW as DEFAULT_DRAW,
        DrawOptions as DrawOptions,
        read_integer as read_integer,
    )
    from glt_lightning.base.errors import (
        DataError as DataError,
        FullError as FullError,
        GLTError as GLTError,
        NativeError as NativeError,
        NativeMemoryError as NativeMemoryError,
        OptionError as OptionError,
        PartitionError as PartitionError,
        PeerError as PeerError,
        PeerLostError as PeerLostError,
        RefusedError as RefusedError,
        RemoteError as RemoteError,
        SamplerError as SamplerError,
        UnprovenError as UnprovenError,
        WriteError as WriteError,
    )
    from glt_lightning.base.gpu_budgets import (
        GpuBudgets as GpuBudgets,
    )
    from glt_lightning.base.importance import (
        ImportanceNeighbors as ImportanceNeighbors,
    )
    from glt_lightning.base.layerwise import (
        LayerwiseOptions as LayerwiseOptions,
    )
    from glt_lightning.base.limits import (
        LimitOptions as LimitOptions,
    )
    from glt_lightning.base.negatives import (
        DEGREE_WEIGHTS as DEGREE_WEIGHTS,
        NEGATIVE_MODES as NEGATIVE_MODES,
        SHARINGS as SHARINGS,
        UNRESOLVED as UNRESOLVED,
        NegativeMode as NegativeMode,
        NegativeSampling as NegativeSampling,
        Sharing as Sharing,
    )
    from glt_lightning.base.numbers import (
        counted as counted,
        percent as percent,
        size as size,
    )
    from glt_lightning.base.parse import (
        Fanouts as Fanouts,
        line_of as line_of,
        parse_address as parse_address,
        parse_bytes as parse_bytes,
        parse_fanouts as parse_fanouts,
        read_yaml as read_yaml,
    )
    from glt_lightning.base.partition import (
        ALGORITHMS as ALGORITHMS,
        ALLOWED as ALLOWED,
        BALANCE as BALANCE,
        HOTNESS as HOTNESS,
        STORAGE as STORAGE,
        Hotness as Hotness,
        Normalize as Normalize,
        PartitionOptions as PartitionOptions,
    )
    from glt_lightning.base.picker import (
        PickerSpec as PickerSpec,
    )
    from glt_lightning.base.program import (
        DESCRIPTION as DESCRIPTION,
        EPILOG as EPILOG,
        PROG as PROG,
        TOOLS as TOOLS,
        TRAINER_COMMANDS as TRAINER_COMMANDS,
        quick_answer as quick_answer,
        versions as versions,
    )
    from glt_lightning.base.progress import (
        Progress as Progress,
        long_work as long_work,
    )
    from glt_lightning.base.removed import (
        removed_in as removed_in,
        without_removed as without_removed,
    )
    from glt_lightning.base.sampling import (
        AGGREGATES as AGGREGATES,
        EDGE_FORMATS as EDGE_FORMATS,
        MEMORIES as MEMORIES,
        SUBGRAPH_TYPES as SUBGRAPH_TYPES,
        Aggregate as Aggregate,
        EdgeFormat as EdgeFormat,
        FeatureDtype as FeatureDtype,
        Memory as Memory,
        SamplingOptions as SamplingOptions,
        SeedPlacement as SeedPlacement,
        SubgraphType as SubgraphType,
        TimeBoundary as TimeBoundary,
        WeightAttr as WeightAttr,
    )
    from glt_lightning.base.security import (
        SecurityOptions as SecurityOptions,
    )
    from glt_lightning.base.tensors import (
        ROW_STORAGES as ROW_STORAGES,
        TensorOptions as TensorOptions,
    )
    from glt_lightning.base.types import (
        EDGE as EDGE,
        MAX_FANOUT as MAX_FANOUT,
        NODE as NODE,
        EdgeType as EdgeType,
        GraphSchema as GraphSchema,
        NodeType as NodeType,
        edge_type_key as edge_type_key,
        edge_type_str as edge_type_str,
        node_type_key as node_type_key,
    )
    from glt_lightning.base.workers import (
        WorkerOptions as WorkerOptions,
    )

# What users and other rooms ask for, by the module that defines it
_MODULES = {
    "cache": (
        "CACHE_POLICIES",
        "CacheOptions",
        "CachePolicy",
    ),
    "removed": (
        "removed_in",
        "without_removed",
    ),
    "checks": (
        "above_zero",
        "as_options",
        "at_least",
        "one_of",
    ),
    "class_spec": ("ClassSpec",),
    "cluster": (
        "ClusterOptions",
        "Placement",
        "ServingOptions",
    ),
    "deadlines": (
        "DeadlineOptions",
        "RetryOptions",
    ),
    "draw": (
        "DEFAULT_DRAW",
        "DrawOptions",
        "read_integer",
    ),
    "errors": (
        "DataError",
        "FullError",
        "GLTError",
        "NativeError",
        "NativeMemoryError",
        "OptionError",
        "PartitionError",
        "PeerError",
        "PeerLostError",
        "RefusedError",
        "RemoteError",
        "SamplerError",
        "UnprovenError",
        "WriteError",
    ),
    "gpu_budgets": ("GpuBudgets",),
    "importance": ("ImportanceNeighbors",),
    "layerwise": ("LayerwiseOptions",),
    "limits": ("LimitOptions",),
    "negatives": (
        "DEGREE_WEIGHTS",
        "NEGATIVE_MODES",
        "NegativeMode",
        "NegativeSampling",
        "SHARINGS",
        "Sharing",
        "UNRESOLVED",
    ),
    "numbers": (
        "counted",
        "numbers",
        "percent",
        "size",
    ),
    "parse": (
        "Fanouts",
        "line_of",
        "parse_address",
        "parse_bytes",
        "parse_fanouts",
        "read_yaml",
    ),
    "partition": (
        "ALGORITHMS",
        "ALLOWED",
        "BALANCE",
        "HOTNESS",
        "Hotness",
        "Normalize",
        "PartitionOptions",
        "STORAGE",
    ),
    "picker": ("PickerSpec",),
    "program": (
        "DESCRIPTION",
        "EPILOG",
        "PROG",
        "TOOLS",
        "TRAINER_COMMANDS",
        "quick_answer",
        "versions",
    ),
    "progress": (
        "Progress",
        "long_work",
    ),
    "sampling": (
        "AGGREGATES",
        "Aggregate",
        "EDGE_FORMATS",
        "EdgeFormat",
        "FeatureDtype",
        "MEMORIES",
        "Memory",
        "SUBGRAPH_TYPES",
        "SamplingOptions",
        "SeedPlacement",
        "SubgraphType",
        "TimeBoundary",
        "WeightAttr",
    ),
    "security": ("SecurityOptions",),
    "tensors": (
        "ROW_STORAGES",
        "TensorOptions",
    ),
    "types": (
        "EDGE",
        "EdgeType",
        "GraphSchema",
        "MAX_FANOUT",
        "NODE",
        "NodeType",
        "edge_type_key",
        "edge_type_str",
        "node_type_key",
    ),
    "workers": ("WorkerOptions",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
