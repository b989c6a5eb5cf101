"""Makes the arrays of a batch from its nodes and edges, for all sources of rows and all places of batches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.graph import Manifest, attr_key, node_path
from glt_lightning.kernels import ENCODINGS, Subgraph
from glt_lightning.sampling.counters import DiskUse
from glt_lightning.sampling.neighbors import Found, NeighborSource
from glt_lightning.sampling.request import BatchRequest, SamplerConfig
from glt_lightning.sampling.sample import (
    BY_SOURCE,
    COLUMN_POINTERS,
    FLIPPED,
    ROW,
    Draft,
    Field,
    Sample,
    aggregate_key,
    copied,
    edge_key,
    link_key,
    node_key,
    seed_key,
)
from glt_lightning.sampling.subgraph_task import INDUCED

NO_ARRAYS: Mapping[str, np.ndarray] = MappingProxyType({})


def assemble(
    source: NeighborSource,
    request: BatchRequest,
    found: Found,
    link: Mapping[str, np.ndarray] = NO_ARRAYS,
    examples: np.ndarray | None = None,
) -> Draft:
    """Makes the draft of a batch: ids, numbers per hop, edges, and the attributes of all nodes and edges of ``found``.

    link: the arrays of a batch of edges (`sampling.link`), by name.  examples: int64, the example that each tree of a disjoint
    batch belongs to; None: every tree is an example.
    Waits for the rows that were requested of owners. Raises `PeerError` for an owner that does not send them, and
    `DataError` for a batch of more than ``source.config.most_bytes``.
    """
    source.settle(found)
    local = source.local
    begin, counters = time.perf_counter(), local.counters
    counters.frontier_rows = int(found.nodes_per_hop[:, :-1].sum())
    tables = (*source.nodes, *source.edges)
    on_disk = {(table.kind, table.type): DiskUse(counters, once=table.once) for table in tables}
    aggregated: list[Field] = []
    if source.config.aggregate is not None:
        field, found = aggregate_neighbors(source, found, on_disk["node", 0])
        aggregated.append(field)
    fields = [
        *aggregated,
        local.put("input_id", request.input_id),
        *(local.put(seed_key(name), values) for name, values in request.extras.items()),
        *(local.put(link_key(name), values) for name, values in link.items()),
        copied("num_sampled_nodes", found.nodes_per_hop),
    ]
    task = source.config.subgraph
    if task is None or task.kind != INDUCED:  # induced edges belong to no hop
        fields.append(copied("num_sampled_edges", found.edges_per_hop))
    for table in tables:
        key = node_key if table.kind == "node" else edge_key
        if table.kind == "edge":
            fields.append(local.edge_index(edge_key(table.type, "edge_index"), found, table.type))
            if source.config.pointers:
                fields.append(local.column_pointers(edge_key(table.type, COLUMN_POINTERS), found, table.type))
            if source.config.by_source:
                fields.append(local.by_source(edge_key(table.type, BY_SOURCE), found, table.type))
            if source.config.importance is not None:
                fields += local.visits(found, table.type)
            if task is not None and found.flipped is not None:
                fields.append(local.put(edge_key(table.type, FLIPPED), found.flipped[table.type]))
        elif source.config.with_row:
            fields.append(local.row_numbers(node_key(table.type, ROW), found, table.type))
        if table.kind == "node" and source.config.disjoint:
            fields.append(local.tree_of(key(table.type, Sample.TREE_OF), found, table.type, examples))
        if table.on_device is not None:
            fields.append(copied(key(table.type, "device_rows"), table.all_ranks))
        table.count(counters)
        disk_use = on_disk[table.kind, table.type]
        fields += [local.rows(key(table.type, p), table, p, disk_use.of(p)) for p in table.names]
    draft = Draft(fields, counters)
    source.config.require_room(draft.nbytes)
    counters.gather_s += time.perf_counter() - begin
    return draft


# Batches in which the first layer is aggregated: for each node of the inner hops its own row, and the mean or sum of the rows
# of its sampled neighbours, instead of all rows of the last hop.


_WITHOUT = "Remove sampling.aggregate_first."


def require_aggregable(manifest: Manifest, config: SamplerConfig) -> None:
    """Raises `OptionError` for ``config.aggregate`` on a graph without one node type, one edge type and a float ``x``."""
    if config.aggregate is None:
        return
    name = f"sampling.aggregate_first: {config.aggregate!r}"
    if not manifest.schema.homogeneous:
        raise OptionError(
            f"{name} needs a graph with one node type and one edge type; this one has several. {_WITHOUT}"
        )
    attributes = manifest.node_attrs(0)
    if "x" not in attributes or Sample.AGGREGATED in attributes:
        has = "no x" if "x" not in attributes else f"an attribute {Sample.AGGREGATED} of their own"
        raise OptionError(f"{name}: the nodes of this graph have {has}. {_WITHOUT}")
    dtype = np.dtype(manifest.arrays[node_path(0, 0, "x")].dtype)
    if dtype not in (np.float32, np.float16) and attr_key("nodes", 0, "x") not in manifest.encodings:
        raise OptionError(f"{name}: x is {dtype}; only float16, bfloat16 and float32 are aggregated. {_WITHOUT}")
    if not config.fanouts:
        raise OptionError(f"{name}: num_neighbors has no hop to aggregate. {_WITHOUT}")


def aggregate_neighbors(source: NeighborSource, found: Subgraph, disk_use: DiskUse) -> tuple[Field, Subgraph]:
    """Returns the field of the aggregated ``x``, and the batch without its last hop. Drops the rows of that hop from the tables
    of ``source``, too."""
    config, table = source.config, source.nodes[0]
    assert config.aggregate is not None
    rows = table.shards(table.names["x"])
    if rows.dtype != np.float32:  # float16 or bfloat16, by `require_aggregable`: sums are made in float32
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
