"""Random parts: seeded, balanced, the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import NODE, PartitionOptions, Progress
from glt_lightning.partition.assign.assigners import random_parts
from glt_lightning.partition.build.rows import NodeLayout
from glt_lightning.partition.build.steps import number_nodes
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.tasks.exchange import save_array
from glt_lightning.partition.tasks.job import Job
from glt_lightning.partition.tasks.run import Tasks
from tests.helpers.partition_truth import single

FIRST_OF_SEED_3 = [6, 0, 1, 1, 4, 5, 3, 0, 4, 6, 4, 6]  # of 5000 nodes in 7 parts


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 3, 10, 1001])
@pytest.mark.parametrize("num_parts", [1, 2, 5, 70])
def test_balanced_to_one(num_nodes: int, num_parts: int) -> None:
    sizes = np.bincount(random_parts(num_nodes, num_parts, 0, "node"), minlength=num_parts)
    assert len(sizes) == num_parts
    assert sizes.sum() == num_nodes
    assert sizes.max() - sizes.min() <= 1


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are those of the ranks of all hashes."""
    whole = random_parts(5000, 7, 3, "node")
    assert whole[:12].tolist() == FIRST_OF_SEED_3
    monkeypatch.setattr("glt_lightning.partition.assign.assigners._NODES", 999)
    assert np.array_equal(random_parts(5000, 7, 3, "node"), whole)


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


def numbered(
    folder: Path,
    parts: Any,
    hotness: Any,
    degree: Any,
    num_parts: int,
    *,
    memory_bytes: int = 1 << 30,
    wide: bool = False,
) -> NodeLayout:
    source, options = single([], len(parts)), PartitionOptions(num_parts=num_parts)
    graph = StoredGraph(source, options, {}, {"undirected": False, "normalize": "none"}, Progress(False))
    job = Job(graph, folder, memory_bytes, wide)
    tasks = Tasks(job, "", None)
    save_array(job.parts_file(NODE), np.array(parts, np.int32))
    save_array(job.hotness_file(), np.array(hotness, np.float32)[None])
    for end in ("out", "into"):
        save_array(job.degree_file(0, end), np.array(degree))
    number_nodes(tasks, NODE, lambda count: None)
    assert sorted(p.name for p in job.numbers_folder(NODE).iterdir()) == ["bounds.npy", "new.npy", "user_ids.npy"]
    return job.layout(NODE)


def test_numbering(tmp_path: Path) -> None:
    layout = numbered(tmp_path, [1, 0, 1, 0, 1], [2, 9, 5, 9, 5], [0, 1, 6, 1, 7], 3)
    assert layout.bounds == (0, 2, 5, 5)
    assert layout.user_ids.tolist() == [1, 3, 4, 2, 0]
    assert layout.new.tolist() == [4, 0, 3, 1, 2]
    assert layout.new.dtype == layout.user_ids.dtype == np.int32


@pytest.mark.parametrize("wide", [False, True])
def test_numbering_in_little_memory(tmp_path: Path, wide: bool) -> None:
    """Several ranges of user ids, of parts and of new numbers; some parts are empty, one is larger than the memory."""
    rng = np.random.default_rng(0)
    parts = rng.choice([0, 1, 3, 4, 8], 2000, p=[0.5, 0.1, 0.1, 0.2, 0.1])
    hotness, degree = rng.integers(0, 4, 2000).astype(np.float32), rng.integers(0, 3, 2000)
    layout = numbered(tmp_path, parts, hotness, degree, 10, memory_bytes=300 * 256, wide=wide)
    order = np.lexsort((np.arange(2000), -degree, -hotness, parts))
    assert layout.user_ids.tolist() == order.tolist()
    assert layout.new.tolist() == np.argsort(order).tolist()
    assert layout.bounds == (0, *np.cumsum(np.bincount(parts, minlength=10)).tolist())
    assert layout.new.dtype == (np.int64 if wide else np.int32)


def test_numbering_of_very_many_parts(tmp_path: Path) -> None:
    parts = np.arange(40_000)[::-1]
    layout = numbered(tmp_path, parts, np.zeros(40_000), np.zeros(40_000, np.int64), 40_000)
    assert layout.user_ids.tolist() == parts.tolist()
