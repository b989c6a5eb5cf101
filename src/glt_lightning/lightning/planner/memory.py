"""The rules by which the memory of a host follows from what one process and one batch take, and the refusal of what is more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.lightning.planner.rules import Layout
from glt_lightning.workers import batches_in_flight

SAMPLER_BYTES = 40_000_000  # of a sampler process that was not measured: 23 MB of Python and numpy, and its workspace
SERVER_BYTES = 40_000_000  # of a graph server, which a host's ranks share: Python, numpy, pyarrow
# Of a batch's remote rows: as they arrive, as they are stitched, and at their owner. 2.8 to 3.3 were measured, and up to 6
# where ranks wait for each other on a busy machine.
ANSWER_COPIES = 4
# What a rank that makes its own batches, and asks owners, takes beyond these: pyarrow with a server, 39 MB of a graph server
# against 23 MB of a sampler, and a batch. Without both, 2 hosts with a cache were planned 13 % too low; why a batch is not known.
_ASKING_BYTES, _ASKING_BATCHES = 16_000_000, 1
# A run may need as much more than was planned: with exactly that, 3 of 13 runs were killed, with 1.1 of it none.
_MARGIN = 0.05


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """Bytes of the processes of a rank that are their own, at the peak. base: Python, torch and Lightning.  model: parameters,
    gradients and the state of the optimizer.  work: activations, and what else the step takes.  batches: that it makes itself,
    without samplers.  client: of a graph server, what a rank needs to be one.  sampler: of a sampler process, without batches."""

    base: float = 0.0
    model: float = 0.0
    work: float = 0.0
    client: float = 0.0
    batches: float = 0.0
    sampler: float = SAMPLER_BYTES

    @property
    def total(self) -> float:
        """Of the process of the rank, without batches."""
        return self.base + self.model + self.work + self.client


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Bytes of a host, by what takes them. samplers: with the graph server.  answers: rows on their way from and to other
    owners.  pages: mapped files of the partition, which the system gives back when it needs memory.  locked: arrays that GPUs
    read on the host."""

    trainers: float
    samplers: float
    batches: float
    answers: float
    cache: float
    pages: float
    locked: float = 0.0

    @property
    def needed(self) -> float:
        """Bytes that have to be there."""
        return self.trainers + self.samplers + self.batches + self.answers + self.cache + self.locked

    def fits(self, available: float) -> bool:
        """Tells whether a host with so many bytes has enough, also if a little more is needed."""
        return (1 + _MARGIN) * self.needed <= available


def host_memory(
    process: ProcessMemory,
    sampling: SamplingOptions,
    layout: Layout,
    batch_bytes: Sequence[float],
    steps: Sequence[float],
    available: int,
    *,
    remote: float = 0.0,
    cache: float = 0.0,
    pages: float = 0.0,
    locked: float = 0.0,
) -> HostMemory:
    """The memory of one host. batch_bytes: of the largest batch in training, and in validation.  steps: batches of a rank in a
    pass over each.  remote: share of rows that other owners have.  available: bytes that the host has for the job, of which
    ``channel_size: auto`` is a share."""
    drawn_at_once = max(1, layout.workers * layout.concurrency)
    batches, answers = process.batches, drawn_at_once * ANSWER_COPIES * remote * max(batch_bytes)
    if layout.workers:
        batches = batches_in_flight(sampling, batch_bytes, steps, available, layout.ranks)
    elif remote:
        answers += _ASKING_BYTES + _ASKING_BATCHES * max(batch_bytes)
    return HostMemory(
        trainers=layout.ranks * process.total,
        samplers=layout.ranks * layout.workers * process.sampler + (SERVER_BYTES if layout.served else 0),
        batches=layout.ranks * batches,
        answers=layout.ranks * answers,
        cache=cache,
        pages=pages,
        locked=locked,
    )


def require_memory_of(needed: HostMemory, available: float, sampling: SamplingOptions, batch_size: int) -> None:
    """Raises `OptionError` for a job that does not fit on its hosts, with the option that takes most."""
    if needed.fits(available):
        return
    advice = {
        "trainers": f"fewer ranks per host, or a smaller data.batch_size than {batch_size}",
        "samplers": f"a smaller data.sampling.num_workers than {sampling.num_workers}",
        "batches": f"a smaller data.sampling.channel_size than {sampling.channel_size}",
        "answers": f"a smaller data.sampling.concurrency than {sampling.concurrency}",
        "cache": "a smaller cache.ratio, cache.bytes or cache.memory",
        "locked": "data.sampling.topology: cpu, or hosts with more memory",
    }
    largest = max(advice, key=lambda name: getattr(needed, name))
    parts = ", ".join(f"{name} {getattr(needed, name) / 1e9:,.2f} GB" for name in advice if getattr(needed, name))
    raise OptionError(
        f"memory: a host of this job needs {needed.needed / 1e9:,.2f} GB ({parts}), give or take {_MARGIN:.0%}, and has "
        f"{available / 1e9:,.2f} GB. "
        f"What would fit: {advice[largest]}."
    )
