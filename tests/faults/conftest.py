"""Shows the matrix at the end."""

from __future__ import annotations

import pytest

from tests.faults.table import Matrix

_matrix = pytest.StashKey[Matrix]()


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix:
    """Where cells write their rows."""
    return pytestconfig.stash.setdefault(_matrix, Matrix())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_matrix, None)
    if found is not None and (found.rows or found.skipped):
        terminalreporter.section("fault matrix")
        for line in found.lines():
            terminalreporter.write_line(line)
