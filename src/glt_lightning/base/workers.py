"""Options of sampler processes, for those of a rank and those of a graph server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from glt_lightning.base.checks import at_least, parse_bytes
from glt_lightning.base.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Sampler processes, and the batches that they have in flight. `SamplingOptions` has them for each rank,
    `ServingOptions` for each graph server.

    Attributes:
        num_workers: Number of sampler processes.
        concurrency: Batches in flight per sampler process. At most one per core is sampled at a time.
        worker_devices: GPUs on which the sampler processes sample, such as ``[cuda:0, cuda:1]``, in turn.
            ``sampling.topology`` and ``sampling.features`` say where they find the graph. Their batches come through the
            host's memory. Empty: the CPU samples.
        prefetch: Batches that are made ahead of the one in training.
        channel_size: Bytes of batches that may wait, as an integer or like ``"2GB"``; ``auto`` takes a share of the memory
            that is available.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> from glt_lightning.base import ServingOptions
        >>> [kind().num_workers for kind in (SamplingOptions, ServingOptions)]  # both are WorkerOptions
        [0, 2]
    """

    group: ClassVar[str]
    least_workers: ClassVar[int]

    num_workers: int
    concurrency: int = 4
    worker_devices: list[str] = field(default_factory=list)
    prefetch: int
    channel_size: int | str | None = "auto"

    def __post_init__(self) -> None:
        at_least(f"{self.group}.num_workers", self.num_workers, self.least_workers)
        at_least(f"{self.group}.concurrency", self.concurrency, 1)
        at_least(f"{self.group}.prefetch", self.prefetch, 1)
        for device in self.worker_devices:
            if re.fullmatch(r"cuda:\d+", str(device)) is None:
                raise OptionError(f"{self.group}.worker_devices: expected devices such as cuda:0, got {device!r}.")
        if self.channel_size is not None and self.channel_size != "auto":
            parse_bytes(f"{self.group}.channel_size", self.channel_size)

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes; None for no limit. ``auto`` must have become a number before."""
        assert self.channel_size != "auto", "only a process of the host knows what auto means"
        return None if self.channel_size is None else parse_bytes(f"{self.group}.channel_size", self.channel_size)
