"""Fitted encoders: they turn a column of a table, the one they were fitted to or a later one, into features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError
from glt_lightning.partition.sources.base import near
from glt_lightning.partition.sources.tables.columns import no_null, remedy
from glt_lightning.partition.sources.tables.files import TablePiece
from glt_lightning.partition.sources.tables.raw_values import (
    categories,
    dates,
    days_of,
    is_list,
    is_number,
    numbers,
    phases,
)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The fitted encoder of one column.

    Attributes:
        column: Name of the column.
        missing: Words that mean "no value".
    """

    kind: ClassVar[str]
    column: str
    missing: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns of features that the encoder makes."""
        raise NotImplementedError

    def encode(self, rows: TablePiece) -> np.ndarray:
        """Returns float32 [N, one per name]; of `CodeEncoder` int32."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        return {"as": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PlainEncoder(Encoder):
    """Keeps numbers and lists of numbers unchanged; a missing one is an error.

    width: length of the lists; None until a row was read.
    """

    kind: ClassVar[str] = "plain"
    width: int | None = None

    @property
    def names(self) -> list[str]:
        return [self.column] if self.width == 1 else [f"{self.column}[{i}]" for i in range(self.width or 0)]

    def encode(self, rows: TablePiece) -> np.ndarray:
        name, array = self.column, rows.column(self.column)
        if not is_list(array.type) and not is_number(array.type):
            raise rows.error(name, 0, f"{array.type}: features are numbers. {remedy(name, array.type)}")
        fills = f"set encode: {{{name}: number}}, which fills it" if is_number(array.type) else "leave the row out"
        no_null(rows, name, array, f"give it a value, or {fills}")
        width = self._width_of(rows, array)
        values = array.flatten() if is_list(array.type) else array
        # A null in a list becomes NaN here.
        block = pc.cast(values, pa.float32(), safe=False).to_numpy(zero_copy_only=False).reshape(len(rows), width)
        if not np.isfinite(block).all():
            row, at = np.argwhere(~np.isfinite(block))[0].tolist()
            where = f" at position {at}" if is_list(array.type) else ""
            raise rows.error(name, row, f"{block[row, at]}{where} is not a finite float32. Replace this value.")
        return block

    def _width_of(self, rows: TablePiece, array: pa.Array) -> int:
        if not is_list(array.type):
            lengths = np.ones(len(array), np.int64)
        elif len(array):
            lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        else:
            return self.width or (array.type.list_size if pa.types.is_fixed_size_list(array.type) else 0)
        width = self.width if self.width is not None else int(lengths[0]) if len(lengths) else 1
        if (other := lengths != width).any():
            row = int(other.argmax())
            message = f"{lengths[row]} features, but {width} in the rows before. All rows need the same number."
            raise rows.error(self.column, row, message)
        return width


