"""Fits the columns of a table in one pass. Only sums, and the categories of columns, are held in memory."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError, Progress
from glt_lightning.partition.sources.tables.columns import NUMBER_OR_DATE, SPLITS, split_codes
from glt_lightning.partition.sources.tables.encoders import (
    AUTO,
    MISSING,
    CodeEncoder,
    ColumnEncoding,
    DateEncoder,
    Encoder,
    NumberEncoder,
    OneHotEncoder,
    PlainEncoder,
)
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece, number_advice
from glt_lightning.partition.sources.tables.raw_values import (
    categories,
    dates,
    days_of,
    is_list,
    is_number,
    is_text,
    is_time,
    numbers,
)

_log = logging.getLogger(__name__)

_MOST_CATEGORIES = 1 << 20  # different values of a column that are held: some 100 MB
_TRAIN = list(dict.fromkeys(SPLITS.values())).index("train")


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The columns to fit, and the rows that count.

    Attributes:
        columns: Each column and its encoding.
        types: The types as which `TableFiles.pieces` reads them.
        missing: The user's words for "no value", if any.
        split: Column of the splits if only training rows count for means, deviations and fills.
    """

    columns: Mapping[str, ColumnEncoding]
    types: Mapping[str, pa.DataType]
    missing: tuple[str, ...] | None
    split: str | None


def fit_columns(table: TableFiles, fitting: Fitting, progress: Progress) -> dict[str, Encoder]:
    """Reads the table once. Raises `DataError` for values that are not of their column's kind."""
    if not fitting.columns:
        return {}
    auto = [name for name, how in fitting.columns.items() if how.kind == AUTO]
    found = table.types(auto, MISSING if fitting.missing is None else fitting.missing)
    fits = {name: _fit_of(table, name, how, found.get(name), fitting.missing) for name, how in fitting.columns.items()}
    types = {name: fitting.types[name] for name in fits}
    if fitting.split is not None:  # words: in a text file there is no type to find
        types |= {fitting.split: pa.large_string()} if table.is_text else table.types([fitting.split])
    with progress.phase(f"fitting {table.what}", table.num_rows, "rows") as done:
        for piece in table.pieces(types):
            counted = None if fitting.split is None else split_codes(piece, fitting.split) == _TRAIN
            for fit in fits.values():
                fit.add(piece, counted)
            done(len(piece))
    return {name: fit.finish(table) for name, fit in fits.items()}


class _Fit(Protocol):
    def add(self, piece: TablePiece, counted: np.ndarray | None) -> None:
        """Adds the rows of a piece. counted: bool [N], True for rows that count for statistics; None: all do."""
        ...

    def finish(self, table: TableFiles) -> Encoder: ...


def _fit_of(
    table: TableFiles, name: str, how: ColumnEncoding, kind: pa.DataType | None, missing: tuple[str, ...] | None
) -> _Fit:
    """Makes the fit of a column. kind: type of the values, for a column whose encoding is auto."""
    chosen = how.kind
    if kind is not None:
        if is_list(kind):
            return _PlainFit(name)
        chosen = "number" if is_number(kind) or pa.types.is_decimal(kind) else "date" if is_time(kind) else "category"
        if chosen == "category" and not (is_text(kind) or pa.types.is_null(kind)):
            raise DataError(
                f"{table.paths[0]}: column {name!r} is {kind}, which encode: auto cannot take; leave it out."
            )
    if chosen == "number":
        return _NumberFit(name, how, MISSING if missing is None else missing)
    if chosen == "date":
        return _DateFit(name, how, MISSING if missing is None else missing)
    return _CategoryFit(name, how, missing or ())


class _PlainFit:
    """The fit of a column of lists, which needs no statistics."""

    def __init__(self, name: str) -> None:
        self._name = name

    def add(self, piece: TablePiece, counted: np.ndarray | None) -> None:
        pass

    def finish(self, table: TableFiles) -> Encoder:
        return PlainEncoder(column=self._name)


class _NumberFit:
    """The fit of a column of numbers: count, mean, sum of squared deviations, least and greatest value of the rows that count;
    for a median all values, 8 bytes each."""

    def __init__(self, name: str, how: ColumnEncoding, missing: tuple[str, ...]) -> None:
        self._name, self._how, self._missing = name, how, missing
        self._gaps = False
        self._count, self._mean, self._square = 0, 0.0, 0.0
        self._least, self._most = np.inf, -np.inf
        self._held: list[np.ndarray] = []

    def _values(self, piece: TablePiece) -> np.ndarray:
        return numbers(piece, self._name, self._missing, self._how.thousands, self._how.decimal)

    def add(self, piece: TablePiece, counted: np.ndarray | None) -> None:
        values = self._values(piece)
        gaps = np.isnan(values)
        self._gaps = self._gaps or bool(gaps.any())
        values = values[~gaps if counted is None else ~gaps & counted]
        if not len(values):
            return
        total = self._count + len(values)  # merged as in `build.normalize`
        delta = float(values.mean()) - self._mean
        with np.errstate(over="ignore"):
            self._square += float(values.var()) * len(values) + delta * delta * (self._count * len(values) / total)
        self._mean += delta * (len(values) / total)
        self._count = total
        if self._how.fill == "median":
            self._held.append(values)
        self._least, self._most = min(self._least, float(values.min())), max(self._most, float(values.max()))

    def finish(self, table: TableFiles) -> Encoder:
        return NumberEncoder(**self._fitted(table), thousands=self._how.thousands, decimal=self._how.decimal)

    def _fitted(self, table: TableFiles) -> dict[str, Any]:
        how = self._how
        if not self._count and (how.scale != "none" or how.fill in ("mean", "median")):
            raise DataError(
                f"{table.paths[0]}: column {self._name!r} (dataset: {table.what}) has no value in the rows from "
                "which its fill and scale are computed. Remove the column, or set fit_on: all if only training rows "
                "count now."
            )
        fill = self._fill()
        with np.errstate(over="ignore"):  # what overflows is found here
            shift, scale = self._shift_and_scale()
        if how.scale != "none" and not np.isfinite([self._square, shift, scale, self._most - self._least]).all():
            raise DataError(
                f"{table.paths[0]}: column {self._name!r} (dataset: {table.what}) ranges from {self._least} to "
                f"{self._most}, which is too wide to scale. Correct the values, or remove the column."
            )
        indicator = self._gaps if how.indicator == AUTO else bool(how.indicator)
        return {
            "column": self._name,
            "missing": self._missing,
            "fill": fill,
            "indicator": indicator,
            "shift": shift,
            "scale": scale,
        }

    def _fill(self) -> float | None:
        how = self._how.fill
        if how == "median":
            return float(np.median(np.concatenate(self._held)))
        return self._mean if how == "mean" else None if how == "none" else float(how)

    def _shift_and_scale(self) -> tuple[float, float]:
        if self._how.scale == "none":
            return 0.0, 1.0
        if self._how.scale == "minmax":
            return self._least, 0.0 if self._most == self._least else 1 / (self._most - self._least)
        deviation = (self._square / self._count) ** 0.5
        # A constant column has a deviation of rounding errors, not of 0; it becomes 0.
        constant = deviation <= 1e-9 * max(abs(self._mean), 1e-30)
        return self._mean, 0.0 if constant else 1 / deviation


