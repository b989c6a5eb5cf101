"""Fits the columns of a table in one pass. Only sums, and the categories of columns, are held in memory. Sums are of the batches
in which a file is read, and added up in the order of the rows, so that they are the same however tasks divide it."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError
from glt_lightning.partition.arrays import write_at
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
from glt_lightning.partition.tasks.exchange import unfinished

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


class Fits:
    """The fits of the columns of a table. Tasks `read` ranges of it; what they found is added in the order of the rows."""

    def __init__(self, table: TableFiles, fitting: Fitting, kinds: Mapping[str, str]) -> None:
        self._table, self._fitting, self.kinds = table, fitting, dict(kinds)
        self._fits = {
            name: _fit_of(self.kinds[name], name, how, fitting.missing) for name, how in fitting.columns.items()
        }

    @classmethod
    def begun(cls, table: TableFiles, fitting: Fitting) -> Fits:
        """Chooses how columns are fitted whose encoding is auto, by the types of their values."""
        auto = [name for name, how in fitting.columns.items() if how.kind == AUTO]
        found = table.types(auto, MISSING if fitting.missing is None else fitting.missing)
        kinds = {name: _kind_of(table, name, how, found.get(name)) for name, how in fitting.columns.items()}
        return cls(table, fitting, kinds)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types as which columns are read."""
        found = {name: self._fitting.types[name] for name in self._fits}
        if (split := self._fitting.split) is not None:  # words: in a text file there is no type to find
            found |= {split: pa.large_string()} if self._table.is_text else self._table.types([split])
        return found

    def read(self, pieces: Iterable[TablePiece], folder: Path) -> dict[str, list[Any]]:
        """Returns the findings about each column, as JSON. Raises `DataError` for values that are not of their column's kind.

        folder: for values of which there are too many for JSON.
        """
        found: dict[str, list[Any]] = {name: [] for name in self._fits}
        with ExitStack() as stack:
            files = [stack.enter_context(SortedBlocks(folder / str(index))) for index in range(len(self._fits))]
            for piece in pieces:
                split = self._fitting.split
                counted = None if split is None else split_codes(piece, split) == _TRAIN
                for (name, fit), blocks in zip(self._fits.items(), files, strict=True):
                    fit.read(piece, counted, found[name], blocks)
        return found

    def add(self, found: Mapping[str, Sequence[Any]], folder: Path) -> None:
        """Adds what `read` found in the next rows. folder: as there."""
        for index, (name, fit) in enumerate(self._fits.items()):
            blocks = SortedBlocks(folder / str(index))
            for each in found[name]:
                fit.add(self._table, each, blocks)

    def finish(self) -> dict[str, Encoder]:
        return {name: fit.finish(self._table) for name, fit in self._fits.items()}


class _Fit(Protocol):
    def read(self, piece: TablePiece, counted: np.ndarray | None, found: list[Any], blocks: SortedBlocks) -> None:
        """Appends findings about the rows of a piece. counted: bool [N], True for rows that count for statistics; None: all
        do."""
        ...

    def add(self, table: TableFiles, found: Any, blocks: SortedBlocks) -> None:
        """Adds one of the findings of `read`."""
        ...

    def finish(self, table: TableFiles) -> Encoder: ...


def _kind_of(table: TableFiles, name: str, how: ColumnEncoding, kind: pa.DataType | None) -> str:
    """Returns how a column is fitted: plain, number, date or category. kind: type of the values, for a column whose encoding is
    auto."""
    if kind is None:
        return how.kind if how.kind in ("number", "date") else "category"
    if is_list(kind):
        return "plain"
    chosen = "number" if is_number(kind) or pa.types.is_decimal(kind) else "date" if is_time(kind) else "category"
    if chosen == "category" and not (is_text(kind) or pa.types.is_null(kind)):
        raise DataError(f"{table.paths[0]}: column {name!r} is {kind}, which encode: auto cannot take; leave it out.")
    return chosen


def _fit_of(kind: str, name: str, how: ColumnEncoding, missing: tuple[str, ...] | None) -> _Fit:
    if kind == "plain":
        return _PlainFit(name)
    if kind == "category":
        return _CategoryFit(name, how, missing or ())
    return (_NumberFit if kind == "number" else _DateFit)(name, how, MISSING if missing is None else missing)


