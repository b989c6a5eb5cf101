"""Memory that the ranks of a host share: the remote cache, and the host tier of their own parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glt_lightning.base import CacheOptions, Progress
from glt_lightning.graph import HostTier, LocalPartition
from glt_lightning.sampling import RemoteRows
from glt_lightning.workers.cluster.cache import CacheMaker
from glt_lightning.workers.producer.once_per_host import once_per_host
from glt_lightning.workers.producer.ranks import Ranks


class SharedCache:
    """The remote cache of this rank's host. Collective: all ranks construct theirs at the same time, with the same options.
    Close it.

    handle: with which samplers open it.
    Raises as `CacheMaker` on the rank that fills it, and `PeerError` on the other ranks.
    """

    def __init__(self, partition: LocalPartition, rows: RemoteRows, options: CacheOptions, ranks: Ranks) -> None:
        self._own: CacheMaker | None = None

        def make(_sharing: int) -> Mapping[str, Any]:
            self._own = CacheMaker(partition, options)
            return self._own.make(rows)

        try:
            self.handle: Mapping[str, Any] = once_per_host(ranks, partition.parts, make)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Its memory is freed with the last process that maps it."""
        if self._own is not None:
            self._own.close()


def shared_host_tier(partition: LocalPartition, options: CacheOptions, ranks: Ranks) -> HostTier | None:
    """The host tier of the mapped parts; None without ``cache.memory``. Close it. Collective: all ranks call it.

    Raises `OptionError` if this host has less memory.
    """
    budget = options.memory_bytes
    if budget is None:
        return None
    made: list[HostTier] = []

    def make(_sharing: int) -> str:
        made.append(HostTier.create(partition, budget, Progress(None).phase))
        return made[0].path

    try:
        path = once_per_host(ranks, partition.parts, make)
        return made[0] if made else HostTier.open(path)
    except BaseException:
        for tier in made:
            tier.close()
        raise
