"""Owners of parts without a network."""

from __future__ import annotations

import numpy as np

from glt_lightning.cluster.cache import CacheMaker
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.row_draws import row_draws
from glt_lightning.ops.has_edges import has_edges
from glt_lightning.ops.induce import induce_all
from glt_lightning.ops.merge import Picks
from glt_lightning.options import CacheOptions
from glt_lightning.store.remote_cache import RemoteCache
from glt_lightning.transport.dispatch import caller_is

CALLER = caller_is({}, lambda: False)  # for calls of handlers without a transport


class DirectRows:
    """Owners that answer by reading their own mapped parts, in this process."""

    def __init__(self, num_parts: int, owners: list[LocalPartition], wire: type = np.int32) -> None:
        self.num_owners, self._owners, self._wire = len(owners) + 1, owners, wire
        self.owner_of_part = np.zeros(num_parts, dtype=np.int32)
        for number, owner in enumerate(owners, 1):
            self.owner_of_part[list(owner.parts)] = number
        self.asked = []

    def expand(self, owner, request):
        self.asked.append(("expand", owner, request.hop))
        draws, found = row_draws(self._owners[owner - 1], request.draw), {}
        view = draws.view
        without = {} if request.excluded is None else request.excluded.find(view)
        for r, fanout in enumerate(request.fanouts):
            gids = request.rows.get(int(view.dst_types[r]))
            if fanout and gids is not None:
                ids = gids.astype(np.int64)
                draw = draws.of(r, ids, fanout, request.key, request.hop, without.get(r), request.trees)
                arrays = draw.picks()
                found[r] = Picks(*(None if a is None else a.astype(self._wire) for a in arrays))
        return lambda: found

    def has_edges(self, owner, edge_type, dst, src, weights=()):
        self.asked.append(("has_edges", owner, len(dst)))
        found = has_edges(self._owners[owner - 1].weighted(tuple(weights)), edge_type, dst, src)
        return lambda: found

    def induce(self, owner, among, weights):
        self.asked.append(("induce", owner, len(among.rows)))
        found = induce_all(self._owners[owner - 1].weighted(tuple(weights)), among)
        return lambda: found

    def walk(self, owner, question):
        self.asked.append(("walk", owner, len(question)))
        found = question.answer(self._owners[owner - 1].weighted(tuple(question.weights)))
        return lambda: found

    def gather(self, owner, request):
        self.asked.append(("gather", owner))
        part = self._owners[owner - 1]
        table = {"node": part.node_shards, "edge": part.edge_shards}
        answer = [
            {name: table[rows.kind](rows.type, name).raw.gather(rows.ids.astype(np.int64)) for name in rows.names}
            for rows in request
        ]
        return lambda: answer


def split_up(partition: LocalPartition, owners: list[list[int]]) -> tuple[LocalPartition, DirectRows]:
    """The first of ``owners`` is this process."""
    opened = [LocalPartition.open(partition.directory, parts=parts) for parts in owners]
    return opened[0], DirectRows(partition.manifest.num_parts, opened[1:])


def make_cache(here: LocalPartition, remote: DirectRows, options: CacheOptions) -> RemoteCache:
    """What the options say that this process keeps of the parts of others. Close it."""
    maker = CacheMaker(here, options)
    try:
        return RemoteCache.from_handle(maker.make(remote, progress=False), here.manifest)
    finally:
        maker.close()
