"""Options of sampler processes: one type for those of a rank and those of a graph server."""

from __future__ import annotations

from dataclasses import fields

import pytest

from glt_lightning.base import ClusterOptions, OptionError, SamplingOptions, ServingOptions
from glt_lightning.base.workers import WorkerOptions


def test_both_groups_have_the_same_fields():
    shared = {each.name for each in fields(WorkerOptions)}
    assert shared == {"num_workers", "concurrency", "worker_devices", "prefetch", "channel_size"}
    for kind in (SamplingOptions, ServingOptions):
        assert issubclass(kind, WorkerOptions)
        assert shared <= {each.name for each in fields(kind)}


@pytest.mark.parametrize("kind", [SamplingOptions, ServingOptions])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("concurrency", 0),
        ("prefetch", 0),
        ("prefetch", True),
        ("worker_devices", ["gpu"]),
        ("channel_size", "much"),
    ],
)
def test_a_wrong_value_is_named_with_its_group(kind, name, value):
    with pytest.raises(OptionError, match=rf"\.{name}: expected .* got "):
        kind(**{name: value})


def test_where_the_groups_differ():
    assert SamplingOptions(num_workers=0, channel_size=None).channel_bytes is None
    with pytest.raises(OptionError, match=r"sampling\.num_workers: expected an integer >= 1, got 0"):
        ServingOptions(num_workers=0)


def test_a_server_samples_as_its_configuration_says():
    cluster = ClusterOptions(servers=["a:1"], prefetch=9)
    assert cluster.serving(SamplingOptions()) == ServingOptions(servers=["a:1"], prefetch=9, num_workers=2)
    given = SamplingOptions(num_workers=3, concurrency=5, worker_devices=["cuda:1"], channel_size="1MB")
    found = cluster.serving(given)
    assert (found.num_workers, found.concurrency, found.worker_devices, found.channel_bytes) == (
        3,
        5,
        ["cuda:1"],
        1_000_000,
    )
    assert cluster.serving(SamplingOptions(channel_size=None)).channel_size == "auto"
