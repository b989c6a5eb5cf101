"""The interface of graph sources, and the code they share."""

from __future__ import annotations

import difflib
import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from glt_lightning.base import DataError, EdgeType, GraphSchema, NodeType, edge_type_str
from glt_lightning.graph import MOST_CLASSES
from glt_lightning.kernels import row_bytes


class Rows(Protocol):
    """An array that is read by rows: a numpy array, a memory map, or a file. A protocol: ``shape`` is (N, ...), ``rows[slice]``
    and ``rows[int64 array]`` are numpy arrays.

    Example:
        >>> rows = open_source("graph.npz", "data").node_attrs("node")["x"]
        >>> rows.shape, rows.dtype, rows[2:4]
        ((10, 3), dtype('float32'), array([[ 6.,  7.,  8.],
               [ 9., 10., 11.]], dtype=float32))
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray: ...


class EdgeList(Protocol):
    """The edges of one edge type, in the order of the user's columns. A protocol: any object with these methods will do.

    Example:
        >>> from glt_lightning.base import EDGE
        >>> edges = open_source("graph.npz", "data").edges(EDGE)
        >>> edges.num_edges
        20
        >>> for sources, destinations in edges.chunks(3):
        ...     print(sources, destinations)
        ...     break
        [0 1 2] [1 2 3]
    """

    @property
    def num_edges(self) -> int: ...

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (sources, destinations), int64 user ids, at most ``size`` at a time and valid until the next."""
        ...


class RangedEdges(ABC):
    """An `EdgeList` of which any range can be read, so that several processes read some of it each."""

    num_edges: int

    @abstractmethod
    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the edges [begin, end) as `EdgeList.chunks` does."""

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self.part(size, 0, self.num_edges)


def read_edges(edges: EdgeList, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the edges [begin, end) as `EdgeList.chunks` does; all of them, unless they are `RangedEdges`."""
    if isinstance(edges, RangedEdges):
        return edges.part(size, begin, end)
    assert (begin, end) == (0, edges.num_edges)
    return edges.chunks(size)


Splits = Mapping[str, tuple[NodeType, np.ndarray]]


class GraphSource(Protocol):
    """A user's graph. A protocol: any object with these properties can be partitioned.

    The first six properties are cheap: they do not load edges or features.

    Example:
        >>> source = open_source("graph.npz", "data")
        >>> source.num_nodes, source.num_features, source.num_classes, sorted(source.splits)
        ({'node': 10}, {'node': 3}, 2, ['test', 'train', 'val'])
    """

    @property
    def name(self) -> str:
        """Short name, fit for a folder."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that changes when the content changes."""
        ...

    @property
    def schema(self) -> GraphSchema: ...

    @property
    def num_nodes(self) -> Mapping[NodeType, int]: ...

    @property
    def num_features(self) -> Mapping[NodeType, int | None]:
        """Width of ``x`` per node type, None without it."""
        ...

    @property
    def num_classes(self) -> int | None: ...

    @property
    def target_type(self) -> NodeType | None: ...

    @property
    def splits(self) -> Splits:
        """``train``, ``val``, ``test`` -> (node type, int64 user ids)."""
        ...

    def edges(self, edge_type: EdgeType) -> EdgeList: ...

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]: ...

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]: ...


