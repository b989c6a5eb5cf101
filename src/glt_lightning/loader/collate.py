"""The door out to PyG: from a Sample to `Data` or `HeteroData`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import AGGREGATES
from glt_lightning.graph import Manifest
from glt_lightning.loader.edge_index import make_edge_index
from glt_lightning.sampling import (
    AGGREGATED,
    BY_SOURCE,
    COLUMN_POINTERS,
    EDGE_WEIGHT,
    FLIPPED,
    ROW,
    TREE_OF,
    VISITS,
    Sample,
    aggregate_key,
    edge_key,
    join_samples,
    node_key,
    seed_key,
)

Batch: TypeAlias = Data | HeteroData

# Of nodes, int32 [n]: the row on the training device, -1 for those whose attributes are in the batch. Until it is completed.
DEVICE_ROWS = "device_rows"
_OF_EDGES = (("e_id", "e_id"), ("is_flipped", FLIPPED), (VISITS, VISITS), (EDGE_WEIGHT, EDGE_WEIGHT))
_ALWAYS = {
    "n_id",
    "row",
    *(name for name, _ in _OF_EDGES),
    "edge_index",
    "input_id",
    "batch_size",
    "num_nodes",
    "num_sampled_nodes",
    "num_sampled_edges",
    TREE_OF,
    AGGREGATED,
    f"{AGGREGATED}_aggr",
}


class Collate:
    """Turns samples into batches with the fields of PyG's `NeighborLoader`. The tensors are views of the sample's memory,
    on the device where that is. Ids and attributes of edges are in a batch where the sample has them."""

    def __init__(self, manifest: Manifest, seed_types: Sequence[int]) -> None:
        schema = manifest.schema
        self._schema, self._seed_types = schema, seed_types
        self._node_attrs = [_in_order(manifest.node_attrs(t)) for t in range(len(schema.node_types))]
        self._edge_attrs = [manifest.edge_attrs(r) for r in range(len(schema.edge_types))]
        node_attrs = [("nodes", node_key(t, n), t, n) for t, names in enumerate(self._node_attrs) for n in names]
        edge_attrs = [("edges", edge_key(r, n), r, n) for r, names in enumerate(self._edge_attrs) for n in names]
        attrs = [*node_attrs, *edge_attrs]
        self._bfloat16 = {key for kind, key, index, name in attrs if manifest.is_bfloat16(kind, index, name)}

    @property
    def names(self) -> set[str]:
        """Names that batches use beside the seeds; an extra must have another one."""
        edge_attrs = self._edge_attrs[0] if self._schema.homogeneous else ()
        node_attrs = [name for t in self._seed_types for name in self._node_attrs[t]]
        return {*_ALWAYS, DEVICE_ROWS, *node_attrs, *edge_attrs}

    def joined(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """The batch of the arrays of several samples, without an edge between them (`sampling.join_samples`)."""
        ends = list(zip(self._schema.source_types(), self._schema.destination_types(), strict=True))
        return self(Sample(0, join_samples(samples, ends, self._pair)))

    @property
    def _pair(self) -> tuple[int, int]:
        """Node types of the ends of the edges to predict."""
        return 0, 0

    def __call__(self, sample: Sample) -> Batch:
        return self._homogeneous(sample) if self._schema.homogeneous else self._heterogeneous(sample)

    def _homogeneous(self, sample: Sample) -> Data:
        a = sample.arrays
        data = Data()
        before, after = self._split_attrs(0)
        for name in before:
            self._add(data, a, name, node_key(0, name))
        for kind in AGGREGATES:
            if (values := a.get(aggregate_key(kind))) is not None:
                data[AGGREGATED], data[f"{AGGREGATED}_aggr"] = as_tensor(values), kind
        data.edge_index = self._edge_index(a, 0)
        for name, values in self._edge_values(a, 0):
            data[name] = values
        for name in after:
            self._add(data, a, name, node_key(0, name))
        self._add_ids(data, a, 0)
        if not self._node_attrs[0] or "n_id" not in data:
            data.num_nodes = _num_nodes(a, 0)
        if (tree := a.get(node_key(0, TREE_OF))) is not None:
            data[TREE_OF] = as_tensor(tree)
        self._add_edge_ids(data, a, 0)
        data.num_sampled_nodes = a["num_sampled_nodes"][0].tolist()
        _add_edge_counts(data, a, 0)
        self._add_seeds(data, a)
        if (rows := a.get(node_key(0, DEVICE_ROWS))) is not None:
            data[DEVICE_ROWS] = as_tensor(rows)
        return data

    def _heterogeneous(self, sample: Sample) -> HeteroData:
        a = sample.arrays
        data = HeteroData()
        for t, node_type in enumerate(self._schema.node_types):
            store = data[node_type]
            for name in self._node_attrs[t]:
                self._add(store, a, name, node_key(t, name))
            self._add_ids(store, a, t)
            if not self._node_attrs[t] or "n_id" not in store:
                store.num_nodes = _num_nodes(a, t)
            if (tree := a.get(node_key(t, TREE_OF))) is not None:
                store[TREE_OF] = as_tensor(tree)
            store.num_sampled_nodes = a["num_sampled_nodes"][t].tolist()
            if (rows := a.get(node_key(t, DEVICE_ROWS))) is not None:
                store[DEVICE_ROWS] = as_tensor(rows)
        for r, edge_type in enumerate(self._schema.edge_types):
            store = data[edge_type]
            store.edge_index = self._edge_index(a, r)
            for name, values in self._edge_values(a, r):
                store[name] = values
            self._add_edge_ids(store, a, r)
            _add_edge_counts(store, a, r)
        self._add_seeds(data, a)
        return data

    def _add_ids(self, store: Any, arrays: Mapping[str, Any], node_type: int) -> None:
        if (ids := arrays.get(node_key(node_type, "n_id"))) is not None:
            store.n_id = as_tensor(ids)
        if (rows := arrays.get(node_key(node_type, ROW))) is not None:
            store.row = as_tensor(rows)

    def _add_edge_ids(self, store: Any, arrays: Mapping[str, Any], edge_type: int) -> None:
        for name, key in _OF_EDGES:
            if (values := arrays.get(edge_key(edge_type, key))) is not None:
                store[name] = as_tensor(values)

    def _add_seeds(self, data: Batch, arrays: Mapping[str, Any]) -> None:
        """What a batch has of its seeds beside their rows."""
        stores = {t: data if self._schema.homogeneous else data[self._schema.node_types[t]] for t in self._seed_types}
        first = self._seed_types[0]
        stores[first].input_id = as_tensor(arrays["input_id"])
        for name, values in starting_with(seed_key(""), arrays):
            of, _, name = name.rpartition("/")
            stores[int(of) if of else first][name] = values
        for store in stores.values():
            store.batch_size = len(store.input_id)

    def _edge_index(self, arrays: Mapping[str, Any], edge_type: int) -> torch.Tensor:
        """With what the sampler made of the edges as an `EdgeIndex`, else as a tensor."""
        edges = as_tensor(arrays[edge_key(edge_type, "edge_index")])
        if (colptr := arrays.get(edge_key(edge_type, COLUMN_POINTERS))) is None:
            return edges
        by_source = arrays.get(edge_key(edge_type, BY_SOURCE))
        src, _, dst = self._schema.edge_types[edge_type]
        sources, destinations = (
            int(arrays["num_sampled_nodes"][self._schema.node_index(each)].sum()) for each in (src, dst)
        )
        made: torch.Tensor = make_edge_index(
            edges,
            sources,
            destinations,
            as_tensor(colptr),
            None if by_source is None else as_tensor(by_source),
        )
        return made

    def _edge_values(self, arrays: Mapping[str, Any], edge_type: int) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._edge_attrs[edge_type]:
            if (key := edge_key(edge_type, name)) in arrays:
                yield name, self._tensor(arrays, key)

    def _add(self, store: Any, arrays: Mapping[str, Any], name: str, key: str) -> None:
        if key in arrays:
            store[name] = self._tensor(arrays, key)

    def _tensor(self, arrays: Mapping[str, Any], key: str) -> torch.Tensor:
        value = arrays[key]
        return value if isinstance(value, torch.Tensor) else to_tensor(value, key in self._bfloat16)

    def _split_attrs(self, node_type: int) -> tuple[list[str], list[str]]:
        names = self._node_attrs[node_type]
        return [n for n in names if n == "x"], [n for n in names if n != "x"]


def _add_edge_counts(store: Any, arrays: Mapping[str, Any], edge_type: int) -> None:
    if (per_hop := arrays.get("num_sampled_edges")) is not None:
        store.num_sampled_edges = per_hop[edge_type].tolist()


def to_tensor(array: np.ndarray, bfloat16: bool) -> torch.Tensor:
    """An attribute; bfloat16, which numpy lacks, comes as uint16."""
    if bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_tensor(value: np.ndarray | torch.Tensor) -> torch.Tensor:
    """On the device where the sample has it."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(value)


def starting_with(prefix: str, arrays: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The arrays of a sample whose names begin so, by the rest of their names."""
    for key in arrays:
        if key.startswith(prefix):
            yield key.removeprefix(prefix), as_tensor(arrays[key])


def _num_nodes(arrays: Mapping[str, Any], node_type: int) -> int:
    names = (DEVICE_ROWS, "n_id", ROW)
    return len(next(arrays[node_key(node_type, name)] for name in names if node_key(node_type, name) in arrays))


def _in_order(names: tuple[str, ...]) -> list[str]:
    """``x`` first, then ``y``, then the other attributes."""
    return sorted(names, key=lambda n: (n != "x", n != "y", n))
