"""One run of the partitioner: a whole folder, or some parts of one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, PartitionError, PartitionOptions, Progress
from glt_lightning.graph import MANIFEST, Manifest, options_hash
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.builder import Builder, Built
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.folder import exclusive, folder_beside, whole_folder
from glt_lightning.partition.parts_folder import compose, finished_parts, place, require_fresh, save_parts
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.splits import resolve_splits

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
