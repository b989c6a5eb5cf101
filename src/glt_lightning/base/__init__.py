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

from glt_lightning.base.lazy import lazy_names as lazy_names, listed_names as listed_names
from glt_lightning.base.version import __version__ as __version__

if TYPE_CHECKING:
    from glt_lightning.base import numbers as numbers
    from glt_lightning.base.cache import (
        CacheOptions as CacheOptions,
        GpuBudgets as GpuBudgets,
    )
    from glt_lightning.base.checks import (
        ClassSpec as ClassSpec,
        Fanouts as Fanouts,
        above_zero as above_zero,
        as_options as as_options,
        at_least as at_least,
        one_of as one_of,
        parse_address as parse_address,
        parse_bytes as parse_bytes,
        parse_fanouts as parse_fanouts,
        parse_rate as parse_rate,
        read_yaml as read_yaml,
    )
    from glt_lightning.base.cluster import (
        ClusterOptions as ClusterOptions,
        DeadlineOptions as DeadlineOptions,
        LimitOptions as LimitOptions,
        SecurityOptions as SecurityOptions,
        ServingOptions as ServingOptions,
    )
    from glt_lightning.base.data import (
        SPLITS as SPLITS,
        BatchOptions as BatchOptions,
        EvaluationOptions as EvaluationOptions,
        LinkOptions as LinkOptions,
        SeedOptions as SeedOptions,
        Task as Task,
        Tree as Tree,
        require_fanouts as require_fanouts,
    )
    from glt_lightning.base.deploy import DeployOptions as DeployOptions
    from glt_lightning.base.errors import (
        DataError as DataError,
        FullError as FullError,
        GLTError as GLTError,
        NativeError as NativeError,
        NoEmbeddingError as NoEmbeddingError,
        OptionError as OptionError,
        PartitionError as PartitionError,
        PeerError as PeerError,
        PeerLostError as PeerLostError,
        RefusedError as RefusedError,
        RemoteError as RemoteError,
        SamplerError as SamplerError,
        WriteError as WriteError,
    )
    from glt_lightning.base.layerwise import (
        LayerwiseOptions as LayerwiseOptions,
        RecommendOptions as RecommendOptions,
    )
    from glt_lightning.base.neighbors import (
        ImportanceNeighbors as ImportanceNeighbors,
        NegativeSampling as NegativeSampling,
        PickerSpec as PickerSpec,
    )
    from glt_lightning.base.numbers import (
        counted as counted,
        size as size,
    )
    from glt_lightning.base.partition import (
        Normalize as Normalize,
        PartitionOptions as PartitionOptions,
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
        DEFAULT_DRAW as DEFAULT_DRAW,
        DrawOptions as DrawOptions,
        SamplingOptions as SamplingOptions,
        SeedPlacement as SeedPlacement,
        TimeBoundary as TimeBoundary,
        WeightAttr as WeightAttr,
        read_integer as read_integer,
    )
    from glt_lightning.base.tensors import TensorOptions as TensorOptions
    from glt_lightning.base.threads import (
        how_threads_wait as how_threads_wait,
        threads_that_sleep as threads_that_sleep,
    )
    from glt_lightning.base.types import (
        EDGE as EDGE,
        MAX_FANOUT as MAX_FANOUT,
        NODE as NODE,
        EdgeType as EdgeType,
        GraphSchema as GraphSchema,
        NodeType as NodeType,
        edge_type_str as edge_type_str,
    )


__all__ = [
    "BatchOptions",
    "CacheOptions",
    "ClusterOptions",
    "DataError",
    "DeadlineOptions",
    "DeployOptions",
    "EvaluationOptions",
    "GLTError",
    "ImportanceNeighbors",
    "LayerwiseOptions",
    "LimitOptions",
    "LinkOptions",
    "NegativeSampling",
    "OptionError",
    "PartitionError",
    "PartitionOptions",
    "PeerError",
    "RecommendOptions",
    "SamplingOptions",
    "SecurityOptions",
    "SeedOptions",
    "TensorOptions",
]

__getattr__, __dir__ = lazy_names(__name__)
