"""Servers that each map some parts and ask each other for the rest: the batches of one that maps all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import HostedServer, ServerPlan
from tests.helpers.contents import Contents, contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import contents_of, inline, open_farm
from tests.lightning.serving import serving

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
VAL = LoaderSpec(name="val", split="val", num_neighbors=[3, -1], batch_size=16, exact=True)


@pytest.mark.parametrize(
    ("make", "parts", "clients", "handover"),
    [
        (small_graph, 2, 3, True),
        pytest.param(small_graph, 4, 2, True, marks=pytest.mark.slow),
        (small_hetero, 4, 3, False),
    ],
)
def test_same_batches(tmp_path, make, parts, clients, handover):
    whole = partitioned(make(), tmp_path, parts, undirected=True)
    sampling = SamplingOptions(with_edge=True)
    with open_farm("flight") as farm, serving(whole.directory, 2) as (_, servers):
        farm.handover = handover
        contexts = [
            farm.context(servers[rank % 2].address, sampling=sampling, rank=rank, world_size=clients)
            for rank in range(clients)
        ]
        with ThreadPoolExecutor(clients) as threads:
            found = list(threads.map(lambda context: contents_of(context, SPEC, VAL, epochs=2), contexts))
        want = [
            inline(whole, SPEC, VAL, epochs=2, rank=rank, world_size=clients, sampling={"with_edge": True})
            for rank in range(clients)
        ]
        assert found == want


def test_one_is_restarted(tmp_path):
    """Its own client waits for it, and so do the samplers of the other server that need its rows."""
    whole = partitioned(small_graph(), tmp_path, 2)

    def train(context: Session, server: HostedServer, plan: ServerPlan | None) -> list[Contents]:
        found = []
        for number, batch in enumerate(context.make_loader(SPEC)):
            found.append(contents(batch))
            if plan is not None and number == 2:
                server.close()
                restarted.append(HostedServer(plan))
        return found

    restarted: list[HostedServer] = []
    with open_farm("flight") as farm, serving(whole.directory, 2) as (options, servers):
        contexts = [farm.context(server.address, rank=rank, world_size=2) for rank, server in enumerate(servers)]
        plan = ServerPlan(
            directory=str(whole.directory),
            cluster=options.serving(SamplingOptions(num_workers=1)),
            address=servers[1].address,
            rank=1,
        )
        try:
            with ThreadPoolExecutor(2) as threads:
                found = list(threads.map(train, contexts, servers, [None, plan]))
        finally:
            for server in restarted:
                server.close()
        assert found == [inline(whole, SPEC, rank=rank, world_size=2) for rank in range(2)]
