"""Fitted columns: what turns a column of a table, the one they were fitted to or a later one, into features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.partition.sources.tables.columns import PlainColumn
from glt_lightning.partition.sources.tables.raw_values import Columns, categories, dates, days_of, numbers, phases


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """One column.

    Attributes:
        column: Its name.
        missing: Words that mean "no value".
    """

    kind: ClassVar[str]
    column: str
    missing: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns of features that come of it."""
        raise NotImplementedError

    def encode(self, rows: Columns) -> np.ndarray:
        """float32 [N, one per name]; of `CodeEncoder` int32."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        return {"as": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PlainEncoder(Encoder):
    """Numbers and lists of numbers as they are; a missing one is an error.

    width: of the lists; None while no row was seen.
    """

    kind: ClassVar[str] = "plain"
    width: int | None = None

    @cached_property
    def _plain(self) -> PlainColumn:
        return PlainColumn(self.column, self.width)

    @property
    def names(self) -> list[str]:
        width = self._plain.width
        return [self.column] if width == 1 else [f"{self.column}[{i}]" for i in range(width or 0)]

    def encode(self, rows: Columns) -> np.ndarray:
        return self._plain.read(rows)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"width": self._plain.width}


@dataclass(frozen=True, kw_only=True)
class NumberEncoder(Encoder):
    """(value - shift) * scale, and perhaps 1 where there is no value.

    fill: stands for a missing value, before it is scaled; None: that is an error.
    thousands, decimal: as of `ColumnEncoding`.
    """

    kind: ClassVar[str] = "number"
    fill: float | None
    indicator: bool
    shift: float
    scale: float
    thousands: str | None = None
    decimal: str = "."

    @property
    def names(self) -> list[str]:
        return [self.column, f"{self.column} missing"] if self.indicator else [self.column]

    def encode(self, rows: Columns) -> np.ndarray:
        return self._scaled(rows, numbers(rows, self.column, self.missing, self.thousands, self.decimal))

    def to_json(self) -> dict[str, Any]:
        """Without the options at their default, which earlier releases do not know."""
        raw = super().to_json()
        return {
            name: value for name, value in raw.items() if (name, value) not in (("thousands", None), ("decimal", "."))
        }

    def _scaled(self, rows: Columns, values: np.ndarray) -> np.ndarray:
        gaps = np.isnan(values)
        if gaps.any():
            if self.fill is None:
                raise rows.error(
                    self.column,
                    int(gaps.argmax()),
                    "the value is missing, and fill is none; set fill to mean, median or a number.",
                )
            values = np.where(gaps, self.fill, values)
        scaled = ((values - self.shift) * self.scale).astype(np.float32)
        if (bad := ~np.isfinite(scaled)).any():
            row = int(bad.argmax())
            raise rows.error(
                self.column, row, f"{values[row]} is too large for a float32; correct or remove the value."
            )
        return np.stack([scaled, gaps.astype(np.float32)], axis=1) if self.indicator else scaled[:, None]


@dataclass(frozen=True, kw_only=True)
class DateEncoder(NumberEncoder):
    """Days since 1970 as a number, then a sine and a cosine for each cyclic part: zeros where there is no date."""

    kind: ClassVar[str] = "date"
    cyclic: tuple[str, ...] = ()
    format: str | None = None

    @property
    def names(self) -> list[str]:
        return [*super().names, *(f"{self.column} {part} {wave}" for part in self.cyclic for wave in ("sin", "cos"))]

    def encode(self, rows: Columns) -> np.ndarray:
        times = dates(rows, self.column, self.missing, self.format)
        columns = [self._scaled(rows, days_of(times))]
        for part in self.cyclic:
            angle = 2 * np.pi * phases(times, part)
            columns.append(np.nan_to_num(np.stack([np.sin(angle), np.cos(angle)], axis=1)))
        return np.concatenate(columns, axis=1, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class CategoryEncoder(Encoder):
    categories: tuple[str, ...]

    @cached_property
    def _known(self) -> pa.Array:
        return pa.array(self.categories, pa.large_string())

    def places(self, rows: Columns) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [N], position among the categories, -1 for unknown and for none; bool [N], whether there is no value)."""
        found = categories(rows, self.column, self.missing)
        place = pc.index_in(found, value_set=self._known, skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
        return place.astype(np.int64), pc.is_null(found).to_numpy(zero_copy_only=False)

    def unknown(self, rows: Columns) -> int:
        """How many rows hold a value that is no known category."""
        place, gaps = self.places(rows)
        return int(((place < 0) & ~gaps).sum())


@dataclass(frozen=True, kw_only=True)
class OneHotEncoder(CategoryEncoder):
    """A column of 0 and 1 for each category, and perhaps one for "no value". An unknown value is zeros."""

    kind: ClassVar[str] = "one_hot"
    indicator: bool

    @property
    def names(self) -> list[str]:
        names = [f"{self.column}={value}" for value in self.categories]
        return [*names, f"{self.column} missing"] if self.indicator else names

    def encode(self, rows: Columns) -> np.ndarray:
        place, gaps = self.places(rows)
        if self.indicator:
            place = np.where(gaps, len(self.categories), place)
        hot = np.zeros((len(place), len(self.categories) + self.indicator), np.float32)
        (known,) = np.nonzero(place >= 0)
        hot[known, place[known]] = 1
        return hot


@dataclass(frozen=True, kw_only=True)
class CodeEncoder(CategoryEncoder):
    """An integer: 0 for an unknown value, 1 to K for the K categories, K + 1 for no value."""

    kind: ClassVar[str] = "code"

    @property
    def names(self) -> list[str]:
        return [self.column]

    @property
    def num_codes(self) -> int:
        return len(self.categories) + 2

    def encode(self, rows: Columns) -> np.ndarray:
        place, gaps = self.places(rows)
        return np.where(gaps, len(self.categories) + 1, place + 1).astype(np.int32)[:, None]


_KINDS: tuple[type[Encoder], ...] = (PlainEncoder, NumberEncoder, DateEncoder, OneHotEncoder, CodeEncoder)


def encoder_from_json(raw: Mapping[str, Any]) -> Encoder:
    """What `Encoder.to_json` wrote."""
    kind = next(each for each in _KINDS if each.kind == raw["as"])
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in raw.items() if name != "as"
    }
    return kind(**plain)
