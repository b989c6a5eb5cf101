"""Worker mode over several hosts: the samplers of each rank serve the parts of their host to those of other ranks."""

from __future__ import annotations

import json
import math
import threading
from contextlib import ExitStack
from typing import Any

from glt_lightning.base import OptionError, PartitionError, PeerError
from glt_lightning.graph import difference
from glt_lightning.workers.cluster.graph import ClusterGraph
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner_server import OwnerAddresses, connect_owners
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.producer.base import JoiningProducer, ProducerSetup
from glt_lightning.workers.producer.shared_tiers import SharedCache
from glt_lightning.workers.producer.watch import OnLoss, OwnerWatch

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
        on_loss: Called when a rank is lost for longer than the deadlines allow; see `watch.OwnerWatch`.
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
        """Safe to call twice."""
        if self._watch is not None:
            self._watch.stop()
        self._opened.close()
        if self._watch is not None:
            self._watch.close()


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
    """The owners of all parts, ranks with the same parts as one. Raises `PartitionError` if the partitions differ."""
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
