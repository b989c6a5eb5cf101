"""The graph as samplers open it, in a sampler process or in the trainer: local parts, and the owners of the remote parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from glt_lightning.base import PartitionError, PickerSpec, SamplerError, SamplingOptions
from glt_lightning.graph import DeviceIndex, HostTier, LocalPartition, RemoteCache
from glt_lightning.kernels import guarded
from glt_lightning.sampling import (
    BatchRequest,
    DeviceSource,
    Draft,
    KHopSampler,
    OwnBatches,
    RemoteRows,
    Sample,
    SamplerConfig,
    neighbor_source,
)
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner import OwnerAddresses, OwnerServer, connect_owners
from glt_lightning.workers.cluster.remote_rows import PeerRows, Traffic
from glt_lightning.workers.producer.base import InFlight, with_channel_bytes
from glt_lightning.workers.slots import PinMemory, Slot, SlotPool

if TYPE_CHECKING:
    from glt_lightning.sampling import GpuSamplers


class Sampler(Protocol):
    """Makes batches for one thread: a `sampling.khop.KHopSampler`, the sampler of a GPU, or one of the user's program."""

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch. It must be written before the next is requested."""


@dataclass(frozen=True)
class SamplerSource:
    """The graph for samplers, as plain values that can be sent to a process.

    graph: the partition, or the path by which another process opens it.  options_hash: in its manifest.  parts: those to map.
    link: the identity for calls to owners of other parts; None if all parts are mapped.  serve: address at which the mapped
    parts are served; None: they are not served.  owners: the owners of the other parts, if known from the start.
    memory: path of the `HostTier` of the parts; None: their attributes are read from the mapped files.
    on_device: path of the `DeviceIndex` of the trainer; None: batches have all rows.
    gpus: the GPUs that sample; None: the CPU samples.
    picker: the picker that other processes may ask for, too; None: none.
    """

    graph: LocalPartition | str
    options_hash: str
    parts: tuple[int, ...]
    link: Link | None = None
    serve: str | None = None
    owners: tuple[OwnerAddresses, ...] = ()
    memory: str | None = None
    on_device: str | None = None
    gpus: DeviceSource | None = None
    picker: PickerSpec | None = None

    @classmethod
    def of(cls, partition: LocalPartition, link: Link | None = None, **changes: Any) -> SamplerSource:
        """Makes the source of the parts of ``partition``. changes: other fields."""
        if partition.memory is not None:
            changes = {"memory": partition.memory.path} | changes
        return cls(partition, partition.manifest.options_hash, partition.parts, link, **changes)

    @property
    def directory(self) -> str:
        """The path by which another process opens the partition; rows that were added to it are copied for that."""
        return self.graph if isinstance(self.graph, str) else self.graph.location

    @property
    def is_whole(self) -> bool:
        """True if all parts are mapped, so that samplers never wait for other processes."""
        return self.link is None

    @property
    def waits(self) -> bool:
        """True if samplers wait for other processes or for a disk."""
        return not self.is_whole or self.memory is not None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values. Send them over private channels only: the link's token is among them."""
        return {
            "directory": self.directory,
            "options_hash": self.options_hash,
            "parts": list(self.parts),
            "link": None if self.link is None else self.link.to_json(),
            "serve": self.serve,
            "holders": [owner.to_json() for owner in self.owners],
            "memory": self.memory,
            "on_device": self.on_device,
            "gpus": None if self.gpus is None else self.gpus.to_json(),
            "picker": None if self.picker is None else self.picker.to_wire(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> SamplerSource:
        return cls(
            raw["directory"],
            raw["options_hash"],
            tuple(raw["parts"]),
            None if raw["link"] is None else Link.from_json(raw["link"]),
            raw["serve"],
            tuple(OwnerAddresses.from_json(owner) for owner in raw["holders"]),
            raw["memory"],
            raw["on_device"],
            None if raw["gpus"] is None else DeviceSource.from_json(raw["gpus"]),
            None if raw["picker"] is None else PickerSpec.from_wire(raw["picker"]),
        )


class Samplers:
    """Opens a `SamplerSource` and makes samplers, one per thread. Close it: that ends its server and its calls.

    works_for: pid of the training process, if it is another process.  partition: the parts of ``source``, if this process
    has opened them already; they stay open when this object is closed.  own: makes the batches whose config names a
    ``batch_sampler`` of the user's program.
    """

    def __init__(
        self,
        source: SamplerSource,
        index: int = 0,
        works_for: int | None = None,
        partition: LocalPartition | None = None,
        own: OwnBatches | None = None,
    ) -> None:
        self._index, self._opens, self._own = index, partition is None, own
        if partition is None:
            memory = None if source.memory is None else HostTier.open(source.memory)
            partition = LocalPartition.open(source.directory, parts=source.parts, memory=memory)
        if partition.manifest.options_hash != source.options_hash:
            raise PartitionError(
                f"{source.directory}: the partition was replaced while this job runs. Start the job again."
            )
        self._opened: LocalPartition | None = partition
        where = source.on_device
        self._on_device = None if where is None else DeviceIndex.open(where, self._partition.manifest)
        self._owner_server: OwnerServer | None = None
        self._rows: PeerRows | None = None
        self._cache = RemoteCache()
        self._gpu = None if source.gpus is None else _open_gpu(source.gpus, index, self._partition)
        self.version = 0
        link = source.link
        if link is not None and source.serve is not None:
            name = f"{link.name}, sampler {index}"
            self._owner_server = OwnerServer(self._partition, link.named(name), source.serve, works_for, source.picker)
        elif link is not None:
            self._rows = connect_owners(self._partition, source.owners, link, link.open_transport(), index)

    @property
    def _partition(self) -> LocalPartition:
        if self._opened is None:
            raise SamplerError("the loader's context is closed; open a new one.")
        return self._opened

    @property
    def address(self) -> str | None:
        """The address at which the mapped parts are served; None if they are not."""
        return None if self._owner_server is None else self._owner_server.address

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Sets the owners of the other parts."""
        assert self._owner_server is not None
        self._rows = self._owner_server.join(owners, self._index)

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Lets samplers made from now on use a `RemoteCache`, and increases `version`, so that threads replace older samplers."""
        before, self._cache = self._cache, RemoteCache.from_handle(handle, self._partition.manifest)
        self.version += 1
        before.close()

    def make(self, config: SamplerConfig) -> Sampler:
        """Makes a sampler for one thread."""
        remote = self.remote
        if self._gpu is not None:
            return self._gpu.sampler(config, remote, self._cache)
        if config.own_batches is not None and self._own is not None:
            own, cached = self._own, self._cache
            return own.sampler(
                neighbor_source(self._partition, config, remote=remote, cache=cached, on_device=self._on_device)
            )
        return KHopSampler(self._partition, config, remote=remote, cache=self._cache, on_device=self._on_device)

    @property
    def remote(self) -> RemoteRows | None:
        """The owners of the parts that are not mapped; None if all are."""
        if len(self._partition.parts) == self._partition.manifest.num_parts:
            return None
        if self._rows is None:
            raise SamplerError("this sampler does not know the owners of the other parts yet: `join` was not called.")
        return self._rows

    @property
    def cache(self) -> RemoteCache:
        """The remote cache of this host."""
        return self._cache

    @property
    def traffic(self) -> Traffic:
        """Traffic with other processes so far."""
        return Traffic() if self._rows is None else self._rows.traffic

    def close(self) -> None:
        self._cache.close()
        if self._owner_server is not None:
            self._owner_server.close()
        elif self._rows is not None:
            self._rows.close()
        if self._gpu is not None:
            self._gpu.close()
        if self._opens and self._opened is not None:
            self._opened.close()
        # A closed loader may reference this object, which then must not reference the graph.
        self._opened = self._owner_server = self._on_device = None


def _open_gpu(source: DeviceSource, index: int, partition: LocalPartition) -> GpuSamplers:
    from glt_lightning.sampling import GpuSamplers  # imports torch, which CPU samplers do without

    return GpuSamplers(source, index, partition)


# Sampling inside the training process.


_OWN_SLOTS = 3  # the batch in use, the one before, which the loop's variable may still reference, and one to write


class OwnSamplers:
    """The methods of `JoiningProducer` for a producer whose samplers are in this process. It owns the samplers.

    samplers: None for a producer that joins no other ranks.
    """

    restarts = 0

    def __init__(self, samplers: Samplers | None) -> None:
        self._samplers = samplers

    @property
    def traffic(self) -> Traffic:
        """Traffic with other processes so far."""
        return Traffic() if self._samplers is None else self._samplers.traffic

    def addresses(self) -> list[str]:
        address = None if self._samplers is None else self._samplers.address
        return [] if address is None else [address]

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        if self._samplers is not None:
            self._samplers.join(owners)

    def keep(self, handle: Mapping[str, Any]) -> None:
        if self._samplers is not None:
            self._samplers.keep(handle)

    def close_samplers(self) -> None:
        """Ends the samplers' server and calls; a thread that waits for another process raises."""
        if self._samplers is not None:
            self._samplers.close()

    def tend(self) -> None:
        """Does nothing: these samplers end with their rank, so there is none to replace."""


class InlineProducer(OwnSamplers):
    """Makes each batch when it is requested, in the calling thread."""

    def __init__(self, samplers: Samplers, pin: PinMemory | None = None) -> None:
        super().__init__(samplers)
        self._make_sampler = samplers.make
        self._slots = SlotPool(Slot, _OWN_SLOTS, pin)
        self._made: dict[SamplerConfig, Sampler] = {}

    @property
    def fresh_slots(self) -> int:
        return self._slots.fresh_slots

    @property
    def slot_bytes(self) -> int:
        """Bytes of the host's memory that its batches take."""
        return self._slots.nbytes

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        for request in requests:
            yield self._make(config, request)

    @guarded()  # a file that shrinks becomes an error: SIGBUS would end training, as this process is not restarted
    def _make(self, config: SamplerConfig, request: BatchRequest) -> Sample:
        sampler = self._made.get(config)
        if sampler is None:
            sampler = self._made[config] = self._make_sampler(config)
        draft = sampler.draft(request)
        slot = self._slots.take() or self._slots.take_fresh()
        return Sample(request.number, draft.write(self._slots.lend_room(slot, draft.nbytes)), draft.counters)

    def close(self) -> None:
        self.close_samplers()
        self._slots.close()
        self._made.clear()  # they hold the graph, and a loader that is closed holds this object


def batches_in_flight(
    sampling: SamplingOptions, nbytes: Sequence[float], steps: Sequence[float], available: int, ranks: int
) -> float:
    """Bytes of batches of a rank that sampler processes make, by the rule that limits them. Memory beyond the end of a batch in
    its slot is not taken. nbytes: of the largest batch of each loader that is open at a time.  steps: batches of a pass over
    each."""
    most = sampling.num_workers * sampling.concurrency
    limited = InFlight.of(with_channel_bytes(sampling, ranks, available), most, "")
    # and the one in training
    return sum(min(n, limited.allowed(max(1, round(each))) + 1) * each for each, n in zip(nbytes, steps, strict=True))
