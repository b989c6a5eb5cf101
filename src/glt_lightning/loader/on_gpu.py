"""Whether the GPU that trains also samples, and the producer with which it does."""

from __future__ import annotations

import json
import logging

import torch

from glt_lightning.cluster.graph import ClusterGraph
from glt_lightning.data.graph import AnyGraph
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import NativeError
from glt_lightning.loader.device_producer import DeviceProducer
from glt_lightning.ops.cuda.kernels import Kernels
from glt_lightning.ops.cuda.stream import wait_for
from glt_lightning.options import CacheOptions, SamplingOptions
from glt_lightning.producer.once_per_host import Exchange, on_all_or_none
from glt_lightning.producer.samplers import Samplers
from glt_lightning.producer.shared_uva import share_uva
from glt_lightning.sampler.khop import KHopSampler
from glt_lightning.sampler.request import SamplerConfig, drawn_from
from glt_lightning.store.device_store import DeviceStore, open_store
from glt_lightning.store.placement import BatchArrays

_log = logging.getLogger(__name__)


def gpu_kernels(
    graph: AnyGraph, sampling: SamplingOptions, device: torch.device, exchange: Exchange, name: str
) -> Kernels | None:
    """The kernels of ``device`` if it is a GPU that shall sample the graph; None where the CPU does. All ranks call it, and
    get the same. exchange: gives every rank the texts of all.  name: of this rank.

    Raises `NativeError` for a GPU that cannot do what ``sampling.topology`` asks for; ``auto`` takes the CPU then, and says
    so.
    """
    asked = sampling.topology
    if sampling.worker_devices and not isinstance(graph, (LocalPartition, ClusterGraph)):
        _log.info(
            "sampling.worker_devices: no effect, for servers make whole batches; theirs are cluster.worker_devices."
        )
    if sampling.worker_devices or asked == "cpu":
        return None
    given = [
        f"{name} {kind}" for name, kind in (("topology", asked), ("features", sampling.features)) if kind != "auto"
    ]
    if not isinstance(graph, (LocalPartition, ClusterGraph)):
        if given:
            _log.info("sampling: servers make whole batches; for their cluster.worker_devices: %s.", ", ".join(given))
        return None
    if not is_gpu(device):
        if given:
            _log.info("sampling: training on %s; without effect: %s.", device, ", ".join(given))
        return None
    if sampling.num_workers:
        _log.info("the CPU samples, in %d processes; with sampling.num_workers 0 the GPU does.", sampling.num_workers)
        return None
    kernels, failure = None, ""
    try:
        kernels = Kernels.open(device)
    except NativeError as error:
        failure = str(error)
    failures = [(who, text) for who, text in map(json.loads, exchange(json.dumps([name, failure]))) if text]
    if not failures:
        return kernels
    who, text = (name, failure) if failure else failures[0]
    if asked != "auto":
        raise NativeError(f"{who}: {text}")
    _log.warning("sampling on the CPU, because the GPU of %s cannot: %s", who, text)
    return None


def make_device_producer(
    partition: LocalPartition,
    samplers: Samplers | None,
    kernels: Kernels,
    sampling: SamplingOptions,
    cache: CacheOptions,
    exchange: Exchange,
    name: str,
) -> DeviceProducer:
    """Makes batches with a GPU. samplers: know who has the parts that are not mapped here; None if all are. All ranks call
    it; ``exchange`` and the rank's ``name``: see `producer.shared_uva.share_uva`.

    Raises `OptionError` for more memory than the GPU or the host has, on other ranks `PeerError`."""
    arrays = BatchArrays.of(partition, drawn_from(partition.manifest, sampling.draw))

    def open_it() -> DeviceStore:
        return open_store(
            arrays,
            kernels,
            topology=sampling.topology,
            features=sampling.features,
            cache=cache,
            share=share_uva(arrays, exchange, name),
            agree=lambda place: on_all_or_none(exchange, name, place, undo=lambda _: None),
        )

    for budget, given, option, kind in (
        ("device", cache.device, "features", sampling.features),
        ("device_topology", cache.device_topology, "topology", sampling.topology),
    ):
        if given is not None and kind not in ("auto", "hybrid"):
            _log.info("cache.%s: no effect with sampling.%s %s.", budget, option, kind)
    store = on_all_or_none(exchange, name, open_it, undo=DeviceStore.close)
    _log.info("%s", store.said())
    wait_for(kernels.device)  # batches are made on other streams than the one that filled it

    def make(config: SamplerConfig) -> KHopSampler:
        if samplers is None:
            return KHopSampler(partition, config, store=store)
        return KHopSampler(partition, config, store=store, remote=samplers.remote, cache=samplers.kept)

    return DeviceProducer(
        kernels.device,
        make,
        prefetch=sampling.prefetch,
        threads=1 if samplers is None else sampling.concurrency,
        timeout_s=sampling.timeout_s,
        release=store.close,
    )


def is_gpu(device: torch.device) -> bool:
    """Whether our kernels may run there."""
    return device.type == "cuda"
