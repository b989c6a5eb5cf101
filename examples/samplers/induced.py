"""A sampler of whole batches, for ``sampling.batch_sampler``: the nodes of a k-hop batch, and all edges among them."""

from dataclasses import replace

import numpy as np

from glt_lightning.sampling import k_hop
from glt_lightning.sampling.assemble import assemble


def induced(request, source):
    """The nodes that a k-hop batch has, and all edges among them."""
    # or any other nodes, seeds first
    found = k_hop(source, request.typed_seeds(source.config.seed_type), request.key)
    source.begin()  # forgets the edges of the hops
    source.reached_nodes(found.gid)  # asks for their attributes
    everything, hops = [-1] * len(source.edges), len(source.config.fanouts)
    drawn = source.expand(request.key, hops, everything, found.gid, new=False)
    lids = [{gid: lid for lid, gid in enumerate(gids.tolist())} for gids in found.gid]
    src, dst, rows = [], [], []
    for r, (from_type, to_type) in enumerate(zip(source.view.src_types, source.view.dst_types, strict=True)):
        picks = drawn[r].stitched()
        lid = np.array([lids[from_type].get(gid, -1) for gid in picks.neighbors.tolist()], dtype=np.int32)
        inside = np.flatnonzero(lid >= 0)
        src.append(lid[inside])
        dst.append(np.repeat(np.arange(len(found.gid[to_type]), dtype=np.int32), picks.counts)[inside])
        rows.append(picks.edge_rows[inside].astype(np.int64) if source.config.with_edge else None)
    if source.config.with_edge:
        source.reached_edges(dict(enumerate(rows)))  # asks for the attributes of the edges
    edges = np.zeros((len(src), max(1, hops)), dtype=np.int64)
    edges[:, -1] = [len(each) for each in src]
    # k_hop may give ids of the edges of its hops, which are not those of the batch
    found = replace(found, src=src, dst=dst, edge_row=rows, e_id=[], edges_per_hop=edges)
    return assemble(source, request, found)
