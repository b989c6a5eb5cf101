"""Hashes for partitions of earlier releases, whose manifest has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from glt_lightning.data.arrays import hash_array
from glt_lightning.data.manifest import Manifest
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.parts_folder import LOCK_TIMEOUT_S
from glt_lightning.progress import Progress


def hash_partition(folder: str | Path, progress: Progress, timeout_s: float = LOCK_TIMEOUT_S) -> int:
    """Adds the hashes of chunks to the manifest of a finished partition; returns the number of files that lacked them.

    Each file is compared with its checksum. Nothing else of the manifest changes, so processes that use the folder go on.

    Args:
        folder: Folder of the partition, with all parts.
        progress: Where progress is shown.
        timeout_s: How long to wait for another process that writes the same folder, in seconds.

    Raises:
        PartitionError: Naming a file that is missing or damaged, or a folder that is not writable.

    Example:
        >>> from glt_lightning.progress import Progress
        >>> hash_partition("parts", Progress(False))  # made by this release, which hashes what it writes
        0
    """
    target = Path(folder)
    Manifest.load(target)  # before a lock is made beside something that is no partition
    with exclusive(target, timeout_s):
        manifest = Manifest.load(target)
        missing = {path: entry for path, entry in manifest.arrays.items() if entry.chunks is None}
        with progress.phase("hashing files", sum(entry.bytes for entry in missing.values()), "B") as done:
            for path, entry in missing.items():
                missing[path] = replace(entry, chunks=hash_array(target, path, entry))
                done(entry.bytes)
        if missing:
            replace(manifest, arrays={**manifest.arrays, **missing}).save(target)
    return len(missing)
