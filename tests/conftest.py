"""Fixtures of all tests, and what pytest says of batches that differ."""

from __future__ import annotations

import gc
import sys

import pytest

from tests.helpers.contents import explain

pytest_plugins = ("tests.helpers.diagonal", "tests.helpers.emulated", "tests.helpers.leaks")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leaves modules and tests, which stay to the end, out of collections of garbage: each would look through them for 0.4 s, and
    Lightning collects after most runs of a Trainer."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _partitions_made_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    if (module := sys.modules.get("tests.helpers.partitions")) is not None:  # else no test of this run uses it
        module.keep_in(tmp_path_factory.mktemp("partitions"))


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    return explain(left, right) if op == "==" else None
