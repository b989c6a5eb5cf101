"""One run of the partitioner: an assignment, or a whole folder."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import Fanouts, NodeType, PartitionError, PartitionOptions, Progress
from glt_lightning.graph import MANIFEST, Manifest, options_hash
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
    lasting_path,
    remove_lasting,
    require_space,
)
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.splits import resolve_splits
from glt_lightning.partition.tasks.engine import run_tasks


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


_log = logging.getLogger(__name__)


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


def run_folder(target: Path, made: Mapping[str, Any]) -> Path:
    """Returns the folder of a run while it lasts. A run of the same data and options has the same one."""
    return lasting_path(target, options_hash(made)[:16])


COMPACTED = "compacted"  # in a manifest's made_by: the version of another folder that the partition was made of


def made_before(made: Mapping[str, Any]) -> dict[str, Any]:
    """What earlier releases recorded of the same data and options: there the reverse of column k has the id E + k."""
    return {key: value for key, value in made.items() if key != "reverse_ids"}


def reuse(target: Path, made: Mapping[str, Any]) -> Manifest:
    """The manifest of a finished folder. Raises `PartitionError` with the differences if its options or data are not those
    of ``made``."""
    manifest = Manifest.load(target)
    old = manifest.made_by
    if COMPACTED in old:  # the same data and options, and rows that were appended to it
        if old[COMPACTED].get("forget"):  # the user's tables no longer have the deleted rows, either
            made = {**made, "fingerprint": old.get("fingerprint")}
        old = {key: value for key, value in old.items() if key not in (COMPACTED, "overlay")}
    if options_hash(old) not in (options_hash(made), options_hash(made_before(made))):
        keys = [k for k in {**made_before(made), **old} if k != "package_version" and old.get(k) != made.get(k)]
        what = "; ".join(f"{k}: {old.get(k)!r} on disk, {made.get(k)!r} given" for k in keys)
        raise PartitionError(
            f"{target}: this partition was written with different options or data ({what}). Delete the folder, choose another, "
            "or drop partition.dir: each choice of options then gets a folder of its own."
        )
    remove_lasting(target)
    _log.info("%s: this partition exists and has the same options and data; using it.", target)
    return manifest


def follow_batches(
    options: PartitionOptions, folder: Path, num_neighbors: Fanouts | None = None, batch_size: int | None = None
) -> PartitionOptions:
    """Completes options that have no fan-outs or batch size: with those of the partition in ``folder``, if there is one or a
    part of one; else with ``num_neighbors`` and ``batch_size``, those of training.

    A partition is not made anew for other batches: its ranking hardly changes with them, and making it may take hours.
    """
    if options.num_neighbors is not None and options.batch_size is not None:
        return options
    there = Manifest.load(folder).made_by if (folder / MANIFEST).exists() else None
    if there is None:
        return options.assuming(num_neighbors, batch_size) if options.depends_on_batches else options
    found = options.assuming(there.get("num_neighbors"), there.get("batch_size"))
    wanted = options.assuming(num_neighbors, batch_size)
    if num_neighbors is not None and options.depends_on_batches and _batches(found) != _batches(wanted):
        _log.info(
            "%s: its rows are ranked for %s; this run has %s, for which the ranking is much the same. To rank for this run, "
            "set data.partition.num_neighbors and batch_size: that makes another partition.",
            folder,
            _batches(found),
            _batches(wanted),
        )
    return found


def _batches(options: PartitionOptions) -> str:
    return f"num_neighbors {options.assumed_num_neighbors}, batch_size {options.assumed_batch_size}"
