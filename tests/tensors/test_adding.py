"""Adding to rows gives the bits of `numpy.add.at`, however often a row comes."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.tensors.adding import add_rows


@pytest.mark.parametrize("shape", [(), (5,), (6, 3), (64,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("rows", [1, 7, 500])
def test_bits_of_numpy(shape: tuple[int, ...], dtype: type, rows: int) -> None:
    rng = np.random.default_rng(rows)
    for count in (0, 1, 200):
        own, values = ((100 * rng.standard_normal((n, *shape))).astype(dtype) for n in (rows, count))
        at, expected = rng.integers(0, rows, count), own.copy()
        np.add.at(expected, at, values)
        add_rows(own, at, values)
        assert own.tobytes() == expected.tobytes()


def test_special_numbers() -> None:
    special = np.tile(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38], np.float32), 3)
    own, values = (np.ascontiguousarray(each) for each in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = own + values
    add_rows(own, np.arange(len(own)), values)
    assert np.array_equal(own, expected, equal_nan=True)
    assert np.array_equal(np.signbit(own)[~np.isnan(own)], np.signbit(expected)[~np.isnan(own)])
