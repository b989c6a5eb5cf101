"""A PyG graph in memory as loaders sample it: its topology is converted once, its attributes are read where they lie."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, GraphSchema, NodeType, OptionError, edge_type_str
from glt_lightning.graph import LocalPartition, node_path
from glt_lightning.partition import ArraySource, array_of, partition_in_memory

Graph: TypeAlias = Data | HeteroData
_Key = tuple[str | None, str | None, tuple[EdgeType, ...], bool]

# Attributes of nodes that a sampler reads: each tensor, and where it reads a copy, the tensor's version then.
Rows: TypeAlias = dict[NodeType, dict[str, tuple[Tensor, int | None]]]

_SPARSE = ("adj_t", "adj")
# numpy has these, and batches
_READ = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}
# What batches have of their seeds.
_OF_SEEDS: tuple[str, ...] = (
    "input_id",
    "seed_time",
    "batch_size",
    "edge_label_index",
    "edge_label",
    "edge_label_time",
)
_OF_SEEDS += ("src_index", "dst_pos_index", "dst_neg_index", "src_neg_index", "neg_mask")
# What else they have: an attribute of such a name is read here, not by the sampler.
_OF_BATCHES = {*_OF_SEEDS, "n_id", "row", "batch", "num_nodes", "num_sampled_nodes", "num_sampled_edges", "hotness"}
_OF_BATCHES |= {"device_rows", "x_neighbors", "x_neighbors_aggr"}


class InMemoryGraph:
    """The topology of a `Data` or `HeteroData` as a partition, and how batches get attributes from it.

    All loaders on one object share it, as long as they draw by the same weights and times (`InMemoryGraph.of`). Attributes are
    not copied: rows are read from the object's own tensors when a batch is made, so a change of them is seen. With ``copied`` the
    partition has those of nodes, too, for samplers in other processes; one that was changed since is read from the object.

    Attributes:
        partition: One part, whose ids are the user's. It has the weights and times that neighbours are drawn by.
        names: Of the attributes that have these.
    """

    def __init__(
        self,
        data: Graph,
        time_attr: str | None,
        weight_attr: str | None,
        more_edge_types: tuple[EdgeType, ...] = (),
        copied: bool = False,
    ) -> None:
        hetero = isinstance(data, HeteroData)
        edge_types = [*_edge_stores(data), *more_edge_types]
        self._time_attr, self._weight_attr = time_attr, weight_attr
        self.names = {name for name in (time_attr, weight_attr) if name is not None}
        self._tensors = dict(_converted(data, time_attr, weight_attr))
        self._versions = {where: _version(tensor) for where, tensor in self._tensors.items()}
        self._counts = _num_nodes(data)
        node: dict[NodeType, dict[str, np.ndarray]] = {t: {} for t in self._counts}
        edge: dict[EdgeType, dict[str, np.ndarray]] = {e: {} for e in edge_types}
        edge_index = dict.fromkeys(edge_types, np.empty((2, 0), np.int64))
        for (owner, name), tensor in self._tensors.items():
            rows = _array(name, tensor)
            if name == "edge_index":
                edge_index[owner] = rows  # type: ignore[index]
            else:
                (edge if isinstance(owner, tuple) else node)[owner][name] = rows  # type: ignore[index]
        _require(time_attr, weight_attr, node, edge)
        for node_type, attrs in node.items():
            _require_lengths(attrs, self._counts[node_type], "nodes")
        for edge_type, attrs in edge.items():
            _require_lengths(attrs, edge_index[edge_type].shape[1], "edges")
        self._copied: Rows = {}
        for node_type, store in _node_stores(data).items() if copied else ():
            found = dict(_dense(data, store, self.names))
            node[node_type] |= {name: _array(name, tensor) for name, tensor in found.items()}
            self._copied[node_type] = {name: (tensor, _version(tensor)) for name, tensor in found.items()}
        source = ArraySource(
            name="data",
            fingerprint="",
            schema=GraphSchema(tuple(self._counts), tuple(edge_types), homogeneous=not hetero),
            num_nodes=self._counts,
            edge_index=edge_index,
            node=node,
            edge=edge,
        )
        self.partition = partition_in_memory(source, weights=[weight_attr] if weight_attr else [], time_attr=time_attr)

    @classmethod
    def of(
        cls,
        data: Graph,
        time_attr: str | None,
        weight_attr: str | None,
        more_edge_types: tuple[EdgeType, ...] = (),
        copied: bool = False,
    ) -> InMemoryGraph:
        """The graph of ``data``: the one of an earlier loader where nothing was changed since."""
        if id(data) not in _graphs:
            _graphs[id(data)] = {}
            finalize(data, _graphs.pop, id(data), None)
        known = _graphs[id(data)]
        key: _Key = (time_attr, weight_attr, more_edge_types, copied)
        found = known.get(key)
        if found is None or found.change_of(data) is not None:
            found = known[key] = cls(data, *key)
        return found

    def change_of(self, data: Graph, nodes: bool = True) -> str | None:
        """What was changed of ``data`` since, beside attributes; None: nothing. An equal tensor in the place of another one, such
        as one that was moved to a GPU, is no change. nodes: whether their number counts."""
        now = dict(_converted(data, self._time_attr, self._weight_attr))
        if now.keys() != self._tensors.keys():
            return _named(*next(iter(now.keys() ^ self._tensors.keys())))
        for where, tensor in now.items():
            known = self._tensors[where]
            if _version(known) != self._versions[where]:
                return _named(*where)
            if tensor is not known:
                if not np.array_equal(_array(where[1], tensor), _array(where[1], known)):
                    return _named(*where)
                self._tensors[where], self._versions[where] = tensor, _version(tensor)
        return "the number of nodes" if nodes and _num_nodes(data) != self._counts else None

    def require_unchanged(self, data: Graph, nodes: bool = False) -> None:
        """Raises `DataError` where a loader would sample what ``data`` no longer has."""
        if (what := self.change_of(data, nodes)) is not None:
            raise DataError(
                f"data: {what} was changed after this loader was made, which samples the graph as it was. Make a new loader."
            )

    def with_rows(self, data: Graph) -> tuple[LocalPartition, Rows]:
        """The partition with the attributes of nodes that a sampler of this process can read where they lie; and these. Of copies
        the partition as it is, and those."""
        if self._copied:
            return self.partition, self._copied
        rows = {t: dict(_dense(data, store, self.names)) for t, store in _node_stores(data).items()}
        schema = self.partition.schema
        paths = {node_path(0, schema.node_index(t), name): _array(name, v) for t in rows for name, v in rows[t].items()}
        return self.partition.with_rows(paths), {t: {n: (v, None) for n, v in rows[t].items()} for t in rows}

    def joined(self, data: Graph, batch: Graph, out: SamplerOutput | HeteroSamplerOutput, rows: Rows) -> Graph:
        """A copy of ``data`` with the nodes and edges of ``out`` alone, their rows of its attributes, and what ``batch`` has of
        its seeds. rows: the attributes whose rows ``batch`` may have, if ``out`` has its nodes."""
        nodes, edges = _by_type(out)
        made, stored = copy.copy(data), _edge_stores(data)
        for t, (ids, counts) in nodes.items():
            store, sampled = _store(made, t), _store(batch, t)
            known = {n: v for n, (v, then) in rows.get(t, {}).items() if then in (None, _version(v)) and n in sampled}
            _fill_nodes(data, _store(data, t), store, ids, {n: (v, sampled[n]) for n, v in known.items()})
            _add(store, {"n_id": ids}, counts)
            self._add_seeds(store, sampled)
        for e, (ends, ids, counts) in edges.items():
            if e in stored:
                _fill_edges(data, stored[e], _store(made, e), ends, ids)
                _add(_store(made, e), {"e_id": ids}, counts)
            if "input_id" in (of_seeds := _store(batch, e)):  # the type of a loader's edges, which need not be stored
                self._add_seeds(_store(made, e), of_seeds)
        return made

    def _add_seeds(self, store: Any, sampled: Any) -> None:
        if "src_index" in sampled:  # of triplets; else these would be those of the whole graph
            store.edge_label_index = store.edge_label_time = None
        for name in _OF_SEEDS:
            if name in sampled:
                store[name] = sampled[name]


_graphs: dict[int, dict[_Key, InMemoryGraph]] = {}  # of each object that lives, by its id: it has no hash


def sampler_output(batch: Graph) -> SamplerOutput | HeteroSamplerOutput:
    """What was sampled, in PyG's form, of a batch without attributes."""
    if isinstance(batch, Data):
        (row, col), seeds = batch.edge_index, (batch.input_id, batch.get("seed_time"))
        counts = batch.num_sampled_nodes, batch.get("num_sampled_edges")
        return SamplerOutput(batch.n_id, row, col, batch.get("e_id"), batch.get("batch"), *counts, metadata=seeds)
    nodes, edges = dict(batch.node_items()), dict(batch.edge_items())
    edges = {e: store for e, store in edges.items() if "edge_index" in store}
    seeds = next(store for store in batch.stores if "input_id" in store)
    return HeteroSamplerOutput(
        node={t: store.n_id for t, store in nodes.items()},
        row={e: store.edge_index[0] for e, store in edges.items()},
        col={e: store.edge_index[1] for e, store in edges.items()},
        edge={e: store.get("e_id") for e, store in edges.items()},
        batch={t: store.batch for t, store in nodes.items() if "batch" in store} or None,
        num_sampled_nodes={t: store.num_sampled_nodes for t, store in nodes.items()},
        num_sampled_edges={e: store.get("num_sampled_edges") for e, store in edges.items()},
        metadata=(seeds.input_id, seeds.get("seed_time")),
    )


