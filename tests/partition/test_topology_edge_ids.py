"""Working files keep no edge ids, so that theirs may pass 32 bits without wider records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.partition.build import edges as edges_module
from tests.helpers.partition_truth import single
from tests.partition.test_topology import topology_of

NODES = 50


def rows(folder: Path) -> list[list[int]]:
    source = single(np.random.default_rng(6).integers(0, NODES, (800, 2)), NODES)
    with topology_of(source, False, folder) as topology:
        pieces = [(p.indptr, p.neighbors.copy()) for p in topology.neighbors()]
    return [n[a:b].tolist() for ptr, n in pieces for a, b in pairwise(ptr)]


def test_ids_that_wrap_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(tmp_path / "a")
    directed = edges_module._directed

    def late(*args: Any) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        yield from ((src, dst, first + 2**32 - 400) for src, dst, first in directed(*args))

    monkeypatch.setattr(edges_module, "_directed", late)
    assert rows(tmp_path / "b") == expected
    assert all(row == sorted(set(row)) for row in expected)
