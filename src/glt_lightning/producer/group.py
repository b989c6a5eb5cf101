"""Worker mode over several hosts: the samplers of all ranks serve each other the parts that their hosts map."""

from __future__ import annotations

import json
import math
import threading
from contextlib import ExitStack
from typing import Any

from glt_lightning.cluster.graph import ClusterGraph
from glt_lightning.cluster.link import Link
from glt_lightning.cluster.member import OwnerAddresses, connect_owners
from glt_lightning.cluster.remote_rows import PeerRows
from glt_lightning.errors import OptionError, PartitionError, PeerError
from glt_lightning.producer.base import JoiningProducer, ProducerSetup
from glt_lightning.producer.shared_tiers import SharedCache
from glt_lightning.producer.watch import OnLoss, OwnerWatch

_LOOK_S = 0.2  # between looks at whether samplers live


class WorkerGroup:
    """Joins the samplers of one rank to those of the other ranks, which map other parts. All ranks make theirs at the same
    time; close it before the producer.

    The samplers listen at free ports, the addresses are exchanged, and each sampler asks the others for the rows of the
    parts that it does not map. Which port is whose needs no configuration.

    Args:
        graph: The graph, of which this rank maps some parts; learns who has the others.
        producer: Has the samplers of this rank.
        link: This rank among the others.
        setup: For what the producer was made.
        on_loss: Hears of a rank that is gone for longer than the deadlines allow; see `watch.OwnerWatch`.
        silence_s: How long a rank may be stopped whose sampler processes go on.
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
                self.cache = SharedCache(partition, self.rows, setup.cache, setup.ranks, max(1, processes))
                opened.callback(self.cache.close)
                producer.keep(self.cache.handle)
            if on_loss is not None:
                self._watch = OwnerWatch(self.rows.peers, link.deadlines.call_s / 2, silence_s, on_loss)
            if keeper is not None:
                opened.callback(keeper.close)  # also first of all: a sampler started now would look for a closed cache
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Safe to call twice."""
        if self._watch is not None:
            self._watch.stop()
        self._opened.close()
        if self._watch is not None:
            self._watch.close()


class _Keeper:
    """Replaces samplers that others need, also while this rank takes no batches."""

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
    setup: ProducerSetup, link: Link, parts: tuple[int, ...], addresses: list[str]
) -> list[OwnerAddresses]:
    """Who has which parts, ranks with the same parts together. Raises `PartitionError` if the folders differ."""
    said = json.dumps({"name": link.name, "graph": link.graph, "parts": list(parts), "addresses": addresses})
    group: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for text in setup.ranks.exchange(said):
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