def _by_type(out: Any) -> tuple[dict[NodeType, Any], dict[EdgeType, Any]]:
    """What the stores of a batch get of a sampler's output, by their types."""
    if isinstance(out, SamplerOutput):
        out = HeteroSamplerOutput(
            *({NODE: out.node}, {EDGE: out.row}, {EDGE: out.col}, {EDGE: out.edge}),
            *({NODE: out.batch}, {NODE: out.num_sampled_nodes}, {EDGE: out.num_sampled_edges}),
        )
    trees, of_nodes, of_edges = out.batch or {}, out.num_sampled_nodes or {}, out.num_sampled_edges or {}
    nodes = {t: (ids, {"batch": trees.get(t), "num_sampled_nodes": of_nodes.get(t)}) for t, ids in out.node.items()}
    edges = {
        e: (torch.stack([row, out.col[e]]), (out.edge or {}).get(e), {"num_sampled_edges": of_edges.get(e)})
        for e, row in out.row.items()
    }
    return nodes, edges


def _fill_nodes(data: Graph, store: Any, made: Any, ids: Tensor, found: dict[str, tuple[Tensor, Tensor]]) -> None:
    """found: attribute -> (its tensor, rows of it that the sampler has read)."""
    for name, value in store.items():
        if name == "num_nodes":
            made.num_nodes = len(ids)
        elif name in found and found[name][0] is value:
            made[name] = found[name][1]
        elif store.is_node_attr(name):
            made[name] = _rows(value, ids, data.__cat_dim__(name, value, store))


