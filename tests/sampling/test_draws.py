"""Keyed draws over arrays give what plain integers give, and any n gets all its numbers alike."""

import hashlib

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.kernels import keyed
from glt_lightning.sampling import role_key
from glt_lightning.sampling.draws import draw64
from tests.helpers.negatives import plain_draw, plain_mix, plain_role_key, plain_stream

NUMBERS = [1, 2, 3, 1000, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 1, 111_059_956 * 3, 2**53 + 1, 2**62 - 1, 2**63 - 1]


@pytest.mark.parametrize("n", NUMBERS)
def test_draws_are_those_of_plain_integers(n):
    key = role_key(0xDEAD_BEEF_0123_4567, "negative")
    assert key == plain_role_key(0xDEAD_BEEF_0123_4567, "negative")
    numbers = np.array([0, 1, 2, 2**31, 2**40])
    found = keyed(key, numbers)
    assert found.tolist() == [plain_stream(key, i) for i in numbers.tolist()]
    trials = np.arange(64, dtype=np.uint64)
    drawn = draw64(found[:, None], trials, n)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [[plain_draw(s, t, n) for t in range(64)] for s in found.tolist()]


def test_the_definition():
    """As it is written: a change of it changes every run's negatives."""
    name = int.from_bytes(hashlib.blake2b(b"negative", digest_size=8).digest(), "little")
    assert role_key(5, "negative") == plain_mix(5 ^ plain_mix(name))
    assert role_key(5, "negative") != role_key(5, "walk")
    assert plain_mix(1) == 0x5692161D100B05E5


@pytest.mark.parametrize("n", [7, 3 * 2**40])
def test_uniform(n):
    drawn = draw64(keyed(1, np.arange(70_000)), np.uint64(0), n)
    counts = np.bincount(drawn // (n // 7 + (n % 7 > 0)), minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # chi-square with 6 degrees of freedom: 0.001


@pytest.mark.parametrize("n", [0, -1, 2**63])
def test_what_cannot_be_drawn_from(n):
    with pytest.raises(DataError, match="draw64: expected n from 1"):
        draw64(np.zeros(1, np.uint64), np.uint64(0), n)
