"""Whether the GPU that trains also samples, and the producer with which it does."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from glt_lightning.base import GpuBudgets, NativeError, SamplerError, SamplingOptions
from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition
from glt_lightning.kernels import Kernels, Mark, SideStream, wait_for
from glt_lightning.sampling import BatchRequest, KHopSampler, Sample, SamplerConfig, drawn_on_gpu
from glt_lightning.workers.producer.base import InFlight, ProducerSetup, Ranks
from glt_lightning.workers.producer.group import share_uva
from glt_lightning.workers.producer.look_ahead import LoaderRun, LookAhead
from glt_lightning.workers.producer.samplers import OwnSamplers, Sampler, Samplers, SamplerSource

_log = logging.getLogger(__name__)


_DEFAULTS, _OF_A_GPU = SamplingOptions(), ("topology_bytes", "feature_bytes", "prefetch")


def gpu_kernels(setup: ProducerSetup) -> Kernels | None:
    """Returns the kernels of the training device if it is a GPU that shall sample the mapped parts; None where the CPU does. All
    ranks call it, and get the same.

    Raises `NativeError` for a GPU that cannot do what ``sampling.topology`` asks for; ``auto`` takes the CPU then, and says
    so.
    """
    sampling, ranks, device = setup.sampling, setup.ranks, torch.device(setup.device)
    asked = sampling.topology
    if sampling.worker_devices:
        _warn(sampling, ("prefetch",), ranks, "sampler processes sample", "set sampling.concurrency")
        return None
    if asked == "cpu":
        _warn(sampling, _OF_A_GPU, ranks, "sampling.topology is cpu", "choose another topology")
        return None
    if not is_gpu(device):
        _warn(sampling, ("topology", "features", *_OF_A_GPU), ranks, f"training on {device}", "train on a GPU")
        return None
    if sampling.num_workers:
        _warn(sampling, _OF_A_GPU, ranks, "sampler processes sample on the CPU", "set num_workers 0 or worker_devices")
        _log.info("the CPU samples, in %d processes; with sampling.num_workers 0 the GPU does.", sampling.num_workers)
        return None
    kernels, failure = None, ""
    try:
        kernels = Kernels.open(device)
    except NativeError as error:
        failure = str(error)
    failures = [(who, text) for who, text in map(json.loads, ranks.exchange(json.dumps([ranks.name, failure]))) if text]
    if not failures:
        return kernels
    who, text = (ranks.name, failure) if failure else failures[0]
    if asked != "auto":
        raise NativeError(f"{who}: {text}")
    _log.warning("sampling on the CPU, because the GPU of %s cannot: %s", who, text)
    return None


def _warn(sampling: SamplingOptions, names: Sequence[str], ranks: Ranks, because: str, instead: str) -> None:
    """Names those options that are given and have no effect, once in a job."""
    given = [f"{name} {value}" for name in names if (value := getattr(sampling, name)) != getattr(_DEFAULTS, name)]
    if given and ranks.rank == 0:
        _log.warning(
            "sampling: %s, so these options have no effect: %s. Remove them, or %s.", because, ", ".join(given), instead
        )


def make_device_producer(
    partition: LocalPartition, source: SamplerSource, kernels: Kernels, setup: ProducerSetup
) -> DeviceProducer:
    """Makes batches with a GPU. partition: the mapped parts.  source: of these, where parts are remote also how to reach
    their owners. A collective call of ``setup.ranks``.

    Raises `OptionError` for more memory than the GPU or the host has, on other ranks `PeerError`."""
    sampling, ranks = setup.sampling, setup.ranks
    arrays = BatchArrays.of(partition, drawn_on_gpu(partition.manifest, sampling))
    if sampling.importance_neighbors is not None:
        arrays = replace(arrays, edges=False)  # batches have no stored edge
    budgets = GpuBudgets.of(sampling, setup.cache)
    for budget, given, option, kind in (
        ("topology_bytes", budgets.topology, "topology", sampling.topology),
        ("feature_bytes", budgets.features, "features", sampling.features),
    ):
        if given is not None and kind not in ("auto", "hybrid") and ranks.rank == 0:
            _log.warning(
                "sampling.%s has no effect with sampling.%s: %s. Remove it, or choose hybrid.", budget, option, kind
            )

    def open_it() -> DeviceStore:
        return DeviceStore.open(
            arrays,
            kernels,
            topology=sampling.topology,
            features=sampling.features,
            budgets=budgets,
            share=share_uva(arrays, ranks),
            agree=lambda place: ranks.all_or_none(place, undo=lambda _: None),
        )

    with ExitStack() as opened:
        samplers = Samplers(source, partition=partition)
        opened.callback(samplers.close)
        store = ranks.all_or_none(open_it, undo=DeviceStore.close)
        opened.callback(store.close)
        _log.info("%s", store.summary())
        wait_for(kernels.device)  # batches are made on other streams than the one that filled it

        def make(config: SamplerConfig) -> KHopSampler:
            return KHopSampler(partition, config, store=store, remote=samplers.remote, cache=samplers.cache)

        producer = DeviceProducer(
            kernels.device,
            make,
            prefetch=sampling.prefetch,
            threads=1 if source.is_whole else sampling.concurrency,
            timeout_s=sampling.timeout_s,
            release=store.close,
            samplers=samplers,
        )
        opened.pop_all()  # all of it is the producer's now
        return producer


def is_gpu(device: torch.device) -> bool:
    """Whether our kernels may run there."""
    return device.type == "cuda"


# The producer: batches are made in threads, on streams of their own, while training uses earlier batches.


_CLOSE_S = 30.0  # for the batches that are being made when the producer is closed
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
        while run.tasks:  # now: a finished batch takes memory of the device, and no further run may come to drop it
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
