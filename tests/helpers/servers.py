"""Graph servers and their clients for a test: what is opened through a `Farm` is closed at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from glt_lightning.base import ClusterOptions, DeadlineOptions, PickerSpec, SamplingOptions, ServingOptions
from glt_lightning.graph import AnyGraph, LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import Link, Peer, PinMemory, Producer, ProducerSetup, Ranks, RemoteGraph, Transport
from glt_lightning.workers.cluster.graph import GraphService
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.server.served import RemoteProducer
from glt_lightning.workers.server.server import GraphServer
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.contents import Contents, contents
from tests.helpers.in_process import InProcessNetwork

# Short, so that a failing test fails soon; nothing waits for them when all is well.
DEADLINES = DeadlineOptions(connect_s=5, call_s=10, reconnect_s=20, lease_s=10, start_s=30)
RETRY = Retry(first_s=0.01, most_s=0.1)


class _Closeable(Protocol):
    def close(self) -> None: ...


_Closes = TypeVar("_Closes", bound=_Closeable)


def cluster(**changes: Any) -> ServingOptions:
    return ServingOptions(**{"num_workers": 1, "deadlines": DEADLINES} | changes)


def of_clients(options: ServingOptions) -> ClusterOptions:
    """What clients have of the options of their servers."""
    return ClusterOptions(**{each.name: getattr(options, each.name) for each in fields(ClusterOptions)})


@contextmanager
def open_farm(kind: str) -> Iterator[Farm]:
    """kind: ``in process``, ``flight``, or ``handover`` (calls in process)."""
    with InProcessNetwork() as network:
        farm = Farm(FlightTransport(Credentials()) if kind == "flight" else network, handover=kind == "handover")
        try:
            yield farm
        finally:
            farm.close()


class Produced:
    """A graph whose batches a producer of the test makes. make: its argument page-locks memory, or is None."""

    def __init__(self, graph: AnyGraph, make: Callable[[PinMemory | None], Producer]) -> None:
        self._make = make
        self.manifest, self.schema = graph.manifest, graph.schema
        self.split, self.edge_split, self.seeds = graph.split, graph.edge_split, graph.seeds
        self.deleted = graph.deleted

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[Producer, None]:
        producer = self._make(setup.pin)
        opened.callback(producer.close)
        return producer, None


class Farm:
    """Servers and clients over one transport. handover: clients map the memory of the servers, which are on their host."""

    def __init__(self, transport: Transport, *, handover: bool = False) -> None:
        self.transport, self.handover = transport, handover
        self._stack = ExitStack()

    def serve(
        self,
        partition: LocalPartition,
        address: str = "127.0.0.1:0",
        greet: Callable[..., Any] | None = None,
        picker: PickerSpec | None = None,
        **changes: Any,
    ) -> GraphServer:
        options = cluster(**changes)
        link = Link(job="", role="server", name="server 0", graph=partition.manifest.options_hash)
        owner = Owner(partition, options.limits.reply_bytes)
        graph = GraphService(partition, partition.parts)
        services = {**owner.calls, **graph.calls}
        given = {
            "services": services,
            "greet": greet or link.greet,
            "source": SamplerSource.of(partition, picker=picker),
        }
        server = GraphServer(partition, options, self.transport, address, **given)
        self._stack.callback(owner.close)
        self._stack.callback(server.close)
        return server

    def peer(self, *addresses: str, name: str = "a client", job: str = "test", **deadlines: Any) -> Peer:
        given = {field: getattr(DEADLINES, field) for field in ("connect_s", "call_s", "reconnect_s")} | deadlines
        link = Link(job=job, role="client", name=name, deadlines=DeadlineOptions(**given), retry=RETRY)
        peer = link.peer("server 0", addresses, self.transport)
        self._stack.callback(peer.close)
        return peer

    def producer(
        self, peer: Peer, sampling: SamplingOptions | None = None, pin: PinMemory | None = None, **changes: Any
    ) -> RemoteProducer:
        handover = changes.pop("handover", self.handover)
        options = cluster(**{"deadlines": peer.deadlines, **changes})
        producer = RemoteProducer(peer, options, sampling or SamplingOptions(), pin, handover=handover)
        self._stack.callback(producer.close)
        return producer

    def context(
        self,
        *addresses: str,
        sampling: SamplingOptions | None = None,
        rank: int = 0,
        world_size: int = 1,
        **changes: Any,
    ) -> Session:
        """Loaders of one client."""
        peer = self.peer(*addresses, name=f"rank {rank}", **changes.pop("peer", {}))
        context = Session(
            Produced(RemoteGraph(peer), lambda pin: self.producer(peer, sampling, pin, **changes)),
            sampling,
            seed=3,
            ranks=Ranks(rank, world_size),
        )
        self._stack.callback(context.close)
        return context

    def open(self, thing: _Closes) -> _Closes:
        """What is closed at the end."""
        self._stack.callback(thing.close)
        return thing

    @staticmethod
    def deadlines(**changes: Any) -> DeadlineOptions:
        return replace(DEADLINES, **changes)

    def close(self) -> None:
        self._stack.close()


def until(fact: Callable[[], bool], patience_s: float = 20.0) -> None:
    """Waits for a fact; one that never comes fails the test."""
    end_s = time.monotonic() + patience_s
    while not fact():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.01)


def contents_of(context: Session, *specs: LoaderSpec, epochs: int = 1) -> list[Contents]:
    """Of all batches, loader by loader."""
    found = []
    for spec in specs:
        loader = context.make_loader(spec)
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            found += [contents(batch) for batch in loader]
    return found


def inline(
    partition: LocalPartition,
    *specs: LoaderSpec,
    epochs: int = 1,
    rank: int = 0,
    world_size: int = 1,
    sampling: Mapping[str, Any] | None = None,
) -> list[Contents]:
    """What `contents_of` finds where the batches are made in this process."""
    ranks = Ranks(rank, world_size)
    with Session(partition, SamplingOptions(**sampling or {}), seed=3, ranks=ranks) as context:
        return contents_of(context, *specs, epochs=epochs)
