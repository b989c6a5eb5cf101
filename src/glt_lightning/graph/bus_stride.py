"""How far apart rows lie in memory of the host that a GPU reads over the bus."""

from __future__ import annotations

from math import gcd

LINE = 128  # bytes: a GPU asks the bus for (sectors of) one line at a time, and lines begin at multiples of it


def bus_stride(row_bytes: int) -> int:
    """Bytes from the first of a row to the first of the next: ``row_bytes``, or more where padding pays.

    It pays where the lines that are read fall by a tenth, or by as large a share as the memory grows, and that grows by at most
    a third: it is page-locked, once per host. docs/reference/gpu.md has a table.
    """
    # a power of two below a line divides it, so that no row lies in two
    unit = 1 << max(0, min(row_bytes, LINE) - 1).bit_length()
    padded = -(-row_bytes // unit) * unit
    padding, lines = padded - row_bytes, lines_read(row_bytes, row_bytes)
    spared = lines - lines_read(row_bytes, padded)
    pays = 10 * spared >= lines or spared * row_bytes >= padding * lines
    return padded if pays and 3 * padding <= row_bytes else row_bytes


def lines_read(row_bytes: int, stride: int) -> float:
    """How many lines a row lies in, in the mean over many rows ``stride`` bytes apart, the first of which begins a line."""
    if row_bytes == 0:
        return 0
    step = gcd(stride, LINE)  # rows begin at each multiple of this in a line, equally often
    return (LINE - step + -(-row_bytes // step) * step) / LINE
