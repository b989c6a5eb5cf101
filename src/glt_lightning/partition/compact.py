"""Makes a partition of its own from a version of another one: the graph partitioned anew, by the same tasks, without its data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import (
    PartitionError,
    PartitionOptions,
    Progress,
    __version__,
    edge_type_str,
)
from glt_lightning.graph import (
    MANIFEST,
    GrownPartition,
    LocalPartition,
    Manifest,
    deleted_path,
    options_hash,
    partition_id,
)
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition
from glt_lightning.partition.build.builder import Builder
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.edge_splits.source import StoredSplits
from glt_lightning.partition.folder import LOCK_TIMEOUT_S, exclusive, lasting_folder, remove_lasting
from glt_lightning.partition.grow import add_rows
from glt_lightning.partition.sources.version import VersionSource, parts_of
from glt_lightning.partition.stored_tables import save_named, write_later_ids
from glt_lightning.partition.tasks.engine import run_tasks
from glt_lightning.partition.versions import LATEST, Appended, Version, Versions
from glt_lightning.partition.writer import COMPACTED, run_folder


def compact_partition(
    folder: str | Path,
    out_dir: str | Path,
    version: Version = LATEST,
    *,
    forget: bool = False,
    hotness: str | None = None,
    memory_bytes: int = PartitionOptions.memory_bytes,
    progress: bool | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Manifest:
    """Writes a version of a partition as a partition of its own, and returns the manifest. The version stays as it is.

    Its arrays equal, byte for byte, those of the graph partitioned anew with the same parts of nodes. Only where
    ``undirected`` merged parallel edges may the order of rows differ, since merged edges count once in it.

    Deleted nodes keep their numbers, and stay deleted. A finished folder of the same version is reused, and a run that was
    killed is continued.

    Args:
        folder: The partition.
        out_dir: Folder of the new partition.
        version: The number of the version, or ``latest``.
        forget: Write zeros in place of the attributes of deleted nodes, and nothing in place of what tables call them. Runs on
            the version do not go on with it. Nothing is removed: the command ``compact --forget`` does that, too.
        hotness: How rows are ranked: ``vip``, ``degree`` or ``presample``. None: as in ``folder``.
        memory_bytes: Working memory, as ``partition.memory_bytes``.
        progress: Whether to show a progress bar. None: on a terminal.
        timeout_s: How long to wait for another process that writes the same folder, in seconds.

    Raises:
        PartitionError: For a version that does not exist, a partition to which no rows can be added, rows that are ranked by a
            user's class, weights that are stored in fewer bytes, or a folder that has another partition or cannot be written.

    Example:
        >>> import shutil
        >>> _ = shutil.copytree("parts", "grown")
        >>> new = Additions(nodes={"node": NewNodes(1, {"x": np.ones((1, 3), np.float32)})})
        >>> append_rows("grown", new)
        1
        >>> compact_partition("grown", "compacted", progress=False).num_nodes
        (11,)
    """
    base, target = LocalPartition.open(folder), Path(out_dir)
    graph: GrownPartition | None = None
    try:
        appended = Versions(folder).read(base.manifest, version)
        _require_exact_weights(base.manifest, Path(folder))
        graph = add_rows(base, appended.additions)
        made = _made_by(graph, appended, forget, hotness)
        options = _options(base.manifest, hotness, memory_bytes, Path(folder))
        with exclusive(target, timeout_s):
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                return _reuse(target, made)
            return _write(target, graph, appended, forget, made, options, Progress(progress))
    finally:
        if graph is not None:
            graph.close()
        base.close()


def _write(
    target: Path,
    graph: GrownPartition,
    appended: Appended,
    forget: bool,
    made: Mapping[str, Any],
    options: PartitionOptions,
    progress: Progress,
) -> Manifest:
    base, wide = graph.base.manifest, bool(made.get("wide_ids", False))
    deleted = {t: gone for t in range(len(base.schema.node_types)) if len(gone := graph.deleted(t))}
    ids = {graph.schema.node_index(name): names for name, names in appended.ids.items()}
    for t in deleted.keys() & ids.keys() if forget else ():
        rows = deleted[t] - (graph.manifest.num_nodes[t] - len(ids[t]))
        ids[t] = np.array(ids[t])
        ids[t][rows[rows >= 0]] = "" if ids[t].dtype == object else np.iinfo(np.int64).min
    with lasting_folder(run_folder(target, made)) as run:
        source = VersionSource(graph, appended.additions, run / "kept", forget)
        with run_tasks(_VersionGraph(graph, source, options, progress), run, options_hash(made), wide) as tasks:
            out, manifest = tasks.job.out, Builder(tasks, _SameParts(graph), made).build()
            marks = dict(save_named(out, deleted_path(t), gone) for t, gone in deleted.items())
            manifest = replace(
                manifest,
                arrays={**manifest.arrays, **marks, **write_later_ids(out, ids)},
                encodings=base.encodings,
                normalization=base.normalization,
                edge_labels=base.edge_labels,
            )
            manifest.save(out)
            os.rename(out, target)
    return manifest


class _VersionGraph(StoredGraph):
    """A version as the tasks read it. Its values were checked when they were partitioned or appended."""

    def __init__(
        self, graph: GrownPartition, source: VersionSource, options: PartitionOptions, progress: Progress
    ) -> None:
        undirected = bool(graph.base.manifest.made_by.get("undirected", False))
        super().__init__(source, options, source.splits, {"undirected": undirected, "normalize": "none"}, progress)
        self._version = graph

    def check(self) -> None:
        _ = self.storage

    @property
    def edge_splits(self) -> StoredSplits:
        keys = ((int(r), name) for r, name in (key.split("/") for key in self._version.manifest.edge_splits))
        return {(r, name): self._version.edge_split(r, name) for r, name in keys}


class _SameParts(Assigner):
    """Leaves nodes in the parts that they are in."""

    def __init__(self, graph: GrownPartition) -> None:
        self._parts = parts_of(graph)

    def assign(self, graph: GraphToPartition) -> Assignment:
        return self._parts


def _made_by(graph: GrownPartition, appended: Appended, forget: bool, hotness: str | None) -> dict[str, Any]:
    """The options of the partition, and the version. A run that began on the version goes on with the new folder: ``overlay``."""
    base = graph.base.manifest
    rows = {"overlay": graph.manifest.made_by["overlay"]} if appended.version else {}
    of: dict[str, Any] = {"folder": graph.directory.name, "partition": partition_id(base), "version": appended.version}
    if forget:  # a graph of its own, so that no checkpoint of the rows before goes on with it
        of |= {"forget": True, "forgot": [base.made_by.get("overlay"), graph.manifest.made_by.get("overlay")]}
        before = f"forget {partition_id(base)} {appended.version} {appended.digest}"
        rows = {"overlay": hashlib.blake2b(before.encode(), digest_size=16).hexdigest()}
    of |= {"hotness": hotness} if hotness is not None else {}
    return {**base.made_by, **rows, COMPACTED: of, "package_version": __version__}


def _options(base: Manifest, hotness: str | None, memory_bytes: int, folder: Path) -> PartitionOptions:
    made: Mapping[str, Any] = base.made_by
    ranked: Any = hotness or next(iter(base.hotness), "degree")
    if ranked == "given":
        raise PartitionError(
            f"{folder}: an own class ranked the rows of this partition, and has no rank of later ones. Say how to rank all of "
            "them: --hotness degree."
        )
    known = {
        name: made[name] for name in ("seed", "num_neighbors", "batch_size", "weights", "time_attr") if name in made
    }
    return PartitionOptions(
        num_parts=base.num_parts,
        hotness=ranked,
        memory_bytes=memory_bytes,
        processes=1,  # others would need the rows in files of their own
        allow=list(PartitionOptions.ALLOWED),
        **known,
    )


def _require_exact_weights(manifest: Manifest, folder: Path) -> None:
    for r, edge_type in enumerate(manifest.schema.edge_types):
        for name in manifest.weights(r):
            if manifest.decoded_by("edges", r, name) is not None:
                raise PartitionError(
                    f"{folder}: {name} of edge type {edge_type_str(edge_type)} is stored in fewer bytes (partition.storage), so "
                    "that its sums cannot be made again. Partition the data anew."
                )


def _reuse(target: Path, made: Mapping[str, Any]) -> Manifest:
    found = Manifest.load(target) if (target / MANIFEST).is_file() else None
    if found is None or found.options_hash != options_hash(made):
        raise PartitionError(
            f"{target}: this folder is not empty, and not of this version, or made with other options. Choose another one."
        )
    remove_lasting(target, locked=True)
    return found
