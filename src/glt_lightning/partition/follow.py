"""Fan-outs and batch size of a partition for which none are given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glt_lightning.base import Fanouts, PartitionOptions
from glt_lightning.graph import MANIFEST, Manifest
from glt_lightning.partition.build.part_files import PartFile
from glt_lightning.partition.parts_folder import finished_parts

_log = logging.getLogger(__name__)


def follow_batches(
    options: PartitionOptions, folder: Path, num_neighbors: Fanouts | None = None, batch_size: int | None = None
) -> PartitionOptions:
    """The options, with the fan-outs and the batch size of the partition in ``folder`` where they have none, if there is one
    or a part of one; else with these, of the batches of training.

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
