"""Probabilities of all parts need not fit in memory: they are worked out some at a time, and lie in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionOptions
from glt_lightning.partition import partition_graph
from tests.helpers.partition_truth import single

NODES, PARTS = 30_000, 5
LITTLE = 1 << 20  # room for the results of 2 parts and the work on none


@pytest.mark.diagonal
@pytest.mark.parametrize("algorithm", ["frequency", "random"])
@pytest.mark.parametrize("hotness", ["vip", "presample"])
def test_same_partition(tmp_path: Path, algorithm: str, hotness: str) -> None:
    rng = np.random.default_rng(5)
    splits = {"train": ("node", rng.permutation(NODES)[:500])}
    source = replace(single(rng.integers(0, NODES, (60_000, 2)).tolist(), NODES), splits=splits)
    options = PartitionOptions(num_parts=PARTS, algorithm=algorithm, hotness=hotness, num_neighbors=[3, 2])
    made = [
        partition_graph(source, tmp_path / str(memory), replace(options, memory_bytes=memory))
        for memory in (LITTLE, 1 << 30)
    ]
    assert made[0] == made[1]
    assert {path.name for path in (tmp_path / str(LITTLE)).iterdir()} == {
        path.name for path in (tmp_path / str(1 << 30)).iterdir()
    }
