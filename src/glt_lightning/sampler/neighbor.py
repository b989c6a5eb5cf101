"""The neighbour sampler: from a request to the draft of a batch."""

from __future__ import annotations

import time

import numpy as np

from glt_lightning.data.device_members import DeviceMembers
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.khop import KHopOp
from glt_lightning.ops.tiered import TieredShards
from glt_lightning.sampler import fields
from glt_lightning.sampler.counters import Counters, DiskUse
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, edge_key, node_key


class NeighborSampler:
    """Samples k-hop batches with all node and edge attributes from a partition whose parts are all local.

    One instance serves one thread: the draft it returns must be written before the next is asked for. Attributes of nodes
    in ``on_device`` are left out, and a field ``device_rows`` (int32 [n], -1: not there) tells of all nodes their row on
    the device.
    """

    def __init__(
        self, partition: LocalPartition, config: SamplerConfig, on_device: DeviceMembers | None = None
    ) -> None:
        partition = partition.as_stored if config.stored else partition
        self._config, self._id_bytes = config, np.dtype(partition.manifest.id_dtype).itemsize
        self._node_attrs = [
            [(node_key(t, name), partition.node_shards(t, name)) for name in names]
            for t, names in enumerate(fields.node_names(partition.manifest))
        ]
        self._on_device = [None] * len(self._node_attrs) if on_device is None else on_device.tables
        names = fields.edge_names(partition.manifest, config)
        stored = [partition.edge_shards(r, "edge_ids") if "e_id" in names[r] else None for r in range(len(names))]
        # Edge ids that are all mapped are read with the neighbours; those that lie on disk are gathered by edge row.
        ids = [None if shards is None or isinstance(shards, TieredShards) else shards.arrays for shards in stored]
        self._edge_attrs = [
            [
                (edge_key(r, n), partition.edge_shards(r, s))
                for n, s in names[r].items()
                if n != "e_id" or ids[r] is None
            ]
            for r in range(len(names))
        ]
        self._khop = KHopOp(
            partition.view,
            config.fanouts,
            replace=config.replace,
            with_edge=[bool(attrs) for attrs in self._edge_attrs],
            edge_ids=ids,
            threads=config.threads,
            require_room=config.require_room,
        )

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch; its attributes are gathered when the draft is written."""
        config, begin = self._config, time.perf_counter()
        found = self._khop(request.seeds, config.seed_type, request.key)
        counters = Counters(sample_s=time.perf_counter() - begin, frontier_rows=fields.frontier_rows(found))
        batch = fields.counts(request, found)
        for t, attrs in enumerate(self._node_attrs):
            gids, uids, members = found.gid[t], found.uid[t], self._on_device[t]
            row_bytes = self._id_bytes + sum(shards.row_bytes for _, shards in attrs)
            if members is not None:
                ranks = members.find(gids)
                batch.append(fields.copied(node_key(t, "device_rows"), ranks))
                gids, uids = gids[ranks < 0], uids[ranks < 0]
                counters.device_rows += len(ranks) - len(gids)
                counters.device_bytes += (len(ranks) - len(gids)) * row_bytes
            counters.local_rows += len(gids)
            counters.local_bytes += len(gids) * row_bytes
            batch.append(fields.copied(node_key(t, "n_id"), uids))
            on_disk = DiskUse(counters)
            batch += [fields.gathered(name, shards, gids, config.threads, on_disk) for name, shards in attrs]
        for r, attrs in enumerate(self._edge_attrs):
            batch.append(fields.edge_index(r, found))
            rows, ids = found.edge_row[r], found.e_id[r]
            row_bytes = sum(shards.row_bytes for _, shards in attrs)
            if ids is not None:
                batch.append(fields.ids(edge_key(r, "e_id"), ids))
                row_bytes += ids.itemsize
            if row_bytes:
                counters.local_rows += len(found.src[r])
                counters.local_bytes += len(found.src[r]) * row_bytes
            on_disk = DiskUse(counters)
            for name, shards in attrs:
                assert rows is not None
                make = fields.gathered_ids if name.endswith("/e_id") else fields.gathered
                batch.append(make(name, shards, rows, config.threads, on_disk))
        draft = Draft(batch, counters)
        config.require_room(draft.nbytes)
        return draft
