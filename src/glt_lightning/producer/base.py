"""Who makes Samples for a loader, and how a graph is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from glt_lightning.channel.slots import PinMemory
from glt_lightning.cluster.member import OwnerAddresses
from glt_lightning.cluster.remote_rows import Traffic
from glt_lightning.data.graph import AnyGraph
from glt_lightning.errors import OptionError
from glt_lightning.options import CacheOptions, SamplingOptions
from glt_lightning.producer.ranks import Ranks
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample


class Producer(Protocol):
    """Makes the batches of any number of loaders, in the order they are asked for."""

    @property
    def restarts(self) -> int:
        """Sampler processes started again so far."""

    @property
    def fresh_slots(self) -> int:
        """Batches that came in one-off memory because the consumer held every slot."""

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        """Yields one `Sample` per request. Nothing happens before the first ``next``; closing the iterator early is fine."""

    def close(self) -> None:
        """Ends every stream and frees what the producer holds. Safe to call twice."""


class JoiningProducer(Producer, Protocol):
    """A producer whose samplers serve the parts that are mapped here, and ask the samplers of other ranks for the others."""

    @property
    def traffic(self) -> Traffic:
        """What samplers in this process asked of others so far; sampler processes count for themselves."""

    def addresses(self) -> list[str]:
        """Where its samplers serve their parts; waits until all do. Raises `SamplerError` if one does not start."""

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Tells the samplers which processes serve the parts that are not mapped here."""

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Tells the samplers where this host's cache of remote rows is, from which they take rows from now on."""

    def tend(self) -> None:
        """Replaces samplers that died, which other ranks may need while this one takes no batches. From another thread."""


@dataclass(frozen=True, kw_only=True)
class ProducerSetup:
    """What the producer of a rank is made for.

    cache: what is kept in memory.  pin: page-locks the memory of batches; None: it is not.  device: what trains, as torch
    names it.
    """

    ranks: Ranks
    sampling: SamplingOptions
    cache: CacheOptions
    pin: PinMemory | None = None
    device: str = "cpu"


class DeviceRowsLike(Protocol):
    """Rows that the training device has, so that batches come without them."""

    def complete(self, batch: Any) -> Any:
        """Gives a batch, moved to the device, the rows that it came without; the same object."""


@dataclass(frozen=True)
class OpenedProducer:
    """A producer, the rows that its batches leave out if there are any, and what closes both. ``close`` may be called twice."""

    producer: Producer
    device_rows: DeviceRowsLike | None
    close: Callable[[], None]


class SampledGraph(AnyGraph, Protocol):
    """A graph that knows who makes batches of it: this rank (`loader.mapped`), the ranks of several hosts for each other
    (`loader.hosts`), graph servers (`server.served`)."""

    def open_producer(self, setup: ProducerSetup) -> OpenedProducer:
        """Starts what makes the batches of one rank. A collective call of ``setup.ranks``."""


class ProducedElsewhere:
    """A `SampledGraph` whose batches ``make_producer`` makes: it is given what page-locks memory, or None."""

    def __init__(self, graph: AnyGraph, make_producer: Callable[[PinMemory | None], Producer]) -> None:
        self._graph, self._make_producer = graph, make_producer
        self.manifest, self.schema = graph.manifest, graph.schema
        self.split, self.seeds = graph.split, graph.seeds

    def open_producer(self, setup: ProducerSetup) -> OpenedProducer:
        """Raises `OptionError` for ``cache.device``."""
        refuse_device_rows(setup.cache)
        producer = self._make_producer(setup.pin)
        return OpenedProducer(producer, None, producer.close)


def refuse_device_rows(cache: CacheOptions) -> None:
    """Raises `OptionError` where rows shall lie on the training device, and whoever makes batches puts all rows in."""
    if cache.device_bytes is not None:
        raise OptionError(
            "cache.device: needs the graph where training is, and here servers make whole batches. Train with strategy "
            "glt_worker, or leave cache.device out."
        )
