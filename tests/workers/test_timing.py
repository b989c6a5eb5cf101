"""What a connection costs, as it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glt_lightning.graph import LocalPartition
from glt_lightning.loader import TrafficOptions, TrafficPrediction
from glt_lightning.workers import time_calls
from glt_lightning.workers.cluster import timing
from tests.helpers.partitions import partitioned, small_graph, small_hetero

NAMES = {"round_trip_s", "call_cpu_s", "byte_cpu_s", "arrival_cpu_s"}


@pytest.mark.parametrize("encrypted", [False, True])
def test_calls_are_timed_over_a_fast_and_a_slow_connection(encrypted: bool) -> None:
    found = time_calls(encrypted=encrypted)
    assert set(found) == NAMES
    assert min(found["round_trip_s"], found["call_cpu_s"]) > 0
    assert min(found.values()) >= 0


@pytest.mark.parametrize(("make", "parts"), [(small_graph, 1), (small_hetero, 3)])
def test_batches_ask_an_owner_for_half_of_the_parts(
    make: Any, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and bytes are those of real questions: of two kinds of batches, of few seeds and of many."""
    partition, seen, ask = partitioned(make(), tmp_path, parts), [], timing._ask

    def asked(*args: Any) -> Any:
        seen.append(ask(*args))
        return seen[-1]

    monkeypatch.setattr(timing, "_ask", asked)
    found = TrafficPrediction(partition, TrafficOptions(num_neighbors=[4, 3], batch_size=64)).time_calls(encrypted=True)
    assert set(found) == NAMES
    assert min(found.values()) >= 0
    (few, few_bytes, _), (many, many_bytes, _) = seen
    assert 3 <= few <= many  # two hops and the rows
    assert 0 < few_bytes < many_bytes


def test_the_cost_of_a_call_and_of_a_byte_follow_from_two_kinds_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    assert isinstance(partition, LocalPartition)

    def solved(*kinds: tuple[float, float, float]) -> tuple[float, float]:
        left = iter(kinds)
        monkeypatch.setattr(timing, "_ask", lambda *_: next(left))
        found = TrafficPrediction(partition, TrafficOptions(num_neighbors=[2])).time_calls(encrypted=False)
        return found["call_cpu_s"], found["byte_cpu_s"]

    assert solved((2, 100, 2 * 5 + 100 * 3), (4, 1000, 4 * 5 + 1000 * 3)) == (5, 3)
    assert solved((2, 100, 8), (2, 100, 8)) == (4, 0)  # one kind says nothing about bytes
    assert solved((2, 100, 50), (2, 1000, 20)) == (10, 0)
    assert solved((2, 100, -10), (2, 1000, 890)) == (0, 1)
