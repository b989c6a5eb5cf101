"""How far apart rows lie in memory of the host that a GPU reads over the bus.

A GPU reads the host's memory in lines of 128 bytes, aligned to 128 bytes. Each array begins at a page boundary. Without
padding, a row of b bytes begins at any multiple of g = gcd(b, 128) within a line, so it spans 1 + (b - g) / 128 lines
on average. Rows of attributes are padded to a multiple of 128 bytes or, below that, to a power of two, so that each
spans the least number of lines, if the memory grows by at most a third and the number of lines read falls by at least a
tenth, or by at least the share by which the memory grows:

Bytes of a row, an example, lines without and with padding, memory with padding, bytes from row to row:

* 64: 16 float32; 1.00; 1; + 0 %; 64
* 100: 25 float32; 1.75; 1; + 28 %; **128**
* 128: 32 float32; 1.00; 1; + 0 %; 128
* 200: 100 float16; 2.50; 2; + 28 %; **256**
* 256: 64 float32; 2.00; 2; + 0 %; 256
* 400: 100 float32; 4.00; 4; + 28 %; 400
* 512: 128 float32; 4.00; 4; + 0 %; 512
* 1000: 250 float32; 8.75; 8; + 2.4 %; **1024**

Rows of 400 bytes begin at multiples of 16 and span four lines regardless of where they begin, so padding would lock 28
% more memory without benefit. Instead, the threads that copy a row are aligned to the boundary of a line, so that
threads that read together read within one line (kernels.md). Rows of ``int8`` have 4 bytes of scale: 100 numbers are
104 bytes, which become 128.

Only the host's copy is padded. The padding is page-locked too, and counted in the bytes that log lines and errors
report. The rule is arithmetic; its effect has not been measured, since none of this has run on a GPU yet.
"""

from __future__ import annotations

from math import gcd

LINE = 128  # bytes: a GPU asks the bus for (sectors of) one line at a time, and lines begin at multiples of it


def bus_stride(row_bytes: int) -> int:
    """Bytes from the first of a row to the first of the next: ``row_bytes``, or more where padding pays.

    It pays where the lines that are read fall by a tenth, or by as large a share as the memory grows, and that grows by at most
    a third: it is page-locked, once per host. The module has a table.
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
