"""The partition folders of GraphLearn-for-PyTorch."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, EdgeType
from glt_lightning.compat.others.pieces import ENDS, ForeignPartition, PartRows
from glt_lightning.partition import host_array, load_saved


def read_glt(folder: Path) -> ForeignPartition:
    """Raises `DataError` for a folder without books of nodes, and for books that are no tensors. ``META`` is a pickle and is not
    read: the files have the same names of types."""
    typed = (folder / "node_pb").is_dir()
    books = {path.stem: path for path in sorted((folder / "node_pb").glob("*.pt"))} if typed else {}
    books = books or {NODE: folder / "node_pb.pt"}
    names = [path.stem for path in sorted((folder / "edge_pb").glob("*.pt"))]
    edges = {edge_type_of(folder, name): name for name in names} if typed else {EDGE: ""}
    parts = part_folders(folder, "part{}")
    found = ForeignPartition(folder.name, len(parts), not typed)
    found.parts = {t: read_tensor(path) for t, path in books.items()}
    for part in parts:
        for e, below in edges.items():
            graph = part / "graph" / below
            if not (graph / "rows.pt").is_file():
                continue
            rows, cols, ids = (read_tensor(graph / f"{name}.pt") for name in ("rows", "cols", "eids"))
            arrays = {ENDS: ends_of(f"{graph}", rows, cols)}
            if (graph / "weights.pt").is_file():
                arrays["edge_weight"] = read_tensor(graph / "weights.pt")
            found.edges.setdefault(e, []).append(PartRows(ids, arrays))
            found.more.setdefault(e, []).extend(_features(part / "edge_feat" / below, "edge_attr"))
        for t in books:
            found.nodes.setdefault(t, []).extend(_features(part / "node_feat" / (t if typed else ""), "x"))
    return found


def _features(folder: Path, name: str) -> list[PartRows]:
    """The rows of a part; what it caches of others is left out."""
    for suffix, read in ((".pkl", read_appended), (".pt", read_tensor)):
        if (folder / f"feats{suffix}").is_file():
            ids, feats = (read(folder / f"{each}{suffix}") for each in ("ids", "feats"))
            return [PartRows(ids, {name: feats})]
    return []


def read_appended(path: Path) -> np.ndarray:
    """Tensors that were pickled to a file one after the other, as one array. Raises `DataError` for anything but tensors: no
    class or function that a file may name is looked up."""

    def load(file: Any) -> list[Any]:
        tensors = []
        while file.peek(1):
            tensors.append(_TensorsAlone(file).load())
        return tensors

    arrays = [as_array(f"{path}", each) for each in load_saved(path, "tensors", load)]
    if len({each.shape[1:] for each in arrays}) > 1 or any(each.ndim == 0 for each in arrays):
        raise DataError(f"{path}: expected tensors of one width, found {[list(each.shape) for each in arrays]!s:.80}.")
    return np.concatenate(arrays) if arrays else np.empty(0)


class _TensorsAlone(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch
        from torch._utils import _rebuild_tensor_v2

        known: dict[Sequence[str], Any] = {
            # A function of its own each time: a file may give attributes to what it has got here.
            ("torch._utils", "_rebuild_tensor_v2"): lambda *given: _rebuild_tensor_v2(*given),
            ("torch.storage", "_load_from_bytes"): lambda data: torch.load(io.BytesIO(data), weights_only=True),
            ("collections", "OrderedDict"): dict,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(
                f"it holds {module}.{name}, which is not read, as a file may run anything that way"
            )
        return known[module, name]


# Tensors in files of torch, as other systems write them; nothing else is read from them.


def read_tensor(path: Path) -> np.ndarray:
    """A tensor or array of a ``.pt`` or ``.npy`` file. Raises `DataError` for anything else."""
    if path.suffix == ".npy":
        found: np.ndarray = load_saved(path, "an .npy file", partial(np.load, allow_pickle=False))
        return found
    return as_array(f"{path}", load_saved(path, "a tensor"))


def as_array(where: str, given: Any) -> np.ndarray:
    if not (hasattr(given, "detach") or isinstance(given, np.ndarray)):
        raise DataError(f"{where}: expected a tensor, found {type(given).__name__}.")
    return host_array(where, given)


def ends_of(where: str, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """The ends of edges, [n, 2]. Raises `DataError` unless both are integers [n]."""
    if rows.ndim != 1 or rows.shape != cols.shape or rows.dtype.kind not in "iu" or cols.dtype.kind not in "iu":
        found = f"{rows.dtype} {list(rows.shape)} and {cols.dtype} {list(cols.shape)}"
        raise DataError(f"{where}: expected rows and columns of edges, as many integers of each; found {found}.")
    return np.stack([rows.astype(np.int64), cols.astype(np.int64)], axis=1)


def entry_of(where: str, given: Any, key: Any) -> Any:
    """What a dictionary has for a key. Raises `DataError` if it has nothing, or is none."""
    if not isinstance(given, Mapping) or key not in given:
        has = f"keys {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
        raise DataError(f"{where}: expected a dictionary with {key!r}, found {has:.80}.")
    return given[key]


def part_folders(folder: Path, pattern: str) -> list[Path]:
    """``pattern.format(0)``, and so on, as many as there are. Raises `DataError` where there is none, or a gap."""
    parts = [folder / pattern.format(p) for p in range(len([*folder.glob(pattern.format("[0-9]*"))]))]
    missing = [path for path in parts if not path.is_dir()]
    if missing or not parts:
        raise DataError(
            f"{folder}: expected the folders {pattern.format(0)}, {pattern.format(1)} and so on of a partition."
        )
    return parts


def edge_type_of(where: Path | str, text: str) -> EdgeType:
    names = text.split("__")
    if len(names) != 3 or not all(names):
        raise DataError(f"{where}: expected SRC__REL__DST as the name of an edge type, found {text!r}.")
    return names[0], names[1], names[2]
