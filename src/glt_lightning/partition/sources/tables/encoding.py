"""The fitted encoding of a graph's tables: written beside the converted tables and into the partition, read from both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import MANIFEST, TABLE_ENCODING, Manifest, open_array, open_regular, parse_json
from glt_lightning.partition.sources.tables.encoders import CodeEncoder, Encoder, encoder_from_json
from glt_lightning.partition.sources.tables.raw_values import Columns

FILE = "encoding.json"
_FORMAT = "glt_lightning.table_encoding"


@dataclass(frozen=True)
class TableEncoding:
    """The features of one table.

    Attributes:
        encoders: Its columns in the order of the features.
        asked: The keys of the mapping that they come from.
        classes: Names of the labels 0, 1, ... where labels are text.
    """

    encoders: Sequence[Encoder] = ()
    asked: Mapping[str, Any] | None = None
    classes: list[str] | None = None

    @cached_property
    def floats(self) -> list[Encoder]:
        return [each for each in self.encoders if not isinstance(each, CodeEncoder)]

    @cached_property
    def codes(self) -> list[CodeEncoder]:
        return [each for each in self.encoders if isinstance(each, CodeEncoder)]

    def read_floats(self, rows: Columns) -> np.ndarray:
        """float32 [N, D]"""
        return np.concatenate([each.encode(rows) for each in self.floats], axis=1, dtype=np.float32)

    def read_codes(self, rows: Columns) -> np.ndarray:
        """int32 [N, C]"""
        return np.concatenate([each.encode(rows) for each in self.codes], axis=1)

    def to_json(self) -> dict[str, Any]:
        encoders = [each.to_json() for each in self.encoders]
        names = [name for each in self.floats for name in each.names]
        return {"asked": self.asked, "classes": self.classes, "columns": encoders, "features": names}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TableEncoding:
        return cls([encoder_from_json(each) for each in raw["columns"]], raw["asked"], raw["classes"])


@dataclass(frozen=True, kw_only=True)
class GraphEncoding:
    """The features of all tables, by node type and by edge type written as SRC__REL__DST."""

    nodes: Mapping[str, TableEncoding]
    edges: Mapping[str, TableEncoding]
    target_type: str | None = None
    num_classes: int | None = None

    @property
    def num_categories(self) -> dict[str, list[int]]:
        """Number of codes of each column of ``x_codes``, for node types that have some."""
        found = {t: [each.num_codes for each in table.codes] for t, table in self.nodes.items()}
        return {t: counts for t, counts in found.items() if counts}

    def to_bytes(self) -> bytes:
        raw = {
            "format": _FORMAT,
            "target_type": self.target_type,
            "num_classes": self.num_classes,
            "nodes": {t: table.to_json() for t, table in self.nodes.items()},
            "edges": {e: table.to_json() for e, table in self.edges.items()},
        }
        return json.dumps(raw, indent=1, ensure_ascii=False).encode()

    @classmethod
    def load(cls, folder: str | Path) -> GraphEncoding:
        """Of a partition, or of converted tables. Raises `DataError` where there is none."""
        found, where = encoding_bytes(folder)
        try:
            raw: Any = parse_json(found)
            if raw["format"] != _FORMAT:
                raise ValueError(f"format {raw['format']!r}")
            return cls(
                nodes={t: TableEncoding.from_json(table) for t, table in raw["nodes"].items()},
                edges={e: TableEncoding.from_json(table) for e, table in raw["edges"].items()},
                target_type=raw["target_type"],
                num_classes=raw["num_classes"],
            )
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise DataError(
                f"{where}: not a valid encoding of tables ({error!r}). Delete its folder; the next run creates it "
                "again."
            ) from None


def encoding_bytes(folder: str | Path) -> tuple[bytes, Path]:
    """(the encoding as it is stored, its file)."""
    folder = Path(folder).expanduser()
    if (folder / MANIFEST).is_file():
        manifest = Manifest.load(folder)
        if TABLE_ENCODING in manifest.arrays:
            stored = open_array(folder, TABLE_ENCODING, manifest.arrays[TABLE_ENCODING])
            return stored.tobytes(), folder / TABLE_ENCODING
    elif (folder / FILE).is_file():
        with open_regular(folder / FILE) as stream:
            return stream.read(), folder / FILE
    else:
        raise DataError(f"{folder}: expected the folder of a partition (data.partition_dir) or of converted tables.")
    raise DataError(
        f"{folder}: this partition has no encoding of tables: its data set is not tables, or an earlier release made it. "
        "Partition the tables again."
    )
