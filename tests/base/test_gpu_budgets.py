"""Budgets of GPUs that sample."""

from __future__ import annotations

import pytest

from glt_lightning.base import CacheOptions, GpuBudgets, OptionError, SamplingOptions


def test_budgets_are_those_of_sampling(recwarn):
    assert GpuBudgets.of(SamplingOptions(), CacheOptions()) == GpuBudgets()
    given = SamplingOptions(topology_bytes="1KB", feature_bytes=70)
    assert GpuBudgets.of(given, CacheOptions()) == GpuBudgets(topology=1000, features=70)
    assert not recwarn.list


def test_the_budget_of_the_cache_is_read_with_advice():
    cache = CacheOptions(device="2KB")
    with pytest.warns(
        FutureWarning, match=r"cache\.device: a GPU samples, and its budget is now called sampling\.feature_bytes\."
    ):
        assert GpuBudgets.of(SamplingOptions(), cache) == GpuBudgets(features=2000)
    with pytest.raises(
        OptionError, match=r"cache\.device \('2KB'\) and sampling\.feature_bytes \(5\) are both given.* Remove"
    ):
        GpuBudgets.of(SamplingOptions(feature_bytes=5), cache)


def test_advice_is_for_the_first_rank(monkeypatch, recwarn):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert GpuBudgets.of(SamplingOptions(), CacheOptions(device="2KB")).features == 2000
    assert not recwarn.list


@pytest.mark.parametrize("name", ["topology_bytes", "feature_bytes"])
def test_what_is_no_size(name):
    with pytest.raises(OptionError, match=rf"sampling\.{name}: expected bytes .* got 'all'"):
        SamplingOptions(**{name: "all"})
