"""One copy of graph and attributes in each host's memory, for all its ranks whose GPUs read it there (UVA)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from glt_lightning.graph import BatchArrays, LocalPartition, SharedArrays, copy_for_uva, open_uva
from glt_lightning.sampling import DeviceSource
from glt_lightning.workers.producer.once_per_host import host_name, once_per_host
from glt_lightning.workers.producer.ranks import Ranks


def share_uva(batch: BatchArrays, ranks: Ranks) -> Callable[[Sequence[str]], SharedArrays | None]:
    """For `store.device_store.open_store`, whose ``share`` it is. The caller closes its result.

    Collective: all ranks call the returned function once, also those that need no arrays: the ranks of a host that map the
    same parts share the arrays that any of them needs. Raises as `copy_for_uva` on the rank that copies, and `PeerError` on
    the others.
    """

    def share(mine: Sequence[str]) -> SharedArrays | None:
        place = [host_name(), list(batch.partition.parts)]
        requests = [json.loads(text) for text in ranks.exchange(json.dumps([place, list(mine)]))]
        needed = sorted({array for other, needs in requests if other == place for array in needs})
        made: list[SharedArrays] = []

        def make(_sharing: int) -> str | None:
            if not needed:
                return None
            made.append(copy_for_uva(batch, needed))
            return made[0].path

        try:
            path = once_per_host(ranks, batch.partition.parts, make)
            try:
                if made:
                    return made[0]  # other ranks open it here, also if this rank needs none of it
                return open_uva(batch, mine, path) if mine and path is not None else None
            finally:
                ranks.exchange(ranks.name)  # a fence: all ranks have opened the copy before any of them may close it
        except BaseException:
            for arrays in made:
                arrays.close()
            raise

    return share


class SamplerGpus:
    """The GPUs of sampler processes, and the host memory that they read. Collective: all ranks construct theirs at the same
    time. Close it after the processes.

    source: None if the CPU samples.  Raises as `share_uva`.
    """

    def __init__(self, partition: LocalPartition, source: DeviceSource | None, ranks: Ranks) -> None:
        self.source, self._shared = source, None
        if source is not None:
            self._shared = share_uva(
                BatchArrays(partition, source.edges, source.weights, source.timed, source.labor), ranks
            )(source.on_host)
            self.source = replace(source, host=None if self._shared is None else self._shared.path)

    def close(self) -> None:
        """Safe to call twice."""
        if self._shared is not None:
            self._shared.close()
