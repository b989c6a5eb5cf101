"""Fits the columns of a table in one pass. Only sums, and the categories of columns, are held in memory. Sums are of the batches
in which a file is read, and added up in the order of the rows, so that they are the same however tasks divide it."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError, counted
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
from glt_lightning.partition.tasks.exchange import Runs, RunWriter, finished_runs, load_runs

_log = logging.getLogger(__name__)

_MOST_CATEGORIES = 1 << 20  # different values of a column that are held: some 100 MB
_TRAIN = SPLITS.index("train")


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The columns to fit, and the rows that count.

    Attributes:
        columns: Each column and its encoding.
        types: The types as which they and ``split`` are read.
        missing: The user's words for "no value", if any.
        split: Column of the splits if only training rows count for means, deviations and fills.
        kinds: How each column is fitted: plain, number, date or category; empty until `Fits.begun`.
    """

    columns: Mapping[str, ColumnEncoding]
    types: Mapping[str, pa.DataType]
    missing: tuple[str, ...] | None
    split: str | None
    kinds: Mapping[str, str] = field(default_factory=dict)


class Fits:
    """The fits of the columns of a table. Tasks `read` ranges of it; what they found is added in the order of the rows."""

    def __init__(self, table: TableFiles, fitting: Fitting) -> None:
        self.fitting, self._table = fitting, table
        self._fits: dict[str, _NumberFit | _CategoryFit] = {
            name: _FITS[kind](table, name, fitting.columns[name], fitting.missing)
            for name, kind in fitting.kinds.items()
            if kind in _FITS  # a list is unchanged
        }

    @classmethod
    def begun(cls, table: TableFiles, fitting: Fitting) -> Fits:
        """Chooses how columns are fitted whose encoding is auto, by the types of their values."""
        auto = [name for name, how in fitting.columns.items() if how.kind == AUTO]
        found = table.types(auto, MISSING if fitting.missing is None else fitting.missing)
        kinds = {name: _kind_of(table, name, how, found.get(name)) for name, how in fitting.columns.items()}
        return cls(table, replace(fitting, kinds=kinds))

    def read(self, pieces: Iterable[TablePiece], folder: Path) -> dict[str, list[Any]]:
        """Returns the findings about each column, as JSON. Raises `DataError` for values that are not of their column's kind.

        folder: for values of which there are too many for JSON.
        """
        found: dict[str, list[Any]] = {name: [] for name in self._fits}
        split, files = self.fitting.split, self._files_of_medians(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            blocks = {fit: stack.enter_context(finished_runs(path, 8, 1)) for fit, path in files.items()}
            for piece in pieces:
                counted = None if split is None else split_codes(piece, split) == _TRAIN
                for name, fit in self._fits.items():
                    fit.read(piece, counted, found[name], blocks.get(fit))
        return found

    def add(self, found: Mapping[str, Sequence[Any]], folder: Path) -> None:
        """Adds what `read` found in the next rows. folder: as there."""
        for name, fit in self._fits.items():
            for each in found[name]:
                fit.add(each)
        for fit, path in self._files_of_medians(folder).items():
            fit.add_values(load_runs(path))

    def _files_of_medians(self, folder: Path) -> dict[Any, Path]:
        """Returns for each fit that finds a median the file of the values."""
        wanted = [fit for fit in self._fits.values() if isinstance(fit, _NumberFit) and fit.how.fill == "median"]
        return {fit: folder / str(index) for index, fit in enumerate(wanted)}

    def finish(self) -> dict[str, Encoder]:
        if any(isinstance(fit, _NumberFit) and fit.lacks_values for fit in self._fits.values()):
            self._require_training_rows()
        return {name: fit.finish() for name, fit in self._fits.items()}

    def _require_training_rows(self) -> None:
        """Raises `DataError` if rows of train count and there are none. Reads the column again, as this is rare."""
        split, words = self.fitting.split, Counter[str]()
        if split is None:
            return
        for piece in self._table.pieces({split: self.fitting.types[split]}):
            if (split_codes(piece, split) == _TRAIN).any():
                return
            words.update(piece.column(split).fill_null("").to_pylist())
        found = ", ".join(f"{word or 'an empty cell'} ({rows:,})" for word, rows in words.most_common(5))
        raise DataError(
            f"{_place(self._table, split)}: no row of the split is train, from which fills and scales of features are computed; "
            f"its rows say {found or 'nothing'}. Write train where it is meant, or set fit_on: all to compute them from all rows."
        )


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


class _NumberFit:
    """The fit of a column of numbers: count, mean, sum of squared deviations, least and greatest value of the rows that count;
    for a median, files of all values."""

    def __init__(self, table: TableFiles, name: str, how: ColumnEncoding, missing: tuple[str, ...] | None) -> None:
        self._table, self._name, self.how = table, name, how
        self._missing = MISSING if missing is None else missing
        self._gaps = False
        self._count, self._mean, self._square = 0, 0.0, 0.0
        self._least, self._most = np.inf, -np.inf
        self._held: list[np.ndarray] = []  # maps of sorted values

    def _values(self, piece: TablePiece) -> np.ndarray:
        return numbers(piece, self._name, self._missing, self.how.thousands, self.how.decimal)

    def read(self, piece: TablePiece, counted: np.ndarray | None, found: list[Any], blocks: RunWriter | None) -> None:
        """Appends findings about the rows of a piece, and a block of their values.

        counted: bool [N], True for rows that count for statistics; None: all do.
        """
        values = self._values(piece)
        gaps = np.isnan(values)
        values = values[~gaps if counted is None else ~gaps & counted]
        sums: list[Any] = [bool(gaps.any()), len(values)]
        if len(values):
            with np.errstate(over="ignore"):
                sums += map(float, (values.mean(), values.var(), values.min(), values.max()))
            if blocks is not None:
                blocks.add(np.sort(values.astype(np.float64)), np.array([len(values)]))
        found.append(sums)

    def add(self, found: Any) -> None:
        """Adds one of the findings of `read`."""
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
        self._least, self._most = min(self._least, least), max(self._most, most)

    def add_values(self, runs: Runs) -> None:
        """Adds the blocks that `read` wrote, each ascending."""
        if len(runs.table):
            values = np.memmap(runs.path, np.float64, "r")
            self._held += [values[begin:end] for begin, end in runs.table.tolist()]

    def finish(self) -> Encoder:
        return NumberEncoder(**self._fitted(), thousands=self.how.thousands, decimal=self.how.decimal)

    @property
    def lacks_values(self) -> bool:
        return not self._count and (self.how.scale != "none" or self.how.fill in ("mean", "median"))

    def _fitted(self) -> dict[str, Any]:
        how, place = self.how, _place(self._table, self._name)
        if self.lacks_values:
            raise DataError(
                f"{place} has no value in the rows from which its fill and scale are computed. Remove the column, or set "
                "fit_on: all if only training rows count now."
            )
        fill = self._fill()
        with np.errstate(over="ignore"):  # what overflows is found here
            shift, scale = self._shift_and_scale()
        if how.scale != "none" and not np.isfinite([self._square, shift, scale, self._most - self._least]).all():
            raise DataError(
                f"{place} ranges from {self._least} to {self._most}, which is too wide to scale. Correct the values, or "
                "remove the column."
            )
        shared = {"column": self._name, "missing": self._missing, "indicator": _indicator(how, self._gaps)}
        return shared | {"fill": fill, "shift": shift, "scale": scale}

    def _fill(self) -> float | None:
        how = self.how.fill
        if how == "median":
            return median_of(self._held)
        return self._mean if how == "mean" else None if how == "none" else float(how)

    def _shift_and_scale(self) -> tuple[float, float]:
        if self.how.scale == "none":
            return 0.0, 1.0
        if self.how.scale == "minmax":
            return self._least, 0.0 if self._most == self._least else 1 / (self._most - self._least)
        deviation = (self._square / self._count) ** 0.5
        # A constant column has a deviation of rounding errors, not of 0; it becomes 0.
        constant = deviation <= 1e-9 * max(abs(self._mean), 1e-30)
        return self._mean, 0.0 if constant else 1 / deviation


class _DateFit(_NumberFit):
    def _values(self, piece: TablePiece) -> np.ndarray:
        return days_of(dates(piece, self._name, self._missing, self.how.format))

    def finish(self) -> Encoder:
        return DateEncoder(**self._fitted(), cyclic=self.how.cyclic, format=self.how.format)


def _place(table: TableFiles, column: str) -> str:
    """Returns the beginning of errors about a whole column."""
    return f"{table.paths[0]}: column {column!r} (dataset: {table.what})"


def _indicator(how: ColumnEncoding, gaps: bool) -> bool:
    return gaps if how.indicator == AUTO else bool(how.indicator)


class _CategoryFit:
    """The fit of categories: the frequency of each value, in all rows, since names of categories reveal nothing of labels."""

    def __init__(self, table: TableFiles, name: str, how: ColumnEncoding, missing: tuple[str, ...] | None) -> None:
        self._table, self._name, self._how, self._missing = table, name, how, missing or ()
        self._found: Counter[str] = Counter()
        self._gaps = 0

    def read(self, piece: TablePiece, counted: np.ndarray | None, found: list[Any], blocks: RunWriter | None) -> None:
        """Adds the frequencies in a piece to those found before; all rows count."""
        values = categories(piece, self._name, self._missing)
        counts = pc.value_counts(values.drop_null())
        gaps, known = found.pop() if found else (0, {})
        for value, count in zip(*(counts.field(each).to_pylist() for each in ("values", "counts")), strict=True):
            known[value] = known.get(value, 0) + count
        found.append((gaps + values.null_count, known))
        self._require_few(known)

    def add(self, found: Any) -> None:
        gaps, counts = found
        self._gaps += gaps
        self._found.update(counts)
        self._require_few(self._found)

    def _require_few(self, found: Mapping[str, int]) -> None:
        if len(found) > _MOST_CATEGORIES:
            raise DataError(
                f"{_place(self._table, self._name)} has more than {_MOST_CATEGORIES:,} different values: an id or free text "
                "rather than a category. Leave it out of features."
            )

    def finish(self) -> Encoder:
        how, most = self._how, self._how.max_categories
        known = sorted(self._found)
        advice = self._number_advice(known)
        if how.kind not in ("one_hot", "code") and len(known) > how.max_one_hot and most is None:
            self._require_repeated(advice)
        if advice and how.kind == AUTO:
            place = f"{self._table.paths[0]}: column {self._name!r} is treated as categories:"
            _log.warning("%s %s; if it does hold categories, encode: {%s: category}.", place, advice, self._name)
        if most is not None and len(known) > most:
            known = sorted(sorted(known, key=lambda value: -self._found[value])[:most])
        shared: dict[str, Any] = {"column": self._name, "missing": self._missing, "categories": tuple(known)}
        if how.kind == "one_hot" or (how.kind != "code" and len(known) <= how.max_one_hot):
            return OneHotEncoder(**shared, indicator=_indicator(how, self._gaps > 0))
        return CodeEncoder(**shared)

    def _number_advice(self, known: list[str]) -> str:
        """Says why a column is categories, which have no order for a model, though its values look like numbers: a single word
        among them, the comma of 1,234, or that a Parquet file stores them as text. Empty if they do not."""
        others = self._no_numbers(known)
        if advice := number_advice(self._name, others):
            return f"{others[0]!r} is not a plain number; {advice}"
        if 2 * len(others) >= len(known):
            return ""
        encode = f"encode: {{'*': auto, {self._name}: number}}"
        if not others:
            return f"its values are text that looks like numbers or dates; if it holds numbers, set {encode}"
        words = ", ".join(f"{each!r} ({counted(self._found[each], 'row')})" for each in others[:3])
        missing = f"missing: [{', '.join(map(_yaml_word, others[:3]))}]"
        return (
            f"most of its {len(known):,} different values are numbers or dates, but not {words}. If these stand for missing "
            f"values, set {missing}{'' if self._table.is_text else f' and, of numbers, {encode}'}"
        )

    @staticmethod
    def _no_numbers(known: list[str]) -> list[str]:
        found = pa.array(known, pa.large_string())
        return found.filter(pc.invert(pc.match_substring_regex(found, NUMBER_OR_DATE))).to_pylist()

    def _require_repeated(self, advice: str) -> None:
        """Raises `DataError` for values that differ in most rows: a model would memorise the rows. advice: `_number_advice`."""
        rows, different = self._found.total(), len(self._found)
        if 2 * different > rows:
            codes = f"set encode: {{{self._name}: code}} or {{{self._name}: {{as: category, max_categories: 1000}}}}"
            date = f"; of dates, how they are written: {{{self._name}: {{as: date, format: '%d.%m.%Y'}}}}"
            raise DataError(
                f"{_place(self._table, self._name)} has {different:,} different values in {rows:,} rows, such as "
                f"{min(self._found)!r}: {advice or 'an id or free text rather than a category'}. "
                f"{'An id or free text: leave' if advice else 'Leave'} it out of features, or {codes}{'' if advice else date}."
            )


def _yaml_word(value: str) -> str:
    """Writes a value as an item of a list in YAML, with quotes if a comma in it would make two items of it."""
    return value if re.fullmatch(r"[A-Za-z][\w./-]*", value) else repr(value)


_FITS: dict[str, type[_NumberFit] | type[_CategoryFit]] = {
    "number": _NumberFit,
    "date": _DateFit,
    "category": _CategoryFit,
}


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
