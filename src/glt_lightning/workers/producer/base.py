"""The producers of a loader's Samples, and how a graph opens one."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from glt_lightning.base import CacheOptions, PeerError, SamplingOptions
from glt_lightning.graph import AnyGraph, DeviceIndex, LocalPartition, available_memory
from glt_lightning.sampling import BatchRequest, RemoteRows, Sample, SamplerConfig
from glt_lightning.workers.cluster.owner import OwnerAddresses
from glt_lightning.workers.cluster.remote_rows import Traffic
from glt_lightning.workers.slots import PinMemory

T = TypeVar("T")


class Producer(Protocol):
    """Makes the batches of any number of loaders, in the order of their requests."""

    @property
    def restarts(self) -> int:
        """Number of sampler processes that were restarted so far."""

    @property
    def fresh_slots(self) -> int:
        """Number of batches that got one-off memory, because the program still referenced the batches of all slots."""

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        """Yields one `Sample` per request. Nothing happens before the first ``next``; closing the iterator early is fine."""

    def close(self) -> None:
        """Ends every stream and frees what the producer holds. Safe to call twice."""


class JoiningProducer(Producer, Protocol):
    """A producer whose samplers serve the local parts to other ranks, and request rows of the other parts from these ranks."""

    @property
    def traffic(self) -> Traffic:
        """Traffic of samplers in this process so far; sampler processes count their own."""

    def addresses(self) -> list[str]:
        """Returns the addresses at which the samplers serve their parts; waits until all do. Raises `SamplerError` if one does
        not start."""

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Sends the samplers the owners of the other parts."""

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Sends the samplers the handle of this host's remote cache, which they use from now on."""

    def tend(self) -> None:
        """Replaces samplers that died: other ranks may need them while this one takes no batches. For another thread than the
        one that takes batches."""


@dataclass(frozen=True, kw_only=True)
class ProducerSetup:
    """The options and collaborators of a rank's producer.

    pin: page-locks the memory of batches; None: it is not page-locked.  device: torch's name of the training device.
    keep_rows: chooses the rows that this device keeps (``cache.device``), of the mapped parts; returns None for none.
    """

    ranks: Ranks
    sampling: SamplingOptions
    cache: CacheOptions
    pin: PinMemory | None = None
    device: str = "cpu"
    keep_rows: Callable[[LocalPartition, ProducerSetup], KeptRows | None] | None = None


class KeptRows(Protocol):
    """Rows on the training device, which batches leave out."""

    index: DeviceIndex

    def fill(self, remote: RemoteRows | None = None) -> None:
        """Copies the rows to the device. remote: the owners of the parts that are not mapped here."""

    def close(self) -> None:
        """Frees the memory on the device. Safe to call twice."""


class SampledGraph(AnyGraph, Protocol):
    """A graph that opens the producer of its batches: in this rank (`MappedGraph`), in the ranks of several hosts together
    (`HostsGraph`), or on graph servers (`ServedGraph`)."""

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[Producer, Any]:
        """Opens the producer of one rank. ``opened`` closes it, and everything that was opened for it. A collective call of
        ``setup.ranks``.

        Returns the producer, and the rows on the training device that its batches leave out, or None.
        """


# A rank and its means to agree with the other ranks of its job.


Exchange = Callable[[str], list[str]]  # returns the texts of all ranks on every rank, in rank order; a collective call
GatherCounts = Callable[[int], list[int]]  # returns the numbers of all ranks on every rank, in rank order; collective


