"""``part<p>/part.json``: what a part says of itself until the manifest of all parts is composed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glt_lightning.data.manifest import VERSION, ArrayEntry, Manifest, entries_from_json, entries_to_json
from glt_lightning.data.regular_file import open_regular, parse_json
from glt_lightning.errors import PartitionError

FORMAT = "glt_lightning.part"
_SAME_ELSE = (
    "Give every host the same data, options, assignment and release; delete the parts that differ and run again."
)


@dataclass(frozen=True)
class PartFile:
    """One finished part.

    Attributes:
        head: The manifest but for the parts, which all parts share.
        numbering: Hash of the numbers of all nodes, which they share as well.
        arrays: Those of the part.
    """

    part: int
    head: Manifest
    numbering: str
    arrays: Mapping[str, ArrayEntry]

    @staticmethod
    def path(folder: Path, part: int) -> Path:
        return folder / f"part{part}" / "part.json"

    def save(self, folder: Path) -> None:
        """Writes it into the folder of the part, which must be there."""
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
        """Raises `PartitionError`, naming the file, unless it is as it was written, by this version of the format."""
        path = cls.path(folder, part)
        try:
            with open_regular(path) as stream:
                raw = parse_json(stream.read())
        except (OSError, ValueError) as error:
            raise PartitionError(f"{path}: cannot be read as JSON ({error}). Delete this part and run again.") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("version") != VERSION:
            raise PartitionError(f"{path}: is not a part of version {VERSION}. Delete this part and run again.")
        if raw.pop("hash", None) != _hash(raw) or raw["part"] != part:
            raise PartitionError(f"{path}: it was edited or damaged. Delete this part and run again.")
        return cls(part, Manifest.from_json(raw["head"]), raw["numbering"], entries_from_json(raw["arrays"]))

    def require_fits(self, other: PartFile, folder: Path) -> None:
        """Raises `PartitionError` with the difference unless both are parts of one partition."""
        require_same(f"{folder / f'part{other.part}'}", self.head.made_by, other.head.made_by)
        mine, found = _facts(self), _facts(other)
        keys = [k for k in mine if mine[k] != found[k]]
        if keys:
            what = "; ".join(f"{k}: {_short(mine[k])} in part {self.part}, {_short(found[k])} there" for k in keys)
            rounding = keys in (["numbering"], ["numbering", "splits' checksums"])
            raise PartitionError(
                f"{folder / f'part{other.part}'}: does not fit part {self.part} ({what}). "
                + ("Hotness was rounded otherwise, on another processor or by another numpy: " if rounding else "")
                + ("partition all parts with hotness: degree, or on like hosts." if rounding else _SAME_ELSE)
            )


def require_same(where: str, made: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises `PartitionError` with the difference unless a part was made as ``made`` says, by the same release."""
    made, found = _as_read(made), _as_read(found)
    keys = [k for k in {**made, **found} if made.get(k) != found.get(k)]
    if keys:
        what = "; ".join(f"{k}: {_short(made.get(k))} given, {_short(found.get(k))} there" for k in keys)
        raise PartitionError(f"{where}: was made otherwise ({what}). {_SAME_ELSE}")


def _facts(part: PartFile) -> dict[str, Any]:
    raw = part.head.to_json()
    arrays = raw.pop("arrays")
    return _as_read(raw | {"numbering": part.numbering, "splits' checksums": arrays})


def _as_read(raw: Mapping[str, Any]) -> dict[str, Any]:
    """With lists for tuples, as JSON brings them back."""
    return dict(json.loads(json.dumps(raw)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _hash(raw: Mapping[str, Any]) -> str:
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
