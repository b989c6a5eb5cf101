"""Which process of a job this is."""

from __future__ import annotations

import dataclasses

import pytest

from glt_lightning.workers import DistContext, Role


def test_worker() -> None:
    context = DistContext(role=Role.WORKER, rank=2, world_size=4, parts=(2,), peers=("rank 0", "rank 1", "rank 3"))
    assert (context.is_worker, context.is_server, context.is_client) == (True, False, False)
    assert (context.group_name, context.worker_name) == ("worker", "worker-2")
    assert (context.global_rank, context.global_world_size) == (2, 4)
    assert (context.num_servers, context.num_clients) == (0, 0)


def test_servers_come_before_clients() -> None:
    server = DistContext(role=Role.SERVER, rank=1, world_size=2, num_servers=2, num_clients=4)
    clients = [DistContext(role=Role.CLIENT, rank=r, world_size=4, num_servers=2, num_clients=4) for r in range(4)]
    assert (server.is_server, server.global_rank, server.worker_name) == (True, 1, "server-1")
    assert [client.global_rank for client in clients] == [2, 3, 4, 5]
    assert {client.global_world_size for client in (server, *clients)} == {6}


def test_server_does_not_know_how_many_clients_there_will_be() -> None:
    server = DistContext(role=Role.SERVER, rank=0, world_size=2, num_servers=2, num_clients=None)
    assert server.num_clients is None
    assert server.global_world_size is None


def test_is_frozen() -> None:
    context = DistContext(role=Role.WORKER, rank=0, world_size=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.rank = 1  # type: ignore[misc]
