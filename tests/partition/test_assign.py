"""Random parts: seeded, balanced, the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.partition.assign.assigners import random_parts
from glt_lightning.partition.build.layout import number_nodes


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 3, 10, 1001])
@pytest.mark.parametrize("num_parts", [1, 2, 5, 70])
def test_balanced_to_one(num_nodes: int, num_parts: int) -> None:
    sizes = np.bincount(random_parts(num_nodes, num_parts, 0, "node"), minlength=num_parts)
    assert len(sizes) == num_parts
    assert sizes.sum() == num_nodes
    assert sizes.max() - sizes.min() <= 1


def test_a_function_of_seed_and_type() -> None:
    parts = random_parts(1000, 4, 0, "node")
    np.testing.assert_array_equal(parts, random_parts(1000, 4, 0, "node"))
    assert parts[:12].tolist() == [1, 2, 2, 0, 3, 1, 1, 3, 2, 2, 0, 1]  # on every machine, with every numpy
    for other in (random_parts(1000, 4, 1, "node"), random_parts(1000, 4, 0, "paper")):
        assert 0.65 < (parts != other).mean() < 0.85  # three in four by chance


def test_no_pattern_in_the_ids() -> None:
    parts = random_parts(40_000, 4, 0, "node")
    for step in (1, 2, 4, 1024):
        same = (parts[:-step] == parts[step:]).mean()
        assert abs(same - 0.25) < 0.02
    halves = np.bincount(parts[:20_000], minlength=4)
    assert abs(halves - 5000).max() < 300


def test_numbering() -> None:
    layout = number_nodes(
        np.array([1, 0, 1, 0, 1]), np.array([2, 9, 5, 9, 5]), np.array([0, 1, 6, 1, 7]), 3, np.dtype(np.int32)
    )
    assert layout.bounds == (0, 2, 5, 5)
    assert layout.user_ids.tolist() == [1, 3, 4, 2, 0]
    assert layout.new.tolist() == [4, 0, 3, 1, 2]
    assert layout.new.dtype == layout.user_ids.dtype == np.int32


def test_numbering_of_very_many_parts() -> None:
    parts = np.arange(40_000)[::-1]
    layout = number_nodes(parts, np.zeros(40_000), np.zeros(40_000, np.int64), 40_000, np.dtype(np.int64))
    assert layout.user_ids.tolist() == parts.tolist()
