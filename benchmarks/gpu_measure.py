"""Clocks, spreads, and the limits of a device and its bus, measured in the same run as what is compared with them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

_SECTOR_BYTES = 32  # what a device reads at least, from its memory and over the bus


class Clock(Protocol):
    def seconds(self, work: Callable[[], object]) -> float:
        """From before ``work`` until the device has done all that it queued on the current stream."""


class DeviceClock:
    """CUDA events on the stream that is current."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, work: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self._device)
        stream.synchronize()
        begin.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class HostClock:
    """For work that is done when it returns."""

    def seconds(self, work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How often a measure is taken: ``warmup`` times for nothing, then ``rounds`` times."""

    warmup: int = 2
    rounds: int = 7

    def rate(self, clock: Clock, work: Callable[[], float]) -> Spread:
        """Amounts per second. work: returns the amount of one round, as far as the host knows it."""
        for _ in range(self.warmup):
            work()
        return Spread.of([self._one(clock, work) for _ in range(self.rounds)])

    def _one(self, clock: Clock, work: Callable[[], float]) -> float:
        amounts: list[float] = []
        seconds = clock.seconds(lambda: amounts.append(work()))
        return amounts[0] / seconds


@dataclass(frozen=True)
class Limits:
    """What the machine can do at best, per second.

    copy_bytes: copied within the device's memory, each byte counted once, though it is read and written.
    bus_bytes: copied from page-locked memory of the host to the device.
    reads: single int32 at random places of an array in the device's memory as large as the graph's neighbours.
    """

    copy_bytes: float
    bus_bytes: float
    reads: float

    @property
    def bus_reads(self) -> float:
        """Single numbers at random places over the bus: a sector each."""
        return self.bus_bytes / _SECTOR_BYTES

    @classmethod
    def measure(cls, device: torch.device, clock: Clock, rounds: Rounds, *, nbytes: int, numbers: int) -> Limits:
        """nbytes: of a copy.  numbers: of the array of which single ones are read."""
        source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        copied, bus = (rounds.rate(clock, partial(_copy, torch.empty_like(source), data)) for data in (source, host))
        table = torch.zeros(numbers, dtype=torch.int32, device=device)
        places = torch.randint(numbers, (min(numbers, 1 << 24),), device=device)
        found = torch.empty(len(places), dtype=torch.int32, device=device)
        return cls(copied.median, bus.median, rounds.rate(clock, partial(_look_up, table, places, found)).median)


def _copy(target: torch.Tensor, source: torch.Tensor) -> float:
    target.copy_(source, non_blocking=True)
    return target.nbytes


def _look_up(table: torch.Tensor, places: torch.Tensor, out: torch.Tensor) -> float:
    torch.index_select(table, 0, places, out=out)
    return len(places)
