"""Batches with ``sampling.aggregate_first``: the sums that a layer makes of all rows, in every mode."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import CacheOptions, DataError, OptionError, RemoteError, SamplingOptions
from glt_lightning.graph import DeviceIndex
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import KHopSampler, SamplerConfig
from glt_lightning.workers import Ranks
from glt_lightning.workers.producer.request_codec import read_config, write_config
from tests.helpers.contents import Contents, contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import contents_of, inline, open_farm
from tests.reference import ops as reference
from tests.workers.test_caches import open_rank as open_cached

TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
ALL = LoaderSpec(name="all", num_neighbors=[3, -1], batch_size=64, exact=True)
ONE_HOP = LoaderSpec(name="one", num_neighbors=[5], batch_size=64, exact=True)
MEAN = SamplingOptions(aggregate_first="mean")


def graph() -> Data:
    """Features that are no integers, so that sums depend on their order."""
    data = small_graph()
    data.x = torch.randn(data.num_nodes, 5, generator=torch.Generator().manual_seed(0))
    return data


def expected(whole: Data, kind: str) -> Contents:
    """What becomes of a batch that has all rows."""
    nodes, edges = sum(whole.num_sampled_nodes[:-1]), sum(whole.num_sampled_edges[:-1])
    sums = reference.gather_sum(whole.x.float(), *whole.edge_index, nodes, mean=kind == "mean")
    batch = Data()
    for name, value in whole.items():
        if name in ("num_sampled_nodes", "num_sampled_edges"):
            value = value[:-1]
        elif name == "edge_index":
            value = value[:, :edges]
        elif name in ("e_id", "edge_attr"):
            value = value[:edges]
        elif isinstance(value, torch.Tensor) and name != "input_id":
            value = value[:nodes]
        batch[name] = value
        if name == "x":
            batch.x_neighbors, batch.x_neighbors_aggr = sums, kind
    return contents(batch)


def all_expected(partition, *specs, kind="mean", rank=0, world_size=1, **sampling):
    with Session(partition, SamplingOptions(**sampling), seed=3, ranks=Ranks(rank, world_size)) as context:
        return [expected(batch, kind) for spec in specs for batch in context.make_loader(spec)]


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_same_sums_in_this_process_and_in_samplers(tmp_path, kind):
    partitions = [partitioned(graph(), tmp_path, parts) for parts in (1, 2, 5)]
    specs = (TRAIN, ALL, ONE_HOP)
    want = all_expected(partitions[0], *specs, kind=kind)
    labor = all_expected(partitions[0], TRAIN, kind=kind, method="labor")
    assert len(want) > 15
    for partition in partitions:
        for more in ({"num_threads": 3}, {"num_workers": 1}):
            assert inline(partition, *specs, sampling={"aggregate_first": kind, **more}) == want
        assert inline(partition, TRAIN, sampling={"aggregate_first": kind, "method": "labor"}) == labor
    with_edge = {"with_edge": True}
    found = inline(partitions[1], TRAIN, sampling={"aggregate_first": kind, **with_edge})
    assert found == all_expected(partitions[1], TRAIN, kind=kind, **with_edge)


@pytest.mark.parametrize("transport", ["flight", "handover"])
def test_same_sums_from_servers(tmp_path, transport):
    halves = partitioned(graph(), tmp_path, 2)
    with open_farm(transport) as farm:
        server = farm.serve(halves)
        for method in ("neighbor", "labor"):
            found = contents_of(farm.context(server.address, sampling=replace(MEAN, method=method)), TRAIN, ONE_HOP)
            assert found == all_expected(halves, TRAIN, ONE_HOP, method=method)
        assert contents_of(farm.context(server.address), TRAIN) == inline(halves, TRAIN)  # other clients get all rows


@pytest.mark.diagonal
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cache", [CacheOptions(), CacheOptions(ratio=0.1), CacheOptions(memory=1000)])
def test_same_sums_of_remote_cached_and_stored_rows(tmp_path, workers, cache):
    halves, method = partitioned(graph(), tmp_path, 2), "labor" if workers else "neighbor"

    def body(rank, exchange):
        options = replace(MEAN, num_workers=workers, method=method)
        with open_cached(halves, rank, 2, exchange, [rank], cache, options) as context:
            loader = context.make_loader(TRAIN)
            found = [contents(batch) for batch in loader]
            counters = loader.stats().counters
            exchange("all done")
            return found, counters

    for rank, (found, counters) in enumerate(run_ranks(2, body)):
        assert found == all_expected(halves, TRAIN, rank=rank, world_size=2, method=method)
        assert counters.remote_rows > 0
        assert (counters.cached_rows > 0) == bool(cache.ratio)
        assert (counters.disk_rows > 0) == bool(cache.memory_bytes)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8", "given float16", "given bfloat16"])
def test_aggregates_are_float32_whatever_is_stored(tmp_path, kind):
    data, storage = graph(), {"x": kind}
    if kind.startswith("given"):
        data.x, storage = data.x.to(getattr(torch, kind.split()[1])), {}
    halves = partitioned(data, tmp_path, 2, storage=storage)
    for dtype in ("float32", "stored"):
        for cache in (CacheOptions(), CacheOptions(memory=1000)):
            with Session(halves, replace(MEAN, feature_dtype=dtype), seed=3, cache=cache) as context:
                found = [contents(batch) for batch in context.make_loader(TRAIN)]
            assert found == all_expected(halves, TRAIN, feature_dtype=dtype)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.update({"x": d.x.double()}), "x is float64; only"),
        (lambda d: d.update({"x": d.x.short()}), "x is int16; only"),
        (lambda d: d.pop("x"), "have no x"),
        (lambda d: d.update({"x_neighbors": d.x}), "have an attribute x_neighbors"),
    ],
)
def test_graphs_without_an_aggregate_are_refused(tmp_path, change, why):
    data = graph()
    change(data)
    with Session(partitioned(data, tmp_path), MEAN) as context, pytest.raises(OptionError, match=why):
        context.make_loader(TRAIN)


def test_typed_graphs_and_devices_are_refused(tmp_path):
    typed = partitioned(small_hetero(), tmp_path, undirected=True)
    with Session(typed, MEAN) as context, pytest.raises(OptionError, match="one node type and one edge type"):
        context.make_loader(TRAIN)
    with open_farm("flight") as farm, pytest.raises(RemoteError, match="one node type and one edge type"):
        producer = farm.producer(farm.peer(farm.serve(typed).address))
        config = SamplerConfig(1, ((2, 2, 2),), aggregate="mean")
        with Session(typed) as context:
            requests = context.make_loader(TRAIN).plan.requests(0, 0)
            next(producer.stream(config, requests))
    whole = partitioned(graph(), tmp_path / "one")
    with (
        closing(DeviceIndex.create(whole.manifest, [np.arange(3)])) as index,
        pytest.raises(OptionError, match=r"remove cache\.device"),
    ):
        KHopSampler(whole, SamplerConfig(0, ((2,),), aggregate="mean"), on_device=index)


@pytest.mark.parametrize("given", ["max", "", 1, True])
def test_unknown_aggregates_are_refused(given):
    with pytest.raises(OptionError, match=r"aggregate_first: expected mean, sum, null; got"):
        SamplingOptions(aggregate_first=given)
    sent = json.loads(json.dumps(write_config(SamplerConfig(0, ((2,),), aggregate="sum"))))
    assert read_config(sent).aggregate == "sum"
    with pytest.raises(DataError, match="aggregate: expected mean or sum"):
        read_config(sent | {"aggregate": given})


@pytest.mark.parametrize("other", [{"topology": "device"}, {"num_workers": 1, "worker_devices": ["cuda:0"]}])
def test_gpus_that_sample_are_refused(other):
    with pytest.raises(OptionError, match="needs CPUs that sample"):
        SamplingOptions(aggregate_first="mean", **other)
