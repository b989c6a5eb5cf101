"""One run of the partitioner: an assignment, or a whole folder."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NodeType, PartitionError, PartitionOptions, Progress
from glt_lightning.graph import Manifest, options_hash
from glt_lightning.partition.assign import assigner_of
from glt_lightning.partition.assign.assigners import assign, require_countable, require_memory
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.builder import Builder
from glt_lightning.partition.build.space import bytes_to_assign
from glt_lightning.partition.build.steps import check_values, count_edges
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.build.topology import GraphTopology
from glt_lightning.partition.folder import (
    LOCK_TIMEOUT_S,
    disk_full_speaks,
    exclusive,
    folder_beside,
    lasting_folder,
    require_space,
)
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.splits import resolve_splits
from glt_lightning.partition.tasks.engine import run_tasks
from glt_lightning.partition.writer import run_folder


def assign_graph(
    source: GraphSource,
    out_file: str | Path,
    options: PartitionOptions,
    *,
    undirected: bool | None = None,
    splits: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
    assigner: Assigner | None = None,
) -> dict[NodeType, list[int]]:
    """Assigns nodes to parts and saves that as ``out_file``, for ``partition.algorithm``.

    Returns node type -> number of nodes of each part.

    Args:
        source, options, undirected, splits, progress, timeout_s, assigner: As for `partition_graph`.
        out_file: ``.npz`` with an array per node type, int16 or int32 [N], the part of each node by user id. It is written
            beside the target and renamed, so that no process ever reads half of it.

    Raises:
        PartitionError: If the file exists: parts may have been written with it.

    Example:
        >>> source = open_source("graph.npz", "data")
        >>> options = PartitionOptions(num_parts=2, algorithm="metis")
        >>> assign_graph(source, "which.npz", options, progress=False)
        {'node': [5, 5]}
    """
    target = Path(out_file)
    if target.suffix != ".npz":
        raise PartitionError(f"{target}: an assignment is saved as an .npz file. Choose a name that ends in .npz.")
    with exclusive(target, timeout_s):
        if target.exists():
            raise PartitionError(
                f"{target}: this assignment exists. Set partition.algorithm to it, delete it, or choose another name."
            )
        made = {"undirected": bool(undirected), "normalize": "none"}
        graph = StoredGraph(source, options, resolve_splits(source, splits), made, Progress(progress))
        assigner = assigner or assigner_of(options)
        with folder_beside(target) as folder, run_tasks(graph, folder, "", False) as tasks:
            graph.check()
            require_countable(assigner, graph.total_nodes, options)
            require_memory(assigner, graph)
            check_values(tasks)
            require_space(folder.parent, bytes_to_assign(graph, assigner), "assigning the nodes of this graph")
            parts = assign(assigner, graph, GraphTopology(tasks, count_edges(tasks)))
            _save(folder / target.name, parts, np.dtype(np.int16 if options.num_parts <= 1 << 15 else np.int32))
            os.rename(folder / target.name, target)
    return {t: np.bincount(p, minlength=options.num_parts).tolist() for t, p in parts.items()}


def _save(path: Path, parts: Mapping[NodeType, np.ndarray], dtype: np.dtype) -> None:
    """Like `numpy.savez`, which takes the array names as keywords and so cannot save one named ``file``."""
    size = sum(len(p) for p in parts.values()) * dtype.itemsize
    with disk_full_speaks(path.parent, size), zipfile.ZipFile(path, "w") as archive:
        for node_type, owner in parts.items():
            with archive.open(zipfile.ZipInfo(f"{node_type}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, owner.astype(dtype), allow_pickle=False)


def write_partition(
    source: GraphSource,
    target: Path,
    options: PartitionOptions,
    splits: Mapping[str, Any] | None,
    assigner: Assigner,
    made: Mapping[str, Any],
    progress: bool | None,
) -> Manifest:
    """Makes the folder ``target``; call it with the lock held. Goes on where a run of the same ``made`` was killed."""
    graph = StoredGraph(source, options, resolve_splits(source, splits), made, Progress(progress))
    with (
        lasting_folder(run_folder(target, made)) as folder,
        run_tasks(graph, folder, options_hash(made), made["wide_ids"]) as tasks,
    ):
        manifest = Builder(tasks, assigner, made).build()
        manifest.save(tasks.job.out)
        os.rename(tasks.job.out, target)
    return manifest
