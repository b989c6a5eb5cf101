"""PyG objects: `Data`, `HeteroData`, data sets of one graph, and files of them."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, Dataset, HeteroData
from torch_geometric.data.storage import BaseStorage, EdgeStorage, NodeStorage

from glt_lightning.base import EDGE, NODE, ClassSpec, DataError, EdgeType, GraphSchema, NodeType, edge_type_str
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.sources.base import (
    ArraySource,
    DelegatingSource,
    array_fingerprint,
    file_fingerprint,
    fixed_randomness,
    folder_name,
    pick_target,
)
from glt_lightning.partition.sources.files import load_saved
from glt_lightning.partition.sources.npz import MASK_KEYS, SPLIT_KEYS, split_ids, split_keys

# Of another length they are mistakes; other tensors are then left out.
_EDGE_ATTRS = ("edge_attr", "edge_weight", "edge_time")
_NODE_ATTRS = ("x", "y", "time")
_log = logging.getLogger(__name__)


def is_pyg(dataset: object) -> bool:
    return isinstance(dataset, (Data, HeteroData, Dataset))


class PygSource(DelegatingSource):
    """A PyG graph, or a function that makes one when it is first needed."""

    def __init__(self, data: Any, name: str | None = None) -> None:
        self._data = data
        self.name = folder_name(name or type(data).__name__).lower()

    @cached_property
    def fingerprint(self) -> str:
        graph = self._graph
        assert isinstance(graph, ArraySource)
        return array_fingerprint(_named_arrays(graph))

    def _load(self) -> ArraySource:
        data = self._data if is_pyg(self._data) else self._data()
        return convert(_only_graph(data), self.name)


class PygFileSource(PygSource):
    """A ``Data`` or ``HeteroData`` that ``torch.save`` wrote, read without trusting pickles."""

    def __init__(self, path: Path) -> None:
        super().__init__(partial(_load_saved, path), path.stem)
        self.path = path

    @cached_property
    def fingerprint(self) -> str:
        return file_fingerprint(self.path)


def _load_saved(path: Path) -> Data | HeteroData:
    loaded = load_saved(path, "a Data or HeteroData of PyG that torch.save wrote")
    if not isinstance(loaded, (Data, HeteroData)):
        raise DataError(
            f"{path}: expected a Data or HeteroData of PyG, found {type(loaded).__name__}. Save the graph itself: "
            "torch.save(data, path)."
        )
    return loaded


def _only_graph(data: Any) -> Data | HeteroData:
    if isinstance(data, Dataset):
        if len(data) != 1:
            raise DataError(
                f"dataset: {data!r} holds {len(data)} graphs; expected one. Hand over one of them, such as dataset[0]."
            )
        data = data[0]
    if not isinstance(data, (Data, HeteroData)):
        raise DataError(f"dataset: expected a Data or HeteroData, the data set gives {type(data).__name__}.")
    return data


def convert(data: Data | HeteroData, name: str) -> ArraySource:
    """Converts a PyG graph to arrays, which share its memory where the dtype allows."""
    hetero = isinstance(data, HeteroData)
    node_stores: dict[NodeType, BaseStorage] = dict(data.node_items()) if hetero else {NODE: data._store}
    edge_stores: dict[EdgeType, BaseStorage] = dict(data.edge_items()) if hetero else {EDGE: data._store}
    num_nodes = {t: _num_nodes(store, t) for t, store in node_stores.items()}
    edge_index = {e: _edge_index(store, e) for e, store in edge_stores.items()}
    splits = [(n, t, ids) for t, store in node_stores.items() for n, ids in _splits(store, num_nodes[t])]
    pick_target([], {t for _, t, _ in splits}, name)  # types may have splits of the same names
    return ArraySource(
        name=name,
        fingerprint="",
        schema=GraphSchema(tuple(node_stores), tuple(edge_stores), homogeneous=not hetero),
        num_nodes=num_nodes,
        edge_index=edge_index,
        node={t: _node_attrs(store, num_nodes[t]) for t, store in node_stores.items()},
        edge={e: _edge_attrs(store, edge_index[e].shape[1]) for e, store in edge_stores.items()},
        splits={n: (t, ids) for n, t, ids in splits},
    ).with_target()


def _num_nodes(store: Any, node_type: NodeType) -> int:
    count = store.num_nodes
    if count is None:
        raise DataError(
            f"dataset: the number of nodes of type {node_type!r} is unknown. Set num_nodes on the PyG object."
        )
    return int(count)


def _edge_index(store: Any, edge_type: EdgeType) -> np.ndarray:
    given = store.get("edge_index")
    if not isinstance(given, (torch.Tensor, np.ndarray)) or _is_sparse(given):
        raise DataError(
            f"dataset: edge type {edge_type_str(edge_type)} has no edge_index [2, E], the only layout that is read. Convert it "
            "with torch_geometric.utils.to_edge_index."
        )
    return as_array(given, "edge_index")


def _node_attrs(store: Any, num_nodes: int) -> dict[str, np.ndarray]:
    attrs = {}
    for key, value in store.items():
        if key in SPLIT_KEYS or key in MASK_KEYS or not _has_rows(value, key in _NODE_ATTRS):
            continue
        if not isinstance(store, EdgeStorage):  # that of a Data is for nodes and for edges
            wanted = key in _NODE_ATTRS or _length(value) == num_nodes
        else:
            wanted = key in ("x", "y") or (_is_node_attr(store, key) and not key.startswith("edge_"))
        if wanted and (array := _read(value, key, key in _NODE_ATTRS)) is not None:
            attrs[key] = array
    if "y" in attrs and attrs["y"].ndim == 2 and attrs["y"].shape[1] == 1 and attrs["y"].dtype.kind in "iub":
        attrs["y"] = attrs["y"][:, 0]
    return attrs


def _edge_attrs(store: Any, num_edges: int) -> dict[str, np.ndarray]:
    attrs = {}
    for key, value in store.items():
        if key == "edge_index" or not _has_rows(value, key in _EDGE_ATTRS):
            continue
        if isinstance(store, EdgeStorage) and not isinstance(store, NodeStorage):
            wanted = key in (*_EDGE_ATTRS, "time") or _length(value) == num_edges
        else:
            wanted = key in _EDGE_ATTRS or (_is_edge_attr(store, key) and not _is_node_attr(store, key))
        if wanted and (array := _read(value, key, key in (*_EDGE_ATTRS, "time"))) is not None:
            attrs[key] = array
    return attrs


def _has_rows(value: Any, required: bool) -> bool:
    """Tells whether it may be an attribute of nodes or edges: a number, a text and the like are of the graph, unless they have a
    name with a meaning."""
    if isinstance(value, (list, tuple)):
        return bool(value)
    if required and value is not None and not isinstance(value, torch.Tensor):
        return True
    return not isinstance(value, (str, bytes, dict)) and len(getattr(value, "shape", ())) > 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else int(value.shape[0])


def _is_node_attr(store: Any, key: str) -> bool:
    return bool(store.is_node_attr(key)) if _known_to_pyg(store[key]) else _length(store[key]) == store.num_nodes


def _is_edge_attr(store: Any, key: str) -> bool:
    # a value of a type that PyG does not know is no edge attribute
    return bool(store.is_edge_attr(key)) if _known_to_pyg(store[key]) else False


def _known_to_pyg(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray, list, tuple))


def _read(value: Any, name: str, required: bool) -> np.ndarray | None:
    """Rows of numbers; None, with a line in the log, for an attribute of another kind.

    required: it has a name with a meaning; raises `DataError` then."""
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and _are_numbers(value)):
        return as_array(value, name)
    kind = f"a {type(value).__module__}.{type(value).__name__}".replace(" builtins.", " ")
    if isinstance(value, (list, tuple)):
        try:
            array = np.asarray(value)
        except ValueError:  # rows of several lengths
            array = np.asarray(None)
        if array.ndim and _are_numbers(array):
            return array
        kind += f" of {type(value[0]).__name__}"
    elif isinstance(value, np.ndarray):
        kind = f"an array of {value.dtype}"
    said = f"dataset: {name} is {kind}; expected a dense tensor or an array of numbers"
    if required:
        raise DataError(f"{said}. Convert it, for example with torch.as_tensor, toarray() or to_dense().")
    _log.warning("%s, so it is left out.", said)
    return None


def _are_numbers(array: np.ndarray) -> bool:
    return array.dtype == BFLOAT16 or (array.dtype.kind in "biuf" and array.dtype.itemsize <= 8)


def _splits(store: Any, num_nodes: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (split, ids) from masks [N] or [N, S] (the first of S splits) and from arrays of ids."""
    given = {key: value for key, value in store.items() if key in SPLIT_KEYS or key in MASK_KEYS}
    given = {key: value for key, value in given.items() if value is not None}

    def read(key: str) -> np.ndarray:
        if isinstance(given[key], (list, tuple)) and not given[key]:
            return np.zeros(0, np.int64)
        found = _read(given[key], key, required=True)
        assert found is not None
        return found

    for name, keys in split_keys(given).items():
        yield name, split_ids("dataset: ", keys, read, num_nodes)


