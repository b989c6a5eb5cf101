"""A partition folder that any number of processes fill part by part; the process that adds the last part writes the manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glt_lightning.base import PartitionError
from glt_lightning.graph import MANIFEST, ArrayEntry, Manifest
from glt_lightning.partition.build.builder import Built
from glt_lightning.partition.build.part_files import PartFile, require_same
from glt_lightning.partition.folder import exclusive, remove_part_folders

LOCK_TIMEOUT_S = 3600.0
_WHOLE = ("splits", "nodes", "edge_splits", "tables")  # folders that belong to no part


def is_begun(target: Path) -> bool:
    """Tells whether the folder has parts, or the folders that are written before them, and no manifest yet."""
    if not target.is_dir() or (target / MANIFEST).exists():
        return False
    names = {path.name for path in target.iterdir()}
    return bool(finished_parts(target)) or (bool(names) and names <= set(_WHOLE))


def finished_parts(target: Path) -> list[int]:
    """Numbers of the parts that have their ``part.json``, which is written last."""
    found = (re.fullmatch(r"part(\d+)", path.parent.name) for path in target.glob("part*/part.json"))
    return sorted(int(match[1]) for match in found if match)


def require_fresh(target: Path, missing: Sequence[int], made: Mapping[str, Any]) -> None:
    """Raises `PartitionError` for finished parts of different options or data, and for files in the way of missing parts."""
    for part in finished_parts(target):
        require_same(f"{target / f'part{part}'}", made, PartFile.load(target, part).head.made_by)
    for part in missing:
        if (target / f"part{part}").exists():
            raise PartitionError(
                f"{target / f'part{part}'}: no part.json, so this part may be incomplete. Delete the folder and run again."
            )
    if target.exists() and not is_begun(target) and any(target.iterdir()):
        raise PartitionError(
            f"{target}: the folder is not empty, and its files are no parts of a partition. Choose another folder."
        )


def save_parts(folder: Path, built: Built, parts: Sequence[int]) -> None:
    """Writes ``part.json`` of each part beside its arrays."""
    for part in parts:
        own = {path: entry for path, entry in built.arrays.items() if path.startswith(f"part{part}/")}
        PartFile(part, built.head, built.numbering, own).save(folder)


def place(folder: Path, target: Path, parts: Sequence[int]) -> None:
    """Moves finished parts into ``target``, each by one rename. Call it with the lock held.

    Raises `PartitionError` unless they belong to the same partition as the parts already in ``target``.
    """
    for found in finished_parts(target):
        PartFile.load(folder, parts[0]).require_fits(PartFile.load(target, found), target)
    target.mkdir(exist_ok=True)
    for name in _WHOLE:
        if (folder / name).exists() and not (target / name).exists():
            os.rename(folder / name, target / name)
    for part in parts:
        os.rename(folder / f"part{part}", target / f"part{part}")


def compose(target: Path) -> Manifest | None:
    """Writes the manifest if all parts are finished, and then removes their ``part.json``. Call it with the lock held.

    Returns None while parts are missing. Raises `PartitionError` if parts do not fit together, or shared files are missing.
    """
    found = finished_parts(target)
    files = [PartFile.load(target, part) for part in found]
    if not files or found != list(range(files[0].head.num_parts)):
        return None
    arrays: dict[str, ArrayEntry] = {}
    for file in files:
        files[0].require_fits(file, target)
        arrays |= file.arrays
    for path in files[0].head.arrays:
        if not (target / path).is_file():
            raise PartitionError(
                f"{target / path}: not found. Copy the folder {path.split('/')[0]}/ from any host that wrote a part."
            )
    manifest = Manifest.parse(files[0].head.with_parts(arrays).to_json(), str(target))
    manifest.save(target)
    for file in files:
        file.path(target, file.part).unlink()
    remove_part_folders(target)
    return manifest


def complete_partition(folder: str | Path, timeout_s: float = LOCK_TIMEOUT_S) -> Manifest:
    """Writes the manifest of a folder into which parts were copied from several hosts, and returns it.

    Needed are ``part<p>/part.json`` of every part and the folders ``splits``, ``nodes``, ``edge_splits`` and ``tables``: a host
    that stores only some of the parts copies just these files of the other parts.

    Args:
        folder: Folder of the partition.
        timeout_s: How long to wait for another process that writes the same folder, in seconds.

    Raises:
        PartitionError: Naming the parts that are missing or do not fit together.

    Example:
        >>> import shutil
        >>> source, options = open_source("graph.npz", "data"), PartitionOptions(num_parts=2)
        >>> partition_parts(source, "host0", options, [0], progress=False) is None
        True
        >>> partition_parts(source, "host1", options, [1], progress=False) is None
        True
        >>> _ = shutil.copytree("host1/part1", "host0/part1")
        >>> complete_partition("host0").num_parts
        2
    """
    target = Path(folder)
    with exclusive(target, timeout_s):
        if (target / MANIFEST).exists():
            return Manifest.load(target)
        manifest = compose(target)
        if manifest is not None:
            return manifest
        found = finished_parts(target)
        if not found:
            raise PartitionError(
                f"{target}: no finished part found (part<p>/part.json). Write or copy the parts into this folder first."
            )
        missing = sorted(set(range(PartFile.load(target, found[0]).head.num_parts)) - set(found))
        raise PartitionError(
            f"{target}: part {', '.join(map(str, missing))} missing. Write or copy {'it' if len(missing) == 1 else 'them'} into "
            "this folder, then call this again."
        )