def alone(text: str) -> list[str]:
    """Returns the text alone: the `Exchange` of a process without peers."""
    return [text]


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and its collective calls. Components that have to agree with other ranks take this object.

    rank, world_size: the number of this process, and the number of ranks.
    exchange: returns the texts of all ranks on every rank. By default it returns only the text of this rank, so that
    nothing is shared with other ranks of the host.
    gather_counts: returns the numbers of all ranks on every rank; None if ranks need not agree on numbers.
    name: this rank's name in messages, which no other rank has. "": ``rank N``.

    >>> Ranks(rank=1, world_size=4).name
    'rank 1'
    """

    rank: int = 0
    world_size: int = 1
    exchange: Exchange = alone
    gather_counts: GatherCounts | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"rank {self.rank}")

    def once_per_host(self, parts: Sequence[int], make: Callable[[int], Any]) -> Any:
        """Calls ``make`` on the first of the ranks of a host that map the same parts, and returns its result, a JSON value, on
        all of these.

        Collective: all ranks call it. make: called with the number of ranks that share its result.
        Raises the error of ``make``; on other ranks, also of other hosts, `PeerError` with its text.
        """
        mine = [self.name, self.host_identity(), list(parts)]
        everyone = [json.loads(text) for text in self.exchange(json.dumps(mine))]
        sharing = [number for number, other in enumerate(everyone) if other[1:] == mine[1:]]
        made, error = None, None
        if everyone[sharing[0]] == mine:
            try:
                made = make(len(sharing))
            except Exception as raised:
                error = raised
        # Reached on every rank, also where ``make`` raised: the others would wait in the exchange for ever.
        results = [
            json.loads(text) for text in self.exchange(json.dumps([made, None if error is None else str(error)]))
        ]
        if error is not None:
            raise error
        for other, (_, failure) in zip(everyone, results, strict=True):
            if failure is not None:
                raise PeerError(f"{other[0]}: {failure}")
        return results[sharing[0]][0]

    def all_or_none(self, make: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Calls ``make`` on every rank and returns its result; if it raises on any rank, calls ``undo`` on the results of the
        others. Collective: all ranks call it.

        Raises the error of ``make``; on other ranks `PeerError` with its text, so that they do not wait for that rank later.
        """
        made: list[T] = []
        error = None
        try:
            made.append(make())
        except Exception as raised:
            error = raised
        results = [
            json.loads(text) for text in self.exchange(json.dumps([self.name, None if error is None else str(error)]))
        ]
        if error is not None:
            raise error
        for other, failure in results:
            if failure is not None:
                undo(made[0])
                raise PeerError(f"{other}: {failure}")
        return made[0]

    @staticmethod
    def host_identity() -> str:
        """Returns an identity that processes share if they can open each other's files by ``/proc``: the boot id of the host, the
        process namespace and the user."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"


# The number of batches that may be in flight at once, by their size.


_log = logging.getLogger(__name__)


# one batch is made while another is in training; a run begins with as many, before the size of its batches is known
LEAST = 2
_SHARE = 8  # 1/8 of the available memory: the page cache of the graph, the model and other loaders need the rest


def memory_for_batches(processes: int = 1, available: int | None = None) -> int:
    """Returns the bytes of batches in flight that ``channel_size: auto`` allows each of ``processes`` processes of a host.
    available: bytes that a host has; None: this one."""
    return max(1, (available_memory() if available is None else available) // _SHARE // processes)


def with_channel_bytes(sampling: SamplingOptions, ranks_on_host: int, available: int | None = None) -> SamplingOptions:
    """Replaces ``channel_size: auto`` by a number of bytes. It may differ between ranks: no batch depends on it. available: as
    for `memory_for_batches`."""
    if sampling.channel_size != "auto":
        return sampling
    return replace(sampling, channel_size=memory_for_batches(ranks_on_host, available))


class InFlight:
    """The limit of batches in flight of a loader: requested or made, and not yet delivered.

    most: limit of their number, regardless of their size.  why: the options that set it, for the log.  budget: bytes of all
    loaders of the rank together; None: no limit.
    """

    def __init__(self, most: int, why: str, budget: int | None) -> None:
        self._most, self._why, self._budget = most, why, budget
        self._logged = False

    @classmethod
    def of(cls, sampling: SamplingOptions, most: int, why: str) -> InFlight:
        return cls(most, why, with_channel_bytes(sampling, 1).channel_bytes)

    def allowed(self, largest: int, others: int = 0) -> int:
        """Returns the number of batches that may be in flight now.

        largest: bytes of the loader's largest batch so far, 0 before the first.  others: bytes in flight for the other
        loaders of the rank.
        """
        if self._budget is None:
            return self._most
        if not largest:  # the size is unknown before the first batch: with many, the first ones might exceed the memory
            return min(LEAST, self._most)
        return min(self._most, max(LEAST, (self._budget - others) // largest))

    def log_once(self, largest: int) -> None:
        """Logs the limit once the size of a batch is known."""
        if not self._logged:
            self._logged = True
            limit = "no limit" if self._budget is None else f"{self._budget / 1e6:,.0f} MB"
            _log.info(
                "batches in flight of this rank: up to %d of %d (%s), %.3g MB each; sampling.channel_size: %s.",
                self.allowed(largest),
                self._most,
                self._why,
                largest / 1e6,
                limit,
            )
