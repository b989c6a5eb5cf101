"""A graph server and its clients: the same batches as made in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import Farm, contents_of, inline, open_farm

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)


@pytest.fixture(params=["in process", "flight", "handover"])
def farm(request: pytest.FixtureRequest) -> Iterator[Farm]:
    with open_farm(request.param) as farm:
        yield farm


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_same_batches(farm, tmp_path, make):
    whole = partitioned(make(), tmp_path, 2, undirected=True)
    own = "author" if make is small_hetero else None
    specs = [
        SPEC,
        LoaderSpec(name="own", seeds=np.arange(40), num_neighbors=[2, -1], batch_size=8, node_type=own),
        LoaderSpec(name="all", num_neighbors=[3, 2], batch_size=64, exact=True, node_type=own),
    ]
    sampling = SamplingOptions(with_edge=True)
    server = farm.serve(whole, num_workers=2)
    context = farm.context(server.address, sampling=sampling)
    assert contents_of(context, *specs, epochs=2) == inline(whole, *specs, epochs=2, sampling={"with_edge": True})


def test_three_clients(farm, tmp_path):
    whole = partitioned(small_graph(), tmp_path, 1)
    server = farm.serve(whole)
    contexts = [farm.context(server.address, rank=rank, world_size=3) for rank in range(3)]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda context: contents_of(context, SPEC, epochs=3), contexts))
    assert found == [inline(whole, SPEC, epochs=3, rank=rank, world_size=3) for rank in range(3)]
    assert sorted(client["client"] for client in server.status()["clients"]) == ["rank 0", "rank 1", "rank 2"]
