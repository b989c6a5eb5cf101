"""Opens a `GraphSource` for the user's value of ``dataset``."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glt_lightning.base import DataError, NodeType, PartitionOptions
from glt_lightning.partition.sources.base import GraphSource, folder_name, near
from glt_lightning.partition.sources.npz import NpzSource
from glt_lightning.partition.sources.scipy_sparse import MatrixGraph, MatrixSource, is_matrix, is_matrix_file

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FILES = (".npz", ".pt", ".pth")
_ACCEPTED = (
    "'demo', a path of an .npz file, of a .pt file of a PyG Data or HeteroData, a folder of .npy files, a mapping of tables "
    "(nodes, edges) or of a matrix (matrix, x, y), an OGB name (ogbn-*, ogbl-*), the class path of a PyG data set "
    "(torch_geometric.datasets.KarateClub), alone or with {class_path, init_args}, a PyG Data, HeteroData or data set object, or "
    "a sparse matrix of scipy"
)


def open_source(
    dataset: Any,
    root: str | Path,
    transforms: Sequence[Any] = (),
    seed: int = 0,
    options: PartitionOptions | None = None,
) -> GraphSource:
    """Opens a data set; edges and features are not read before they are needed.

    Args:
        dataset: Any form that ``dataset`` of `GLTDataModule` takes: a name, a path, a mapping, a PyG object.
        root: Folder of downloads, generated graphs and converted tables.
        transforms: Transforms of PyG, each a class path or ``{class_path, init_args}``; the whole graph is then read into memory.
        seed: Seed of the transforms' random draws.
        options: Of the partition: ``engine``, ``address``, ``processes`` and ``memory_bytes`` are of tables, too.

    Raises:
        DataError: If the data set cannot be found or read; the message lists the forms, or the nearest names.

    Example:
        >>> source = open_source("graph.npz", "data")
        >>> source.num_nodes, source.num_features
        ({'node': 10}, {'node': 3})
        >>> open_source("graf.npz", "data")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.DataError: dataset: ...
    """
    source = _open(dataset, root, options)
    if not transforms:
        return source
    from glt_lightning.partition.sources.transformed import TransformedSource

    return TransformedSource(source, transforms, seed)


def data_name(dataset: Any, root: str | Path) -> str | None:
    """The name of a data set as its manifest has it, but for case, from the user's value alone: its files may be on another host.
    None for an object in memory."""
    if isinstance(dataset, (str, Path)):
        path = Path(str(dataset).strip()).expanduser()
        if path.suffix in _FILES:
            return folder_name(path.stem)
        is_class = _CLASS_PATH.fullmatch(str(path)) and not path.exists()
        return folder_name(path.suffix[1:] if is_class else path.name)
    if is_matrix(dataset) or not isinstance(dataset, (Mapping, argparse.Namespace)):
        return None
    return _open(dataset, root, None).name


def is_tables(dataset: Any, with_ids_of: NodeType | None = None) -> bool:
    """Tells whether a data set, as the user writes it, is a mapping of tables. with_ids_of: and a column names the nodes of this
    type."""
    plain = vars(dataset) if isinstance(dataset, argparse.Namespace) else dataset
    if not isinstance(plain, Mapping) or is_matrix(dataset) or "nodes" not in plain:
        return False
    if with_ids_of is None:
        return True
    from glt_lightning.partition.sources.tables.mapping import parse_tables

    table = parse_tables(dataset).nodes.get(with_ids_of)
    return table is not None and table.id is not None


def _open(dataset: Any, root: str | Path, options: PartitionOptions | None) -> GraphSource:
    if isinstance(dataset, (str, Path)):
        return _open_text(str(dataset).strip(), Path(root).expanduser())
    if is_matrix(dataset):  # one kind of them is a mapping too
        return MatrixSource(dataset)
    if isinstance(dataset, (Mapping, argparse.Namespace)):
        keys = set(vars(dataset) if isinstance(dataset, argparse.Namespace) else dataset)
        if "class_path" in keys:
            from glt_lightning.partition.sources.pyg import open_class_path

            return open_class_path(dataset, Path(root).expanduser())
        if "matrix" in keys:
            return MatrixGraph(dataset)
        from glt_lightning.partition.sources.tables.source import TableSource

        return TableSource(dataset, Path(root).expanduser(), options)
    if all(hasattr(dataset, name) for name in ("fingerprint", "schema", "edges", "node_attrs")):
        own: GraphSource = dataset  # a source of the user's own
        return own
    if "torch_geometric" in sys.modules:  # an object of PyG exists only if PyG is imported
        from glt_lightning.partition.sources.pyg import PygSource, is_pyg

        if is_pyg(dataset):
            return PygSource(dataset)
    raise DataError(f"dataset: got an object of type {type(dataset).__name__}; expected {_ACCEPTED}.")


def _near_files(path: Path) -> str:
    found = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob(f"*{path.suffix}")], 1, 0.75)
    return f" Did you mean {path.parent / found[0]}?" if found else ""


def _open_text(text: str, root: Path) -> GraphSource:
    path = Path(text).expanduser()
    if text == "demo":
        from glt_lightning.partition.sources.demo import open_demo

        return open_demo(root)
    if path.suffix in _FILES and not path.exists():
        raise DataError(f"dataset: there is no file {text!r} (in {Path.cwd()}).{_near_files(path)}")
    if path.suffix == ".npz":
        return MatrixSource(path) if is_matrix_file(path) else NpzSource(path)
    if path.suffix in (".pt", ".pth") and path.is_file():
        from glt_lightning.partition.sources.pyg import PygFileSource

        return PygFileSource(path)
    if text.startswith(("ogbn-", "ogbl-")):
        from glt_lightning.partition.sources.ogb.source import OgbSource

        return OgbSource(text, root)
    from glt_lightning.partition.sources.folder import FolderSource, is_graph_folder

    if path.is_dir() and (is_graph_folder(path) or not _CLASS_PATH.fullmatch(text)):
        return FolderSource(path)
    if _CLASS_PATH.fullmatch(text) and not path.exists():
        from glt_lightning.partition.sources.pyg import open_class_path

        return open_class_path(text, root)
    from glt_lightning.partition.sources.ogb.layout import PUBLISHED

    what = f"file {text!r} is of another kind" if path.exists() else f"there is no file or folder {text!r}"
    raise DataError(f"dataset: {what}; expected {_ACCEPTED}.{near(text, ('demo', *PUBLISHED), 2, 0.5)}")
