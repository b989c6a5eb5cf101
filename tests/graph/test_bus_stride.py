"""Where rows begin that a GPU reads over the bus."""

from statistics import fmean

from glt_lightning.graph.device_choice import bus_stride, lines_read


def counted(row_bytes: int, stride: int) -> float:
    """Lines of each of 128 rows, after which the beginnings repeat."""
    return fmean(1 + (first + row_bytes - 1) // 128 - first // 128 for first in range(0, 128 * stride, stride))


def test_rows_are_padded_where_it_pays():
    in_the_docs = {64: 64, 100: 128, 128: 128, 200: 256, 256: 256, 400: 400, 512: 512, 1000: 1024}
    others = {
        0: 0,
        1: 1,
        3: 3,
        8: 8,
        12: 12,
        20: 20,
        24: 32,
        48: 64,
        95: 95,
        96: 128,
        104: 128,
        132: 132,
        300: 300,
        600: 640,
        1200: 1200,
        2408: 2432,
    }
    for row_bytes, stride in (in_the_docs | others).items():
        assert bus_stride(row_bytes) == stride, row_bytes


def test_what_is_paid_and_what_is_got():
    for row_bytes in [*range(1, 150), 200, 400, 500, 1000, 1030]:
        stride = bus_stride(row_bytes)
        lines, padded = counted(row_bytes, row_bytes), counted(row_bytes, stride)
        assert (lines_read(row_bytes, row_bytes), lines_read(row_bytes, stride)) == (lines, padded)
        if stride != row_bytes:
            assert padded / lines <= max(0.9, 2 - stride / row_bytes)
            assert padded == -(-row_bytes // 128)  # as few as there can be
            assert stride <= 4 / 3 * row_bytes
