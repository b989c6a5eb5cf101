"""Removes the copies of rows that a compacted partition has forgotten: older partitions, their versions, and converted tables.

Nothing is removed before the new partition stands whole. A record beside it, written first, says what is to go; so a run that
was killed is ended by the next one. Of each folder the description is renamed first, from then on no reader takes it for whole,
and only files that the description lists are removed: files of the user's, and links, stay and are named.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, PartitionError, Progress, counted
from glt_lightning.graph import MANIFEST, Manifest, open_regular, parse_json, partition_id
from glt_lightning.partition.delta import DELTA, parse_header
from glt_lightning.partition.folder import DISK_IS_FULL, LOCK_TIMEOUT_S, exclusive, whole_file
from glt_lightning.partition.sources.tables.forget import forget_tables
from glt_lightning.partition.sources.tables.source import tables_folder
from glt_lightning.partition.verify import verify_partition
from glt_lightning.partition.versions import LATEST, Version, Versions, deleted_nodes
from glt_lightning.partition.writer import COMPACTED

_FORMAT = "glt_lightning.forget"
_ASIDE = ".forgotten"  # ends the name of the description of a folder that is being removed
_ELSEWHERE = (
    "the data itself, with the names of categories and classes that were made of it",
    "copies of these folders on other hosts, predictions, saved tensors, and records of endpoints",
)


_Gone = tuple[Path, str, int]


@dataclass(frozen=True)
class Forgetting:
    """What is removed once a partition stands that has forgotten rows.

    Attributes:
        target: The partition without them.
        partitions: Older ones, newest first, which go with their versions: folder, identity, number of the last version.
        tables: Folder of the converted tables, which keeps the ids of other nodes; None: there is none.
        kept: What may have the rows and stays, as lines for people.
    """

    target: Path
    partitions: tuple[_Gone, ...]
    tables: Path | None
    kept: tuple[str, ...] = field(default=_ELSEWHERE)

    @classmethod
    def plan(cls, folder: str | Path, target: str | Path, root: str | Path, version: Version = LATEST) -> Forgetting:
        """Returns what goes when a version of ``folder`` is forgotten into ``target``. root: folder of converted tables.

        Raises `OptionError` for a version that is not the latest, for one without deletions, and for a target inside of what
        goes; `PartitionError` for folders that cannot be removed.
        """
        folder, target = Path(folder), Path(target)
        if _record(folder).exists():
            raise PartitionError(
                f"{folder}: the copies of what it has forgotten are not removed yet. Run the command that made it again, first."
            )
        manifest, versions = Manifest.load(folder), Versions(folder)
        number, latest = versions.number(version), versions.number(LATEST)
        if number < latest:
            raise OptionError(
                f"--forget: removes the versions of {folder}, and the latest is {latest}, not {number}. Leave --version out."
            )
        rows = versions.read(manifest, number)
        if not (any(map(len, rows.deleted.values())) or rows.additions.deleted.edges or COMPACTED in manifest.made_by):
            raise OptionError(f"--forget: nothing is deleted in version {number} of {folder}. Leave --forget out.")
        places = dict.fromkeys(
            [folder.absolute().parent, target.absolute().parent, Path(root).absolute() / "partitions"]
        )
        older, kept = _older(manifest, places)
        gone = [(folder.absolute(), partition_id(manifest), number), *older]
        made = manifest.made_by
        begun = [path for place, *_ in gone if (path := place.with_name(f"{place.name}.partial")).exists()]
        kept += [f"{path}: a copy that was begun" for path in begun]
        tables = tables_folder(root, str(made.get("source")), str(made.get("fingerprint"))).absolute()
        found = cls(
            target,
            tuple(gone),
            tables if tables.is_dir() else None,
            (*kept, *_siblings(manifest, places, gone), *_ELSEWHERE),
        )
        found._check()
        return found

    @classmethod
    def unfinished(cls, target: str | Path) -> Forgetting | None:
        """Returns what a run that was killed left to remove; None: nothing. Raises `PartitionError` for a record that is damaged
        or of another partition."""
        path = _record(Path(target))
        if not path.exists():
            return None
        try:
            with open_regular(path) as stream:
                raw: Any = parse_json(stream.read())
            if raw["format"] != _FORMAT or raw["of"] != partition_id(Manifest.load(target)):
                raise ValueError("it is of another partition")
            gone = tuple((Path(place), str(identity), int(n)) for place, identity, n in raw["partitions"])
            return cls(Path(target), gone, None if raw["tables"] is None else Path(raw["tables"]), tuple(raw["kept"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PartitionError(
                f"{path}: no record of what is to be forgotten ({error}). Delete it, and what it names yourself."
            ) from None

    @staticmethod
    def is_done(folder: str | Path, target: str | Path) -> bool:
        """Tells whether ``target`` has forgotten rows of ``folder``, which is gone."""
        folder, target = Path(folder), Path(target)
        if (folder / MANIFEST).exists() or not (target / MANIFEST).is_file():
            return False
        of = Manifest.load(target).made_by.get(COMPACTED, {})
        return bool(of.get("forget")) and of["folder"] == folder.name

    @property
    def lines(self) -> list[str]:
        """What goes, for people."""
        found = []
        for folder, *_ in self.partitions:
            found.append(str(folder))
            found += [str(root)] if (root := Versions(folder).root).exists() else []
        return found if self.tables is None else [*found, f"{self.tables}: all but the ids of other nodes"]

    def run(self, progress: Progress, timeout_s: float = LOCK_TIMEOUT_S) -> list[str]:
        """Verifies the new partition, and removes. Returns what stays, as lines for people.

        Processes that have mapped these files read on; they cannot open them again.

        Raises `PartitionError` if the new partition is damaged, or rows were appended meanwhile; nothing is removed then. Also if
        the disk is full; a further call goes on.
        """
        manifest = Manifest.load(self.target)
        verify_partition(self.target, progress)
        with _full_disk_speaks(self.target), exclusive(self.target, timeout_s):
            record = _record(self.target)
            if not record.exists():
                self._require_latest()
                state: dict[str, Any] = {"format": _FORMAT, "of": partition_id(manifest), "kept": list(self.kept)}
                state["partitions"] = [(str(folder), *rest) for folder, *rest in self.partitions]
                state["tables"] = None if self.tables is None else str(self.tables)
                with whole_file(record) as temporary:
                    temporary.write_text(json.dumps(state, indent=1) + "\n", "utf-8")
                    _sync(temporary)
                _sync(record.parent)
            left = list[str]()
            for each in self.partitions:
                left += _remove_partition(*each, timeout_s)
            if self.tables is not None and self.tables.is_dir():
                with exclusive(self.tables, timeout_s):
                    forget_tables(self.tables, deleted_nodes(self.target, manifest))
                    _remove_temporary(self.tables)
            record.unlink()
        return [*left, *self.kept]

    def _require_latest(self) -> None:
        folder, _, number = self.partitions[0]
        if (latest := Versions(folder).number(LATEST)) > number:
            raise PartitionError(
                f"{folder}: version {latest} was appended meanwhile, which {self.target} lacks. Nothing is removed: delete "
                f"{self.target}, and run again."
            )

    def _check(self) -> None:
        target = self.target.resolve()
        for folder, *_ in self.partitions:
            for each in (folder, Versions(folder).root):
                if target == each.resolve() or each.resolve() in target.parents:
                    raise OptionError(f"--out: {self.target} is in {each}, which is removed. Choose another folder.")
            if folder.resolve().is_relative_to(target):
                raise OptionError(f"--out: {folder} is in {self.target}. Choose another folder.")
        for each in [*(folder for folder, *_ in self.partitions), *([] if self.tables is None else [self.tables])]:
            for place in (each, each.parent):
                if not os.access(place, os.W_OK | os.X_OK):
                    raise PartitionError(
                        f"{place}: this folder is not writable, so that nothing can be removed from it."
                    )


def _record(target: Path) -> Path:
    return target.absolute().with_name(f".{target.absolute().name}.forget.json")


def _older(manifest: Manifest, places: Iterable[Path]) -> tuple[list[_Gone], list[str]]:
    """Returns the partitions that one was compacted from, newest first, with their identities, and lines about those that
    stay."""
    found: list[_Gone] = []
    while (of := manifest.made_by.get(COMPACTED)) is not None:
        folders = [place / str(of["folder"]) for place in places]
        there = next((each for each in folders if _identity(each) == of["partition"]), None)
        if there is None:  # a partition before a forgotten one is gone
            return found, [] if of.get("forget") else [
                f"the partition {of['folder']}, which is not in {folders[0].parent}"
            ]
        if (latest := Versions(there).number(LATEST)) > of["version"]:
            return found, [f"{there}: version {latest} was appended after it was compacted"]
        found.append((there, of["partition"], latest))
        manifest = Manifest.load(there)
    return found, []


def _siblings(manifest: Manifest, places: Iterable[Path], gone: Iterable[_Gone]) -> list[str]:
    """Returns other partitions of the same data, beside those that go."""
    data, known = manifest.made_by.get("fingerprint"), {folder for folder, *_ in gone}
    found = []
    for path in sorted(path for place in places for path in place.glob(f"*/{MANIFEST}")):
        if data and path.parent not in known:
            with suppress(PartitionError):
                made = Manifest.load(path.parent).made_by
                if made.get("fingerprint") == data and not made.get(COMPACTED, {}).get("forget"):
                    found.append(f"{path.parent}: another partition of these data")
    return found


def _identity(folder: Path) -> str | None:
    with suppress(PartitionError):
        if (folder / MANIFEST).is_file():
            return partition_id(Manifest.load(folder))
    return None


@contextmanager
def _full_disk_speaks(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_IS_FULL:
            raise
        raise PartitionError(
            f"{error.filename or target}: cannot write ({error.strerror}), so that not all is forgotten. Free some space, and "
            "run the same command again: it goes on."
        ) from error


# Removal. Each step may follow a run that was killed after any other one.


def _remove_partition(folder: Path, identity: str, version: int, timeout_s: float) -> list[str]:
    """Removes a partition and its versions, up to ``version``. Returns what stays."""
    versions, folder = Versions(folder), folder.resolve()  # a link to a folder elsewhere stays
    root = versions.root
    if not folder.exists() and not root.exists():
        return []
    with exclusive(folder, timeout_s), exclusive(root, timeout_s):
        aside = folder / f".{MANIFEST}{_ASIDE}"
        if not aside.exists() and (folder / MANIFEST).exists():
            manifest = Manifest.load(folder)
            if partition_id(manifest) != identity:
                return [f"{folder}: another partition was written there"]
            if (latest := versions.number(LATEST)) > version:
                return [f"{folder}: version {latest} was appended meanwhile"]
            os.rename(folder / MANIFEST, aside)
            _sync(folder)
        left = []
        if root.is_dir():
            numbers = sorted((int(each.name) for each in root.iterdir() if each.name.isdecimal()), reverse=True)
            for n in numbers:
                left += _remove_version(root / str(n))
                _remove_temporary(root / str(n))
            _remove_temporary(root / str(version + 1))
            left += [f"{each}: no version of a graph" for each in root.iterdir() if not each.name.isdecimal()]
            with suppress(OSError):
                root.rmdir()
        if aside.exists():
            with open_regular(aside) as stream:
                arrays = Manifest.parse(parse_json(stream.read()), str(aside)).arrays
            left += _remove_files(folder, arrays, aside)
        with suppress(OSError):
            folder.rmdir()
        _remove_temporary(folder)
    return left


def _remove_version(place: Path) -> list[str]:
    aside = place / f".{DELTA}{_ASIDE}"
    if not aside.exists() and (place / DELTA).exists():
        os.rename(place / DELTA, aside)
    if not aside.exists():
        with suppress(OSError):  # a run was killed before it did so
            place.rmdir()
        return [f"{place}: no version of a graph"] if place.exists() else []
    with open_regular(aside) as stream:
        return _remove_files(place, parse_header(stream.read(), str(aside))["arrays"], aside)


def _remove_files(folder: Path, paths: Iterable[str], description: Path) -> list[str]:
    """Removes files of a folder, then the file that describes it, and all folders that are empty. Returns what stays."""
    owned, named = set(paths), 0
    for above, _, files in os.walk(folder, topdown=False):  # follows no links
        for name in files:
            path = Path(above, name)
            if str(path.relative_to(folder)) in owned and not path.is_symlink():
                named += path.lstat().st_nlink > 1
                path.unlink()
        if above != str(folder):
            with suppress(OSError):
                os.rmdir(above)
    _sync(folder)
    description.unlink()
    left = [str(each) for each in folder.iterdir()]
    if not left:
        folder.rmdir()
    found = [f"{counted(named, 'file')} of {folder}, under other names (hard links)"] if named else []
    return [*found, *(f"{each}: no file of the partition" for each in left)]


def _remove_temporary(target: Path) -> None:
    """Removes what killed writers of a folder left beside it. Call it with the lock held, so that none is alive."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.tmp-*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
