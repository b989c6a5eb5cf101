"""The marker ``diagonal``: of a test's matrix of parameters, the cells that `make test` runs.

Cells of a diagonal have each value of each parameter at least once; all others are marked slow. ``diagonal(most=2)``: as many of
it, where a few values prove the same as all.
"""

from __future__ import annotations

from collections import defaultdict

import pytest


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    matrices: dict[object, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("diagonal"):
            matrices[item.parent, item.originalname].append(item)
    for cells in matrices.values():
        ids = [cell.callspec._idlist for cell in cells]  # one of each `parametrize`
        axes = [list(dict.fromkeys(axis)) for axis in zip(*ids, strict=True)]
        diagonal = [[axis[n % len(axis)] for axis in axes] for n in range(max(map(len, axes)))]
        most = next(cells[0].iter_markers("diagonal")).kwargs.get("most", len(diagonal))
        diagonal = [diagonal[n * len(diagonal) // most] for n in range(most)]
        for cell, its_ids in zip(cells, ids, strict=True):
            if list(its_ids) not in diagonal:
                cell.add_marker(pytest.mark.slow)
