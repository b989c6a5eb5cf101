"""Whether the GPU that trains also samples, and the producer with which it does."""

from __future__ import annotations

import logging

import torch

from glt_lightning.cluster.graph import ClusterGraph
from glt_lightning.data.graph import Graph
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import NativeError, OptionError
from glt_lightning.loader.device_producer import DeviceProducer
from glt_lightning.ops.cuda import Kernels
from glt_lightning.ops.cuda_stream import wait_for
from glt_lightning.options import CacheOptions, SamplingOptions
from glt_lightning.producer.samplers import Samplers
from glt_lightning.sampler.device_sampler import DeviceSampler
from glt_lightning.sampler.device_store import open_store

_log = logging.getLogger(__name__)


def gpu_kernels(graph: Graph, sampling: SamplingOptions, device: torch.device) -> Kernels | None:
    """The kernels of ``device`` if it is a GPU that shall sample the graph; None where the CPU does.

    Raises `OptionError` or `NativeError` for a ``sampling.topology`` that asks for what cannot be. ``auto`` takes the CPU
    then, and says so.
    """
    asked = sampling.topology
    if sampling.worker_devices or asked == "cpu":
        return None
    if not is_gpu(device):
        if asked != "auto":
            _log.info("sampling.topology: training on %s, so %s has no effect.", device, asked)
        return None
    if not isinstance(graph, (LocalPartition, ClusterGraph)):
        if asked != "auto":
            raise OptionError(
                f"sampling.topology: {asked!r} needs the graph where training is, and here servers make whole batches. Give "
                "them cluster.worker_devices, or leave it out."
            )
        return None
    if sampling.num_workers or isinstance(graph, ClusterGraph):
        return None
    try:
        return Kernels.open(device)
    except NativeError as error:
        if asked != "auto":
            raise
        _log.warning("sampling on the CPU, because the GPU cannot: %s", error)
        return None


def make_device_producer(
    partition: LocalPartition,
    samplers: Samplers | None,
    kernels: Kernels,
    sampling: SamplingOptions,
    cache: CacheOptions,
) -> DeviceProducer:
    """Makes batches with a GPU. samplers: know who has the parts that are not mapped here; None if all are."""
    with_edge = sampling.with_edge or any(
        partition.manifest.edge_attrs(r) for r in range(len(partition.schema.edge_types))
    )
    store = open_store(
        partition,
        kernels,
        topology=sampling.topology,
        features=sampling.features,
        cache=cache,
        with_edge=with_edge,
    )
    wait_for(kernels.device)  # batches are made on other streams than the one that filled it
    return DeviceProducer(
        kernels.device,
        lambda config: DeviceSampler(store, partition, config),
        prefetch=sampling.prefetch,
        threads=1 if samplers is None else sampling.concurrency,
        timeout_s=sampling.timeout_s,
        release=store.close,
    )


def is_gpu(device: torch.device) -> bool:
    """Whether our kernels may run there."""
    return device.type == "cuda"
