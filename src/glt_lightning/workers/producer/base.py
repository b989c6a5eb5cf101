"""The producers of a loader's Samples, and how a graph opens one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from glt_lightning.base import CacheOptions, OptionError, SamplingOptions
from glt_lightning.graph import AnyGraph
from glt_lightning.sampling import BatchRequest, Sample, SamplerConfig
from glt_lightning.workers.cluster.owner_server import OwnerAddresses
from glt_lightning.workers.cluster.remote_rows import Traffic
from glt_lightning.workers.producer.ranks import Ranks
from glt_lightning.workers.slots import PinMemory

_log = logging.getLogger(__name__)


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


class DeviceRowsLike(Protocol):
    """Rows on the training device, which batches leave out."""

    def complete(self, batch: Any) -> Any:
        """Adds the rows on the device to a batch that was moved there; returns the same object."""


@dataclass(frozen=True)
class OpenedProducer:
    """A producer, the rows that its batches leave out if there are any, and ``close`` for both, which may be called twice."""

    producer: Producer
    device_rows: DeviceRowsLike | None
    close: Callable[[], None]


class SampledGraph(AnyGraph, Protocol):
    """A graph that opens the producer of its batches: in this rank (`loader.mapped`), in the ranks of several hosts together
    (`loader.hosts`), or on graph servers (`server.served`)."""

    def open_producer(self, setup: ProducerSetup) -> OpenedProducer:
        """Opens the producer of one rank. A collective call of ``setup.ranks``."""


class ProducedElsewhere:
    """A `SampledGraph` with a producer of the program's own. make_producer: its argument page-locks memory, or is None."""

    def __init__(self, graph: AnyGraph, make_producer: Callable[[PinMemory | None], Producer]) -> None:
        self._graph, self._make_producer = graph, make_producer
        self.manifest, self.schema = graph.manifest, graph.schema
        self.split, self.edge_split, self.seeds = graph.split, graph.edge_split, graph.seeds

    def open_producer(self, setup: ProducerSetup) -> OpenedProducer:
        """Raises `OptionError` for ``cache.device``; warns of other budgets of ``cache``, which no sampler of ours uses."""
        refuse_device_rows(setup.cache)
        refuse_own_batches(setup.sampling)
        given = [f"cache.{name}" for name in ("ratio", "bytes", "topology", "memory") if getattr(setup.cache, name)]
        if given and setup.ranks.rank == 0:
            _log.warning("%s: no effect, because make_producer makes the batches. Remove them.", ", ".join(given))
        producer = self._make_producer(setup.pin)
        return OpenedProducer(producer, None, producer.close)


def refuse_device_rows(cache: CacheOptions) -> None:
    """Raises `OptionError` for a cache on the training device, where the producer's batches contain all rows."""
    if cache.device_bytes is not None:
        raise OptionError(
            "cache.device: the training process must map the graph, but here a graph server or a producer of the program's own "
            "makes whole batches. Train with strategy glt_worker, or remove cache.device."
        )


def refuse_own_batches(sampling: SamplingOptions) -> None:
    """Raises `OptionError` for a `BatchSampler`, where others than the training process make the batches."""
    if sampling.batch_sampler is not None:
        raise OptionError(
            "sampling.batch_sampler: runs in the training process, and here a graph server or a producer of the program's own "
            "makes the batches. Remove it, or write a sampling.picker, which runs wherever rows are."
        )