class LazyArray:
    """An array of known shape and dtype that is loaded when it is first read and kept while this object lives."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, load: Callable[[], np.ndarray]) -> None:
        self.shape, self.dtype = shape, dtype
        self._load = load
        self._array: np.ndarray | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        return self.array[index]

    @property
    def array(self) -> np.ndarray:
        if self._array is None:
            self._array = self._load()
        return self._array


def in_memory(rows: Rows) -> np.ndarray | None:
    """Returns the array itself if reading it takes no further memory, else None."""
    if isinstance(rows, LazyArray):
        return rows.array
    return rows if isinstance(rows, np.ndarray) and not isinstance(rows, np.memmap) else None


def rows_bytes(rows: Rows) -> int:
    """Returns the bytes of an array, read or not."""
    return row_bytes(rows.dtype, tuple(rows.shape))


class ArrayEdges(RangedEdges):
    """An ``edge_index`` in memory: integers [2, E], row 0 the sources."""

    def __init__(self, edge_index: np.ndarray | LazyArray, name: str = "edge_index") -> None:
        shape, dtype = edge_index.shape, edge_index.dtype
        if len(shape) != 2 or shape[0] != 2 or dtype.kind not in "iu":
            raise DataError(f"{name}: expected integers [2, E] (sources, destinations), got {dtype} {list(shape)}.")
        self._edge_index, self.num_edges = edge_index, shape[1]

    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        sources, destinations = self._edge_index[:]
        for at in range(begin, end, size):
            src, dst = sources[at : min(at + size, end)], destinations[at : min(at + size, end)]
            yield np.ascontiguousarray(src, np.int64), np.ascontiguousarray(dst, np.int64)


@dataclass
class ArraySource:
    """A graph whose arrays are in memory or mapped, as a `GraphSource`.

    Attributes:
        name: Short name, fit for a folder.
        fingerprint: Text that changes when the content changes.
        schema: Node and edge types.
        num_nodes: Node type -> number of nodes N.
        edge_index: Edge type -> integers [2, E], row 0 the sources, user ids; or an `EdgeList`.
        node: Node type -> name -> attribute [N, ...]; ``x`` are the features, ``y`` the labels.
        edge: Edge type -> name -> attribute [E, ...].
        splits: ``train``, ``val``, ``test`` -> (node type, int64 user ids).
        target_type: Node type that has the labels.
        num_classes: Number of classes, or None.
        num_categories: Node type -> number of codes of each column of ``x_codes``.

    Raises:
        DataError: When edges are read whose array is not integers [2, E].

    Example:
        >>> from glt_lightning.base import (EDGE, GraphSchema)
        >>> source = ArraySource(
        ...     name="ring",
        ...     fingerprint="",
        ...     schema=GraphSchema.single(),
        ...     num_nodes={"node": 4},
        ...     edge_index={EDGE: np.array([[0, 1, 2, 3], [1, 2, 3, 0]])},
        ...     node={"node": {"x": np.ones((4, 3), np.float32)}},
        ... )
        >>> partition_graph(source, "ring", PartitionOptions(num_parts=2), progress=False).num_edges
        (4,)
    """

    name: str
    fingerprint: str
    schema: GraphSchema
    num_nodes: Mapping[NodeType, int]
    edge_index: Mapping[EdgeType, Any]
    node: Mapping[NodeType, Mapping[str, Rows]] = field(default_factory=dict)
    edge: Mapping[EdgeType, Mapping[str, Rows]] = field(default_factory=dict)
    splits: Splits = field(default_factory=dict)
    target_type: NodeType | None = None
    num_classes: int | None = None
    num_categories: Mapping[NodeType, Sequence[int]] = field(default_factory=dict)

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        attrs = {t: self.node_attrs(t).get("x") for t in self.schema.node_types}
        return {t: None if x is None else width(x.shape) for t, x in attrs.items()}

    def with_target(self) -> ArraySource:
        """Returns the graph with its target type, the one with splits or labels, and the number of its classes. Raises
        `DataError` if several types have splits."""
        labelled = [t for t in self.schema.node_types if "y" in self.node_attrs(t)]
        target = pick_target(labelled, {t for t, _ in self.splits.values()}, self.name)
        y = None if target is None else self.node_attrs(target).get("y")
        return replace(self, target_type=target, num_classes=None if y is None else classes_of(y))

    def edges(self, edge_type: EdgeType) -> EdgeList:
        given = self.edge_index[edge_type]
        if hasattr(given, "num_edges"):
            edges: EdgeList = given
            return edges
        return ArrayEdges(given, f"edge_index of {edge_type_str(edge_type)}")

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        return self.node.get(node_type, {})

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        return self.edge.get(edge_type, {})


def near(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Returns a sentence for errors with the known names that are like a word, at most some; "" if there is none."""
    found = difflib.get_close_matches(word, list(known), most, cutoff)
    return f" Did you mean {' or '.join(found)}?" if found else ""


def name_of(source: GraphSource, node_type: NodeType, node: int) -> str:
    """Returns the user's name for a node: its id in a table of nodes, else its number."""
    names = getattr(source, "user_ids", None)
    return f"{node}" if names is None else f"{names(np.array([node]), node_type).tolist()[0]!r}"


def file_of(source: GraphSource) -> str:
    """Returns the beginning of errors about a source: its file or folder, if it has one."""
    path = getattr(source, "path", None)
    return "" if path is None else f"{path}: "


def counted_by(source: GraphSource, node_type: NodeType) -> str:
    """A clause for errors about ids out of range: the arrays whose rows give the number of nodes."""
    rows = _rows_of(source, node_type)
    same = [name for name, count in rows.items() if count == source.num_nodes[node_type]]
    different = "".join(f" ({name} has {count})" for name, count in rows.items() if name not in same)
    return f", the number of rows of {' and '.join(same)}{different}" if same else ""


def lacking_rows(source: GraphSource, node_type: NodeType, node: int) -> str | None:
    """Returns a clause that names an array without a row for a node, if another array has a row for it; else None."""
    rows, count = _rows_of(source, node_type), source.num_nodes[node_type]
    short = [name for name in rows if rows[name] == count]
    longer = [name for name in rows if rows[name] > node >= count]
    if not short or not longer:
        return None
    return (
        f"{short[0]} of node type {node_type!r} has {count} rows and {longer[0]} has {rows[longer[0]]}, so that "
        f"{short[0]} has none for node {node}. Give {short[0]} a row for every node."
    )