class _PlainFit:
    """The fit of a column of lists, which needs no statistics."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, piece: TablePiece, counted: np.ndarray | None, found: list[Any], blocks: SortedBlocks) -> None:
        pass

    def add(self, table: TableFiles, found: Any, blocks: SortedBlocks) -> None:
        pass

    def finish(self, table: TableFiles) -> Encoder:
        return PlainEncoder(column=self._name)


class _NumberFit:
    """The fit of a column of numbers: count, mean, sum of squared deviations, least and greatest value of the rows that count;
    for a median, files of all values."""

    def __init__(self, name: str, how: ColumnEncoding, missing: tuple[str, ...]) -> None:
        self._name, self._how, self._missing = name, how, missing
        self._gaps = False
        self._count, self._mean, self._square = 0, 0.0, 0.0
        self._least, self._most = np.inf, -np.inf
        self._held: list[np.ndarray] = []  # maps of sorted blocks

    def _values(self, piece: TablePiece) -> np.ndarray:
        return numbers(piece, self._name, self._missing, self._how.thousands, self._how.decimal)

    def read(self, piece: TablePiece, counted: np.ndarray | None, found: list[Any], blocks: SortedBlocks) -> None:
        values = self._values(piece)
        gaps = np.isnan(values)
        values = values[~gaps if counted is None else ~gaps & counted]
        sums: list[Any] = [bool(gaps.any()), len(values)]
        if len(values):
            with np.errstate(over="ignore"):
                sums += map(float, (values.mean(), values.var(), values.min(), values.max()))
            if self._how.fill == "median":
                blocks.write(values)
        found.append(sums)

    def add(self, table: TableFiles, found: Any, blocks: SortedBlocks) -> None:
        gaps, count, *sums = found
        self._gaps = self._gaps or gaps
        if not count:
            return
        mean, variance, least, most = sums
        total = self._count + count  # merged as in `build.normalize`
        delta = mean - self._mean
        with np.errstate(over="ignore"):
            self._square += variance * count + delta * delta * (self._count * count / total)
        self._mean += delta * (count / total)
        self._count = total
        if self._how.fill == "median":
            self._held.append(blocks.next(count))
        self._least, self._most = min(self._least, least), max(self._most, most)

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
            return median_of(self._held)
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

    def read(self, piece: TablePiece, counted: np.ndarray | None, found: list[Any], blocks: SortedBlocks) -> None:
        values = categories(piece, self._name, self._missing)
        counts = pc.value_counts(values.drop_null())
        times = dict(zip(*(counts.field(each).to_pylist() for each in ("values", "counts")), strict=True))
        if not found:
            found.append([0, {}])
        found[0][0] += values.null_count
        for value, count in times.items():
            found[0][1][value] = found[0][1].get(value, 0) + count
        self._require_few(piece.table, found[0][1])

    def add(self, table: TableFiles, found: Any, blocks: SortedBlocks) -> None:
        gaps, counts = found
        self._gaps += gaps
        self._found.update(counts)
        self._require_few(table, self._found)

    def _require_few(self, table: TableFiles, found: Mapping[str, int]) -> None:
        if len(found) > _MOST_CATEGORIES:
            raise DataError(
                f"{table.paths[0]}: column {self._name!r} (dataset: {table.what}) has more than {_MOST_CATEGORIES:,} different "
                "values: an id or free text rather than a category. Leave it out of features."
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


class SortedBlocks:
    """A file of float64 values that are sorted block by block: one task writes it, in a ``with`` block, and the first process
    reads the blocks in the same order. Without blocks there is no file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self._fd: int | None = None

    @cached_property
    def _values(self) -> np.ndarray:
        return np.memmap(self._path, np.float64, "r")

    def write(self, values: np.ndarray) -> None:
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(unfinished(self._path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        block = np.sort(values.astype(np.float64))
        write_at(self._fd, memoryview(block.view(np.uint8)), 8 * self._at, self._path.parent)
        self._at += len(block)

    def next(self, count: int) -> np.ndarray:
        """Returns the next block, a map of the file."""
        self._at += count
        return self._values[self._at - count : self._at]

    def __enter__(self) -> SortedBlocks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            if kind is None:
                os.replace(unfinished(self._path), self._path)


def median_of(blocks: Sequence[np.ndarray]) -> float:
    """Returns the median of the values of all blocks, float64, each ascending. Reads some values of each."""
    lower = (sum(map(len, blocks)) - 1) // 2
    low, high = (_ordered(np.array(each)) for each in (min(b[0] for b in blocks), max(b[-1] for b in blocks)))
    while low < high:  # by the bits of a number
        middle = (low + high) >> 1
        value = _value(middle)
        if sum(int(np.searchsorted(b, value, "right")) for b in blocks) > lower:
            high = middle
        else:
            low = middle + 1
    value = _value(low) + 0.0  # 0, if it is -0
    ends = [int(np.searchsorted(b, value, "right")) for b in blocks]
    upper = value
    if sum(map(len, blocks)) % 2 == 0 and sum(ends) == lower + 1:
        upper = min(float(b[end]) for b, end in zip(blocks, ends, strict=True) if end < len(b))
    return float(np.mean([value, upper])) if upper != value else value


def _ordered(value: np.ndarray) -> int:
    """Returns the bits of a float64 as a number of the same order."""
    bits = int(value.view(np.int64))
    return bits if bits >= 0 else bits ^ (2**63 - 1)


def _value(ordered: int) -> float:
    bits = ordered if ordered >= 0 else ordered ^ (2**63 - 1)
    return float(np.array(bits, np.int64).view(np.float64))