@dataclass(frozen=True, kw_only=True)
class NumberEncoder(Encoder):
    """Scales numbers to (value - shift) * scale, and perhaps adds an indicator, 1 for a missing value.

    fill: replaces a missing value, before it is scaled; None: a missing value is an error.
    thousands, decimal: as in `ColumnEncoding`.
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

    def encode(self, rows: TablePiece) -> np.ndarray:
        return self._scaled(rows, numbers(rows, self.column, self.missing, self.thousands, self.decimal))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, without options at their default, which earlier releases do not know."""
        later = {"thousands": None, "decimal": "."}
        return {name: value for name, value in super().to_json().items() if name not in later or value != later[name]}

    def _scaled(self, rows: TablePiece, values: np.ndarray) -> np.ndarray:
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
    """Encodes dates: days since 1970 as a number, then a sine and a cosine for each cyclic part; zeros without a date."""

    kind: ClassVar[str] = "date"
    cyclic: tuple[str, ...] = ()
    format: str | None = None

    @property
    def names(self) -> list[str]:
        return [*super().names, *(f"{self.column} {part} {wave}" for part in self.cyclic for wave in ("sin", "cos"))]

    def encode(self, rows: TablePiece) -> np.ndarray:
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

    def places(self, rows: TablePiece) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions of values among the categories, int64 [N], -1 for an unknown or missing one; and bool [N], True
        for missing values."""
        found = categories(rows, self.column, self.missing)
        place = pc.index_in(found, value_set=self._known, skip_nulls=True).fill_null(-1).to_numpy(zero_copy_only=False)
        return place.astype(np.int64), pc.is_null(found).to_numpy(zero_copy_only=False)

    def unknown(self, rows: TablePiece) -> int:
        """Counts the rows whose value is no known category."""
        place, gaps = self.places(rows)
        return int(((place < 0) & ~gaps).sum())


@dataclass(frozen=True, kw_only=True)
class OneHotEncoder(CategoryEncoder):
    """Encodes categories as a column of 0 and 1 for each, and perhaps one for "no value". An unknown value is zeros."""

    kind: ClassVar[str] = "one_hot"
    indicator: bool

    @property
    def names(self) -> list[str]:
        names = [f"{self.column}={value}" for value in self.categories]
        return [*names, f"{self.column} missing"] if self.indicator else names

    def encode(self, rows: TablePiece) -> np.ndarray:
        place, gaps = self.places(rows)
        if self.indicator:
            place = np.where(gaps, len(self.categories), place)
        hot = np.zeros((len(place), len(self.categories) + self.indicator), np.float32)
        (known,) = np.nonzero(place >= 0)
        hot[known, place[known]] = 1
        return hot


@dataclass(frozen=True, kw_only=True)
class CodeEncoder(CategoryEncoder):
    """Encodes categories as an integer: 0 for an unknown value, 1 to K for the K categories, K + 1 for no value."""

    kind: ClassVar[str] = "code"

    @property
    def names(self) -> list[str]:
        return [self.column]

    @property
    def num_codes(self) -> int:
        return len(self.categories) + 2

    def encode(self, rows: TablePiece) -> np.ndarray:
        place, gaps = self.places(rows)
        return np.where(gaps, len(self.categories) + 1, place + 1).astype(np.int32)[:, None]


_KINDS: tuple[type[Encoder], ...] = (PlainEncoder, NumberEncoder, DateEncoder, OneHotEncoder, CodeEncoder)


def encoder_from_json(raw: Mapping[str, Any]) -> Encoder:
    """Makes an encoder from the values of `Encoder.to_json`."""
    kind = next(each for each in _KINDS if each.kind == raw["as"])
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in raw.items() if name != "as"
    }
    return kind(**plain)


# How columns of a table become features: the key ``encode`` of a mapping, checked option by option.


AUTO = "auto"


# Which options each kind has, the words for kinds among them.
_OPTIONS: dict[str, tuple[str, ...]] = {
    AUTO: ("max_one_hot", "max_categories", "fill", "indicator", "scale"),
    "number": ("fill", "indicator", "scale", "thousands", "decimal"),
    "category": ("max_one_hot", "max_categories", "indicator"),
    "one_hot": ("max_categories", "indicator"),
    "code": ("max_categories",),
    "date": ("fill", "indicator", "scale", "cyclic", "format"),
}

_SCALES = ("standard", "minmax", "none")
FILLS = ("mean", "median", "none")
CYCLES = ("year", "month", "day", "weekday", "hour")


# Words for "no value" where a column is numbers or dates; among categories they may be a value (NA is Namibia).
MISSING = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL")


@dataclass(frozen=True, kw_only=True)
class ColumnEncoding:
    """The encoding of one column as features.

    Attributes:
        kind: number, category, one_hot, code or date; auto: by the type of the values.
        fill: Replaces missing numbers and dates: mean, median, none (a missing value is an error) or a number (for a date,
            days since 1970).
        indicator: Adds a column that is 1 for a missing value; auto: if any was missing.
        scale: standard (mean 0, deviation 1), minmax (from 0 to 1) or none.
        max_one_hot: The greatest number of categories that get a column each; more become codes.
        max_categories: The number of the most frequent categories that are known; others count as unknown. None: all.
        cyclic: Parts of a date that become a sine and a cosine: year (day of the year), month, day, weekday, hour.
        format: The format of dates, as for strptime (``%d/%m/%Y``). None: ISO 8601.
        thousands: The character that groups digits of numbers in text, as in 1,234 or 1.234. None: no character.
        decimal: The character before the fraction of numbers in text: a point or a comma.
    """

    kind: str = AUTO
    fill: str | float = "mean"
    indicator: str | bool = AUTO
    scale: str = "standard"
    max_one_hot: int = 32
    max_categories: int | None = None
    cyclic: tuple[str, ...] = ()
    format: str | None = None
    thousands: str | None = None
    decimal: str = "."

    def check(self, where: str) -> None:
        """Raises `DataError` for an invalid value. where: the beginning of errors."""

        def require(good: bool, name: str, expected: str, given: Any, known: Any = ()) -> None:
            if not good:
                raise DataError(f"{where}: {name}: expected {expected}; got {given!r}.{near(str(given), known)}")

        number = isinstance(self.fill, (int, float)) and not isinstance(self.fill, bool) and math.isfinite(self.fill)
        require(number or self.fill in FILLS, "fill", "mean, median, none or a number", self.fill, FILLS)
        known = isinstance(self.indicator, bool) or self.indicator == AUTO
        require(known, "indicator", "auto, true or false", self.indicator)
        require(self.scale in _SCALES, "scale", f"one of {', '.join(_SCALES)}", self.scale, _SCALES)
        require(_is_count(self.max_one_hot), "max_one_hot", "an integer >= 0", self.max_one_hot)
        most = self.max_categories
        require(most is None or (_is_count(most) and most > 0), "max_categories", "an integer >= 1", most)
        for part in self.cyclic:
            require(part in CYCLES, "cyclic", f"some of {', '.join(CYCLES)}", part, CYCLES)
        require(self.format is None or _is_text(self.format), "format", "text such as '%d/%m/%Y'", self.format)
        require(self.decimal in (".", ","), "decimal", "'.' or ','", self.decimal)
        group: Any = self.thousands
        character = _is_text(group) and len(group) == 1 and not group.isalnum() and group not in "+-"
        good = group is None or (character and group != self.decimal)
        require(good, "thousands", f"one character such as ',' other than decimal ({self.decimal!r})", group)


Choices = tuple[tuple[str, ColumnEncoding], ...]


def parse_encode(where: str, given: Any) -> Choices:
    """Parses ``encode`` to (column or pattern, its encoding), in the order given; a word alone is for all columns."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        return (("*", _parse_one(where, given)),)
    return tuple((name, _parse_one(f"{where}: {name}", each)) for name, each in given.items())