def _fill_edges(data: Graph, store: Any, made: Any, ends: Tensor, ids: Tensor | None) -> None:
    for name, value in store.items():
        if name == "edge_index":
            made.edge_index = ends.to(value.device)
        elif store.is_edge_attr(name):
            made[name] = None if ids is None else _rows(value, ids, data.__cat_dim__(name, value, store))


def _add(store: Any, ids: dict[str, Any], counts: dict[str, Any]) -> None:
    """Ids are those of ``data`` itself, where it has an attribute of this name."""
    for name, values in {**{n: v for n, v in ids.items() if n not in store}, **counts}.items():
        store[name] = values


def _dense(data: Graph, store: Any, drawn_by: set[str]) -> Iterator[tuple[str, Tensor]]:
    """The attributes of nodes that a sampler can read where they lie."""
    for name, value in store.items():
        plain = type(value) is Tensor and value.layout == torch.strided and value.dtype in _READ
        if not plain or value.device.type != "cpu" or value.requires_grad or not value.numel():
            continue  # with a gradient, it would be lost
        own = name not in _OF_BATCHES and name not in drawn_by and "/" not in name
        if own and value.is_contiguous() and store.is_node_attr(name) and data.__cat_dim__(name, value, store) == 0:
            yield name, value


def _rows(value: Any, index: Tensor, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(dim, index.to(value.device))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.take(index.cpu().numpy(), axis=dim))
    return value[index.to(value.device)]  # a table of PyTorch Frame


