"""How many batches may be in flight: bytes, ranks, and other loaders of the rank."""

from __future__ import annotations

import pytest

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.workers import with_channel_bytes
from glt_lightning.workers.producer.base import InFlight, memory_for_batches


@pytest.mark.parametrize(
    ("most", "budget", "largest", "others", "expected"),
    [
        (8, 1000, 0, 0, 2),  # no size is known yet
        (1, 1000, 0, 0, 1),
        (8, None, 0, 0, 8),
        (8, None, 10**12, 0, 8),
        (8, 1000, 100, 0, 8),
        (8, 1000, 200, 0, 5),
        (8, 1000, 200, 500, 2),
        (8, 1000, 10**6, 0, 2),
        (1, 1000, 10**6, 0, 1),
    ],
)
def test_how_many(most, budget, largest, others, expected):
    assert InFlight(most, "", budget).allowed(largest, others) == expected


def test_auto_is_a_share_of_what_the_host_has_available(monkeypatch):
    monkeypatch.setattr("glt_lightning.workers.producer.base.available_memory", lambda: 8000)
    assert [memory_for_batches(n) for n in (1, 2, 5000)] == [1000, 500, 1]
    assert with_channel_bytes(SamplingOptions(), 2).channel_bytes == 500
    for given in (None, 70):
        assert with_channel_bytes(SamplingOptions(channel_size=given), 2).channel_bytes == given
    assert InFlight.of(SamplingOptions(), 8, "").allowed(300) == 3


def test_what_is_no_size():
    with pytest.raises(OptionError, match=r"sampling.channel_size: expected bytes .* got 'all'"):
        SamplingOptions(channel_size="all")
