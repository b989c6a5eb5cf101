"""GraphLearn-for-PyTorch's `DistFeature`: rows that several workers have in memory, read by any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import OptionError
from glt_lightning.compat.glt.distributed.client import PendingRequest
from glt_lightning.compat.glt.distributed.dist_graph import as_books
from glt_lightning.compat.glt.distributed.offer import Offer
from glt_lightning.compat.glt.distributed.session import current
from glt_lightning.compat.glt.feature import Feature


class PendingRows:
    """The rows that `DistFeature.async_get` asked for."""

    def __init__(self, count: int, local: Tensor, asked: Sequence[tuple[Tensor, Tensor | PendingRequest]]) -> None:
        self._count, self._local, self._asked = count, local, asked

    def wait(self) -> Tensor:
        """[n, ...]. Raises `PeerError` for a worker that does not answer, `DataError` for an id without a row."""
        found = self._local.new_empty(self._count, *self._local.shape[1:])
        for at, rows in self._asked:
            found[at] = rows if isinstance(rows, Tensor) else rows.wait()
        return found


class DistFeature:
    """Rows by id, of this worker's memory or that of others. Made by all workers at once, after `init_rpc`.

    num_partitions, partition_idx: number of parts, and which this worker has.  local_feature: its rows, a `Feature`.
    feature_pb: the part of each id.  Both by type for a heterogeneous graph.  local_only: all ids are of this worker.
    device: of the rows that are given out; None: the CPU.  rpc_router: no effect, since workers tell each other their parts.

    A partition folder needs none of this: loaders and `glt_lightning.DistGraph` read it.

    >>> feature = glt.data.Feature(torch.eye(2))
    >>> glt.distributed.DistFeature(1, 0, feature, torch.zeros(2), local_only=True)[torch.tensor([1, 0])]
    tensor([[0., 1.],
            [1., 0.]])
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_feature: Feature | Mapping[Any, Feature],
        feature_pb: Any,
        local_only: bool = False,
        rpc_router: Any = None,
        device: Any = None,
    ) -> None:
        if not 0 <= partition_idx < num_partitions:
            raise OptionError(f"DistFeature: partition_idx: expected 0 to {num_partitions - 1}, got {partition_idx}.")
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.local_feature, self.feature_pb = local_feature, as_books(feature_pb)
        self._device, self._offer = torch.device("cpu" if device is None else device), None
        session = current()
        self._reply_bytes = 0 if session is None else session.cluster.limits.reply_bytes
        if local_only or session is None or session.context.world_size == 1:
            if num_partitions > 1 and not local_only:
                raise OptionError(
                    f"DistFeature: {num_partitions} parts and one worker. Call init_worker_group and init_rpc on each, first."
                )
            return
        self._offer = Offer("DistFeature", self._answer, self._answer_bytes, partition_idx)
        owners = {part: rank for rank, part in reversed(list(enumerate(self._offer.abouts)))}
        if missing := [part for part in range(num_partitions) if part not in owners]:
            raise OptionError(f"DistFeature: no worker has part {missing[0]} of {num_partitions}.")
        self._owners = owners

    def __getitem__(self, ids: Any) -> Tensor:
        """ids: int64 [n], or (type, ids)."""
        if isinstance(ids, (tuple, list)) and len(ids) == 2 and not isinstance(ids[0], int):
            return self.async_get(ids[1], ids[0]).wait()
        return self.async_get(torch.as_tensor(ids)).wait()

    def async_get(self, ids: Tensor, input_type: Any = None) -> PendingRows:
        """Asks the workers that have the rows; ``wait()`` of what it returns gives them."""
        ids = ids.cpu()
        none = self.local_get(ids[:0], input_type)
        if self._offer is None:
            return PendingRows(len(ids), none, [(torch.arange(len(ids)), self.local_get(ids, input_type))])
        parts = _of(self.feature_pb, input_type)[ids]
        asked: list[tuple[Tensor, Tensor | PendingRequest]] = []
        for part in parts.unique().tolist():
            at = torch.nonzero(parts == part)[:, 0]
            if part == self.partition_idx:
                asked.append((at, self.local_get(ids[at], input_type)))
                continue
            if part not in self._owners:
                raise OptionError(f"DistFeature: feature_pb has part {part}; expected 0 to {self.num_partitions - 1}.")
            kind = list(input_type) if isinstance(input_type, tuple) else input_type
            asked.append((at, self._offer.ask(self._owners[part], ids=ids[at], kind=kind)))
        return PendingRows(len(ids), none, asked)

    def local_get(self, ids: Tensor, input_type: Any = None) -> Tensor:
        """Rows of this worker."""
        feature: Feature = _of(self.local_feature, input_type)
        return feature[ids].to(self._device)

    def _answer(self, ids: Tensor, kind: Any) -> Tensor:
        """The rows of the first ids, as many as fit into a reply, and at least one."""
        return self.local_get(ids[: self._fit(ids, kind)[0]], _as_type(kind))

    def _answer_bytes(self, ids: Tensor, kind: Any) -> int:
        """Bytes of memory that `_answer` takes."""
        fit, row_bytes = self._fit(ids, kind)
        return fit * (3 * row_bytes + 32)  # the rows as read, as given and as sent, and their numbers

    def _fit(self, ids: Tensor, kind: Any) -> tuple[int, int]:
        """(number of rows that an answer has, bytes of each)"""
        if not isinstance(ids, Tensor) or ids.ndim != 1:
            raise OptionError(f"DistFeature: ids: expected a tensor of integers [n], got {ids!r:.100}.")
        row_bytes = max(1, self.local_get(ids[:1], _as_type(kind)).nbytes)
        return min(len(ids), max(1, self._reply_bytes // row_bytes)), row_bytes


def _as_type(kind: Any) -> Any:
    """A type as the message of a question has it: an edge type is a list there."""
    return tuple(kind) if isinstance(kind, list) else kind


def _of(given: Any, kind: Any) -> Any:
    if isinstance(given, Mapping):
        if kind not in given:
            raise OptionError(f"DistFeature: expected (type, ids) with a type of {', '.join(map(str, given))}.")
        return given[kind]
    return given
