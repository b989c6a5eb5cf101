"""Batches made by the GPU that trains, on separate streams, while it trains on earlier batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from glt_lightning.base import SamplerError
from glt_lightning.kernels import Mark, SideStream, wait_for
from glt_lightning.sampling import BatchRequest, Sample, SamplerConfig
from glt_lightning.workers import InFlight, LoaderRun, LookAhead, OwnSamplers, Sampler, Samplers

_CLOSE_S = 30.0  # for the batches that are being made when the producer is closed

_log = logging.getLogger(__name__)


_Made = tuple[Sample, Mark]  # and when its device has made it
_Task = tuple[BatchRequest, Future[_Made]]
_Run = LoaderRun[_Task]


class DeviceProducer(OwnSamplers, LookAhead[_Task, _Made]):
    """Makes batches ahead of those in use, in threads that each have a stream of ``device``. Close it.

    make_sampler: called once per thread and configuration; its drafts lie on the device.
    prefetch: batches ahead of the one that is given out.
    threads: batches made at once; more than one where they wait for other processes.  timeout_s: for one batch.
    release: frees what the samplers use, when the device has done with it.
    samplers: serve the mapped parts and request rows of the other parts from their owners; None where all parts are mapped.
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
        OwnSamplers.__init__(self, samplers)
        most = InFlight(prefetch + 1, f"sampling.prefetch {prefetch}", None)
        LookAhead.__init__(self, most, in_use=1)  # a batch takes memory of the device also while training uses it
        self._device, self._make_sampler, self._release = device, make_sampler, release
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"glt-{device}")
        self._own = threading.local()
        self._unfinished: set[Future[_Made]] = set()
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the loader's session is closed; open a new one.")

    def _ask(self, run: _Run, request: BatchRequest) -> _Task:
        future = self._threads.submit(self._make, run.config, request)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return request, future

    def _wait(self, run: _Run, task: _Task) -> _Made:
        request, future = task
        try:
            return future.result(self._timeout_s)
        except CancelledError:
            raise SamplerError("the loader's session is closed; open a new one.") from None
        except TimeoutError:
            if future.done():  # an error of the sampler
                raise
            raise SamplerError(
                f"batch {request.number} was not made within {self._timeout_s:g} s (sampling.timeout_s) on {self._device}."
            ) from None

    def _nbytes(self, made: _Made) -> int:
        return 0  # sampling.prefetch is a number of batches, whatever their size

    def _deliver(self, made: _Made) -> Sample:
        sample, mark = made
        mark.hand_over(value for value in sample.arrays.values() if isinstance(value, Tensor))
        return sample

    def _leave(self, run: _Run) -> None:
        while (
            run.tasks
        ):  # dropped now: a finished batch takes memory of the device, and no further run may come to drop it
            _, future = run.tasks.popleft()
            future.cancel()

    def _make(self, config: SamplerConfig, request: BatchRequest) -> _Made:
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
                    "%s is still making a batch after %g s; the memory that it reads is not released.",
                    self._device,
                    _CLOSE_S,
                )
                return
            self._threads.shutdown()
            try:
                wait_for(self._device)
            finally:
                self._release()
