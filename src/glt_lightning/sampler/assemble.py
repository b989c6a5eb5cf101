"""From the nodes and edges of a batch to its arrays, wherever its rows come from and its memory is."""

from __future__ import annotations

import time

from glt_lightning.sampler.aggregate import aggregate_neighbors
from glt_lightning.sampler.counters import DiskUse
from glt_lightning.sampler.neighbors import Found, NeighborSource
from glt_lightning.sampler.request import BatchRequest
from glt_lightning.sampler.sample import (
    BY_SOURCE,
    COLUMN_POINTERS,
    Draft,
    Field,
    copied,
    edge_key,
    node_key,
    seed_key,
)


def assemble(source: NeighborSource, request: BatchRequest, found: Found) -> Draft:
    """The draft of a batch: ids, numbers per hop, edges, and the attributes of all nodes and edges of ``found``.

    Waits for the rows that owners were asked for. Raises `PeerError` for an owner that does not send them, and `DataError`
    for a batch of more than ``source.config.most_bytes``.
    """
    source.settle(found)
    local = source.local
    begin, counters = time.perf_counter(), local.counters
    counters.frontier_rows = int(found.nodes_per_hop[:, :-1].sum())
    aggregated: list[Field] = []
    if source.config.aggregate is not None:
        field, found = aggregate_neighbors(source, found, DiskUse(counters))
        aggregated.append(field)
    fields = [
        *aggregated,
        local.put("input_id", request.input_id),
        *(local.put(seed_key(name), values) for name, values in request.extras.items()),
        copied("num_sampled_nodes", found.nodes_per_hop),
        copied("num_sampled_edges", found.edges_per_hop),
    ]
    for table in (*source.nodes, *source.edges):
        key = node_key if table.kind == "node" else edge_key
        if table.kind == "edge":
            fields.append(local.edge_index(edge_key(table.type, "edge_index"), found, table.type))
            if source.config.pointers:
                fields.append(local.column_pointers(edge_key(table.type, COLUMN_POINTERS), found, table.type))
            if source.config.by_source:
                fields.append(local.by_source(edge_key(table.type, BY_SOURCE), found, table.type))
        if table.on_device is not None:
            fields.append(copied(key(table.type, "device_rows"), table.all_ranks))
        table.count(counters)
        on_disk = DiskUse(counters)
        fields += [local.rows(key(table.type, public), table, public, on_disk) for public in table.names]
    draft = Draft(fields, counters)
    source.config.require_room(draft.nbytes)
    counters.gather_s += time.perf_counter() - begin
    return draft
