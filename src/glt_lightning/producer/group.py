"""Worker mode over several hosts: the samplers of all ranks serve each other the parts that their hosts map."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from glt_lightning.channel.slots import PinMemory
from glt_lightning.cluster.graph import ClusterGraph
from glt_lightning.cluster.link import Link
from glt_lightning.cluster.member import OwnerAddresses, connect_owners
from glt_lightning.cluster.remote_rows import PeerRows, Traffic
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import OptionError, PartitionError, PeerError
from glt_lightning.options import CacheOptions, SamplingOptions
from glt_lightning.producer.base import Producer
from glt_lightning.producer.inline import InlineProducer
from glt_lightning.producer.once_per_host import Exchange
from glt_lightning.producer.samplers import Samplers, SamplerSource
from glt_lightning.producer.shared_tiers import SharedCache, shared_host_tier
from glt_lightning.producer.shared_uva import SamplerGpus
from glt_lightning.producer.subprocess import SubprocessProducer
from glt_lightning.producer.watch import OnLoss, OwnerWatch
from glt_lightning.sampler.device_source import DeviceSource
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample
from glt_lightning.store.device_index import DeviceIndex

# Makes batches in this process from the mapped parts, and from others by what is known of them
MakeInner = Callable[[LocalPartition, Samplers], Producer]

_LOOK_S = 0.2  # between looks at whether samplers live


class WorkerGroup:
    """The producer of one rank in a job whose ranks map different parts. All ranks make theirs at the same time.

    Sampler processes (or this process, without any) listen at free ports of ``host``, the addresses are exchanged, and
    each asks the others for what it does not map. Which port is whose needs no configuration.

    Args:
        graph: The graph, of which this rank maps some parts; learns who has the others.
        sampling: How batches are made.
        link: This rank among the others.
        host: Name or address of this host for the others.
        exchange: Spreads the addresses.
        pin: Page-locks the memory of batches.
        cache: What is kept in this host's memory; the same on all ranks.
        on_device: Which rows of nodes the training device holds, so that batches need not.
        inner: Makes batches in this process in place of the CPU, where there are no sampler processes.
        on_loss: Hears of a rank that is gone for longer than the deadlines allow; see `watch.OwnerWatch`.
        silence_s: How long a rank may be stopped whose sampler processes go on.
    """

    def __init__(
        self,
        graph: ClusterGraph,
        sampling: SamplingOptions,
        link: Link,
        host: str,
        exchange: Exchange,
        pin: PinMemory | None = None,
        on_loss: OnLoss | None = None,
        cache: CacheOptions | None = None,
        on_device: DeviceIndex | None = None,
        inner: MakeInner | None = None,
        silence_s: float = math.inf,
    ) -> None:
        link = replace(link, graph=graph.manifest.options_hash)
        where = f"[{host}]:0" if ":" in host else f"{host}:0"
        members = None if on_device is None else on_device.path
        cache = cache or CacheOptions()
        self._cache: SharedCache | None = None
        self._rows: PeerRows | None = None
        self._samplers: Samplers | None = None
        self._watch: OwnerWatch | None = None
        with ExitStack() as opened:  # closed in the opposite order
            opened.callback(self._close_rows)
            partition = graph.partition
            memory = shared_host_tier(partition, cache, exchange, link.name)
            if memory is not None:
                opened.callback(memory.close)
                partition = partition.with_memory(memory)
            gpus = SamplerGpus(partition, DeviceSource.of_workers(sampling, cache, graph.manifest), exchange, link.name)
            opened.callback(gpus.close)
            opened.callback(self._close_cache)
            source = SamplerSource.of(partition, link, serve=where, on_device=members, gpus=gpus.source)
            self._inner = self._open_inner(opened, source, partition, sampling, pin, inner)
            addresses = self._addresses()
            opened.callback(_Keeper(self._inner).close)
            owners = _exchange_owners(exchange, link, source.parts, addresses)
            self._join(owners)
            self._rows = graph.remote = connect_owners(graph.partition, owners, link, link.open_transport())
            if cache.keeps_rows:
                self._cache = SharedCache(
                    graph.partition, self._rows, cache, exchange, link.name, max(1, sampling.num_workers)
                )
                self._keep(self._cache.handle)
            if on_loss is not None:
                self._watch = OwnerWatch(self._rows.peers, link.deadlines.call_s / 2, silence_s, on_loss)
            self._opened = opened.pop_all()

    def _open_inner(
        self,
        opened: ExitStack,
        source: SamplerSource,
        partition: LocalPartition,
        sampling: SamplingOptions,
        pin: PinMemory | None,
        inner: MakeInner | None,
    ) -> Producer:
        if sampling.num_workers:
            processes = SubprocessProducer(source, sampling, pin)
            opened.callback(processes.close)
            return processes
        samplers = self._samplers = Samplers(source)
        make = inner or (lambda _, samplers: InlineProducer(partition, pin, samplers.make))
        try:
            producer = make(partition, samplers)
        except BaseException:
            samplers.close()
            raise
        opened.callback(producer.close)
        opened.callback(samplers.close)  # first, so that no thread of this process waits for others any more
        return producer

    def _addresses(self) -> list[str]:
        if self._samplers is not None:
            return [str(self._samplers.address)]
        assert isinstance(self._inner, SubprocessProducer)
        return self._inner.addresses()

    def _join(self, owners: list[OwnerAddresses]) -> None:
        if self._samplers is not None:
            self._samplers.join(owners)
        else:
            assert isinstance(self._inner, SubprocessProducer)
            self._inner.join(owners)

    def _keep(self, handle: Mapping[str, Any]) -> None:
        if self._samplers is not None:
            self._samplers.keep(handle)
        else:
            assert isinstance(self._inner, SubprocessProducer)
            self._inner.keep(handle)

    @property
    def restarts(self) -> int:
        return self._inner.restarts

    @property
    def fresh_slots(self) -> int:
        return self._inner.fresh_slots

    @property
    def traffic(self) -> Traffic:
        """What this process itself asked of others; sampler processes count for themselves."""
        return Traffic() if self._samplers is None else self._samplers.traffic

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        return self._inner.stream(config, requests)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._opened.close()
        if self._watch is not None:
            self._watch.close()

    def _close_cache(self) -> None:
        if self._cache is not None:
            self._cache.close()

    def _close_rows(self) -> None:
        if self._rows is not None:
            self._rows.close()


class _Keeper:
    """Replaces samplers that others need, also while this rank takes no batches."""

    def __init__(self, inner: Producer) -> None:
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(inner, SubprocessProducer):
            self._thread = threading.Thread(target=self._run, args=(inner,), name="glt-keeper", daemon=True)
            self._thread.start()

    def _run(self, inner: SubprocessProducer) -> None:
        while not self._closed.wait(_LOOK_S):
            inner.tend()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()


def _exchange_owners(
    exchange: Exchange, link: Link, parts: tuple[int, ...], addresses: list[str]
) -> list[OwnerAddresses]:
    """Who has which parts, ranks with the same parts together. Raises `PartitionError` if the folders differ."""
    said = json.dumps({"name": link.name, "graph": link.graph, "parts": list(parts), "addresses": addresses})
    group: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for text in exchange(said):
        try:
            theirs = json.loads(text)
            group.setdefault(tuple(theirs["parts"]), []).append(theirs)
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError(f"a rank introduced itself with {text!r:.200}, which cannot be read ({error}).") from None
        if theirs["graph"] != link.graph:
            raise PartitionError(
                f"{theirs['name']} has another partition ({theirs['graph']}) than {link.name} ({link.graph}). "
                "Copy one partition folder to all hosts, or partition with the same options and seed."
            )
    if not group:
        raise OptionError("exchange: gave nothing; expected the texts of all ranks.")
    return [
        OwnerAddresses(
            " / ".join(m["name"] for m in members), theirs, tuple(a for m in members for a in m["addresses"])
        )
        for theirs, members in group.items()
    ]
