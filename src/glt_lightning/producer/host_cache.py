"""One cache for all ranks of a host that map the same parts: the first of them fills it, the others map it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glt_lightning.cluster.cache import CacheMaker
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import PeerError
from glt_lightning.options import CacheOptions
from glt_lightning.sampler.source import RemoteRows

Exchange = Callable[[str], list[str]]  # gives every rank the texts of all ranks, in rank order; a collective call


class HostCache:
    """The cache of this rank. All ranks make theirs at the same time, with the same options. Close it.

    processes: that sample for this rank.  ticket: with what samplers open it.
    Raises what `CacheMaker` does on the rank that fills it, and `PeerError` on the others.
    """

    def __init__(
        self,
        partition: LocalPartition,
        rows: RemoteRows,
        options: CacheOptions,
        exchange: Exchange,
        name: str,
        processes: int = 1,
    ) -> None:
        self._own: CacheMaker | None = None
        self.ticket: Mapping[str, Any] = {}
        mine = [name, _host(), list(partition.parts)]
        ranks = [json.loads(text) for text in exchange(json.dumps(mine))]
        makers = {json.dumps(rank[1:]): number for number, rank in reversed(list(enumerate(ranks)))}
        maker = makers[json.dumps(mine[1:])]
        error: Exception | None = None
        if ranks[maker][0] == name:
            try:
                here = sum(rank[1:] == mine[1:] for rank in ranks)
                self._own = CacheMaker(partition, options, here * processes)
                self.ticket = self._own.make(rows)
            except Exception as raised:
                self.close()
                error = raised
        told = [json.loads(text) for text in exchange(json.dumps([self.ticket, None if error is None else str(error)]))]
        if error is not None:
            raise error
        for rank, (_, failure) in zip(ranks, told, strict=True):
            if failure is not None:
                self.close()
                raise PeerError(f"{rank[0]}: {failure}")
        self.ticket = told[maker][0]

    def close(self) -> None:
        """Its memory goes with the last process that maps it."""
        if self._own is not None:
            self._own.close()


def _host() -> str:
    """What processes have in common that can open each other's files by ``/proc``."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"
