"""From the nodes and edges of a batch to its arrays, wherever its rows come from and its memory is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from glt_lightning.sampling.aggregate import aggregate_neighbors
from glt_lightning.sampling.counters import DiskUse
from glt_lightning.sampling.neighbors import Found, NeighborSource
from glt_lightning.sampling.request import BatchRequest
from glt_lightning.sampling.sample import (
    BY_SOURCE,
    COLUMN_POINTERS,
    FLIPPED,
    ROW,
    TREE_OF,
    Draft,
    Field,
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
    """The draft of a batch: ids, numbers per hop, edges, and the attributes of all nodes and edges of ``found``.

    link: the arrays of a batch of edges (`sampler.link`), by name.  examples: int64, the example that each tree of a disjoint
    batch belongs to; None: every tree is one.
    Waits for the rows that owners were asked for. Raises `PeerError` for an owner that does not send them, and `DataError`
    for a batch of more than ``source.config.most_bytes``.
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
    if task is None or task.kind != INDUCED:  # edges that are induced belong to no hop
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
            fields.append(local.tree_of(key(table.type, TREE_OF), found, table.type, examples))
        if table.on_device is not None:
            fields.append(copied(key(table.type, "device_rows"), table.all_ranks))
        table.count(counters)
        disk_use = on_disk[table.kind, table.type]
        fields += [local.rows(key(table.type, p), table, p, disk_use.of(p)) for p in table.names]
    draft = Draft(fields, counters)
    source.config.require_room(draft.nbytes)
    counters.gather_s += time.perf_counter() - begin
    return draft
