"""Batches as PyG's `Data` and `HeteroData`: loaders, their specifications, and layers that compute on a batch's sorted
edges.

This is the only door to PyG's data classes: ``collate.py`` turns a `Sample` into `Data`, whose tensors view the slot,
so nothing is copied. A `Session` owns what a graph opened on a rank (its samplers, caches, tiers) and makes the loaders:
`LoaderSpec` for seed nodes, `LinkSpec` for seed edges. Who opens it closes it. `DistNeighborLoader` keeps its
position, so a checkpoint in mid-epoch resumes at the next batch (``resume.py``, docs/decisions/022).

Layers: `fuse_layers` gives PyG's convolutions one pass over sorted edges (docs/decisions/015), `layers` trims each
layer to the hop that it needs.

``traffic/`` predicts what ranks will ask of each other in training, by sampling some batches.

Runs in the ranks, and where a script makes batches; samplers themselves may be other processes
(`glt_lightning.workers`).

Example:
    >>> from glt_lightning.loader import LoaderSpec, Session
    >>> spec = LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4)
    >>> with Session("parts") as session:
    ...     print([batch.batch_size for batch in session.make_loader(spec)])
    [4, 2]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.loader.aggregation import aggregate as aggregate
    from glt_lightning.loader.asked import AskedSample as AskedSample
    from glt_lightning.loader.blocks import (
        Layer as Layer,
        as_blocks as as_blocks,
        layers as layers,
    )
    from glt_lightning.loader.convs import (
        TrimmedConvs as TrimmedConvs,
        aggregates_of as aggregates_of,
        run_aggregated as run_aggregated,
    )
    from glt_lightning.loader.edge_index import plain as plain
    from glt_lightning.loader.fanouts import batch_schema as batch_schema
    from glt_lightning.loader.fuse import (
        fuse_layers as fuse_layers,
        relu_dropout as relu_dropout,
    )
    from glt_lightning.loader.link_loader import DistLinkNeighborLoader as DistLinkNeighborLoader
    from glt_lightning.loader.link_spec import LinkSpec as LinkSpec
    from glt_lightning.loader.neighbor_loader import (
        DistNeighborLoader as DistNeighborLoader,
        LoaderStats as LoaderStats,
    )
    from glt_lightning.loader.pyg_loaders import (
        LinkNeighborLoader as LinkNeighborLoader,
        NeighborLoader as NeighborLoader,
    )
    from glt_lightning.loader.row_loader import RowSpec as RowSpec
    from glt_lightning.loader.session import Session as Session
    from glt_lightning.loader.spec import LoaderSpec as LoaderSpec
    from glt_lightning.loader.subgraph_loader import DistSubGraphLoader as DistSubGraphLoader
    from glt_lightning.loader.traffic.options import TrafficOptions as TrafficOptions
    from glt_lightning.loader.traffic.predict import (
        Estimate as Estimate,
        ExpectedTraffic as ExpectedTraffic,
        TrafficPrediction as TrafficPrediction,
        remote_cache_bytes as remote_cache_bytes,
    )
    from glt_lightning.loader.transforms import BatchTransform as BatchTransform
    from glt_lightning.loader.trim import BatchLayout as BatchLayout


__all__ = [
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistSubGraphLoader",
    "Layer",
    "LinkNeighborLoader",
    "LinkSpec",
    "LoaderSpec",
    "LoaderStats",
    "NeighborLoader",
    "Session",
    "aggregate",
    "as_blocks",
    "fuse_layers",
    "layers",
    "relu_dropout",
]

__getattr__, __dir__ = lazy_names(__name__)
