"""Reads the values of a column as numbers, dates or categories, for any type of the column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.partition.sources.tables.files import TablePiece, first_failure, number_advice, number_pattern

_US_OF_DAY = 86400e6


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def numbers(
    rows: TablePiece, column: str, missing: tuple[str, ...], thousands: str | None = None, decimal: str = "."
) -> np.ndarray:
    """Reads numbers, float64 [N], NaN for a missing one.

    thousands, decimal: the characters that group digits and begin the fraction of numbers in text.
    """
    array = rows.column(column)
    if is_text(array.type):
        array = _without(array, missing)
        if (thousands, decimal) != (None, "."):
            array = _in_plain_digits(rows, column, array, thousands, decimal)
        array = _parsed_numbers(rows, column, array)
    elif pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.int8())
    elif not (is_number(array.type) or pa.types.is_decimal(array.type) or pa.types.is_null(array.type)):
        raise rows.error(column, 0, f"{array.type} is not a numeric type; {_other_kinds(column)}.")
    found = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if (bad := np.isinf(found)).any():
        raise rows.error(
            column, int(bad.argmax()), f"{found[bad.argmax()]} cannot be a feature; replace it with a finite number."
        )
    return found


def _parsed_numbers(rows: TablePiece, column: str, array: pa.Array) -> pa.Array:
    for kind in (pa.float64(), pa.bool_()):
        try:
            return pc.cast(pc.cast(array, kind), pa.float64())
        except pa.ArrowException:
            continue
    row = first_failure(array, pa.float64())
    value = array[row].as_py()
    advice = number_advice(column, [value]) or f"if it stands for a missing value, set missing: [{value!r}]"
    raise rows.error(column, row, f"{value!r} is not a number; {_other_kinds(column)}, and {advice}.")


def _in_plain_digits(rows: TablePiece, column: str, array: pa.Array, thousands: str | None, decimal: str) -> pa.Array:
    """Rewrites numbers such as 1.234,5 as 1234.5. Raises `DataError` for any other text, in which a point is ambiguous."""
    good = pc.fill_null(pc.match_substring_regex(array, number_pattern(thousands, decimal)), True)
    if (row := good.index(False).as_py()) >= 0:
        grouped = "" if thousands is None else f"thousands {thousands!r} and "
        raise rows.error(
            column,
            row,
            f"{array[row].as_py()!r} is not a number with {grouped}decimal {decimal!r}; correct the value or these options.",
        )
    if thousands is not None:
        array = pc.replace_substring(array, thousands, "")
    return pc.replace_substring(array, decimal, ".")


def _other_kinds(column: str) -> str:
    return f"if the column holds categories or dates, set encode: {{{column}: category}} or {{{column}: date}}"


def dates(rows: TablePiece, column: str, missing: tuple[str, ...], format: str | None) -> pa.Array:
    """Reads dates, timestamp[us] [N] in UTC, null for a missing one."""
    array = rows.column(column)
    if pa.types.is_null(array.type):
        return pc.cast(array, pa.timestamp("us"))
    if is_text(array.type):
        array = _parsed_dates(rows, column, _without(array, missing), format)
    elif not is_time(array.type):
        raise rows.error(
            column, 0, f"{array.type} is not a date; if the column holds numbers, set encode: {{{column}: number}}."
        )
    kind = pa.timestamp("us", array.type.tz) if pa.types.is_timestamp(array.type) else pa.timestamp("us")
    return pc.cast(pc.cast(pc.cast(array, kind, safe=False), pa.int64()), pa.timestamp("us"))


def _parsed_dates(rows: TablePiece, column: str, array: pa.Array, format: str | None) -> pa.Array:
    if format is not None:
        found = pc.strptime(array, format, "us", error_is_null=True)
        if (bad := pc.and_(pc.is_null(found), pc.is_valid(array)).to_numpy(zero_copy_only=False)).any():
            row = int(bad.argmax())
            raise rows.error(
                column, row, f"{array[row].as_py()!r} does not match the date format {format!r}; correct one of them."
            )
        return found
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return pc.cast(array, kind)
        except pa.ArrowException:
            continue
    row = first_failure(array, pa.timestamp("us"))
    raise rows.error(
        column,
        row,
        f"{array[row].as_py()!r} is not a date such as 2021-04-30 or 2021-04-30T18:05:00. Give the format of the "
        f"dates: encode: {{{column}: {{as: date, format: '%d/%m/%Y'}}}}; list words for missing dates in missing.",
    )


def days_of(times: pa.Array) -> np.ndarray:
    """Returns float64 [N]: days since 1970, with fractions; NaN where there is none."""
    return pc.cast(pc.cast(times, pa.int64()), pa.float64(), safe=False).to_numpy(zero_copy_only=False) / _US_OF_DAY


def phases(times: pa.Array, part: str) -> np.ndarray:
    """Returns float64 [N]: the phase of each time in its cycle, from 0 to below 1; NaN for a missing one."""
    zero_based = {
        "year": (lambda t: pc.subtract(pc.day_of_year(t), 1), 366),
        "month": (lambda t: pc.subtract(pc.month(t), 1), 12),
        "day": (lambda t: pc.subtract(pc.day(t), 1), 31),
        "weekday": (pc.day_of_week, 7),
        "hour": (pc.hour, 24),
    }
    count, length = zero_based[part]
    return pc.cast(count(times), pa.float64()).to_numpy(zero_copy_only=False) / length


def categories(rows: TablePiece, column: str, missing: tuple[str, ...]) -> pa.Array:
    """Reads categories, large_string [N], null for a missing one. The numbers 7 and 7.0 and the text 7 are one category, and so
    are a true boolean and the texts true, True and TRUE: another reader of the same file may give another type."""
    array = rows.column(column)
    if is_list(array.type) or pa.types.is_nested(array.type):
        raise rows.error(column, 0, f"{array.type} cannot be a category; remove this column from encode.")
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if not is_text(array.type):
        array = pc.cast(array, pa.large_string())
    found = _without(array, missing)
    is_boolean = pc.is_in(found, value_set=pa.array(["True", "TRUE", "False", "FALSE"], pa.large_string()))
    return pc.if_else(is_boolean, pc.utf8_lower(found), found)


def _without(array: pa.Array, missing: tuple[str, ...]) -> pa.Array:
    """Trims text; an empty one, or one that means "no value", becomes null."""
    trimmed = pc.utf8_trim_whitespace(pc.cast(array, pa.large_string()))
    gone = pc.is_in(trimmed, value_set=pa.array(["", *missing], pa.large_string()))
    return pc.if_else(gone, pa.scalar(None, pa.large_string()), trimmed)
