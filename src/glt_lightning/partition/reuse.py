"""A partition that is there already: which one it is, and whether it is of the same data and options."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glt_lightning.base import Fanouts, PartitionError, PartitionOptions
from glt_lightning.graph import MANIFEST, Manifest, options_hash
from glt_lightning.partition.folder import lasting_path, remove_lasting

_log = logging.getLogger(__name__)


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
