"""The producers of a loader's Samples, and how a graph opens one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from glt_lightning.base import CacheOptions, SamplingOptions
from glt_lightning.graph import AnyGraph
from glt_lightning.sampling import BatchRequest, Sample, SamplerConfig
from glt_lightning.workers.cluster.owner_server import OwnerAddresses
from glt_lightning.workers.cluster.remote_rows import Traffic
from glt_lightning.workers.producer.ranks import Ranks
from glt_lightning.workers.slots import PinMemory


class Producer(Protocol):
    """Makes the batches of any number of loaders, in the order of their requests."""

    @property
    def restarts(self) -> int:
        """Number of sampler processes that were restarted so far."""

    @property
    def fresh_slots(self) -> int:
        """Number of batches in one-off memory, because the program references the batches of all slots."""

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        """Yields one `Sample` per request. Nothing happens before the first ``next``; closing the iterator early is fine."""

    def close(self) -> None:
        """Ends every stream and frees what the producer holds. Safe to call twice."""


class JoiningProducer(Producer, Protocol):
    """A producer whose samplers serve the local parts, and request rows of the other parts from samplers of other ranks."""

    @property
    def traffic(self) -> Traffic:
        """Traffic of samplers in this process so far; sampler processes count their own."""

    def addresses(self) -> list[str]:
        """The addresses at which its samplers serve their parts; waits until all do. Raises `SamplerError` if one does not
        start."""

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Sends the samplers the owners of the other parts."""

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Sends the samplers the handle of this host's remote cache, which they use from now on."""

    def tend(self) -> None:
        """Replaces samplers that died: other ranks may need them while this one takes no batches. From another thread."""


@dataclass(frozen=True, kw_only=True)
class ProducerSetup:
    """The options and collaborators of a rank's producer.

    pin: page-locks the memory of batches; None: it is not page-locked.  device: that trains, by torch's name.
    """

    ranks: Ranks
    sampling: SamplingOptions
    cache: CacheOptions
    pin: PinMemory | None = None
    device: str = "cpu"


class SampledGraph(AnyGraph, Protocol):
    """A graph that opens the producer of its batches: in this rank (`loader.mapped`), in the ranks of several hosts together
    (`loader.hosts`), or on graph servers (`server.served`)."""

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[Producer, Any]:
        """Opens the producer of one rank, and gives ``opened`` what closes it. A collective call of ``setup.ranks``.

        Returns the producer, and the rows on the training device that its batches leave out (`loader.device_rows`), or None.
        """
