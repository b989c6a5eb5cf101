"""One run of the partitioner: a whole folder, or some parts of one."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import Fanouts, NodeType, OptionError, PartitionError, PartitionOptions, Progress
from glt_lightning.graph import MANIFEST, Manifest, disk_full_speaks, options_hash
from glt_lightning.partition.assign import assigner_of
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.builder import Builder, Built
from glt_lightning.partition.build.part_files import PartFile
from glt_lightning.partition.build.space import bytes_to_assign, require_space
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.folder import exclusive, folder_beside, whole_folder
from glt_lightning.partition.parts_folder import (
    LOCK_TIMEOUT_S,
    compose,
    finished_parts,
    place,
    require_fresh,
    save_parts,
)
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.splits import resolve_splits


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
        with folder_beside(target) as folder:
            made = {"undirected": bool(undirected), "normalize": "none"}
            graph = StoredGraph(source, options, resolve_splits(source, splits), made, Progress(progress))
            assigner = assigner or assigner_of(options)
            graph.check(assigner)
            graph.check_values()
            require_space(folder, bytes_to_assign(graph, assigner), "assigning the nodes of this graph")
            with graph.topology(folder, graph.count()) as topology:
                parts = graph.assign(assigner, topology)
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


@dataclass(frozen=True)
class Run:
    """The source, options and deadlines of one run of the partitioner."""

    source: GraphSource
    options: PartitionOptions
    splits: Mapping[str, Any] | None
    assigner: Assigner
    made: Mapping[str, Any]
    progress: bool | None
    timeout_s: float

    def whole(self, target: Path) -> Manifest:
        """Writes all parts. Call it with the lock held."""
        with whole_folder(target) as folder:
            built = self._build(folder, range(self.options.num_parts))
            manifest = built.head.with_parts(built.arrays)
            manifest.save(folder)
        return manifest

    def parts(self, target: Path, parts: Sequence[int]) -> Manifest | None:
        """Writes those of ``parts`` that are missing. Returns the manifest, or None while other parts are missing."""
        with ExitStack() as locks:
            for part in parts:  # in ascending order, so that two runs cannot deadlock on each other's locks
                locks.enter_context(exclusive(target, self.timeout_s, part))
            with exclusive(target, self.timeout_s):
                if (target / MANIFEST).exists():
                    return reuse(target, self.made)
                missing = sorted(set(parts) - set(finished_parts(target)))
                require_fresh(target, missing, self.made)
                if not missing:
                    return compose(target)
            self.require_same_each_time(missing)
            with folder_beside(target, missing[0]) as folder:
                save_parts(folder, self._build(folder, missing), missing)
                with exclusive(target, self.timeout_s):
                    if (target / MANIFEST).exists():  # another run has written the whole folder meanwhile
                        return reuse(target, self.made)
                    place(folder, target, missing)
                    return compose(target)

    def _build(self, folder: Path, parts: Sequence[int]) -> Built:
        splits = resolve_splits(self.source, self.splits)
        graph = StoredGraph(self.source, self.options, splits, self.made, Progress(self.progress))
        return Builder(graph, folder, self.assigner, self.made, parts).build()

    def require_same_each_time(self, parts: Collection[int]) -> None:
        """Raises `OptionError` if ``parts`` are not all parts and the algorithm is not deterministic: another run would then
        assign nodes differently, and the parts would not fit together."""
        if not self.assigner.deterministic and len(parts) < self.options.num_parts:
            name = self.options.algorithm_name
            raise OptionError(
                f"partition.algorithm: {name} is not deterministic, so parts written by separate runs may not fit together. "
                "Assign nodes once (assign_graph, or partition --assign_only parts.npz), then set partition.algorithm to that "
                "file."
            )


def reuse(target: Path, made: Mapping[str, Any]) -> Manifest:
    """The manifest of a finished folder. Raises `PartitionError` with the differences if its options or data are not those
    of ``made``."""
    manifest = Manifest.load(target)
    if manifest.options_hash != options_hash(made):
        old = manifest.made_by
        keys = [k for k in {**made, **old} if k != "package_version" and old.get(k) != made.get(k)]
        what = "; ".join(f"{k}: {old.get(k)!r} on disk, {made.get(k)!r} given" for k in keys)
        raise PartitionError(
            f"{target}: this partition was written with different options or data ({what}). Delete the folder, choose another, "
            "or drop partition.dir: each choice of options then gets a folder of its own."
        )
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
    there = _made_there(folder)
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


def _made_there(folder: Path) -> Mapping[str, Any] | None:
    if (folder / MANIFEST).exists():
        return Manifest.load(folder).made_by
    parts = finished_parts(folder)
    return PartFile.load(folder, parts[0]).head.made_by if parts else None


def _batches(options: PartitionOptions) -> str:
    return f"num_neighbors {options.assumed_num_neighbors}, batch_size {options.assumed_batch_size}"
