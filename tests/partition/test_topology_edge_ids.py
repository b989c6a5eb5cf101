"""Working files keep no edge ids, so that theirs may pass 32 bits without wider records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, Progress
from glt_lightning.partition import GraphTopology, stored_edge_types
from glt_lightning.partition.build import edges as edges_module
from glt_lightning.partition.build.degrees import count_degrees
from glt_lightning.partition.build.edges import EdgeJob
from tests.helpers.partition_truth import single

NODES = 50


def rows(folder: Path) -> list[list[int]]:
    source = single(np.random.default_rng(6).integers(0, NODES, (800, 2)), NODES)
    edges = {EDGE: source.edges(EDGE)}
    degrees = count_degrees(edges, source.num_nodes, lambda n: None)
    _, stored_types = stored_edge_types(source.schema, False)
    folder.mkdir()
    with GraphTopology(folder, edges, stored_types, source.num_nodes, degrees, 1 << 20, Progress(False)) as topology:
        pieces = [(p.indptr, p.neighbors.copy()) for p in topology.neighbors()]
    return [n[a:b].tolist() for ptr, n in pieces for a, b in pairwise(ptr)]


def test_ids_that_wrap_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(tmp_path / "a")
    directed = edges_module._directed

    def late(job: EdgeJob, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        yield from ((src, dst, first + 2**32 - 400) for src, dst, first in directed(job, size))

    monkeypatch.setattr(edges_module, "_directed", late)
    assert rows(tmp_path / "b") == expected
    assert all(row == sorted(set(row)) for row in expected)
