"""Gathering rows of an array of which a part is in memory and the rest on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from glt_lightning.kernels.disk import DiskRows
from glt_lightning.kernels.encoding import Encoding
from glt_lightning.kernels.gather import OnDisk, Shards


class TieredShards(Shards):
    """Shards of which some are None because ``disk`` has their rows, under the same ids."""

    def __init__(
        self,
        shards: Sequence[np.ndarray | None],
        disk: DiskRows,
        *,
        bounds: np.ndarray,
        encoding: Encoding | None = None,
    ) -> None:
        super().__init__(shards, bounds=bounds, encoding=encoding)
        self._disk = disk

    @cached_property
    def raw(self) -> Shards:
        if self._encoding is None:
            return self
        return TieredShards(self._keep, self._disk, bounds=self.bounds)

    def decoded_by(self, encoding: Encoding) -> Shards:
        return TieredShards(self._keep, self._disk, bounds=self.bounds, encoding=encoding)

    def extended(self, more: Sequence[tuple[int, np.ndarray]], end: int) -> Shards:
        if not more:
            return self
        longer = super().extended(more, end)
        return TieredShards(longer._keep, self._disk, bounds=longer.bounds, encoding=self._encoding)

    def _in_memory(self, ids: np.ndarray, on_disk: OnDisk | None) -> tuple[Shards, np.ndarray]:
        """Reads the rows that are on disk. Raises `PartitionError` for a file that cannot be read."""
        end = int(self.bounds[-1])
        places, wanted, count = self._disk.find(ids, end)
        if not count:
            return self, ids
        stored, took = self._disk.read(wanted)
        if on_disk is not None:
            on_disk(replace(took, places=count))
        rows = stored.view(self.stored_dtype).reshape(len(wanted), *self.stored_row_shape)
        return super().extended([(end, rows)], end + len(rows)), places
