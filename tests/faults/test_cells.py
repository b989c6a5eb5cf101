"""Jobs to which harm is done go on to the very same weights, or end in time, name who is to blame, and leave nothing.

``make faults`` runs all cells, one after the other, and prints the matrix; ``make test-all`` one per fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.faults import cells
from tests.faults.cells import CELLS, Cell
from tests.faults.harm import FAULTS
from tests.faults.places import Graph, World, why_skipped
from tests.faults.run_cell import Found, report, run_calm, run_cell
from tests.faults.table import Matrix, row_texts
from tests.faults.zygote import open_zygote

_LIMIT_S = 400


def _marked(cell: Cell) -> object:
    marks = [pytest.mark.faults, pytest.mark.timeout(_LIMIT_S), *([pytest.mark.slow] if cell.in_test_all else [])]
    return pytest.param(cell, id=cell.name, marks=marks)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_zygote() as zygote:
        yield World(Graph.make(tmp_path_factory.mktemp("graph")), zygote)


@pytest.fixture(scope="session")
def calm(world: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Found]:
    """What undisturbed runs find, with early stop or without."""
    return cache(lambda early: run_calm(world, tmp_path_factory.mktemp("calm"), early=early))


@pytest.mark.parametrize("cell", [_marked(cell) for cell in CELLS])
def test_cell(cell: Cell, world: World, calm: Callable[[bool], Found], matrix: Matrix, tmp_path: Path) -> None:
    reason = why_skipped(cell.mode, cell.fault)
    if reason is not None:
        matrix.skipped.append((cell.name, reason))
        pytest.skip(reason)
    row = run_cell(cell, world, tmp_path, calm(cell.point == cells.EARLY))
    matrix.rows.append(row)
    print(" | ".join(row_texts(row)), flush=True)
    if row.complaints:
        pytest.fail(report(row), pytrace=False)


def test_the_matrix_is_whole() -> None:
    """Each mode has each column; each fault comes in each mode that can have it, and once in ``make test-all``."""
    assert len(set(CELLS)) == len(CELLS)
    columns = set(cells.POINTS)
    assert all({cell.point for cell in CELLS if cell.mode == mode} >= columns for mode in cells.MODES)
    assert {cell.fault for cell in CELLS} == FAULTS.keys()
    assert {cell.fault for cell in CELLS if cell.in_test_all} == FAULTS.keys() - {"none"}
    for fault in FAULTS:
        having = {cell.mode for cell in CELLS if cell.fault == fault}
        needed = {"server": set(cells.WITH_SERVERS), "network": {cells.TLS}}.get(fault.split()[0], set(cells.MODES))
        assert having == needed, fault