def as_array(value: torch.Tensor | np.ndarray, name: str) -> np.ndarray:
    """Converts a tensor to an array, in the same memory where possible; bfloat16 as `kernels.build.BFLOAT16`."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    if _is_sparse(value):
        raise DataError(
            f"dataset: {name} is a sparse tensor, which cannot be stored as rows. Make it dense with to_dense()."
        )
    return array_of(value.as_subclass(torch.Tensor))


def _is_sparse(value: torch.Tensor | np.ndarray) -> bool:
    return isinstance(value, torch.Tensor) and value.layout != torch.strided


def _named_arrays(graph: ArraySource) -> Iterator[tuple[str, np.ndarray]]:
    for t in graph.schema.node_types:
        yield f"{t}:{graph.num_nodes[t]}", np.zeros(0)
        yield from _sorted(t, graph.node[t])
    for e in graph.schema.edge_types:
        yield edge_type_str(e), graph.edge_index[e]
        yield from _sorted(edge_type_str(e), graph.edge[e])
    yield from ((f"split {name} {t}", ids) for name, (t, ids) in sorted(graph.splits.items()))


def _sorted(prefix: str, attrs: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    return ((f"{prefix}/{name}", attrs[name]) for name in sorted(attrs))


# PyG data sets by class path: made when they are needed, and a download that fails says what to fetch.


_LOCK_S = 3600.0
_MOST_FILES = 8


def open_class_path(given: Any, root: str | Path) -> PygSource:
    """Opens a data set by its class path, such as ``torch_geometric.datasets.KarateClub``, perhaps with arguments. The class is
    imported now, its data made when needed."""
    spec = ClassSpec.parse("dataset", given)
    kind = spec.load()
    if not issubclass(kind, Dataset):
        raise DataError(f"dataset: {spec.path} is not a PyG data set class.")
    short = spec.path.rpartition(".")[2]
    folder = Path(root) / folder_name(short)
    takes_root = "root" in inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    values = {**({"root": str(folder)} if takes_root else {}), **spec.arguments}
    spec.check(kind, values)
    name = "-".join([short, *(v for v in [spec.arguments.get("name")] if isinstance(v, str))])
    return PygSource(_maker(kind, spec.path, values, folder), name)


def _maker(kind: type, path: str, values: dict[str, Any], folder: Path) -> Callable[[], object]:
    def make() -> object:
        with exclusive(folder, _LOCK_S), fixed_randomness():  # ranks that start together would download the same files
            try:
                return kind(**values)
            except Exception as error:  # a third-party data set may raise anything
                raise _explained(error, path, values) from error

    return make


def _explained(error: Exception, path: str, values: dict[str, Any]) -> DataError:
    reason = " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    data = next((d for f in frames if isinstance(d := f.f_locals.get("self"), Dataset)), None)
    if data is None or not any(f.f_code.co_name in ("download", "_download") for f in frames):
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items() if name != "root")
        return DataError(f"dataset: {path}({arguments}) cannot be made ({reason}). GLT_TRACEBACK=1 shows where.")
    urls = (
        v for f in frames for v in f.f_locals.values() if isinstance(v, str) and v.startswith(("http://", "https://"))
    )
    return DataError(
        f"dataset: {path} cannot download {next(urls, 'its files')} ({reason}). Where there is a network, fetch "
        f"{_files_of(data)} and put them into {Path(data.raw_dir).absolute()}; they are not downloaded again."
    )


def _files_of(data: Dataset) -> str:
    try:
        names = [Path(path).name for path in data.raw_paths]
    except Exception:  # not all say which
        return "its raw files"
    shown = ", ".join(names[:_MOST_FILES])
    return f"{shown} and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else shown or "its raw files"


# Tensors as arrays.


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Converts a dense tensor of any device to an array, in the same memory where possible; bfloat16, which numpy lacks, as
    `kernels.build.BFLOAT16`."""
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.contiguous().view(torch.int16).numpy().view(BFLOAT16)
