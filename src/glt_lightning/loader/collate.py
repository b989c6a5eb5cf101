"""The door out to PyG: from a Sample to `Data` or `HeteroData`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.graph import Manifest
from glt_lightning.loader.edge_index import make_edge_index
from glt_lightning.sampling import Sample, join_samples

Batch: TypeAlias = Data | HeteroData

# Of nodes, int32 [n]: the row on the training device, -1 for those whose attributes are in the batch. Until it is completed.
DEVICE_ROWS = "device_rows"
_ALWAYS = {
    *Sample.NODE_FIELDS,
    *Sample.EDGE_FIELDS,
    "edge_index",
    "input_id",
    "batch_size",
    "num_nodes",
    "num_sampled_nodes",
    "num_sampled_edges",
    Sample.TREE_OF,
    Sample.AGGREGATED,
    f"{Sample.AGGREGATED}_aggr",
}


class Collate:
    """Turns samples into batches with the fields of PyG's `NeighborLoader`. The tensors are views of the sample's memory,
    on the device where that is. Ids and attributes of edges are in a batch where the sample has them."""

    def __init__(self, manifest: Manifest, seed_types: Sequence[int]) -> None:
        schema = manifest.schema
        self._schema, self._seed_types = schema, seed_types
        self._node_attrs = [_in_order(manifest.node_attrs(t)) for t in range(len(schema.node_types))]
        self._edge_attrs = [manifest.edge_attrs(r) for r in range(len(schema.edge_types))]
        by_kind: dict[str, Sequence[Sequence[str]]] = {"nodes": self._node_attrs, "edges": self._edge_attrs}
        attrs = [(kind, i, n) for kind, types in by_kind.items() for i, names in enumerate(types) for n in names]
        self._bfloat16 = {each for each in attrs if manifest.is_bfloat16(*each)}

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
        data = Data()
        store = data.stores[0]  # fields of `Data` itself take three times as long to set
        before, after = self._split_attrs(0)
        self._add_attrs(store, sample, 0, before)
        if (aggregate := sample.aggregate) is not None:
            store[Sample.AGGREGATED], store[f"{Sample.AGGREGATED}_aggr"] = as_tensor(aggregate[1]), aggregate[0]
        store["edge_index"] = self._edge_index(sample, 0)
        self._add_edge_attrs(store, sample, 0)
        self._add_attrs(store, sample, 0, after)
        self._add_nodes(store, sample, 0)
        self._add_edge_ids(store, sample, 0)
        store["num_sampled_nodes"] = sample.arrays["num_sampled_nodes"][0].tolist()
        _add_edge_counts(store, sample, 0)
        self._add_seeds(data, sample)
        _add_device_rows(store, sample, 0)
        return data

    def _heterogeneous(self, sample: Sample) -> HeteroData:
        data = HeteroData()
        for t, node_type in enumerate(self._schema.node_types):
            store = data[node_type]
            self._add_attrs(store, sample, t, self._node_attrs[t])
            self._add_nodes(store, sample, t)
            store.num_sampled_nodes = sample.arrays["num_sampled_nodes"][t].tolist()
            _add_device_rows(store, sample, t)
        for r, edge_type in enumerate(self._schema.edge_types):
            store = data[edge_type]
            store.edge_index = self._edge_index(sample, r)
            self._add_edge_attrs(store, sample, r)
            self._add_edge_ids(store, sample, r)
            _add_edge_counts(store, sample, r)
        self._add_seeds(data, sample)
        return data

    def _add_nodes(self, store: Any, sample: Sample, node_type: int) -> None:
        for name, key in Sample.NODE_FIELDS.items():
            if (values := sample.node(node_type, key)) is not None:
                store[name] = as_tensor(values)
        if not self._node_attrs[node_type] or "n_id" not in store:
            store.num_nodes = _num_nodes(sample, node_type)
        if (tree := sample.node(node_type, Sample.TREE_OF)) is not None:
            store[Sample.TREE_OF] = as_tensor(tree)

    def _add_edge_ids(self, store: Any, sample: Sample, edge_type: int) -> None:
        for name, key in Sample.EDGE_FIELDS.items():
            if (values := sample.edge(edge_type, key)) is not None:
                store[name] = as_tensor(values)

    def _add_seeds(self, data: Batch, sample: Sample) -> None:
        """What a batch has of its seeds beside their rows."""
        homogeneous = self._schema.homogeneous
        stores = {t: data.stores[0] if homogeneous else data[self._schema.node_types[t]] for t in self._seed_types}
        first = self._seed_types[0]
        stores[first]["input_id"] = as_tensor(sample.input_ids())
        for of, name, values in sample.seed_fields():
            stores[first if of is None else of][name] = as_tensor(values)
        for store in stores.values():
            store["batch_size"] = len(store["input_id"])

    def _edge_index(self, sample: Sample, edge_type: int) -> torch.Tensor:
        """With what the sampler made of the edges as an `EdgeIndex`, else as a tensor."""
        edges = as_tensor(sample.edge(edge_type, "edge_index"))
        colptr, by_source = sample.pointers(edge_type)
        if colptr is None:
            return edges
        src, _, dst = self._schema.edge_types[edge_type]
        sources, destinations = (
            int(sample.arrays["num_sampled_nodes"][self._schema.node_index(each)].sum()) for each in (src, dst)
        )
        made: torch.Tensor = make_edge_index(
            edges,
            sources,
            destinations,
            as_tensor(colptr),
            None if by_source is None else as_tensor(by_source),
        )
        return made

    def _add_edge_attrs(self, store: Any, sample: Sample, edge_type: int) -> None:
        for name in self._edge_attrs[edge_type]:
            if (values := sample.edge(edge_type, name)) is not None:
                store[name] = self._tensor(values, ("edges", edge_type, name))

    def _add_attrs(self, store: Any, sample: Sample, node_type: int, names: Sequence[str]) -> None:
        for name in names:
            if (values := sample.node(node_type, name)) is not None:
                store[name] = self._tensor(values, ("nodes", node_type, name))

    def _tensor(self, value: Any, attr: tuple[str, int, str]) -> torch.Tensor:
        return value if isinstance(value, torch.Tensor) else to_tensor(value, attr in self._bfloat16)

    def _split_attrs(self, node_type: int) -> tuple[list[str], list[str]]:
        names = self._node_attrs[node_type]
        return [n for n in names if n == "x"], [n for n in names if n != "x"]


def _add_edge_counts(store: Any, sample: Sample, edge_type: int) -> None:
    if (per_hop := sample.arrays.get("num_sampled_edges")) is not None:
        store["num_sampled_edges"] = per_hop[edge_type].tolist()


def _add_device_rows(store: Any, sample: Sample, node_type: int) -> None:
    if (rows := sample.node(node_type, DEVICE_ROWS)) is not None:
        store[DEVICE_ROWS] = as_tensor(rows)


def to_tensor(array: np.ndarray, bfloat16: bool) -> torch.Tensor:
    """An attribute; bfloat16, which numpy lacks, comes as uint16."""
    if bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_tensor(value: np.ndarray | torch.Tensor) -> torch.Tensor:
    """On the device where the sample has it."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(value)


def _num_nodes(sample: Sample, node_type: int) -> int:
    found = (sample.node(node_type, name) for name in (DEVICE_ROWS, *Sample.NODE_FIELDS.values()))
    return len(next(each for each in found if each is not None))


def _in_order(names: tuple[str, ...]) -> list[str]:
    """``x`` first, then ``y``, then the other attributes."""
    return sorted(names, key=lambda n: (n != "x", n != "y", n))