def _parse_one(where: str, given: Any) -> ColumnEncoding:
    options = dict(given) if isinstance(given, Mapping) else {"as": given}
    kind = options.pop("as", AUTO)
    if not isinstance(kind, str) or kind not in _OPTIONS:
        hint = near(str(kind), _OPTIONS)
        raise DataError(f"dataset: {where}: as: expected one of {', '.join(_OPTIONS)}; got {kind!r}.{hint}")
    for name in options:
        if name not in _OPTIONS[kind]:
            raise DataError(
                f"dataset: {where}: as: {kind} has no option {name!r}; it has {', '.join(_OPTIONS[kind])}."
                + near(name, _OPTIONS[kind])
            )
    if "cyclic" in options:
        cyclic = options["cyclic"]
        options["cyclic"] = tuple(cyclic) if isinstance(cyclic, (list, tuple)) else (cyclic,)
    made = ColumnEncoding(kind=kind, **options)
    made.check(f"dataset: {where}")
    return made


def parse_missing(where: str, given: Any) -> tuple[str, ...] | None:
    """Parses the words for "no value"; None if not given."""
    if given is None:
        return None
    many = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in many:
        if not isinstance(each, str):
            raise DataError(f"dataset: {where}: expected words such as NA; got {each!r}. Put it in quotes.")
    return tuple(many)


def parse_fit_on(where: str, given: Any, has_split: bool) -> str | None:
    if given not in (None, "train", "all"):
        raise DataError(f"dataset: {where}: expected train or all; got {given!r}.")
    if given == "train" and not has_split:
        raise DataError(f"dataset: {where}: train needs the column of the splits; give split, or take all.")
    return given


def changed(encoding: ColumnEncoding) -> dict[str, Any]:
    """Returns the options that differ from their default."""
    default = asdict(ColumnEncoding())
    return {name: value for name, value in asdict(encoding).items() if value != default[name]}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