def _rows_of(source: GraphSource, node_type: NodeType) -> dict[str, int]:
    attrs = source.node_attrs(node_type)
    return {name: attrs[name].shape[0] for name in ("x", "y") if name in attrs and attrs[name].shape}


def width(shape: tuple[int, ...]) -> int:
    """Features per node of an ``x`` of this shape."""
    return shape[1] if len(shape) > 1 else 1


_LABELS = 1 << 20  # read at once


def classes_of(y: Rows) -> int | None:
    """Returns the number of classes in labels ``y`` [N] or [N, C]; negative labels mean "none". None for a regression: floats
    [N], and integers too great for classes."""
    if len(y.shape) > 1:
        return int(y.shape[1])
    if y.dtype.kind not in "iub":
        return None
    count = 1 + max((int(y[begin : begin + _LABELS].max()) for begin in range(0, len(y), _LABELS)), default=-1)
    return max(0, count) if count <= MOST_CLASSES else None


def categories_of(source: GraphSource) -> dict[NodeType, tuple[int, ...]]:
    """Returns the number of codes of each column of ``x_codes``, by node type: ``num_categories`` of sources that have it.

    This is no property of `GraphSource`, since few sources have codes.
    """
    return _counts(source, "num_categories")


def _counts(source: GraphSource, name: str) -> dict[Any, tuple[int, ...]]:
    given: Mapping[Any, Sequence[int]] = getattr(source, name, None) or {}
    return {t: tuple(map(int, counts)) for t, counts in sorted(given.items())}


def pick_target(labelled: list[NodeType], split_types: set[NodeType], name: str) -> NodeType | None:
    """The node type that labels and splits belong to: the one with splits, else the only one with labels."""
    if len(split_types) > 1:
        raise DataError(
            f"{name}: node types {sorted(split_types)} all have splits; "
            "give the splits of the type to train on yourself."
        )
    if split_types:
        return next(iter(split_types))
    return labelled[0] if len(labelled) == 1 else None


def edge_categories_of(source: GraphSource) -> dict[EdgeType, tuple[int, ...]]:
    """Returns the number of codes of each column of ``edge_codes``, by the user's edge type: ``num_edge_categories`` of sources
    that have it."""
    return _counts(source, "num_edge_categories")


class DelegatingSource:
    """A source whose graph is loaded as a whole when it is first needed."""

    name: str

    def _load(self) -> GraphSource:
        raise NotImplementedError

    @cached_property
    def _graph(self) -> GraphSource:
        return self._load()

    @property
    def fingerprint(self) -> str:
        return self._graph.fingerprint

    @property
    def schema(self) -> GraphSchema:
        return self._graph.schema

    @property
    def num_nodes(self) -> Mapping[NodeType, int]:
        return self._graph.num_nodes

    @property
    def num_features(self) -> Mapping[NodeType, int | None]:
        return self._graph.num_features

    @property
    def num_classes(self) -> int | None:
        return self._graph.num_classes

    @property
    def class_names(self) -> list[str] | None:
        return getattr(self._graph, "class_names", None)

    @property
    def target_type(self) -> NodeType | None:
        return self._graph.target_type

    @property
    def splits(self) -> Splits:
        return self._graph.splits

    def edges(self, edge_type: EdgeType) -> EdgeList:
        return self._graph.edges(edge_type)

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        return self._graph.node_attrs(node_type)

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        return self._graph.edge_attrs(edge_type)


# Draws of a user's code over a graph that are the same in every run.


@contextmanager
def fixed_randomness(seed: int = 0) -> Iterator[None]:
    """Seeds the random generators of torch, numpy and Python for a block, and restores their state after it.

    Without it a graph that is made with random numbers, such as a random split, would differ in every run and on every rank.
    """
    import torch

    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


# Names and fingerprints of data sets.


# Files up to this size are known by their content wherever they lie; larger ones by size and time of change.
HASHED_BYTES = 64 << 20


def folder_name(text: str) -> str:
    """Replaces the characters of ``text`` that do not fit into a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("._-") or "graph"


def file_fingerprint(*paths: Any, times: bool = True) -> str:
    """Returns a fingerprint of files, in the order given; their folder does not matter.

    paths: or what has these methods of a path, such as a file in a store.
    times: include the time of change of large files.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:".encode())
        if stat.st_size <= HASHED_BYTES:
            digest.update(path.read_bytes())
        elif times:
            digest.update(str(stat.st_mtime_ns).encode())
    return digest.hexdigest()


def array_fingerprint(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Returns a fingerprint of named arrays in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in arrays:
        digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        digest.update(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
    return digest.hexdigest()
