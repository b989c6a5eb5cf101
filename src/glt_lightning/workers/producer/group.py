"""Worker mode over several hosts: the samplers of each rank serve the parts of their host to the samplers of other ranks.

**Protocol.** Every rank takes the same steps in the same order, since some of them are collective calls:

1. the samplers start and listen at free ports (`JoiningProducer.addresses`);
2. the ranks exchange their partition's identity, parts and addresses (`_exchange_owners`);
3. each rank sends its samplers the owners of the other parts (`JoiningProducer.join`), and connects to them itself;
4. with ``cache.ratio`` or ``cache.bytes`` one rank of each host fills the remote cache, and the others open it
   (`SharedCache`).

From step 1 on, a thread replaces samplers that die (`_Keeper`), because other ranks wait for them while this rank
trains. A watch (`OwnerWatch`) asks every owner for a sign of life, because a rank in a collective call of torch does not
notice that another one is gone.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from glt_lightning.base import CacheOptions, OptionError, PartitionError, PeerError, Progress
from glt_lightning.graph import (
    BatchArrays,
    HostTier,
    LocalPartition,
    SharedArrays,
    available_memory,
    copy_for_uva,
    difference,
    open_uva,
)
from glt_lightning.sampling import DeviceSource, RemoteRows
from glt_lightning.workers.cluster.cache import CacheMaker
from glt_lightning.workers.cluster.graph import ClusterGraph
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner import OwnerAddresses, connect_owners
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.producer.base import JoiningProducer, ProducerSetup, Ranks
from glt_lightning.workers.producer.process import OnLoss, OwnerWatch

_log = logging.getLogger(__name__)

_LOOK_S = 0.2  # between checks for dead samplers, which other ranks wait for


class WorkerGroup:
    """Joins the samplers of one rank to those of the ranks that map other parts. Collective: all ranks construct theirs at
    the same time. Close it before the producer.

    The samplers listen at free ports, the ranks exchange the addresses, and each sampler requests rows of the other parts
    from their owners. Ports need no configuration.

    Args:
        graph: The graph, of which this rank maps some parts; ``graph.remote`` is set to the owners of the other parts.
        producer: The producer with the samplers of this rank.
        link: Identity and options of this rank towards its peers.
        setup: The setup of the producer.
        on_loss: Called when a rank is lost for longer than the deadlines allow; see `OwnerWatch`.
        silence_s: How long a rank may be stopped while its sampler processes go on.
    """

    def __init__(
        self,
        graph: ClusterGraph,
        producer: JoiningProducer,
        link: Link,
        setup: ProducerSetup,
        on_loss: OnLoss | None = None,
        silence_s: float = math.inf,
    ) -> None:
        self.cache: SharedCache | None = None
        self._watch: OwnerWatch | None = None
        partition, processes = graph.partition, setup.sampling.num_workers
        with ExitStack() as opened:  # closed in the opposite order
            addresses = producer.addresses()
            # From here on other ranks may call these samplers, also while this rank still waits for them in the exchange.
            keeper = _Keeper(producer) if processes else None
            if keeper is not None:
                opened.callback(keeper.close)
            owners = _exchange_owners(setup, link, partition.parts, addresses)
            producer.join(owners)
            self.rows: PeerRows = connect_owners(partition, owners, link, link.open_transport())
            graph.remote = self.rows
            opened.callback(self.rows.close)
            if setup.cache.keeps_rows:
                self.cache = SharedCache(partition, self.rows, setup.cache, setup.ranks)
                opened.callback(self.cache.close)
                producer.keep(self.cache.handle)
            if on_loss is not None:
                self._watch = OwnerWatch(self.rows.peers, link.deadlines.call_s / 2, silence_s, on_loss)
            if keeper is not None:
                # Also first of all: a sampler that the keeper started while this closes would open a closed cache.
                opened.callback(keeper.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Ends the connections to other ranks. Safe to call twice."""
        if self._watch is not None:
            self._watch.stop()  # first: peers that end in turn are no loss
        self._opened.close()
        if self._watch is not None:
            self._watch.close()  # last: its call in flight ends with the connections


class _Keeper:
    """Replaces dead samplers while this rank takes no batches: other ranks need them."""

    def __init__(self, producer: JoiningProducer) -> None:
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(producer,), name="glt-keeper", daemon=True)
        self._thread.start()

    def _run(self, producer: JoiningProducer) -> None:
        while not self._closed.wait(_LOOK_S):
            producer.tend()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def _exchange_owners(
    setup: ProducerSetup, link: Link, mapped: tuple[int, ...], addresses: list[str]
) -> list[OwnerAddresses]:
    """Returns the owners of all parts; ranks with the same parts are one owner. Raises `PartitionError` if the partitions
    of the ranks differ."""
    mine = json.dumps({"name": link.name, "graph": link.graph, "parts": list(mapped), "addresses": addresses})
    group: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for text in setup.ranks.exchange(mine):
        try:
            theirs = json.loads(text)
            group.setdefault(tuple(theirs["parts"]), []).append(theirs)
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError(
                f"cannot read what a rank sent as its parts and addresses: {text!r:.200} ({error}). "
                "Install the same release of glt-lightning on all hosts."
            ) from None
        if theirs["graph"] != link.graph:
            raise PartitionError(
                f"{theirs['name']} and {link.name} have different partitions: {difference(theirs['graph'], link.graph)}"
            )
    if not group:
        raise OptionError("exchange: returned no texts; it has to return those of all ranks, in rank order.")
    return [
        OwnerAddresses(" / ".join(m["name"] for m in ranks), parts, tuple(a for m in ranks for a in m["addresses"]))
        for parts, ranks in group.items()
    ]


