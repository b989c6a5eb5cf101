"""Budgets of GPUs that sample, and their old names in the cache."""

from __future__ import annotations

import pytest

from glt_lightning.base import CacheOptions, GpuBudgets, OptionError, SamplingOptions


def test_budgets_are_those_of_sampling(recwarn):
    assert GpuBudgets.of(SamplingOptions(), CacheOptions()) == GpuBudgets()
    given = SamplingOptions(topology_bytes="1KB", feature_bytes=70)
    assert GpuBudgets.of(given, CacheOptions()) == GpuBudgets(topology=1000, features=70)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("old", "new", "budget"),
    [("device", "feature_bytes", "features"), ("device_topology", "topology_bytes", "topology")],
)
def test_old_names_are_read_with_advice(old, new, budget):
    cache = CacheOptions(**{old: "2KB"})
    with pytest.warns(
        FutureWarning, match=rf"cache\.{old}: a GPU samples, and its budget is now called sampling\.{new}\."
    ):
        assert GpuBudgets.of(SamplingOptions(), cache) == GpuBudgets(**{budget: 2000})
    with pytest.raises(
        OptionError, match=rf"cache\.{old} \('2KB'\) and sampling\.{new} \(5\) are both given.* Remove cache"
    ):
        GpuBudgets.of(SamplingOptions(**{new: 5}), cache)


@pytest.mark.parametrize("name", ["topology_bytes", "feature_bytes"])
def test_what_is_no_size(name):
    with pytest.raises(OptionError, match=rf"sampling\.{name}: expected bytes .* got 'all'"):
        SamplingOptions(**{name: "all"})
