"""From a partition of another system to one of ours: the same parts, the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from glt_lightning.base import NODE, DataError, NodeType, OptionError, PartitionOptions, one_of
from glt_lightning.compat.others.dgl_parts import read_dgl
from glt_lightning.compat.others.glt_parts import read_glt, read_tensor
from glt_lightning.compat.others.pieces import ForeignPartition, GivenParts
from glt_lightning.compat.others.pyg_parts import read_pyg
from glt_lightning.graph import Manifest
from glt_lightning.partition import partition_graph

KINDS = ("glt", "dgl", "pyg")


def convert_partition(
    kind: str,
    folder: str | Path,
    out_dir: str | Path,
    *,
    python: str | None = None,
    labels: Mapping[NodeType, np.ndarray] | None = None,
    edge_dir: str = "in",
    timeout_s: float = 3600.0,
    progress: bool | None = None,
) -> Manifest:
    """Writes ``out_dir`` from a partition of GLT, DGL or PyG. The whole graph is read into memory.

    Args:
        kind: ``glt``, ``dgl`` or ``pyg``.
        folder: Of the partition.
        out_dir: Folder of ours.
        python: Of a Python that has the package dgl, for ``dgl``.
        labels: Labels by node type, which GLT and PyG keep apart.
        edge_dir: ``out`` turns the edges round, so that batches have out-neighbours, as GLT's do by default.
        timeout_s: How long DGL may take to read the partition.
        progress: As of `partition_graph`.

    Raises:
        DataError: For a folder that cannot be read, or lacks ids. OptionError: For ``dgl`` without ``python``, and other values.

    Example:
        >>> convert_partition("dgl", "dgl_partition", "converted")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: --python: not given. ...
    """
    one_of("--from", kind, KINDS)
    one_of("--edge_dir", edge_dir, ("in", "out"))
    path = Path(folder).expanduser()
    if not path.exists():
        raise DataError(f"{path}: not found.")
    found = _read(kind, path, python, timeout_s)
    source = found.source(labels or {}, turned=edge_dir == "out")
    weights = ["edge_weight"] if any("edge_weight" in source.edge_attrs(e) for e in source.schema.edge_types) else []
    options = PartitionOptions(num_parts=found.num_parts, weights=weights)
    assigner = GivenParts(kind, {t: source_parts.astype(np.int64) for t, source_parts in found.parts.items()})
    return partition_graph(source, out_dir, options, assigner=assigner, progress=progress)


def read_labels(given: list[str]) -> dict[NodeType, np.ndarray]:
    """``FILE``, or ``TYPE=FILE`` for a graph with several node types; .pt or .npy."""
    found = {}
    for text in given:
        node_type, _, file = text.rpartition("=")
        found[node_type or NODE] = read_tensor(Path(file).expanduser())
    return found


def _read(kind: str, path: Path, python: str | None, timeout_s: float) -> ForeignPartition:
    if kind == "dgl":
        return read_dgl(path, python, timeout_s)
    if python is not None:
        raise OptionError(f"--python: is for DGL's partitions; {kind} needs none. Remove it.")
    return read_glt(path) if kind == "glt" else read_pyg(path)
