"""Batches in which the first layer is aggregated: for each node of the inner hops its own row, and the mean or sum of the rows
of its sampled neighbours, instead of all rows of the last hop."""

from __future__ import annotations

from functools import partial

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.graph import Manifest, attr_key, node_path
from glt_lightning.kernels import ENCODINGS, Subgraph
from glt_lightning.sampling.counters import DiskUse
from glt_lightning.sampling.neighbors import NeighborSource
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.sample import AGGREGATED, Field, aggregate_key

_WITHOUT = "Remove sampling.aggregate_first."


def require_aggregable(manifest: Manifest, config: SamplerConfig) -> None:
    """Raises `OptionError` for ``config.aggregate`` of a graph that has nothing to aggregate, or too much."""
    if config.aggregate is None:
        return
    name = f"sampling.aggregate_first: {config.aggregate!r}"
    if not manifest.schema.homogeneous:
        raise OptionError(
            f"{name} needs a graph with one node type and one edge type; this one has several. {_WITHOUT}"
        )
    attributes = manifest.node_attrs(0)
    if "x" not in attributes or AGGREGATED in attributes:
        has = "no x" if "x" not in attributes else f"an attribute {AGGREGATED} of their own"
        raise OptionError(f"{name}: the nodes of this graph have {has}. {_WITHOUT}")
    dtype = np.dtype(manifest.arrays[node_path(0, 0, "x")].dtype)
    if dtype not in (np.float32, np.float16) and attr_key("nodes", 0, "x") not in manifest.encodings:
        raise OptionError(f"{name}: x is {dtype}; only float16, bfloat16 and float32 are aggregated. {_WITHOUT}")
    if not config.fanouts:
        raise OptionError(f"{name}: num_neighbors has no hop to aggregate. {_WITHOUT}")


def aggregate_neighbors(source: NeighborSource, found: Subgraph, disk_use: DiskUse) -> tuple[Field, Subgraph]:
    """The aggregate of ``x``, and what is left of the batch; the tables of ``source`` lose the rows of the last hop, too."""
    config, table = source.config, source.nodes[0]
    assert config.aggregate is not None
    rows = table.shards(table.names["x"])
    if rows.dtype != np.float32:  # `require_aggregable` leaves these two, which batches have as they are stored
        rows = rows.decoded_by(ENCODINGS["float16" if rows.dtype == np.float16 else "bfloat16"])
    left = found.without_last_hop()
    nodes = len(left.gid[0])
    write = partial(
        rows.gather_sum,
        table.all_places,
        found.src[0],
        found.dst[0],
        mean=config.aggregate == "mean",
        threads=config.threads,
        on_disk=disk_use.of("x"),
    )
    table.keep(nodes)
    source.edges[0].keep(len(left.src[0]))
    return Field(aggregate_key(config.aggregate), rows.dtype, (nodes, *rows.row_shape), write), left
