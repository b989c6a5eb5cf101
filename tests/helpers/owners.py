"""Owners of parts without a network."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import CacheOptions, PickerSpec
from glt_lightning.graph import LocalPartition, RemoteCache
from glt_lightning.sampling import OwnedParts
from glt_lightning.workers.cluster.cache import CacheMaker
from glt_lightning.workers.transport.dispatch import caller_is

CALLER = caller_is({}, lambda: False)  # for calls of handlers without a transport


class DirectRows:
    """Owners that answer by reading their own mapped parts, in this process.

    instead: name of a question -> what answers it in place of `answer`, with the same arguments.
    """

    def __init__(
        self, num_parts: int, owners: list[LocalPartition], wire: type = np.int32, picker: PickerSpec | None = None
    ) -> None:
        self.num_owners, self._owners = len(owners) + 1, owners
        self.owner_of_part = np.zeros(num_parts, dtype=np.int32)
        for number, owner in enumerate(owners, 1):
            self.owner_of_part[list(owner.parts)] = number
        self.asked, self.instead = [], {}
        self._parts = [OwnedParts(owner, picker=picker) for owner in owners]
        for parts in self._parts:
            parts.wire = np.dtype(wire)

    def ask(self, owner, question):
        rows = len(next(iter(question.to_wire()[1].values())))
        self.asked.append((question.op, owner, question.hop if question.op == "expand" else rows))
        return self.instead.get(question.op, self.answer)(owner, question)

    def answer(self, owner, question):
        found = self._parts[owner - 1].answer(question)
        return lambda: found


def split_up(
    partition: LocalPartition, owners: list[list[int]], picker: PickerSpec | None = None
) -> tuple[LocalPartition, DirectRows]:
    """The first of ``owners`` is this process."""
    opened = [LocalPartition.open(partition.directory, parts=parts) for parts in owners]
    return opened[0], DirectRows(partition.manifest.num_parts, opened[1:], picker=picker)


def make_cache(here: LocalPartition, remote: DirectRows, options: CacheOptions) -> RemoteCache:
    """What the options say that this process keeps of the parts of others. Close it."""
    maker = CacheMaker(here, options)
    try:
        return RemoteCache.from_handle(maker.make(remote, progress=False), here.manifest)
    finally:
        maker.close()
