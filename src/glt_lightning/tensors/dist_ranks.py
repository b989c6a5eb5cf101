"""Exchange of numbers and text among all ranks. Nothing that came over the network is unpickled."""

from __future__ import annotations

import sys
import weakref
from functools import cache

import torch
import torch.distributed
from torch import Tensor

from glt_lightning.base import PeerError
from glt_lightning.workers import Ranks

_MOST_BYTES = 1 << 20  # of one rank's text


def gather_counts(count: int, world_size: int, device: torch.device) -> list[int]:
    """Returns the number that each rank has given, in rank order. A collective call."""
    return [int(each) for each in _gather(torch.tensor([count], device=device), world_size)]


def gather_text(text: str, world_size: int, device: torch.device) -> list[str]:
    """The texts of all ranks, in rank order. A collective call. Raises `PeerError` if a message is not valid UTF-8."""
    if world_size == 1:
        return [text]
    data = text.encode()
    lengths = gather_counts(len(data), world_size, device)
    if not all(0 <= length <= _MOST_BYTES for length in lengths):
        raise PeerError(f"received a message of {max(lengths)} bytes from a rank; at most {_MOST_BYTES} are allowed.")
    mine = torch.zeros(max(1, *lengths), dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
    rows = _gather(mine.to(device), world_size)
    try:
        return [bytes(row[:n].tolist()).decode() for row, n in zip(rows, lengths, strict=True)]
    except UnicodeDecodeError as error:
        raise PeerError(f"received a message from a rank that is not valid UTF-8 ({error}).") from None


def _gather(mine: Tensor, world_size: int) -> list[Tensor]:
    gathered = [torch.zeros_like(mine) for _ in range(world_size)]
    torch.distributed.all_gather(gathered, mine)
    return gathered


def ranks_of_this_process() -> Ranks:
    """This rank and its collective calls in torch's default process group; one rank alone where there is no group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Ranks()
    end_group_at_exit()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    nccl = torch.distributed.get_backend() == "nccl"  # which exchanges tensors of a GPU alone
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    return ranks_in_group(rank, world_size, device)


def ranks_in_group(rank: int, world_size: int, device: torch.device) -> Ranks:
    """A rank and its collective calls in torch's default process group. device: whose tensors the group exchanges."""
    return Ranks(
        rank,
        world_size,
        lambda text: gather_text(text, world_size, device),
        lambda count: gather_counts(count, world_size, device),
    )


@cache
def end_group_at_exit() -> None:
    """Has the process group destroyed at the end of the process; only the first call has an effect.

    Finalizers run in reverse order: those of graphs are registered later, run earlier, and so still have the group.
    """
    weakref.finalize(torch.distributed, end_group)


def end_group() -> None:
    """Destroys torch's default process group if it is gloo's and the script ends well.

    Without it torch 2.13 aborts at the end of every third script ("terminate called without an active exception"), and launchers
    take that for a failure. After an error a collective may be under way, for which destroying would wait.
    """
    if (
        not hasattr(sys, "last_value")
        and torch.distributed.is_initialized()
        and torch.distributed.get_backend() == "gloo"
    ):
        torch.distributed.destroy_process_group()
