"""Rows of features in memory, as GraphLearn-for-PyTorch holds them."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, NativeError, OptionError
from glt_lightning.compat.glt.graph import Topology
from glt_lightning.compat.glt.tensor_graph import FLOATS, cast_rows, dtype_of
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition import array_of


class DeviceGroup:
    """GPUs that share rows. It has no effect: loaders say what a GPU holds."""

    def __init__(self, group_id: int, device_list: Any) -> None:
        self.group_id, self.device_list = group_id, list(device_list)

    @property
    def size(self) -> int:
        return len(self.device_list)


class OffsetIndex:
    """The rows of consecutive ids: ``index[ids]``. offset: the id of row 0."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __getitem__(self, ids: Any) -> Tensor:
        return torch.as_tensor(ids) - self.offset


class Feature:
    """Rows that are looked up by id.

    feature_tensor: [N, ...].  id2index: int64 [ids]: the row of each id; or an `OffsetIndex`.  dtype: of the rows; None: as
    they are; without it floating-point numbers become float32, as in GLT, and others stay what they are.  split_ratio,
    device_group_list, device and with_gpu say what GPUs hold in GLT; the rows are in the host's memory here, and a GPU reads
    them where it samples.
    """

    def __init__(
        self,
        feature_tensor: Any,
        id2index: Any = None,
        split_ratio: float = 0.0,
        device_group_list: Any = None,
        device: Any = None,
        with_gpu: bool = True,
        dtype: Any = FLOATS,
    ) -> None:
        if not 0 <= split_ratio <= 1:
            raise OptionError(f"Feature: split_ratio: expected 0 to 1, got {split_ratio!r}.")
        rows, wanted = torch.as_tensor(feature_tensor), dtype_of("Feature: dtype", dtype)
        made = cast_rows("Feature: feature_tensor", array_of(rows), wanted)
        self.feature_tensor = rows if made.dtype == array_of(rows[:0]).dtype else _tensor_of(made)
        self.id2index = id2index
        if not isinstance(id2index, OffsetIndex | None):
            self.id2index = torch.as_tensor(id2index).long()

    def __getitem__(self, ids: Any) -> Tensor:
        return self.cpu_get(ids)

    def cpu_get(self, ids: Any) -> Tensor:
        """[n, ...]. Raises `DataError` for an id without a row."""
        ids = torch.as_tensor(ids).cpu().long()
        first = self.id2index.offset if isinstance(self.id2index, OffsetIndex) else 0
        end = first + len(self.id2index if isinstance(self.id2index, Tensor) else self.feature_tensor)
        bad = (ids < first) | (ids >= end)
        if bad.any():
            raise DataError(f"Feature: id {int(ids[bad][0])} has no row; ids are {first} to {end - 1}.")
        return self.feature_tensor[ids if self.id2index is None else self.id2index[ids]]

    @property
    def by_id(self) -> Tensor:
        """The rows in the order of ids."""
        return self.feature_tensor[self.id2index] if isinstance(self.id2index, Tensor) else self.feature_tensor

    @property
    def shape(self) -> torch.Size:
        return self.feature_tensor.shape

    def size(self, dim: int) -> int:
        return self.feature_tensor.size(dim)


def sort_by_in_degree(cpu_tensor: Tensor, shuffle_ratio: float, topo: Topology) -> tuple[Tensor, Tensor]:
    """(rows with the nodes that most edges lead to first, int64 [N]: the new row of each old one).

    shuffle_ratio: this share of the first rows is put in a random order, by torch's generator.
    """
    _, destinations, _, _ = topo.to_coo()
    degrees = torch.bincount(destinations, minlength=len(cpu_tensor))
    order = torch.argsort(degrees, descending=True, stable=True)
    first = int(len(order) * shuffle_ratio)
    order = torch.cat([order[:first][torch.randperm(first)], order[first:]])
    new = torch.empty_like(order)
    new[order] = torch.arange(len(order))
    return cpu_tensor[order], new


# The device that a script names, or the CPU where that cannot be used: scripts made for a GPU run without one.


_log = logging.getLogger(__name__)


def usable_device(given: Any) -> str:
    """``cpu`` or a CUDA device, as ``partition.device`` takes it. Results are the same on all.

    given: as torch spells it. A CUDA device that cannot be used is replaced by the CPU, which is logged once.
    """
    name = str(given)
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdigit() or not index):
        raise OptionError(f"device: expected 'cpu', 'cuda' or 'cuda:0' and so on, got {given!r}.")
    if kind == "cpu":
        return "cpu"
    from glt_lightning.kernels import Kernels  # imports torch

    try:
        Kernels.open(name)
    except NativeError as error:
        _say_once(str(error))
        return "cpu"
    return name


@cache
def _say_once(reason: str) -> None:
    _log.warning("device: %s The CPU is used; the result is the same.", reason)


def _tensor_of(array: np.ndarray) -> torch.Tensor:
    """Converts an array to a tensor in the same memory: the inverse of `array_of`."""
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == BFLOAT16
        else torch.from_numpy(array)
    )
