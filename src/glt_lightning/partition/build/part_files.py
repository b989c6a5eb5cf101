"""``part<p>/part.json``: the description of one finished part, until the manifest of all parts is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glt_lightning.base import PartitionError
from glt_lightning.graph import (
    VERSION,
    ArrayEntry,
    Manifest,
    entries_from_json,
    entries_to_json,
    open_regular,
    parse_json,
)

FORMAT = "glt_lightning.part"
_ADVICE = (
    "Use the same data, options, assignment and release on every host; delete the parts that differ and run again."
)


@dataclass(frozen=True)
class PartFile:
    """One finished part.

    Attributes:
        head: The manifest without the parts; the same for all parts.
        numbering: Hash of the new numbers of all nodes; the same for all parts.
        arrays: The arrays of this part, by path.
    """

    part: int
    head: Manifest
    numbering: str
    arrays: Mapping[str, ArrayEntry]

    @staticmethod
    def path(folder: Path, part: int) -> Path:
        return folder / f"part{part}" / "part.json"

    def save(self, folder: Path) -> None:
        """Writes the file into the folder of the part, which must exist."""
        raw = {
            "format": FORMAT,
            "version": VERSION,
            "part": self.part,
            "head": self.head.to_json(),
            "numbering": self.numbering,
            "arrays": entries_to_json(self.arrays),
        }
        text = json.dumps(raw | {"hash": _hash(raw)}, indent=1) + "\n"
        self.path(folder, self.part).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, part: int) -> PartFile:
        """Reads the file of one part.

        Raises `PartitionError`, naming the file, if it is missing, damaged, or of another version of the format.
        """
        path = cls.path(folder, part)
        try:
            with open_regular(path) as stream:
                raw = parse_json(stream.read())
        except (OSError, ValueError) as error:
            raise PartitionError(
                f"{path}: not readable as JSON ({error}). Delete {path.parent} and run again."
            ) from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("version") != VERSION:
            raise PartitionError(
                f"{path}: expected format {FORMAT} of version {VERSION}. Another release wrote this part: delete "
                f"{path.parent} and run again."
            )
        if raw.pop("hash", None) != _hash(raw) or raw["part"] != part:
            raise PartitionError(
                f"{path}: its hash does not match its contents: it was edited or damaged. Delete {path.parent} and run again."
            )
        return cls(part, Manifest.from_json(raw["head"]), raw["numbering"], entries_from_json(raw["arrays"]))

    def require_fits(self, other: PartFile, folder: Path) -> None:
        """Raises `PartitionError` with the difference unless both are parts of one partition."""
        require_same(f"{folder / f'part{other.part}'}", self.head.made_by, other.head.made_by)
        mine, found = _facts(self), _facts(other)
        keys = [k for k in mine if mine[k] != found[k]]
        if keys:
            what = "; ".join(f"{k}: {_short(found[k])}, but {_short(mine[k])} in part {self.part}" for k in keys)
            rounding = keys in (["numbering"], ["numbering", "splits' checksums"])
            raise PartitionError(
                f"{folder / f'part{other.part}'}: does not belong to the same partition as part {self.part} ({what}). "
                + ("Hotness was rounded differently, by another processor or another numpy: " if rounding else "")
                + ("write all parts on hosts of one kind, or with partition.hotness: degree." if rounding else _ADVICE)
            )


def require_same(where: str, made: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises `PartitionError` with the differences if a part was written with other options, other data or by another
    release than ``made`` records."""
    made, found = _as_read(made), _as_read(found)
    keys = [k for k in {**made, **found} if made.get(k) != found.get(k)]
    if keys:
        what = "; ".join(f"{k}: {_short(found.get(k))}, but this run has {_short(made.get(k))}" for k in keys)
        raise PartitionError(f"{where}: this part was written with different options or data ({what}). {_ADVICE}")


def _facts(part: PartFile) -> dict[str, Any]:
    raw = part.head.to_json()
    arrays = raw.pop("arrays")
    return _as_read(raw | {"numbering": part.numbering, "splits' checksums": arrays})


def _as_read(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The value as it is after a round trip through JSON, which turns tuples into lists."""
    return dict(json.loads(json.dumps(raw)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _hash(raw: Mapping[str, Any]) -> str:
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
