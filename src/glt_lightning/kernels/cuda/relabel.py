"""Relabelling on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glt_lightning.kernels.cuda.stream import Kernels, raise_if


class DeviceLids:
    """The relabel table of one batch, gid -> lid, and its memory."""

    def __init__(self, kernels: Kernels, error: Tensor) -> None:
        self._kernels, self._error = kernels, error
        self._slots, self._table = 0, kernels.empty(0)

    @classmethod
    def of(cls, lists: Sequence[Tensor], kernels: Kernels, error: Tensor) -> DeviceLids:
        """Makes a table of these ids, each with lid = position; an id that comes twice has the first."""
        lids = cls(kernels, error)
        lids.make_room(sum(map(len, lists)), lists)
        return lids

    @property
    def arguments(self) -> tuple[Tensor, int]:
        """The memory and number of slots of the table, for native calls."""
        return self._table, self._slots

    def make_room(self, ids: int, lists: Sequence[Tensor]) -> None:
        """Makes the table large enough for ``ids`` ids. lists: the ids that it has so far, each with lid = position."""
        if self._slots and 2 * ids <= self._slots:
            return
        self._slots = max(64, 1 << (2 * ids - 1).bit_length())
        self._table = self._kernels.empty(2 * self._slots)
        self.enter(None, 0, True)
        for known in lists:
            self.enter(known, len(known), False)

    def enter(self, known: Tensor | None, n: int, fresh: bool) -> None:
        self._kernels.run("glt_cuda_relabel_known", known, n, fresh, self._table, self._slots, self._error)

    def number(self, ids: Tensor, count: Tensor, unique: Tensor, num_unique: Tensor) -> Tensor:
        """Returns the lids, int64 [n], of ids [n], of which the first ``count`` are valid. Appends new ids to ``unique`` and
        counts them."""
        n, run, table, error = len(ids), self._kernels.run, (self._table, self._slots), self._error
        slot, is_new, lids = self._kernels.empty(n), self._kernels.empty(n, dtype=torch.uint8), self._kernels.empty(n)
        run("glt_cuda_relabel_find", ids, n, count, num_unique, *table, slot, is_new, error)
        rank = torch.cumsum(is_new, 0, dtype=torch.int64)
        new = (unique, len(unique), num_unique)
        run("glt_cuda_relabel_number", ids, n, slot, is_new, rank, *table, *new, lids, error)
        return lids


def relabel(ids: Tensor, known: Tensor | None = None, *, kernels: Kernels | None = None) -> tuple[Tensor, Tensor]:
    """Numbers ids on their device, as `kernels.khop.relabel` does; lids are int64. Waits for the device."""
    kernels = kernels or Kernels.open(ids.device)
    ids = kernels.require_ids(ids, "ids")
    known = kernels.empty(0) if known is None else kernels.require_ids(known, "known")
    error, count, num_unique = kernels.new_error(), kernels.zeros(1).fill_(len(ids)), kernels.zeros(1).fill_(len(known))
    unique = torch.cat([known, kernels.empty(len(ids))])
    table = DeviceLids(kernels, error)
    table.make_room(len(unique), [known])
    lids = table.number(ids, count, unique, num_unique)
    *values, n = Kernels.read(error, num_unique)
    raise_if(values, "relabel")
    return unique[:n], lids
