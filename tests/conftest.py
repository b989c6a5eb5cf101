"""Fixtures of all tests, and what pytest says of batches that differ."""

from __future__ import annotations

from tests.helpers.contents import explain

pytest_plugins = ("tests.helpers.diagonal", "tests.helpers.emulated", "tests.helpers.leaks")


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    return explain(left, right) if op == "==" else None
