"""Scripts with GraphLearn-for-PyTorch's names, run as processes by the tests: ``python scripts.py ROLE ...``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import glt_lightning.compat.glt as glt
from glt_lightning.base import ClusterOptions, DeadlineOptions
from tests.compat.fields import loader_of_subgraphs
from tests.helpers.rings import NODES, dataset, part_in_memory, ring_edges

dist = glt.distributed
# reconnect_s: a server that is started again needed more than a minute on two cores that eight others used, too
CLUSTER = ClusterOptions(
    deadlines=DeadlineOptions(connect_s=5, call_s=20, reconnect_s=180, join_s=120),
)


def checked(batch: Any) -> list[int]:
    """The seeds of a batch of the ring."""
    assert torch.equal(batch.x[:, 0].long(), batch.node)
    assert torch.equal(batch.y, batch.node * 10)
    sampled, seeds = batch.node[batch.edge_index]
    assert torch.equal(ring_edges()[:, batch.edge], torch.stack([seeds, sampled]))
    assert torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
    return batch.batch.tolist()


def loader(data: Any, seeds: torch.Tensor, options: Any, **given: Any) -> Any:
    asked = {"batch_size": 5, "with_edge": True, "collect_features": True, "random_seed": 1, "worker_options": options}
    return dist.DistNeighborLoader(data, [2, 2], seeds, **asked | given)


def worker(folder: str, port: str, rank: str, world: str, kind: str, early: str) -> None:
    """Trains two epochs; where ``early`` is its rank, it leaves a loader early and ends first."""
    me, count = int(rank), int(world)
    dist.init_worker_group(count, me, "distributed-trainer", cluster=CLUSTER)
    options: Any = dist.CollocatedDistSamplingWorkerOptions("localhost", port)
    if kind == "mp":
        options = dist.MpDistSamplingWorkerOptions(num_workers=1, master_addr="localhost", master_port=int(port))
    mine = torch.arange(NODES)[me::count]
    data = part_in_memory(me, count) if kind == "memory" else dataset(Path(folder), me)
    train = loader(data, mine, options, shuffle=True)
    test = loader(data, mine[: 5 + me], options)
    for _ in range(2):
        assert sorted(seed for batch in train for seed in checked(batch)) == mine.tolist()
    for batch in train:
        checked(batch)
        if early == rank:
            break
    assert [seed for batch in test for seed in checked(batch)] == mine[: 5 + me].tolist()
    loader_of_subgraphs(data, "out", options)
    dist.barrier()
    if early == rank:
        train.shutdown()
    print(f"worker {rank} is done", flush=True)


def server(folder: str, port: str, rank: str, servers: str, clients: str) -> None:
    if Path(folder, "parts").exists():
        data = dataset(Path(folder), int(rank), labels=Path(folder, "label.pt").exists())
    else:
        data = part_in_memory(int(rank), int(servers))
    if int(servers) == 1:
        data.random_node_split(5, 5)
    dist.init_server(
        num_servers=int(servers),
        num_clients=int(clients),
        server_rank=int(rank),
        dataset=data,
        master_addr="localhost",
        master_port=int(port),
        num_rpc_threads=16,
        server_group_name="distributed-server",
        cluster=CLUSTER,
    )
    context = dist.get_context()
    assert (context.role, context.global_rank, context.global_world_size) == (
        dist.DistRole.SERVER,
        int(rank),
        int(servers) + int(clients),
    )
    print(f"server {rank} serves as {os.getpid()}", flush=True)
    dist.wait_and_shutdown_server()
    print(f"server {rank} is done", flush=True)


def client(folder: str, port: str, rank: str, servers: str, clients: str, early: str) -> None:
    me, count = int(rank), int(clients)
    dist.init_client(
        num_servers=int(servers),
        num_clients=count,
        client_rank=me,
        master_addr="localhost",
        master_port=int(port),
        client_group_name="distributed-trainer-client",
        cluster=CLUSTER,
    )
    context = dist.get_context()
    assert context.worker_name == f"distributed_trainer_client_{me}"
    target = context.rank % context.num_servers()
    devices = dist.request_server(target, func=torch.cuda.device_count)
    options = dist.RemoteDistSamplingWorkerOptions(
        server_rank=target,
        num_workers=2,
        worker_devices=[torch.device("cuda", i % devices) for i in range(2)] if devices else None,
        master_addr="localhost",
        master_port=11112,
        buffer_size="1GB",
        prefetch_size=4,
    )
    mine = torch.arange(NODES)[me::count]
    train = loader(None, mine, options, shuffle=True)
    seen = []
    for number, batch in enumerate(train):
        seen += checked(batch)
        if number == 0:
            print(f"client {rank} has a batch", flush=True)
            if early == "wait":
                while not Path(folder, "go on").exists():
                    time.sleep(0.02)
    assert sorted(seen) == mine.tolist()
    for batch in train:
        checked(batch)
        if early == rank:
            break
    if early != rank:  # the other one ends without it
        dist.shutdown_client()
    print(f"client {rank} is done", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
