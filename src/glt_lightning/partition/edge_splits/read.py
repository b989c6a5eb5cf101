"""Reads the edges to predict that a user gives: files or arrays of pairs of node ids, with labels, times and negatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import EdgeSplit, open_regular
from glt_lightning.partition.build.degrees import known_nodes
from glt_lightning.partition.edge_splits.columns import ColumnFile, chunks_of, pieces
from glt_lightning.partition.sources.base import (
    EdgeList,
    RangedEdges,
    Rows,
    array_fingerprint,
    file_fingerprint,
    read_edges,
)
from glt_lightning.partition.sources.files import load_saved

SPLITS = ("train", "val", "test")
RELATION = "relation"
KEYS = ("edge", "label", "time", "negatives", "source_negatives", "negative_edges")
_MAPPED = 1 << 20  # bytes of an ``.npy`` file that is not read whole
Ends = tuple[tuple[str, int], tuple[str, int]]  # (node type, number of nodes) of the source and of the destination


def read_edge_split(
    what: str, given: Any, ends: Ends, *, relations: bool = False, folder: Path | None = None
) -> EdgeSplit:
    """Reads one split. given: edges alone, or a mapping of `KEYS`; each a path or an array.

    what: the beginning of error messages, such as ``edge_splits.train``.  relations: edges have a relation, which the labels of
    the split are.  folder: of files without names, into which large arrays of another form are converted; None: memory.

    Raises `DataError`.
    """
    if not isinstance(given, Mapping):
        given = {"edge": given}
    given = {key: value for key, value in given.items() if value is not None}
    if relations and RELATION in given:
        given["label"] = given.pop(RELATION)
    if unknown := set(given) - set(KEYS):
        raise DataError(f"{what}: expected any of {', '.join(KEYS)}; got {', '.join(sorted(map(str, unknown)))}.")
    if "edge" not in given:
        raise DataError(f"{what}: edge is missing: the path of node ids [2, S] or [S, 2].")
    arrays = {key: read_array(what if key == "edge" else f"{what}.{key}", value) for key, value in given.items()}
    edge = _edges(what, arrays.pop("edge"), ends, folder)
    per_edge, pairs = _negatives(f"{what}.negatives", arrays.get("negatives"), edge, ends, folder)
    sources = _source_negatives(f"{what}.source_negatives", arrays.get("source_negatives"), edge, ends)
    if sources is not None and per_edge is None:
        raise DataError(f"{what}.source_negatives: negatives is missing, the destinations [S, K] beside these sources.")
    if "negative_edges" in arrays:
        if pairs is not None:
            raise DataError(f"{what}: negatives and negative_edges are both pairs. Give one of them.")
        pairs = _edges(f"{what}.negative_edges", arrays["negative_edges"], ends, folder)
    label, time = arrays.get("label"), arrays.get("time")
    for name, array in (("label", label), ("time", time)):
        if array is not None and (array.ndim == 0 or len(array) != edge.shape[1]):
            raise DataError(
                f"{what}.{name}: expected one row for each of the {edge.shape[1]} edges, got {_form(array)}."
            )
    if label is not None and label.dtype.kind not in "biuf":
        raise DataError(f"{what}.label: expected numbers, got {label.dtype}.")
    if time is not None:
        if time.ndim != 1 or time.dtype.kind not in "iu":
            raise DataError(f"{what}.time: expected integers [{edge.shape[1]}], got {_form(time)}.")
        time = time.astype(np.int64, copy=False)
    return EdgeSplit(
        edge=edge, label=label, time=time, negatives=per_edge, source_negatives=sources, negative_edges=pairs
    )


def identity(given: Any) -> Any:
    """Returns JSON values that change when the content of a given split changes. Raises `DataError` for a missing file."""
    if isinstance(given, Mapping):
        return {str(key): identity(value) for key, value in sorted(given.items())}
    if isinstance(given, (str, Path)):
        path = Path(given).expanduser()
        _require_file("edge_splits", path)
        return file_fingerprint(path)
    if given is None or isinstance(given, (bool, int, float)):
        return given
    return array_fingerprint([("", np.asarray(given))])


def read_array(what: str, given: Any) -> np.ndarray:
    """Reads a path or an array. what: the beginning of errors, which are `DataError`."""
    if isinstance(given, (str, Path)):
        return _read(what, Path(given).expanduser())
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{what}: cannot be read as an array ({error}).") from None


def _require_file(what: str, path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{what}: there is no file {str(path)!r} (in {Path.cwd()}).")


def _read(what: str, path: Path) -> np.ndarray:
    _require_file(what, path)
    try:
        open_regular(path).close()  # a FIFO would be waited for
        if path.suffix == ".npy":
            large = path.stat().st_size >= _MAPPED
            return np.asarray(np.load(path, mmap_mode="r" if large else None, allow_pickle=False))
        if path.suffix in (".txt", ".csv"):
            return np.loadtxt(path, dtype=np.int64, ndmin=2, delimiter="," if path.suffix == ".csv" else None)
        if path.suffix == ".pt":
            tensor = load_saved(path, "a tensor")
            if not hasattr(tensor, "numpy"):
                raise DataError(f"{what}: {path}: expected a tensor, found {type(tensor).__name__}.")
            return np.asarray(tensor.numpy())
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{what}: {path}: cannot be read ({error}).") from None
    raise DataError(
        f"{what}: {path}: expected an .npy file, a .pt file with a tensor, or a .txt or .csv file with the two ids of an edge "
        "per line."
    )


def _edges(what: str, array: np.ndarray, ends: Ends, folder: Path | None) -> np.ndarray:
    """Checks edges and returns them as int64 [2, S]."""
    if array.size == 0:
        return np.zeros((2, 0), np.int64)
    if array.ndim != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
        raise DataError(f"{what}: expected node ids [2, S] or [S, 2], got {_form(array)}.")
    edge = array if len(array) == 2 else array.T
    if folder is None or array.nbytes < _MAPPED or (edge.dtype == np.int64 and edge.flags.c_contiguous):
        edge = np.ascontiguousarray(edge, np.int64)
    else:
        with ColumnFile(folder, 2, edge.shape[1]) as converted:
            for piece in pieces(edge.shape[1]):
                converted.add(*edge[:, piece])
            edge = converted.array()
    for name, (node_type, count), ids in zip(("source", "destination"), ends, edge, strict=True):
        _require_nodes(what, name, ids, node_type, count, least=0)
    return edge


def _negatives(
    what: str, array: np.ndarray | None, edge: np.ndarray, ends: Ends, folder: Path | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Checks negatives. Returns (int64 [S, K], for each edge, None) or (None, int64 [2, M], pairs)."""
    if array is None:
        return None, None
    size = edge.shape[1]
    if array.ndim == 2 and len(array) == size and array.dtype.kind in "iu" and (size != 2 or array.shape[1] == 1):
        node_type, count = ends[1]
        _require_nodes(what, "destination", array, node_type, count, least=-1)
        return np.ascontiguousarray(array, np.int64), None
    if array.ndim == 2 and len(array) == size == 2:
        raise DataError(
            f"{what}: [2, {array.shape[1]}] for two edges can be negatives of each edge or pairs. Give pairs as negative_edges, "
            "or one edge more."
        )
    if array.ndim != 2 or 2 not in array.shape:
        raise DataError(
            f"{what}: expected {size} rows, the destinations of each edge's negatives, or pairs [2, M]; got {_form(array)}."
        )
    return None, _edges(what, array, ends, folder)


