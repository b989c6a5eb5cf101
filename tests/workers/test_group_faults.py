"""Whatever the network does to the questions of ranks, the batches are the same; or an error names the peer."""

import threading
from dataclasses import dataclass, field

import pytest

from glt_lightning.base import DeadlineOptions, PeerLostError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import HostsGraph, Link, Ranks, Transport
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.contents import contents
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.network_faults import Faults
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)
OPTIONS = SamplingOptions(with_edge=True)


@dataclass(frozen=True, kw_only=True)
class NetworkLink(Link):
    """A link over a network within this process."""

    network: InProcessNetwork = field(default_factory=InProcessNetwork)

    def open_transport(self) -> Transport:
        return self.network


def open_rank(network, partition, rank, exchange, on_loss=None, **deadlines):
    link = NetworkLink(
        job="test",
        role="worker",
        name=f"rank {rank}",
        deadlines=DeadlineOptions(**{"call_s": 0.3, "reconnect_s": 30} | deadlines),
        retry=Retry(first_s=0.01, most_s=0.05),
        network=network,
    )

    graph = HostsGraph(LocalPartition.open(partition.directory, parts=[rank]), link, f"host{rank}", on_loss)
    return Session(graph, OPTIONS, seed=3, ranks=Ranks(rank, 2, exchange))


def expected(whole, rank):
    with Session(whole, OPTIONS, seed=3, ranks=Ranks(rank, 2)) as context:
        return [contents(batch) for batch in context.make_loader(SPEC)]


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    "faults",
    [
        Faults(seed=1, delay_s=(0.0, 0.01), reorder=0.5),
        Faults(seed=2, duplicate=0.5),
        Faults(seed=3, lose_request=0.1, lose_reply=0.1),
        Faults(seed=4, delay_s=(0.0, 0.005), reorder=0.3, duplicate=0.2, lose_request=0.05, lose_reply=0.05),
    ],
    ids=["late", "twice", "lost", "all"],
)
def test_same_batches(tmp_path, make, faults):
    whole = partitioned(make(), tmp_path, 2, undirected=True)
    with InProcessNetwork(faults) as network:

        def remote(rank, exchange):
            with open_rank(network, whole, rank, exchange) as context:
                found = [contents(batch) for batch in context.make_loader(SPEC)]
                exchange("all done")
                return found

        found = run_ranks(2, remote)
    assert found == [expected(whole, rank) for rank in range(2)]


@pytest.mark.parametrize("silent", [False, True], ids=["broken", "half open"])
def test_a_line_is_cut_and_heals(tmp_path, silent):
    whole = partitioned(small_graph(), tmp_path, 2)
    with InProcessNetwork() as network:

        def remote(rank, exchange):
            with open_rank(network, whole, rank, exchange) as context:
                addresses = context._producer.addresses()
                found = []
                for number, batch in enumerate(context.make_loader(SPEC)):
                    found.append(contents(batch))
                    if number == 1 and rank == 0:
                        network.cut(addresses[0], silent=silent)
                    if number == 2 and rank == 0:
                        network.heal(addresses[0])
                exchange("all done")
                return found

        found = run_ranks(2, remote)
    assert found == [expected(whole, rank) for rank in range(2)]


@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["broken", "half open"])
def test_a_line_that_stays_cut_is_an_error_that_names_the_peer(tmp_path, silent):
    whole = partitioned(small_graph(), tmp_path, 2)
    with InProcessNetwork() as network:

        def remote(rank, exchange):
            with open_rank(network, whole, rank, exchange, call_s=0.1, reconnect_s=0.3) as context:
                batches = iter(context.make_loader(SPEC))
                next(batches)
                exchange("both have begun")
                network.cut(context._producer.addresses()[0], silent=silent)
                exchange("both are cut off")
                with pytest.raises(PeerLostError, match=f"rank {1 - rank}"):
                    list(batches)
                exchange("all done")

        run_ranks(2, remote)


@pytest.mark.slow
def test_a_rank_that_asks_nothing_hears_of_the_loss_of_another(tmp_path):
    """Blocked in a collective call, say."""
    whole = partitioned(small_graph(), tmp_path, 2)
    with InProcessNetwork() as network:

        def remote(rank, exchange):
            heard, said = threading.Event(), []

            def on_loss(reason, left):
                said.append(reason)
                heard.set()
                assert left.wait(30)

            with open_rank(network, whole, rank, exchange, on_loss, call_s=0.1, reconnect_s=0.3) as context:
                assert not heard.wait(0.5)
                exchange("nothing was lost so far")
                if rank == 0:
                    network.cut(context._producer.addresses()[0], silent=True)
                assert rank == 0 or heard.wait(30)
                exchange("heard")
            return said

        said = run_ranks(2, remote)
    assert "rank 0" in said[1][0]
