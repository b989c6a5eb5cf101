"""How the gradients of rows come to the ranks that apply them: by a process group of its own, in rank order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from glt_lightning.base import PeerLostError
from glt_lightning.kernels import RowSums


class Exchange(Protocol):
    """Collective calls of the ranks that train. size: number of ranks."""

    size: int

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        """Sends each row to the rank ``target`` int [n]. Returns what each rank has sent to this one, in rank order."""

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """float64 [k] of each rank -> [ranks, k], on every rank."""

    def barrier(self) -> None:
        """Waits for all ranks."""

    def close(self) -> None:
        """Safe to call twice."""


class Alone:
    """The `Exchange` of one rank."""

    size = 1

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        return [sums]

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return numbers[None]

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def close(self) -> None:
        """There is nothing to close."""


class OverGloo:
    """The `Exchange` of several ranks, over a gloo group of its own: the default one may be NCCL's, and calls of DDP are in
    flight there. All ranks make it at the same time.

    timeout: of each call; None: torch's default.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self.size = dist.get_world_size(self._group)

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        order = np.argsort(target, kind="stable")
        mine = np.bincount(target, minlength=self.size)
        theirs = self._all_to_all(torch.from_numpy(mine), [1] * self.size, [1] * self.size)
        into, out = mine.tolist(), theirs.tolist()
        heads = torch.from_numpy(np.stack([sums.rows[order], sums.counts[order]], axis=1))
        found_heads = self._all_to_all(heads, into, out).numpy()
        found = self._all_to_all(torch.from_numpy(sums.pick(order).sums), into, out).numpy()
        ends = np.cumsum(out)
        return [
            RowSums(
                *(np.ascontiguousarray(each[end - n : end]) for each in (found_heads[:, 0], found, found_heads[:, 1]))
            )
            for n, end in zip(out, ends.tolist(), strict=True)
        ]

    def _all_to_all(self, given: torch.Tensor, into: list[int], out: list[int]) -> torch.Tensor:
        found = torch.empty((sum(out), *given.shape[1:]), dtype=given.dtype)
        with _other_ranks():
            dist.all_to_all_single(found, given, out, into, group=self._group)
        return found

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        mine = torch.from_numpy(np.ascontiguousarray(numbers, np.float64))
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _other_ranks():
            dist.all_gather(found, mine, group=self._group)
        return torch.stack(found).numpy()

    def barrier(self) -> None:
        self.gather(np.zeros(1))  # gloo's own barrier has no deadline of its group

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


@contextmanager
def _other_ranks() -> Iterator[None]:
    """Says of gloo's error what it means: that of the rank which failed says why."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(
            f"the exchange of the gradients of rows failed: another rank has ended, or did not take part in time ({error}). Its "
            "own error says why; every rank takes part in every step."
        ) from error


def open_exchange(timeout: timedelta | None = None) -> Exchange:
    """That of torch's process group, if there is one. A collective call."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Alone()
    return OverGloo(timeout)
