"""What a connection costs, as it is measured."""

from __future__ import annotations

import pytest

from glt_lightning.workers import time_calls


@pytest.mark.parametrize("encrypted", [False, True])
def test_calls_are_timed_over_a_fast_and_a_slow_connection(encrypted: bool) -> None:
    found = time_calls(encrypted=encrypted)
    assert set(found) == {"round_trip_s", "call_cpu_s", "byte_cpu_s", "arrival_cpu_s"}
    assert min(found["round_trip_s"], found["call_cpu_s"]) > 0
    assert min(found.values()) >= 0