# Memory that the ranks of a host share: the remote cache, and the host tier of their own parts.


class SharedCache:
    """The remote cache of this rank's host. Collective: all ranks construct theirs at the same time, with the same options.
    Close it.

    handle: opens the cache in samplers, as JSON values.
    Raises as `CacheMaker` on the rank that fills it, and `PeerError` on the other ranks.
    """

    def __init__(self, partition: LocalPartition, rows: RemoteRows, options: CacheOptions, ranks: Ranks) -> None:
        self._own: CacheMaker | None = None

        def make(_sharing: int) -> Mapping[str, Any]:
            self._own = CacheMaker(partition, options)
            return self._own.make(rows)

        try:
            self.handle: Mapping[str, Any] = ranks.once_per_host(partition.parts, make)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the cache. Its memory is freed with the last process that maps it."""
        if self._own is not None:
            self._own.close()


def shared_host_tier(partition: LocalPartition, options: CacheOptions, ranks: Ranks) -> HostTier | None:
    """Makes the host tier of the mapped parts, or opens the one that another rank of this host made; None without
    ``cache.memory``, and where ``auto`` finds that they fit. Close it. Collective: all ranks call it.

    Raises `OptionError` if this host has too little memory.
    """
    if options.memory is None or (options.memory == "auto" and not partition.is_in_files):
        return None
    made: list[HostTier] = []
    budget, available = options.memory_bytes, 0
    if budget is None:
        # what each rank sees before any of them has made its tier, also for other parts than these
        mine = [Ranks.host_identity(), list(partition.parts), available_memory()]
        here = [other[1:] for other in map(json.loads, ranks.exchange(json.dumps(mine))) if other[0] == mine[0]]
        available = min(free for _, free in here)
        others = {tuple(parts) for parts, _ in here} - {tuple(partition.parts)}
        budget = HostTier.automatic_budget(partition.manifest, partition.parts, available, others)

    def make(_sharing: int) -> str | None:
        if budget is None:
            return None
        if options.memory == "auto":
            _log.info(
                "cache.memory: auto: parts %s do not fit into the available memory (%.2f GB): %.2f GB are for attributes.",
                *(list(partition.parts), available / 1e9, budget / 1e9),
            )
        made.append(HostTier.create(partition, budget, Progress(None).phase))
        return made[0].path

    try:
        path = ranks.once_per_host(partition.parts, make)
        return None if path is None else made[0] if made else HostTier.open(path)
    except BaseException:
        for tier in made:
            tier.close()
        raise


# One copy of graph and attributes in each host's memory, for all its ranks whose GPUs read it there (UVA).


def share_uva(batch: BatchArrays, ranks: Ranks) -> Callable[[Sequence[str]], SharedArrays | None]:
    """Returns the function that `DeviceStore.open` takes as ``share``. The caller closes the function's result.

    Collective: all ranks call the returned function once, also those that need no arrays: the ranks of a host that map the
    same parts share the arrays that any of them needs. Raises as `copy_for_uva` on the rank that copies, and `PeerError` on
    the others.
    """

    def share(mine: Sequence[str]) -> SharedArrays | None:
        place = [Ranks.host_identity(), list(batch.partition.parts)]
        requests = [json.loads(text) for text in ranks.exchange(json.dumps([place, list(mine)]))]
        needed = sorted({array for other, needs in requests if other == place for array in needs})
        made: list[SharedArrays] = []

        def make(_sharing: int) -> str | None:
            if not needed:
                return None
            made.append(copy_for_uva(batch, needed))
            return made[0].path

        try:
            path = ranks.once_per_host(batch.partition.parts, make)
            try:
                if made:
                    return made[0]  # other ranks open it here, also if this rank needs none of it
                return open_uva(batch, mine, path) if mine and path is not None else None
            finally:
                ranks.exchange(ranks.name)  # a fence: all ranks have opened the copy before any of them may close it
        except BaseException:
            for arrays in made:
                arrays.close()
            raise

    return share


class SamplerGpus:
    """The GPUs of sampler processes, and the host memory that they read. Collective: all ranks construct theirs at the same
    time. Close it after the processes.

    source: the GPUs; None if the CPU samples.  Raises as `share_uva`.
    """

    def __init__(self, partition: LocalPartition, source: DeviceSource | None, ranks: Ranks) -> None:
        self.source, self._shared = source, None
        if source is not None:
            self._shared = share_uva(
                BatchArrays(partition, source.edges, source.weights, source.timed, source.labor), ranks
            )(source.on_host)
            self.source = replace(source, host=None if self._shared is None else self._shared.path)

    def close(self) -> None:
        """Safe to call twice."""
        if self._shared is not None:
            self._shared.close()
