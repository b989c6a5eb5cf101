"""Fetches whole neighbour lists of the hottest remote nodes, as many as fit a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from glt_lightning.base import DrawOptions, OptionError, PeerError, Progress
from glt_lightning.graph import LocalPartition, NeighborLists, TopologyCache
from glt_lightning.kernels import Picks, Router
from glt_lightning.sampling import AskedRows, Expand, Gather, RemoteRows, wire_dtype
from glt_lightning.workers.cluster.cache_fill import Wanted, fetch_rows

_CHUNK = 1 << 12  # nodes per request: the hottest ones have thousands of neighbours


def make_topology(
    partition: LocalPartition,
    remote: RemoteRows,
    hottest: Sequence[np.ndarray],
    budget: int,
    progress: bool | None = None,
) -> TopologyCache | None:
    """Caches the neighbour lists of the hottest remote nodes. Returns None if not one list fits.

    hottest: for each node type the gids (int64) of nodes that are not mapped here, hottest first; types share the budget
    in proportion to their numbers of nodes.  budget: bytes. Filling takes twice as much memory.

    Raises `OptionError` if the host has too little memory, `PeerError` if an owner does not answer.
    """
    manifest = partition.manifest
    total = sum(len(gids) for gids in hottest)
    gids, user_ids = [], []
    by_type: dict[int, NeighborLists] = {}
    with Progress(progress).phase("fetching neighbour lists", total, "nodes") as done:
        for t, order in enumerate(hottest):
            share = budget * len(order) // max(1, total)
            ids, names, found = _of_type(partition, remote, t, order, share, done)
            gids.append(ids)
            user_ids.append(names)
            by_type |= found
    if not any(len(ids) for ids in gids):
        return None
    lists = [by_type.get(r) for r in range(len(manifest.schema.edge_types))]
    try:
        cache = TopologyCache.create(manifest, gids, user_ids, lists)
    except MemoryError as error:
        raise OptionError(f"cache.topology: not enough memory on this host: {error}. Lower cache.topology.") from None
    try:
        wanted = [
            Wanted("edge", r, cache.edge_rows(r), manifest.edge_bounds(r), edges.rows)
            for r, edges in enumerate(cache.edges)
            if edges is not None
        ]
        fetch_rows(wanted, manifest, remote, "fetching edge attributes", progress)
        cache.finish()
    except BaseException:
        cache.close()
        raise
    return cache


def _of_type(
    partition: LocalPartition, remote: RemoteRows, node_type: int, order: np.ndarray, budget: int, done: Any
) -> tuple[np.ndarray, np.ndarray, dict[int, NeighborLists]]:
    """Fetches the lists of the hottest nodes of one type. Returns their gids, ascending, their user ids, and their lists by
    edge type."""
    schema = partition.schema
    edge_types = [r for r, t in enumerate(schema.destination_types()) if t == node_type]
    pieces: list[tuple[np.ndarray, np.ndarray, dict[int, Picks]]] = []
    spent = TopologyCache.index_bytes(partition.manifest, node_type)
    for ids, names, picks in _answers(partition, remote, node_type, order, edge_types):
        counts = {r: each.counts for r, each in picks.items()}
        sizes = TopologyCache.node_bytes(partition.manifest, counts, len(ids))
        fits = int(np.searchsorted(np.cumsum(sizes), budget - spent, side="right"))
        spent += int(sizes[:fits].sum())
        done(len(ids))
        if fits:
            pieces.append((ids[:fits], names[:fits], {r: _first_rows(p, fits) for r, p in picks.items()}))
        if fits < len(ids):
            break
    if not pieces or not edge_types:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, {}
    ids = np.concatenate([piece[0] for piece in pieces])
    by_gid = np.argsort(ids)
    names = np.concatenate([piece[1] for piece in pieces])[by_gid]
    lists = {r: _sorted_lists([piece[2][r] for piece in pieces], by_gid) for r in edge_types}
    return ids[by_gid], names, lists


def _answers(
    partition: LocalPartition, remote: RemoteRows, node_type: int, order: np.ndarray, edge_types: Sequence[int]
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[int, Picks]]]:
    """Yields gids, user ids and all neighbours by edge type, a chunk at a time, in the order of the nodes."""
    manifest, schema, wire = partition.manifest, partition.schema, wire_dtype(partition.manifest)
    bounds = np.asarray(manifest.bounds[node_type], dtype=np.int64) + manifest.offsets[node_type]
    router = Router(bounds, remote.owner_of_part, remote.num_owners, wire)
    fanouts = tuple(-1 if r in edge_types else 0 for r in range(len(manifest.schema.edge_types)))
    for first in range(0, len(order), _CHUNK):
        ids = order[first : first + _CHUNK]
        route = router(ids, np.zeros(remote.num_owners, dtype=np.int64))
        asked = []  # of all owners before the first answer is awaited, so that they work at the same time
        for owner in range(1, remote.num_owners):
            if len(theirs := route.of(owner)):
                expand = Expand(0, 0, fanouts, DrawOptions(with_edge=True), {node_type: theirs})
                rows = AskedRows("node", node_type, ("n_id",), theirs)
                asked.append((owner, remote.ask(owner, expand), remote.ask(owner, Gather([rows]))))
        names = np.empty(len(ids), dtype=manifest.id_dtype)
        parts: dict[int, list[Picks]] = {r: [] for r in edge_types}
        places = []
        for owner, picked, gathered in asked:
            at = np.flatnonzero(route.owner == owner)
            names[at] = gathered()[0]["n_id"]
            answer = picked()
            places.append(at)
            for r in edge_types:
                found = answer.get(r)
                if found is None or not _whole(found, len(at)):
                    served = np.flatnonzero(np.asarray(remote.owner_of_part) == owner).tolist()
                    raise PeerError(
                        f"the owner of parts {served} returned truncated neighbour lists of {schema.edge_types[r]} for "
                        f"{len(at)} nodes. Run the same version of glt_lightning on all hosts."
                    )
                parts[r].append(found)
        back = np.argsort(np.concatenate(places))
        yield ids, names, {r: Picks.joined(parts[r]).of_rows(back) for r in edge_types}


def _whole(picks: Picks, rows: int) -> bool:
    complete = len(picks.counts) == rows and picks.edge_rows is not None
    return complete and int(picks.counts.sum()) == len(picks.neighbors)


def _first_rows(picks: Picks, rows: int) -> Picks:
    entries = int(picks.counts[:rows].sum())
    assert picks.edge_rows is not None
    return Picks(picks.counts[:rows], picks.neighbors[:entries], picks.edge_rows[:entries])


def _sorted_lists(picks: Sequence[Picks], order: np.ndarray) -> NeighborLists:
    found = Picks.joined(picks).of_rows(order)
    assert found.edge_rows is not None
    counts = found.counts
    first = np.zeros(len(counts), dtype=np.int64)
    begin = np.cumsum(counts) - counts
    first[counts > 0] = found.edge_rows[begin[counts > 0]]
    return NeighborLists(counts, found.neighbors, first)
