"""The partition folders of GraphLearn-for-PyTorch."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError
from glt_lightning.compat.others.pieces import ENDS, ForeignPartition, PartRows
from glt_lightning.compat.others.pt_files import as_array, edge_type_of, ends_of, part_folders, read_tensor
from glt_lightning.graph import open_regular
from glt_lightning.partition import UNREADABLE


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
    tensors: list[Any] = []
    try:
        with open_regular(path) as file:
            while file.peek(1):
                tensors.append(_TensorsAlone(file).load())
    except UNREADABLE as error:
        raise DataError(f"{path}: expected tensors ({error}).") from None
    arrays = [as_array(f"{path}", each) for each in tensors]
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