def _source_negatives(what: str, array: np.ndarray | None, edge: np.ndarray, ends: Ends) -> np.ndarray | None:
    """Checks the sources that make no edge with the destination of each edge. Returns int64 [S, K]."""
    if array is None:
        return None
    if array.ndim != 2 or len(array) != edge.shape[1] or array.dtype.kind not in "iu":
        raise DataError(
            f"{what}: expected {edge.shape[1]} rows, the sources of each edge's negatives; got {_form(array)}."
        )
    _require_nodes(what, "source", array, *ends[0], least=0)
    return np.ascontiguousarray(array, np.int64)


def _require_nodes(what: str, name: str, ids: np.ndarray, node_type: str, count: int, least: int) -> None:
    for piece, each in chunks_of(ids):
        if len(bad := np.argwhere((each < least) | (each >= count))):
            raise DataError(
                f"{what}: edge {piece.start + bad[0][0]} has {name} {each[tuple(bad[0])]}, but {known_nodes(node_type, count)}."
            )


def _form(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


# Some of a user's edges, and their attributes.


class NumberedEdges(RangedEdges):
    """Some of a user's edges, whose edge ids are not their positions.

    columns: ints [edges], the edge ids. Of parallel edges the first has the lowest.  num_columns: number of the user's edges.
    """

    columns: Rows
    num_columns: int


class KeptEdges(NumberedEdges):
    """An `EdgeList` without some columns. Edge ids stay the columns of the user's edges.

    columns: int64 [kept], ascending.
    """

    def __init__(self, edges: EdgeList, columns: Rows) -> None:
        self.edges, self.columns, self.num_edges = edges, columns, len(columns)
        self.num_columns = edges.num_edges

    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        columns = self.columns[begin:end]
        whole = not isinstance(self.edges, RangedEdges) or not len(columns)
        at, last = (0, self.num_columns) if whole else (int(columns[0]), int(columns[-1]) + 1)
        for sources, destinations in read_edges(self.edges, size, at, last):
            low, high = np.searchsorted(columns, (at, at + len(sources)))
            if high > low:
                kept = columns[low:high] - at
                yield sources[kept], destinations[kept]
            at += len(sources)


class KeptRows:
    """The rows of an edge attribute that belong to `KeptEdges`."""

    def __init__(self, rows: Rows, columns: Rows) -> None:
        self.rows, self.columns = rows, columns

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.columns), *self.rows.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        return self.rows[self.columns[index]]


def num_columns(edges: EdgeList) -> int:
    """Number of the user's edges, with those that are left out."""
    return edges.num_columns if isinstance(edges, NumberedEdges) else edges.num_edges


def user_columns(edges: EdgeList, ids: np.ndarray) -> np.ndarray:
    """Converts positions in an edge list to edge ids of the user's edges."""
    if not isinstance(edges, NumberedEdges) or not len(ids):
        return ids
    found: np.ndarray = edges.columns[ids]
    return found.astype(ids.dtype)
