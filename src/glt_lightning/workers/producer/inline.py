"""Sampling inside the training process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glt_lightning.kernels import guarded
from glt_lightning.sampling import BatchRequest, Sample, SamplerConfig
from glt_lightning.workers.cluster.owner_server import OwnerAddresses
from glt_lightning.workers.cluster.remote_rows import Traffic
from glt_lightning.workers.producer.samplers import Sampler, Samplers
from glt_lightning.workers.slots import PinMemory, Slot, SlotPool

_SLOTS = 3  # the batch in use, the one before, which the loop variable may still reference, and one to write


class OwnSamplers:
    """The part of `JoiningProducer` of a producer whose samplers are in this process. It owns the samplers.

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
        """There is nothing to replace: these samplers end with their rank."""


class InlineProducer(OwnSamplers):
    """Makes each batch when it is requested, in the calling thread."""

    def __init__(self, samplers: Samplers, pin: PinMemory | None = None) -> None:
        super().__init__(samplers)
        self._make_sampler = samplers.make
        self._slots = SlotPool(Slot, _SLOTS, pin)
        self._made: dict[SamplerConfig, Sampler] = {}

    @property
    def fresh_slots(self) -> int:
        return self._slots.fresh_slots

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
