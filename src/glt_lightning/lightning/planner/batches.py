"""The batches that a plan counts: sampled without their attributes, as training would make them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.lightning.planner.rules import Counted, Layout, RemoteCost, rounds_of
from glt_lightning.lightning.report.partition import traffic_options
from glt_lightning.loader import ExpectedTraffic, TrafficPrediction, remote_cache_bytes

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

ALL = 1 << 40  # batches


class Batches:
    """Counts batches of training, by sampling them without their attributes.

    batches: of each rank that is looked at; 0 for all.

    row_share: bytes of rows to those of the partition.
    """

    row_share = 1.0

    def __init__(self, partition: LocalPartition, data: GLTDataModule, batches: int) -> None:
        if batches < 0:
            raise OptionError(f"--batches: expected at least 0, got {batches}.")
        options = traffic_options(data, max(1, batches), [])
        seed = data.sampling.seed if data.sampling.seed is not None else int(os.environ.get("PL_GLOBAL_SEED", 0))
        self.partition, self.data = partition, data
        self.options = replace(options, seed=seed, batches=batches or ALL)
        self._most = ALL if batches == 0 else 8
        self._prediction = TrafficPrediction(partition, self.options)
        self.why_not = self._prediction.why_not

    def count(self, layout: Layout, cache: Sequence[float] = (), **changes: Any) -> ExpectedTraffic:
        """changes: other options of the batches."""
        options = replace(self.options, cache=list(cache), **changes)
        placement = self.data.sampling.seed_placement
        prediction = TrafficPrediction(self.partition, options)
        return prediction.of_ranks(placement, layout.owners, layout.ranks_of_owner, self._most)

    def time_calls(self, *, encrypted: bool) -> dict[str, float]:
        """As `TrafficPrediction.time_calls`."""
        return self._prediction.time_calls(encrypted=encrypted)

    def ratio(self, layout: Layout) -> float | None:
        """The size of the remote cache of the data module; None where nothing is remote."""
        return cache_ratio(self.data.cache, self.partition.manifest) if layout.owners > 1 else None

    def counted(self, layout: Layout, **changes: Any) -> Counted:
        """The means of batches in this layout, with the cache of the data module."""
        ratio = self.ratio(layout)
        return self.of(self.count(layout, () if ratio is None else (ratio,), **changes), ratio)

    def of(self, traffic: ExpectedTraffic, ratio: float | None = None) -> Counted:
        """The means over the ranks of a count. ratio: those of the cache of this size."""
        rounds = rounds_of(self.options.num_neighbors)
        weights = [part.batches for part in traffic.parts]

        def mean(name: str, of: Any = None) -> float:
            each = [getattr(part if of is None else of(part), name).mean for part in traffic.parts]
            return float(np.average(each, weights=weights))

        remote = RemoteCost(
            rows=mean("remote_rows"),
            row_bytes=mean("remote_row_bytes"),
            requests=mean("requests"),
            nbytes=mean("bytes"),
            rounds=rounds if mean("requests") else 0,
        )
        if ratio is not None:
            hit = partial(_of_cache, ratio=ratio)
            rows, row_bytes = mean("remote_rows", hit), mean("row_bytes", hit)
            cached = {"cached_rows": remote.rows - rows, "cached_bytes": remote.row_bytes - row_bytes}
            asked = {"requests": mean("requests", hit), "nbytes": mean("bytes", hit)}
            remote = replace(remote, rows=rows, row_bytes=row_bytes, **asked, **cached)
        counts = {name: mean(name) for name in ("seeds", "nodes", "edges", "rows", "row_bytes")}
        return Counted(**counts, remote=remote).in_row_bytes(self.row_share)

    def in_row_bytes(self, share: float) -> Batches:
        """The same batches where rows take ``share`` of their bytes."""
        other = copy(self)
        other.row_share = share * self.row_share
        return other


def _of_cache(part: Any, ratio: float) -> Any:
    return next(each for each in part.caches if each.ratio == ratio)


def cache_ratio(cache: CacheOptions, manifest: Manifest) -> float | None:
    """The share of the nodes of each type that the remote cache has, about; None without one."""
    if not cache.keeps_rows:
        return None
    if isinstance(cache.ratio, dict):
        cached = sum(
            cache.ratio.get(t, 0.0) * n for t, n in zip(manifest.schema.node_types, manifest.num_nodes, strict=True)
        )
        ratio = cached / sum(manifest.num_nodes)
    elif cache.ratio is not None:
        ratio = cache.ratio
    else:
        ratio = (cache.budget or 0) / remote_cache_bytes(manifest, 1)
    return min(1.0, ratio) or None
