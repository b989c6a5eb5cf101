"""Whether the GPU that trains also samples, and the producer with which it does."""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from glt_lightning.base import GpuBudgets, NativeError, SamplingOptions
from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition
from glt_lightning.kernels import Kernels, wait_for
from glt_lightning.loader.collate import Batch
from glt_lightning.loader.device_producer import DeviceProducer
from glt_lightning.sampling import KHopSampler, SamplerConfig, drawn_from, placed_weights
from glt_lightning.workers import PinMemory, ProducerSetup, Ranks, Samplers, SamplerSource, share_uva

_log = logging.getLogger(__name__)
_DEFAULTS, _OF_A_GPU = SamplingOptions(), ("topology_bytes", "feature_bytes", "prefetch")


def gpu_kernels(sampling: SamplingOptions, device: torch.device, ranks: Ranks) -> Kernels | None:
    """The kernels of ``device`` if it is a GPU that shall sample the mapped parts; None where the CPU does. All ranks call
    it, and get the same.

    Raises `NativeError` for a GPU that cannot do what ``sampling.topology`` asks for; ``auto`` takes the CPU then, and says
    so.
    """
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
    manifest, weight_attr = partition.manifest, sampling.weight_attr
    draw = drawn_from(manifest, sampling.draw, weight_attr, time_attr=sampling.time_attr)
    arrays = BatchArrays.of(partition, replace(draw, weights=placed_weights(manifest, weight_attr)))
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


# Asynchronous copies of batches to a GPU out of recycled page-locked memory.


class CopiesInFlight:
    """Keeps batches alive until the copies from their memory are done.

    A batch's memory is used again as soon as the batch is gone, and an asynchronous copy reads it later than the call
    that started it. So each batch is held together with an event of the stream that copies it.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[torch.cuda.Event, Any]] = deque()

    def copy(self, batch: Batch, device: torch.device) -> Batch:
        """Starts copying ``batch`` to the CUDA ``device`` on its current stream; returns the copy. A batch that the device
        made itself comes back as it is."""
        self.release()
        if _is_on(batch, device):
            return batch
        with self.held(batch, device):
            return copy.copy(batch).to(device, non_blocking=True)

    @contextmanager
    def held(self, batch: Any, device: torch.device) -> Iterator[None]:
        """Keeps the memory of a batch that is copied to ``device`` in here, on its current stream."""
        if device.type == "cpu":
            yield
            return
        self.release()
        kept = copy.copy(batch)  # PyG moves in place
        yield
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._held.append((event, kept))

    def release(self) -> None:
        """Forgets the batches whose copies are done. Never waits."""
        while self._held and self._held[0][0].query():
            self._held.popleft()

    def clear(self) -> None:
        """Forgets all batches; whoever lets go of their memory waits for the device first."""
        self._held.clear()


def _is_on(batch: Batch, device: torch.device) -> bool:
    tensors = (value for store in batch.stores for value in store.values() if isinstance(value, torch.Tensor))
    return all(tensor.device == device for tensor in tensors)


# Page-locking the memory of batches for asynchronous copies to a GPU.


_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every context, not only for that of one device
_OUT_OF_MEMORY = 2


def cuda_pin(device: torch.device | None = None) -> PinMemory:
    """What registers memory with the CUDA driver, from any thread. device: whom batches are for; None, or one that is no
    CUDA device: the one that is current now."""
    if device is None or device.type != "cuda" or device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return partial(_register, device)


def _register(device: torch.device, address: int, nbytes: int) -> Callable[[], None]:
    # A thread that never chose a device has cuda:0: batches are mapped by one that reads a socket.
    with torch.cuda.device(device):
        status = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE))
    if status != 0:
        why = " The host, or this container, has no memory left that can be locked." if status == _OUT_OF_MEMORY else ""
        raise NativeError(
            f"cannot page-lock {nbytes:,} bytes of batch memory (cudaHostRegister returned {status}).{why} Lower "
            "sampling.prefetch, or set sampling.pin_memory: false."
        )
    return partial(_unregister, device, address)


def _unregister(device: torch.device, address: int) -> None:
    """Waits for the device first: a copy that was started may still read this memory, and CUDA does not say that it would
    wait. Memory is unregistered when a slot grows and when a loader's session closes, not in every batch."""
    if sys.is_finalizing():
        return
    with torch.cuda.device(device):
        with suppress(RuntimeError):  # a device that failed copies nothing any more, and has been heard of
            torch.cuda.synchronize(device)
        torch.cuda.cudart().cudaHostUnregister(address)
