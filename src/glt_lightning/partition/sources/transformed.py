"""A graph to which transforms of PyG are applied before it is partitioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import ClassSpec, DataError, EdgeType, GLTError, NodeType
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.sources.base import (
    ArraySource,
    DelegatingSource,
    GraphSource,
    Rows,
    categories_of,
    edge_categories_of,
    fixed_randomness,
)
from glt_lightning.partition.sources.pyg import convert

_CHUNK = 1 << 22
_SOURCE_ID = "source_id"


class TransformedSource(DelegatingSource):
    """The graph of another source after some transforms, in memory.

    transforms: texts of class and arguments. A partition records them: other transforms make another folder.
    """

    def __init__(self, source: GraphSource, transforms: Sequence[Any], seed: int) -> None:
        self.inner, self.name, self._seed = source, source.name, seed
        self._specs = [ClassSpec.parse("transforms", given) for given in transforms]
        self.transforms = [spec.text for spec in self._specs]
        self._made = [spec.make() for spec in self._specs]

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    @property
    def class_names(self) -> list[str] | None:
        return getattr(self.inner, "class_names", None)

    @property
    def strays(self) -> list[str]:
        return getattr(self.inner, "strays", [])

    @property
    def num_categories(self) -> dict[NodeType, tuple[int, ...]]:
        """Numbers of codes, as in the tables; a transform may remove codes."""
        return {t: counts for t, counts in categories_of(self.inner).items() if "x_codes" in self.node_attrs(t)}

    @property
    def num_edge_categories(self) -> dict[EdgeType, tuple[int, ...]]:
        """Numbers of codes of edges, as in the tables; a transform may remove codes, or edge types."""
        given = edge_categories_of(self.inner)
        return {e: given[e] for e in self.schema.edge_types if e in given and "edge_codes" in self.edge_attrs(e)}

    @property
    def table_encoding(self) -> bytes | None:
        """The encoding of the tables, before they are transformed."""
        return getattr(self.inner, "table_encoding", None)

    def _load(self) -> ArraySource:
        data = to_pyg(self.inner)
        with fixed_randomness(self._seed):
            for spec, transform in zip(self._specs, self._made, strict=True):
                data = _apply(spec, transform, data)
        graph = convert(data, self.name)
        classes = [c for c in (self.inner.num_classes, graph.num_classes) if c is not None]
        return replace(
            graph,
            node={t: self._numbered(t, attrs, graph.num_nodes[t]) for t, attrs in graph.node.items()},
            target_type=graph.target_type or self.inner.target_type,
            num_classes=max(classes, default=None) if graph.num_classes is not None else None,
        )

    def _numbered(self, node_type: NodeType, attrs: Mapping[str, Rows], count: int) -> dict[str, Rows]:
        """Returns the attributes, with the number that each node had before if nodes were left out or reordered."""
        ids = attrs.get(_SOURCE_ID)
        rest = {name: rows for name, rows in attrs.items() if name != _SOURCE_ID}
        if ids is not None and np.array_equal(ids[:], np.arange(self.inner.num_nodes[node_type])):
            return rest
        if hasattr(self.inner, "user_ids"):
            raise DataError(
                f"transforms: {', '.join(self.transforms)} changed which nodes of type {node_type!r} there are, but the ids of "
                "a table belong to all of its rows. Leave the rows out of the table instead."
            )
        if ids is None:
            raise DataError(
                f"transforms: {', '.join(self.transforms)} made nodes of type {node_type!r} that were not there."
            )
        return dict(attrs)


def _apply(spec: ClassSpec, transform: Any, data: Data | HeteroData) -> Data | HeteroData:
    try:
        out = transform(data)
    except GLTError:
        raise
    except Exception as error:
        raise DataError(f"transforms: {spec.text} failed ({type(error).__name__}: {error}).") from error
    if not isinstance(out, (Data, HeteroData)):
        raise DataError(f"transforms: {spec.text} gives {type(out).__name__}; expected one Data or HeteroData.")
    return out


def to_pyg(source: GraphSource) -> Data | HeteroData:
    """The whole graph as a PyG object in memory; splits are masks, and ``source_id`` numbers the nodes."""
    schema = source.schema
    data = Data() if schema.homogeneous else HeteroData()
    for t in schema.node_types:
        store = data if schema.homogeneous else data[t]
        store.num_nodes = source.num_nodes[t]
        store[_SOURCE_ID] = torch.arange(source.num_nodes[t])
        for name, rows in source.node_attrs(t).items():
            store[name] = _tensor(f"{name} of node type {t!r}", rows)
    for e in schema.edge_types:
        store = data if schema.homogeneous else data[e]
        chunks = [np.stack(ends) for ends in source.edges(e).chunks(_CHUNK)]
        store.edge_index = torch.from_numpy(np.concatenate(chunks, 1) if chunks else np.zeros((2, 0), np.int64))
        for name, rows in source.edge_attrs(e).items():
            store[name] = _tensor(f"{name} of an edge type", rows)
    for name, (t, ids) in source.splits.items():
        (data if schema.homogeneous else data[t])[f"{name}_mask"] = _mask(name, ids, source.num_nodes[t])
    return data


def _tensor(what: str, rows: Rows) -> torch.Tensor:
    array = np.array(rows[: len(rows)])  # a copy: transforms change tensors in place
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise DataError(f"{what}: expected numbers or booleans, got {array.dtype}.") from None


def _mask(name: str, ids: np.ndarray, count: int) -> torch.Tensor:
    ids = np.flatnonzero(ids) if ids.dtype == np.bool_ else ids
    if len(ids) and (ids.min() < 0 or ids.max() >= count):
        raise DataError(f"splits: {name}: an id is not in 0..{count - 1}.")
    if len(np.unique(ids)) < len(ids):
        raise DataError(
            f"splits: {name}: lists nodes several times, which transforms cannot keep. Leave out one of the two."
        )
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.from_numpy(np.asarray(ids, np.int64))] = True
    return mask
