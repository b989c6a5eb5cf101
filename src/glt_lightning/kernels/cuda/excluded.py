"""Entries of rows that are not there, in a device's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from torch import Tensor

from glt_lightning.kernels.cuda.kernels import Kernels
from glt_lightning.kernels.excluded import ExcludedEntries, ExcludedStruct


class DeviceExcluded:
    """`ops.excluded.ExcludedEntries` by edge type, copied for the current stream; for calls that are queued on it while this
    object lives."""

    def __init__(self, excluded: Mapping[int, ExcludedEntries], num_edge_types: int, kernels: Kernels) -> None:
        self._arrays: list[Tensor] = []
        self._kernels = kernels
        self._table = (ExcludedStruct * num_edge_types)()
        for r, entries in excluded.items():
            arrays = [kernels.put(values) for values in (entries.gids, entries.begin, entries.positions)]
            self._table[r] = ExcludedStruct(len(entries.gids), *(each.data_ptr() for each in arrays))
            self._arrays += arrays

    @cached_property
    def table(self) -> Tensor:
        """The structs of all edge types in the device's memory."""
        return self._kernels.put(np.frombuffer(self._table, dtype=np.int64))

    def address(self, edge_type: int = 0) -> int:
        """Of the struct of an edge type; of the first, so also of the table."""
        return ctypes.addressof(self._table[edge_type])