class _DateFit(_NumberFit):
    def _values(self, piece: TablePiece) -> np.ndarray:
        return days_of(dates(piece, self._name, self._missing, self._how.format))

    def finish(self, table: TableFiles) -> Encoder:
        return DateEncoder(**self._fitted(table), cyclic=self._how.cyclic, format=self._how.format)


class _CategoryFit:
    """The fit of categories: the frequency of each value, in all rows, since names of categories reveal nothing of labels."""

    def __init__(self, name: str, how: ColumnEncoding, missing: tuple[str, ...]) -> None:
        self._name, self._how, self._missing = name, how, missing
        self._found: Counter[str] = Counter()
        self._gaps = 0

    def add(self, piece: TablePiece, counted: np.ndarray | None) -> None:
        found = categories(piece, self._name, self._missing)
        self._gaps += found.null_count
        counts = pc.value_counts(found.drop_null())
        values, times = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
        self._found.update(dict(zip(values, times, strict=True)))
        if len(self._found) > _MOST_CATEGORIES:
            raise DataError(
                f"{piece.table.paths[0]}: column {self._name!r} (dataset: {piece.table.what}) has more than {_MOST_CATEGORIES:,} "
                "different values: an id or free text rather than a category. Leave it out of features."
            )

    def finish(self, table: TableFiles) -> Encoder:
        how, most = self._how, self._how.max_categories
        known = sorted(self._found)
        if how.kind == AUTO:
            self._warn_of_numbers(table, known)
        if most is not None and len(known) > most:
            known = sorted(sorted(known, key=lambda value: -self._found[value])[:most])
        hot = how.kind == "one_hot" or (how.kind != "code" and len(known) <= how.max_one_hot)
        if not hot and how.kind != "code" and most is None:
            self._require_repeated(table)
        if hot:
            indicator = self._gaps > 0 if how.indicator == AUTO else bool(how.indicator)
            return OneHotEncoder(column=self._name, missing=self._missing, categories=tuple(known), indicator=indicator)
        return CodeEncoder(column=self._name, missing=self._missing, categories=tuple(known))

    def _warn_of_numbers(self, table: TableFiles, known: list[str]) -> None:
        """Warns if a single word among numbers, or the comma of 1,234, makes them categories, which have no order for a model."""
        others, place = self._no_numbers(known), f"{table.paths[0]}: column {self._name!r} is treated as categories:"
        category = f"if the column does hold categories, encode: {{{self._name}: category}}"
        if advice := number_advice(self._name, others):
            _log.warning("%s %r is not a plain number; %s; %s.", place, others[0], advice, category)
        elif 2 * len(others) < len(known):
            _log.warning(
                "%s most of its %s different values are numbers or dates, but not %s. If these stand for missing values, set "
                "missing: [%s]; %s.",
                place,
                f"{len(known):,}",
                ", ".join(map(repr, others[:3])),
                ", ".join(map(_yaml_word, others[:3])),
                category,
            )

    @staticmethod
    def _no_numbers(known: list[str]) -> list[str]:
        found = pa.array(known, pa.large_string())
        return found.filter(pc.invert(pc.match_substring_regex(found, NUMBER_OR_DATE))).to_pylist()

    def _require_repeated(self, table: TableFiles) -> None:
        """Raises `DataError` for values that differ in most rows: a model would memorise the rows."""
        rows, different = self._found.total(), len(self._found)
        if 2 * different > rows:
            advice = number_advice(self._name, self._no_numbers(sorted(self._found)))
            raise DataError(
                f"{table.paths[0]}: column {self._name!r} (dataset: {table.what}) has {different:,} different values in "
                f"{rows:,} rows, such as {min(self._found)!r}: an id or free text rather than a category. Leave it out of "
                f"features, or set encode: {{{self._name}: code}} or {{{self._name}: {{as: category, max_categories: 1000}}}}; "
                + (advice or f"of dates, how they are written: {{{self._name}: {{as: date, format: '%d.%m.%Y'}}}}")
                + "."
            )


def _yaml_word(value: str) -> str:
    """Writes a value as an item of a list in YAML, with quotes if a comma in it would make two items of it."""
    return value if re.fullmatch(r"[A-Za-z][\w./-]*", value) else repr(value)
