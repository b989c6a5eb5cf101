"""The ranks of a Trainer under any strategy: what they tell each other, how many a notebook can have, and the threads that torch
computes with in each, beside the other ranks and the samplers of its host."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed
from lightning.fabric.utilities import imports
from lightning.pytorch import Trainer

from glt_lightning.base import OptionError
from glt_lightning.graph import usable_cores
from glt_lightning.tensors import ranks_in_group

_log = logging.getLogger(__name__)
_NAME = "OMP_NUM_THREADS"
_ENVIRON = Path("/proc/self/environ")  # as this process was started with


def gather_text_of(trainer: Trainer, text: str) -> list[str]:
    """The texts of all ranks, in rank order. A collective call."""
    if not torch.distributed.is_initialized():
        return [text]
    return ranks_in_group(trainer.global_rank, trainer.world_size, trainer.strategy.root_device).exchange(text)


def in_notebook() -> bool:
    """Whether the program is typed in while it runs, so that no second process can run it."""
    return bool(imports._IS_INTERACTIVE)


def check_ranks(ranks: int) -> None:
    """Raises `OptionError` for more than one rank in a notebook."""
    if ranks > 1 and in_notebook():
        raise OptionError(
            f"devices: {ranks} ranks cannot train from a notebook, because each of them runs the whole program. Take "
            "devices=1 here, or write the cells into a file, under `if __name__ == '__main__':`, and run `python train.py`; "
            f"with a configuration: `python -m lightning fit --config run.yaml --trainer.devices {ranks}`."
        )


def fair_threads(cores: int, ranks: int, samplers: int) -> int:
    """Threads for each of ``ranks`` on a host. Its samplers get a core each, but at most a quarter of the cores: they work for
    a small part of a step, and of two cores the second one is worth a third of the step's time to a rank."""
    return max(1, (cores - min(samplers, cores // 4)) // ranks)


def share_cores(ranks: int, samplers: int) -> Callable[[], None]:
    """Lowers the number of torch's threads to this rank's share, unless the user chose a number; returns what undoes it.

    ranks, samplers: processes on this host.
    """
    before, cores = torch.get_num_threads(), usable_cores()
    threads = min(before, fair_threads(cores, ranks, samplers))
    if threads == before or _is_chosen(before, ranks):
        return lambda: None
    torch.set_num_threads(threads)
    _log.info(
        "threads of torch: %d per rank (cores: %d, ranks: %d, sampler processes: %d). OMP_NUM_THREADS sets another number.",
        threads,
        cores,
        ranks,
        samplers,
    )
    return lambda: torch.set_num_threads(before)


def _is_chosen(threads: int, ranks: int) -> bool:
    """Whether the user chose torch's number of threads. Lightning also sets it, with the variable, where it starts ranks."""
    if f"\0{_NAME}=" in "\0" + _ENVIRON.read_text(errors="replace"):
        return True
    available = len(os.sched_getaffinity(0))
    by_lightning = max(1, available // ranks)
    if _NAME in os.environ:
        return os.environ[_NAME] != str(by_lightning) or threads != by_lightning
    return threads != available
