"""The neighbour sampler: from a request to the draft of a batch."""

from __future__ import annotations

from functools import partial

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.gather import Shards
from glt_lightning.ops.khop import KHopOp, Subgraph, widen
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, Field, edge_key, node_key

_INT64 = np.dtype(np.int64)


class NeighborSampler:
    """Samples k-hop batches with all node and edge attributes from a partition whose parts are all local.

    One instance serves one thread: the draft it returns must be written before the next is asked for.
    """

    def __init__(self, partition: LocalPartition, config: SamplerConfig) -> None:
        manifest, schema = partition.manifest, partition.schema
        self._config = config
        self._khop = KHopOp(
            partition.view,
            config.fanouts,
            replace=config.replace,
            with_edge=config.with_edge,
            threads=config.threads,
        )
        self._node_attrs = [
            [(node_key(t, name), partition.node_shards(t, name)) for name in manifest.node_attrs(t)]
            for t in range(len(schema.node_types))
        ]
        edge_names = [("edge_ids", "e_id")] if config.with_edge else []
        self._edge_attrs = [
            [
                (edge_key(r, public), partition.edge_shards(r, stored))
                for stored, public in [
                    *edge_names,
                    *((n, n) for n in (manifest.edge_attrs(r) if config.with_edge else ())),
                ]
            ]
            for r in range(len(schema.edge_types))
        ]

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch; its attributes are gathered when the draft is written."""
        config = self._config
        found = self._khop(request.seeds, config.seed_type, request.key)
        fields = [
            _copied("input_id", request.input_id),
            _copied("num_sampled_nodes", found.nodes_per_hop),
            _copied("num_sampled_edges", found.edges_per_hop),
        ]
        for t, attrs in enumerate(self._node_attrs):
            fields.append(_copied(node_key(t, "n_id"), found.uid[t]))
            for name, shards in attrs:
                gids = found.gid[t]
                gather = partial(shards.gather, gids, threads=config.threads)
                fields.append(Field(name, shards.dtype, (len(gids), *shards.row_shape), gather))
        for r, attrs in enumerate(self._edge_attrs):
            fields.append(_edge_index(r, found))
            for name, shards in attrs:
                fields.append(_edge_attr(name, shards, found.edge_row[r], config.threads))
        return Draft(fields)


def _copied(name: str, values: np.ndarray) -> Field:
    def write(out: np.ndarray) -> None:
        out[...] = values

    return Field(name, values.dtype, values.shape, write)


def _edge_index(relation: int, found: Subgraph) -> Field:
    src, dst = found.src[relation], found.dst[relation]

    def write(out: np.ndarray) -> None:
        widen(src, out[0])
        widen(dst, out[1])

    return Field(edge_key(relation, "edge_index"), _INT64, (2, len(src)), write)


def _edge_attr(name: str, shards: Shards, rows: np.ndarray | None, threads: int) -> Field:
    assert rows is not None
    if name.endswith("/e_id") and shards.dtype == np.int32:  # ids reach the user as int64

        def write(out: np.ndarray) -> None:
            narrow = out.view(np.int32)[len(out) :]  # the upper half; widening front to back never overtakes it
            widen(shards.gather(rows, narrow, threads=threads), out)

        return Field(name, _INT64, (len(rows),), write)
    return Field(name, shards.dtype, (len(rows), *shards.row_shape), partial(shards.gather, rows, threads=threads))