def _converted(
    data: Graph, time_attr: str | None, weight_attr: str | None
) -> Iterator[tuple[tuple[NodeType | EdgeType, str], Any]]:
    """The tensors that are converted: edges, and the weights and times that they are drawn by."""
    for edge_type, store in _edge_stores(data).items():
        if sparse := [name for name in _SPARSE if name in store and "edge_index" not in store]:
            raise OptionError(
                f"data: {sparse[0]} of {edge_type_str(edge_type)}: expected edges as edge_index [2, E]. Convert them with "
                "torch_geometric.utils.to_edge_index."
            )
        for name in dict.fromkeys(("edge_index", weight_attr, time_attr)):
            of_nodes = name == time_attr and isinstance(data, Data) and name in store and store.is_node_attr(name)
            if name is not None and name in store and not of_nodes:
                yield (edge_type, name), store[name]
    for node_type, store in _node_stores(data).items():
        if (
            time_attr is not None
            and time_attr in store
            and (isinstance(data, HeteroData) or store.is_node_attr(time_attr))
        ):
            yield (node_type, time_attr), store[time_attr]


def _store(graph: Graph, of: NodeType | EdgeType) -> Any:
    return graph[of] if isinstance(graph, HeteroData) else graph._store


def _edge_stores(data: Graph) -> dict[EdgeType, Any]:
    return dict(data.edge_items()) if isinstance(data, HeteroData) else {EDGE: data._store}


def _node_stores(data: Graph) -> dict[NodeType, BaseStorage]:
    return dict(data.node_items()) if isinstance(data, HeteroData) else {NODE: data._store}


def _num_nodes(data: Graph) -> dict[NodeType, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG counts the nodes that edges name, where nothing else says their number
        counts = {t: store.num_nodes for t, store in _node_stores(data).items()}
    if unknown := [t for t, count in counts.items() if count is None]:
        raise DataError(f"data: the number of nodes of type {unknown[0]!r} is unknown. Set num_nodes.")
    return {t: int(count) for t, count in counts.items()}


def _require(time_attr: str | None, weight_attr: str | None, node: dict[str, Any], edge: dict[Any, Any]) -> None:
    timed = [attrs for attrs in (*node.values(), *edge.values()) if time_attr in attrs]
    if time_attr is not None and not timed:
        raise OptionError(f"time_attr: neither nodes nor edges have an attribute {time_attr!r}.")
    if weight_attr is not None and not any(weight_attr in attrs for attrs in edge.values()):
        raise OptionError(f"weight_attr: edges have no attribute {weight_attr!r}.")


def _require_lengths(attrs: dict[str, np.ndarray], count: int, things: str) -> None:
    for name, rows in attrs.items():
        if rows.ndim < 1 or len(rows) != count:
            raise DataError(f"data: {name}: expected one for each of {count} {things}, got {list(rows.shape)}.")


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise OptionError(f"data: {name}: expected a dense tensor, got {type(value).__name__}.")
    return array_of(value.as_subclass(Tensor))


def _version(value: Any) -> int:
    """Number of changes in place. Of what does not count them, 0."""
    return 0 if not isinstance(value, Tensor) or value.is_inference() else value._version


def _named(owner: NodeType | EdgeType, name: str) -> str:
    return name if owner in (NODE, EDGE) else f"{name} of {owner if isinstance(owner, str) else edge_type_str(owner)}"
