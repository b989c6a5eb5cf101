"""A graph that a script gives as tensors: one of each, or dictionaries by type."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, GraphSchema, NodeType, OptionError, edge_type_str
from glt_lightning.kernels import BFLOAT16, from_bfloat16, to_bfloat16
from glt_lightning.partition import ArraySource, array_fingerprint, array_of, host_array

FLOATS = "floats"  # GLT's default is float32 for all, in which ids above 2^24 become others


@dataclass(frozen=True, kw_only=True)
class TensorGraph:
    """The tensors of a script's graph; each field is a value, or for a heterogeneous graph a dictionary by type.

    Attributes:
        num_nodes: int.
        edge_index: Integers [2, E], row 0 the sources.
        node_feat, edge_feat: [N, D], [E, D].
        node_feat_dtype, edge_feat_dtype: The dtype in which they are stored, as torch or numpy spells it; `FLOATS`: floats as
            float32, others unchanged; None: all unchanged.
        edge_weights: Numbers [E].
        node_label: [N] or [N, C].
        by_src: Store each edge with its source: sources and destinations are exchanged.
    """

    num_nodes: Any
    edge_index: Any
    node_feat: Any = None
    node_feat_dtype: Any = None
    edge_feat: Any = None
    edge_feat_dtype: Any = None
    edge_weights: Any = None
    node_label: Any = None
    by_src: bool = False

    @property
    def hetero(self) -> bool:
        return isinstance(self.num_nodes, Mapping)

    def source(self) -> ArraySource:
        """Makes the source, without its fingerprint. Raises `DataError` or `OptionError` if the fields contradict each other."""
        counts = {t: _count(n) for t, n in self.by_type("num_nodes", self.num_nodes, NODE).items()}
        ends = self._edges(counts)
        dtype = dtype_of("node_feat_dtype", self.node_feat_dtype)
        node: dict[NodeType, dict[str, np.ndarray]] = {t: {} for t in counts}
        for t, array in self._arrays("node_feat", self.node_feat, counts, NODE).items():
            node[t]["x"] = cast_rows("node_feat", array, dtype)
        for t, array in self._arrays("node_label", self.node_label, counts, NODE).items():
            node[t]["y"] = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        return ArraySource(
            name="script",
            fingerprint="",
            schema=GraphSchema(tuple(counts), tuple(map(self.stored, ends)), homogeneous=not self.hetero),
            num_nodes={t: counts[t] for t in sorted(counts)},
            edge_index={self.stored(e): index[::-1] if self.by_src else index for e, index in ends.items()},
            node=node,
            edge={self.stored(e): attrs for e, attrs in self._edge_attrs(ends).items()},
        ).with_target()

    def stored(self, edge_type: EdgeType) -> EdgeType:
        """Returns the edge type under which the edges of a user's type are stored."""
        return reverse_edge_type(edge_type) if self.by_src else edge_type

    def by_type(self, name: str, value: Any, only: Hashable) -> Mapping[Any, Any]:
        """Returns a field as a dictionary. only: the type of a homogeneous graph."""
        if isinstance(value, Mapping) != self.hetero and value is not None:
            raise OptionError(
                f"{name}: got {type(value).__name__}, but num_nodes is {type(self.num_nodes).__name__}. "
                "Give dictionaries by type for a heterogeneous graph, and none for a homogeneous one."
            )
        return {} if value is None else value if self.hetero else {only: value}

    def _edges(self, counts: Mapping[NodeType, int]) -> dict[EdgeType, np.ndarray]:
        ends = {}
        for key, value in self.by_type("edge_index", self.edge_index, EDGE).items():
            if not (isinstance(key, tuple) and len(key) == 3 and key[0] in counts and key[2] in counts):
                raise DataError(
                    f"edge_index: expected keys (source type, relation, destination type) with types of num_nodes "
                    f"({', '.join(counts)}), got {key!r}."
                )
            ends[key] = edge_ends(f"edge_index[{edge_type_str(key)}]" if self.hetero else "edge_index", value)
        return ends

    def _edge_attrs(self, ends: Mapping[EdgeType, np.ndarray]) -> dict[EdgeType, dict[str, np.ndarray]]:
        counts = {e: index.shape[1] for e, index in ends.items()}
        dtype = dtype_of("edge_feat_dtype", self.edge_feat_dtype)
        attrs: dict[EdgeType, dict[str, np.ndarray]] = {e: {} for e in ends}
        for e, array in self._arrays("edge_feat", self.edge_feat, counts, EDGE).items():
            attrs[e]["edge_attr"] = cast_rows("edge_feat", array, dtype)
        for e, array in self._arrays("edge_weights", self.edge_weights, counts, EDGE).items():
            attrs[e]["edge_weight"] = _cast(array, np.dtype(np.float32))
        return attrs

    def _arrays(self, name: str, value: Any, counts: Mapping[Any, int], only: Hashable) -> dict[Any, np.ndarray]:
        arrays = {}
        for key, given in self.by_type(name, value, only).items():
            label = f"{name}[{key!r}]" if self.hetero else name
            if key not in counts:
                raise DataError(f"{label}: no such type; known: {', '.join(map(str, counts))}.")
            array = arrays[key] = _as_given(label, given)
            if array.ndim < 1 or len(array) != counts[key]:
                things = "nodes" if only == NODE else "edges"
                raise DataError(
                    f"{label}: expected one row for each of {counts[key]} {things}, got {list(array.shape)}."
                )
        return arrays


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """Returns the reverse edge type by the rule of GraphLearn-for-PyTorch: ``rev_`` is added or removed, except within one node
    type."""
    src, rel, dst = edge_type
    if src != dst:
        rel = rel.removeprefix("rev_") if rel.startswith("rev_") else f"rev_{rel}"
    return dst, rel, src


