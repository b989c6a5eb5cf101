"""Whether the GPU that trains also samples, and the producer with which it does."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from glt_lightning.base import GpuBudgets, NativeError, SamplingOptions
from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition, open_store
from glt_lightning.kernels import Kernels, wait_for
from glt_lightning.loader.device_producer import DeviceProducer
from glt_lightning.sampling import KHopSampler, SamplerConfig, drawn_from, placed_weights
from glt_lightning.workers import ProducerSetup, Ranks, Samplers, SamplerSource, on_all_or_none, share_uva

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
        return open_store(
            arrays,
            kernels,
            topology=sampling.topology,
            features=sampling.features,
            budgets=budgets,
            share=share_uva(arrays, ranks),
            agree=lambda place: on_all_or_none(ranks, place, undo=lambda _: None),
        )

    with ExitStack() as opened:
        samplers = Samplers(source, partition=partition)
        opened.callback(samplers.close)
        store = on_all_or_none(ranks, open_it, undo=DeviceStore.close)
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
