"""Batches made by the GPU that trains, on streams of their own, while it trains on others."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from itertools import islice

import torch
from torch import Tensor

from glt_lightning.errors import SamplerError
from glt_lightning.ops.cuda.stream import Mark, SideStream, wait_for
from glt_lightning.producer.inline import OwnSamplers
from glt_lightning.producer.samplers import Sampler, Samplers
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample

_CLOSE_S = 30.0  # for the batches that are being made when the producer is closed

_log = logging.getLogger(__name__)


class DeviceProducer(OwnSamplers):
    """Makes batches ahead of those in use, in threads that each have a stream of ``device``. Close it.

    make_sampler: called once per thread and configuration; its drafts lie on the device.
    prefetch: batches ahead of the one that is given out.
    threads: batches made at once; more than one where they wait for other processes.  timeout_s: for one batch.
    release: frees what the samplers use, when the device has done with it.
    samplers: serve the mapped parts and ask the owners of the others; None where all parts are mapped.
    """

    fresh_slots = 0

    def __init__(
        self,
        device: torch.device,
        make_sampler: Callable[[SamplerConfig], Sampler],
        *,
        prefetch: int,
        threads: int = 1,
        timeout_s: float = 300.0,
        release: Callable[[], None] = lambda: None,
        samplers: Samplers | None = None,
    ) -> None:
        super().__init__(samplers)
        self._device, self._make_sampler, self._release = device, make_sampler, release
        self._prefetch, self._timeout_s = prefetch, timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"glt-{device}")
        self._own = threading.local()
        self._unfinished: set[Future[tuple[Sample, Mark]]] = set()
        self._closed = False

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        ahead: deque[tuple[BatchRequest, Future[tuple[Sample, Mark]]]] = deque()
        try:
            while True:
                for request in islice(requests, self._prefetch + 1 - len(ahead)):
                    ahead.append((request, self._submit(config, request)))
                if not ahead:
                    return
                sample, mark = self._wait(*ahead.popleft())
                mark.hand_over(value for value in sample.arrays.values() if isinstance(value, Tensor))
                yield sample
        finally:
            for _, future in ahead:
                future.cancel()

    def _submit(self, config: SamplerConfig, request: BatchRequest) -> Future[tuple[Sample, Mark]]:
        if self._closed:
            raise SamplerError("the loader's context is closed; make a new loader.")
        future = self._threads.submit(self._make, config, request)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _wait(self, request: BatchRequest, future: Future[tuple[Sample, Mark]]) -> tuple[Sample, Mark]:
        try:
            return future.result(self._timeout_s)
        except CancelledError:
            raise SamplerError("the loader's context is closed; make a new loader.") from None
        except TimeoutError:
            if future.done():  # an error of the sampler
                raise
            raise SamplerError(
                f"batch {request.number} was not made within {self._timeout_s:g} s (sampling.timeout_s) on {self._device}."
            ) from None

    def _make(self, config: SamplerConfig, request: BatchRequest) -> tuple[Sample, Mark]:
        own = self._own
        if not hasattr(own, "samplers"):
            own.stream, own.samplers = SideStream(self._device), {}
        with own.stream.current():
            if config not in own.samplers:
                own.samplers[config] = self._make_sampler(config)
            draft = own.samplers[config].draft(request)
        return Sample(request.number, draft.values(), draft.counters), own.stream.mark()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.close_samplers()  # first, so that no thread of this process waits for other processes any more
            self._threads.shutdown(wait=False, cancel_futures=True)
            if wait(tuple(self._unfinished), _CLOSE_S).not_done:
                _log.error(
                    "%s still makes a batch after %g s; what it reads is not given back.", self._device, _CLOSE_S
                )
                return
            self._threads.shutdown()
            try:
                wait_for(self._device)
            finally:
                self._release()
