"""A partition folder that gets its parts one by one, from any number of processes, and its manifest with the last."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glt_lightning.data.manifest import MANIFEST, ArrayEntry, Manifest
from glt_lightning.errors import PartitionError
from glt_lightning.partition.build.builder import Built
from glt_lightning.partition.build.part_files import PartFile, require_same
from glt_lightning.partition.folder import exclusive, remove_part_folders

LOCK_TIMEOUT_S = 3600.0
_WHOLE = ("splits", "tables")  # folders that belong to no part


def is_begun(target: Path) -> bool:
    """Whether it has parts, or what comes before them, and no manifest yet."""
    if not target.is_dir() or (target / MANIFEST).exists():
        return False
    return bool(finished_parts(target)) or {p.name for p in target.iterdir()} in ({"splits"}, {"tables"}, set(_WHOLE))


def finished_parts(target: Path) -> list[int]:
    """Numbers of the parts that say of themselves what they are."""
    found = (re.fullmatch(r"part(\d+)", path.parent.name) for path in target.glob("part*/part.json"))
    return sorted(int(match[1]) for match in found if match)


def require_fresh(target: Path, missing: Sequence[int], made: Mapping[str, Any]) -> None:
    """Raises `PartitionError` for parts made otherwise, and for what stands where the missing parts go."""
    for part in finished_parts(target):
        require_same(f"{target / f'part{part}'}", made, PartFile.load(target, part).head.made_by)
    for part in missing:
        if (target / f"part{part}").exists():
            raise PartitionError(
                f"{target / f'part{part}'}: has no part.json, so it is not known whether it is whole. Delete it and run again."
            )
    if target.exists() and not is_begun(target) and any(target.iterdir()):
        raise PartitionError(f"{target}: holds something else than parts of a partition. Choose another folder.")


def save_parts(folder: Path, built: Built, parts: Sequence[int]) -> None:
    """Writes ``part.json`` of each part beside its arrays."""
    for part in parts:
        own = {path: entry for path, entry in built.arrays.items() if path.startswith(f"part{part}/")}
        PartFile(part, built.head, built.numbering, own).save(folder)


def place(folder: Path, target: Path, parts: Sequence[int]) -> None:
    """Moves finished parts into ``target``, each in one step. Call it with the lock held.

    Raises `PartitionError` unless they fit those that are there.
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
    """Writes the manifest if all parts have told what they are, and removes what they told. Call it with the lock held."""
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
                f"{target / path}: not found. Copy {path.split('/')[0]}/ from where any of the parts was made."
            )
    manifest = Manifest.parse(files[0].head.with_parts(arrays).to_json(), str(target))
    manifest.save(target)
    for file in files:
        file.path(target, file.part).unlink()
    remove_part_folders(target)
    return manifest


def complete_partition(folder: str | Path, timeout_s: float = LOCK_TIMEOUT_S) -> Manifest:
    """Writes the manifest of a folder whose parts were brought together, and returns it.

    Of the parts only ``part<p>/part.json`` need be there, and the folders ``splits`` and ``tables``: a host that keeps some
    of the parts takes these small files of the others. Raises `PartitionError` that names the parts that are missing, or
    differ.

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
            raise PartitionError(f"{target}: holds no finished part (part<p>/part.json).")
        missing = sorted(set(range(PartFile.load(target, found[0]).head.num_parts)) - set(found))
        raise PartitionError(
            f"{target}: lacks part {', '.join(map(str, missing))} of the partition. Make or copy it here, then call this again."
        )
