"""Sampling inside the training process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from glt_lightning.channel.slots import PinMemory, Slot, SlotPool
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import SamplerError
from glt_lightning.ops.file_map import guarded
from glt_lightning.producer.samplers import Sampler
from glt_lightning.sampler.khop import KHopSampler
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample

_SLOTS = 3  # the batch in use, the one just left, and one to write


class InlineProducer:
    """Makes each batch when it is asked for.

    make_sampler: for a graph whose parts are not all mapped in ``partition``.
    """

    restarts = 0

    def __init__(
        self,
        partition: LocalPartition,
        pin: PinMemory | None = None,
        make_sampler: Callable[[SamplerConfig], Sampler] | None = None,
    ) -> None:
        self._make_sampler = make_sampler or partial(KHopSampler, partition)
        self._slots = SlotPool(Slot, _SLOTS, pin)
        self._samplers: dict[SamplerConfig, Sampler] = {}

    @property
    def fresh_slots(self) -> int:
        return self._slots.fresh_slots

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        for request in requests:
            yield self._make(config, request)

    @guarded()  # nobody would start this process again, as a sampler process is
    def _make(self, config: SamplerConfig, request: BatchRequest) -> Sample:
        sampler = self._samplers.get(config)
        if sampler is None:
            sampler = self._samplers[config] = self._make_sampler(config)
        draft = sampler.draft(request)
        slot = self._slots.take() or self._slots.take_fresh()
        slot.reserve(draft.nbytes)
        return Sample(request.number, draft.write(self._slots.lend(slot, draft.nbytes)), draft.counters)

    def close(self) -> None:
        self._slots.close()
        self._samplers.clear()
        self._make_sampler = _no_sampler  # the other one holds the graph, and a loader that is closed holds this object


def _no_sampler(_config: SamplerConfig) -> Sampler:
    raise SamplerError("the loader's context is closed; make a new loader.")