def fingerprint(graph: ArraySource) -> str:
    """Returns a text that changes when the content of a graph in memory changes."""
    named = [(f"{t}:{n}", np.zeros(0)) for t, n in graph.num_nodes.items()]
    named += [
        (f"{edge_type_str(e)}:{i}", ids) for e, ends in sorted(graph.edge_index.items()) for i, ids in enumerate(ends)
    ]
    for key, attrs in [*sorted(graph.node.items()), *((edge_type_str(e), a) for e, a in sorted(graph.edge.items()))]:
        named += [(f"{key}/{name}", np.asarray(rows)) for name, rows in sorted(attrs.items())]
    return array_fingerprint(named)


def _count(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 0:
        raise OptionError(f"num_nodes: expected an integer >= 0, or one per node type; got {given!r}.")
    return int(given)


def _as_given(label: str, given: Any) -> np.ndarray:
    if str(getattr(given, "dtype", "")) == "torch.bfloat16" and str(given.layout) == "torch.strided":
        return array_of(given)
    return host_array(label, given)


def edge_ends(name: str, value: Any) -> np.ndarray:
    """Converts a tensor, an array, or a pair of them to integers [2, E]."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        sources, destinations = (host_array(name, ids) for ids in value)
        if sources.shape != destinations.shape:
            raise DataError(
                f"{name}: sources and destinations differ in shape: {list(sources.shape)} and {list(destinations.shape)}. Give "
                "two arrays [E]."
            )
        value = np.stack([sources, destinations])
    ends = host_array(name, value)
    if ends.ndim != 2 or ends.shape[0] != 2 or (ends.dtype.kind not in "iu" and ends.size):
        raise DataError(
            f"{name}: expected integers [2, E] (sources, destinations), got {ends.dtype} {list(ends.shape)}."
        )
    return ends if ends.size else np.zeros((2, 0), np.int64)


def cast_rows(name: str, array: np.ndarray, dtype: np.dtype | str | None) -> np.ndarray:
    """The rows in a dtype of `dtype_of`. Raises `DataError` for integers that it cannot hold."""
    if dtype == FLOATS:
        dtype = np.dtype(np.float32) if array.dtype.kind == "f" or array.dtype == BFLOAT16 else None
    if dtype is None or array.dtype == dtype:
        return array
    assert isinstance(dtype, np.dtype)
    made = _cast(array, dtype)
    if array.dtype.kind in "iu" and not np.array_equal(_cast(made, array.dtype), array):
        raise DataError(
            f"{name}: expected integers that {'bfloat16' if dtype == BFLOAT16 else dtype} can hold, got {array.dtype} "
            f"from {array.min()} to {array.max()}. Leave its dtype out: integers then stay what they are."
        )
    return made


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype == BFLOAT16:
        array = from_bfloat16(array.view("<u2"))
    with np.errstate(invalid="ignore", over="ignore"):
        return to_bfloat16(array).view(BFLOAT16) if dtype == BFLOAT16 else array.astype(dtype, copy=False)


def dtype_of(name: str, given: Any) -> np.dtype | str | None:
    """Returns numpy's dtype for a dtype of torch or numpy, or its name; None and `FLOATS` unchanged."""
    if given is None or given is FLOATS:
        return given
    if str(given).removeprefix("torch.") == "bfloat16":
        return BFLOAT16
    try:
        return np.dtype(str(given).removeprefix("torch.") if "torch." in str(given) else given)
    except TypeError:
        raise OptionError(f"{name}: expected a dtype of torch or numpy, such as torch.float32; got {given}.") from None
