"""Sums of an epoch, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.lightning.callbacks.monitor import EpochTotals
from glt_lightning.loader import LoaderStats
from glt_lightning.sampling import Counters

MIXED = Counters(
    local_rows=600,
    cached_rows=250,
    remote_rows=150,
    remote_bytes=41_000_000,
    sample_s=1.0,
    remote_s=6.0,
    gather_s=1.0,
)
LOCAL = Counters(local_rows=1000, sample_s=3.0, gather_s=1.0)


def totals(counters: Counters, wait_s: float, ranks: int = 2) -> EpochTotals:
    return EpochTotals(ranks, 20, 200, 200, 1000, 1400, wait_s, elapsed_s=10.0, counters=counters)


def test_metrics() -> None:
    assert totals(MIXED, 4.0).metrics() == pytest.approx(
        {
            "batches_per_s": 4.0,
            "seeds_per_s": 40.0,
            "sampled_edges_per_s": 280.0,
            "wait_share": 0.4,
            "core_wait_share": 0.0,
            "local_share": 0.6,
            "cache_hit_rate": 0.625,
            "remote_rows_per_batch": 7.5,
            "remote_mb_per_batch": 2.05,
            "disk_rows_per_batch": 0.0,
            "deduplicated_share": 0.375,
        }
    )


def test_no_hit_rate_where_all_rows_are_of_this_host() -> None:
    found = totals(LOCAL, 0.0).metrics()
    assert "cache_hit_rate" not in found
    assert found["local_share"] == 1


def test_nothing_is_divided_by_zero() -> None:
    found = EpochTotals(ranks=1, elapsed_s=1.0)
    assert set(found.metrics().values()) == {0.0}
    assert found.line() == "0 seeds/s, 0% waiting for batches, bound by compute"


@pytest.mark.parametrize(
    ("counters", "wait_s", "said"),
    [
        (
            MIXED,
            4.0,
            "40 seeds/s, 40% waiting for batches, bound by network (75% of sampler time); "
            "rows: 60% local, 25% cached (hit rate 0.62), 15% remote (2.0 MB per batch)",
        ),
        (
            Counters(local_rows=1000, disk_rows=3, disk_s=2.0, gather_s=2.0),
            5.0,
            "40 seeds/s, 50% waiting for batches, bound by disk (50% of sampler time); rows: 100% local, <1% disk",
        ),
        (
            Counters(local_rows=400, device_rows=600, gather_s=1.0),
            0.3,
            "40 seeds/s, 3% waiting for batches, bound by compute; rows: 40% local, 60% on the GPU",
        ),
        (LOCAL, 0.3, "40 seeds/s, 3% waiting for batches, bound by compute"),
    ],
)
def test_line(counters: Counters, wait_s: float, said: str) -> None:
    assert totals(counters, wait_s).line() == said


def test_line_of_threads_that_fight_for_cores() -> None:
    found = EpochTotals(1, seeds=100, elapsed_s=10.0, core_s=6.0, core_wait_s=4.0)
    assert found.line() == "10 seeds/s, 0% waiting for batches, bound by cores (40% of thread time without a core)"
    assert EpochTotals.from_list(found.to_list()) == found


@pytest.mark.parametrize(
    ("nbytes", "said"), [(0, "0.0"), (20 * 1234, "0.0012"), (20 * 560_000, "0.56"), (20e9, "1000.0")]
)
def test_small_amounts_do_not_vanish(nbytes: float, said: str) -> None:
    line = totals(Counters(remote_rows=1, remote_bytes=int(nbytes)), 0.0).line()
    assert f" remote ({said} MB per batch)" in line


@pytest.mark.parametrize(("seeds", "said"), [(0, "0"), (3, "0.6"), (60, "12"), (6_172_839, "1,234,568")])
def test_the_rate_is_of_all_ranks(seeds: int, said: str) -> None:
    """Two ranks of five seconds each."""
    assert EpochTotals(2, 20, seeds, 0, 0, 0, 0.0, elapsed_s=10.0).line().startswith(f"{said} seeds/s, ")


def test_sums_over_loaders_epochs_and_ranks() -> None:
    before, now = EpochTotals(), EpochTotals()
    stats = LoaderStats(batches=2, seeds=20, nodes=50, edges=90, wait_s=0.5, counters=MIXED)
    before.add(stats)
    now.add(stats)
    now.add(stats)
    epoch = now.since(before)
    assert epoch == before
    ranks = np.array([epoch.to_list(), totals(LOCAL, 1.5).to_list()], dtype=np.float64)
    summed = EpochTotals.from_list(ranks.sum(axis=0).tolist())
    assert (summed.ranks, summed.batches, summed.edges, summed.wait_s, summed.elapsed_s) == (2, 22, 1490, 2.0, 10.0)
    assert EpochTotals.from_list(EpochTotals(validation_s=1.5).to_list()).validation_s == 1.5
    assert summed.counters.local_rows == 1600
    assert summed.counters.sample_s == 4.0
