"""The fields of a batch's draft, wherever its rows come from."""

from __future__ import annotations

from functools import partial

import numpy as np

from glt_lightning.data.manifest import Manifest
from glt_lightning.ops.gather import Shards
from glt_lightning.ops.khop import Subgraph, widen
from glt_lightning.ops.tiered import OnDisk, TieredShards
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Field, edge_key, seed_key

_INT64 = np.dtype(np.int64)


def node_names(manifest: Manifest) -> list[tuple[str, ...]]:
    """Per node type, the attributes of its nodes in a batch, beside ``n_id``."""
    return [tuple(manifest.node_attrs(t)) for t in range(len(manifest.schema.node_types))]


def edge_names(manifest: Manifest, config: SamplerConfig) -> list[dict[str, str]]:
    """Per edge type, name in the batch -> name in the partition, of the attributes of its edges."""
    relations = range(len(manifest.schema.edge_types))
    if not config.with_edge:
        return [{} for _ in relations]
    return [{"e_id": "edge_ids"} | {name: name for name in manifest.edge_attrs(r)} for r in relations]


def counts(request: BatchRequest, found: Subgraph) -> list[Field]:
    """``input_id`` and the numbers of nodes and edges of each hop, and the request's extras."""
    request.require_one_type()
    return [
        *(copied(seed_key(name), values) for name, values in request.extras.items()),
        copied("input_id", request.input_id),
        copied("num_sampled_nodes", found.nodes_per_hop),
        copied("num_sampled_edges", found.edges_per_hop),
    ]


def frontier_rows(found: Subgraph) -> int:
    """Nodes of a batch whose neighbours were drawn: all but those of the last hop."""
    return int(found.nodes_per_hop[:, :-1].sum())


def copied(name: str, values: np.ndarray) -> Field:
    def write(out: np.ndarray) -> None:
        out[...] = values

    return Field(name, values.dtype, values.shape, write)


def edge_index(relation: int, found: Subgraph) -> Field:
    src, dst = found.src[relation], found.dst[relation]

    def write(out: np.ndarray) -> None:
        widen(src, out[0])
        widen(dst, out[1])

    return Field(edge_key(relation, "edge_index"), _INT64, (2, len(src)), write)


def gathered(name: str, shards: Shards, ids: np.ndarray, threads: int, on_disk: OnDisk | None = None) -> Field:
    """Rows ``ids`` of an attribute. on_disk: hears, while the field is written, what had to be read."""
    gather = partial(shards.gather, ids, threads=threads)
    if isinstance(shards, TieredShards):
        gather = partial(shards.gather, ids, threads=threads, on_disk=on_disk)
    return Field(name, shards.dtype, (len(ids), *shards.row_shape), gather)


def ids(name: str, values: np.ndarray) -> Field:
    """Ids that are at hand, as int64 however they are stored."""
    if values.dtype != np.int32:
        return copied(name, values)
    return Field(name, _INT64, values.shape, partial(widen, values))


def gathered_ids(name: str, shards: Shards, ids: np.ndarray, threads: int, on_disk: OnDisk | None = None) -> Field:
    """The same for ``n_id`` and ``e_id``, which reach the user as int64 however they are stored."""
    if shards.dtype != np.int32:
        return gathered(name, shards, ids, threads, on_disk)

    def write(out: np.ndarray) -> None:
        narrow = out.view(np.int32)[len(out) :]  # the upper half; widening front to back never overtakes it
        widen(shards.gather(ids, narrow, threads=threads), out)

    return Field(name, _INT64, (len(ids),), write)
